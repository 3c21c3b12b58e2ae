"""How far along segments costs keep their limits."""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 1e-12  # share by which ends are shortened, so that rounding stays in limits


def furthest(start: Tensor, end: Tensor, limit: Tensor) -> Tensor:
    """Return how far towards each end costs keep their limits, as a share ``a``.

    Costs along the way are affine, ``(1 - a) start + a end``, and all ``m`` must keep
    their limits.

    Args:
        start: the costs at the start, ``(T, m, 1)``, below ``limit``.
        end: the costs at the ends, ``(T, m, n)``.
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
    """Return both ends of ``{0 <= s <= 1: s slope + beta ||a + s b|| <= room}``.

    The inequality must hold for every cost. Its left side is convex in ``s``, so the
    set is an interval, which may be empty.

    Args:
        room: ``(T, m, 1)``.
        slope: ``(T, m, n)``.
        beta: ``(T, m, 1)``.
        aa, ab, bb: ``||a||^2`` ``(T, m, 1)``, ``<a, b>`` and ``||b||^2`` ``(T, m, n)``.

    Returns:
        ``(T, n, 2)``; both ends are 0 if the interval is empty.
    """
    # squared: q2 s^2 + 2 q1 s + q0 <= 0; each end is one of its roots, 0 or 1
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
    allowed = (cost <= (room + 1e-9 * scale).unsqueeze(2)).all(1)  # T x (2m + 2) x n
    ends = ends.squeeze(1)
    low = torch.where(allowed, ends, torch.inf).amin(1)
    high = torch.where(allowed, ends, -torch.inf).amax(1)
    inner = MARGIN * (high - low)
    pair = torch.stack([low + inner, high - inner], -1)
    return torch.where((low <= high).unsqueeze(-1), pair, 0.0)
