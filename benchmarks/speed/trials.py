"""Batched trials beside single ones, and both beside bare tensor loops.

    python benchmarks/speed/trials.py [--quick] [--json FILE]

Goals, of CKB-UCB on 100 arms: fifty trials at once take a small part of the time of
fifty trials one by one; a round takes little longer than the same arithmetic in a bare
tensor loop without a library around it, for one trial and for fifty. And of the first
paper's experiment, world and account included: it takes about twice the time of that
loop over as many rounds, with Thompson draws about five times.

Each timing is the median of interleaved runs (of the experiment, which is played once a
policy, the whole). All four ways must choose the same arms in every trial and round.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common.case import BOUND, CAP, LENGTH, NOISE, STEP, index_of, rbf
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    rounds: int = 300
    repeats: int = 9
    arms: int = 100
    trials: int = 50
    horizon: int = 10_000  # of the experiment


QUICK = Sizes(rounds=100, repeats=3, horizon=200)


@dataclass
class Arms:
    """Arms on a line: what they give in each trial, and the noise of each round."""

    points: Tensor  # N x 1
    values: Tensor  # trials x 2 x N
    noise: Tensor  # rounds x trials x 2

    @classmethod
    def make(cls, arms: int, trials: int, rounds: int) -> Arms:
        generator = torch.Generator().manual_seed(17)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        points = torch.linspace(0, 1, arms, dtype=torch.float64).unsqueeze(-1)
        waves = torch.cos(
            points * normal(trials, 2, 1, 16) / LENGTH + 6 * normal(trials, 2, 1, 16)
        )
        values = 0.25 * waves.sum(-1)
        values[:, 1] += 0.3  # a constraint that binds
        return cls(points, values, math.sqrt(NOISE) * normal(rounds, trials, 2))

    def policy(self, trials: int | None) -> cb.CKB:
        gp = cb.GP(rbf(LENGTH), noise=NOISE)
        return cb.CKB(
            cb.Finite(self.points),
            reward=gp,
            costs=gp,
            explore=cb.UCB(cb.RKHS(1.0, 0.1)),
            step=STEP,
            cap=CAP,
            clip=(BOUND, BOUND),
            trials=trials,
        )

    @property
    def covariance(self) -> Tensor:
        gap = (self.points - self.points.mT) / LENGTH
        return torch.exp(-0.5 * gap * gap)


Played = tuple[list[float], Tensor]
"""Seconds of each round, and the arms chosen ``(rounds, trials)``."""


def batched(arms: Arms, rounds: int) -> Played:
    trials = len(arms.values)
    policy, every = arms.policy(trials), torch.arange(trials)
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        choice = policy.ask()
        index = index_of(choice)
        y = arms.values[every, :, index] + arms.noise[t]
        policy.tell(choice, reward=y[:, 0], cost=y[:, 1])
        seconds.append(time.perf_counter() - start)
        chosen.append(index)
    return seconds, torch.stack(chosen)


def single(arms: Arms, rounds: int, trial: int) -> Played:
    policy, values = arms.policy(None), arms.values[trial]
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        choice = policy.ask()
        index = index_of(choice)
        y = values[:, int(index)] + arms.noise[t, trial]
        policy.tell(choice, reward=y[0], cost=y[1])
        seconds.append(time.perf_counter() - start)
        chosen.append(index)
    return seconds, torch.stack(chosen).unsqueeze(-1)


def bare_single(arms: Arms, rounds: int, trial: int) -> Played:
    """The same arithmetic as one tensor loop, without a library around it."""
    cov, values = arms.covariance, arms.values[trial]
    mean = cov.new_zeros(2, len(cov))
    signs = cov.new_tensor([[1.0], [-1.0]])
    phi, gain, log = cov.new_zeros(()), cov.new_zeros(()), math.log(2 / 0.1)
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        beta = 1.0 + 0.1 / math.sqrt(NOISE) * (2 * (gain + log)).sqrt()
        std = cov.diagonal().clamp_min(0).sqrt()
        f, g = torch.addcmul(mean, signs * beta, std).clamp_(-BOUND, BOUND)
        index = int((f - phi * g).argmax())
        phi = (phi + STEP * g[index]).clamp(0, CAP)
        y = values[:, index] + arms.noise[t, trial]
        column = cov[index].clone()
        spread = column[index] + NOISE
        gain = gain + 0.5 * torch.log1p(column[index] / NOISE)
        mean.addcmul_(((y - mean[:, index]) / spread).unsqueeze(-1), column)
        cov.addcmul_(column.unsqueeze(-1), column / spread, value=-1)
        seconds.append(time.perf_counter() - start)
        chosen.append(index)
    return seconds, torch.tensor(chosen).unsqueeze(-1)


def bare_batched(arms: Arms, rounds: int) -> Played:
    """The same loop with a trials axis."""
    trials, count = len(arms.values), len(arms.points)
    every = torch.arange(trials)
    cov = arms.covariance.expand(trials, -1, -1).clone()
    mean = cov.new_zeros(trials, 2, count)
    signs = cov.new_tensor([1.0, -1.0])
    phi, gain, log = cov.new_zeros(trials), cov.new_zeros(trials), math.log(2 / 0.1)
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        beta = 1.0 + 0.1 / math.sqrt(NOISE) * (2 * (gain + log)).sqrt()
        std = cov.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().unsqueeze(1)
        width = (beta.unsqueeze(-1) * signs).unsqueeze(-1)
        estimate = torch.addcmul(mean, width, std).clamp_(-BOUND, BOUND)
        f, g = estimate[:, 0], estimate[:, 1]
        index = (f - phi.unsqueeze(-1) * g).argmax(-1)
        phi = (phi + STEP * g[every, index]).clamp(0, CAP)
        y = arms.values[every, :, index] + arms.noise[t]
        column = cov[every, index]
        own = column[every, index]
        spread = (own + NOISE).unsqueeze(-1)
        gain = gain + 0.5 * torch.log1p(own / NOISE)
        gap = (y - mean[every, :, index]) / spread
        mean.addcmul_(gap.unsqueeze(-1), column.unsqueeze(1))
        cov.addcmul_(column.unsqueeze(-1), (column / spread).unsqueeze(1), value=-1)
        seconds.append(time.perf_counter() - start)
        chosen.append(index)
    return seconds, torch.stack(chosen)


def parted(name: str, one: Tensor, other: Tensor) -> dict[str, Any]:
    """The share of trials in which two ways ever chose different arms must be 0."""
    return check_of(name, float((one != other).any(0).double().mean()), 0.0)


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    arms, trials, rounds = sizes.arms, sizes.trials, sizes.rounds
    section = f"a CKB-UCB round, {arms} arms, RBF, RKHS widths, float64"
    say(section)
    data = Arms.make(arms, trials, rounds)
    took = timed(
        {
            "batched": lambda _: batched(data, rounds),
            "bare batched": lambda _: bare_batched(data, rounds),
            "single": lambda i: single(data, rounds, i % trials),
            "bare single": lambda i: bare_single(data, rounds, i % trials),
        },
        sizes,
    )
    say("  checks")
    chosen = batched(data, rounds)[1]
    singles = torch.cat([single(data, rounds, i)[1] for i in range(trials)], -1)
    bare = torch.cat([bare_single(data, rounds, i)[1] for i in range(trials)], -1)
    bare_all = bare_batched(data, rounds)[1]
    from_loop = "share of trials that part from the bare loop"
    return [
        row_of(
            section,
            f"{trials} trials in one batch",
            took["batched"],
            ours=True,
            checks=[
                parted("share of trials that part from single ones", singles, chosen)
            ],
        ),
        row_of(
            section,
            f"{trials} single trials, one after another",
            trials * took["single"],
            ratio=trials * took["single"] / took["batched"],
            goal=(">=", 10.0),
            note=f"ratio to the batch; {trials} times the median round of one",
        ),
        row_of(
            section,
            "one single trial",
            took["single"],
            ours=True,
            ratio=took["single"] / took["bare single"],
            goal=("<=", 1.5),
            checks=[parted(from_loop, bare, singles)],
            note="ratio to the bare loop below",
        ),
        row_of(section, "a bare tensor loop, one trial", took["bare single"]),
        row_of(
            section,
            f"{trials} trials in one batch, again",
            took["batched"],
            ratio=took["batched"] / took["bare batched"],
            goal=("<=", 0.8),
            checks=[parted(from_loop, bare_all, chosen)],
            note="ratio to the bare loop below",
        ),
        row_of(section, f"a bare tensor loop, {trials} trials", took["bare batched"]),
    ]


def experiment(sizes: Sizes) -> list[Row]:
    """The first paper's experiment against the bare loop over as many rounds."""
    # not public names: before_after.py runs the rest of this with older versions too
    from cbandit.experiments.catalogue import find
    from cbandit.experiments.experiment import Task

    section = f"zhou-synthetic, 50 trials, {sizes.horizon:,} rounds, float64"
    say(section)
    known = find("zhou-synthetic")
    settings = known.settings(horizon=sizes.horizon)
    arms = Arms.make(sizes.arms, settings.trials, sizes.horizon)
    loop = min(sum(bare_batched(arms, sizes.horizon)[0]) for _ in range(3))
    most = 0.0 if sizes.horizon >= known.horizon else 0.2  # it is gone in the end
    rows = []
    for name, goal in (("CKB-UCB", 2.0), ("CKB-Rand", 2.0), ("CKB-TS", 5.0)):
        say(f"  {name}")
        task = Task(known, settings, name, range(settings.trials))
        problem = task.problem()
        policies = [known.policies[name](problem, task) for _ in range(2)]
        cb.simulate(policies[0], problem, min(20, sizes.horizon), progress=False)
        start = time.perf_counter()
        run = cb.simulate(policies[1], problem, sizes.horizon, progress=False)
        took = time.perf_counter() - start
        violation = float(run.soft_violation[:, -1].max()) / sizes.horizon
        rows.append(
            row_of(
                section,
                name,
                took,
                ours=True,
                ratio=took / loop,
                goal=("<=", goal),
                checks=[check_of("soft violation a round", violation, most)],
                note="world and account included; ratio to the bare loop below",
            )
        )
    return [*rows, row_of(section, "a bare tensor loop, UCB", loop)]


def timed(
    contenders: Mapping[str, Callable[[int], Played]], sizes: Sizes
) -> dict[str, float]:
    """Seconds of the median round of each, which take turns."""
    warm = min(20, sizes.rounds // 4)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(sizes.repeats):
        for name, play in contenders.items():
            say(f"  {name}, {repeat + 1} of {sizes.repeats}")
            seconds[name].append(statistics.median(play(repeat)[0][warm:]))
    return {name: statistics.median(each) for name, each in seconds.items()}


def every(sizes: Sizes) -> list[Row]:
    """All rows, the experiment's too."""
    return measure(sizes) + experiment(sizes)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, every, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
