"""A round on a GPU, beside what the device could do and what others do on it.

Ceilings are measured first: a large copy, large matrix products, and kernel values made
in registers with the stream kernel's own mix of instructions. Each size is compared
with a dense float64 solve on a sample of actions before it is timed. Without a GPU
there is nothing to measure, and the result says so.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from cbandit.actions import Finite, ProductGrid
from cbandit.beliefs.gp import GP
from cbandit.bench.case import (
    BETA,
    BOUND,
    CAP,
    LENGTH,
    LENGTH_FREE,
    LIMIT,
    NOISE,
    STEP,
    Data,
    Dense,
    World,
    score_of,
)
from cbandit.bench.report import check_of, name_of, say, this_machine
from cbandit.bench.rivals import Looked
from cbandit.explore import UCB
from cbandit.policies.ckb import CKB
from cbandit.posterior.engines.choice import free_memory
from cbandit.posterior.engines.swept import Rows
from cbandit.posterior.rows.operators import ProductRows
from cbandit.posterior.system import System

__all__ = ["bench_gpu", "table"]

FUNCTIONS = 2
TIES = 128  # actions at either end of a set that are always looked at


@dataclass(frozen=True)
class _Sizes:
    """How large it all is; the defaults are the full run."""

    copy: int = 1 << 30  # numbers of 4 bytes
    matrix: int = 8192
    pairs: tuple[int, int] = (1 << 24, 4096)  # actions, tried actions
    grids: tuple[tuple[int, ...], ...] = (
        (1000, 1000, 1000),
        (1000, 1000),
        (216, 216, 216),
        (464, 464, 464),
    )
    frees: tuple[int, ...] = (10**8, 10**6, 10**7)
    dim: int = 4
    distinct: tuple[int, ...] = (1000, 300, 100)
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)
    sample: int = 4096
    rounds: int = 7
    warm: int = 3
    peers: int = 300  # tried actions where others are measured
    subset: int = 50_000
    chunks: tuple[int, ...] = (20_000, 100_000, 500_000)
    batches: tuple[int, ...] = (1, 10, 50)
    trials: int = 1000
    horizon: int = 200
    solves: tuple[int, ...] = (100, 300, 1000)
    blocks: tuple[int, ...] = (512, 1024, 2048, 4096)
    seconds: float = 420.0  # no new case after that


_QUICK = _Sizes(
    copy=1 << 28,
    grids=((1000, 1000), (464, 464, 464)),
    frees=(10**6, 10**7),
    distinct=(1000, 300),
    dtypes=(torch.float32,),
    rounds=5,
    horizon=50,
    seconds=100.0,
)

Row = dict[str, Any]


def bench_gpu(quick: bool = False) -> dict[str, Any]:
    """Time rounds on the GPU; see ``cbandit bench gpu``.

    Args:
        quick: two minutes instead of eight: up to 10^8 actions, float32 alone.
    """
    if not torch.cuda.is_available():
        note = "no CUDA device here, so nothing was measured"
        return {"bench": "gpu", "quick": quick, "note": note, "rows": [], "ok": True}
    return _measure(_QUICK if quick else _Sizes(), torch.device("cuda"), quick)


def table(result: dict[str, Any]) -> str:
    """A result as text, one line a case, its failures beneath."""
    if not result["rows"]:
        return f"bench gpu: {result['note']}"
    machine = result["machine"]
    lines = [
        f"bench gpu{' --quick' if result['quick'] else ''}: {machine['device']}, "
        f"torch {machine['torch']}, triton {machine['triton']}, "
        f"CUDA {machine['cuda']}, {result['seconds']:.0f} s"
    ]
    section = None
    for row in result["rows"]:
        if row["section"] != section:
            section = row["section"]
            lines += ["", section]
        lines.append(("  " + _line(row)).rstrip())
        for check in row["checks"]:
            if not check["ok"]:
                what = f"{check['name']} {check['value']:.2g}"
                lines.append(f"      FAILED: {what} (limit {check['limit']:.2g})")
    lines += ["", "checks: " + ("all hold" if result["ok"] else "SOME FAILED")]
    return "\n".join(lines)


def _line(row: Row) -> str:
    ms = "" if row["ms"] is None else f"{row['ms']:,.3f} ms"
    parts = [f"{row['what']:<58}{ms:>14}"]
    if row.get("pass_ms") is not None:
        parts.append(f"pass {row['pass_ms']:,.3f}, roofline {row['floor_ms']:,.3f} ms")
    if row["ratio"] is not None:
        parts.append(f"{row['ratio']:,.3g} x")
    if row.get("share") is not None:
        parts.append(f"{100 * row['share']:.0f} %")
    for goal, met in row["goals"]:
        parts.append(f"goal {goal}" + ("" if met else " MISSED"))
    if row.get("note"):
        parts.append(f"({row['note']})")
    return "  ".join(parts)


def _row(section: str, what: str, seconds: float | None = None, **more: Any) -> Row:
    return {
        "section": section,
        "what": what,
        "ms": None if seconds is None else 1e3 * seconds,
        "ratio": None,
        "goals": [],
        "checks": [],
        **more,
    }


# -- time ------------------------------------------------------------------------------


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _once(device: torch.device, call: Callable[[], Any]) -> float:
    """Seconds of the device's work, by its own events."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def _median(
    device: torch.device, call: Callable[[], Any], count: int = 10, warm: int = 3
) -> float:
    for _ in range(warm):
        call()
    _wait(device)
    return statistics.median(_once(device, call) for _ in range(count))


