"""Beliefs about linear functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.errors import CBanditError


@hinted
class Linear:
    """The belief that a function is linear in an action's coordinates.

    Args:
        subgaussian: ``R`` of the noise, a number or ``(*trials,)``.
        ridge: ``lam``, a number or ``(*trials,)``; at least 1e-10 times the squared
            length of actions.
        norm: ``S``, a bound on the length of the coefficients, a number or
            ``(*trials,)``.
        length: ``L``, a bound on the length of all actions; by default the length of
            the longest action so far.
        range: the interval ``(low, high)`` of observations, if it is known; others
            raise an error.

    Example:
        >>> import cbandit as cb
        >>> belief = cb.Linear(subgaussian=0.1, ridge=1.0, norm=1.0)
    """

    def __init__(
        self,
        subgaussian: Any,
        ridge: Any = 1.0,
        norm: Any = 1.0,
        length: Any = None,
        range: Sequence[float] | None = None,
    ) -> None:
        self.subgaussian = checks.nonnegative("subgaussian", subgaussian)
        self.ridge = checks.positive("ridge", ridge)
        self.norm = checks.nonnegative("norm", norm)
        self.length = None if length is None else checks.positive("length", length)
        self.range = checked_range("range", range)

    def turned(self) -> Linear:
        """Return the belief about minus the function."""
        scales = self.subgaussian, self.ridge, self.norm, self.length
        return Linear(*scales, turned_range(self.range))

    def __repr__(self) -> str:
        return (
            f"Linear(subgaussian={self.subgaussian.tolist()}, "
            f"ridge={self.ridge.tolist()}, norm={self.norm.tolist()})"
        )


def turned_range(range: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the range of the negated values."""
    return None if range is None else (-range[1], -range[0])


def checked_range(
    name: str, pair: Sequence[float] | None
) -> tuple[float, float] | None:
    """Return ``(low, high)`` or ``None``; raise if it is neither."""
    if pair is None:
        return None
    try:
        low, high = (float(v) for v in pair)
    except (TypeError, ValueError):
        raise CBanditError(f"{name} must be a pair (low, high); got {pair!r}") from None
    if not low < high:
        raise CBanditError(f"{name} must have low < high; got ({low:g}, {high:g})")
    return low, high
