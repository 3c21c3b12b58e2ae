"""Whether ``share=`` keeps the share of rounds within all limits that it states.

    python benchmarks/outcomes_share.py [--quick] [--json FILE]

On 100 random problems, ten kinds of ``stated.py`` (1 to 6 dimensions, 1 to 3 costs, 2
to 60 % of the actions within all limits) with ten seeds each, under ``cb.GP.default``.
A round counts as within by its noiseless costs. The rows give

* kept: the share of rounds within all limits, the mean over all runs;
* runs: the share of runs that kept at least the stated one over all rounds, exploration
  included, and after the tenth;
* regret: a round, against the best action within limits, in deviations of the reward.
  It is negative where a policy plays what is better and exceeds a limit.

Where 2 % of the actions keep the limits, many rounds pass before one is found: those
20 problems have rows of their own.

``--quick`` takes two kinds, few rounds and two seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import cbandit as cb
from report import Row, row_of, say
from report import main as report_main
from stated import PROBLEMS, found

EARLY = 10  # rounds that the second count of runs leaves out
RULES: dict[str, Callable[..., Any]] = {"CKB": cb.CKB, "RPOL": cb.RPOL}
SHARES = (None, 0.8, 0.9)


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    kinds: tuple[str, ...] = tuple(name for name in PROBLEMS if name[:3] == "gp ")
    rounds: int = 50
    seeds: range = range(10)


QUICK = Sizes(("gp 1 1 0.25", "gp 2 2 0.25"), 12, range(2))
Part = tuple[torch.Tensor, torch.Tensor, float]


def run_of(
    kind: str, seeds: range, rule: str, share: float | None, rounds: int
) -> Part:
    """Return which rounds were within all limits, regret, and seconds a round."""
    stated = found(kind, seeds)
    if stated is None:
        raise ValueError(f"there is no problem {kind!r}")
    world, belief = stated.world, cb.GP.default(stated.world.actions)
    policy = RULES[rule](
        world.actions,
        reward=belief,
        costs=[belief] * world.m,
        thresholds=world.thresholds,
        trials=world.trials,
        share=share,
    )
    run = cb.simulate(policy, world, rounds, progress=False)
    within = (run.true_costs <= 0).all(-1).double()
    lost = (run.optimum - run.true_rewards) / stated.scale.unsqueeze(-1)
    return within, lost.mean(-1), run.seconds_per_round


def measure(sizes: Sizes) -> list[Row]:
    """Return all rows."""
    narrow = [kind for kind in sizes.kinds if kind.endswith(" 0.02")]
    others = [kind for kind in sizes.kinds if kind not in narrow]
    rows = []
    for rule in RULES:
        for group, kinds in (("10 % and more feasible", others), ("2 %", narrow)):
            for share in SHARES if kinds else ():
                section = f"{rule}, {len(kinds) * len(sizes.seeds)} problems, {group}"
                say(f"{section}: share {share}")
                parts = [
                    run_of(kind, sizes.seeds, rule, share, sizes.rounds)
                    for kind in kinds
                ]
                rows.append(averaged(section, share, parts))
    return rows


def averaged(section: str, share: float | None, parts: Sequence[Part]) -> Row:
    """Return the row of one share."""
    within = torch.cat([part[0] for part in parts])
    regret = float(torch.cat([part[1] for part in parts]).mean())
    kept, late = within.mean(-1), within[:, min(EARLY, within.shape[1] // 2) :].mean(-1)
    account = {"kept": float(kept.mean()), "least": float(kept.min()), "regret": regret}
    columns = f"kept {kept.mean():.3f}, least {kept.min():.2f}; regret {regret:+.3f}"
    if share is not None:
        for name, each in (("runs", kept), ("late", late)):
            account[name] = float((each >= share - 1e-9).double().mean())
        columns += f"; runs {account['runs']:4.0%}, after 10 {account['late']:4.0%}"
    what = "no share" if share is None else f"share={share:g}"
    seconds = sum(part[2] for part in parts) / len(parts)
    return row_of(section, what, seconds, columns=columns, account=account)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
