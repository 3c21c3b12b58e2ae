"""How fast a round over a large set is, beside BoTorch's posterior and a solve by hand.

    cbandit bench round [--quick]

Every timing stands beside a comparison with a dense float64 solve: a fast wrong answer
makes ``result["ok"]`` false.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

from cbandit.bench.case import BETA, LENGTH, Case, actions_of, case_of
from cbandit.bench.report import (
    check_of,
    name_of,
    resident,
    result_of,
    row_of,
    say,
    table,
)
from cbandit.bench.rivals import Effort, Rival, botorch_forms, fastest, hand_written
from cbandit.explore import TS
from cbandit.posterior.engines.choice import free_memory

__all__ = ["bench_round", "table"]


@dataclass(frozen=True)
class _Sizes(Effort):
    """How large ``bench round`` is; the defaults are the full run."""

    side: int = 1000
    free: int = 10**6
    dim: int = 6
    distinct: int = 300
    many: int | None = 1000
    rounds: int = 15
    warm: int = 3
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)
    growth: tuple[int, ...] = (100, 300, 1000)
    repeats: int = 10
    memory: bool = True


_QUICK = _Sizes(
    free=10**5,
    many=None,
    rounds=9,
    subset=10_000,
    chunks=(2000, 5000),
    batches=(1, 10),
    whole=False,
    dtypes=(torch.float64,),
    growth=(100, 300),
)


# -- memory ----------------------------------------------------------------------------


def _memory_of(spec: dict[str, Any]) -> None:
    """In a process of its own: what a policy takes beyond its set of actions."""
    dtype = getattr(torch, spec["dtype"])

    def played(size: int, distinct: int) -> Iterator[int]:
        actions = actions_of(spec["engine"], size, spec["dim"])
        yield resident(peak=False)
        case = case_of(actions, spec["engine"], dtype, distinct)
        for _ in range(3):
            case.round()
        yield len(case.data.count)

    list(played(2500, 20))  # libraries and thread pools come in on first use
    before, distinct = played(spec["size"], spec["distinct"])
    print(json.dumps({"bytes": resident(peak=True) - before, "distinct": distinct}))


def _peak(
    engine: str, size: int, dim: int, dtype: torch.dtype, distinct: int
) -> tuple[int, int]:
    """Peak bytes of a policy, and how many distinct actions it then knew."""
    spec = {
        "engine": engine,
        "size": size,
        "dim": dim,
        "dtype": name_of(dtype),
        "distinct": distinct,
    }
    code = f"import json; from cbandit.bench import round; round._memory_of({spec!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    told = json.loads(done.stdout.splitlines()[-1])
    return told["bytes"], told["distinct"]


_PEAK_HOW = "resident high-water mark of a process of its own, less imports and actions"


# -- one round -------------------------------------------------------------------------


def _matern_product() -> Kernel:
    """Matern-1/2 on each axis: the grid's factors have full rank."""
    parts = []
    for axis in (0, 1):
        part = MaternKernel(nu=0.5, active_dims=(axis,)).double()
        part.lengthscale = torch.tensor(LENGTH, dtype=torch.float64)
        parts.append(part)
    return parts[0] * parts[1]


def _grid(sizes: _Sizes, dtype: torch.dtype) -> tuple[list[dict[str, Any]], float]:
    size = sizes.side**2
    section = (
        f"a CKB-UCB round, {sizes.side} x {sizes.side} grid, u = {sizes.distinct}, "
        f"RBF, {name_of(dtype)}"
    )
    say(section)
    actions = actions_of("product", size, 2)
    case = case_of(actions, "product", dtype, sizes.distinct)
    seconds = case.rounds(sizes.rounds, sizes.warm)
    compared = case.compare(dtype)
    more: dict[str, Any] = {}
    if sizes.memory:
        peak, _ = _peak("product", size, 2, dtype, sizes.distinct)
        more = {"peak_mb": peak / 1e6, "peak_how": _PEAK_HOW}
    rows = [
        row_of(
            section,
            "cbandit, product",
            seconds,
            checks=compared["checks"],
            actions=size,
            distinct=len(case.data.count),
            dtype=name_of(dtype),
            **more,
        )
    ]
    points = actions.block(0, size).to(dtype)
    for peers, goal in (
        (hand_written(case, dtype, sizes), 300.0),
        (botorch_forms(case, dtype, sizes), 500.0),
    ):
        rows.append(
            _against(
                section,
                peers,
                points,
                compared,
                seconds,
                sizes,
                dtype,
                (">=", goal) if dtype == torch.float64 else None,
            )
        )
    return rows, seconds


