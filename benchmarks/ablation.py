"""What each part of the default beliefs is worth to a policy, alone and together.

    python benchmarks/ablation.py [--quick] [--json FILE]

RPOL with Thompson sampling plays constrained functions on boxes for 60 evaluations, on
the problems of ``constrained_functions.py`` that chose no setting and start points like
there. Four things differ from how it was before ``cb.GP.default`` learned early:

* fits: at 5 observations, then after a fifth more, under priors of the lengthscales of
  its own; before, at 20 and 40 under BoTorch's;
* mean: a learned constant; before, the average of what was told;
* noise: a prior that lets it be nothing; before, BoTorch's LogNormal(-4, 1);
* limit: draws half as wide, with a margin of one deviation (``cb.TS()``); before,
  ``cb.TS(1.0, margin=0.0)``.

Columns, each a mean over problems of the median over seeds: the best feasible point's
regret and that of the point named, geometric means in shares of the reward's range
(1e-6 at least, 1 where there is no such point); violation a round in deviations of the
costs over the box, until evaluation 20 and after; rounds above a limit; the problems
without a feasible point; the processor's seconds of a run.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import cbandit as cb
from box_rivals import Asked
from constrained_functions import regret, row
from constrained_problems import CHOOSING, PROBLEMS, Problem
from learning import belief
from report import Row, row_of, say
from report import main as report_main

PARTS = ("fits", "mean", "noise", "limit")
LEAST, NONE = 1e-6, 1.0  # regrets: what counts as none, and no feasible point


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    problems: tuple[str, ...] = tuple(name for name in PROBLEMS if name not in CHOOSING)
    seeds: tuple[int, ...] = (0, 1)
    evaluations: int = 60
    early: int = 20


QUICK = Sizes(("Gramacy",), (0,), 12, 9)

VARIANTS: dict[str, tuple[str, ...]] = {
    "as before": (),
    **{f"{part} alone": (part,) for part in PARTS},
    **{f"without {part}": tuple(p for p in PARTS if p != part) for part in PARTS},
    "all, cb.GP.default": PARTS,
}


class Ablated(Asked):
    """RPOL with Thompson sampling in which only some ``parts`` are as by default."""

    def __init__(self, parts: Sequence[str], problem: Problem, seed: int) -> None:
        learned = [part for part in parts if part in ("mean", "noise")]
        learned += ["early", "lengthscales"] if "fits" in parts else []
        gp = belief(problem.box, learned)
        # half as wide, with a margin: what cb.TS() is there
        explore = cb.TS(0.5, margin=1.0) if "limit" in parts else cb.TS(1.0, margin=0.0)
        self.policy = cb.RPOL(
            problem.box,
            reward=gp,
            costs=[gp] * problem.m,
            explore=explore,
            seed=seed,
        )
        self.choice: Any = None
        self.started = False


def played(problem: Problem, parts: Sequence[str], seed: int, sizes: Sizes) -> Row:
    """Return one run's figures."""
    start = problem.start(seed)
    told = problem.values(start)
    player = Ablated(parts, problem, seed)
    player.hear(start, told)
    began = time.process_time()
    while len(told) < sizes.evaluations:
        x = problem.box.inside(player.next()).unsqueeze(0)
        y = problem.values(x)
        player.hear(x, y)
        told = torch.cat([told, y])
    seconds = time.process_time() - began
    over = (told[len(start) :, 1:] / problem.spread).clamp_min(0).sum(-1)
    first = max(0, sizes.early - len(start))
    named = problem.values(problem.box.inside(player.best()).unsqueeze(0))
    return {
        "regret": _bounded(regret(problem, told)),
        "named": _bounded(regret(problem, row(named[0].tolist()))),
        "early": float(over[:first].mean()) if first else math.nan,
        "late": float(over[first:].mean()),
        "over": float((over > 0).double().mean()),
        "none": float(not math.isfinite(regret(problem, told))),
        "seconds": seconds,
    }


def _bounded(regret: float) -> float:
    return min(max(regret, LEAST), NONE)


def _middle(runs: Sequence[Row], key: str) -> float:
    """Return the median over seeds, the higher of two middles; NaN where unknown."""
    values: list[float] = sorted(run[key] for run in runs)
    return values[len(values) // 2]


def summed(section: str, what: str, by_problem: dict[str, list[Row]]) -> Row:
    """Return one variant's line."""
    mid = {
        key: [_middle(runs, key) for runs in by_problem.values()]
        for key in next(iter(by_problem.values()))[0]
    }
    geometric = {
        key: math.exp(statistics.mean(map(math.log, mid[key])))
        for key in ("regret", "named")
    }
    early = [value for value in mid["early"] if not math.isnan(value)]
    columns = (
        f"regret {geometric['regret']:7.1e} named {geometric['named']:7.1e}  "
        f"violation {statistics.mean(early or [math.nan]):6.3f}, "
        f"{statistics.mean(mid['late']):6.3f} after  "
        f"over {statistics.mean(mid['over']):4.0%}  "
        f"nothing feasible {sum(mid['none']):.0f}  "
        f"{statistics.mean(mid['seconds']):5.1f} s"
    )
    return row_of(section, what, columns=columns, runs=by_problem)


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    warnings.simplefilter("ignore")
    runs: dict[str, dict[str, list[Row]]] = {what: {} for what in VARIANTS}
    for name in sizes.problems:
        problem = PROBLEMS[name](name)
        for what, parts in VARIANTS.items():
            say(f"{name}: {what}")
            runs[what][name] = [played(problem, parts, s, sizes) for s in sizes.seeds]
    section = (
        f"RPOL-TS, {len(sizes.problems)} problems, {len(sizes.seeds)} seeds, "
        f"{sizes.evaluations} evaluations; violation until {sizes.early}, and after"
    )
    return [summed(section, *each) for each in runs.items()]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
