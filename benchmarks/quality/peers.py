"""Best points and violations beside BoTorch's and Optuna's, on the stated problems.

    python benchmarks/quality/peers.py [--quick] [--json FILE]

On the problems of ``stated.py``, on seeds that chose no default, every contender
is told the same four random actions, and then plays one action a round:

* ours: CKB, RPOL and CONFIG with nothing set, and RPOL and CONFIG with Thompson
  sampling, under ``cb.GP.default``;
* BoTorch under the same beliefs, fitted at the same rounds: ``qLogNEI`` and
  ``LogConstrainedEI`` over the set, and SCBO's constrained Thompson sampling over 1 000
  of its actions, with and without a trust region;
* Optuna's ``TPESampler`` and ``GPSampler`` on the continuous box, whose suggestions
  are moved to the nearest action of the set;
* uniform random actions.

Counted after the last round, the mean over seeds and its standard error, in deviations
of the functions over the set: how far the best feasible action tried is below the
optimum, and the recommended one (what is not feasible counts as the worst reward);
regret, which an action over a limit can make negative, and hard and soft violation a
round; the share of rounds in violation and of recommendations that are feasible;
seconds a round, fits included. ``--quick`` takes two problems, few rounds, one seed.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.report import Row, row_of, say
from benchmarks.common.report import main as report_main
from benchmarks.common.rival_rules import RULES, Rule, Seen
from benchmarks.common.stated import NOISE, PROBLEMS, Stated, found

FIRST = 4  # random actions that all are told


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    problems: tuple[str, ...] = tuple(PROBLEMS)
    rules: tuple[str, ...] = tuple(RULES)
    rounds: int = 50
    seeds: range = range(40, 43)


QUICK = Sizes(
    ("gp 2 1 0.1", "ConstrainedGramacy"),
    ("RPOL", "CONFIG-TS", "BoTorch LogConstrainedEI", "Optuna TPE", "random"),
    6,
    range(40, 41),
)


def told(stated: Stated, trial: int, index: Tensor, draws: torch.Generator) -> Seen:
    """Return what these actions give in one trial, with noise."""
    f, g = truth(stated, trial, torch.arange(stated.world.actions.size))
    every = torch.cat([f.unsqueeze(-1), g], -1)
    std = NOISE * (every.amax(0) - every.amin(0))
    z = torch.randn(len(index), len(std), generator=draws, dtype=torch.float64)
    y = every[index] + std * z
    return Seen(index, y[:, 0], y[:, 1:] + limits_of(stated, trial))


def limits_of(stated: Stated, trial: int) -> Tensor:
    """Return one trial's limits ``(m,)``."""
    limits = torch.as_tensor(stated.world.thresholds, dtype=torch.float64)
    return limits.expand(len(stated.scale), stated.world.m)[trial]


