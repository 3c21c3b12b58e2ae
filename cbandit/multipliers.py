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
    moved = (multiplier + step * (g + slack)).clamp_min(0)
    if isinstance(cap, Tensor):
        return torch.minimum(moved, cap.to(moved))
    return moved.clamp_max(cap)


def queue(length: Tensor, g: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    """A virtual queue: ``[Q + g + slack]_+`` (SCGP-UCB, the drift form of CKB)."""
    return (length + g + slack).clamp_min(0)


def rectified(multiplier: Tensor, cost: Tensor, floor: Tensor | float) -> Tensor:
    """``max(Q + [cost]_+, floor)`` (RPOL)."""
    moved = multiplier + cost.clamp_min(0)
    if isinstance(floor, Tensor):
        return torch.maximum(moved, floor.to(moved))
    return moved.clamp_min(floor)
