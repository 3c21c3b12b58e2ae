"""Rounds on large sets with nothing set, and with a hundred choices open.

    python benchmarks/speed/scale.py [--quick] [--json FILE]

Goal: with `cb.GP.default` and nothing else a round of CKB on 25^5 points takes at most
a second after 30 rounds, fits included, within 2 GB of memory; the hundredth choice
that is open at once takes at most 1.5 times what the first takes; and a checkpoint
without the set takes at most 2 MB. Expected improvement, written by the README's lines,
finds on 200 000 actions what BoTorch's LogEI and its discrete optimiser find, in less
time.

Seconds are of the processor, one thread. A round is `ask` and `tell`; the mean is over
the rounds up to the one named, since the checkpoint before, with all fits. Means and
deviations of some actions, as the engine keeps them, are compared with BoTorch's model
of the same data, in float64 and relative to the largest deviation. BoTorch's largest
set is what its posterior of both functions gets through in the mean time of our round.
The same rounds are played in float32 too, and compared with float64 solves of the same
data. Each set has a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import cast

import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.optim.optimize import optimize_acqf_discrete
from torch import Tensor

import cbandit as cb
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main

SECONDS = 1.0  # of a round on the largest grid
LATE = 1.5  # how much slower the hundredth open choice may be than the first
MEMORY = 2e9  # bytes, on the largest grid
FILE = 2e6  # bytes of a checkpoint without the set
OFF = 1e-8  # of the largest deviation
NARROW = 1e-3  # the same in float32
BEHIND = 1e-6  # in the logarithm of the expected improvement
CHUNK = 20_000  # of BoTorch's candidates, t-batches of one point each

Actions = cb.Finite | cb.ProductGrid


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    five: int = 25
    three: int = 100
    free: int = 1_000_000
    embedded: int = 200_000
    rounds: tuple[int, ...] = (10, 30, 60)
    open: int = 100
    compared: int = 500
    improved: int = 200_000
    chunk: int = CHUNK


QUICK = Sizes(7, 20, 20_000, 4_000, (5, 12), 10, 100, 4_000, 2_000)


def grid(side: int, dim: int) -> cb.ProductGrid:
    """A grid of so many values on each axis."""
    return cb.ProductGrid([torch.linspace(0, 1, side, dtype=torch.float64)] * dim)


def free(count: int, dim: int) -> cb.Finite:
    """Points without any order."""
    generator = torch.Generator().manual_seed(1)
    return cb.Finite(torch.rand(count, dim, generator=generator, dtype=torch.float64))


def outcome(x: Tensor) -> tuple[float, float]:
    """A smooth reward and a smooth cost."""
    reward = torch.sin(5 * x[0]) * 0.3 - (x - 0.6).square().mean()
    return float(reward), float((x - 0.2).square().mean() + 0.1 * torch.cos(7 * x[1]))


def spent(call: Callable[[], object]) -> float:
    """The processor's seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def off(policy: cb.CKB, count: int) -> float:
    """How far the engine's posterior is from a BoTorch model of the same data."""
    size = int(policy.actions.size)
    index = torch.arange(count) * (size // count)
    with torch.no_grad():
        x = policy.actions.points(index).double()
        there = policy.model.posterior(x.unsqueeze(1))
    mean, std = there.mean[:, 0].T, there.variance[:, 0].sqrt().T
    kept = policy.posterior()
    costs = kept.costs or kept.reward  # there is a cost
    errors = [
        (kept.reward.mean[index] - mean[0]).abs().max() / std[0].max(),
        (kept.reward.std[index] - std[0]).abs().max() / std[0].max(),
        (costs.mean[0, index] - mean[1]).abs().max() / std[1].max(),
        (costs.std[0, index] - std[1]).abs().max() / std[1].max(),
    ]
    return float(torch.stack(errors).max())


class Improvement(cb.GPPolicy):
    """Expected improvement by the README's lines."""

    name = "EI"

    def acquire(self, t: int, multiplier: Tensor, estimates: cb.Estimates) -> Tensor:
        """Return the expected improvement on the incumbent."""
        best = estimates.incumbent.unsqueeze(-1)
        mean, std = estimates.mean[:, 0], estimates.std[:, 0]
        gap, normal = (mean - best) / std, torch.distributions.Normal(0.0, 1.0)
        gain: Tensor = std * (gap * normal.cdf(gap) + normal.log_prob(gap).exp())
        return gain.where(best.isfinite(), 1.0)


def improved(sizes: Sizes, told: int = 30, rounds: int = 5) -> list[Row]:
    """Rounds of expected improvement, beside BoTorch's on the same data."""
    torch.set_num_threads(1)
    actions = free(sizes.improved, 6)
    x = actions.points(torch.arange(told))
    rewards = torch.tensor([outcome(point)[0] for point in x])
    policy = Improvement(actions, reward=cb.GP.default(actions), costs=None)
    policy.observe(index=torch.arange(told), reward=rewards)
    policy.refit()
    ours, theirs, behind = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        start = time.process_time()
        choice = policy.ask()
        ours.append(time.process_time() - start)
        model = cast(SingleTaskGP, policy.model.models[0])
        with torch.no_grad():
            best = model.posterior(x.unsqueeze(1)).mean.amax()
        rule = LogExpectedImprovement(model, best)
        start = time.process_time()
        _, value = optimize_acqf_discrete(
            rule, 1, actions.points(torch.arange(sizes.improved)), max_batch_size=CHUNK
        )
        theirs.append(time.process_time() - start)
        with torch.no_grad():
            behind.append(float(value.max() - rule(choice.x.unsqueeze(0))))
        policy.tell(choice, reward=outcome(choice.x)[0])
        x = torch.cat([x, choice.x.unsqueeze(0)])
    section = f"expected improvement: {sizes.improved:,} actions, d = 6"
    check = check_of("log improvement behind BoTorch's", max(behind), BEHIND)
    first, mean = ours[0], statistics.mean(ours[1:])
    note = f"against {statistics.mean(theirs):.3f} s by optimize_acqf_discrete"
    return [
        row_of(
            section,
            what,
            took,
            ours=True,
            ratio=took / statistics.mean(theirs),
            goal=("<=", 1.0),
            note=note,
            checks=[check],
        )
        for what, took in (
            (f"the first ask, {told} outcomes known", first),
            ("a round after it", mean),
        )
    ]


def botorch_rate(policy: cb.CKB, count: int) -> float:
    """Actions a second whose posterior of both functions BoTorch computes."""
    model, x = policy.model, policy.actions.points(torch.arange(count)).double()

    def look() -> None:
        with torch.no_grad():
            posterior = model.posterior(x.unsqueeze(1))
            posterior.mean.sum() + posterior.variance.sum()

    look()
    return count / min(spent(look) for _ in range(3))


def narrow(actions: Actions, sizes: Sizes) -> tuple[float, float]:
    """Return a late round's mean time in float32, and how far it is off."""
    gp = cb.GP.default(actions)
    policy = cb.CKB(actions, reward=gp, costs=gp, thresholds=0.1, dtype=torch.float32)
    seconds = list[float]()
    for _ in range(sizes.rounds[-1]):
        start = time.process_time()
        choice = policy.ask()
        reward, cost = outcome(choice.x)
        policy.tell(choice, reward=reward, cost=cost)
        seconds.append(time.process_time() - start)
    policy.ask()
    late = seconds[sizes.rounds[-2] :]
    return statistics.mean(late), off(policy, sizes.compared)


def played(name: str, actions: Actions, sizes: Sizes, largest: bool) -> list[Row]:
    """The rows of one set."""
    torch.set_num_threads(1)
    gp = cb.GP.default(actions)
    policy = cb.CKB(actions, reward=gp, costs=gp, thresholds=0.1)
    rows, seconds = [], list[float]()
    row = partial(row_of, f"{name}: {int(actions.size):,} actions")

    def round_of() -> None:
        choice = policy.ask()
        reward, cost = outcome(choice.x)
        policy.tell(choice, reward=reward, cost=cost)

    for t in range(1, sizes.rounds[-1] + 1):
        seconds.append(spent(round_of))
        if t in sizes.rounds:
            before = max([0, *(r for r in sizes.rounds if r < t)])
            part = seconds[before:]
            note = f"median {statistics.median(part):.3f} s, longest {max(part):.3f} s"
            mean = statistics.mean(part)
            goal = None
            if largest and t == 30:
                goal = ("<=", SECONDS)
            ratio = mean if goal else None
            what = f"a round, mean of rounds {before + 1} to {t}"
            rows.append(row(what, mean, ours=True, ratio=ratio, goal=goal, note=note))
    policy.ask()  # the refit, if one is due, is none of the open choices' time
    opened = [spent(policy.ask) for _ in range(sizes.open)]
    few = max(1, sizes.open // 20)
    first, last = (statistics.median(p) for p in (opened[:few], opened[-few:]))
    what = f"ask with {sizes.open} choices open, against the first ones"
    note = f"the first ones {first:.3f} s, the longest of all {max(opened):.3f} s"
    goal = ("<=", LATE)
    rows.append(row(what, last, ratio=last / first, goal=goal, note=note))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rate = botorch_rate(policy, min(sizes.chunk, int(actions.size)))
    mean = statistics.mean(seconds)
    exact = check_of("off BoTorch's model by", off(policy, sizes.compared), OFF)
    limit = [check_of("bytes of memory", peak, MEMORY)] if largest else []
    checks = [exact, *limit]
    note = f"{rate * mean:,.0f} actions by BoTorch's posterior in that time"
    what = f"the mean round; {peak / 1e9:.2f} GB at most"
    rows.append(row(what, mean, note=note, checks=checks))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        took = spent(lambda: policy.save(path, actions=False))
        size = path.stat().st_size
    note = f"{size / 1e3:.0f} kB"
    checks = [check_of("bytes", size, FILE)]
    rows.append(row("a checkpoint without the set", took, note=note, checks=checks))
    took, error = narrow(actions, sizes)
    what = f"float32: a round, mean of rounds {sizes.rounds[-2] + 1} to the last"
    note = f"off float64 by {error:.1e} of the largest deviation"
    checks = [check_of("off BoTorch's model by", error, NARROW)]
    rows.append(row(what, took, ours=True, note=note, checks=checks))
    return rows


def measure(sizes: Sizes) -> list[Row]:
    """Four sets, each in a process of its own."""
    sets: dict[str, Callable[[], Actions]] = {
        f"{sizes.five}^5 grid": partial(grid, sizes.five, 5),
        f"{sizes.three}^3 grid": partial(grid, sizes.three, 3),
        "points, d = 6": partial(free, sizes.free, 6),
        "embeddings, d = 64": partial(free, sizes.embedded, 64),
    }
    rows = []
    for place, (name, make) in enumerate(sets.items()):
        say(name)
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            made = alone.submit(_made_and_played, name, make, sizes, place == 0)
            rows += made.result()
    say("expected improvement")
    return rows + improved(sizes)


def _made_and_played(
    name: str, make: Callable[[], Actions], sizes: Sizes, largest: bool
) -> list[Row]:
    return played(name, make(), sizes, largest)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