# -- ceilings --------------------------------------------------------------------------


@dataclass
class _Ceilings:
    """What the device does at most, each a second."""

    copy: float
    matrix: dict[torch.dtype, float]
    pairs: dict[torch.dtype, float]


def _ceilings(sizes: _Sizes, device: torch.device) -> tuple[_Ceilings, list[Row]]:
    from cbandit_kernels._triton.ceiling import pairs
    from cbandit_kernels._triton.rounds import stream_block

    section, rows = "ceilings", []
    generator = torch.Generator(device).manual_seed(1)
    kept: dict[str, Any] = {"device": device, "generator": generator}
    source = torch.rand(sizes.copy, **kept)
    target = torch.full_like(source, torch.nan)
    seconds = _median(device, partial(target.copy_, source))
    same = check_of("copied", float(not torch.equal(source, target)), 0.0)
    copy = 2 * source.nbytes / seconds
    note = f"{copy / 1e9:,.0f} GB/s, read and written"
    rows.append(_row(section, "copy", seconds, note=note, checks=[same]))
    del source, target

    matrix, made = {}, {}
    for dtype in (torch.float32, torch.float64):
        n = sizes.matrix
        a, b = (torch.randn(n, n, dtype=dtype, **kept) for _ in range(2))
        out = torch.full_like(a, torch.nan)
        seconds = _median(device, partial(torch.mm, a, b, out=out), count=5)
        known = a[:8].double() @ b.double()
        off = float((out[:8].double() - known).norm() / known.norm())
        limit = 1e-5 if dtype == torch.float32 else 1e-13
        matrix[dtype] = 2 * n**3 / seconds
        what = f"matrix product {n} x {n} x {n}, {name_of(dtype)}"
        note = f"{matrix[dtype] / 1e12:,.1f} TFLOP/s"
        check = check_of("matrix product", off, limit)
        rows.append(_row(section, what, seconds, note=note, checks=[check]))
        del a, b, out, known

        count, used = sizes.pairs
        block = stream_block(sizes.dim, 1, 1, dtype)
        values = torch.full((count,), torch.nan, dtype=dtype, device=device)
        seconds = _median(device, partial(pairs, values, used, sizes.dim, block))
        unwritten = check_of("unwritten", float(values.isnan().sum()), 0.0)
        made[dtype] = count // block * block * used / seconds
        what = f"kernel values in registers, d = {sizes.dim}, {name_of(dtype)}"
        note = f"{made[dtype] / 1e12:,.2f} 10^12/s"
        rows.append(_row(section, what, seconds, note=note, checks=[unwritten]))
        del values
    return _Ceilings(copy, matrix, made), rows


# -- a policy at work ------------------------------------------------------------------


