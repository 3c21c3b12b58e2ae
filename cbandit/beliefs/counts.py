"""Beliefs about independent arms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.beliefs.linear import checked_range, turned_range


@hinted
class Counts:
    """The belief that arms tell nothing about each other.

    Args:
        subgaussian: ``R`` of the noise, a number or ``(*trials,)``.
        range: the interval ``(low, high)`` of observations, if it is known; others
            raise an error.
        means: the interval ``(low, high)`` of every arm's expected value, if it is
            known; by default ``range``. Only this bounds the cost of an arm that was
            never pulled: without it :func:`~cbandit.OPB` does not play such arms.

    Example:
        >>> import cbandit as cb
        >>> belief = cb.Counts(subgaussian=0.5, range=(0.0, 1.0))
    """

    def __init__(
        self,
        subgaussian: Any,
        range: Sequence[float] | None = None,
        means: Sequence[float] | None = None,
    ) -> None:
        self.subgaussian = checks.nonnegative("subgaussian", subgaussian)
        self.range = checked_range("range", range)
        self.means = self.range if means is None else checked_range("means", means)

    def turned(self) -> Counts:
        """Return the belief about minus the function."""
        ends = turned_range(self.range), turned_range(self.means)
        return Counts(self.subgaussian, *ends)

    def __repr__(self) -> str:
        means = "" if self.means == self.range else f", means={self.means}"
        radius = self.subgaussian.tolist()
        return f"Counts(subgaussian={radius}, range={self.range}{means})"
