"""Batched trials beside single ones, and both beside bare tensor loops.

    cbandit bench trials [--quick]

The loops do the same arithmetic without a library around it, and must choose alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from cbandit.actions import Finite
from cbandit.beliefs.gp import GP
from cbandit.bench.case import BOUND, CAP, LENGTH, NOISE, STEP
from cbandit.bench.report import check_of, result_of, row_of, say, table
from cbandit.confidence import RKHS
from cbandit.explore import UCB
from cbandit.policies.ckb import CKB

__all__ = ["bench_trials", "table"]


@dataclass
class _Arms:
    """100 arms on a line: what each trial's arms give, and the noise of each round."""

    points: Tensor  # N x 1
    values: Tensor  # trials x 2 x N
    noise: Tensor  # rounds x trials x 2

    @classmethod
    def make(cls, arms: int, trials: int, rounds: int) -> _Arms:
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

    def policy(self, trials: int | None) -> CKB:
        kernel = RBFKernel().double()
        kernel.lengthscale = torch.tensor(LENGTH, dtype=torch.float64)
        gp = GP(kernel, noise=NOISE)
        return CKB(
            Finite(self.points),
            reward=gp,
            costs=gp,
            explore=UCB(RKHS(1.0, 0.1)),
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


def _batched(arms: _Arms, rounds: int) -> Played:
    trials = len(arms.values)
    policy, every = arms.policy(trials), torch.arange(trials)
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        choice = policy.ask()
        assert choice.index is not None
        y = arms.values[every, :, choice.index] + arms.noise[t]
        policy.tell(choice, reward=y[:, 0], cost=y[:, 1])
        seconds.append(time.perf_counter() - start)
        chosen.append(choice.index)
    return seconds, torch.stack(chosen)


def _single(arms: _Arms, rounds: int, trial: int) -> Played:
    policy, values = arms.policy(None), arms.values[trial]
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        choice = policy.ask()
        assert choice.index is not None
        y = values[:, int(choice.index)] + arms.noise[t, trial]
        policy.tell(choice, reward=y[0], cost=y[1])
        seconds.append(time.perf_counter() - start)
        chosen.append(choice.index)
    return seconds, torch.stack(chosen).unsqueeze(-1)


def _bare_single(arms: _Arms, rounds: int, trial: int) -> Played:
    """The same arithmetic as one tensor loop, without a library around it."""
    cov, values = arms.covariance, arms.values[trial]
    mean = cov.new_zeros(2, len(cov))
    signs = cov.new_tensor([[1.0], [-1.0]])
    phi, gain, log = cov.new_zeros(()), cov.new_zeros(()), math.log(2 / 0.1)
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        beta = 1.0 + 0.1 * (2 * (gain + 1 + log)).sqrt()
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


def _bare_batched(arms: _Arms, rounds: int) -> Played:
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
        beta = 1.0 + 0.1 * (2 * (gain + 1 + log)).sqrt()
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


def bench_trials(quick: bool = False) -> dict[str, Any]:
    """Time batched trials against single ones and bare loops; ``cbandit bench trials``.

    Args:
        quick: fewer rounds and repetitions.
    """
    return _trials(rounds=100 if quick else 300, repeats=3 if quick else 9, quick=quick)


def _trials(
    rounds: int, repeats: int, arms: int = 100, trials: int = 50, quick: bool = False
) -> dict[str, Any]:
    section = f"a CKB-UCB round, {arms} arms, RBF, RKHS widths, float64"
    say(section)
    data = _Arms.make(arms, trials, rounds)
    contenders: dict[str, Callable[[int], Played]] = {
        "batched": lambda _: _batched(data, rounds),
        "bare batched": lambda _: _bare_batched(data, rounds),
        "single": lambda i: _single(data, rounds, i % trials),
        "bare single": lambda i: _bare_single(data, rounds, i % trials),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats):
        for name, play in contenders.items():
            say(f"  {name}, {repeat + 1} of {repeats}")
            warm = min(20, rounds // 4)
            seconds[name].append(statistics.median(play(repeat)[0][warm:]))
    took = {name: statistics.median(each) for name, each in seconds.items()}

    say("  checks")
    chosen = _batched(data, rounds)[1]
    singles = torch.cat([_single(data, rounds, i)[1] for i in range(trials)], -1)
    bare = torch.cat([_bare_single(data, rounds, i)[1] for i in range(trials)], -1)
    bare_batched = _bare_batched(data, rounds)[1]

    def parted(name: str, other: Tensor, ours: Tensor) -> dict[str, Any]:
        return check_of(name, float((other != ours).any(0).double().mean()), 0.0)

    rows = [
        row_of(
            section,
            f"{trials} trials in one batch",
            took["batched"],
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
            ratio=took["single"] / took["bare single"],
            goal=("<=", 3.0),
            checks=[
                parted("share of trials that part from the bare loop", bare, singles)
            ],
            note="ratio to the bare loop below",
        ),
        row_of(section, "a bare tensor loop, one trial", took["bare single"]),
        row_of(
            section,
            f"{trials} trials in one batch",
            took["batched"],
            ratio=took["batched"] / took["bare batched"],
            goal=("<=", 2.5),
            checks=[
                parted(
                    "share of trials that part from the bare loop", bare_batched, chosen
                )
            ],
            note="ratio to the bare loop below",
        ),
        row_of(section, f"a bare tensor loop, {trials} trials", took["bare batched"]),
    ]
    return result_of("trials", quick, rows)
