"""The climbs of the box search beside L-BFGS-B, on the scores that policies climb.

    python benchmarks/speed/climbs.py [--quick] [--json FILE]

Twelve posteriors of a reward and two costs, from 1 to 20 dimensions, 15 to 150 points
seen, RBF and Matern-5/2 in turn. On each the scores of CKB-UCB (clipped), RPOL-UCB and
RPOL-TS (rectified: with kinks, on which the maximum often lies). The contenders:

- the library's search of a box, ``maximise_box``;
- ``optimize_acqf`` from 8 restarts of 1 024 raw samples, and from 32 of 4 096;
- scipy's L-BFGS-B from the library's own starts, each climbed to its end.

A contender falls short by the gap of its value to the best that any of them found, in
ranges of the score over 4 096 Sobol points. Evaluations are of single points; times are
the process's own. The last section has trials side by side.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.quasirandom import SobolEngine

import cbandit as cb
from benchmarks.common.internals import (
    Climbs,
    Streams,
    maximise_box,
    solver_of,
    starting_points,
)
from benchmarks.common.report import Row, row_of, say
from benchmarks.common.report import main as report_main
from cbandit import scores

Score = Callable[[Tensor, Tensor], Tensor]
Estimate = Callable[[Tensor], Tensor]
F64 = torch.float64

POSTERIORS = (  # dimensions, points seen
    (1, 15), (2, 30), (2, 100), (3, 60), (4, 40), (5, 120),
    (6, 60), (8, 150), (10, 60), (12, 150), (15, 80), (20, 150),
)  # fmt: skip
RULES = ("CKB-UCB", "RPOL-UCB", "RPOL-TS")
BETA, NOISE, NEAR = 2.0, 1e-3, 1e-4


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    posteriors: tuple[tuple[int, int], ...] = POSTERIORS
    more: tuple[int, int] = (32, 4096)
    trials: int = 10
    batches: tuple[tuple[int, int], ...] = ((2, 100), (6, 60), (12, 150))


QUICK = Sizes(posteriors=((2, 15),), more=(8, 1024), trials=2, batches=((2, 15),))


class Case:
    """A posterior and a score of it, over the unit cube.

    Args:
        dim: its dimension.
        seen: how many points were seen.
        rule: one of :data:`RULES`.
        trials: ``None``, or how many draws side by side.
        seed: of points, outcomes and draws.
    """

    def __init__(
        self, dim: int, seen: int, rule: str, trials: int | None = None, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(100 * dim + seed)
        self.box = cb.Box([0.0] * dim, [1.0] * dim)
        gp = cb.GP(_kernel(dim, seed), noise=NOISE)
        explore = cb.TS(1.0) if rule == "RPOL-TS" else cb.UCB(BETA)
        policy = cb.RPOL(
            self.box, reward=gp, costs=[gp, gp], explore=explore, trials=trials
        )
        x = torch.rand(seen, dim, generator=generator, dtype=F64)
        y = _world(x) + NOISE**0.5 * torch.randn(
            seen, 3, generator=generator, dtype=F64
        )
        policy.observe(x=x, reward=y[:, 0], cost=y[:, 1:])
        self.count = 1 if trials is None else trials
        self.streams = Streams(seed, trials)
        draws = Streams(seed, trials, "draw") if rule == "RPOL-TS" else None
        self._moments = solver_of(policy, draws)
        signs = [1.0, 1.0, 1.0] if draws is not None else [BETA, -BETA, -BETA]
        self._signs = torch.tensor(signs, dtype=F64).unsqueeze(-1)
        self._clip = 1.0 if rule == "CKB-UCB" else None
        weight = torch.tensor([[2.0, 5.0]], dtype=F64)
        rated = scores.primal_dual if rule == "CKB-UCB" else scores.rectified
        self.score: Score = lambda f, g: rated(f, g, weight)
        self.incumbents = x[-16:].expand(self.count, -1, -1)
        self.points = 0

    def estimate(self, x: Tensor) -> Tensor:
        """Estimates ``(T, 3, n)`` at ``x (T, n, d)``; counts the points."""
        self.points += x.shape[-2]
        mean, spread = self._moments(x)
        values = mean + self._signs * spread
        return values if self._clip is None else values.clamp(-self._clip, self._clip)

    def value(self, x: Tensor) -> Tensor:
        """Scores ``(T, n)``."""
        estimates = self.estimate(x)
        return self.score(estimates[:, 0], estimates[:, 1:])


def _kernel(dim: int, seed: int) -> Any:
    from gpytorch.kernels import MaternKernel, RBFKernel

    kernel = (RBFKernel() if (dim + seed) % 2 else MaternKernel(nu=2.5)).double()
    kernel.lengthscale = torch.tensor(0.3 * dim**0.5, dtype=F64)
    return kernel


def _world(x: Tensor) -> Tensor:
    """Reward and two costs ``(n, 3)``, each with several hills."""
    ways = torch.linspace(0.5, 1.5, x.shape[-1], dtype=F64)
    f = torch.sin(5 * x * ways).mean(-1) + 0.5 * torch.cos(7 * x[:, 0])
    g = [torch.cos(4 * x * ways.flip(0)).mean(-1), (x - 0.4).square().mean(-1) - 0.05]
    return torch.stack([f, *g], -1)


# -- contenders: each returns the best value, one a trial ------------------------------


def ours(case: Case, climbs: Climbs) -> Tensor:
    """The library's search."""
    best = maximise_box(
        case.box, case.estimate, case.score, case.streams, case.incumbents, climbs
    )
    return best.value


