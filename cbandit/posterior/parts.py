"""Feedback in parts: which functions were seen, and where; groups that fit them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cbandit.posterior.group import Group

__all__ = ["Part", "columns_of", "each_alone", "joined", "told_apart"]

Part = tuple[list[int], Tensor, Sequence[bool], "Tensor | None"]
"""Functions, their values ``(T, f)``, the trials that saw them, their own noise."""


def joined(parts: Sequence[Part]) -> list[Part]:
    """Join parts that were seen in the same trials with the same noise."""
    if len(parts) < 2:
        return list(parts)
    first, *rest = parts
    alike = all(
        (part[2] is first[2] or list(part[2]) == list(first[2]))
        and (
            (part[3] is None and first[3] is None)
            or (
                part[3] is not None
                and first[3] is not None
                and bool((part[3] == first[3]).all())
            )
        )
        for part in rest
    )
    if not alike:
        return list(parts)
    functions = [f for part in parts for f in part[0]]
    return [(functions, torch.cat([p[1] for p in parts], -1), first[2], first[3])]


def columns_of(values: Tensor, functions: list[int], wanted: list[int]) -> Tensor:
    """The columns of ``wanted`` among ``values (T, f)`` of some functions."""
    if wanted == functions:
        return values
    return torch.stack([values[:, functions.index(f)] for f in wanted], -1)


def told_apart(groups: list[Group], functions: Sequence[int]) -> list[Group]:
    """Groups that hold these functions alone, or none of them."""
    out, more = [], []
    for group in groups:
        mine = [f for f in group.functions if f in functions]
        if mine and len(mine) < len(group.functions):
            group, other = group.split(mine)
            more.append(other)
        out.append(group)
    return out + more


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