def _against(
    section: str,
    peers: list[Rival],
    points: Tensor,
    compared: dict[str, Any],
    seconds: float,
    sizes: _Sizes,
    dtype: torch.dtype,
    goal: tuple[str, float] | None,
) -> dict[str, Any]:
    best, other, index = fastest(peers, points, compared["phi"], sizes)
    checks = []
    note = (
        f"fastest of {len(peers)} forms on {min(sizes.subset, len(points)):,} actions"
    )
    if index is None:
        note += f", scaled to {len(points):,}"
    else:
        note += f"; this one run over all {len(points):,}"
        if dtype == torch.float64:
            differs = float(index != compared["chosen"])
            checks.append(check_of("other argmax than ours", differs, 0.0))
        else:
            note += "; argmax " + (
                "the same" if index == compared["chosen"] else "differs"
            )
    return row_of(
        section,
        best.name,
        other,
        ratio=other / seconds,
        goal=goal,
        checks=checks,
        note=note,
        actions=len(points),
        dtype=name_of(dtype),
    )


def _reading(size: int, rows: int, dtype: torch.dtype) -> float:
    """Seconds to read ``rows x size`` numbers once, by products of 32 rows."""
    chunk = torch.rand(32, size, dtype=dtype)
    weights, out = torch.rand(1, 32, dtype=dtype), torch.empty(1, size, dtype=dtype)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        torch.mm(weights, chunk, out=out)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * rows / 32


def _free(sizes: _Sizes, dtype: torch.dtype, distinct: int) -> list[dict[str, Any]]:
    size, main = sizes.free, distinct == sizes.distinct
    section = (
        f"a CKB-UCB round, free-form {size:,} x {sizes.dim}, u = {distinct}, RBF, "
        f"{name_of(dtype)}"
    )
    say(section)
    actions = actions_of("factor", size, sizes.dim)
    rows, timed = [], []
    compared: dict[str, Any] = {}
    case: Case | None = None
    for engine, goal in (("factor", 20.0), ("stream", 4.0)):
        needs = 1.2 * (distinct + 32) * size * dtype.itemsize
        if engine == "factor" and needs > free_memory(torch.device("cpu")):
            rows.append(
                row_of(
                    section,
                    "cbandit, factor",
                    note=f"skipped: needs {needs / 1e9:.1f} GB",
                )
            )
            continue
        more: dict[str, Any] = {}
        if sizes.memory and main:
            peak, known = _peak(engine, size, sizes.dim, dtype, distinct)
            budget = 1.1 * known * size * dtype.itemsize if engine == "factor" else 2e8
            more = {
                "peak_mb": peak / 1e6,
                "peak_how": _PEAK_HOW,
                "memory_ratio": peak / (known * size * dtype.itemsize),
                "memory_met": peak <= budget,
                "note": f"memory goal {budget / 1e6:,.0f} MB"
                + (": kept" if peak <= budget else ": NOT KEPT"),
            }
        case = None
        gc.collect()
        case = case_of(actions, engine, dtype, distinct)
        seconds = case.rounds(
            sizes.rounds if engine == "factor" else 5, min(sizes.warm, 2)
        )
        compared = case.compare(dtype, None if main and engine == "factor" else 20_000)
        timed.append((engine, seconds, goal))
        rows.append(
            row_of(
                section,
                f"cbandit, {engine}",
                seconds,
                checks=compared["checks"],
                actions=size,
                distinct=len(case.data.count),
                dtype=name_of(dtype),
                **more,
            )
        )
    assert case is not None
    if any(engine == "factor" for engine, _, _ in timed):
        rows.append(
            row_of(
                section,
                "reading u N numbers once, which factor cannot do without",
                _reading(size, len(case.data.count), dtype),
            )
        )
    scaled = (
        sizes
        if main
        else _Sizes(**{**sizes.__dict__, "whole": False, "subset": 20_000})
    )
    peers = hand_written(case, dtype, scaled)
    best, other, _ = fastest(
        peers, actions.block(0, size).to(dtype), compared["phi"], scaled
    )
    note = f"fastest of {len(peers)} forms on {min(scaled.subset, size):,} actions"
    note += f"; run over all {size:,}" if scaled.whole else f", scaled to {size:,}"
    rows.append(row_of(section, best.name, other, note=note, dtype=name_of(dtype)))
    for engine, seconds, goal in timed:
        rows.append(
            row_of(
                section,
                f"  by hand / {engine}",
                ratio=other / seconds,
                goal=(">=", goal) if main else None,
            )
        )
    return rows


def _thompson(sizes: _Sizes) -> list[dict[str, Any]]:
    section = (
        f"an exact Thompson round of both functions, {sizes.side} x {sizes.side} grid, "
        f"u = {sizes.distinct}, float64"
    )
    say(section)
    rows = []
    actions = actions_of("product", sizes.side**2, 2)
    rbf = RBFKernel().double()
    rbf.lengthscale = torch.tensor(LENGTH, dtype=torch.float64)
    for name, kernel, goal in (
        ("RBF", rbf, 2.0),
        ("Matern-1/2 per axis", _matern_product(), 8.0),
    ):
        base = Case(
            actions, kernel, "product", torch.float64, sizes.distinct, length=LENGTH
        )
        ucb = base.rounds(sizes.rounds, sizes.warm)
        compared = base.compare(torch.float64, 20_000)
        rows.append(row_of(section, f"CKB-UCB, {name}", ucb, checks=compared["checks"]))
        case = Case(
            actions,
            kernel,
            "product",
            torch.float64,
            sizes.distinct,
            length=LENGTH,
            explore=TS(BETA),
        )
        seconds = case.rounds(sizes.rounds, sizes.warm)
        rows.append(
            row_of(
                section,
                f"CKB-TS, {name}",
                seconds,
                ratio=seconds / ucb,
                goal=("<=", goal),
                checks=[_law(case, 2 * sizes.rounds)],
                note="ratio to the UCB round above",
            )
        )
    return rows


