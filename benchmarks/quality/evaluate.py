"""How often bounds from a log fail, how wide they are, and what a gate ships.

    python benchmarks/quality/evaluate.py [--quick] [--json FILE]

Pictures of digits are read by ten choices, one a digit. Rewards, and two costs, are
drawn around known means, so that the value of any policy is known exactly. Three rules
write logs: one that draws from the scores of a weak reader, and two that follow it but
for 10 and 2 % of rounds. The candidate draws from the scores of a good reader.

Goals: the bounds of `cb.evaluate` fail, at any of four looks, in at most 5 % of logs.
Their width is compared with that of the normal interval of the same estimate, where
that one is right, and how often it is right is shown. Of 200 candidates `cb.gate` ships
one that breaks a limit in at most 5 % of logs, and at least 95 % of those that keep
each limit by two widths of the normal interval, after 10 000 rounds. A candidate whose
mean is exactly at its limit ships in at most 5 % of logs; normal intervals ship more.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binom

import cbandit as cb
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main
from cbandit.evaluation.rounds import Rounds
from cbandit.receipt.off_policy import Weights, doubly_robust

Array = NDArray[np.float64]

ALPHA, NORMAL, ONE_SIDED = 0.05, 1.96, 1.645
DIGITS, LOOKS = 10, 4
RANGES = {"right": (0.0, 1.0), "slow": (0.0, 1.0), "energy": (0.0, 1.0)}
LIMITS = {"slow": "<= 0.28", "energy": "<= 0.38"}


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's.

    Args:
        rounds: the lengths of logs.
        logs: how many logs of each length are evaluated.
        gates: how many logs of each length a gate reads.
        candidates: how many candidates it judges.
        edges: how many logs a candidate at its limit is judged by, and their length.
    """

    rounds: tuple[int, ...] = (1_000, 10_000)
    logs: tuple[int, ...] = (200, 40)
    gates: tuple[int, ...] = (20, 8)
    candidates: int = 200
    edges: tuple[int, int] = (300, 1_000)


QUICK = Sizes((200, 400), (8, 4), (3, 2), 12, (10, 200))


class World(NamedTuple):
    """Pictures, and the means of what each choice brings; ``N`` pictures.

    Args:
        x: what a rule sees of a picture, ``(N, d)``.
        means: of reward and costs, ``(3, N, 10)``.
        weak: scores of a reader that learned from few pictures, ``(N, 10)``.
        good: those of one that learned from many.
    """

    x: Array
    means: Array
    weak: Array
    good: Array

    def value(self, shares: Array) -> Array:
        """Return the true means under a rule ``(N, 10)``, ``(3,)``."""
        return np.asarray((self.means * shares).sum(2).mean(1))


def absent() -> str | None:
    """Why there are no pictures on this machine, if so."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return "the pictures come with scikit-learn: pip install 'cbandit[experiments]'"
    return None


@cache
def world() -> World:
    """Return the pictures, and two readers of them."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    pixels, digits = load_digits(return_X_y=True)
    x = pixels.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16) / 16
    weak, good = (
        LogisticRegression(max_iter=2_000).fit(x[:n], digits[:n]).decision_function(x)
        for n in (100, 1_200)
    )
    right = 0.05 + 0.9 * np.eye(DIGITS)[digits]
    ink = x.mean(1, keepdims=True)
    turn = np.arange(DIGITS) / DIGITS
    slow = 0.02 + 0.4 * turn + 0.1 * ink
    energy = 0.15 + 0.3 * np.abs(np.sin(3 * ink + 3 * turn))
    return World(x, np.stack([right, slow, energy]), weak, good)


