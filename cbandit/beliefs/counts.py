"""Independent arms: averages and counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.beliefs.linear import checked_range

__all__ = ["Counts", "Tally"]


class Counts:
    """What is believed of arms that tell nothing about each other.

    Args:
        subgaussian: ``R`` of the noise, a number or ``(*trials,)``.
        range: ``(low, high)`` that every observation lies in, where that is known:
            others are refused, and no bound leaves it.

    Example:
        >>> import cbandit as cb
        >>> belief = cb.Counts(subgaussian=0.5, range=(0.0, 1.0))
    """

    def __init__(self, subgaussian: Any, range: Any = None) -> None:
        self.subgaussian = checks.nonnegative("subgaussian", subgaussian)
        self.range = checked_range(range)

    def __repr__(self) -> str:
        return f"Counts(subgaussian={self.subgaussian.tolist()}, range={self.range})"


class Tally:
    """Averages of ``F`` functions at ``N`` arms in ``T`` trials.

    Args:
        shape: ``(T, F, N)``.
    """

    def __init__(
        self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.count = torch.zeros(shape, dtype=dtype, device=device)
        self.mean = torch.zeros_like(self.count)
        # 1 / sqrt(n): an arm never pulled has the width of one pull, around 0
        self.spread = torch.ones_like(self.count)

    def add(self, functions: slice, arm: Tensor, y: Tensor, weight: Tensor) -> None:
        """Observe ``y`` ``(T, f)`` at ``arm`` ``(T,)``, ``weight`` ``(T, f)`` times."""
        at = arm[:, None, None].expand(*y.shape, 1)
        y, weight = y.unsqueeze(-1), weight.unsqueeze(-1)
        count, mean, spread = (
            v[:, functions] for v in (self.count, self.mean, self.spread)
        )
        n = count.gather(-1, at).double() + weight
        old = mean.gather(-1, at).double()
        new = old + weight * (y - old) / torch.where(n > 0, n, 1.0)
        count.scatter_(-1, at, n.to(count))
        mean.scatter_(-1, at, new.to(mean))
        spread.scatter_(-1, at, torch.where(n > 0, n, 1.0).rsqrt().to(spread))
