"""One continuous round beside BoTorch's ``optimize_acqf``, on the same model.

    python benchmarks/speed/box.py [--quick] [--json FILE]

Goal: a CKB-UCB round on a Box, 200 distinct points, two costs, takes no longer than
``optimize_acqf`` from as many restarts and raw samples, on BoTorch's own constrained
improvement and on the very score of CKB-UCB; there our point is worth no less than
theirs. The share of climbs that fail stands beside it.

And on the continuous square of ``shi-small-feasible``, 1.7 % of which is feasible,
CKB-UCB, RPOL-UCB and EpochPenalty come within the noise's deviation of the optimum,
-0.25, in 150 rounds: at a point at most 0.01 over the limit, for RPOL comes to stand on
its lower bound.

Each timing is the median of rounds; the contenders take turns.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common.case import matern
from benchmarks.common.internals import starts_in
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main
from benchmarks.common.timing import clocked, in_a_row

BETA, NOISE, LENGTH = 2.0, 1e-2, 0.3
RAW = 1024  # the points that climbs start from are the best of so many
SHORT = 1e-3  # of the score's range, that our point may fall short of theirs
OPTIMUM, DEVIATION = -0.25, 0.1  # of the small feasible set; of the noise there
NEAR = 0.01
REACHING = ("CKB-UCB", "RPOL-UCB", "EpochPenalty")


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    dims: tuple[int, ...] = (2, 4, 6)
    distinct: int = 200
    rounds: int = 9
    seeds: int = 3
    reaching: int = 150  # rounds on the small feasible set
    rivals: bool = True
    short: float = SHORT


QUICK = Sizes(dims=(2,), distinct=50, rounds=3, seeds=1)


def world(x: Tensor) -> Tensor:
    """Reward and two costs ``(*b, 3)`` of ``x (*b, d)``."""
    f = torch.sin(5 * x[..., 0]) + x[..., 1:].mean(-1)
    g = [x.sum(-1) / x.shape[-1] - 0.5, torch.cos(4 * x[..., -1]) - x[..., 0]]
    return torch.stack([f, *g], -1)


def policy_of(dim: int, distinct: int) -> cb.CKB:
    """CKB-UCB that has seen ``distinct`` random points, with noise."""
    gp = cb.GP(matern(LENGTH * dim**0.5), noise=NOISE)
    policy = cb.CKB(
        cb.Box([0.0] * dim, [1.0] * dim),
        reward=gp,
        costs=[gp, gp],
        explore=cb.UCB(BETA),
        step=0.5,
        cap=20.0,
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(distinct, dim, generator=generator, dtype=torch.float64)
    y = world(x)
    y += NOISE**0.5 * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    policy.observe(x=x, reward=y[:, 0], cost=y[:, 1:])
    return policy


def beside(sizes: Sizes, dim: int) -> list[Row]:
    """Rounds of one run, the first not counted, and the same by ``optimize_acqf``."""
    section = f"a CKB-UCB round on a Box, d = {dim}, {sizes.distinct} points, two costs"
    say(section)
    policy = policy_of(dim, sizes.distinct)
    seconds: dict[str, list[float]] = {}
    gaps = []
    for number in range(sizes.rounds + 1):
        took, gap = _round(policy, number, sizes.rivals)
        for name, each in took.items():
            seconds.setdefault(name, []).append(each)
        gaps.append(gap)
    climbs = policy.climbs
    share = climbs.failed / max(climbs.made, 1)
    median = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    rows = [
        row_of(
            section,
            "cbandit",
            median.pop("ours"),
            ours=True,
            checks=[check_of("score short of theirs", max(gaps), sizes.short)]
            if sizes.rivals
            else [],
            note=f"climbs that failed: {climbs.failed} of {climbs.made} ({share:.1%})",
            climbs=climbs.made,
            failed=climbs.failed,
        )
    ]
    rows += [
        row_of(
            section,
            f"optimize_acqf, {name}",
            each,
            ratio=1e3 * each / rows[0]["ms"],
            goal=(">=", 1.0),
        )
        for name, each in median.items()
    ]
    return rows


def _round(policy: cb.CKB, number: int, rivals: bool) -> tuple[dict[str, float], float]:
    """Seconds of each, and how far our point falls short of the best of theirs."""
    model, phi = policy.model, policy.multiplier
    box = torch.stack([policy.actions.lower, policy.actions.upper])
    score = cb.acquisition.PrimalDual(model, BETA, phi)
    theirs: list[Tensor] = []
    seconds = {}
    if rivals:
        for name, acquisition in (
            ("constrained improvement", _improvement(model)),
            ("the same score", score),
        ):
            with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                warnings.simplefilter("ignore")
                torch.manual_seed(number)  # BoTorch draws from it
                optimise = partial(_optimised, acquisition, box, theirs)
                seconds[name] = clocked(optimise)()
    asked: list[cb.Choice] = []
    seconds["ours"] = clocked(lambda: asked.append(policy.ask()))()
    choice = asked[0]
    gap = _short(score, choice.x, theirs[-1]) if rivals else 0.0
    y = world(choice.x)
    policy.tell(choice, reward=y[0], cost=y[1:])
    return seconds, gap


def _improvement(model: Any) -> Any:
    """BoTorch's constrained improvement over the best feasible observation."""
    from botorch.acquisition.analytic import LogConstrainedExpectedImprovement

    seen = world(model.models[0].train_inputs[0])
    ok = (seen[:, 1:] <= 0).all(-1)
    best = seen[ok, 0].max() if bool(ok.any()) else seen[:, 0].min()
    limits: dict[int, Any] = {1: (None, 0.0), 2: (None, 0.0)}
    return LogConstrainedExpectedImprovement(model, float(best), 0, limits)