class _Case:
    """A CKB policy on the device that knows ``distinct`` random actions."""

    def __init__(
        self,
        actions: Finite | ProductGrid,
        engine: str,
        dtype: torch.dtype,
        device: torch.device,
        distinct: int,
    ) -> None:
        self.size, self.dtype, self.device = actions.size, dtype, device
        self.length = LENGTH if engine == "product" else LENGTH_FREE
        self.kernel = RBFKernel().double()
        self.kernel.lengthscale = torch.tensor(self.length, dtype=torch.float64)
        gp = GP(self.kernel, noise=NOISE)
        self.policy = CKB(
            actions,
            reward=gp,
            costs=gp,
            explore=UCB(BETA),
            step=STEP,
            cap=CAP,
            clip=(BOUND, BOUND),
            engine=engine,
            dtype=dtype,
            device=device,
        )
        self.world = World(actions.dim, self.length)
        self.data = Data()
        self.generator = torch.Generator().manual_seed(3)
        index = torch.randint(self.size, (4 * distinct,), generator=self.generator)
        index = torch.tensor(list(dict.fromkeys(index.tolist()))[:distinct])
        y = self.world(self.points(index))
        self.policy.observe(index=index, reward=y[:, 0], cost=y[:, 1])
        for i, row in zip(index.tolist(), y, strict=True):
            self.data.add(i, row)

    @property
    def engine(self) -> Rows:
        engine = self.policy._beliefs.groups[0].engine
        assert isinstance(engine, Rows)
        return engine

    def points(self, index: Tensor) -> Tensor:
        """On the CPU, as the device's own numbers."""
        found: Tensor = self.policy.actions.at(index.to(self.device))
        return found.cpu().double()

    def _learn(self, choice: Any, index: int) -> None:
        y = self.world(self.points(torch.tensor([index])))[0]
        self.policy.tell(choice, reward=float(y[0]), cost=float(y[1]))
        self.data.add(index, y)

    def round(self) -> float:
        """Seconds by the clock of a whole round, but for the world's part."""
        start = time.perf_counter()
        choice = self.policy.ask()
        assert choice.index is not None
        index = int(choice.index)
        seconds = time.perf_counter() - start
        self._learn(choice, index)
        return seconds

    def sweep(self) -> float:
        """Seconds of the engine's pass alone, small solves done before."""
        policy = self.policy
        choice = policy.ask()
        assert choice.index is not None
        self._learn(choice, int(choice.index))
        beliefs, look = policy._next_look()
        _wait(self.device)
        return _once(self.device, lambda: beliefs.best(look))

    def checks(self, sample: int) -> list[dict[str, Any]]:
        """What the passes so far left, and one more choice, against a dense solve."""
        policy, size = self.policy, self.size
        phi = float(policy.multiplier)
        choice = policy.ask()
        policy.cancel(choice)
        assert choice.index is not None
        chosen = int(choice.index)
        ends = torch.arange(min(TIES, size))
        drawn = torch.randint(size, (sample,), generator=self.generator)
        index = torch.cat([torch.tensor([chosen]), ends, size - 1 - ends, drawn])
        mean, var = self.engine.at(index.to(self.device).unsqueeze(0))
        seen = mean[0].cpu().double()
        std = var[0].cpu().double().clamp_min(0).sqrt()
        m, v = self.dense().posterior(self.points(index), "triangular")
        s = v.clamp_min(0).sqrt()
        score = score_of(m, s, phi)
        limit = LIMIT[self.dtype]
        return [
            check_of("mean", float((seen - m).abs().max()), limit),
            check_of("std", float((std - s).abs().max()), limit),
            check_of("score lost", float(score.max() - score[0]), limit),
        ]

    def dense(self) -> Dense:
        """The same beliefs, solved for by hand on the CPU."""
        return Dense(self, self.data, self.length, self.kernel, torch.float64)

    def floor(self, ceilings: _Ceilings) -> tuple[float, dict[str, float]]:
        """The least seconds that a pass of this form can take, and what they count."""
        item, operator = self.dtype.itemsize, self.engine.operator
        used = self.engine.history.used
        moved = 2.0 * (FUNCTIONS + 1) * item * self.size  # means and variance
        if isinstance(operator, ProductRows):
            inner, basis = used, operator._basis
            if basis is not None:
                inner = min(inner, basis.shape[-1])
            flops = 2.0 * inner * self.size
            column = float(item * self.size)
            product = max(flops / ceilings.matrix[self.dtype], column / ceilings.copy)
            counted = {"bytes": moved + 2 * column, "flops": flops, "inner": inner}
            return product + (moved + column) / ceilings.copy, counted
        moved += item * self.size * self.policy.actions.dim
        made = float(self.size * used)
        counted = {"bytes": moved, "pairs": made}
        return max(made / ceilings.pairs[self.dtype], moved / ceilings.copy), counted


