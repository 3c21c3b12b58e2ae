"""A Thompson round beside a UCB round: free-form sets and boxes.

    python benchmarks/speed/thompson.py [--quick] [--json FILE]

Goal: a round of CKB-TS, two costs, takes at most three rounds of CKB-UCB on the same
data. Means of 64 rounds (boxes: 16), for on a free-form set one round in 32 computes
the cosines of a lot; the dearest round stands beside it. Beliefs are a Matern-5/2 that
the three functions share, and ``cb.GP.default``, fitted once and then kept, one each.
Times are the process's own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common.case import matern
from benchmarks.common.report import Row, row_of, say
from benchmarks.common.report import main as report_main
from benchmarks.speed.box import world

F64 = torch.float64
BETA, NOISE, LENGTH, DIM = 2.0, 1e-2, 0.3, 4
MOST = 3.0  # Thompson rounds in UCB rounds


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    sets: tuple[int, ...] = (2_000, 10_000, 100_000)
    seen: tuple[int, ...] = (30, 200)
    dims: tuple[int, ...] = (2, 4, 6, 10)
    rounds: int = 64
    box_rounds: int = 16
    trials: int = 10


QUICK = Sizes((2_000,), (30,), (2,), 32, 4, 2)


def policy_of(
    actions: cb.Finite | cb.Box,
    explore: cb.UCB | cb.TS,
    seen: int,
    default: bool,
    trials: int | None,
) -> cb.CKB:
    """CKB that has seen ``seen`` random actions, with noise."""
    gp = cb.GP(matern(LENGTH * actions.dim**0.5), noise=NOISE)
    if default:
        gp = cb.GP.default(actions)
        gp.refit_every = None
    policy = cb.CKB(
        actions,
        reward=gp,
        costs=[gp, gp],
        explore=explore,
        step=0.5,
        cap=20.0,
        trials=trials,
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(seen, actions.dim, generator=generator, dtype=F64)
    if isinstance(actions, cb.Finite):
        x = actions.points(torch.randint(actions.size, (seen,), generator=generator))
    y = world(x)
    y += NOISE**0.5 * torch.randn(y.shape, generator=generator, dtype=F64)
    policy.observe(x=x, reward=y[:, 0], cost=y[:, 1:])
    if default:
        policy.refit()
    return policy


def seconds(policy: cb.CKB, rounds: int) -> Tensor:
    """What each ``ask`` takes; two come before and are not counted."""
    took = []
    for _ in range(rounds + 2):
        start = time.process_time()
        choice = policy.ask()
        took.append(time.process_time() - start)
        y = world(choice.x)
        policy.tell(choice, reward=y[..., 0], cost=y[..., 1:])
    return torch.tensor(took[2:])


def beside(
    section: str,
    actions: cb.Finite | cb.Box,
    seen: int,
    rounds: int,
    default: bool = False,
    trials: int | None = None,
) -> list[Row]:
    """A row for UCB and one for Thompson sampling."""
    belief = "GP.default" if default else "one kernel"
    what = f"{belief}, {seen} seen" + ("" if trials is None else f", {trials} trials")
    say(f"{section}: {what}")
    rows: list[Row] = []
    means: list[float] = []
    for explore in (cb.UCB(BETA), cb.TS(1.0)):
        took = seconds(policy_of(actions, explore, seen, default, trials), rounds)
        mean, most = float(took.mean()), 1e3 * float(took.max())
        means.append(mean)
        ratio = mean / means[0] if rows else None
        goal = ("<=", MOST) if rows else None
        name = "TS" if rows else "UCB"
        note = f"the dearest round {most:.1f} ms"
        rows.append(
            row_of(
                section,
                f"{name}, {what}",
                mean,
                ours=True,
                ratio=ratio,
                goal=goal,
                note=note,
            )
        )
    return rows


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    rows = []
    for size in sizes.sets:
        generator = torch.Generator().manual_seed(1)
        actions = cb.Finite(torch.rand(size, DIM, generator=generator, dtype=F64))
        section = f"{size:,} actions in {DIM} dimensions"
        for seen in sizes.seen:
            for default in (False, True):
                rows += beside(section, actions, seen, sizes.rounds, default)
        if size == sizes.sets[0]:
            seen = sizes.seen[0]
            rows += beside(section, actions, seen, sizes.rounds, False, sizes.trials)
    for dim in sizes.dims:
        box = cb.Box([0.0] * dim, [1.0] * dim)
        for seen in sizes.seen:
            for default in (False, True):
                section = f"a box of {dim} dimensions"
                rows += beside(section, box, seen, sizes.box_rounds, default)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
