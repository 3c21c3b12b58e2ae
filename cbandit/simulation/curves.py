"""Curves over the rounds: means and spreads over the trials, averages, exponents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from cbandit._core import checks

LABELS = {
    "regret": "regret",
    "stochastic_regret": "stochastic regret",
    "policy_regret": "policy regret",
    "realised_regret": "realised regret",
    "soft_violation": "soft violation",
    "hard_violation": "hard violation",
    "realised_violation": "realised violation",
    "rounds_in_violation": "rounds in violation",
    "best_feasible": "best feasible reward so far",
    "reward": "reward",
    "multiplier": "multiplier",
    "expected_reward": "expected reward of each round",
    "stage_cost": "expected cost of each round",
}
VIOLATIONS = ("soft_violation", "hard_violation")
# totals over costs of different units, each divided by its scale
RELATIVE = {name: f"{name}_relative" for name in VIOLATIONS}
# relative totals have the same titles; only their axes differ, in limits
TITLES = LABELS | {short: LABELS[name] for name, short in RELATIVE.items()}
NAMED = ("cost", "limit")  # sums for each cost with a name, as in "cost latency"
EACH_ROUND = ("best_feasible", "expected_reward", "stage_cost")  # others are sums


@dataclass(frozen=True)
class Curve:
    """One metric over the rounds, with its spread over the trials.

    Args:
        t: rounds, ``(n,)``, int64.
        mean, std, sem: over the trials, ``(n,)``; spreads of a single trial are 0.
    """

    t: Tensor
    mean: Tensor
    std: Tensor
    sem: Tensor

    def until(self, last: int) -> Curve:
        """Return the part of the curve up to round ``last``."""
        early = self.t <= last
        return Curve(*(x[early] for x in (self.t, self.mean, self.std, self.sem)))


Curves = Mapping[str, Mapping[str, Curve]]
"""``curves[policy][metric]``."""


@runtime_checkable
class HasCurves(Protocol):
    """The part of a run that figures need."""

    @property
    def policy(self) -> str:
        """The policy's name."""

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The names of the costs; empty if they have none."""

    @property
    def costs(self) -> Tensor:
        """The costs as observed, ``(*trials, T, m)``."""

    @property
    def thresholds(self) -> Tensor:
        """The limits of the costs, ``(*trials, 1, m)`` or ``(*trials, T, m)``."""

    @property
    def stopped(self) -> Tensor | None:
        """The round in which each trial's policy stopped by itself; ``None``: never."""

    def curve(
        self, name: str, points: int | None = None, average: bool = False
    ) -> Curve:
        """Return a metric's mean and spread over the trials."""

    def thinned(self, points: int | None = None) -> Tensor:
        """Return the rounds of a curve, about ``points`` of them."""

    def violations(self, scale: Tensor) -> dict[str, Tensor]:
        """Return the violations of several costs, each and relative to ``scale``."""


def scales(runs: Sequence[HasCurves]) -> Tensor:
    """Return the scales ``(m,)`` by which violations are divided to be relative.

    A cost's scale is the size of its limit; if that is 0 or varies, the spread of the
    cost as observed in all runs.
    """
    limits = runs[0].thresholds.double().flatten(0, -2)  # rows x m
    costs = torch.cat([run.costs.double().flatten(0, -2) for run in runs])
    told = costs[costs.isfinite().all(-1)]
    spread = told.std(0) if len(told) > 1 else torch.zeros_like(limits[0])
    spread = torch.where(spread > 0, spread, 1.0)
    stated = (limits == limits[0]).all(0) & (limits[0] != 0) & limits[0].isfinite()
    return torch.where(stated, limits[0].abs(), spread)


def over_trials(values: Tensor, t: Tensor) -> Curve:
    """Return the curve of ``values`` ``(trials, n)`` at the rounds ``t`` ``(n,)``."""
    std = values.std(0) if len(values) > 1 else torch.zeros_like(values[0])
    return Curve(t, values.mean(0), std, std / len(values) ** 0.5)


def mean_and_sem(values: Tensor) -> dict[str, float]:
    """Return the mean of ``(n,)`` values and its standard error.

    It is 0 for one value, and for values that differ by rounding errors alone.
    """
    mean = float(values.mean())
    sem = float(values.std()) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"mean": mean, "sem": 0.0 if sem <= 1e-12 * abs(mean) else sem}


def averaged(curve: Curve) -> Curve:
    """Return a cumulative curve divided by the number of rounds so far."""
    t = curve.t.double()
    return replace(curve, mean=curve.mean / t, std=curve.std / t, sem=curve.sem / t)


def thinned(rounds: int, points: int | None) -> Tensor:
    """Return the rounds ``(n,)`` of a curve to keep: all, or about ``points``.

    Half of these are spaced evenly, the other half logarithmically.
    """
    every = torch.arange(1, rounds + 1)
    if points is None or rounds <= checks.whole("points", points, 2):
        return every
    half = max(2, points // 2)
    even = torch.linspace(1, rounds, half, dtype=torch.float64)
    top = torch.log10(torch.tensor(float(rounds))).item()
    log = torch.logspace(0, top, points - half, dtype=torch.float64)
    wanted = torch.cat([even, log]).round().long().clamp(1, rounds)
    return torch.tensor(sorted(set(wanted.tolist())))


def exponent(curve: Curve, first: int) -> float:
    """Return ``a`` of ``mean ~ t^a``, fitted from round ``first`` on.

    The fit is least squares on logarithms. The result is 0 for a curve that is 0, and
    NaN for any other that is not positive throughout.
    """
    chosen = curve.t >= first
    t, mean = curve.t[chosen].double(), curve.mean[chosen].double()
    if bool((mean == 0).all()):
        return 0.0
    if len(t) < 2 or not bool((mean > 0).all()):
        return float("nan")
    x, y = t.log() - t.log().mean(), mean.log() - mean.log().mean()
    return float((x * y).sum() / x.square().sum())