def _law(case: Case, draws: int, count: int = 12) -> dict[str, Any]:
    """Draws at a few actions against the exact law: their squares' sum, in deviations.

    With ``z`` the draws over the exact standard deviations and ``R`` the exact
    correlations, ``sum z^2`` has mean ``count`` and variance ``2 |R|^2`` a draw.
    """
    generator = torch.Generator().manual_seed(13)
    numbers = torch.randint(case.actions.size, (count,), generator=generator)
    dense = case.dense()
    x = (case.actions.points(numbers) / case.length).double()
    k = dense.kernel(x)
    half = torch.linalg.solve_triangular(dense.factor, k, upper=False)
    gap = x.unsqueeze(1) - x
    prior = (-0.5 * gap.square().sum(-1) if dense.rbf else -gap.abs().sum(-1)).exp()
    covariance = prior - half.mT @ half
    std = covariance.diagonal().sqrt()
    spread = 2 * (covariance / (std.unsqueeze(-1) * std)).square().sum()
    total, functions = 0.0, 2
    for _ in range(draws):
        for block in case.policy._beliefs.blocks(case.policy._streams):
            assert block.draw is not None
            inside = (numbers >= block.start) & (numbers < block.stop)
            seen = block.draw[0, :, numbers[inside] - block.start]
            total += float((seen / std[inside]).square().sum())
    off = (total - draws * functions * count) / math.sqrt(
        draws * functions * float(spread)
    )
    return check_of("spread of the draws, deviations off the exact law", abs(off), 6.0)


def _growth(sizes: _Sizes) -> list[dict[str, Any]]:
    section = "growth of a CKB-UCB round, product grid, RBF, float64"
    say(section)
    size = sizes.side**2
    rows = []

    def timed(side: int, distinct: int, repeats: int = 1) -> tuple[float, list[Any]]:
        actions = actions_of("product", side * side, 2)
        case = case_of(actions, "product", torch.float64, distinct, repeats=repeats)
        seconds = case.rounds(sizes.rounds, sizes.warm)
        return seconds, case.compare(torch.float64, 5000)["checks"]

    base: dict[str, float] = {}
    sides = [max(2, round(sizes.side * math.sqrt(share))) for share in (0.1, 0.3, 1.0)]
    for side in sides:
        seconds, checks = timed(side, sizes.distinct)
        base.setdefault("N", seconds)
        more: dict[str, Any] = {}
        if side != sides[0]:
            times = side**2 / sides[0] ** 2
            more = {"ratio": seconds / base["N"], "goal": ("<=", round(1.3 * times, 2))}
        rows.append(
            row_of(
                section,
                f"N = {side**2:,}, u = {sizes.distinct}",
                seconds,
                checks=checks,
                **more,
            )
        )
    for distinct in sizes.growth:
        seconds, checks = timed(sizes.side, distinct)
        base.setdefault("u", seconds)
        more = {}
        if distinct != sizes.growth[0]:
            times = distinct / sizes.growth[0]
            more = {"ratio": seconds / base["u"], "goal": ("<=", round(1.3 * times, 2))}
        rows.append(
            row_of(
                section, f"N = {size:,}, u = {distinct}", seconds, checks=checks, **more
            )
        )
    for repeats in (1, sizes.repeats):
        seconds, checks = timed(sizes.side, sizes.distinct, repeats)
        base.setdefault("t", seconds)
        more = (
            {} if repeats == 1 else {"ratio": seconds / base["t"], "goal": ("<=", 1.2)}
        )
        what = f"N = {size:,}, u = {sizes.distinct}, t = {sizes.distinct * repeats}"
        rows.append(row_of(section, what, seconds, checks=checks, **more))
    return rows


def bench_round(quick: bool = False) -> dict[str, Any]:
    """Time a round over large sets; see ``cbandit bench round``.

    Args:
        quick: a minute instead of ten: float64 alone, a smaller free-form set, and the
            others' times scaled from a subset.
    """
    return _round(_QUICK if quick else _Sizes(), quick)


def _round(sizes: _Sizes, quick: bool = False) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for dtype in sizes.dtypes:
        rows += _grid(sizes, dtype)[0]
    for dtype in sizes.dtypes:
        rows += _free(sizes, dtype, sizes.distinct)
    if sizes.many is not None:
        for dtype in sizes.dtypes:
            rows += _free(sizes, dtype, sizes.many)
    rows += _thompson(sizes)
    rows += _growth(sizes)
    return result_of("round", quick, rows)
