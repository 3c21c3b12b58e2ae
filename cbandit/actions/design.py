"""A space-filling design: the first rounds of policies that are to be compared.

It is a Sobol sequence. Each trial flips random binary digits, the same ones in all its
points, which keeps them as evenly spread. Policies with the same seed play the same
design.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.actions.base import Actions
from cbandit.actions.box import Box
from cbandit.actions.middle import nearest
from cbandit.actions.unit import Unit

DIGITS = 1 << 30  # the sequence's coordinates have 30 binary digits


def design_points(actions: Actions, count: int, streams: Streams) -> Tensor:
    """Return the first points of a design in the unit cube, ``(1 or T, count, d)``.

    Args:
        actions: the set.
        count: how many points.
        streams: random streams made of the seed alone, so that all policies agree.
    """
    sobol = SobolEngine(actions.dim).draw(count, dtype=torch.float64)
    flips = streams.uniform(1, actions.dim).reshape(-1, 1, actions.dim)
    digits = (sobol * DIGITS).long() ^ (flips * DIGITS).long()
    z, unit = (digits + 0.5) / DIGITS, Unit.around(actions)
    if unit.whole is None:
        return devices.put(z, unit.low.device)
    # z picks a category by equal shares of [0, 1); then take the category's place
    last = (unit.span.cpu() + 0.5).floor()
    place = (z * (last + 1)).floor() / last.clamp_min(1)
    return devices.put(torch.where(unit.whole.cpu(), place, z), unit.low.device)


def designed_number(
    actions: Actions, z: Tensor, on: Actions, mask: Tensor | None
) -> Tensor:
    """Return the number of the action for a design's last point, ``(1 or T,)``.

    It is the nearest action that no earlier point took, while there is one.

    Args:
        actions: the set.
        z: the design's points so far, in the unit cube, ``(1 or T, count, d)``.
        on: the numbered actions of this round, usually those of ``actions``.
        mask: ``(1 or T, N)``, which of them are allowed; ``None``: all are.
    """
    unit, numbers = Unit.around(actions), z.new_zeros(len(z), 0, dtype=torch.long)
    for j in range(z.shape[1]):
        number = nearest(unit, z[:, j], on, mask)
        again = (numbers == number.unsqueeze(-1)).any(-1)
        if bool(again.any()):
            left = torch.ones(len(z), on.size, dtype=torch.bool, device=z.device)
            left = (left if mask is None else left & mask).scatter(1, numbers, False)
            other = nearest(unit, z[:, j], on, left)
            number = torch.where(again & left.any(-1), other, number)
        numbers = torch.cat([numbers, number.expand(len(z)).unsqueeze(-1)], -1)
    return numbers[:, -1]


def designed_point(box: Box, z: Tensor) -> Tensor:
    """Return the points of a box that lie at ``z (T, n, d)`` of the unit cube.

    Where the box has choices, the nearest row is taken.
    """
    unit = Unit.around(box)
    x = box.nearest(unit.point(z))
    if box.choices is None:
        return x
    count = box.continuous
    gap = unit.of(box.choices.double()) - z[..., None, count:]
    row = box.choices[gap.square().sum(-1).argmin(-1)]
    return torch.cat([x[..., :count], row.to(x)], -1)
