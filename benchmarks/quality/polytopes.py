"""The search of boxes with known linear limits, on random polytopes.

    python benchmarks/quality/polytopes.py [--quick] [--json FILE]

A thousand polytopes in boxes of 2 to 20 dimensions: half-spaces around a point, some
of them close to it, a third all-positive as budgets are. On half of them a concave
quadratic, whose maximum often lies where many limits meet; on the others a sum of
twenty bumps, which has many hills. The library's search is compared with scipy's SLSQP
from the point and from spread starts, and with BoTorch's ``optimize_acqf`` with
``inequality_constraints``.

Goals: no point outside; on quadratics within 1e-6 of SLSQP's best. On bumps nothing
finds the best hill each time: the table says how often each does, within 1e-6 of the
best that any found.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import LinearConstraint, minimize
from torch import Tensor

import cbandit as cb
from benchmarks.common.internals import Streams, maximise_box
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main

Height = Callable[[Tensor], Tensor]
F64 = torch.float64
NEAR = 1e-6
BUMPS = 20


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    dims: tuple[int, ...] = (2, 5, 10, 20)
    polytopes: int = 125  # of each dimension, for each kind of function
    starts: int = 20  # of SLSQP, beside the point
    restarts: int = 8  # of optimize_acqf
    samples: int = 256
    rivals: int = 25  # polytopes on which optimize_acqf is tried too


QUICK = Sizes(dims=(2, 5), polytopes=4, starts=4, rivals=1, restarts=2, samples=32)


def polytope(dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """``A``, ``b`` and a point inside of a random polytope in the unit cube."""
    draw = torch.Generator().manual_seed(7919 * dim + seed)
    count = int(torch.randint(1, 2 * dim + 1, (), generator=draw))
    matrix = torch.randn(count, dim, generator=draw, dtype=F64)
    if seed % 3 == 0:
        matrix = matrix.abs()
    point = torch.rand(dim, generator=draw, dtype=F64)
    gap = 10 ** (-2 * torch.rand(count, generator=draw, dtype=F64))
    return matrix, matrix @ point + matrix.norm(dim=1) * gap, point


def quadratic(dim: int, seed: int) -> Height:
    """A concave quadratic whose top may lie outside of the cube."""
    draw = torch.Generator().manual_seed(104729 * dim + seed)
    top = 1.4 * torch.rand(dim, generator=draw, dtype=F64) - 0.2
    root = torch.randn(dim, dim, generator=draw, dtype=F64)
    bend = root @ root.T / dim + 0.1 * torch.eye(dim, dtype=F64)

    def height(x: Tensor) -> Tensor:
        return -(((x - top) @ bend) * (x - top)).sum(-1)

    return height


def bumps(dim: int, seed: int) -> Height:
    """Twenty Gaussian bumps, up and down."""
    draw = torch.Generator().manual_seed(15485863 * dim + seed)
    centres = torch.rand(BUMPS, dim, generator=draw, dtype=F64)
    weights = torch.randn(BUMPS, generator=draw, dtype=F64)

    def height(x: Tensor) -> Tensor:
        square = (x.unsqueeze(-2) - centres).square().sum(-1)
        return (torch.exp(-square / (0.18 * dim)) * weights).sum(-1)

    return height


KINDS: dict[str, Callable[[int, int], Height]] = {
    "concave quadratics": quadratic,
    "twenty bumps": bumps,
}


def ours(box: cb.Box, height: Height, seed: int) -> Tensor:
    """The point that the library's search finds."""
    best = maximise_box(
        box, lambda x: height(x).unsqueeze(1), lambda f, g: f, Streams(seed)
    )
    assert best.x is not None
    return best.x[0]


def by_slsqp(
    height: Height, matrix: Tensor, bound: Tensor, starts: list[Tensor]
) -> Tensor:
    """The best point that SLSQP finds from ``starts``."""
    a, b = matrix.numpy(), bound.numpy()
    rows = LinearConstraint(a, ub=b)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(x).requires_grad_(True)
        value = -height(point)
        (slope,) = torch.autograd.grad(value, point)
        return float(value.detach()), slope.numpy()

    best, worth = starts[0], float(height(starts[0]))
    for start in starts:
        end = minimize(
            loss,
            start.numpy(),
            jac=True,
            method="SLSQP",
            bounds=[(0.0, 1.0)] * len(start),
            constraints=rows,
            options={"ftol": 1e-13, "maxiter": 500},
        )
        if (a @ end.x - b).max() < 1e-9 and -end.fun > worth:
            best, worth = torch.from_numpy(end.x), -float(end.fun)
    return best


