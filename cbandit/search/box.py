"""The best point of a box under a score: many candidates, climbs from the best, a zoom.

Scores have kinks (clipping, rectified penalties) on which their maximum often lies. The
climbs (``climb.py``) follow them; a closing zoom, points drawn around the best
one, ever closer, serves what no gradient leads to.

On a box with choices the coordinates that are chosen from rows stay as they are during
a climb; the best points are then tried with other rows and climb again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from cbandit import scores
from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.actions import Box
from cbandit.search.climb import Climbed, climb
from cbandit.search.finite import Best, Score

__all__ = ["Climbs", "Estimate", "best_feasible_point", "maximise_box"]

Estimate = Callable[[Tensor], Tensor]
"""``x (T, n, d) -> (T, F, n)``, differentiable: estimates, reward first."""

CANDIDATES = 1024
WIDER = 1.25  # of the cube that half of them are drawn from
PROMISING, CLOSER = 64, 12  # candidates looked around, and points around each
STARTS, FINALISTS = 8, 3
SPRINT, STEPS = 8, 100  # steps of all starts, and of the finalists with these
APART, POOL = 0.2, 512  # the most that starts are kept apart; of how many they are
ZOOMS, ZOOM_POINTS = 8, 64
ROWS, ROUNDS = 512, 4  # rows of choices tried at the best points, and how often
RAISES, RAISE = 6, 5.0  # how often, and how much, a penalty is raised
MARGIN = 1e-8  # of a cost's size, kept from its limit


@dataclass
class Climbs:
    """How many climbs were let run to their end, and how many of them failed.

    One fails that is still on its way when its steps are spent.
    """

    made: int = 0
    failed: int = 0

    def count(self, climbed: Climbed) -> None:
        """Add some climbs."""
        self.made += climbed.settled.numel()
        self.failed += int((~climbed.settled).sum())


def maximise_box(
    box: Box,
    estimate: Estimate,
    score: Score,
    streams: Streams,
    incumbents: Tensor | None = None,
    climbs: Climbs | None = None,
) -> Best:
    """The point of greatest score.

    Args:
        box: where to look.
        estimate: estimates at points.
        score: what to maximise of them, continuous.
        streams: draws of candidates.
        incumbents: ``(T, k, d)``, points to look around.
        climbs: where climbs are counted.
    """
    low, span = box.lower, box.upper - box.lower

    def value(z: Tensor) -> Tensor:
        found = estimate(low + span * z)
        return score(found[:, 0], found[:, 1:])

    def climbed(starts: Tensor) -> tuple[Tensor, Tensor]:
        found = climb(value, starts, size, box.free, SPRINT, FINALISTS, STEPS)
        if climbs is not None:
            climbs.count(found)
        return found.z, found.value

    with torch.no_grad():
        z = _candidates(box, streams, incumbents)
        values = value(z)
        size = _size(values)
        # narrow peaks: a second look around many of the best
        reach = z.shape[1] ** (-1 / box.continuous)
        closer = _around(box, _apart(z, values, PROMISING, reach)[0], reach, streams)
        z, values = torch.cat([z, closer], 1), torch.cat([values, value(closer)], 1)
        starts, heights = _apart(z, values, STARTS, min(APART, reach))
    z, values = climbed(starts)
    z, values = torch.cat([starts, z], 1), torch.cat([heights, values], 1)
    if box.choices is not None:
        for rows in _rows_to_try(box, streams):
            z, values = _best(z, values, FINALISTS)
            before = values[:, 0]
            kept = z[:, :1, box.free].expand(-1, rows.shape[-2], -1)
            others = torch.cat([kept, rows.expand(len(z), -1, -1)], -1)
            with torch.no_grad():
                starts, heights = _best(others, value(others), STARTS)
            found = climbed(starts)
            z, values = torch.cat([z, found[0]], 1), torch.cat([values, found[1]], 1)
            if not bool((values.amax(-1) > before).any()):
                break
    with torch.no_grad():
        z, values = _best(z, values, 1)
        z, best = _zoom(box, value, z[:, 0], values[:, 0], streams)
        x = box.nearest(low + span * z)
        here = estimate(x.unsqueeze(1))[..., 0]
    return Best(best, None, here[:, 0], here[:, 1:], x)


def best_feasible_point(
    box: Box,
    estimate: Estimate,
    streams: Streams,
    incumbents: Tensor,
    climbs: Climbs | None = None,
) -> tuple[Best, Tensor]:
    """The point of greatest ``f`` where every ``g <= 0``; else that of least ``g``.

    The penalised reward ``f - rho sum_j [g_j + margin]_+`` is maximised, with a ``rho``
    that is raised until the maximum keeps the limits. In trials where no point does,
    told by the second result ``(T,)``, the point of least ``max_j g_j`` is found.
    """
    with torch.no_grad():
        z = _candidates(box, streams, None)
        seen = estimate(box.lower + (box.upper - box.lower) * z)
    spread = seen.amax(-1) - seen.amin(-1)
    spread = torch.where(spread > 0, spread, 1.0)
    margin = MARGIN * spread[:, 1:].unsqueeze(-1)

    def search(score: Score, streams: Streams, around: Tensor) -> tuple[Best, Tensor]:
        found = maximise_box(box, estimate, score, streams, around, climbs)
        return found, (found.g <= 0).all(-1)

    def penalised(power: int) -> Score:
        rho = RAISE**power * spread[:, :1] / spread[:, 1:]
        return lambda f, g: scores.rectified(f, g + margin, rho)

    best, kept = search(penalised(1), streams, incumbents)
    if bool(kept.all()):
        best.value = best.f
        return best, ~kept
    # what other trials need must not change what a trial draws
    low, possible = search(
        lambda f, g: scores.least_violating(g), copy.deepcopy(streams), incumbents
    )
    least, infeasible = low.value, ~kept & ~possible
    best, left = _chosen(kept, best, low), ~kept & possible
    assert low.x is not None
    around = torch.cat([incumbents, low.x.unsqueeze(1)], 1)
    for power in range(2, 1 + RAISES):
        if not bool(left.any()):
            break
        found, kept = search(penalised(power), copy.deepcopy(streams), around)
        best = _chosen(left & kept & (found.f > best.f), found, best)
        left = left & ~kept
    best.value = torch.where(infeasible, least, best.f)
    return best, infeasible


def _chosen(where: Tensor, one: Best, other: Best) -> Best:
    assert one.x is not None
    assert other.x is not None
    column = where.unsqueeze(-1)
    return Best(
        torch.where(where, one.value, other.value),
        None,
        torch.where(where, one.f, other.f),
        torch.where(column, one.g, other.g),
        torch.where(column, one.x, other.x),
    )


def _in_unit_cube(box: Box, x: Tensor) -> Tensor:
    """The last coordinates of points, as the climbs see them."""
    k = x.shape[-1]
    low, high = box.lower[-k:], box.upper[-k:]
    return ((x - low) / (high - low)).double()


def _candidates(box: Box, streams: Streams, incumbents: Tensor | None) -> Tensor:
    """``(T, n, d)`` in the unit cube: Sobol points, shifted a trial, and neighbours."""
    count = box.continuous
    extra = int(box.choices is not None)  # one coordinate more picks a row
    sobol = SobolEngine(count + extra).draw(CANDIDATES, dtype=torch.float64)
    shift = streams.uniform(1, count + extra).reshape(-1, 1, count + extra)
    z = devices.put((sobol + shift) % 1, box.lower.device)
    # every other point of a larger cube, brought in: bounds get points of their own
    z[:, ::2, :count] = (0.5 + WIDER * (z[:, ::2, :count] - 0.5)).clamp(0, 1)
    if box.choices is not None:
        rows = _in_unit_cube(box, box.choices)
        z = torch.cat([z[..., :-1], rows[(z[..., -1] * len(rows)).long()]], -1)
    if incumbents is None or incumbents.shape[1] == 0:
        return z
    centre = _in_unit_cube(box, incumbents)
    copies = max(1, CANDIDATES // (4 * centre.shape[1]))
    near = centre.repeat(1, copies, 1)
    noise = streams.normal(near.shape[1], box.dim).reshape(-1, *near.shape[1:])
    # half of them close by, half at a tenth of the box
    size = torch.where(torch.arange(near.shape[1]) % 2 == 0, 0.01, 0.1)
    step = devices.put(noise * size.to(noise).unsqueeze(-1), near.device)
    step = step.masked_fill(~box.free, 0.0)
    return torch.cat([z, centre, (near + step).clamp(0, 1)], 1)


def _size(values: Tensor) -> Tensor:
    """By how much scores differ where they are good, ``(T,)``."""
    top = values.amax(-1)
    upper, whole = top - values.median(-1).values, top - values.amin(-1)
    size = torch.where(upper > 0, upper, whole)
    return torch.where((size > 0) & size.isfinite(), size, 1.0)


def _apart(z: Tensor, values: Tensor, count: int, near: float) -> tuple[Tensor, Tensor]:
    """The best points, none close to a better one: ``(T, s, d)`` and ``(T, s)``."""
    z, left = _best(z, values, POOL)
    values, points, heights = left, [], []
    for _ in range(min(count, z.shape[1])):
        _, place = left.max(-1, keepdim=True)
        point = _at(z, place)
        points.append(point)
        heights.append(values.gather(1, place))
        left = left.masked_fill((z - point).abs().amax(-1) <= near, -torch.inf)
    return torch.cat(points, 1), torch.cat(heights, 1)


def _around(box: Box, z: Tensor, reach: float, streams: Streams) -> Tensor:
    """Points close to those of ``z (T, n, d)``, uniform within ``reach``."""
    near = z.repeat(1, CLOSER, 1)
    draws = streams.uniform(near.shape[1], box.dim).reshape(-1, *near.shape[1:])
    draws = devices.put(draws, near.device)
    step = (reach * (2 * draws - 1)).masked_fill(~box.free, 0.0)
    return (near + step).clamp(0, 1)


def _rows_to_try(box: Box, streams: Streams) -> list[Tensor]:
    """Rows of choices for every round, ``(1 or T, r, k)``: all, or some by lot."""
    assert box.choices is not None
    rows = _in_unit_cube(box, box.choices)
    if len(rows) <= ROWS:
        return [rows.unsqueeze(0)] * ROUNDS
    lots = streams.uniform(ROUNDS, ROWS).reshape(-1, ROUNDS, ROWS)
    lots = devices.put(lots, rows.device)
    return list(rows[(lots * len(rows)).long()].unbind(1))


def _zoom(
    box: Box,
    value: Callable[[Tensor], Tensor],
    z: Tensor,
    best: Tensor,
    streams: Streams,
) -> tuple[Tensor, Tensor]:
    """Draw around the best point, ever closer; ``z (T, d)``, ``best (T,)``."""
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
        found, values = _best(near, value(near), 1)
        better = values[:, 0] > best
        z = torch.where(better.unsqueeze(-1), found[:, 0], z)
        best = torch.where(better, values[:, 0], best)
        radius *= 0.2
    return z, best


def _at(z: Tensor, index: Tensor) -> Tensor:
    return z.gather(1, index.unsqueeze(-1).expand(-1, -1, z.shape[-1]))


def _best(z: Tensor, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best ``count`` points, best first, and their values."""
    values, place = values.topk(min(count, z.shape[1]), dim=-1)
    return _at(z, place), values
