"""How multipliers move: pure, differentiable; ``(*b, m)`` in, ``(*b, m)`` out."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["projected", "queue", "rectified"]


def projected(
    multiplier: Tensor,
    g: Tensor,
    step: Tensor | float,
    slack: Tensor | float = 0.0,
    cap: Tensor | float = torch.inf,
) -> Tensor:
    """Projected dual ascent: ``clip(phi + step (g + slack), 0, cap)`` (CKB)."""
    moved = multiplier + step * (g + slack)
    return torch.minimum(moved.clamp_min(0), _like(cap, moved))


def queue(length: Tensor, g: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    """A virtual queue: ``[Q + g + slack]_+`` (SCGP-UCB, the drift form of CKB)."""
    return (length + g + slack).clamp_min(0)


def rectified(multiplier: Tensor, cost: Tensor, floor: Tensor | float) -> Tensor:
    """``max(Q + [cost]_+, floor)`` (RPOL)."""
    moved = multiplier + cost.clamp_min(0)
    return torch.maximum(moved, _like(floor, moved))


def _like(value: Tensor | float, other: Tensor) -> Tensor:
    # at once in its dtype: a Python number would pass through float32
    return torch.as_tensor(value, dtype=other.dtype, device=other.device)
