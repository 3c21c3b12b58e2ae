"""Feedback in parts: which functions were seen, and where; groups that fit them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cbandit.posterior.group import Group

__all__ = ["Part", "columns_of", "each_alone", "joined", "told_apart"]

Part = tuple[list[int], Tensor, Sequence[bool], "Tensor | None"]
"""Functions, their values ``(T, f)``, the trials that saw them, their own noise."""


def joined(parts: Sequence[Part]) -> Sequence[Part]:
    """Join parts that were seen in the same trials with the same noise."""
    if len(parts) < 2:
        return parts
    _, _, wanted, noise = parts[0]
    for _, _, other, own in parts[1:]:
        if other is not wanted and list(other) != list(wanted):
            return parts
        if own is not noise and (
            own is None or noise is None or not bool((own == noise).all())
        ):
            return parts
    functions = [f for part in parts for f in part[0]]
    return [(functions, torch.cat([part[1] for part in parts], -1), wanted, noise)]


def columns_of(values: Tensor, functions: list[int], wanted: list[int]) -> Tensor:
    """The columns of ``wanted`` among ``values (T, f)`` of some functions."""
    if wanted == functions:
        return values
    return torch.stack([values[:, functions.index(f)] for f in wanted], -1)


def told_apart(groups: list[Group], functions: Sequence[int]) -> list[Group]:
    """Groups that hold these functions alone, or none of them."""
    out: list[Group] = []
    more: list[Group] = []
    for group in groups:
        mine = [f for f in group.functions if f in functions]
        if mine and len(mine) < len(group.functions):
            group, other = group.split(mine)
            more.append(other)
        out.append(group)
    return out + more if more else out


def each_alone(
    groups: list[Group], which: Callable[[Group], bool] = lambda group: True
) -> list[Group]:
    """Groups of a single function each, of ``which``."""
    out, more = [], []
    for group in groups:
        while which(group) and len(group.functions) > 1:
            group, other = group.split(group.functions[-1:])
            more.append(other)
        out.append(group)
    return out + more
