"""Which candidates may replace a policy: those that are shown to keep the limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit._core.printing import html_table
from cbandit.errors import CBanditError
from cbandit.evaluation.evaluate import band_of
from cbandit.evaluation.limits import Limit
from cbandit.evaluation.rounds import Rounds
from cbandit.receipt.log import Log, check_names
from cbandit.receipt.off_policy import (
    Pseudo,
    Weights,
    combined,
    doubly_robust,
    log_evidence,
)

if TYPE_CHECKING:
    import pandas as pd


LARGEST = 690.0  # the logarithm of the largest evidence that is printed


@dataclass(frozen=True, eq=False)
class Judgement:
    """The evidence on one limit of one candidate.

    Args:
        name: the outcome's name.
        limit: the limit, as text.
        kept: the logarithm of the evidence that it is kept.
        broken: the logarithm of the evidence that it is broken.
        needed: what ``kept`` must reach.
        rounds_needed: about how many more rounds it takes; 0: it is reached; infinity:
            that is not in sight.
    """

    name: str
    limit: str
    kept: float
    broken: float
    needed: float
    rounds_needed: float

    def __str__(self) -> str:
        kept, needed = _number(self.kept), _number(self.needed)
        return (
            f"{self.name} {self.limit}: evidence {kept} that it is kept, {needed} "
            f"needed; {_number(self.broken)} that it is broken"
        )


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whether one candidate may ship.

    Args:
        name: the candidate's name.
        verdict: ``"ship"``: every limit is shown to be kept. ``"reject"``: one is shown
            to be broken. ``"hold"``: the log does not say yet.
        limits: the evidence on each limit.
        rounds_needed: about how many more rounds are needed to ship; infinity: that is
            not in sight.
        reward: the estimate of its mean reward, and its bounds at ``alpha``, for this
            candidate alone.
    """

    name: str
    verdict: str
    limits: tuple[Judgement, ...]
    rounds_needed: float
    reward: tuple[float, float, float]

    def __str__(self) -> str:
        words = self.verdict
        if self.verdict == "hold" and math.isfinite(self.rounds_needed):
            rounds = float(f"{self.rounds_needed:.2g}")
            words += f", about {rounds:.0f} more rounds are needed"
        elif self.verdict == "hold":
            words += ", and no number of rounds is in sight"
        head = f"{self.name}: {words}; reward {self.reward_text()}"
        return "\n".join([head, *(f"  {each}" for each in self.limits)])

    def reward_text(self) -> str:
        """Return the estimate of the reward and its bounds as text."""
        estimate, lower, upper = self.reward
        bounds = f", {lower:.4g} to {upper:.4g}" if math.isfinite(lower) else ""
        return f"{estimate:.4g}{bounds}"


@dataclass(frozen=True, eq=False)
class Gate:
    """Which candidates may ship, as ``cb.gate`` says it.

    Args:
        verdicts: the candidates'; ``gate["new"]`` is one.
        alpha: the chance that any candidate ships that breaks a limit.
        rounds: how many rounds were used.
        left_out: how many were not, as the rule that wrote them was deterministic.
    """

    verdicts: tuple[Verdict, ...]
    alpha: float
    rounds: int
    left_out: int

    def __getitem__(self, name: str) -> Verdict:
        for verdict in self.verdicts:
            if verdict.name == name:
                return verdict
        names = ", ".join(verdict.name for verdict in self.verdicts)
        raise KeyError(f"there is no candidate {name!r}; there are {names}")

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    @property
    def shipped(self) -> tuple[str, ...]:
        """The names of the candidates that may ship."""
        return tuple(each.name for each in self.verdicts if each.verdict == "ship")

    def _head(self) -> str:
        left = f" ({self.left_out} without are left out)" * bool(self.left_out)
        return (
            f"a candidate that breaks a limit ships in at most {100 * self.alpha:g} % "
            f"of logs; {self.rounds} rounds with probabilities{left}"
        )

    def __str__(self) -> str:
        return "\n".join([self._head(), *map(str, self.verdicts)])

    def _repr_html_(self) -> str:
        rows = [
            {
                "candidate": verdict.name,
                "verdict": verdict.verdict,
                "reward": verdict.reward_text(),
                "limit": f"{each.name} {each.limit}",
                "evidence that it is kept": f"{_number(each.kept)}",
                "needed": _number(each.needed),
                "that it is broken": _number(each.broken),
                "rounds still needed": each.rounds_needed,
            }
            for verdict in self.verdicts
            for each in verdict.limits
        ]
        return html_table(rows, self._head())

    def frame(self) -> pd.DataFrame:
        """Return a pandas frame with a row for each candidate and limit."""
        import pandas as pd

        rows = []
        for verdict in self.verdicts:
            estimate, lower, upper = verdict.reward
            for each in verdict.limits:
                row = dict(vars(each))
                row["outcome"] = row.pop("name")
                reward = {
                    "reward": estimate,
                    "reward_lower": lower,
                    "reward_upper": upper,
                }
                head = {"candidate": verdict.name, "verdict": verdict.verdict}
                rows.append({**head, **row, **reward})
        return pd.DataFrame(rows)


