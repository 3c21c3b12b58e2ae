"""The mean reward and costs of another policy, from a log."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit._core.log import warn
from cbandit._core.printing import html_table
from cbandit.evaluation.limits import Limit
from cbandit.evaluation.rounds import Outcome, Rounds
from cbandit.receipt.log import ROUNDING, Log
from cbandit.receipt.off_policy import Weights, bounds, doubly_robust

if TYPE_CHECKING:
    import pandas as pd

#: standard deviations beyond which a difference is said
MANY_DEVIATIONS = 4.0


@dataclass(frozen=True, eq=False)
class Value:
    """One outcome under a candidate, in the user's units.

    Args:
        name: the outcome's name.
        estimate: the doubly robust estimate of its mean.
        lower: the lower bound of the mean; minus infinity where no range is known.
        upper: the upper bound, likewise.
        played: the mean of what was told in the rounds used.
        told: in how many rounds it was told.
        out: in how many it was not; they count at their worst.
        halves: the estimates from the first and from the second half of the rounds.
        changed: whether these differ by more than chance explains. The bounds are of a
            mean that stays the same.
        limit: the limit, as text; ``None``: it has none.
        verdict: ``"kept"`` or ``"broken"`` where the bounds show it, else ``"open"``;
            ``None``: it has no limit.
    """

    name: str
    estimate: float
    lower: float
    upper: float
    played: float
    told: int
    out: int
    halves: tuple[float, float]
    changed: bool
    limit: str | None = None
    verdict: str | None = None

    def bounds(self) -> str:
        """Return the bounds as text."""
        if math.isinf(self.lower):
            return f"no bounds without ranges={{{self.name!r}: (low, high)}}"
        return f"{self.lower:.4g} to {self.upper:.4g}"

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" {self.limit}"
        verdict = "" if self.verdict is None else f": {self.verdict}"
        out = ""
        if self.out:
            out = f", whatever the {self.out} rounds not told were"
        lines = [
            f"{self.name}{limit}: {self.estimate:.4g}, {self.bounds()}{verdict}{out} "
            f"(played: {self.played:.4g})"
        ]
        if self.changed:
            lines.append(
                "  it has changed: {:.4g} by the first half, {:.4g} by the second; the "
                "bounds are of a mean that stays the same".format(*self.halves)
            )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The earnings and costs of another policy, as ``cb.evaluate`` estimates them.

    Args:
        values: the reward and the costs; ``evaluation["latency"]`` is one.
        alpha: the chance that the bounds of one of them ever fail.
        rounds: how many rounds were used.
        left_out: how many were not, as the rule that wrote them was deterministic.
        worth: how many rounds of the candidate's own the log is worth, by design.
        unsupported: the share of the candidate's choices that the log never could have
            made; NaN where the log knows the probabilities played alone.
        largest_weight: the largest weight that could have come up.
        mean_weight: the mean of the weights that did.
        weights_odd: whether that mean is farther from what it should be than chance
            explains: the probabilities of the log are then wrong.
    """

    values: tuple[Value, ...]
    alpha: float
    rounds: int
    left_out: int
    worth: float
    unsupported: float
    largest_weight: float
    mean_weight: float
    weights_odd: bool = field(default=False)

    def __getitem__(self, name: str) -> Value:
        for value in self.values:
            if value.name == name:
                return value
        names = ", ".join(value.name for value in self.values)
        raise KeyError(f"there is no outcome {name!r}; there are {names}")

    def __iter__(self) -> Iterator[Value]:
        return iter(self.values)

    def _head(self) -> str:
        left = ""
        if self.left_out:
            left = f" ({self.left_out} more had none and are left out)"
        lines = [
            f"{100 * (1 - self.alpha):g} % for each outcome, at every look, from "
            f"{self.rounds} rounds with probabilities{left}",
            f"worth {self.worth:.0f} rounds of the candidate; largest weight "
            f"{self.largest_weight:.3g}, mean weight {self.mean_weight:.3g}",
        ]
        if self.unsupported > 0:
            lines.append(
                f"{100 * self.unsupported:.3g} % of its choices were never possible "
                "here: the bounds know nothing of them"
            )
        if self.weights_odd:
            lines.append(_odd_weights(self.mean_weight, self.unsupported))
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([self._head(), *map(str, self.values)])

    def _repr_html_(self) -> str:
        rows = [
            {
                "outcome": value.name,
                "limit": value.limit,
                "estimate": value.estimate,
                "bounds": value.bounds(),
                "verdict": value.verdict,
                "played": value.played,
                "first half": value.halves[0],
                "second half": value.halves[1],
            }
            for value in self.values
        ]
        return html_table(rows, self._head())

    def frame(self) -> pd.DataFrame:
        """Return a pandas frame with a row for each outcome."""
        import pandas as pd

        rows = []
        for value in self.values:
            row = dict(vars(value))
            row["first_half"], row["second_half"] = row.pop("halves")
            rows.append(row)
        return pd.DataFrame(rows)


