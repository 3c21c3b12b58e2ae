"""The problems on which defaults are chosen and peers are compared.

* ``table q``: the measured stream processor, 3 840 configurations of 6 knobs,
  throughput against the logarithm of latency, the limit at its quantile ``q``. (The
  plain latency of half of the configurations is the least one within 2 % of a spread:
  what exploring costs could not be made up for.) Left out where its file is not found.
* ``gp d m s``: random functions of a Gaussian process on a free-form set in ``d``
  dimensions, ``m`` costs, of which a share ``s`` of all actions keeps the limits; each
  seed draws functions of its own.
* BoTorch's constrained functions on Sobol points, on logarithmic scales.

Noise has a deviation of 5 % of each function's range. Seeds are the trials of a batch.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from botorch.test_functions import synthetic
from torch import Tensor

import cbandit as cb
from cbandit.problems.data import folders

__all__ = ["PROBLEMS", "Stated", "found"]

NOISE = 0.05  # of the range, the noise's deviation
POINTS = 400  # of sets that are not measured
TABLE = "storm_rollingsort_ssj.csv"
FUNCTIONS = {
    "ConstrainedGramacy": synthetic.ConstrainedGramacy,
    "ConstrainedHartmann": synthetic.ConstrainedHartmann,
    "PressureVessel": synthetic.PressureVessel,
    "WeldedBeam": synthetic.WeldedBeamSO,
}
DRAWN = [
    (1, 1, 0.25),
    (2, 1, 0.10),
    (2, 2, 0.25),
    (3, 1, 0.02),
    (3, 2, 0.60),
    (4, 2, 0.10),
    (4, 3, 0.25),
    (5, 1, 0.60),
    (6, 2, 0.10),
    (6, 3, 0.02),
]


@dataclass(frozen=True)
class Stated:
    """One problem for a batch of seeds.

    Args:
        name: of the problem.
        world: a table.
        feasible: the share of actions that keep all limits, the mean over seeds.
        scale: the rewards' deviation over the set, ``(n,)``.
        cost_scale: likewise of the costs, ``(n, m)``.
    """

    name: str
    world: cb.problems.Table
    feasible: float
    scale: Tensor
    cost_scale: Tensor


def found(name: str, seeds: range) -> Stated | None:
    """Return a problem for these seeds; ``None`` where its data are not found."""
    made = PROBLEMS[name](seeds)
    if made is None:
        return None
    x, f, g, tau = made  # N x d; n x N; n x m x N; n x m
    noise = (NOISE * (f.amax(-1) - f.amin(-1))).square()
    cost_noise = (NOISE * (g.amax(-1) - g.amin(-1))).square()
    world = cb.problems.Table(
        f, g, noise, cost_noise, actions=cb.Finite(x), trials=seeds, thresholds=tau
    )
    share = (g <= tau.unsqueeze(-1)).all(1).double().mean()
    return Stated(name, world, float(share), f.std(-1), g.std(-1))


Made = tuple[Tensor, Tensor, Tensor, Tensor]


def _table(quantile: float, seeds: range) -> Made | None:
    """Return the measured table, throughput against latency."""
    found = [path for path in (each / TABLE for each in folders()) if path.is_file()]
    if not found:
        return None
    path = found[0]
    with path.open() as file:
        rows = [[float(v) for v in row] for row in list(csv.reader(file))[1:]]
    every = torch.tensor(rows, dtype=torch.float64)
    x, f, g = every[:, :-2], every[:, -2], every[:, -1].log()
    tau = g.quantile(quantile).reshape(1, 1)
    n = len(seeds)
    return x, f.expand(n, -1), g.expand(n, 1, -1), tau.expand(n, 1)


def _drawn(dim: int, m: int, share: float, seeds: range) -> Made:
    """Return random functions, Matern 5/2, with limits that a share of actions keep."""
    x = _sobol(dim)
    r = (torch.cdist(x, x) / (0.25 * dim**0.5)) * 5**0.5
    kernel = (1 + r + r.square() / 3) * (-r).exp()
    root = torch.linalg.cholesky(kernel + 1e-9 * torch.eye(len(x), dtype=torch.float64))
    values = []
    for seed in seeds:
        g = torch.Generator().manual_seed(10_000 * dim + 1000 * m + seed)
        z = torch.randn(len(x), 1 + m, generator=g, dtype=torch.float64)
        values.append((root @ z).mT)
    both = torch.stack(values)
    f, g_all = both[:, 0], both[:, 1:]
    # one quantile for all costs of a seed, so that together they keep the share
    ranks = g_all.argsort(-1).argsort(-1).amax(1)  # n x N
    level = ranks.sort(-1).values[:, max(1, round(share * len(x))) - 1]
    tau = g_all.sort(-1).values.gather(-1, level.view(-1, 1, 1).expand(-1, m, 1))
    return x, f, g_all, tau[..., 0]


def _borrowed(name: str, seeds: range) -> Made:
    """Return one of BoTorch's functions, its values on logarithmic scales."""
    function = FUNCTIONS[name]()
    lower, upper = function.bounds.double()
    x = _sobol(function.dim)
    at = lower + (upper - lower) * x
    f, g = -function(at).double(), -function.evaluate_slack(at).double().mT
    f, g = _log(f.unsqueeze(0))[0], _log(g)
    n, m = len(seeds), len(g)
    return x, f.expand(n, -1), g.expand(n, m, -1), torch.zeros(n, m).double()


def _log(y: Tensor) -> Tensor:
    """Return ``sign(y) log(1 + |y| / u)``, nine tenths of the values lying above u."""
    unit = y.abs().quantile(0.1, dim=-1, keepdim=True).clamp_min(1e-12)
    return y.sign() * (y.abs() / unit).log1p()


def _sobol(dim: int) -> Tensor:
    engine = torch.quasirandom.SobolEngine(dim, scramble=True, seed=dim)
    return engine.draw(POINTS, dtype=torch.float64)


PROBLEMS: dict[str, Callable[[range], Made | None]] = {
    **{f"table {q}": partial(_table, q) for q in (0.1, 0.25, 0.5, 0.85)},
    **{f"gp {d} {m} {s:g}": partial(_drawn, d, m, s) for d, m, s in DRAWN},
    **{name: partial(_borrowed, name) for name in FUNCTIONS},
}
