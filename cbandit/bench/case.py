"""A CKB policy at work, and the dense float64 solve that it is compared with."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from cbandit.actions import Finite, ProductGrid
from cbandit.beliefs.gp import GP
from cbandit.bench.report import check_of
from cbandit.explore import UCB, Explore
from cbandit.policies.ckb import CKB

__all__ = [
    "BETA",
    "BOUND",
    "CAP",
    "LENGTH",
    "LENGTH_FREE",
    "LIMIT",
    "NOISE",
    "STEP",
    "Case",
    "Data",
    "Dense",
    "Located",
    "World",
    "actions_of",
    "case_of",
    "parts_of",
    "score_of",
]

NOISE, BETA, BOUND, CAP, STEP = 1e-2, 2.0, 1.0, 10.0, 0.05
LENGTH, LENGTH_FREE = 0.2, 0.5
LIMIT = {torch.float64: 1e-8, torch.float32: 1e-3}  # in prior standard deviations


class World:
    """A fixed random function of the reward and one of the cost, with noise."""

    def __init__(self, dim: int, length: float, seed: int = 7) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._frequency = self._normal(2, dim, 64) / (2 * length)
        self._phase = 2 * math.pi * self._normal(2, 1, 64)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)

    def __call__(self, x: Tensor) -> Tensor:
        """Noisy values ``(n, 2)`` at ``x (n, d)``."""
        waves = torch.cos(x.double() @ self._frequency + self._phase)
        values = waves.sum(-1).mT * math.sqrt(1 / 64)
        values[:, 1] += 0.3  # a constraint that binds
        return values + math.sqrt(NOISE) * self._normal(*values.shape)


class Data:
    """Observations merged by action."""

    def __init__(self) -> None:
        self.total: dict[int, Tensor] = {}
        self.count: dict[int, int] = {}

    def add(self, index: int, y: Tensor) -> None:
        """One more observation ``y (2,)``."""
        self.total[index] = self.total.get(index, 0) + y
        self.count[index] = self.count.get(index, 0) + 1

    def merged(self) -> tuple[Tensor, Tensor, Tensor]:
        """Actions ``(u,)``, how often seen ``(u,)``, average outcomes ``(u, 2)``."""
        count = torch.tensor(list(self.count.values()), dtype=torch.float64)
        mean = torch.stack(list(self.total.values())) / count.unsqueeze(-1)
        return torch.tensor(list(self.count)), count, mean


class Case:
    """A CKB policy that knows ``distinct`` random actions, its world and its data."""

    def __init__(
        self,
        actions: Finite | ProductGrid,
        kernel: Kernel,
        engine: str,
        dtype: torch.dtype,
        distinct: int,
        *,
        length: float,
        repeats: int = 1,
        explore: Explore | None = None,
        seed: int = 3,
    ) -> None:
        gp = GP(kernel, noise=NOISE)
        self.policy = CKB(
            actions,
            reward=gp,
            costs=gp,
            explore=explore or UCB(BETA),
            step=STEP,
            cap=CAP,
            clip=(BOUND, BOUND),
            engine=engine,
            dtype=dtype,
        )
        self.actions, self.kernel, self.length = actions, kernel, length
        self.world, self.data = World(actions.dim, length), Data()
        generator = torch.Generator().manual_seed(seed)
        index = torch.randint(actions.size, (4 * distinct,), generator=generator)
        index = torch.tensor(list(dict.fromkeys(index.tolist()))[:distinct])
        index = index.repeat(repeats)
        y = self.world(actions.points(index))
        self.policy.observe(index=index, reward=y[:, 0], cost=y[:, 1])
        for i, row in zip(index.tolist(), y, strict=True):
            self.data.add(i, row)

    def round(self) -> float:
        """Seconds of one ask and one tell."""
        start = time.perf_counter()
        choice = self.policy.ask()
        middle = time.perf_counter()
        assert choice.index is not None
        index = int(choice.index)
        y = self.world(self.actions.points(torch.tensor([index])))[0]
        reward, cost = float(y[0]), float(y[1])
        again = time.perf_counter()
        self.policy.tell(choice, reward=reward, cost=cost)
        stop = time.perf_counter()
        self.data.add(index, y)
        return middle - start + stop - again

    def rounds(self, count: int, warm: int) -> float:
        """The median round."""
        gc.collect()
        return statistics.median([self.round() for _ in range(warm + count)][warm:])

    def dense(self, dtype: torch.dtype = torch.float64) -> Dense:
        """The same beliefs in the hand-written way."""
        return Dense(self.actions, self.data, self.length, self.kernel, dtype)

    def compare(self, dtype: torch.dtype, count: int | None = None) -> dict[str, Any]:
        """One more round against the dense float64 solve.

        Over all actions, or over ``count`` random ones and the one chosen. Returns the
        checks and the round's multiplier and choice, so that others may repeat it.
        """
        dense = self.dense()
        posterior = self.policy.posterior()
        assert posterior.costs is not None
        mean = torch.stack([posterior.reward.mean, posterior.costs.mean[0]])
        std = torch.stack([posterior.reward.std, posterior.costs.std[0]])
        phi = float(self.policy.multiplier)
        choice = self.policy.ask()
        self.policy.cancel(choice)
        assert choice.index is not None
        chosen, size = int(choice.index), self.actions.size
        numbers: Tensor | None = None
        if count is not None and count < size:
            generator = torch.Generator().manual_seed(11)
            numbers = torch.randint(size, (count,), generator=generator)
            numbers = torch.cat([torch.tensor([chosen]), numbers])
        worst_mean = worst_std = 0.0
        scores = []
        for part in parts_of(numbers, size, 5000):
            m, var = dense.posterior(self.actions.points(part), "triangular")
            s = var.clamp_min(0).sqrt()
            worst_mean = max(worst_mean, float((mean[:, part] - m).abs().max()))
            worst_std = max(worst_std, float((std[:, part] - s).abs().max()))
            scores.append(score_of(m, s, phi))
        score = torch.cat(scores)
        lost = float(score.max() - score[chosen if numbers is None else 0])
        best = int(score.argmax())
        best = best if numbers is None else int(numbers[best])
        limit = LIMIT[dtype]
        checks = [
            check_of("largest difference of the mean", worst_mean, limit),
            check_of("largest difference of the std", worst_std, limit),
            check_of("score lost at our argmax", lost, limit),
        ]
        if dtype == torch.float64:
            checks.append(check_of("other argmax", float(best != chosen), 0.0))
        return {"checks": checks, "phi": phi, "chosen": chosen}


def parts_of(numbers: Tensor | None, size: int, step: int) -> Iterator[Tensor]:
    """``numbers``, or all of ``size``, a few at a time."""
    for start in range(0, size if numbers is None else len(numbers), step):
        if numbers is None:
            yield torch.arange(start, min(start + step, size))
        else:
            yield numbers[start : start + step]


def score_of(mean: Tensor, std: Tensor, phi: float) -> Tensor:
    """``f - phi g`` of clipped bounds, ``mean (2, n)``, ``std (n,)`` or ``(2, n)``."""
    up, down = (std, std) if std.dim() == 1 else (std[0], std[1])
    f = (mean[0] + BETA * up).clamp_(-BOUND, BOUND)
    g = (mean[1] - BETA * down).clamp_(-BOUND, BOUND)
    return f - phi * g


class Located(Protocol):
    """What knows where its numbered actions are."""

    def points(self, index: Tensor, /) -> Tensor:
        """``(n, d)``."""
        ...


class Dense:
    """The hand-written solve: one Cholesky factor, one solve for both functions."""

    FORMS = ("triangular", "cholesky_solve", "inverse factor")

    def __init__(
        self,
        actions: Located,
        data: Data,
        length: float,
        kernel: Kernel,
        dtype: torch.dtype,
    ) -> None:
        index, count, mean = data.merged()
        self.rbf, self.length, self.dtype = isinstance(kernel, RBFKernel), length, dtype
        self.x = (actions.points(index).double() / length).to(dtype)
        gram = self.kernel(self.x)
        gram.diagonal().add_(NOISE / count.to(dtype))
        self.factor = torch.linalg.cholesky(gram)
        self.alpha = torch.cholesky_solve(mean.to(dtype), self.factor)
        self._inverse: Tensor | None = None

    def kernel(self, x: Tensor) -> Tensor:
        """``(u, n)`` at scaled points ``x (n, d)``."""
        if not self.rbf:
            return torch.cdist(self.x, x, p=1).neg_().exp_()
        squares = (x * x).sum(-1)
        known = (self.x * self.x).sum(-1, keepdim=True)
        cross = (self.x @ x.mT).mul_(-2).add_(squares).add_(known)
        return cross.clamp_min_(0).mul_(-0.5).exp_()

    def posterior(self, points: Tensor, form: str) -> tuple[Tensor, Tensor]:
        """Means ``(2, n)`` and variance ``(n,)``."""
        k = self.kernel((points / self.length).to(self.dtype))
        mean = self.alpha.mT @ k
        if form == "triangular":
            half = torch.linalg.solve_triangular(self.factor, k, upper=False)
            return mean, 1 - half.mul_(half).sum(0)
        if form == "cholesky_solve":
            return mean, 1 - torch.cholesky_solve(k, self.factor).mul_(k).sum(0)
        if self._inverse is None:
            eye = torch.eye(len(self.x), dtype=self.dtype)
            self._inverse = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        half = self._inverse @ k
        return mean, 1 - half.mul_(half).sum(0)


def actions_of(engine: str, size: int, dim: int) -> Finite | ProductGrid:
    """A square grid for the product engine, else uniform points."""
    if engine == "product":
        side = math.isqrt(size)
        return ProductGrid([torch.linspace(0, 1, side, dtype=torch.float64)] * 2)
    generator = torch.Generator().manual_seed(5)
    return Finite(torch.rand(size, dim, generator=generator, dtype=torch.float64))


def case_of(
    actions: Finite | ProductGrid,
    engine: str,
    dtype: torch.dtype,
    distinct: int,
    **more: Any,
) -> Case:
    """A policy with an RBF kernel that knows ``distinct`` actions."""
    length = LENGTH if engine == "product" else LENGTH_FREE
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(length, dtype=torch.float64)
    return Case(actions, kernel, engine, dtype, distinct, length=length, **more)