def softmax(scores: Array) -> Array:
    """Return scores ``(N, 10)`` as probabilities."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def logging_rules() -> dict[str, Array]:
    """Return the rules that write logs, ``(N, 10)`` each."""
    weak = world().weak
    greedy = np.eye(DIGITS)[weak.argmax(1)]
    return {
        "drawn from scores": softmax(0.7 * weak),
        "10 % explored": 0.9 * greedy + 0.1 / DIGITS,
        "2 % explored": 0.98 * greedy + 0.02 / DIGITS,
    }


def draw_log(rule: Array, n: int, seed: int) -> tuple[cb.Log, NDArray[np.int64]]:
    """Return a log of ``n`` rounds of a rule, and the picture of each round."""
    rng, shown = np.random.default_rng(seed), world()
    picture = rng.integers(0, len(shown.x), n)
    p = rule[picture]
    action = (p.cumsum(1) > rng.random((n, 1))).argmax(1)
    right, slow, energy = shown.means[:, picture, action]
    outcomes = {
        "right": rng.random(n) < right,
        "slow": rng.random(n) < slow,
        "energy": rng.beta(8 * energy, 8 * (1 - energy)),
    }
    log = cb.Log(
        actions=tuple(range(DIGITS)),
        action=action,
        contexts=pd.DataFrame(shown.x[picture]).add_prefix("pixel"),
        distribution=p / p.sum(1, keepdims=True),
        outcomes=pd.DataFrame(outcomes),
        limits=LIMITS,
        ranges=RANGES,
    )
    return log, picture


def most(share: float, tries: int) -> float:
    """Return the share of tries that chance exceeds once in a thousand."""
    return float(binom.ppf(0.999, tries, share)) / tries


def normal_errors(rounds: Rounds, weights: Weights) -> dict[str, float]:
    """Return the standard error of each outcome's estimate."""
    found = {}
    for name in RANGES:
        outcome = rounds.outcome(name)
        robust = doubly_robust(outcome.y, outcome.q, weights)
        found[name] = float(robust.std(ddof=1) / np.sqrt(len(robust)))
    return found


def bands(name: str, rule: Array, n: int, logs: int) -> Row:
    """Evaluate the candidate from many logs, at four looks each."""
    say(f"  bounds: {name}, {n} rounds")
    candidate = softmax(world().good)
    truth = dict(zip(RANGES, world().value(candidate), strict=True))
    missed, normal = np.zeros(len(RANGES)), np.zeros(len(RANGES))
    ratios, widths, worth = [], [], 0.0
    for seed in range(logs):
        log, picture = draw_log(rule, n, seed)
        shares = candidate[picture]
        failed = np.zeros(len(RANGES), dtype=bool)
        for look in range(LOOKS):
            rows = slice(0, n >> (LOOKS - 1 - look))
            found = cb.evaluate(log[rows], shares[rows], alpha=ALPHA)
            failed |= [not v.lower <= truth[v.name] <= v.upper for v in found]
        missed, worth = missed + failed, worth + found.worth / logs
        rounds = Rounds(log, None)
        errors = normal_errors(rounds, rounds.weights(shares))
        for j, value in enumerate(found):
            half = NORMAL * errors[value.name]
            normal[j] += abs(value.estimate - truth[value.name]) > half
            widths.append(value.upper - value.lower)
            ratios.append((value.upper - value.lower) / (2 * half))
    share, usual = missed.max() / logs, normal.max() / logs
    ratio = float(np.median(ratios))
    return row_of(
        f"bounds that fail at any of {LOOKS} looks; width; over the normal interval's, "
        "and how often that one fails at one look",
        f"{name}, {logs} logs of {n} rounds",
        checks=[check_of("failed", float(share), most(ALPHA, logs))],
        columns=f"{100 * share:.1f} %  {np.median(widths[::3]):.3f}  {ratio:.2f}  "
        f"{100 * usual:.1f} %",
        missed=(missed / logs).tolist(),
        normal_missed=(normal / logs).tolist(),
        width=[float(np.median(widths[j::3])) for j in range(3)],
        over_normal=[float(np.median(ratios[j::3])) for j in range(3)],
        worth=worth,
    )


def rules_to_judge(count: int) -> list[Array]:
    """Return candidates ``(N, 10)``: between readers, sharper or softer, turned."""
    rng, shown = np.random.default_rng(5), world()
    found = []
    for _ in range(count):
        mix, sharp = rng.random(), rng.uniform(0.1, 1.5)
        leaning = rng.normal(0, 3.0, DIGITS)
        scores = mix * shown.good + (1 - mix) * shown.weak
        found.append(softmax(sharp * scores + rng.random() * leaning))
    return found