def by_botorch(
    height: Height, matrix: Tensor, bound: Tensor, sizes: Sizes, seed: int
) -> Tensor:
    """The best point that BoTorch's ``optimize_acqf`` finds."""
    from botorch.optim.optimize import optimize_acqf
    from botorch.utils.sampling import manual_seed

    class Value(torch.nn.Module):
        X_pending = None

        def forward(self, x: Tensor) -> Tensor:
            return height(x).squeeze(-1)

    rows = [
        (torch.arange(len(row)), -row, -float(end))
        for row, end in zip(matrix, bound, strict=True)
    ]
    with warnings.catch_warnings(), manual_seed(seed):
        warnings.simplefilter("ignore")
        x, _ = optimize_acqf(
            Value(),  # type: ignore[arg-type]  # it takes any callable
            torch.stack([torch.zeros(len(matrix[0])), torch.ones(len(matrix[0]))]).to(
                F64
            ),
            q=1,
            num_restarts=sizes.restarts,
            raw_samples=sizes.samples,
            inequality_constraints=rows,
        )
    return x[0]


def measure(sizes: Sizes) -> list[Row]:
    """One section for each kind of function, and a row for each contender in it."""
    rows = []
    for kind, make in KINDS.items():
        for dim in sizes.dims:
            say(f"{kind}, d = {dim}")
            rows += _rows(kind, make, dim, sizes)
    return rows


def _rows(
    kind: str, make: Callable[[int, int], Height], dim: int, sizes: Sizes
) -> list[Row]:
    names = "cbandit", "SLSQP", "optimize_acqf"
    seconds = {name: 0.0 for name in names}
    values = {name: np.full(sizes.polytopes, np.nan) for name in names}
    outside = -np.inf
    for seed in range(sizes.polytopes):
        matrix, bound, point = polytope(dim, seed)
        height = make(dim, seed)
        spread = torch.Generator().manual_seed(seed)
        begun = time.process_time()
        box = cb.Box([0.0] * dim, [1.0] * dim, linear=(matrix, bound))
        x = ours(box, height, seed)
        seconds["cbandit"] += time.process_time() - begun
        outside = max(outside, float((matrix @ x - bound).max()))
        values["cbandit"][seed] = float(height(x))
        begun = time.process_time()
        cube = torch.rand(sizes.starts, dim, generator=spread, dtype=F64)
        starts = [point, *box.spread(cube)]
        values["SLSQP"][seed] = float(height(by_slsqp(height, matrix, bound, starts)))
        seconds["SLSQP"] += time.process_time() - begun
        if seed < sizes.rivals:
            begun = time.process_time()
            found = by_botorch(height, matrix, bound, sizes, seed)
            seconds["optimize_acqf"] += time.process_time() - begun
            values["optimize_acqf"][seed] = float(height(found))
    best = np.nanmax(np.stack(list(values.values())), 0)
    section = f"{kind}, d = {dim}, {sizes.polytopes} polytopes"
    rows = []
    for name in names:
        tried = ~np.isnan(values[name])
        gap = best[tried] - values[name][tried]
        checks = []
        if name == "cbandit":
            checks.append(check_of("furthest outside a limit", outside, 0.0))
            if kind != "twenty bumps":
                checks.append(check_of("furthest below the best", gap.max(), NEAR))
        share = float((gap <= NEAR).mean())
        rows.append(
            row_of(
                section,
                f"{name}: within 1e-6 of the best in {100 * share:.1f} %",
                seconds[name] / tried.sum(),
                ours=name == "cbandit",
                ratio=(seconds[name] / tried.sum())
                / (seconds["cbandit"] / sizes.polytopes),
                checks=checks,
                share=share,
                worst=float(gap.max()),
                median=float(np.median(gap)),
                note=f"worst {gap.max():.1e} below; {tried.sum()} polytopes",
            )
        )
    return rows


def main(argv: list[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