def _actions(
    size: int | tuple[int, ...], dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Finite | ProductGrid, str, str]:
    """A set, the engine for it and its name."""
    if isinstance(size, tuple):
        axes = [torch.linspace(0, 1, n, dtype=dtype, device=device) for n in size]
        return ProductGrid(axes), "product", "grid " + " x ".join(map(str, size))
    generator = torch.Generator(device).manual_seed(5)
    points = torch.rand(size, dim, dtype=dtype, device=device, generator=generator)
    return Finite(points), "stream", f"free-form {size:,} x {dim}"


def _bytes_needed(size: int | tuple[int, ...], dim: int, dtype: torch.dtype) -> float:
    """Means, variance and points, and as much again in passing but for the largest."""
    if isinstance(size, tuple):
        return 1.5 * (FUNCTIONS + 1) * math.prod(size) * dtype.itemsize
    return 1.5 * (FUNCTIONS + 1 + 2 * dim) * size * dtype.itemsize


def _round(
    sizes: _Sizes,
    size: int | tuple[int, ...],
    distinct: int,
    dtype: torch.dtype,
    device: torch.device,
    ceilings: _Ceilings,
) -> tuple[Row, _Case | None]:
    section = "a CKB-UCB round: by the clock; its pass; of the roofline"
    if _bytes_needed(size, sizes.dim, dtype) > free_memory(device):
        what = f"{size}, u = {distinct}, {name_of(dtype)}"
        return _row(section, what, note="skipped: does not fit"), None
    begun = time.perf_counter()
    actions, engine, name = _actions(size, sizes.dim, dtype, device)
    case = _Case(actions, engine, dtype, device, distinct)
    for _ in range(sizes.warm):
        case.round()
    checks = case.checks(sizes.sample)
    seconds = statistics.median(case.round() for _ in range(sizes.rounds))
    passes = statistics.median(case.sweep() for _ in range(sizes.rounds))
    checks += [{**c, "name": f"{c['name']}, after"} for c in case.checks(sizes.sample)]
    floor, counted = case.floor(ceilings)
    goals = []
    large = math.prod(size) >= 10**9 if isinstance(size, tuple) else size >= 10**8
    if large and dtype == torch.float32 and distinct >= 1000:
        goals = [
            ["round < 100 ms", seconds < 0.1],
            [">= 60 %", floor / passes >= 0.6],
        ]
    row = _row(
        section,
        f"{name}, u = {distinct}, {name_of(dtype)}",
        seconds,
        pass_ms=1e3 * passes,
        floor_ms=1e3 * floor,
        share=floor / passes,
        checks=checks,
        goals=goals,
        actions=actions.size,
        known=len(case.data.count),
        block=case.engine.block,
        spent=time.perf_counter() - begun,
        **counted,
    )
    return row, case


# -- what it is measured against -------------------------------------------------------


def _by_hand(
    case: _Case, phi: float, chunk: int, points: Tensor
) -> tuple[Tensor, Tensor]:
    """A round from nothing: one factor, its inverse, one product a chunk."""
    index, count, average = case.data.merged()
    x = case.points(index).to(case.device) / case.length
    squares = x.square().sum(-1)
    gram = (x @ x.mT - 0.5 * (squares.unsqueeze(-1) + squares)).exp()
    gram.diagonal().add_((NOISE / count).to(case.device))
    factor = torch.linalg.cholesky(gram)
    eye = torch.eye(len(x), dtype=torch.float64, device=case.device)
    inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
    alpha = inverse.mT @ (inverse @ average.to(case.device))
    known, inverse, alpha = (v.to(case.dtype) for v in (x, inverse, alpha))
    best = []
    for start in range(0, len(points), chunk):
        y = points[start : start + chunk].to(case.dtype) / case.length
        gap = known @ y.mT - 0.5 * known.square().sum(-1, keepdim=True)
        k = gap.sub_(0.5 * y.square().sum(-1)).exp_()
        half = inverse @ k
        std = (1 - half.mul_(half).sum(0)).clamp_min_(0).sqrt_()
        value, place = score_of(alpha.mT @ k, std, phi).max(0)
        best.append(torch.stack([value.double(), place.double() + start]))
    every = torch.stack(best)
    at = every[:, 0].argmax()
    return every[at, 0], every[at, 1]


