"""A CKB policy at work, and the dense float64 solve that it is compared with."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

import cbandit as cb
from benchmarks.common.report import check_of
from benchmarks.common.timing import medians

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
    "Compared",
    "Data",
    "Dense",
    "World",
    "actions_of",
    "both_of",
    "case_of",
    "grid_of",
    "index_of",
    "matern",
    "parts_of",
    "points_of",
    "rbf",
    "score_of",
]

NOISE, BETA, BOUND, CAP, STEP = 1e-2, 2.0, 1.0, 10.0, 0.05
LENGTH, LENGTH_FREE = 0.2, 0.5
LIMIT = {torch.float64: 1e-8, torch.float32: 1e-3}  # in prior standard deviations
CPU = torch.device("cpu")

Actions = cb.Finite | cb.ProductGrid


def rbf(lengthscale: float) -> Kernel:
    """An RBF kernel in float64, its lengthscale not rounded to float32."""
    return _scaled(RBFKernel(), lengthscale)


def matern(lengthscale: float, nu: float = 2.5, **more: Any) -> Kernel:
    """A Matern kernel in float64; ``more`` goes to gpytorch."""
    from gpytorch.kernels import MaternKernel

    return _scaled(MaternKernel(nu=nu, **more), lengthscale)


def _scaled(kernel: Kernel, lengthscale: float) -> Kernel:
    kernel = kernel.double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


# -- sets of actions -------------------------------------------------------------------


def grid_of(sizes: tuple[int, ...], **kept: Any) -> cb.ProductGrid:
    """A grid on the unit cube; ``kept`` says dtype and device."""
    kept = {"dtype": torch.float64, **kept}
    return cb.ProductGrid([torch.linspace(0, 1, n, **kept) for n in sizes])


def points_of(size: int, dim: int, **kept: Any) -> cb.Finite:
    """Uniform points of the unit cube; ``kept`` says dtype and device."""
    kept = {"dtype": torch.float64, "device": CPU, **kept}
    generator = torch.Generator(kept["device"]).manual_seed(5)
    return cb.Finite(torch.rand(size, dim, generator=generator, **kept))


def actions_of(engine: str, size: int, dim: int) -> Actions:
    """A square grid for the product engine, else uniform points."""
    if engine == "product":
        return grid_of((math.isqrt(size),) * 2)
    return points_of(size, dim)


# -- the world -------------------------------------------------------------------------


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
        angles = (x.double() @ self._frequency + self._phase).numpy()
        # torch's cosine wakes its threads, which then wait busily beside the policy's
        values = torch.from_numpy(np.cos(angles).sum(-1)).mT * math.sqrt(1 / 64)
        values[:, 1] += 0.3  # a constraint that binds
        return values + math.sqrt(NOISE) * self._normal(*values.shape)


class Data:
    """Observations merged by action."""

    def __init__(self) -> None:
        self.total: dict[int, Tensor] = {}
        self.count: dict[int, int] = {}

    def add(self, index: int, y: Tensor) -> None:
        """Take in one more observation ``y (2,)``."""
        self.total[index] = self.total.get(index, 0) + y
        self.count[index] = self.count.get(index, 0) + 1

    def merged(self) -> tuple[Tensor, Tensor, Tensor]:
        """Actions ``(u,)``, how often seen ``(u,)``, average outcomes ``(u, 2)``."""
        count = torch.tensor(list(self.count.values()), dtype=torch.float64)
        mean = torch.stack(list(self.total.values())) / count.unsqueeze(-1)
        return torch.tensor(list(self.count)), count, mean


# -- a policy at work ------------------------------------------------------------------


class Compared(NamedTuple):
    """Checks of a round, and its multiplier and choice for others to repeat it."""

    checks: list[dict[str, Any]]
    phi: float
    chosen: int


class Case:
    """A CKB policy that knows ``distinct`` random actions, its world and its data.

    Args:
        actions: the set.
        kernel: of both functions, an RBF or a product of Matern-1/2 kernels.
        engine: as for ``cb.CKB``.
        dtype: as for ``cb.CKB``.
        distinct: how many actions it knows from the start.
        length: the kernel's lengthscale.
        repeats: how often it has seen each of them.
        seed: of these actions.
        device: as for ``cb.CKB``.
        more: settings of ``cb.CKB`` other than those here.
    """

    def __init__(
        self,
        actions: Actions,
        kernel: Kernel,
        engine: str,
        dtype: torch.dtype,
        distinct: int,
        *,
        length: float,
        repeats: int = 1,
        seed: int = 3,
        device: torch.device = CPU,
        **more: Any,
    ) -> None:
        gp = cb.GP(kernel, noise=NOISE)
        settings: dict[str, Any] = {
            "explore": cb.UCB(BETA),
            "step": STEP,
            "cap": CAP,
            "clip": (BOUND, BOUND),
            "engine": engine,
            "dtype": dtype,
            "device": device,
        }
        self.policy = cb.CKB(actions, reward=gp, costs=gp, **(settings | more))
        self.actions, self.kernel, self.length = actions, kernel, length
        self.dtype, self.device = dtype, device
        self.world, self.data = World(actions.dim, length), Data()
        generator = torch.Generator().manual_seed(seed)
        index = torch.randint(actions.size, (4 * distinct,), generator=generator)
        index = torch.tensor(list(dict.fromkeys(index.tolist()))[:distinct])
        index = index.repeat(repeats)
        y = self.world(self.points(index))
        self.policy.observe(index=index, reward=y[:, 0], cost=y[:, 1])
        for i, row in zip(index.tolist(), y, strict=True):
            self.data.add(i, row)

    def points(self, index: Tensor) -> Tensor:
        """Actions ``(n, d)`` in float64 on the CPU, as the device has rounded them."""
        found: Tensor = self.actions.points(index.to(self.device))
        return found.cpu().double()

    def every(self, dtype: torch.dtype) -> Tensor:
        """All actions ``(N, d)``, on their device."""
        index = torch.arange(self.actions.size, device=self.device)
        found: Tensor = self.actions.points(index)
        return found.to(dtype)

    def round(self) -> float:
        """Seconds of one ask and one tell, without the world between them."""
        start = time.perf_counter()
        choice = self.policy.ask()
        index = int(index_of(choice))
        middle = time.perf_counter()
        y = self.world(self.points(torch.tensor([index])))[0]
        reward, cost = float(y[0]), float(y[1])
        again = time.perf_counter()
        self.policy.tell(choice, reward=reward, cost=cost)
        stop = time.perf_counter()
        self.data.add(index, y)
        return middle - start + stop - again

    def rounds(self, count: int, warm: int) -> float:
        """Seconds of the median round."""
        return medians({self: self.round}, count, warm)[self]

    def dense(self, dtype: torch.dtype = torch.float64) -> Dense:
        """The same beliefs in the hand-written way."""
        return Dense(self, dtype)

    def believed(self, index: Tensor | None) -> tuple[Tensor, Tensor]:
        """The policy's means and deviations ``(2, n)`` at numbered actions, or all."""
        mean, std = both_of(self.policy.posterior())
        return (mean, std) if index is None else (mean[:, index], std[:, index])

    def compare(self, count: int | None = None) -> Compared:
        """One more choice, and the beliefs it was made by, against a dense solve.

        Over all actions, or over ``count`` random ones, those at either end of the set
        and the one chosen.
        """
        phi = float(self.policy.multiplier)  # as it is before it moves with the choice
        choice = self.policy.ask()
        self.policy.cancel(choice)
        chosen, numbers = int(index_of(choice)), None
        if count is not None and count < self.actions.size:
            numbers = self._some(chosen, count)
        mean, std = (v.cpu().double() for v in self.believed(numbers))
        dense, found = self.dense(), []
        worst_mean = worst_std = 0.0
        for part, where in parts_of(numbers, self.actions.size, 5000):
            m, var = dense.posterior(self.points(part), "triangular")
            s = var.clamp_min(0).sqrt()
            worst_mean = max(worst_mean, float((mean[:, where] - m).abs().max()))
            worst_std = max(worst_std, float((std[:, where] - s).abs().max()))
            found.append(score_of(m, s, phi))
        score = torch.cat(found)
        lost = float(score.max() - score[chosen if numbers is None else 0])
        best = int(score.argmax())
        best = best if numbers is None else int(numbers[best])
        limit = LIMIT[self.dtype]
        checks = [
            check_of("largest difference of the mean", worst_mean, limit),
            check_of("largest difference of the std", worst_std, limit),
            check_of("score lost at our argmax", lost, limit),
        ]
        if self.dtype == torch.float64:
            checks.append(check_of("other argmax", float(best != chosen), 0.0))
        return Compared(checks, phi, chosen)

    def _some(self, chosen: int, count: int) -> Tensor:
        # what a pass does wrong at its borders shows at the ends
        size = self.actions.size
        ends = torch.arange(min(128, size))
        drawn = torch.randint(
            size, (count,), generator=torch.Generator().manual_seed(11)
        )
        return torch.cat([torch.tensor([chosen]), ends, size - 1 - ends, drawn])


