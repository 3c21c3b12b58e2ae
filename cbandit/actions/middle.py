"""The middle of a set, where a policy without any data begins.

Coordinates are scaled as by :meth:`~cbandit.GP.default`: by the width of the set, and
by logarithms where a parameter has ``log=True``. The middle of a category is its first
value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit.actions.base import Actions
from cbandit.actions.box import Box
from cbandit.actions.grid import ProductGrid
from cbandit.actions.unit import Unit

CHUNK = 1 << 18  # actions that are compared at a time
SAME = 1e-6  # distances this close count as equal; then the lowest number wins


def nearest_to_middle(actions: Actions, on: Actions, mask: Tensor | None) -> Tensor:
    """Return the number of the action nearest to the middle of a set, ``(1 or T,)``.

    Args:
        actions: the set.
        on: the numbered actions to choose from, usually those of ``actions``.
        mask: ``(1 or T, N)``, which of them are allowed; ``None``: all are.
    """
    unit, middle = _middle(actions)
    return nearest(unit, middle, on, mask)


def nearest(unit: Unit, z: Tensor, on: Actions, mask: Tensor | None) -> Tensor:
    """Return the number of the action nearest to a point, ``(1 or T,)``.

    Args:
        unit: the map of the set's coordinates to the unit cube.
        z: the point there, ``(1 or T, d)``.
        on: the numbered actions to choose from.
        mask: ``(1 or T, N)``, which of them are allowed; ``None``: all are.
    """
    if mask is None and isinstance(on, ProductGrid):
        number = torch.zeros(len(z), dtype=torch.long, device=z.device)
        for j, axis in enumerate(on.axes):
            gap = (unit.axis(axis.double(), j) - z[:, j : j + 1]).abs()
            number = number * axis.numel() + _least(gap)[1]
        return number
    least = torch.full_like(z[:1, 0], torch.inf)
    number = torch.zeros_like(least, dtype=torch.long)
    for start, stop in on.stretches(CHUNK):
        points = unit.of(on.block(start, stop).double())
        gap = (points - z.unsqueeze(1)).square().sum(-1)  # 1 or T x n
        if mask is not None:
            gap = torch.where(mask[:, start:stop], gap, torch.inf)
        value, place = _least(gap)
        nearer = value < least - SAME
        number = torch.where(nearer, place + start, number)
        least = torch.where(nearer, value, least)
    return number


def point_in_middle(box: Box) -> Tensor:
    """Return the centre of a box ``(d,)``, with the nearest row of choices.

    If that is beyond the linear limits, return the centre of what they leave of it.
    """
    unit, middle = _middle(box)
    x = unit.point(middle[0])
    if box.playable is None:
        return box.centred(x)
    gap = unit.of(box.playable.double()) - middle[:, box.continuous :]
    row = box.playable[_least(gap.square().sum(-1).unsqueeze(0))[1]]
    return box.centred(torch.cat([x[: box.continuous], row.squeeze(0).to(x)]))


def _middle(actions: Actions) -> tuple[Unit, Tensor]:
    """Return a set's map to the unit cube, and its middle there, ``(1 or T, d)``."""
    unit = Unit.around(actions)
    ends = unit.of(actions.extent().double())
    middle = ends.mean(-2).reshape(-1, actions.dim)
    if unit.whole is not None:
        middle = torch.where(unit.whole, 0.0, middle)
    return unit, middle


def _least(gap: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least of ``gap (T, n)`` and where it first occurs, ``(T,)`` each."""
    value = gap.amin(-1)
    like = gap <= value.unsqueeze(-1) + SAME
    number = torch.arange(gap.shape[-1], device=gap.device)
    return value, torch.where(like, number, gap.shape[-1]).amin(-1)