@hinted
def gate(
    log: Log,
    candidates: Mapping[str, Any],
    limits: Mapping[str, str] | None = None,
    control: Any = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    alpha: float = 0.05,
) -> Gate:
    """Return which candidates a log shows to keep all limits: ship, hold or reject.

    A candidate ships if there is enough evidence for each of its limits; it is rejected
    if there is that one is broken; else it is on hold, with the number of rounds still
    needed. Whatever the number of candidates and looks, one that breaks a limit ships
    in at most a share ``alpha`` of logs. The conditions are those of
    :func:`cbandit.evaluate`: candidates must be named before the log is looked at, or
    have learned from earlier rounds.

    Args:
        log: the rounds, from ``policy.log()`` or :meth:`cbandit.Log.from_frame`.
        candidates: by name, each as :func:`cbandit.evaluate` takes it.
        limits: by outcome: ``"<= 20"``, ``">= 0.9"``, or relative to the control,
            ``"<= 1.02 x control"``, for outcomes that are at least 0. ``"reward"`` is
            the reward, which counts only if it is named. ``None``: those of the log.
        control: what relative limits compare with, as a candidate; ``None``: the rule
            that wrote the log.
        ranges: what outcomes cannot leave, in place of what the log says. Each outcome
            with a limit needs one.
        alpha: the chance that any candidate ships that breaks a limit.

    Example:
        >>> import cbandit as cb, numpy as np, pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> action = (rng.random(4_000) < 0.2).astype(int)
        >>> ms = 10 + 20 * action + rng.uniform(-5, 5, 4_000)
        >>> log = cb.Log(
        ...     actions=("small", "large"), action=action, contexts=None,
        ...     distribution=np.tile([0.8, 0.2], (4_000, 1)),
        ...     outcomes=pd.DataFrame({"right": 0.5 + 0.4 * action, "ms": ms}),
        ...     limits={"ms": "<= 20"}, ranges={"right": (0, 1), "ms": (0, 100)},
        ... )
        >>> half = np.array([0.7, 0.3])
        >>> cb.gate(log, {"half": half, "large": "large"}).shipped
        ('half',)
    """
    alpha = checks.share("alpha", alpha)
    if not isinstance(candidates, Mapping) or not candidates:
        raise CBanditError(
            "candidates must be a dict, {'new': policy}; got "
            f"{checks.kind(candidates)}" + " without any" * (candidates == {})
        )
    rounds = Rounds(log, ranges)
    judges = _judges(rounds, log.limits if limits is None else limits, control)
    needed = math.log(len(candidates) / alpha)
    verdicts = tuple(
        _verdict(name, rounds, rounds.weights(candidate, name), judges, needed, alpha)
        for name, candidate in candidates.items()
    )
    return Gate(verdicts, alpha, len(rounds.log), rounds.left_out)


