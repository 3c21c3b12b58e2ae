"""Observed costs on their way into multipliers, and multipliers as prices."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Waiting", "measured", "priced"]


class Waiting(NamedTuple):
    """Costs that wait for their unit: no two outcomes of theirs differ yet.

    Args:
        where: ``(T, m)``, what waits.
        excess: by how much they were above their thresholds, in the user's units,
            ``(T, m)`` each; 0 where nothing waits.
    """

    where: Tensor
    excess: tuple[Tensor, ...]


def measured(
    beliefs: Any, arrived: tuple[Tensor, ...], waiting: Waiting | None
) -> tuple[tuple[Tensor, ...], Waiting | None]:
    """Return costs that were told in units, and those that wait for theirs.

    Args:
        beliefs: about reward and costs, with all that was told.
        arrived: excess over the thresholds, in the user's units, ``(T, m)`` each.
        waiting: what was told before and had no unit then.
    """
    units = beliefs.units() if arrived or waiting else None
    if units is None or units.size.shape[1] == 1:
        return arrived, waiting
    size, known = units.size[:, 1:], units.known[:, 1:]
    if waiting is not None and bool((waiting.where & known).any()):
        arrived, waiting = (*waiting.excess, *arrived), None
    given = tuple(torch.where(known, row / size, 0.0) for row in arrived)
    if not arrived or bool(known.all()):
        return given, waiting
    left = tuple(torch.where(known, 0.0, row) for row in arrived)
    if waiting is None:
        return given, Waiting(~known, left)
    return given, Waiting(~known | waiting.where, waiting.excess + left)


def priced(beliefs: Any, multiplier: Tensor) -> Tensor:
    """Return multipliers ``(T, m)`` as reward for a unit of cost, the user's units.

    NaN where a unit is lacking and the multiplier is not 0.
    """
    units, m = beliefs.units(), multiplier.shape[-1]
    if units is None or m == 0:
        return multiplier
    ratio = units.ratio(m)
    return torch.where(multiplier == 0, 0.0, multiplier * ratio)