def case_of(
    actions: Actions, engine: str, dtype: torch.dtype, distinct: int, **more: Any
) -> Case:
    """A policy with an RBF kernel that knows ``distinct`` actions."""
    length = LENGTH if engine == "product" else LENGTH_FREE
    return Case(actions, rbf(length), engine, dtype, distinct, length=length, **more)


def parts_of(
    numbers: Tensor | None, size: int, step: int
) -> Iterator[tuple[Tensor, slice]]:
    """``numbers``, or all of ``size``, a few at a time, and where they stand."""
    for start in range(0, size if numbers is None else len(numbers), step):
        where = slice(start, start + step)
        if numbers is None:
            yield torch.arange(start, min(start + step, size)), where
        else:
            yield numbers[where], where


def index_of(choice: cb.Choice) -> Tensor:
    """The number of the action chosen, ``(*trials,)``; an error on a box."""
    if choice.index is None:
        raise TypeError(f"a numbered action is wanted; got {choice}")
    return choice.index


def both_of(posterior: cb.Posterior) -> tuple[Tensor, Tensor]:
    """Means and deviations ``(2, N)`` of the reward and the only cost."""
    reward, costs = posterior.reward, posterior.costs
    if costs is None:
        raise TypeError("a policy with one cost is wanted")
    mean, std = (reward.mean, costs.mean[0]), (reward.std, costs.std[0])
    return torch.stack(mean), torch.stack(std)