def truth(stated: Stated, trial: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return rewards ``(n,)`` and excesses ``(n, m)`` of actions in one trial."""
    world = stated.world
    n = len(stated.scale)
    f, g = world.f.expand(n, -1)[trial], world.g.expand(n, -1, -1)[trial]
    return f[index], g[:, index].mT - limits_of(stated, trial)


def play(stated: Stated, rule: Rule, trial: int, rounds: int) -> dict[str, float]:
    """Play one rule on one seed, and return its account."""
    draws = torch.Generator().manual_seed(1000 + trial)
    size = stated.world.actions.size
    first = torch.randperm(size, generator=draws)[:FIRST]
    player = rule(stated.world.actions, limits_of(stated, trial), trial)
    player.hear(told(stated, trial, first, draws))
    played, start = [], time.perf_counter()
    for _ in range(rounds):
        index = player.next()
        player.hear(told(stated, trial, torch.tensor([index]), draws))
        played.append(index)
    seconds = (time.perf_counter() - start) / rounds
    every = torch.tensor([*first.tolist(), *played, player.best()])
    f, g = truth(stated, trial, every)
    return account(stated, trial, f, g) | {
        "distinct": float(len(set(played))),
        "seconds": seconds,
    }


def account(stated: Stated, trial: int, f: Tensor, g: Tensor) -> dict[str, float]:
    """Count what was played; the last action is what was recommended."""
    every, excess = truth(stated, trial, torch.arange(stated.world.actions.size))
    kept = (excess <= 0).all(-1)
    optimum, worst = every[kept].amax(), every.amin()
    value = torch.where((g <= 0).all(-1), f, worst)
    scale, over = stated.scale[trial], g[FIRST:-1] / stated.cost_scale[trial]
    return {
        "tried": float((optimum - value[:-1].amax()) / scale),
        "named": float((optimum - value[-1]) / scale),
        "named feasible": float((g[-1] <= 0).all()),
        "regret": float((optimum - f[FIRST:-1]).mean() / scale),
        "hard": float(over.clamp_min(0).sum(-1).mean()),
        "soft": float(over.mean(0).clamp_min(0).sum()),
        "in violation": float((over > 0).any(-1).double().mean()),
    }


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for name in sizes.problems:
        stated = found(name, sizes.seeds)
        if stated is None or stated.feasible == 0:
            continue
        section = f"{name}, {stated.feasible:.1%} feasible, {sizes.rounds} rounds"
        for title in sizes.rules:
            say(f"{name}: {title}")
            runs = [
                play(stated, RULES[title], trial, sizes.rounds)
                for trial in range(len(sizes.seeds))
            ]
            columns = columns_of(runs)
            rows.append(row_of(section, title, columns=columns, name=name, runs=runs))
    return rows + averaged(rows) + compared(rows)


def spread(runs: Sequence[dict[str, float]], key: str) -> tuple[float, float]:
    """Return the mean over seeds and its standard error."""
    values = [each[key] for each in runs]
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.fmean(values), error


def columns_of(runs: Sequence[dict[str, float]]) -> str:
    """Return a contender's line."""
    parts = [
        f"{label} {mean:.3f} +- {error:.3f}"
        for label, key in (
            ("tried", "tried"),
            ("named", "named"),
            ("regret", "regret"),
            ("hard", "hard"),
            ("soft", "soft"),
        )
        for mean, error in [spread(runs, key)]
    ]
    violated, safe = spread(runs, "in violation")[0], spread(runs, "named feasible")[0]
    ms = 1e3 * statistics.median(each["seconds"] for each in runs)
    parts += [f"over {violated:.0%}", f"named kept {safe:.0%}", f"{ms:.1f} ms"]
    return "  ".join(parts)


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each contender: means over the problems, of the mean seed."""
    out = []
    for title in dict.fromkeys(row["what"] for row in rows):
        mine = [row["runs"] for row in rows if row["what"] == title]
        mean = {
            key: statistics.fmean(spread(runs, key)[0] for runs in mine)
            for key in ("tried", "named", "hard", "soft", "in violation")
        }
        columns = "  ".join(f"{key} {value:.3f}" for key, value in mean.items())
        section = f"the mean over {len(mine)} problems"
        out.append(row_of(section, title, columns=columns, means=mean))
    return out


def compared(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each of ours: on how many problems it does as well as qLogNEI.

    As good a best point: at most one standard error (of both) further from the optimum.
    """
    table = {(row["name"], row["what"]): row["runs"] for row in rows}
    peer = "BoTorch qLogNEI"
    names = [name for name, what in table if what == peer]
    out = []
    for title in (each for each in RULES if names and (names[0], each) in table):
        counts: dict[str, Any] = {"tried": 0, "named": 0, "hard": 0}
        times = []
        for name in names:
            own, other = table[name, title], table[name, peer]
            for key in ("tried", "named"):
                (a, s), (b, e) = spread(own, key), spread(other, key)
                counts[key] += a <= b + (s * s + e * e) ** 0.5 + 1e-12
            counts["hard"] += spread(own, "hard")[0] <= spread(other, "hard")[0]
            took = (
                statistics.median(r["seconds"] for r in runs) for runs in (other, own)
            )
            times.append(next(took) / next(took))
        n = len(names)
        columns = (
            f"tried {counts['tried'] / n:4.0%}  named {counts['named'] / n:4.0%}  "
            f"hard violation {counts['hard'] / n:4.0%}  "
            f"{statistics.median(times):.1f} x as fast"
        )
        section = f"beside {peer}: the share of {n} problems on which no worse"
        out.append(row_of(section, title, columns=columns, **counts))
    return out


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
