"""Where the largest numbers of long rows are: ``amax`` runs ten times as fast as
``argmax``, so find a stretch of neighbours by its peak, then look inside."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["argmax", "at_each", "members", "neighbours", "peaks_of"]


def neighbours(size: int) -> int:
    """How many neighbours share a peak."""
    return max(32, 1 << (size.bit_length() // 2))


def peaks_of(value: Tensor, block: int, least: bool = False) -> Tensor:
    """Largest (least) ``(T, blocks)`` of every ``block`` neighbours in ``(T, K)``."""
    reduce = torch.amin if least else torch.amax
    whole = value.shape[1] // block * block
    blocks = value[:, :whole].view(len(value), whole // block, block)
    out = reduce(blocks, -1)
    if whole < value.shape[1]:
        out = torch.cat([out, reduce(value[:, whole:], 1, keepdim=True)], 1)
    return out


def members(blocks: Tensor, block: int, size: int) -> tuple[Tensor, Tensor]:
    """Positions ``(T, n * block)`` in the blocks ``(T, n)``, and which exist."""
    at = blocks.unsqueeze(-1) * block + torch.arange(block, device=blocks.device)
    at = at.flatten(1)
    return at.clamp_max(size - 1), at < size


def argmax(value: Tensor, least: bool = False) -> Tensor:
    """The first position ``(T,)`` of the largest (least) entry of ``(T, K)``."""
    block = neighbours(value.shape[1])
    peaks = peaks_of(value, block, least)
    blocks = peaks.argmin(1) if least else peaks.argmax(1)
    # a last block that is not whole repeats its last arm: no earlier one loses
    at, _ = members(blocks.unsqueeze(1), block, value.shape[1])
    inside = value.gather(1, at)
    best = inside.argmin(1) if least else inside.argmax(1)
    return at_each(at, best)


def at_each(value: Tensor, index: Tensor) -> Tensor:
    """``value (T, K)`` at a position for each row, ``(T,)``."""
    return value.gather(1, index.unsqueeze(1)).squeeze(1)
