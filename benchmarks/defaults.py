"""How defaults were chosen: CKB's step, cap and widths; what RPOL and CONFIG explore.

    python benchmarks/defaults.py [--quick] [--json FILE] [--reported]

On the stated problems (``stated.py``). Candidates are compared on some seeds, under a
Matern belief whose lengthscale is known, standardised; the defaults are then reported
on other seeds, under that belief and under ``cb.GP.default``.

* CKB: the share of seeds whose noiseless average keeps every limit after the last
  round, over the problems of which a tenth or more is feasible, and on the worst of
  them; regret a round against the best distribution, in deviations of the reward. The
  default is the candidate of least regret that keeps the average in 90 % of all seeds,
  and on every such problem in 70 %, under either belief. (The
  last tables are of other dual steps, and of where a step or a cap is said.)
* RPOL and CONFIG: hard violation a round in deviations of the costs, and by how much
  the best feasible action tried, and the one recommended, are below the optimum, in
  deviations of the reward (the mean over problems).

``--quick`` takes two problems, few rounds and three seeds; ``--reported`` plays only
the defaults, on the other seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import MaternKernel
from torch import Tensor

import cbandit as cb
from report import Row, row_of, say
from report import main as report_main
from stated import PROBLEMS, Stated, found

ENOUGH = 0.1  # the feasible share from which an average can be expected to be kept
GOAL = 0.9  # of all seeds


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    problems: tuple[str, ...] = tuple(PROBLEMS)
    rounds: int = 200
    choosing: range = range(10)
    reporting: range = range(20, 40)


QUICK = Sizes(("gp 2 2 0.25", "ConstrainedGramacy"), 12, range(3), range(3, 6))

USUAL = {"width": 1.0, "step": 0.5, "cap": 20.0, "dual_beta": -1.5}
CKB: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "dual by the score's own estimate": {"dual_beta": "score"},
    "dual by the mean": {"dual_beta": 0.0},
    "dual by mean + 1 deviation": {"dual_beta": -1.0},
    "dual by mean + 2 deviations": {"dual_beta": -2.0},
    "step 0.1": {"step": 0.1},
    "step 0.3": {"step": 0.3},
    "step 1": {"step": 1.0},
    "cap 5": {"cap": 5.0},
    "cap 50": {"cap": 50.0},
    "width 0.5": {"width": 0.5},
    "width 2": {"width": 2.0},
}
SAID: list[tuple[str, dict[str, Any]]] = [
    ("step 0.1", {"step": 0.1}),
    ("step 1", {"step": 1.0}),
    ("cap 5", {"cap": 5.0}),
    ("cap 50", {"cap": 50.0}),
]
"""What a user may say, the rest being the defaults."""
HARD: dict[str, Callable[..., cb.Policy]] = {
    **{
        f"RPOL-UCB, width {w:g}": partial(cb.RPOL, explore=cb.UCB(w))
        for w in (0.5, 1.0, 2.0)
    },
    "RPOL-TS, width 1": partial(cb.RPOL, explore=cb.TS(1.0)),
    **{
        f"CONFIG, width {w:g}": partial(cb.baselines.CONFIG, explore=cb.UCB(w))
        for w in (0.5, 1.0, 2.0)
    },
    "CONFIG-TS, width 1": partial(cb.baselines.CONFIG, explore=cb.TS(1.0)),
}


def ckb(width: float, **own: Any) -> Callable[..., cb.Policy]:
    """Return CKB with these settings."""
    return partial(cb.CKB, explore=cb.UCB(width), **own)


def known(stated: Stated) -> cb.GP:
    """Return a belief whose lengthscale is given: half the diagonal of the set."""
    x = stated.world.actions.block(0, stated.world.actions.size)
    kernel = MaternKernel(nu=2.5, ard_num_dims=x.shape[-1]).double()
    span = x.amax(0) - x.amin(0)
    kernel.lengthscale = 0.25 * x.shape[-1] ** 0.5 * span
    return cb.GP(kernel, noise=0.05, standardize=True)


def learned(stated: Stated) -> cb.GP:
    """Return the belief of those who know nothing."""
    return cb.GP.default(stated.world.actions)


def played(
    stated: Stated, make: Callable[..., cb.Policy], belief: cb.GP, rounds: int
) -> tuple[cb.Run, cb.Policy]:
    """Return a run of all seeds at once, and the policy after it."""
    world = stated.world
    policy = make(
        world.actions,
        reward=belief,
        costs=[belief] * world.m,
        thresholds=world.thresholds,
        trials=world.trials,
    )
    return cb.simulate(policy, world, rounds, progress=False), policy


def soft(stated: Stated, run: cb.Run) -> dict[str, float]:
    """Return whether averages are kept, and the regret."""
    kept = (run.true_costs.mean(1) <= 0).all(-1).double()
    lost = (run.stochastic_optimum - run.true_rewards) / stated.scale.unsqueeze(-1)
    return {
        "feasible": stated.feasible,
        "kept": float(kept.mean()),
        "regret": float(lost.mean()),
        "seconds": run.seconds_per_round,
    }


def hard(stated: Stated, run: cb.Run, policy: Any) -> dict[str, float]:
    """Return hard violation, and how good the best actions are."""
    over = run.true_costs / stated.cost_scale.unsqueeze(1)
    index = policy.recommend(0.5).index.reshape(-1, 1)
    played = torch.zeros(0) if run.index is None else run.index
    f, g = _at(stated, index)
    optimum = run.optimum[:, -1]
    tried = run.true_rewards.where((run.true_costs <= 0).all(-1), -torch.inf).amax(-1)
    worst = stated.world.f.expand(len(optimum), -1).amin(-1)
    named = torch.where((g <= 0).all(-1), f, worst)
    return {
        "feasible": stated.feasible,
        "violation": float(over.clamp_min(0).sum(-1).mean()),
        "tried": float(((optimum - tried.maximum(worst)) / stated.scale).mean()),
        "named": float(((optimum - named) / stated.scale).mean()),
        "distinct": statistics.mean(len(set(row)) for row in played.tolist()),
        "seconds": run.seconds_per_round,
    }


def _at(stated: Stated, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rewards ``(n,)`` and excesses ``(n, m)`` of one action a seed."""
    world, n = stated.world, len(index)
    f, g = world.f.expand(n, -1), world.g.expand(n, -1, -1)
    costs = g.gather(-1, index.unsqueeze(1).expand(-1, world.m, 1))[..., 0]
    return f.gather(-1, index)[:, 0], costs - torch.as_tensor(world.thresholds)