def gates(n: int, logs: int, count: int) -> Row:
    """Judge many candidates by the same log, for several logs."""
    say(f"  gate: {count} candidates, {n} rounds")
    rule, candidates = logging_rules()["drawn from scores"], rules_to_judge(count)
    limits = np.array([float(text.split()[1]) for text in LIMITS.values()])
    room = limits - np.array([world().value(each)[1:] for each in candidates])
    safe = (room >= 0).all(1)
    false, shipped, margins = 0, np.zeros((logs, count), dtype=bool), []
    for seed in range(logs):
        log, picture = draw_log(rule, n, 10_000 + seed)
        shares = {f"{j}": each[picture] for j, each in enumerate(candidates)}
        found = cb.gate(log, shares, alpha=ALPHA)
        shipped[seed] = [each.verdict == "ship" for each in found]
        false += bool((shipped[seed] & ~safe).any())
        rounds = Rounds(log, None)
        widths = []
        for each in shares.values():
            errors = normal_errors(rounds, rounds.weights(each))
            widths.append([2 * NORMAL * errors[name] for name in LIMITS])
        margins.append((room / np.array(widths)).min(1))
    wide = np.array(margins).mean(0)
    parts: dict[float, float | None] = {}
    for low, high in ((0.0, 1.0), (1.0, 2.0), (2.0, np.inf)):
        those = safe & (wide >= low) & (wide < high)
        parts[low] = float(shipped[:, those].mean()) if those.any() else None
    goal = n >= 10_000 and count >= 200
    return row_of(
        "gate: logs in which a candidate ships that breaks a limit; ships of those "
        "that keep them by less than 1, by 1 to 2, by more widths of normal intervals",
        f"{count} candidates, {int(safe.sum())} within limits, {logs} logs of {n}",
        checks=[check_of("false ships", false / logs, most(ALPHA, logs))],
        ratio=parts[2.0] if goal else None,
        goal=(">=", 0.95) if goal else None,
        columns=f"{100 * false / logs:.1f} %  "
        + "  ".join(
            "none" if share is None else f"{100 * share:.0f} %"
            for share in parts.values()
        ),
        false=false / logs,
        shipped=[*parts.values()],
        counts=[int((safe & (wide >= low)).sum()) for low in parts],
    )


def edge(name: str, rule: Array, logs: int, n: int) -> Row:
    """Judge a candidate whose mean is exactly at its limit."""
    say(f"  at the very limit: {name}")
    candidate = softmax(world().good)
    limit = float(world().value(candidate)[1])
    ours, normal = 0, 0
    for seed in range(logs):
        log, picture = draw_log(rule, n, 20_000 + seed)
        shares = candidate[picture]
        found = cb.gate(log, {"new": shares}, {"slow": f"<= {limit!r}"}, alpha=ALPHA)
        ours += found["new"].verdict == "ship"
        rounds = Rounds(log, None)
        weights = rounds.weights(shares)
        outcome = rounds.outcome("slow")
        robust = doubly_robust(outcome.y, outcome.q, weights)
        error = normal_errors(rounds, weights)["slow"]
        normal += robust.mean() + ONE_SIDED * error <= limit
    return row_of(
        "a candidate at its very limit ships, by the gate and by a normal interval",
        f"{name}, {logs} logs of {n} rounds",
        checks=[check_of("false ships", ours / logs, most(ALPHA, logs))],
        columns=f"{100 * ours / logs:.1f} %  {100 * normal / logs:.1f} %",
        false=ours / logs,
        normal=normal / logs,
    )


def measure(sizes: Sizes) -> list[Row]:
    """Bounds from three kinds of logs, gates, and candidates at their limit."""
    rules = logging_rules()
    with warnings.catch_warnings():
        # a chance warning of one log says nothing of the others
        warnings.filterwarnings("ignore", message="evaluate: the mean weight")
        rows = [
            bands(name, rule, n, logs)
            for name, rule in rules.items()
            for n, logs in zip(sizes.rounds, sizes.logs, strict=True)
        ]
    rows += [
        gates(n, logs, sizes.candidates)
        for n, logs in zip(sizes.rounds, sizes.gates, strict=True)
    ]
    return rows + [edge(name, rule, *sizes.edges) for name, rule in rules.items()]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv, absent())


if __name__ == "__main__":
    main()