def _by_botorch(
    case: _Case, phi: float, chunk: int, q: int, points: Tensor
) -> tuple[Tensor, Tensor]:
    """A round from nothing by BoTorch's posterior of both functions."""
    look = _botorch_look(case, q)
    best = []
    for start in range(0, len(points), chunk):
        mean, std = look(points[start : start + chunk])
        value, place = score_of(mean, std, phi).max(0)
        best.append(torch.stack([value.double(), place.double() + start]))
    every = torch.stack(best)
    at = every[:, 0].argmax()
    return every[at, 0], every[at, 1]


def _botorch_look(case: _Case, q: int) -> Looked:
    import warnings
    from copy import deepcopy

    import gpytorch
    from botorch.models.gp_regression import SingleTaskGP
    from gpytorch.means import ZeroMean

    index, count, average = case.data.merged()
    kept: dict[str, Any] = {"device": case.device, "dtype": case.dtype}
    x, y = case.points(index).to(**kept), average.to(**kept)
    noise = (NOISE / count).to(**kept).unsqueeze(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SingleTaskGP(
            x,
            y,
            noise.expand_as(y),
            covar_module=deepcopy(case.kernel).to(**kept),
            mean_module=ZeroMean(),
            outcome_transform=None,
        ).eval()

    def look(points: Tensor) -> tuple[Tensor, Tensor]:
        points, full = points.to(case.dtype), len(points) // q * q
        parts = [points[:full].reshape(-1, q, points.shape[-1])] if full else []
        if full < len(points):
            parts.append(points[full:].unsqueeze(-2))
        with (
            torch.no_grad(),
            gpytorch.settings.fast_pred_var(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            seen = [model.posterior(part) for part in parts]
            mean = torch.cat([p.mean.reshape(-1, FUNCTIONS) for p in seen]).mT
            var = torch.cat([p.variance.reshape(-1, FUNCTIONS) for p in seen]).mT
        return mean, var.clamp_min(0).sqrt()

    return look


def _peers(sizes: _Sizes, case: _Case, seconds: float) -> list[Row]:
    """The fastest form of each on a subset, then run over all actions."""
    section = f"{case.size:,} actions, u = {len(case.data.count)}, against others"
    section += f", {name_of(case.dtype)}"
    device, rows = case.device, []
    points = case.policy.actions.block(0, case.size)
    phi = float(case.policy.multiplier)  # as it is before it moves with the choice
    chosen = case.policy.ask()
    case.policy.cancel(chosen)
    assert chosen.index is not None
    tried = [chunk for chunk in sizes.chunks if chunk <= case.size] or [case.size]
    forms: list[_Form] = [
        _Form("by hand", f"chunks of {chunk}", partial(_by_hand, case, phi, chunk))
        for chunk in tried
    ]
    forms += [
        _Form(
            "BoTorch",
            f"q = {q}, chunks of {chunk}",
            partial(_by_botorch, case, phi, chunk, q),
        )
        for q in sizes.batches
        for chunk in tried
    ]
    for who in ("by hand", "BoTorch"):
        mine = [form for form in forms if form.who == who]
        quick = [(_tried(form, points[: sizes.subset], device), form) for form in mine]
        form = min(quick, key=lambda each: each[0])[1]
        took = _tried(form, points, device)
        if not math.isfinite(took):
            rows.append(_row(section, f"{who}, {form.name}", note="does not fit"))
            continue
        pair = torch.tensor([int(form.play(points)[1]), int(chosen.index)])
        m, v = case.dense().posterior(case.points(pair), "triangular")
        score = score_of(m, v.clamp_min(0).sqrt(), phi)
        lost = float(score[0] - score[1])
        limit = LIMIT[case.dtype]
        check = check_of("our choice scores less than theirs", lost, limit)
        ratio = took / seconds
        row = _row(section, f"{who}, {form.name}", took, ratio=ratio, checks=[check])
        if who == "BoTorch":
            row["goals"] = [[">= 100 x", ratio >= 100]]
        rows.append(row)
    return rows


@dataclass
class _Form:
    """A way to do the same round from nothing, over given points."""

    who: str
    name: str
    play: Callable[[Tensor], tuple[Tensor, Tensor]]


def _tried(form: _Form, points: Tensor, device: torch.device) -> float:
    """Seconds, warmed up; infinite where memory does not do."""
    try:
        form.play(points[:1000])
        return _once(device, lambda: form.play(points))
    except torch.OutOfMemoryError:
        return math.inf


def _trials(sizes: _Sizes, device: torch.device) -> list[Row]:
    """zhou-synthetic with many trials at once, on the device and on the CPU."""
    from cbandit.experiments.catalogue import Task, find
    from cbandit.experiments.settings import Settings
    from cbandit.simulation.loop import simulate

    section = f"zhou-synthetic, CKB-UCB, {sizes.trials} trials at once, a round"
    name, took, regret = "CKB-UCB", {}, {}
    for where in dict.fromkeys((device.type, "cpu")):
        settings = Settings.of(
            "zhou-synthetic",
            trials=sizes.trials,
            horizon=sizes.horizon,
            policies=[name],
            device=where,
        )
        experiment, trials = find(settings.experiment), range(sizes.trials)
        problem = experiment.problem(settings.parameters, trials, settings.seed)
        policy = experiment.policies[name](problem, Task(settings, name, trials))
        run = simulate(policy, problem, sizes.horizon, progress=False)
        took[where] = float(run.seconds[sizes.horizon // 2 :].median())
        regret[where] = float(run.regret[:, -1].mean())
    own, other = regret[device.type], regret["cpu"]
    gap = abs(own - other) / max(abs(other), 1e-9)
    check = check_of("mean regret against the CPU's", gap, 0.02)
    ratio = took["cpu"] / took[device.type]
    row = _row(section, f"on {device.type}", took[device.type], checks=[check])
    return [row, _row(section, "on the CPU", took["cpu"], ratio=ratio)]


def _solves(sizes: _Sizes, device: torch.device) -> list[Row]:
    """The small float64 system: factored there, or here and sent; a row more."""
    section, rows = "the small system, float64: a Cholesky factor, a row more", []
    for u in sizes.solves:
        a = torch.randn(u, 2 * u, dtype=torch.float64)
        gram = (a @ a.mT / u + torch.eye(u, dtype=torch.float64)).to(device)
        rows.append(_bordered(section, gram))
        seconds = _median(device, partial(torch.linalg.cholesky, gram))
        rows.append(_row(section, f"u = {u}, on the device", seconds))

        seconds = _median(device, partial(_on_the_host, gram))
        rows.append(_row(section, f"u = {u}, on the host, both ways", seconds))
    return rows


def _bordered(section: str, gram: Tensor) -> Row:
    """What a round does: one row more, and its solve."""
    u, device = len(gram), gram.device
    one = torch.ones(1, dtype=torch.float64, device=device)
    seen = torch.ones(1, u, 1 + FUNCTIONS, dtype=torch.float64, device=device)
    slots = torch.arange(u, device=device).unsqueeze(0)
    system = System(gram.unsqueeze(0), seen[..., 0], seen[..., 1:], slots)

    def play() -> None:
        spot = system.at(slots[:, 0], gram[:1])
        system.column(spot, u)
        system.border(spot, one, seen[:, 0, 1:])

    what = f"u = {u}, a row more and a solve, on the device"
    return _row(section, what, _median(device, play))


def _on_the_host(gram: Tensor) -> Tensor:
    factor: Tensor = torch.linalg.cholesky(gram.cpu())
    return factor.to(gram.device)


def _tuned(sizes: _Sizes, case: _Case) -> list[Row]:
    """The stream kernel's pass with other blocks than its own."""
    from cbandit_kernels import Change, Frame, Look
    from cbandit_kernels._triton.rounds import stream, stream_block

    section = f"the stream kernel's block, {case.size:,} x {sizes.dim}, "
    section += name_of(case.dtype)
    engine, rows = case.engine, []
    operator: Any = engine.operator
    used = engine.history.used
    kept: dict[str, Any] = {"dtype": torch.float64, "device": case.device}
    weights = torch.zeros(1, used, 1, **kept)
    nothing = Change(torch.zeros(1, 1, **kept), torch.zeros(1, FUNCTIONS, 1, **kept))
    zeros = torch.zeros(1, FUNCTIONS, **kept)
    look = Look(zeros, zeros, None, "primal-dual", zeros[:, 1:])
    frame: Frame = operator._frame()
    own = stream_block(sizes.dim, 1, 1, case.dtype)
    for block in sizes.blocks:

        def play(block: int = block) -> None:
            stream(
                case.policy.actions.all,
                frame,
                operator._points[:, :used],
                weights,
                ("rbf",),
                nothing,
                engine.mean,
                engine.var,
                look,
                0,
                None,
                block=block,
            )

        seconds = _median(case.device, play, count=5, warm=2)
        note = "its own" if block == own else ""
        rows.append(_row(section, f"{block} actions, u = {used}", seconds, note=note))
    return rows


# -- all of it -------------------------------------------------------------------------


def _machine(device: torch.device) -> dict[str, Any]:
    from importlib.metadata import version

    machine = this_machine()
    name = "cpu"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        machine["memory"] = torch.cuda.get_device_properties(device).total_memory
    return {
        **machine,
        "device": name,
        "cuda": torch.version.cuda,
        "triton": version("triton"),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
    }


def _measure(sizes: _Sizes, device: torch.device, quick: bool) -> dict[str, Any]:
    begun = time.perf_counter()
    ceilings, rows = _ceilings(sizes, device)
    sets: list[int | tuple[int, ...]] = [*sizes.grids, *sizes.frees]
    small = [size for size in sets if _count(size) <= 10**6]

    def late() -> bool:
        return time.perf_counter() - begun > sizes.seconds

    def play(size: int | tuple[int, ...], u: int, dtype: torch.dtype) -> _Case | None:
        if late():
            what = f"{size}, u = {u}, {name_of(dtype)}"
            rows.append(_row("skipped: time was up", what))
            return None
        say(f"{size}, u = {u}, {name_of(dtype)}")
        row, case = _round(sizes, size, u, dtype, device, ceilings)
        rows.append(row)
        return case

    # what the goals are about comes first
    done = set()
    for dtype in sizes.dtypes:
        for size in small:
            case = play(size, sizes.peers, dtype)
            done.add((size, sizes.peers, dtype))
            if case is not None:
                rows += _peers(sizes, case, rows[-1]["ms"] / 1e3)
        case = None
        _release(device)
    for size in (sizes.grids[0], sizes.frees[0]):
        play(size, sizes.distinct[0], sizes.dtypes[0])
        done.add((size, sizes.distinct[0], sizes.dtypes[0]))
        _release(device)
    rows += _trials(sizes, device)
    rows += _solves(sizes, device)
    tuned = False
    for dtype in sizes.dtypes:
        for u in sizes.distinct:
            for size in sets:
                if (size, u, dtype) in done:
                    continue
                case = play(size, u, dtype)
                if case is not None and not tuned and size == sizes.frees[-1]:
                    rows += _tuned(sizes, case)
                    tuned = True
                case = None
                _release(device)
    order = list(dict.fromkeys(row["section"] for row in rows))
    rows.sort(key=lambda row: order.index(row["section"]))
    return {
        "bench": "gpu",
        "quick": quick,
        "machine": _machine(device),
        "seconds": time.perf_counter() - begun,
        "rows": rows,
        "ok": all(check["ok"] for row in rows for check in row["checks"]),
    }


def _count(size: int | tuple[int, ...]) -> int:
    return math.prod(size) if isinstance(size, tuple) else size