def _optimised(acquisition: Any, box: Tensor, found: list[Tensor]) -> None:
    from botorch.optim.optimize import optimize_acqf

    restarts = starts_in(box.shape[-1])  # as many climbs as ours
    x, _ = optimize_acqf(acquisition, box, q=1, num_restarts=restarts, raw_samples=RAW)
    found.append(x[0])


def _short(score: Any, ours: Tensor, theirs: Tensor) -> float:
    """How much less our point scores than theirs, of the score's range."""
    generator = torch.Generator().manual_seed(1)
    sample = torch.rand(4096, 1, len(ours), generator=generator, dtype=torch.float64)
    with torch.no_grad():
        values = score(torch.stack([ours, theirs]).unsqueeze(1))
        spread = score(sample)
    return float((values[1] - values[0]) / (spread.max() - spread.min()))


# -- the small feasible set ------------------------------------------------------------


def reward_of(x: Tensor) -> Tensor:
    """The reward ``(n,)`` at ``x (n, 2)``; feasible optimum -0.25."""
    return -x[..., 0].sin() - x[..., 1]


def cost_of(x: Tensor) -> Tensor:
    """The cost ``(n,)`` at ``x (n, 2)``; 1.7 % of the square keep 0."""
    return x[..., 0].sin() * x[..., 1].sin() + 0.95


def reaching(name: str, seed: int) -> Any:
    """A policy on the square, settings as on the experiment's grid."""
    box, gp = cb.Box([0.0, 0.0], [6.0, 6.0]), cb.GP(matern(1.0), noise=DEVIATION**2)
    common: dict[str, Any] = {"reward": gp, "explore": cb.UCB(1.0), "seed": seed}
    if name == "EpochPenalty":
        return cb.EpochPenalty(box, costs=1, epoch=20, **common)
    common["costs"] = cb.GP(matern(1.0), noise=1e-4)
    if name == "RPOL-UCB":
        return cb.RPOL(box, **common)
    return cb.CKB(box, step=0.5, cap=20.0, **common)


def reach(name: str, seed: int = 0, rounds: int = 150) -> Row:
    """How close to the optimum a policy comes on the small feasible set, and how fast.

    The constraint is seen without noise, the reward with it; one uniform point comes
    before the first round.
    """
    say(f"{name} on the small feasible set, seed {seed}")
    policy = reaching(name, seed)
    generator = torch.Generator().manual_seed(seed)
    start = 6 * torch.rand(1, 2, generator=generator, dtype=torch.float64)
    policy.observe(x=start, reward=reward_of(start), cost=cost_of(start))
    tried = []

    def play() -> None:
        choice = policy.ask()
        noise = torch.randn((), generator=generator, dtype=torch.float64)
        reward = reward_of(choice.x) + DEVIATION * noise
        policy.tell(choice, reward=reward, cost=cost_of(choice.x))
        tried.append(choice.x)

    seconds = in_a_row(clocked(play), rounds)()
    x = torch.stack(tried)
    f, g = reward_of(x), cost_of(x)
    kept = f[g <= NEAR]
    best = float(kept.max()) if len(kept) else -float("inf")
    feasible = int((g <= 0).sum())
    return row_of(
        f"the best reward in {rounds} rounds where the cost was at most {NEAR}, "
        f"optimum {OPTIMUM}",
        f"{name}, seed {seed}",
        seconds,
        ours=True,
        checks=[check_of("short of the optimum", OPTIMUM - best, DEVIATION)],
        note=f"best {best:.3f}; {feasible} rounds feasible; of the last 20 mean reward "
        f"{float(f[-20:].mean()):.3f} and cost {float(g[-20:].mean()):.3f}",
        best=best,
        feasible=feasible,
    )


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    import botorch.models  # noqa: F401  (an import is no part of a round)

    rows = [row for dim in sizes.dims for row in beside(sizes, dim)]
    for name in REACHING:
        rows += [reach(name, seed, sizes.reaching) for seed in range(sizes.seeds)]
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
