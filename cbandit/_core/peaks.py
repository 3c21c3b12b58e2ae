"""Find the largest numbers in long rows; of equal ones, take the first.

``amax`` is ten times as fast as ``argmax``, so first find the stretch of neighbours
with the highest peak, then look inside it. Scores count as equal if they differ by less
than a small share of the prior's scale: on symmetric sets the choice must not depend on
the last bit of a processor's arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor

CLOSE, CLOSE_NARROW = 1e-10, 1e-6  # this share, in float64 and in narrower dtypes
SHORT = 1 << 12  # up to this length one pass is as fast as two


def neighbours(size: int) -> int:
    """Return how many neighbours of a row of ``size`` share a peak."""
    return max(32, 1 << (size.bit_length() // 2))


def peaks_of(value: Tensor, block: int, least: bool = False) -> Tensor:
    """Return the largest (least) of each ``block`` neighbours, ``(T, blocks)``."""
    reduce = torch.amin if least else torch.amax
    whole = value.shape[1] // block * block
    blocks = value[:, :whole].view(len(value), whole // block, block)
    out = reduce(blocks, -1)
    if whole < value.shape[1]:
        out = torch.cat([out, reduce(value[:, whole:], 1, keepdim=True)], 1)
    return out


def members(blocks: Tensor, block: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the positions ``(T, n * block)`` in blocks ``(T, n)``, and which exist."""
    at = blocks.unsqueeze(-1) * block + torch.arange(block, device=blocks.device)
    at = at.flatten(1)
    return at.clamp_max(size - 1), at < size


def first_reaching(value: Tensor, least: Tensor) -> Tensor:
    """Return where ``(T, K)`` first reaches ``least (T,)``; 0 if it never does."""
    least, size = least.unsqueeze(1), value.shape[1]
    if size <= SHORT:
        return (value >= least).to(torch.uint8).argmax(1)
    block = neighbours(size)
    at = (peaks_of(value, block) >= least).to(torch.uint8).argmax(1)
    # an incomplete last block repeats its last entry, so no earlier entry loses
    place, _ = members(at.unsqueeze(1), block, size)
    inside = (value.gather(1, place) >= least).to(torch.uint8).argmax(1)
    return at_each(place, inside)


def best_place(value: Tensor, tolerance: Tensor | float) -> Tensor:
    """Return where each row of ``value (T, K)`` first nears its maximum, ``(T,)``.

    It does within ``tolerance``.

    A NaN wins, so that the caller's check finds it.
    """
    value = value.nan_to_num(torch.inf, torch.inf, -torch.inf)
    return first_reaching(value, value.amax(1) - tolerance)


def ranked(value: Tensor, count: int, tolerance: Tensor | float) -> Tensor:
    """Return the positions of the ``count`` largest of ``K``; equal ones keep order.

    Sorted values count as equal while each is within ``tolerance``, a number or
    ``(T,)``, of the next.
    """
    if isinstance(tolerance, Tensor):
        tolerance = tolerance.unsqueeze(1)
    sorted_, place = value.sort(dim=1, descending=True)
    apart = sorted_[:, :-1] - sorted_[:, 1:] > tolerance
    level = torch.nn.functional.pad(apart.cumsum(1), (1, 0))
    order = (level * value.shape[1] + place).argsort(dim=1)
    return place.gather(1, order[:, :count])


def argmax(value: Tensor, least: bool = False) -> Tensor:
    """Return the first position ``(T,)`` of the largest (least) entry of ``(T, K)``."""
    block = neighbours(value.shape[1])
    peaks = peaks_of(value, block, least)
    blocks = peaks.argmin(1) if least else peaks.argmax(1)
    # an incomplete last block repeats its last arm, so no earlier arm loses
    at, _ = members(blocks.unsqueeze(1), block, value.shape[1])
    inside = value.gather(1, at)
    best = inside.argmin(1) if least else inside.argmax(1)
    return at_each(at, best)


def at_each(value: Tensor, index: Tensor) -> Tensor:
    """Return the entry of ``value (T, K)`` at one position per row, ``(T,)``."""
    return value.gather(1, index.unsqueeze(1)).squeeze(1)