def by_botorch(case: Case, restarts: int, raw: int) -> Tensor:
    """``optimize_acqf``, the first trial's score."""
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.optim.optimize import optimize_acqf

    class Scored(AcquisitionFunction):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)  # it has no model
            self.set_X_pending(None)

        def forward(self, x: Tensor) -> Tensor:
            points = x.squeeze(-2).expand(case.count, -1, -1)
            return case.value(points)[0]

    bounds = torch.stack([case.box.lower, case.box.upper])
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        _, value = optimize_acqf(
            Scored(), bounds, q=1, num_restarts=restarts, raw_samples=raw
        )
    return torch.as_tensor(value).reshape(1)


def by_scipy(case: Case) -> Tensor:
    """scipy's L-BFGS-B from the library's starts, the first trial's score."""
    starts, _, _ = starting_points(case.box, case.value, case.streams, case.incumbents)
    best = -np.inf

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.tensor(z, dtype=F64, requires_grad=True)
        value = -case.value(x.expand(case.count, 1, -1))[0, 0]
        (gradient,) = torch.autograd.grad(value, x)
        return float(value.detach()), gradient.numpy()

    bounds = [(0.0, 1.0)] * case.box.dim
    for start in starts[0].numpy():
        end = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B")
        best = max(best, -float(end.fun))
    return torch.tensor([best])


# -- rows ------------------------------------------------------------------------------


def compared(sizes: Sizes, rule: str) -> list[Row]:
    """All posteriors under one rule: shortfalls, evaluations and times."""
    section = f"{rule}: {len(sizes.posteriors)} posteriors"
    restarts, raw = sizes.more
    contenders: dict[str, Callable[[Case, Climbs], Tensor]] = {
        "cbandit": ours,
        "optimize_acqf, 8 of 1 024": lambda case, _: by_botorch(case, 8, 1024),
        f"optimize_acqf, {restarts} of {raw}": lambda c, _: by_botorch(c, *sizes.more),
        "L-BFGS-B from our starts": lambda case, _: by_scipy(case),
    }
    gaps: dict[str, list[float]] = {name: [] for name in contenders}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    points: dict[str, list[int]] = {name: [] for name in contenders}
    climbs = Climbs()
    for number, (dim, seen) in enumerate(sizes.posteriors):
        say(f"{rule}, d = {dim}, {seen} points")
        case, values = Case(dim, seen, rule, seed=number), {}
        for name, find in contenders.items():
            case.points, case.streams = 0, Streams(number)
            start = time.process_time()
            values[name] = float(find(case, climbs)[0])
            seconds[name].append(time.process_time() - start)
            points[name].append(case.points)
        sobol = SobolEngine(dim).draw(4096, dtype=F64)
        with torch.no_grad():
            size = float(np.ptp(case.value(sobol.unsqueeze(0)).numpy()))
        for name, value in values.items():
            gaps[name].append((max(values.values()) - value) / size)
    rows = []
    for name in contenders:
        best = sum(gap <= NEAR for gap in gaps[name])
        note = (
            f"within {NEAR:g} of the best on {best} of {len(gaps[name])}, mean gap "
            f"{statistics.mean(gaps[name]):.1e}, worst {max(gaps[name]):.1e} (d = "
            f"{sizes.posteriors[int(np.argmax(gaps[name]))][0]}); "
            f"{statistics.median(points[name]):.0f} evaluations"
        )
        if name == "cbandit":
            note += f"; {climbs}"
        rows.append(
            row_of(
                section,
                name,
                statistics.median(seconds[name]),
                ours=name == "cbandit",
                note=note,
                gaps=gaps[name],
                evaluations=points[name],
            )
        )
    return rows


def side_by_side(sizes: Sizes) -> list[Row]:
    """Searches of several trials at once, beside one at a time."""
    section = f"{sizes.trials} trials of RPOL-TS, time for each trial"
    rows = []
    for dim, seen in sizes.batches:
        say(f"trials side by side, d = {dim}")
        single = Case(dim, seen, "RPOL-TS")
        many = Case(dim, seen, "RPOL-TS", sizes.trials)
        contenders: dict[str, tuple[Callable[[], Tensor], int]] = {
            "cbandit, together": (partial(ours, many, Climbs()), sizes.trials),
            "cbandit, one trial": (partial(ours, single, Climbs()), 1),
            "optimize_acqf, one trial": (partial(by_botorch, single, 8, 1024), 1),
        }
        for name, (find, trials) in contenders.items():
            find()
            start = time.process_time()
            find()
            each = (time.process_time() - start) / trials
            mine = name.startswith("cbandit")
            rows.append(row_of(section, f"{name}, d = {dim}", each, ours=mine))
    return rows


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    import botorch.models  # noqa: F401  (an import is no part of a search)

    by_botorch(Case(1, 15, "RPOL-TS"), 8, 1024)  # all code once, not counted
    ours(Case(1, 15, "RPOL-TS"), Climbs())
    rows = [row for rule in RULES for row in compared(sizes, rule)]
    return rows + side_by_side(sizes)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