def averaged(section: str, name: str, over: Sequence[dict[str, float]]) -> Row:
    """Return one candidate's line."""
    wide = [each for each in over if each["feasible"] >= ENOUGH - 1e-3]
    mean = {key: statistics.mean(each[key] for each in wide) for key in wide[0]}
    if "kept" in mean:
        worst = min(each["kept"] for each in wide)
        columns = (
            f"kept {mean['kept']:6.1%}, at worst {worst:4.0%}; "
            f"regret {mean['regret']:+.3f}"
        )
    else:
        columns = (
            f"violation {mean['violation']:.3f}; below the optimum: tried "
            f"{mean['tried']:.3f}, named {mean['named']:.3f}; "
            f"{mean['distinct']:.0f} distinct"
        )
    return row_of(section, name, columns=columns, problems=list(over))


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    warnings.simplefilter("ignore")
    if not sizes.choosing:
        return reported(sizes)
    first = f"seeds {_words(sizes.choosing)}, {sizes.rounds} rounds, known lengthscales"
    soft_rows: dict[str, list[dict[str, float]]] = {name: [] for name in CKB}
    hard_rows: dict[str, list[dict[str, float]]] = {name: [] for name in HARD}
    for problem in sizes.problems:
        say(problem)
        stated = found(problem, sizes.choosing)
        if stated is None or stated.feasible == 0:
            continue
        belief = known(stated)
        for name, own in CKB.items():
            run, _ = played(stated, ckb(**(USUAL | own)), belief, sizes.rounds)
            soft_rows[name].append(soft(stated, run))
        for name, make in HARD.items():
            run, policy = played(stated, make, belief, sizes.rounds)
            hard_rows[name].append(hard(stated, run, policy))
    rows = [averaged(f"CKB, {first}", *each) for each in soft_rows.items()]
    rows += [averaged(f"hard limits, {first}", *each) for each in hard_rows.items()]
    return rows + reported(sizes)


def reported(sizes: Sizes) -> list[Row]:
    """Return the defaults on seeds that chose nothing, a line a problem."""
    rows = []
    kinds: dict[str, tuple[Callable[..., cb.Policy], Any]] = {
        "nothing set, known lengthscales": (cb.CKB, known),
        "nothing set": (cb.CKB, learned),
        "dual by mean + 1 deviation": (ckb(**(USUAL | {"dual_beta": -1.0})), learned),
        **{f"{each} said": (partial(cb.CKB, **own), learned) for each, own in SAID},
    }
    seeds = sizes.reporting
    for title, (make, belief_of) in kinds.items():
        under = "" if belief_of is known else ", cb.GP.default"
        section = f"CKB with {title}{under}, seeds {_words(seeds)}"
        over = []
        for problem in sizes.problems:
            say(f"{title}: {problem}")
            stated = found(problem, seeds)
            if stated is None or stated.feasible == 0:
                continue
            run, _ = played(stated, make, belief_of(stated), sizes.rounds)
            each = soft(stated, run)
            over.append(each)
            columns = f"kept {each['kept']:4.0%}; regret {each['regret']:+.3f}"
            what = f"{problem}, {stated.feasible:.1%} feasible"
            rows.append(row_of(section, what, columns=columns, account=each))
        if over:
            rows.append(averaged(section, f"all of {ENOUGH:.0%} and more", over))
    return rows


def _words(seeds: range) -> str:
    return f"{seeds[0]} to {seeds[-1]}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--reported", action="store_true")
    given, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)

    def measured(sizes: Sizes) -> list[Row]:
        return measure(replace(sizes, choosing=range(0)) if given.reported else sizes)

    report_main(__file__, __doc__, measured, Sizes(), QUICK, rest)


if __name__ == "__main__":
    main()
