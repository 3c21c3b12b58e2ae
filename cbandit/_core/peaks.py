"""Where the largest numbers of long rows are, and which of equals is taken.

``amax`` runs ten times as fast as ``argmax``, so find a stretch of neighbours by its
peak, then look inside. Of scores that are as good to within a small share of what is
believed before data, the first is taken: on symmetric sets the last bit of a processor
must not choose.
"""

from __future__ import annotations

import torch
from torch import Tensor

CLOSE, CLOSE_NARROW = 1e-10, 1e-6  # that share, in float64 and in narrower numbers
SHORT = 1 << 12  # up to this length one pass is as fast as two


def neighbours(size: int) -> int:
    """Return how many neighbours share a peak."""
    return max(32, 1 << (size.bit_length() // 2))


def peaks_of(value: Tensor, block: int, least: bool = False) -> Tensor:
    """Return ``(T, blocks)``, the largest (least) of each ``block`` neighbours."""
    reduce = torch.amin if least else torch.amax
    whole = value.shape[1] // block * block
    blocks = value[:, :whole].view(len(value), whole // block, block)
    out = reduce(blocks, -1)
    if whole < value.shape[1]:
        out = torch.cat([out, reduce(value[:, whole:], 1, keepdim=True)], 1)
    return out


def members(blocks: Tensor, block: int, size: int) -> tuple[Tensor, Tensor]:
    """Return positions ``(T, n * block)`` in the blocks ``(T, n)``, and which exist."""
    at = blocks.unsqueeze(-1) * block + torch.arange(block, device=blocks.device)
    at = at.flatten(1)
    return at.clamp_max(size - 1), at < size


def first_reaching(value: Tensor, least: Tensor) -> Tensor:
    """Return where ``(T, K)`` first reaches ``least (T,)``, 0 where it does not."""
    least, size = least.unsqueeze(1), value.shape[1]
    if size <= SHORT:
        return (value >= least).to(torch.uint8).argmax(1)
    block = neighbours(size)
    at = (peaks_of(value, block) >= least).to(torch.uint8).argmax(1)
    # a last block that is not whole repeats its last entry: no earlier one loses
    place, _ = members(at.unsqueeze(1), block, size)
    inside = (value.gather(1, place) >= least).to(torch.uint8).argmax(1)
    return at_each(place, inside)


def best_place(value: Tensor, tolerance: Tensor | float) -> Tensor:
    """Return the first position ``(T,)`` within ``tolerance`` of the largest of ``K``.

    A NaN wins, so that the caller's check finds it.
    """
    value = value.nan_to_num(torch.inf, torch.inf, -torch.inf)
    return first_reaching(value, value.amax(1) - tolerance)


def ranked(value: Tensor, count: int, tolerance: Tensor | float) -> Tensor:
    """Return where the largest ``count`` of ``K`` are, of equals the first first.

    Equal are those between which, from one to the next, lies no more than
    ``tolerance``, a number or ``(T,)``.
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
    # a last block that is not whole repeats its last arm: no earlier one loses
    at, _ = members(blocks.unsqueeze(1), block, value.shape[1])
    inside = value.gather(1, at)
    best = inside.argmin(1) if least else inside.argmax(1)
    return at_each(at, best)


def at_each(value: Tensor, index: Tensor) -> Tensor:
    """Return ``value (T, K)`` at a position for each row, ``(T,)``."""
    return value.gather(1, index.unsqueeze(1)).squeeze(1)
