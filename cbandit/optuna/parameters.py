"""The parameters of an Optuna study as a set of actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from cbandit.actions import Category, Float, Int, Space
from cbandit.actions.names import Parameter
from cbandit.errors import CBanditError

GRID, CHOICES = 200_000, 20_000  # most combinations: alone, or with continuous ones


class Domain:
    """The parameters of a study as a set of actions.

    If whole numbers have too many combinations, some count as continuous, and choices
    are rounded.
    """

    def __init__(self, distributions: dict[str, BaseDistribution]) -> None:
        self._distributions = distributions
        self._parameters = {n: _parameter(d) for n, d in distributions.items()}
        values = {name: p.values for name, p in self._parameters.items()}
        counts = {name: len(v) for name, v in values.items() if v is not None}
        numbers = {n for n in counts if not isinstance(self._parameters[n], Category)}
        free = len(counts) < len(self._parameters)
        while numbers and math.prod(counts.values()) > (CHOICES if free else GRID):
            name = max(numbers, key=counts.__getitem__)
            numbers.discard(name)
            del counts[name]
            old: Any = self._parameters[name]
            self._parameters[name], free = Float(old.lo, old.hi, old.log), True
        self.space: Any = Space(**self._parameters)

    def known(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a trial's parameters; ``None`` if one is missing or out of range."""
        for name, parameter in self._parameters.items():
            if name not in params or parameter.place(params[name]) is None:
                return None
        return {name: params[name] for name in self._parameters}

    def suggested(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the policy's choice, moved to values that the study allows."""
        return {n: _allowed(d, params[n]) for n, d in self._distributions.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self._parameters == other._parameters

    __hash__ = None  # type: ignore[assignment]


def _parameter(of: BaseDistribution) -> Parameter:
    """Return an Optuna distribution as a parameter of ours with the same values."""
    if isinstance(of, CategoricalDistribution):
        return Category(*of.choices)
    if isinstance(of, IntDistribution | FloatDistribution):
        fine = of.step is None or (of.high - of.low) / of.step >= GRID
        if isinstance(of, IntDistribution) and of.step == 1 and not fine:
            return Int(of.low, of.high, of.log)
        step = None if fine or of.step is None else float(of.step)
        return Float(float(of.low), float(of.high), of.log, step)
    raise CBanditError(f"a sampler knows no parameter of the kind {of!r}")


def _allowed(of: Any, value: Any) -> Any:
    """Return the value of an Optuna distribution that is nearest to ``value``."""
    if isinstance(of, CategoricalDistribution):
        return value
    if of.step is not None:
        value = of.low + round((value - of.low) / of.step) * of.step
    value = min(max(value, of.low), of.high)
    return int(value) if isinstance(of, IntDistribution) else float(value)
