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

MAX_COMBINATIONS = 200_000  # of values, if no parameter is continuous
MAX_MIXED_COMBINATIONS = 20_000  # of values, beside continuous parameters


class Domain:
    """The parameters of a study as a set of actions, ``space``.

    If whole numbers have too many combinations, some become continuous in ``space``,
    and choices are rounded.

    Args:
        distributions: Optuna's distribution of each parameter, by name.
    """

    def __init__(self, distributions: dict[str, BaseDistribution]) -> None:
        self._distributions = distributions
        self._parameters = {n: _to_parameter(d) for n, d in distributions.items()}
        values = {name: p.values for name, p in self._parameters.items()}
        counts = {name: len(v) for name, v in values.items() if v is not None}
        numbers = {n for n in counts if not isinstance(self._parameters[n], Category)}
        free = len(counts) < len(self._parameters)
        while numbers and math.prod(counts.values()) > (
            MAX_MIXED_COMBINATIONS if free else MAX_COMBINATIONS
        ):
            name = max(numbers, key=counts.__getitem__)
            numbers.discard(name)
            del counts[name]
            old: Any = self._parameters[name]
            self._parameters[name], free = Float(old.lo, old.hi, old.log), True
        self.space: Any = Space(**self._parameters)

    def read_params(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a trial's parameters; ``None``: one is missing or out of range."""
        for name, parameter in self._parameters.items():
            if name not in params or parameter.place(params[name]) is None:
                return None
        return {name: params[name] for name in self._parameters}

    def to_study(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``params``, each moved to the nearest value that the study allows."""
        return {
            n: _nearest_allowed(d, params[n]) for n, d in self._distributions.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self._parameters == other._parameters

    __hash__ = None  # type: ignore[assignment]


def _to_parameter(dist: BaseDistribution) -> Parameter:
    """Return an Optuna distribution as a parameter of this library."""
    if isinstance(dist, CategoricalDistribution):
        return Category(*dist.choices)
    if isinstance(dist, IntDistribution | FloatDistribution):
        fine = (
            dist.step is None or (dist.high - dist.low) / dist.step >= MAX_COMBINATIONS
        )
        if isinstance(dist, IntDistribution) and dist.step == 1 and not fine:
            return Int(dist.low, dist.high, dist.log)
        step = None if fine or dist.step is None else float(dist.step)
        return Float(float(dist.low), float(dist.high), dist.log, step)
    raise CBanditError(f"a sampler knows no parameter of the kind {dist!r}")


def _nearest_allowed(dist: Any, value: Any) -> Any:
    """Return the value of an Optuna distribution that is nearest to ``value``."""
    if isinstance(dist, CategoricalDistribution):
        return value
    if dist.step is not None:
        value = dist.low + round((value - dist.low) / dist.step) * dist.step
    value = min(max(value, dist.low), dist.high)
    return int(value) if isinstance(dist, IntDistribution) else float(value)