@hinted
def evaluate(
    log: Log,
    candidate: Any,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    alpha: float = 0.05,
) -> Evaluation:
    """Return what another policy would have earned and paid in the rounds of a log.

    For the reward and each cost it gives the doubly robust estimate of the mean, and
    bounds that are right at any number of rounds and at all looks, however rarely the
    log made the candidate's choices. They need to know what an outcome cannot leave
    (``ranges``), that the log's probabilities are those by which choices were drawn,
    and that the mean stays the same over the rounds. The candidate must not have
    learned from these rounds: let it learn from earlier ones, ``log[: len(log) // 4]``,
    and evaluate it by the rest.

    Args:
        log: the rounds, from ``policy.log()`` or :meth:`cbandit.Log.from_frame`. Those
            without probabilities are left out.
        candidate: a policy: what it would choose now, with all it has learned so far;
            it is not changed. Or a function of a context, a dict of the log's columns,
            that returns probabilities ``(K,)`` of ``log.actions``, or one of them. Or
            one of them; or the probabilities themselves, ``(K,)`` or ``(n, K)``.
        ranges: what outcomes cannot leave, ``{"latency": (0, 200)}``, in place of what
            the log says.
        alpha: the chance that the bounds of an outcome ever fail.

    Example:
        >>> import cbandit as cb, numpy as np, pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> action = (rng.random(2_000) < 0.2).astype(int)
        >>> ms = 10 + 20 * action + rng.uniform(-5, 5, 2_000)
        >>> log = cb.Log(
        ...     actions=("small", "large"), action=action, contexts=None,
        ...     distribution=np.tile([0.8, 0.2], (2_000, 1)),
        ...     outcomes=pd.DataFrame({"right": 0.5 + 0.4 * action, "ms": ms}),
        ...     limits={"ms": "<= 20"}, ranges={"right": (0, 1), "ms": (0, 100)},
        ... )
        >>> found = cb.evaluate(log, lambda context: [0.7, 0.3])
        >>> found["ms"].verdict
        'kept'
    """
    alpha = checks.share("alpha", alpha)
    rounds = Rounds(log, ranges)
    weights = rounds.weights(candidate)
    values = tuple(_value(rounds, name, weights, alpha) for name in rounds.log.names)
    odd = _weights_are_odd(weights)
    mean = float(weights.played.mean())
    unsupported = 1 - weights.supported
    if abs(unsupported) < ROUNDING:
        unsupported = 0.0
    if odd:
        warn(f"evaluate: {_odd_weights(mean, unsupported)}")
    return Evaluation(
        values=values,
        alpha=alpha,
        rounds=len(rounds.log),
        left_out=rounds.left_out,
        worth=len(rounds.log) * weights.worth,
        unsupported=unsupported,
        largest_weight=weights.largest,
        mean_weight=mean,
        weights_odd=odd,
    )


def _value(rounds: Rounds, name: str, weights: Weights, alpha: float) -> Value:
    outcome = rounds.outcome(name)
    y, told = outcome.y, ~np.isnan(outcome.y)
    robust = doubly_robust(y, outcome.q, weights)[told]
    lower, upper = band_of(outcome, weights, alpha)
    first, second = np.array_split(robust, 2)
    halves = _mean(first), _mean(second)
    limit = limit_of(rounds.log, name)
    return Value(
        name=name,
        estimate=_mean(robust),
        lower=lower,
        upper=upper,
        played=_mean(y[told]),
        told=int(told.sum()),
        out=int((~told).sum()),
        halves=halves,
        changed=_differ(first, second),
        limit=None if limit is None else limit.text,
        verdict=None if limit is None else _verdict(limit, lower, upper),
    )


def band_of(outcome: Outcome, weights: Weights, alpha: float) -> tuple[float, float]:
    """Return the bounds of an outcome's mean; infinite where no range is known."""
    if not outcome.ranged:
        return -math.inf, math.inf
    low, width = outcome.low, outcome.high - outcome.low
    lower, upper = bounds(*outcome.sides(weights), alpha)
    return low + width * lower, low + width * upper


def limit_of(log: Log, name: str) -> Limit | None:
    """Return the limit that a log states on an outcome alone; ``None``: none."""
    if name not in log.limits:
        return None
    limit = Limit.of(name, log.limits[name])
    return None if limit.relative else limit


def _verdict(limit: Limit, lower: float, upper: float) -> str:
    if limit.above:
        lower, upper, number = -upper, -lower, -limit.number
    else:
        number = limit.number
    return "kept" if upper <= number else "broken" if lower > number else "open"


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _differ(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two means differ by many standard deviations."""
    if min(len(first), len(second)) < 2:
        return False
    squares = first.var(ddof=1) / len(first) + second.var(ddof=1) / len(second)
    one, other = float(first.mean()), float(second.mean())
    rounding = ROUNDING * max(abs(one), abs(other))
    return abs(one - other) > MANY_DEVIATIONS * math.sqrt(squares) + rounding


def _weights_are_odd(weights: Weights) -> bool:
    """Return whether the mean weight is not what the log's probabilities imply."""
    expected = weights.supported if weights.whole else 1.0
    mean = float(weights.played.mean())
    if not weights.whole and mean < expected:
        return False  # the large weights of rare choices may not have come up
    return abs(mean - expected) > MANY_DEVIATIONS * weights.deviation + ROUNDING


def _odd_weights(mean: float, unsupported: float) -> str:
    expected = 1.0 if math.isnan(unsupported) else 1 - unsupported
    return (
        f"the mean weight is {mean:.3g}, far from {expected:.3g}: the log's "
        "probabilities are not those by which its choices were drawn, and nothing "
        "here can be relied on"
    )
