"""The best action under a score."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cbandit import scores
from cbandit.errors import CBanditError
from cbandit.posterior.look import SHORT, Best, Score, among, maximise
from cbandit.search.simplex.lp import best_policy

__all__ = [
    "SHORT",
    "Best",
    "Score",
    "among",
    "best_feasible",
    "best_policy",
    "furthest",
    "maximise",
    "safe_interval",
    "within_limits",
]


def within_limits(f: Tensor, g: Tensor) -> Tensor:
    """The score ``f`` where every ``g <= 0``, minus infinity elsewhere."""
    return f.masked_fill((g > 0).any(-2), -torch.inf)


# along a segment, ends are drawn in by this share: rounding must not step over a limit
MARGIN = 1e-12


def furthest(start: Tensor, end: Tensor, limit: Tensor) -> Tensor:
    """How far one may go towards each end: the largest share ``a`` of the way.

    Along the way costs are affine, ``(1 - a) start + a end``; all ``m`` keep their
    limit.

    Args:
        start: ``(T, m, 1)``, below ``limit``.
        end: ``(T, m, n)``.
        limit: ``(T, m, 1)``.

    Returns:
        ``(T, n)``, from 0 to 1.
    """
    beyond = end > limit
    share = (limit - start) / torch.where(beyond, end - start, 1.0)
    return torch.where(beyond, share * (1 - MARGIN), 1.0).amin(-2)


def safe_interval(
    room: Tensor, slope: Tensor, beta: Tensor, aa: Tensor, ab: Tensor, bb: Tensor
) -> Tensor:
    """Both ends of ``{0 <= s <= 1: s slope + beta ||a + s b|| <= room}``, all costs.

    The left side is convex in ``s``, so the set is an interval, perhaps empty.

    Args:
        room: ``(T, m, 1)``.
        slope: ``(T, m, n)``.
        beta: ``(T, m, 1)``.
        aa, ab, bb: ``||a||^2`` ``(T, m, 1)``, ``<a, b>`` and ``||b||^2`` ``(T, m, n)``.

    Returns:
        ``(T, n, 2)``; both ends 0 where the interval is empty.
    """
    # squared: q2 s^2 + 2 q1 s + q0 <= 0; its roots, 0 and 1 are all that ends can be
    square = beta.square()
    q2, q1 = square * bb - slope.square(), square * ab + room * slope
    q0 = (square * aa - room.square()).expand_as(q2)
    root = (q1.square() - q2 * q0).clamp_min(0).sqrt()
    big = -(q1 + torch.where(q1 >= 0, root, -root))
    first = big / torch.where(q2 == 0, 1.0, q2)
    second = q0 / torch.where(big == 0, 1.0, big)
    roots = torch.cat([first, second], 1).clamp(0.0, 1.0)  # T x 2m x n
    ends = torch.cat([torch.zeros_like(roots[:, :1]), roots], 1)
    ends = torch.cat([ends, torch.ones_like(roots[:, :1])], 1).unsqueeze(1)
    length = (
        aa.unsqueeze(2) + 2 * ends * ab.unsqueeze(2) + ends.square() * bb.unsqueeze(2)
    )
    cost = ends * slope.unsqueeze(2) + beta.unsqueeze(2) * length.clamp_min(0).sqrt()
    scale = room.abs() + slope.abs() + beta * (aa.sqrt() + bb.sqrt())
    kept = (cost <= (room + 1e-9 * scale).unsqueeze(2)).all(1)  # T x (2m + 2) x n
    ends = ends.squeeze(1)
    low = torch.where(kept, ends, torch.inf).amin(1)
    high = torch.where(kept, ends, -torch.inf).amax(1)
    inner = MARGIN * (high - low)
    pair = torch.stack([low + inner, high - inner], -1)
    return torch.where((low <= high).unsqueeze(-1), pair, 0.0)


def best_feasible(
    search: Callable[[scores.Formed], Best],
) -> tuple[Best, Tensor]:
    """The greatest ``f`` where every ``g <= 0``; where there is none, the least ``g``.

    In trials without such an action, told by the second answer ``(T,)``, the action of
    least ``max_j g_j`` is found, by a second search that is made for them alone.

    Args:
        search: the best action under a score.
    """
    best = search(scores.Feasible())
    if all(map(math.isfinite, best.look())):
        return best, torch.zeros_like(best.value, dtype=torch.bool)
    infeasible = best.value.isneginf()
    least = search(scores.LeastViolating())
    found = torch.where(infeasible, least.value, best.value)
    assert least.index is not None
    assert best.index is not None
    both = Best(
        found,
        torch.where(infeasible, least.index, best.index),
        torch.where(infeasible, least.f, best.f),
        torch.where(infeasible.unsqueeze(-1), least.g, best.g),
    )
    if not all(map(math.isfinite, both.look())):
        raise CBanditError(
            "the estimates are not finite numbers at any allowed action; look at "
            "policy.posterior()"
        )
    return both, infeasible
