"""Passes over all arms: scores in pieces that fit the cache, and the best of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cbandit._core.peaks import at_each, members, neighbours, peaks_of

__all__ = ["above", "best", "scores", "weighed"]


def piece(arms: Tensor, block: int) -> int:
    """Return how many arms, in whole blocks, to score in one piece."""
    room = 2**18 if arms.device.type == "cpu" else 2**27
    return max(1, room // (arms.shape[0] * block)) * block


def scores(
    r: Tensor, c: Tensor, tau: Tensor, lam: Tensor, block: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield ``r - lam (c - tau)`` in pieces ``(T, n)``, with each one's first number.

    ``r`` and ``c`` are ``(T, K)``, ``tau`` and ``lam`` ``(T, 1)``. The pieces share one
    buffer that stays in the cache: a pass costs little more than reading the arms.
    """
    rows, size = r.shape
    step = piece(r, block)
    buffer = r.new_empty((rows, min(step, size)))
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        score = buffer[:, : part.stop - start]
        torch.sub(c[:, part], tau, out=score)
        yield start, torch.addcmul(r[:, part], score, lam, value=-1, out=score)


def best(
    r: Tensor, c: Tensor, tau: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first arm ``(T,)`` of largest score, that score, its ``c - tau``."""
    block = neighbours(r.shape[1])
    peaks = torch.cat(
        [peaks_of(score, block) for _, score in scores(r, c, tau, lam, block)], 1
    )
    at, _ = members(peaks.argmax(1, keepdim=True), block, r.shape[1])
    d = c.gather(1, at) - tau
    score = torch.addcmul(r.gather(1, at), d, lam, value=-1)
    first = score.argmax(1)
    return at_each(at, first), at_each(score, first), at_each(d, first)


def above(
    r: Tensor, c: Tensor, tau: Tensor, lam: Tensor, floor: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keep the arms that score above ``floor (T, 1)``, in the rows that have one.

    Returns the rows, then the arms' numbers, ``r`` and ``c - tau``, each moved to the
    left in their order and padded.
    """
    places = []
    for start, score in scores(r, c, tau, lam, neighbours(r.shape[1])):
        row, at = (score > floor).nonzero(as_tuple=True)
        places.append((row, at + start))
    row, at = (torch.cat(part) for part in zip(*places, strict=True))
    if len(r) == 1:
        rows, at = row[:1], at.unsqueeze(0)
        return rows, at, r.take(at), c.take(at) - tau
    row, order = row.sort(stable=True)
    at = at[order]
    count = torch.bincount(row, minlength=len(r))
    rows = count.nonzero().squeeze(1)
    most = int(count.max())
    place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    place += ((count > 0).cumsum(0) - 1)[row] * most
    flat = row * r.shape[1] + at

    def moved(value: Tensor, padding: float) -> Tensor:
        out = value.new_full((len(rows) * most,), padding)
        return out.index_copy_(0, place, value).view(len(rows), most)

    d = c.reshape(-1).take(flat) - tau[row, 0]
    r = r.reshape(-1).take(flat)
    return rows, moved(at, 0), moved(r, -torch.inf), moved(d, 0.0)


def weighed(
    reward: Tensor, cost: Tensor, weight: Tensor, lam: Tensor, block: int
) -> Iterator[Tensor]:
    """Yield ``weight * reward - lam @ cost`` in pieces ``(T, n)``, from one buffer."""
    rows, m, size = cost.shape
    step = piece(reward, block)
    buffer = reward.new_empty((rows, min(step, size)))
    # a weight of 0 drops the reward; a forbidden arm's cost still forbids it
    searching = (weight == 0).unsqueeze(1)
    some = bool(searching.any())
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        score = buffer[:, : part.stop - start].copy_(reward[:, part])
        if some:
            score.masked_fill_(searching, 0.0)
        for j in range(m):
            score.addcmul_(cost[:, j, part], lam[:, j, None], value=-1)
        yield score
