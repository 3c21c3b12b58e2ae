"""Windows and delays: what a round costs when old rounds leave and news is late.

    cbandit bench feedback [--quick]

Claims: with a sliding window of ``W`` rounds, round 10 000 costs what round ``2 W``
does, and memory stays; with 100 choices outstanding among 10^5 actions a round costs at
most twice what it does when feedback comes at once.

Checks: the posteriors that were timed against dense float64 solves on the rounds that
count, in parts of the prior deviation.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

import cbandit as cb
from cbandit.bench.report import check_of, resident, row_of, table, this_machine
from cbandit.choice import Choice

__all__ = ["bench_feedback", "table"]

NOISE = 0.05
LIMIT = 1e-6  # of the prior deviation
GROWN = 0.05  # of the memory at round 2 W


@dataclass(frozen=True)
class _Sizes:
    side: int  # of the drifting world's grid
    window: int
    rounds: int
    free: int  # points under delay
    outstanding: int
    warm: int  # rounds before those timed
    timed: int


FULL = _Sizes(61, 100, 10_000, 100_000, 100, 200, 60)
QUICK = _Sizes(61, 50, 1000, 20_000, 50, 100, 30)


def _noisy(x: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Reward and cost at ``x (d,)``, seen with noise."""
    f = float(-x[0].sin() - x[1])
    g = float(x[0].sin() * x[1].sin() + 0.95)
    a, b = torch.randn(2, generator=generator, dtype=torch.float64).tolist()
    return f + NOISE**0.5 * a, g + NOISE**0.5 * b


