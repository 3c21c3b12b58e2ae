"""Finite classes of functions, one of which is the true one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.beliefs.linear import checked_range, turned_range
from cbandit.errors import CBanditError


@hinted
class FiniteClass:
    """The belief that a function is one of ``G`` functions with known values.

    Args:
        values: the functions' values at every arm, ``(G, N)``.
        radius: the radius of the confidence set, a number or a callable of the round.
            The set holds the functions whose squared distance to the least-squares
            fit, summed over the rounds, is at most the radius. ``None``:
            ``512 R^2 ln(12 (m + 1) G ln(2 t) / delta)`` (Pacchiano et al., for
            ``R = 1`` and one cost).
        range: the interval ``(low, high)`` of observations; others raise an error.
        subgaussian: ``R`` of the noise, a number or ``(*trials,)``, in the units of
            ``values``. If it is stated too small, the guarantee is lost.

    Example:
        >>> import cbandit as cb
        >>> belief = cb.FiniteClass([[0.0, 1.0], [0.0, 0.5]], radius=4.0)
    """

    def __init__(
        self,
        values: Any,
        radius: float | Callable[[int], float] | None = None,
        range: Sequence[float] | None = None,
        subgaussian: Any = 1.0,
    ) -> None:
        self.values = checks.finite("values", checks.tensor("values", values))
        if self.values.dim() != 2 or self.values.numel() == 0:
            raise CBanditError(
                f"values must have shape (G, N), neither 0; got "
                f"{tuple(self.values.shape)}"
            )
        if radius is not None and not callable(radius):
            radius = checks.number("radius", radius, minimum=0.0)
        self.radius = radius
        self.range = checked_range("range", range)
        self.subgaussian = checks.nonnegative("subgaussian", subgaussian)

    @property
    def means(self) -> tuple[float, float]:
        """The least and the largest value of any function."""
        return float(self.values.min()), float(self.values.max())

    def turned(self) -> FiniteClass:
        """Return the belief about minus the function."""
        return FiniteClass(
            -self.values, self.radius, turned_range(self.range), self.subgaussian
        )

    def __repr__(self) -> str:
        return f"FiniteClass(G={self.values.shape[0]}, N={self.values.shape[1]})"
