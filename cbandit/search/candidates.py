"""Points of a box to try: spread out, near good ones, and ever closer to the best.

All points are in the unit cube, ``z (T, n, d)``. Coordinates that are chosen from rows
(``~box.free``) take the rows' values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from cbandit._core import devices
from cbandit._core.peaks import ranked
from cbandit._core.randomness import Streams
from cbandit.actions import Box

__all__ = ["apart", "around", "best_of", "candidates", "rows_to_try", "zoomed"]

CANDIDATES = 1024
WIDER = 1.25  # side of the cube that half of the candidates are drawn from
CLOSER = 12  # points drawn around each promising candidate
POOL = 512  # starts are picked among so many of the best candidates
ZOOMS, ZOOM_POINTS = 8, 64
ROWS, ROUNDS = 512, 4  # rows of choices tried at the best points, and how often


def candidates(box: Box, streams: Streams, incumbents: Tensor | None) -> Tensor:
    """Return Sobol points, shifted in each trial, and neighbours of ``incumbents``."""
    count = box.continuous
    extra = int(box.choices is not None)  # one coordinate more picks a row
    sobol = SobolEngine(count + extra).draw(CANDIDATES, dtype=torch.float64)
    shift = streams.uniform(1, count + extra).reshape(-1, 1, count + extra)
    z = devices.put((sobol + shift) % 1, box.lower.device)
    # half of them are of a larger cube and brought in, so that some lie on bounds; the
    # last half, as even as all: of every other point one coordinate is below 1/2
    wide = z[:, CANDIDATES // 2 :, :count]
    z[:, CANDIDATES // 2 :, :count] = (0.5 + WIDER * (wide - 0.5)).clamp(0, 1)
    if box.choices is not None:
        rows = box.unit.of(box.choices).double()
        z = torch.cat([z[..., :-1], rows[(z[..., -1] * len(rows)).long()]], -1)
    if incumbents is None or incumbents.shape[1] == 0:
        return z
    centre = box.unit.of(incumbents).double()
    copies = max(1, CANDIDATES // (4 * centre.shape[1]))
    near = centre.repeat(1, copies, 1)
    noise = streams.normal(near.shape[1], box.dim).reshape(-1, *near.shape[1:])
    # half of them within a hundredth of the box, half within a tenth
    size = torch.where(torch.arange(near.shape[1]) % 2 == 0, 0.01, 0.1)
    step = devices.put(noise * size.to(noise).unsqueeze(-1), near.device)
    step = step.masked_fill(~box.free, 0.0)
    return torch.cat([z, centre, (near + step).clamp(0, 1)], 1)


def apart(
    z: Tensor, values: Tensor, count: int, near: float, tolerance: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the best points, none near a better one: ``(T, s, d)`` and ``(T, s)``."""
    z, left = best_of(z, values, POOL, tolerance)
    values, points, heights = left, [], []
    for _ in range(min(count, z.shape[1])):
        # in their order: the first that is left is the best
        place = left.isneginf().to(torch.uint8).argmin(-1, keepdim=True)
        point = _at(z, place)
        points.append(point)
        heights.append(values.gather(1, place))
        left = left.masked_fill((z - point).abs().amax(-1) <= near, -torch.inf)
    return torch.cat(points, 1), torch.cat(heights, 1)


def around(box: Box, z: Tensor, reach: float, streams: Streams) -> Tensor:
    """Draw points around those of ``z (T, n, d)``, uniform within ``reach``."""
    near = z.repeat(1, CLOSER, 1)
    draws = streams.uniform(near.shape[1], box.dim).reshape(-1, *near.shape[1:])
    draws = devices.put(draws, near.device)
    step = (reach * (2 * draws - 1)).masked_fill(~box.free, 0.0)
    return (near + step).clamp(0, 1)


def rows_to_try(box: Box, streams: Streams) -> list[Tensor]:
    """Return rows of choices for each round, ``(1 or T, r, k)``; a plain box has none.

    All rows if they are few, else some that are drawn.
    """
    if box.choices is None:
        return []
    rows = box.unit.of(box.choices).double()
    if len(rows) <= ROWS:
        return [rows.unsqueeze(0)] * ROUNDS
    lots = streams.uniform(ROUNDS, ROWS).reshape(-1, ROUNDS, ROWS)
    lots = devices.put(lots, rows.device)
    return list(rows[(lots * len(rows)).long()].unbind(1))


def zoomed(
    box: Box,
    value: Callable[[Tensor], Tensor],
    z: Tensor,
    best: Tensor,
    streams: Streams,
    tolerance: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Improve ``z (T, d)`` of value ``best (T,)`` by draws around it, ever closer.

    It moves where that gains more than ``tolerance``, a number or ``(T,)``.
    """
    dim = z.shape[-1]
    noise = streams.normal(ZOOM_POINTS, dim).reshape(-1, ZOOM_POINTS, dim)
    noise = devices.put(noise, z.device)
    # half of the draws move along one axis only
    axis = torch.arange(ZOOM_POINTS, device=z.device) % (2 * dim)
    single = (axis % dim).unsqueeze(-1) == torch.arange(dim, device=z.device)
    noise = torch.where((axis < dim).unsqueeze(-1) & ~single, 0.0, noise)
    noise = noise.masked_fill(~box.free, 0.0)
    radius = 0.03
    for _ in range(ZOOMS):
        near = (z.unsqueeze(1) + radius * noise).clamp(0, 1)
        found, values = best_of(near, value(near), 1, tolerance)
        better = values[:, 0] > best + tolerance
        z = torch.where(better.unsqueeze(-1), found[:, 0], z)
        best = torch.where(better, values[:, 0], best)
        radius *= 0.2
    return z, best


def _at(z: Tensor, index: Tensor) -> Tensor:
    return z.gather(1, index.unsqueeze(-1).expand(-1, -1, z.shape[-1]))


def best_of(
    z: Tensor, values: Tensor, count: int, tolerance: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the best ``count`` points, best first, and their values.

    Of those that differ by no more than ``tolerance``, the first first.
    """
    place = ranked(values, count, tolerance)
    return _at(z, place), values.gather(1, place)
