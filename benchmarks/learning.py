"""How much a default belief learns from few data: fits, mean, noise and lengthscales.

    python benchmarks/learning.py [--quick] [--json FILE]

Each of sixteen functions of 2 to 20 coordinates is told to a belief at 8 to 30 points.
These are drawn uniformly, or as a policy gathers them: a third uniformly, then ever
closer to the best three so far. Noise is 0, 10 or 50 % of a function's spread. Errors
are at 300 other points, drawn alike. The variants differ in one thing each:

* before: fits at 20, 40, ... observations, no learned mean, and BoTorch's priors: the
  noise LogNormal(-4, 1), lengthscales' logs sqrt(3) wide around sqrt(2) + log(d) / 2;
* early: fitted at 5 observations, then after a fifth more;
* mean, noise, lengthscales: early, and ``cb.GP.default``'s mean, noise prior or
  lengthscale prior;
* all: ``cb.GP.default`` as it is.

Columns: the root mean square error (geometric mean over functions, in those of
"before"), how many functions are better and worse by 5 %, the mean log score (minus the
log density in spreads, deviations counting as a thousandth at least: lower is better)
and how many true values lie within two deviations (0.95 where right). The last section
is the processor time of one fit of four functions.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gpytorch
import torch
from botorch.test_functions import synthetic
from gpytorch.priors import LogNormalPrior
from torch import Tensor

import cbandit as cb
from report import Row, row_of, say
from report import main as report_main

F64 = torch.float64
TESTS, FLOOR = 300, 1e-3  # points; the least deviation, in spreads
BETTER = 0.05  # a difference that counts
GOAL = 0.05  # seconds of processor time for a fit of four functions

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    counts: tuple[int, ...] = (8, 15, 30)
    noises: tuple[float, ...] = (0.0, 0.1, 0.5)
    seeds: range = range(3)
    functions: int = 16
    fitted: tuple[int, ...] = (12, 25, 50, 100)


QUICK = Sizes((15,), (0.1,), range(1), 4, (12,))


def named(name: str, **settings: int) -> Function:
    """Return one of BoTorch's test functions, on the unit cube."""
    function = getattr(synthetic, name)(**settings)
    low, high = function.bounds.to(F64)
    return lambda z: function(low + (high - low) * z)


def bowl(dim: int, seed: int) -> Function:
    """Return a rotated bowl, a hundred times as steep one way as another."""
    draws = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=draws, dtype=F64))[0]
    steep = 10 ** torch.linspace(0, 2, dim, dtype=F64)
    center = 0.2 + 0.6 * torch.rand(dim, generator=draws, dtype=F64)
    return lambda z: (((z - center) @ turn).square() * steep).sum(-1)


def waves(dim: int, seed: int) -> Function:
    """Return six waves in random directions."""
    draws = torch.Generator().manual_seed(seed)
    way = 6 / math.sqrt(dim) * torch.randn(6, dim, generator=draws, dtype=F64)
    phase = 2 * torch.pi * torch.rand(6, generator=draws, dtype=F64)
    return lambda z: torch.sin(z @ way.T + phase).sum(-1)


def some_of(function: Function, at: Sequence[int]) -> Function:
    """Return a function of some coordinates; the others do nothing."""
    return lambda z: function(z[..., list(at)])


def apart(dim: int, seed: int) -> Function:
    """Return a sum of functions of one coordinate each."""
    draws = torch.Generator().manual_seed(seed)
    weight = 3 * torch.rand(dim, generator=draws, dtype=F64)
    phase = 6 * torch.rand(dim, generator=draws, dtype=F64)
    return lambda z: (weight * torch.sin(4 * z + phase) + z).sum(-1)


