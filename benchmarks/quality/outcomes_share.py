"""Whether ``share=`` and ``confidence=`` keep limits as often as they state.

    python benchmarks/quality/outcomes_share.py [--quick] [--json FILE]

On 100 random problems, ten kinds of ``stated.py`` (1 to 6 dimensions, 1 to 3 costs, 2
to 60 % of the actions within all limits) with ten seeds each, under ``cb.GP.default``.
A round counts as within by its noiseless costs. The rows give

* kept: the share of rounds within all limits, the mean over all runs, and after the
  tenth round;
* regret: a round, against the best action within limits, in deviations of the reward.
  It is negative where a policy plays what is better and exceeds a limit;
* runs: the share of runs that kept at least the stated share of their rounds,
  exploration included, and of their rounds after the tenth;
* sure: how many rounds after the tenth had an action of the stated confidence (in the
  others the likeliest was played), and how many of these were within.

Where 2 % of the actions keep the limits, many rounds pass before one is found: those
20 problems have rows of their own. ``ask(confidence=0.9)`` claims nine of ten rounds
wherever an action is sure enough.

``--quick`` takes two kinds, few rounds and two seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common.report import Row, row_of, say
from benchmarks.common.report import main as report_main
from benchmarks.common.stated import PROBLEMS, found

EARLY = 10  # rounds before beliefs have learned a little
RULES: dict[str, Callable[..., Any]] = {"CKB": cb.CKB, "RPOL": cb.RPOL}


@dataclass(frozen=True)
class Demand:
    """How often limits are to be kept: a share of the rounds, or in each with a chance.

    Args:
        share: of a policy; ``None``: none.
        confidence: of each ``ask``; ``None``: none.
    """

    share: float | None = None
    confidence: float | None = None

    def __str__(self) -> str:
        if self.confidence is not None:
            return f"confidence={self.confidence:g}"
        return "no share" if self.share is None else f"share={self.share:g}"


DEMANDS = Demand(), Demand(0.8), Demand(0.9), Demand(confidence=0.9)


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    kinds: tuple[str, ...] = tuple(name for name in PROBLEMS if name[:3] == "gp ")
    rounds: int = 50
    seeds: range = range(10)


QUICK = Sizes(("gp 1 1 0.25", "gp 2 2 0.25"), 12, range(2))


class Runs(NamedTuple):
    """The runs of a policy on ``n`` problems.

    Args:
        within: the rounds within all limits, ``(n, T)``.
        sure: the rounds in which an action was believed to be, ``(n, T)``.
        regret: a round, ``(n,)``.
        seconds: a round.
    """

    within: Tensor
    sure: Tensor
    regret: Tensor
    seconds: float


def asking(rule: Any, confidence: float | None) -> Any:
    """Return a rule that asks with a confidence."""
    if confidence is None:
        return rule

    class Confident(rule):  # type: ignore[misc]
        def ask(self, **question: Any) -> Any:
            return super().ask(confidence=confidence, **question)

    return Confident


def runs_of(kind: str, seeds: range, rule: str, demand: Demand, rounds: int) -> Runs:
    """Return the runs of a rule on the problems of one kind."""
    stated = found(kind, seeds)
    if stated is None:
        raise ValueError(f"there is no problem {kind!r}")
    world, belief = stated.world, cb.GP.default(stated.world.actions)
    policy = asking(RULES[rule], demand.confidence)(
        world.actions,
        reward=belief,
        costs=[belief] * world.m,
        thresholds=world.thresholds,
        trials=world.trials,
        share=demand.share,
    )
    run = cb.simulate(policy, world, rounds, progress=False)
    within = (run.true_costs <= 0).all(-1).double()
    lost = (run.optimum - run.true_rewards) / stated.scale.unsqueeze(-1)
    return Runs(within, ~run.infeasible, lost.mean(-1), run.seconds_per_round)


def measure(sizes: Sizes) -> list[Row]:
    """Return all rows."""
    narrow = [kind for kind in sizes.kinds if kind.endswith(" 0.02")]
    others = [kind for kind in sizes.kinds if kind not in narrow]
    rows = []
    for rule in RULES:
        for group, kinds in (("10 % and more feasible", others), ("2 %", narrow)):
            for demand in DEMANDS if kinds else ():
                section = f"{rule}, {len(kinds) * len(sizes.seeds)} problems, {group}"
                say(f"{section}: {demand}")
                parts = [
                    runs_of(kind, sizes.seeds, rule, demand, sizes.rounds)
                    for kind in kinds
                ]
                rows.append(averaged(section, demand, parts))
    return rows


def averaged(section: str, demand: Demand, parts: Sequence[Runs]) -> Row:
    """Return the row of one demand."""
    within, sure, regret = (
        torch.cat(column) for column in list(zip(*parts, strict=True))[:3]
    )
    late = slice(min(EARLY, within.shape[1] // 2), None)
    kept, after = within.mean(-1), within[:, late].mean(-1)
    account = {
        "kept": float(kept.mean()),
        "least": float(kept.min()),
        "late": float(after.mean()),
        "regret": float(regret.mean()),
    }
    columns = (
        f"kept {account['kept']:.3f}, least {account['least']:.2f}, after 10 "
        f"{account['late']:.3f}; regret {account['regret']:+.3f}"
    )
    stated = demand.share or demand.confidence
    if stated is not None:
        for name, part in (("runs", kept), ("runs late", after)):
            account[name] = float((part >= stated - 1e-9).double().mean())
        columns += (
            f"; runs {account['runs']:4.0%}, after 10 {account['runs late']:4.0%}"
        )
    if demand.confidence is not None:
        some = sure[:, late]
        account["sure"] = float(some.double().mean())
        account["right"] = float(within[:, late][some].mean())
        columns += f"; sure {account['sure']:.3f}, of these {account['right']:.3f} kept"
    seconds = sum(part.seconds for part in parts) / len(parts)
    return row_of(section, str(demand), seconds, columns=columns, account=account)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