@dataclass(frozen=True, eq=False)
class _Judge:
    """Evidence on one limit.

    Args:
        name: the outcome's name.
        limit: the limit.
        rounds: the rounds of the log.
        control: the weights of the control; ``None``: the limit is not relative.
    """

    name: str
    limit: Limit
    rounds: Rounds
    control: Weights | None

    def log_evidence(self, weights: Weights) -> tuple[float, float]:
        """Return the logarithms of the evidence that the limit is kept, and broken."""
        below, above = self._below(weights), self._above(weights)
        evidence = log_evidence(*below), log_evidence(*above)
        return evidence[::-1] if self.limit.above else evidence

    def _below(self, weights: Weights) -> tuple[list[Pseudo], float]:
        """Return pseudo-outcomes and the value that they exceed below the limit."""
        outcome, number = self.rounds.outcome(self.name), self.limit.number
        if self.control is None:
            down = outcome.sides(weights)[1]
            return down, (outcome.high - number) / (outcome.high - outcome.low)
        up = outcome.sides(self.control, 0.0)[0]
        return combined(number, up, outcome.sides(weights, 0.0)[1]), 1.0

    def _above(self, weights: Weights) -> tuple[list[Pseudo], float]:
        """Return pseudo-outcomes and the value that they exceed above the limit."""
        outcome, number = self.rounds.outcome(self.name), self.limit.number
        if self.control is None:
            up = outcome.sides(weights)[0]
            return up, (number - outcome.low) / (outcome.high - outcome.low)
        down = outcome.sides(self.control, 0.0)[1]
        return combined(number, down, outcome.sides(weights, 0.0)[0]), number


def _judges(rounds: Rounds, limits: Any, control: Any) -> Sequence[_Judge]:
    """Return what judges each limit, checked."""
    log = rounds.log
    if not isinstance(limits, Mapping) or not limits:
        raise CBanditError(
            "limits must be a dict, {'latency': '<= 20'}, and the log states none; got "
            f"{limits!r}"
        )
    names = {name: name for name in limits}
    if "reward" in names and "reward" not in log.outcomes:
        names["reward"] = log.reward
    check_names("limits", dict.fromkeys(names.values()), log.names)
    weights, judges = None, []
    for said, name in names.items():
        limit = Limit.of(said, limits[said])
        if name not in rounds.ranges:
            raise CBanditError(
                f"limits[{said!r}] needs to know what {name} cannot leave: "
                f"ranges={{{name!r}: (low, high)}}"
            )
        low, high = rounds.ranges[name]
        if limit.relative and low < 0:
            raise CBanditError(
                f"limits[{said!r}] is relative, {limit.text!r}, and {name} can be "
                f"{low:g}: relative limits are of outcomes that are at least 0"
            )
        if not limit.relative and not low < limit.number < high:
            raise CBanditError(
                f"limits[{said!r}] is {limit.text!r}, and {name} is between {low:g} "
                f"and {high:g} by its range: the limit decides nothing"
            )
        if limit.relative and weights is None:
            weights = rounds.logged()
            if control is not None:
                weights = rounds.weights(control, "control")
        judges.append(_Judge(name, limit, rounds, weights if limit.relative else None))
    return judges


def _verdict(
    name: str,
    rounds: Rounds,
    weights: Weights,
    judges: Sequence[_Judge],
    needed: float,
    alpha: float,
) -> Verdict:
    """Return the verdict on one candidate."""
    n, found = len(rounds.log), []
    for judge in judges:
        kept, broken = judge.log_evidence(weights)
        more = 0.0
        if kept < needed:
            more = n * (needed / kept - 1) if kept > 0 else math.inf
        found.append(
            Judgement(judge.name, judge.limit.text, kept, broken, needed, more)
        )
    verdict = "hold"
    if all(each.kept >= needed for each in found):
        verdict = "ship"
    elif max(each.broken for each in found) >= needed + math.log(len(found)):
        verdict = "reject"
    outcome = rounds.outcome(rounds.log.reward)
    robust = doubly_robust(outcome.y, outcome.q, weights)
    estimate = float(np.nanmean(robust)) if np.isfinite(robust).any() else math.nan
    reward = (estimate, *band_of(outcome, weights, alpha))
    wait = max(each.rounds_needed for each in found)
    return Verdict(name, verdict, tuple(found), wait, reward)


def _number(log: float) -> str:
    """Return a number as text, given its logarithm."""
    return f"{math.exp(min(log, LARGEST)):.3g}"
