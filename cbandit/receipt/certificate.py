"""The certificate: was each limit kept on average, whatever the policy did?

With ``mu_i`` the expected cost of round ``i`` given all that happened before it, the
mean of ``mu`` lies within the bounds for all rounds at once, in all but a share
``alpha`` of runs. Actions may depend on all the past, and the world may change. It says
nothing of rounds to come.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cbandit._core.printing import html_table
from cbandit.receipt.bets import (
    BEST_ROUNDS,
    ODDS,
    Array,
    asymptotic,
    deviation,
    log_weights,
    rate_bounds,
)
from cbandit.receipt.sums import Costs, Flags, Sums

if TYPE_CHECKING:
    import pandas as pd

MIN_VARIANCE = 10.0  # of successes after BEST_ROUNDS, for weights of rare events
USUAL_SHARE = 0.05  # share of rounds over a limit for which its band is narrowest


class Bands:
    """Bounds on the mean cost of the rounds that sums are over, ``(T, m)`` each.

    Args:
        sums: over the rounds.
        costs: what is known of the costs.
        alpha: the chance that any bound of a trial ever fails.
        worst: the costs for which outstanding rounds count, at their worst, ``(m,)``.
    """

    def __init__(self, sums: Sums, costs: Costs, alpha: float, worst: Flags) -> None:
        shape = sums.rounds.shape
        #: the chance of each side of each cost
        self.a = alpha / (2 * shape[1])
        self._evidence = np.full(shape, math.log(1 / self.a))
        self._sums, self._costs = sums, costs
        #: outstanding rounds that count
        self.out = np.where(worst, sums.out, 0.0)
        self.weight = sums.weight + self.out
        with np.errstate(invalid="ignore", divide="ignore"):
            #: the mean of what was told, and of the limits of all rounds that count
            self.told = sums.total / sums.weight
            limit = sums.limit + np.where(worst, sums.limit_out, 0.0)
            self.limit = limit / self.weight
            #: whether the bounds hold at any number of rounds
            self.exact = self._is_exact()
            self.lower, self.upper = self._means()
            self.over_lower, self.over_upper = self._shares_over()

    def _is_exact(self) -> Flags:
        costs, sums = self._costs, self._sums
        ranged = np.isfinite(costs.low) & np.isfinite(costs.high) & ~sums.outside
        counts = costs.of_kind("count") & ~sums.spread
        return costs.of_kind("binary") | counts | (costs.of_kind("number") & ranged)

    def _means(self) -> tuple[Array, Array]:
        """Return the bounds of the mean, of each kind of cost."""
        lower, upper = self._of_numbers()
        for kind in ("binary", "count"):
            which = self._costs.of_kind(kind)
            if not which.any():
                continue
            low, high = self._of_rates(kind == "binary")
            use = which & ~self._sums.spread
            lower, upper = np.where(use, low, lower), np.where(use, high, upper)
        return lower, upper

    def _of_rates(self, binary: bool) -> tuple[Array, Array]:
        sums, first = self._sums, np.abs(self._costs.first)
        spread = first * (1 - np.minimum(first, 1.0)) if binary else first
        variance = np.maximum(MIN_VARIANCE, BEST_ROUNDS * spread)
        total = sums.total, sums.total + self.out
        weights = log_weights(ODDS, variance)
        return rate_bounds(total, self.weight, weights, self._evidence, binary)

    def _of_numbers(self) -> tuple[Array, Array]:
        sums, costs = self._sums, self._costs
        rounds = np.maximum(sums.rounds, 1.0)
        # the first rounds have a centre that rests on nothing: they count as the others
        squares = sums.squares * rounds / np.maximum(sums.informed, 1.0)
        sure = asymptotic(squares, sums.largest, rounds, np.asarray(self.a))
        sure = np.where(sums.rounds > 0, sure, np.inf)
        n = np.maximum(self.weight, 1e-300)
        below, above = costs.below_scale, costs.above_scale
        low_end, high_end = np.nan_to_num(costs.low), np.nan_to_num(costs.high)
        squares = sums.below + np.where(self.out > 0, sums.below_out, 0.0)
        by_range = below * deviation(np.maximum(squares, 0.0), self._evidence)
        lower = sums.total + self.out * low_end
        exact = np.isfinite(below) & ~sums.outside
        lower = (lower - np.where(exact, by_range, sure)) / n
        squares = sums.above + np.where(self.out > 0, sums.above_out, 0.0)
        by_range = above * deviation(np.maximum(squares, 0.0), self._evidence)
        upper = sums.total + self.out * high_end
        exact = np.isfinite(above) & ~sums.outside
        upper = (upper + np.where(exact, by_range, sure)) / n
        nothing = self.weight <= 0
        lower = np.where(nothing, -np.inf, lower)
        upper = np.where(nothing, np.inf, upper)
        known = ~sums.outside
        lower = np.where(known, np.fmax(lower, costs.low), lower)
        return lower, np.where(known, np.fmin(upper, costs.high), upper)

    def _shares_over(self) -> tuple[Array, Array]:
        """Return bounds on the expected share of rounds over the limit."""
        sums = self._sums
        variance = np.full_like(sums.rounds, BEST_ROUNDS * USUAL_SHARE)
        weights = log_weights(ODDS, variance)
        total = sums.over, sums.over + self.out
        weight = sums.rounds + self.out
        return rate_bounds(total, weight, weights, self._evidence, True)

    def verdicts(self) -> tuple[Flags, Flags]:
        """Return which limits are shown to be kept, and which to be broken."""
        small = np.array([sense == "<=" for sense in self._costs.senses])
        kept = np.where(small, self.upper <= self.limit, self.lower >= self.limit)
        broken = np.where(small, self.lower > self.limit, self.upper < self.limit)
        return kept, broken


@dataclass(frozen=True, eq=False)
class Bound:
    """The certificate of one cost; arrays are ``(*trials,)``.

    Args:
        name: the cost's name.
        sense: ``"<="`` or ``">="``.
        limit: the mean limit of the rounds that count.
        told: in how many rounds the user told this cost.
        out: in how many rounds that were played it was not told.
        mean: the mean of what was told.
        lower: the lower bound of the expected mean.
        upper: the upper bound.
        verdict: ``"kept"``, ``"broken"`` or ``"open"``.
        grade: ``"exact"``, or ``"asymptotic"`` where the bounds need many rounds.
        outstanding: ``"worst"`` where outstanding rounds count at their worst;
            ``"told"`` where nothing is said of them.
        over: in how many rounds told the cost was beyond its limit.
        over_lower: the lower bound of the expected share of such rounds.
        over_upper: the upper bound.
    """

    name: str
    sense: str
    limit: Array
    told: Array
    out: Array
    mean: Array
    lower: Array
    upper: Array
    verdict: Array
    grade: Array
    outstanding: str
    over: Array
    over_lower: Array
    over_upper: Array

    def __repr__(self) -> str:
        return f"Bound({self.name} {self.sense} {_span(self.limit)}: {self.in_short()})"

    def in_short(self) -> str:
        """Return the bounds and the verdict as text."""
        bounds = f"{_span(self.lower)} to {_span(self.upper)}"
        return f"expected {bounds}: {_words(self.verdict)}"

    def row(self, trial: int) -> dict[str, Any]:
        """Return the bounds and the verdict of one trial, by name."""
        words = "lower", "upper", "verdict"
        return {word: np.ravel(getattr(self, word))[trial].item() for word in words}

    def __str__(self) -> str:
        verdict, grade = _words(self.verdict), _words(self.grade)
        where = ""
        if self.out.any():
            where = f", whatever the {_span(self.out)} outstanding are"
            if self.outstanding == "told":
                where = f", of the {_span(self.told)} rounds told"
        return (
            f"{self.name} {self.sense} {_span(self.limit)}: told {_span(self.mean)} on "
            f"average; expected {_span(self.lower)} to {_span(self.upper)}: "
            f"{verdict}{where} ({grade})\n"
            f"  beyond it in {_span(self.over)} of {_span(self.told)} rounds; expected "
            f"share {_span(self.over_lower)} to {_span(self.over_upper)}"
        )


@dataclass(frozen=True, eq=False)
class Certificate:
    """Whether the limits were kept on average, as ``policy.certificate()`` says it.

    Args:
        costs: the certificate of each cost; ``certificate["latency"]`` is one.
        alpha: the chance that any of the bounds ever fails.
        window: the number of the last rounds that it is of; ``None``: all.
        trials: the trials' numbers; ``None``: there is no trials axis.

    Example:
        >>> import cbandit as cb, torch
        >>> actions = cb.Finite(torch.linspace(0, 1, 11).double().unsqueeze(-1))
        >>> gp = cb.GP.default(actions)
        >>> policy = cb.CKB(actions, reward=gp, costs=gp, ranges=(0.0, 1.0))
        >>> choice = policy.ask()
        >>> policy.tell(choice, reward=1.0, cost=0.3)
        >>> policy.certificate()["cost1"].verdict.item()
        'open'
    """

    costs: tuple[Bound, ...]
    alpha: float
    window: int | None = None
    trials: range | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Bound:
        for bound in self.costs:
            if bound.name == name:
                return bound
        names = ", ".join(bound.name for bound in self.costs)
        raise KeyError(f"there is no cost {name!r}; there are {names}")

    def __iter__(self) -> Iterator[Bound]:
        return iter(self.costs)

    def __str__(self) -> str:
        return "\n".join([self._head(), *map(str, self.costs)])

    def __repr__(self) -> str:
        words = (f"{bound.name}: {_words(bound.verdict)}" for bound in self.costs)
        return f"Certificate({', '.join(words)})"

    def _head(self) -> str:
        of = "all rounds" if self.window is None else f"the last {self.window} rounds"
        return f"{100 * (1 - self.alpha):g} % at every look, of {of}"

    def _repr_html_(self) -> str:
        rows = [
            {
                "limit": f"{bound.name} {bound.sense} {_span(bound.limit)}",
                "told, mean": _span(bound.mean),
                "expected": f"{_span(bound.lower)} to {_span(bound.upper)}",
                "verdict": f"{_words(bound.verdict)} ({_words(bound.grade)})",
                "rounds beyond": f"{_span(bound.over)} of {_span(bound.told)}",
                "outstanding": f"{_span(bound.out)}, {bound.outstanding}",
            }
            for bound in self.costs
        ]
        return html_table(rows, self._head())

    def frame(self) -> pd.DataFrame:
        """Return a pandas frame with a row for each cost and trial."""
        import pandas as pd

        words = (
            "limit told out mean lower upper verdict grade over over_lower over_upper"
        )
        rows = []
        for bound in self.costs:
            columns = {w: np.ravel(getattr(bound, w)).tolist() for w in words.split()}
            for i in range(len(columns["limit"])):
                trial = {} if self.trials is None else {"trial": self.trials[i]}
                values = {word: column[i] for word, column in columns.items()}
                rows.append(
                    {"name": bound.name, **trial, "sense": bound.sense, **values}
                )
        return pd.DataFrame(rows)


def certify(
    sums: Sums,
    costs: Costs,
    alpha: float = 0.05,
    outstanding: str | None = None,
    window: int | None = None,
    trials: range | None = None,
) -> Certificate:
    """Return the certificate of sums over rounds.

    Args:
        sums: over the rounds.
        costs: what is known of the costs.
        alpha: the chance that any of the bounds ever fails.
        outstanding: ``"worst"``, ``"told"``, or ``None`` for the former where a range
            or a yes or no says what the worst is.
        window: how many of the last rounds these are; ``None``: all.
        trials: the trials' numbers; ``None``: there is no trials axis.
    """
    worst = can_be_worst(sums, costs) & (outstanding != "told")
    bands = Bands(sums, costs, alpha, worst)
    kept, broken = bands.verdicts()
    verdict = np.where(kept, "kept", np.where(broken, "broken", "open"))
    grade = np.where(bands.exact, "exact", "asymptotic")
    bounds = []
    for j, name in enumerate(costs.names):

        def column(values: Array, j: int = j) -> Array:
            return values[0, j] if trials is None else values[:, j]

        bounds.append(
            Bound(
                name=name,
                sense=costs.senses[j],
                limit=column(bands.limit),
                told=column(sums.rounds),
                out=column(sums.out),
                mean=column(bands.told),
                lower=column(bands.lower),
                upper=column(bands.upper),
                verdict=column(verdict),
                grade=column(grade),
                outstanding="worst" if worst[j] else "told",
                over=column(sums.over),
                over_lower=column(bands.over_lower),
                over_upper=column(bands.over_upper),
            )
        )
    return Certificate(tuple(bounds), alpha, window, trials)


def can_be_worst(sums: Sums, costs: Costs) -> Flags:
    """Return for which costs the worst of an outstanding round is known, ``(m,)``."""
    ranged = np.isfinite(costs.low) & np.isfinite(costs.high) & ~sums.outside.any(0)
    single = costs.of_kind("binary") & ~sums.tallied.any(0)
    return single | (costs.of_kind("number") & ranged)


def _span(values: Array) -> str:
    """Return a number, or the least and the greatest over the trials, as text."""
    numbers = [each for each in np.ravel(values).tolist() if not math.isnan(each)]
    if not numbers:
        return "nothing"
    least, most = f"{min(numbers):.4g}", f"{max(numbers):.4g}"
    return least if least == most else f"[{least}, {most}]"


def _words(values: Array) -> str:
    """Return a word, or in how many trials each occurs."""
    words, counts = np.unique(np.ravel(values), return_counts=True)
    if len(words) == 1:
        return str(words[0])
    return ", ".join(f"{w} in {n}" for w, n in zip(words, counts, strict=True))