def score_of(mean: Tensor, std: Tensor, phi: float) -> Tensor:
    """``f - phi g`` of clipped bounds, ``mean (2, n)``, ``std (n,)`` or ``(2, n)``."""
    up, down = (std, std) if std.dim() == 1 else (std[0], std[1])
    f = (mean[0] + BETA * up).clamp_(-BOUND, BOUND)
    g = (mean[1] - BETA * down).clamp_(-BOUND, BOUND)
    return f - phi * g


# -- by hand ---------------------------------------------------------------------------


class Dense:
    """The hand-written solve: one Cholesky factor, one solve for both functions."""

    FORMS = ("triangular", "cholesky_solve", "inverse factor")

    def __init__(
        self, case: Case, dtype: torch.dtype, device: torch.device = CPU
    ) -> None:
        index, count, mean = case.data.merged()
        self.rbf = isinstance(case.kernel, RBFKernel)
        self.length, self.dtype = case.length, dtype
        x = case.points(index).to(device) / case.length
        gram = self._kernel(x, x)
        gram.diagonal().add_((NOISE / count).to(device))
        factor = torch.linalg.cholesky(gram)
        alpha = torch.cholesky_solve(mean.to(device), factor)
        self.x, self.factor, self.alpha = (v.to(dtype) for v in (x, factor, alpha))
        self._inverse: Tensor | None = None

    def _kernel(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.rbf:
            return torch.cdist(x, y, p=1).neg_().exp_()
        own, other = (x * x).sum(-1, keepdim=True), (y * y).sum(-1)
        cross = (x @ y.mT).mul_(-2).add_(other).add_(own)
        values: Tensor = cross.clamp_min_(0).mul_(-0.5).exp_()
        return values

    def posterior(self, points: Tensor, form: str) -> tuple[Tensor, Tensor]:
        """Means ``(2, n)`` and variance ``(n,)``."""
        k = self._kernel(self.x, points.to(self.dtype) / self.length)
        mean = self.alpha.mT @ k
        if form == "triangular":
            half = torch.linalg.solve_triangular(self.factor, k, upper=False)
            return mean, 1 - half.mul_(half).sum(0)
        if form == "cholesky_solve":
            return mean, 1 - torch.cholesky_solve(k, self.factor).mul_(k).sum(0)
        if self._inverse is None:
            eye = torch.eye(len(self.x), dtype=self.dtype, device=self.x.device)
            self._inverse = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        half = self._inverse @ k
        return mean, 1 - half.mul_(half).sum(0)