def _dense(kernel: Kernel, x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Means ``(2, n)`` and deviation ``(n,)`` at ``at``, of ``y (t, 2)`` at ``x``."""
    with torch.no_grad():
        gram = kernel(x).to_dense() + NOISE * torch.eye(len(x), dtype=x.dtype)
        cross = kernel(x, at).to_dense()
    solved = torch.linalg.solve(gram, torch.cat([y, cross], -1))
    var = 1 - (cross * solved[:, 2:]).sum(0)
    return solved[:, :2].mT @ cross, var.clamp_min(0).sqrt()


def _off(
    policy: cb.RPOL, kernel: Kernel, x: Tensor, y: Tensor, at: Tensor
) -> dict[str, Any]:
    """How far the policy's posterior is from the dense one at some actions."""
    believed = policy.posterior()
    mean, std = _dense(kernel, x, y, policy.actions.at(at))
    assert believed.costs is not None
    means = torch.stack([believed.reward.mean[at], believed.costs.mean[0, at]])
    gap = max(
        float((means - mean).abs().max()),
        float((believed.reward.std[at] - std).abs().max()),
    )
    return check_of("error, prior deviations", gap, LIMIT)


def _policy(actions: Any, kernel: Kernel, **more: Any) -> cb.RPOL:
    gp = cb.GP(kernel, noise=NOISE)
    return cb.RPOL(
        actions, reward=gp, costs=gp, explore=cb.UCB(1.0), dtype=torch.float64, **more
    )


# -- a window --------------------------------------------------------------------------


def _sliding(sizes: _Sizes, kernel: Kernel, name: str) -> list[dict[str, Any]]:
    axis = torch.linspace(0, 6, sizes.side, dtype=torch.float64)
    window, rounds = sizes.window, sizes.rounds
    policy = _policy(cb.ProductGrid([axis, axis]), kernel, feedback=cb.Sliding(window))
    generator = torch.Generator().manual_seed(0)
    seconds: list[float] = []
    kept: list[tuple[Tensor, tuple[float, float]]] = []
    early = 0
    for t in range(1, rounds + 1):
        begun = time.perf_counter()
        choice = policy.ask()
        seconds.append(time.perf_counter() - begun)
        seen = _noisy(choice.x, generator)
        begun = time.perf_counter()
        policy.tell(choice, reward=seen[0], cost=seen[1])
        seconds[-1] += time.perf_counter() - begun
        kept.append((choice.x, seen))
        del kept[:-window]
        if t == 2 * window:
            early = resident(peak=False)
    grown = resident(peak=False) / early - 1
    x = torch.stack([x for x, _ in kept])
    y = torch.tensor([seen for _, seen in kept], dtype=torch.float64)
    at = torch.arange(0, policy.actions.size, 37)
    checks = [
        _off(policy, kernel, x, y, at),
        check_of("growth of memory since round 2 W", grown, GROWN),
    ]
    section = f"sliding window of {window}, {sizes.side} x {sizes.side} actions, {name}"
    filling, full, last = (
        statistics.median(part)
        for part in (
            seconds[window // 2 : window],
            seconds[window : 2 * window],
            seconds[-window:],
        )
    )
    return [
        row_of(
            section, f"a round, rounds {window // 2 + 1} to {window}: filling", filling
        ),
        row_of(section, f"a round, rounds {window + 1} to {2 * window}: full", full),
        row_of(
            section,
            f"a round, the last {window} of {rounds}",
            last,
            ratio=last / full,
            goal=("<=", 1.2),
            checks=checks,
            note=f"{last / filling:.2f} x a round of the first window",
        ),
    ]


# -- delays ----------------------------------------------------------------------------


def _rounds(policy: cb.RPOL, sizes: _Sizes, late: int) -> tuple[float, Tensor, Tensor]:
    """Seconds a round with feedback ``late`` rounds late; what was seen, and where.

    Choices are prescribed, so that both ways try the same distinct actions.
    """
    total = sizes.warm + sizes.timed
    draws = torch.Generator().manual_seed(1)
    order = torch.randperm(policy.actions.size, generator=draws)[:total]
    generator = torch.Generator().manual_seed(2)
    y = torch.zeros(total, 2, dtype=torch.float64)
    waiting: list[tuple[Choice, tuple[float, float]]] = []
    seconds = []
    for t in range(total):
        begun = time.perf_counter()
        choice = policy.ask(among=order[t : t + 1])
        spent = time.perf_counter() - begun
        waiting.append((choice, _noisy(choice.x, generator)))
        if len(waiting) > late:
            known, seen = waiting.pop(0)
            y[known.t - 1] = torch.tensor(seen, dtype=torch.float64)
            begun = time.perf_counter()
            policy.tell(known, reward=seen[0], cost=seen[1])
            spent += time.perf_counter() - begun
        seconds.append(spent)
    return statistics.median(seconds[-sizes.timed :]), policy.actions.at(order), y


def _delayed(sizes: _Sizes) -> list[dict[str, Any]]:
    draws = torch.Generator().manual_seed(0)
    points = torch.rand(sizes.free, 3, generator=draws, dtype=torch.float64)
    actions = cb.Finite(points)
    kernel = _matern(0.3)
    at = torch.arange(0, sizes.free, sizes.free // 200)
    out, reference = [], 0.0
    section = (
        f"{sizes.free} actions, Matern-5/2 in 3-d, rounds {sizes.warm + 1} to "
        f"{sizes.warm + sizes.timed}"
    )
    for late in (0, sizes.outstanding):
        feedback = cb.Delayed(sizes.outstanding) if late else None
        policy = _policy(actions, kernel, feedback=feedback)
        seconds, x, y = _rounds(policy, sizes, late)
        what = f"a round, {late} choices outstanding" if late else "a round, undelayed"
        ratio = seconds / reference if late else None
        out.append(
            row_of(
                section,
                what,
                seconds,
                ratio=ratio,
                goal=("<=", 2.0) if late else None,
                checks=[_off(policy, kernel, x, y, at)],
            )
        )
        reference = reference or seconds
    return out


def _matern(lengthscale: float) -> Kernel:
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = lengthscale
    return kernel


def bench_feedback(quick: bool = False) -> dict[str, Any]:
    """Windows and delays; see the module."""
    return _feedback(QUICK if quick else FULL, quick)


def _feedback(sizes: _Sizes, quick: bool = False) -> dict[str, Any]:
    rbf = RBFKernel().double()
    rbf.lengthscale = 1.0
    rows = _sliding(sizes, rbf, "RBF") + _sliding(sizes, _matern(1.0), "Matern-5/2")
    rows += _delayed(sizes)
    return {
        "bench": "feedback",
        "quick": quick,
        "machine": this_machine(),
        "rows": rows,
        "ok": all(check["ok"] for row in rows for check in row["checks"]),
    }
