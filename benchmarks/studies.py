"""A study of a table of 10^4 settings: five policies, fifty trials, a thousand rounds.

    python benchmarks/studies.py [--quick] [--json FILE]

Goal: such a study takes minutes, on one core. The trials of a policy are played as one
programme; hyperparameters are learned in each trial by itself. Seconds are those of the
processor, which depend less than the clock on who else uses the machine; refits and
the account are included. Check: the first two trials, played by themselves, make the
same choices as among all the others.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import torch

import cbandit as cb
from report import Row, check_of, row_of, say
from report import main as report_main

DESIGN = 10  # of four knobs, as in the studies of the command line
ALONE = 60  # rounds that two trials play by themselves


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    levels: int = 10  # of each of four knobs
    trials: int = 50
    horizon: int = 1000


QUICK = Sizes(levels=5, trials=3, horizon=30)


def table(levels: int) -> cb.problems.Table:
    """Return a table of all settings of four knobs, each measured once."""
    generator = np.random.default_rng(0)
    knobs = list(itertools.product(range(1, levels + 1), repeat=4))
    frame = pandas.DataFrame(knobs, columns=["threads", "batch", "cache", "level"])
    a, b, c, d = ((frame - 1) / (levels - 1)).to_numpy().T
    speed = np.sin(3 * a) + 0.5 * np.cos(4 * b) - (c - 0.6) ** 2 + 0.3 * a * d
    noise = generator.normal(size=(2, len(frame)))
    frame["throughput"] = 100 * speed + 2 * noise[0]
    frame["latency"] = 10 + 15 * a + 3 * b + 8 * d * d + 0.5 * noise[1]
    return cb.problems.Table.from_frame(
        frame,
        maximise="throughput",
        limits={"latency": "<= 20"},
        knobs=list(frame.columns[:4]),
        noise={"throughput": 9.0, "latency": 1.0},
    )


def policies(problem: cb.problems.Table, trials: Any) -> dict[str, cb.Policy]:
    """Return the policies of the study, with what a study file gives them."""
    actions, limits = problem.actions, problem.thresholds
    default = cb.GP.default(actions)
    common: dict[str, Any] = {"trials": trials, "seed": 0, "design": DESIGN}
    beliefs: dict[str, Any] = {"reward": default, "costs": {"latency": default}}
    limited = common | {"thresholds": limits}
    return {
        "CKB": cb.CKB(actions, **beliefs, **limited),
        "RPOL": cb.RPOL(actions, **beliefs, **limited),
        "CONFIG": cb.baselines.CONFIG(actions, **beliefs, **limited),
        "GP-UCB": cb.GPUCB(actions, reward=default, **common),
        "Random": cb.baselines.Random(actions, **beliefs, **limited),
    }


def measure(sizes: Sizes) -> list[Row]:
    """Play the study; return a row a policy, and their sum."""
    torch.set_num_threads(1)
    problem, rows, total = table(sizes.levels), [], 0.0
    rounds = min(ALONE, sizes.horizon)
    few = policies(problem, 2)
    for name, policy in policies(problem, sizes.trials).items():
        begun = time.process_time()
        run = cb.simulate(policy, problem, sizes.horizon, progress=False)
        spent = time.process_time() - begun
        alone = cb.simulate(few[name], problem, rounds, progress=False)
        others = (alone.actions != run.actions[:2, :rounds]).any(-1)
        rows.append(
            row_of(
                "study",
                f"{name}: {sizes.trials} trials x {sizes.horizon} rounds, "
                f"{problem.actions.size} settings",
                spent,
                ours=True,
                checks=[check_of("rounds that differ alone", float(others.sum()), 0.0)],
            )
        )
        total += spent
        say(f"{name}: {spent:.1f} CPU s")
    return [*rows, row_of("study", "all five", total, ours=True)]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