FUNCTIONS: dict[str, tuple[int, Function]] = {
    "Branin": (2, named("Branin")),
    "Hartmann 6": (6, named("Hartmann", dim=6)),
    "bowl 10": (10, bowl(10, 3)),
    "waves 4": (4, waves(4, 5)),
    "Ackley 3": (3, named("Ackley", dim=3)),
    "Ackley 10": (10, named("Ackley", dim=10)),
    "Hartmann 3": (3, named("Hartmann", dim=3)),
    "Rosenbrock 4": (4, named("Rosenbrock", dim=4)),
    "Levy 5": (5, named("Levy", dim=5)),
    "StyblinskiTang 4": (4, named("StyblinskiTang", dim=4)),
    "bowl 2": (2, bowl(2, 1)),
    "bowl 6": (6, bowl(6, 2)),
    "waves 8": (8, waves(8, 6)),
    "sum 7": (7, apart(7, 7)),
    "Branin in 10": (10, some_of(named("Branin"), (2, 7))),
    "Hartmann 6 in 20": (
        20,
        some_of(named("Hartmann", dim=6), (0, 3, 5, 8, 13, 19)),
    ),
}


def box_of(dim: int) -> cb.Box:
    """Return the unit cube."""
    return cb.Box([0.0] * dim, [1.0] * dim)


def belief(box: cb.Box, learned: Sequence[str]) -> cb.GP:
    """Return a belief in which only what is ``learned`` is as it is by default."""
    gp = cb.GP.default(box)
    gp.learn_mean = "mean" in learned
    if "noise" not in learned:
        gp.noise_prior = LogNormalPrior(-4.0, 1.0)
    if "lengthscales" not in learned:
        center = math.sqrt(2.0) + 0.5 * math.log(box.dim)
        gp.kernel = gpytorch.kernels.RBFKernel(
            ard_num_dims=box.dim,
            lengthscale_prior=LogNormalPrior(center, math.sqrt(3.0)),
        ).double()
        gp.kernel.lengthscale = math.exp(center - 3.0)
    if "early" not in learned:
        gp.refit_every = 20
    return gp


VARIANTS = {
    "before": (),
    "early": ("early",),
    "mean": ("early", "mean"),
    "noise": ("early", "noise"),
    "lengthscales": ("early", "lengthscales"),
    "all": ("early", "mean", "noise", "lengthscales"),
}


