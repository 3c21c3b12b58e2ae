"""Independent arms: what is believed of them before data."""

from __future__ import annotations

from typing import Any

from cbandit._core import checks
from cbandit.beliefs.linear import checked_range, turned_range

__all__ = ["Counts"]


class Counts:
    """Arms that tell nothing about each other.

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

    def turned(self) -> Counts:
        """A belief about minus the function."""
        return Counts(self.subgaussian, turned_range(self.range))

    def __repr__(self) -> str:
        return f"Counts(subgaussian={self.subgaussian.tolist()}, range={self.range})"
