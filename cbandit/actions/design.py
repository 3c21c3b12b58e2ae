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
GOLDEN = (5**0.5 - 1) / 2  # its multiples are evenly spread modulo 1
NEAR = 2.0**-7  # share of a box's sides between neighbours


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
    return devices.put(_in_places(z, unit), unit.low.device)


def _in_places(z: Tensor, unit: Unit) -> Tensor:
    """Return points of the unit cube, on the host, with categories at their places."""
    if unit.whole is None:
        return z
    # z picks a category by equal shares of [0, 1); then take the category's place
    last = (unit.span.cpu() + 0.5).floor()
    place = (z * (last + 1)).floor() / last.clamp_min(1)
    return torch.where(unit.whole.cpu(), place, z)


def spread_points(actions: Actions, count: int, neighbours: bool = False) -> Tensor:
    """Return at most ``count`` points spread over a set, ``(*trials, n, d)``.

    They are the same at every call: action numbers spread by the golden ratio, or a
    Sobol sequence in a box. With ``neighbours`` each point is followed by the next
    action, or by a point close to it.
    """
    actions, picks = actions.domain, count // 2 if neighbours else count
    if actions.finite:
        size = int(actions.size)
        shares = [(0.5 + k * GOLDEN) % 1.0 for k in range(picks)]
        numbers = [int(size * share) for share in shares] if size > count else []
        if neighbours:
            numbers += [(number + 1) % size for number in numbers]
        chosen = sorted(set(numbers)) or list(range(size))
        return actions.rows(devices.put(chosen, actions.block(0, 1).device))
    z = SobolEngine(actions.dim).draw(picks, dtype=torch.float64)
    if neighbours:
        z = torch.cat([z, (z + NEAR) % 1.0])
    unit = Unit.around(actions)
    z = devices.put(_in_places(z, unit), unit.low.device)
    if isinstance(actions, Box):
        return designed_point(actions, z.unsqueeze(0))[0]
    return unit.point(z)


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

    Where the box has choices, the nearest row is taken. Where it has linear limits,
    all lines from the middle are shrunk until their ends keep them.
    """
    unit = Unit.around(box)
    x = unit.point(z)
    if box.playable is None:
        return box.spread(x)
    count = box.continuous
    gap = unit.of(box.playable.double()) - z[..., None, count:]
    row = box.playable[gap.square().sum(-1).argmin(-1)]
    return box.spread(torch.cat([x[..., :count], row.to(x)], -1))
