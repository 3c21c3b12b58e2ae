"""Windows and delays: the cost of a round when old rounds leave and news is late.

    python benchmarks/speed/feedback.py [--quick] [--json FILE]

Goals: with a sliding window of ``W`` rounds, round 10 000 costs as much as round
``2 W``, and memory stays; with 100 choices outstanding among 10^5 actions a round costs
at most twice as much as when feedback comes at once.

Timings are medians of rounds; the policies with and without delay take turns. The
posteriors that were timed are compared with dense float64 solves on the rounds that
count, in parts of the prior deviation.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

import cbandit as cb
from benchmarks.common.case import both_of, matern, rbf
from benchmarks.common.report import Row, check_of, resident, row_of, say
from benchmarks.common.report import main as report_main
from benchmarks.common.timing import medians

NOISE = 0.05
LIMIT = 1e-6  # of the prior deviation
GROWN = 0.05  # of the memory at round 2 W


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    side: int = 61  # of the drifting world's grid
    window: int = 100
    rounds: int = 10_000
    free: int = 100_000  # points under delay
    outstanding: int = 100
    warm: int = 200  # rounds before those timed
    timed: int = 60


QUICK = Sizes(window=50, rounds=1000, free=20_000, outstanding=50, warm=100, timed=30)


def policy_of(actions: Any, kernel: Kernel, feedback: Any) -> cb.RPOL:
    """RPOL-UCB with this kernel for reward and cost."""
    gp = cb.GP(kernel, noise=NOISE)
    return cb.RPOL(
        actions,
        reward=gp,
        costs=gp,
        explore=cb.UCB(1.0),
        dtype=torch.float64,
        feedback=feedback,
    )


def noisy(x: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Reward and cost at ``x (d,)``, seen with noise."""
    f = float(-x[0].sin() - x[1])
    g = float(x[0].sin() * x[1].sin() + 0.95)
    a, b = torch.randn(2, generator=generator, dtype=torch.float64).tolist()
    return f + NOISE**0.5 * a, g + NOISE**0.5 * b


def error(
    policy: cb.RPOL, kernel: Kernel, x: Tensor, y: Tensor, at: Tensor
) -> dict[str, Any]:
    """Compare the policy's posterior at some actions with a dense solve.

    Args:
        policy: whose posterior it is.
        kernel: of both functions, of prior variance 1.
        x: actions of the rounds that count, ``(t, d)``.
        y: what was told of them, ``(t, 2)``.
        at: numbers of the actions to compare at, ``(n,)``.
    """
    with torch.no_grad():
        gram = kernel(x).to_dense() + NOISE * torch.eye(len(x), dtype=x.dtype)
        cross = kernel(x, policy.actions.points(at)).to_dense()
    solved = torch.linalg.solve(gram, torch.cat([y, cross], -1))
    mean = solved[:, :2].mT @ cross
    std = (1 - (cross * solved[:, 2:]).sum(0)).clamp_min(0).sqrt()
    means, stds = both_of(policy.posterior())
    gap = max(
        float((means[:, at] - mean).abs().max()),
        float((stds[:, at] - std).abs().max()),
    )
    return check_of("error, prior deviations", gap, LIMIT)


# -- a window --------------------------------------------------------------------------


def sliding(sizes: Sizes, kernel: Kernel, name: str) -> list[Row]:
    """Rounds while the window fills, once it is full, and at the end."""
    window, rounds = sizes.window, sizes.rounds
    section = f"sliding window of {window}, {sizes.side} x {sizes.side} actions, {name}"
    say(section)
    axis = torch.linspace(0, 6, sizes.side, dtype=torch.float64)
    policy = policy_of(cb.ProductGrid([axis, axis]), kernel, cb.Sliding(window))
    generator = torch.Generator().manual_seed(0)
    seconds: list[float] = []
    kept: list[tuple[Tensor, tuple[float, float]]] = []
    early = 0
    for t in range(1, rounds + 1):
        begun = time.perf_counter()
        choice = policy.ask()
        seconds.append(time.perf_counter() - begun)
        seen = noisy(choice.x, generator)
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
    checks = [
        error(policy, kernel, x, y, torch.arange(0, policy.actions.size, 37)),
        check_of("growth of memory since round 2 W", grown, GROWN),
    ]
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
            section,
            f"a round, rounds {window // 2 + 1} to {window}: filling",
            filling,
            ours=True,
        ),
        row_of(
            section,
            f"a round, rounds {window + 1} to {2 * window}: full",
            full,
            ours=True,
        ),
        row_of(
            section,
            f"a round, the last {window} of {rounds}",
            last,
            ours=True,
            ratio=last / full,
            goal=("<=", 1.2),
            checks=checks,
            note=f"{last / filling:.2f} x a round of the first window",
        ),
    ]


# -- delays ----------------------------------------------------------------------------


class Late:
    """A policy whose feedback comes some rounds late.

    Its choices are prescribed, so that every delay tries the same distinct actions.
    """

    def __init__(self, policy: cb.RPOL, order: Tensor, late: int) -> None:
        self.policy, self.order, self.late = policy, order, late
        self.generator = torch.Generator().manual_seed(2)
        self.y = torch.zeros(len(order), 2, dtype=torch.float64)  # what was told
        self.waiting: list[tuple[cb.Choice, tuple[float, float]]] = []

    def round(self) -> float:
        """Seconds of one ask, and of the tell that is due."""
        t = self.policy.t
        begun = time.perf_counter()
        choice = self.policy.ask(among=self.order[t : t + 1])
        seconds = time.perf_counter() - begun
        self.waiting.append((choice, noisy(choice.x, self.generator)))
        if len(self.waiting) > self.late:
            known, seen = self.waiting.pop(0)
            self.y[known.t - 1] = torch.tensor(seen, dtype=torch.float64)
            begun = time.perf_counter()
            self.policy.tell(known, reward=seen[0], cost=seen[1])
            seconds += time.perf_counter() - begun
        return seconds


def delayed(sizes: Sizes) -> list[Row]:
    """Rounds with many choices outstanding, and with none."""
    total = sizes.warm + sizes.timed
    section = (
        f"{sizes.free} actions, Matern-5/2 in 3-d, rounds {sizes.warm + 1} to {total}"
    )
    say(section)
    draws = torch.Generator().manual_seed(0)
    points = torch.rand(sizes.free, 3, generator=draws, dtype=torch.float64)
    actions, kernel = cb.Finite(points), matern(0.3)
    at = torch.arange(0, sizes.free, sizes.free // 200)
    draws.manual_seed(1)
    order = torch.randperm(actions.size, generator=draws)[:total]
    cases = {
        0: Late(policy_of(actions, kernel, None), order, 0),
        sizes.outstanding: Late(
            policy_of(actions, kernel, cb.Delayed(sizes.outstanding)),
            order,
            sizes.outstanding,
        ),
    }
    took = medians(
        {late: case.round for late, case in cases.items()}, sizes.timed, sizes.warm
    )
    return [
        row_of(
            section,
            f"a round, {late} choices outstanding" if late else "a round, undelayed",
            took[late],
            ours=True,
            ratio=took[late] / took[0] if late else None,
            goal=("<=", 2.0) if late else None,
            checks=[error(case.policy, kernel, actions.points(order), case.y, at)],
        )
        for late, case in cases.items()
    ]


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    rows = sliding(sizes, rbf(1.0), "RBF")
    rows += sliding(sizes, matern(1.0), "Matern-5/2")
    return rows + delayed(sizes)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