def gathered(
    function: Function, dim: int, count: int, draws: torch.Generator
) -> Tensor:
    """Return points as a policy gathers them, ``(n, d)``."""
    x = torch.rand(max(3, count // 3), dim, generator=draws, dtype=F64)
    while len(x) < count:
        best = function(x).argsort()[:3]
        pick = best[int(torch.randint(0, len(best), (1,), generator=draws))]
        reach = 0.25 * (1 - len(x) / count) + 0.03
        step = reach * torch.randn(dim, generator=draws, dtype=F64)
        x = torch.cat([x, (x[pick] + step).clamp(0, 1).unsqueeze(0)])
    return x


def points(
    how: str, function: Function, dim: int, count: int, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return points to learn from and points to judge at."""
    if how == "uniform":
        x = torch.rand(count + TESTS, dim, generator=draws, dtype=F64)
        return x[:count], x[count:]
    x = gathered(function, dim, count, draws)
    near = x[torch.randint(count // 2, count, (TESTS,), generator=draws)]
    step = 0.1 * torch.randn(TESTS, dim, generator=draws, dtype=F64)
    return x, (near + step).clamp(0, 1)


def scores(
    name: str, how: str, count: int, noise: float, seed: int
) -> dict[str, tuple[float, float, float]]:
    """Return error, log score and share within two deviations of every variant."""
    dim, function = FUNCTIONS[name]
    draws = torch.Generator().manual_seed(1000 * seed + count)
    x, at = points(how, function, dim, count, draws)
    spread = function(torch.rand(2000, dim, generator=draws, dtype=F64)).std()
    told = function(x)
    told = told + noise * spread * torch.randn(count, generator=draws, dtype=F64)
    truth, box, out = function(at), box_of(dim), {}
    for variant, learned in VARIANTS.items():
        gp = belief(box, learned)
        first = gp.fitted_to(count)
        gp.refit_every = None  # fits are called here, when they would come
        policy = cb.GPUCB(box, reward=gp)
        policy.observe(x=x[:first], reward=told[:first])
        if first:
            policy.refit()
        if first < count:
            policy.observe(x=x[first:], reward=told[first:])
        seen = policy.posterior(at).reward
        error = (seen.mean - truth) / spread
        std = (seen.std / spread).clamp_min(FLOOR)
        log_score = 0.5 * (error / std).square() + std.log()
        within = (error.abs() <= 2 * std).double()
        rmse = error.square().mean().sqrt()
        out[variant] = float(rmse), float(log_score.mean()), float(within.mean())
    return out


def rows_of(how: str, noise: float, count: int, sizes: Sizes) -> list[Row]:
    """Return a row for every variant."""
    runs: dict[str, list[dict[str, tuple[float, float, float]]]] = {}
    for name in list(FUNCTIONS)[: sizes.functions]:
        runs[name] = [scores(name, how, count, noise, seed) for seed in sizes.seeds]
    rows = []
    for variant in VARIANTS:
        ratios = [
            statistics.fmean(math.log(run[variant][0] / run["before"][0]) for run in of)
            for of in runs.values()
        ]
        logs = [run[variant][1] for of in runs.values() for run in of]
        within = [run[variant][2] for of in runs.values() for run in of]
        better = sum(ratio < math.log(1 - BETTER) for ratio in ratios)
        worse = sum(ratio > math.log(1 + BETTER) for ratio in ratios)
        columns = (
            f"{math.exp(statistics.fmean(ratios)):6.2f} {better:4} {worse:4} "
            f"{statistics.fmean(logs):8.2f} {statistics.fmean(within):6.2f}"
        )
        section = (
            f"{count} points, {how}, noise {noise:.0%}: RMSE, better, worse, log "
            "score, within two deviations"
        )
        rows.append(row_of(section, variant, columns=columns))
    return rows


def fit_seconds(dim: int, count: int) -> float:
    """Return the processor time of a fit of four functions, begun at the last one."""
    box = box_of(dim)
    x = torch.rand(count, dim, generator=torch.Generator().manual_seed(7), dtype=F64)
    gp = belief(box, VARIANTS["all"])
    gp.refit_every = None
    told = [waves(dim, seed)(x) for seed in range(4)]
    before = count * 5 // 6
    policy = cb.RPOL(box, reward=gp, costs=[gp] * 3)
    costs = torch.stack(told[1:], -1)
    policy.observe(x=x[:before], reward=told[0][:before], cost=costs[:before])
    policy.refit()
    policy.observe(x=x[before:], reward=told[0][before:], cost=costs[before:])
    took = []
    for _ in range(5):
        again = copy.deepcopy(policy)
        begun = time.process_time()
        again.refit()
        took.append(time.process_time() - begun)
    return min(took)


def measure(sizes: Sizes) -> list[Row]:
    """Return all rows."""
    warnings.simplefilter("ignore", UserWarning)
    rows = []
    for how in ("uniform", "gathered"):
        for noise in sizes.noises:
            for count in sizes.counts:
                say(f"{count} points, {how}, noise {noise:.0%}")
                rows += rows_of(how, noise, count, sizes)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for dim in (6, 10):
        for count in sizes.fitted:
            seconds = fit_seconds(dim, count)
            what = f"four functions of {dim} coordinates, {count} observations"
            section = "processor time of a fit"
            goal = "<=", 1.0
            note = f"of {1e3 * GOAL:g} ms"
            rows.append(
                row_of(
                    section,
                    what,
                    seconds,
                    ours=True,
                    ratio=seconds / GOAL,
                    goal=goal,
                    note=note,
                )
            )
    torch.set_num_threads(threads)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
