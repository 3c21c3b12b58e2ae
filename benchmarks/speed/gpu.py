"""A round on a GPU, beside what the device could do and what others do on it.

    python benchmarks/speed/gpu.py [--quick] [--json FILE]

Goals, on an H200: a whole CKB-UCB round of reward and cost over a grid of 10^9 actions
or over 10^8 free-form points, 1000 of them tried, float32, takes under 0.1 s; its pass
over the actions reaches 60 % of the roofline; and over 10^6 actions a round is about a
hundred times faster than by BoTorch's exact posterior on the same device.

The ceilings of the roofline are measured first: a large copy, large matrix products,
and kernel values made in registers with the stream kernel's own mix of instructions.
Timings are medians; rivals take turns with our rounds. Each size is compared with a
dense float64 solve on a sample of actions before it is timed, and after. No new size
starts after 7 minutes, with ``--quick`` after 100 seconds. Without a CUDA device the
script says so in one line. Without installing the package:

    PYTHONPATH=.:kernels python benchmarks/speed/gpu.py --json FILE
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common import internals
from benchmarks.common.case import (
    LENGTH,
    LENGTH_FREE,
    LIMIT,
    Actions,
    Case,
    grid_of,
    points_of,
    rbf,
    score_of,
)
from benchmarks.common.report import Row, check_of, free_memory, name_of, row_of, say
from benchmarks.common.report import main as report_main
from benchmarks.common.rivals import (
    Effort,
    Rival,
    botorch_forms,
    fastest,
    hand_written,
    seconds_over,
)
from benchmarks.common.timing import in_a_row, medians

FUNCTIONS = 2
ROUND, SHARE = 0.1, 0.6  # goals: seconds of a large round; of the roofline, its pass

CUDA = torch.device("cuda")
EFFORT = Effort(
    subset=50_000,
    chunks=(20_000, 100_000, 500_000),
    batches=(1, 10, 50),
    forms=("inverse factor",),
    together=(True,),
    fast=(True,),
)

Size = int | tuple[int, ...]
"""Free-form points, or the sides of a grid."""


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    device: torch.device = CUDA
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
    turns: int = 3
    rival_distinct: int = 300  # tried actions where rivals are measured
    effort: Effort = EFFORT
    trials: int = 1000
    horizon: int = 200
    solves: tuple[int, ...] = (100, 300, 1000)
    blocks: tuple[int, ...] = (512, 1024, 2048, 4096)
    seconds: float = 420.0  # no new size after that
    memory: int | None = None  # bytes to use at most; None: what is free


QUICK = Sizes(
    copy=1 << 28,
    grids=((1000, 1000), (464, 464, 464)),
    frees=(10**6, 10**7),
    distinct=(1000, 300),
    dtypes=(torch.float32,),
    rounds=5,
    horizon=50,
    seconds=100.0,
)


# -- time ------------------------------------------------------------------------------


def release(device: torch.device) -> None:
    """Give back what is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def on_device(device: torch.device, call: Callable[[], Any]) -> float:
    """Seconds of the device's work, by its own events."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    torch.cuda.synchronize(device)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def median(
    device: torch.device, call: Callable[[], Any], count: int = 10, warm: int = 3
) -> float:
    """Seconds of the median call, by the device's events."""
    took = [on_device(device, call) for _ in range(warm + count)]
    return statistics.median(took[warm:])


# -- ceilings --------------------------------------------------------------------------


@dataclass
class Ceilings:
    """What the device does at most, each a second."""

    copy: float
    matrix: dict[torch.dtype, float]
    pairs: dict[torch.dtype, float]


def ceilings_of(sizes: Sizes) -> tuple[Ceilings, list[Row]]:
    """Measure what the device does at most."""
    section, rows, device = "ceilings", [], sizes.device
    generator = torch.Generator(device).manual_seed(1)
    kept: dict[str, Any] = {"device": device, "generator": generator}
    source = torch.rand(sizes.copy, **kept)
    target = torch.full_like(source, torch.nan)
    seconds = median(device, partial(target.copy_, source))
    same = check_of("copied", float(not torch.equal(source, target)), 0.0)
    copy = 2 * source.nbytes / seconds
    note = f"{copy / 1e9:,.0f} GB/s, read and written"
    rows.append(row_of(section, "copy", seconds, note=note, checks=[same]))
    del source, target

    matrix, made = {}, {}
    for dtype in (torch.float32, torch.float64):
        n = sizes.matrix
        a, b = (torch.randn(n, n, dtype=dtype, **kept) for _ in range(2))
        out = torch.full_like(a, torch.nan)
        seconds = median(device, partial(torch.mm, a, b, out=out), count=5)
        known = a[:8].double() @ b.double()
        off = float((out[:8].double() - known).norm() / known.norm())
        limit = 1e-5 if dtype == torch.float32 else 1e-13
        matrix[dtype] = 2 * n**3 / seconds
        what = f"matrix product {n} x {n} x {n}, {name_of(dtype)}"
        note = f"{matrix[dtype] / 1e12:,.1f} TFLOP/s"
        check = check_of("matrix product", off, limit)
        rows.append(row_of(section, what, seconds, note=note, checks=[check]))
        del a, b, out, known

        count, used = sizes.pairs
        values = torch.full((count,), torch.nan, dtype=dtype, device=device)
        make = internals.made_in_registers(values, used, sizes.dim)
        seconds = median(device, make)
        unwritten = check_of("unwritten", float(values.isnan().sum()), 0.0)
        made[dtype] = make() / seconds
        what = f"kernel values in registers, d = {sizes.dim}, {name_of(dtype)}"
        note = f"{made[dtype] / 1e12:,.2f} 10^12/s"
        rows.append(row_of(section, what, seconds, note=note, checks=[unwritten]))
        del values
    return Ceilings(copy, matrix, made), rows


# -- a policy at work ------------------------------------------------------------------


class DeviceCase(Case):
    """A case whose passes are timed and looked at by themselves."""

    def believed(self, index: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the last pass left at numbered actions; the whole set may not fit."""
        every = torch.arange(self.actions.size) if index is None else index
        mean, std = internals.believed(self.policy, every.to(self.device))
        return mean, std.expand_as(mean)

    def sweep(self) -> float:
        """Seconds of the pass alone over all actions, small solves done before."""
        self.round()
        return on_device(self.device, internals.pass_of(self.policy))

    def floor(self, ceilings: Ceilings) -> tuple[float, dict[str, Any]]:
        """The least seconds that a pass of this form can take, and what they count."""
        item, size = self.dtype.itemsize, self.actions.size
        moved = 2.0 * (FUNCTIONS + 1) * item * size  # means and variance
        inner = internals.inner_of(self.policy)
        if inner is not None:
            flops, column = 2.0 * inner * size, float(item * size)
            product = max(flops / ceilings.matrix[self.dtype], column / ceilings.copy)
            counted = {"bytes": moved + 2 * column, "flops": flops, "inner": inner}
            return product + (moved + column) / ceilings.copy, counted
        moved += item * size * self.actions.dim
        made = float(size * internals.tried(self.policy))
        counted = {"bytes": moved, "pairs": made}
        return max(made / ceilings.pairs[self.dtype], moved / ceilings.copy), counted


def actions_of(
    size: Size, dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Actions, str, str]:
    """A set, the engine for it and its name."""
    if isinstance(size, tuple):
        grid = grid_of(size, dtype=dtype, device=device)
        return grid, "product", "grid " + " x ".join(map(str, size))
    points = points_of(size, dim, dtype=dtype, device=device)
    return points, "stream", f"free-form {size:,} x {dim}"


def case_of(
    size: Size, dim: int, distinct: int, dtype: torch.dtype, device: torch.device
) -> tuple[DeviceCase, str]:
    """A policy on the device that knows ``distinct`` actions, and the set's name."""
    actions, engine, name = actions_of(size, dim, dtype, device)
    length = LENGTH if engine == "product" else LENGTH_FREE
    case = DeviceCase(
        actions, rbf(length), engine, dtype, distinct, length=length, device=device
    )
    return case, name


def count_of(size: Size) -> int:
    """How many actions that is."""
    return math.prod(size) if isinstance(size, tuple) else size


def bytes_needed(size: Size, dim: int, dtype: torch.dtype) -> float:
    """Means, variance and points, and as much again in passing but for the largest."""
    points = 0 if isinstance(size, tuple) else 2 * dim
    return 1.5 * (FUNCTIONS + 1 + points) * count_of(size) * dtype.itemsize


def one_round(
    sizes: Sizes, size: Size, distinct: int, dtype: torch.dtype, ceilings: Ceilings
) -> tuple[list[Row], DeviceCase | None]:
    """A whole round by the clock, and its pass against the roofline."""
    section = "a CKB-UCB round, by the clock; its pass, against the roofline"
    device, begun = sizes.device, time.perf_counter()
    room = free_memory(device) if sizes.memory is None else sizes.memory
    if bytes_needed(size, sizes.dim, dtype) > room:
        what = f"{size}, u = {distinct}, {name_of(dtype)}"
        return [row_of(section, what, note="skipped: does not fit")], None
    case, name = case_of(size, sizes.dim, distinct, dtype, device)
    case.rounds(1, sizes.warm)
    checks = case.compare(sizes.sample).checks
    seconds = case.rounds(sizes.rounds, 0)
    passes = statistics.median(case.sweep() for _ in range(sizes.rounds))
    after = case.compare(sizes.sample).checks
    checks += [{**each, "name": f"{each['name']}, after"} for each in after]
    floor, counted = case.floor(ceilings)
    large = count_of(size) >= (10**9 if isinstance(size, tuple) else 10**8)
    aimed = large and dtype == torch.float32 and distinct >= 1000
    rows = [
        row_of(
            section,
            f"{name}, u = {distinct}, {name_of(dtype)}",
            seconds,
            ours=True,
            ratio=seconds / ROUND if aimed else None,
            goal=("<=", 1.0) if aimed else None,
            checks=checks,
            note=f"ratio to {1e3 * ROUND:.0f} ms" if aimed else "",
            actions=case.actions.size,
            known=len(case.data.count),
            block=internals.block_of(case.policy),
            spent=time.perf_counter() - begun,
        ),
        row_of(
            section,
            "  its pass",
            passes,
            ratio=passes / floor,
            goal=("<=", round(1 / SHARE, 2)) if aimed else None,
            note=f"ratio to the roofline, {1e3 * floor:,.3f} ms: "
            f"{100 * floor / passes:.0f} % of it",
            floor_ms=1e3 * floor,
            share=floor / passes,
            **counted,
        ),
    ]
    return rows, case


# -- what it is measured against -------------------------------------------------------


def against(sizes: Sizes, case: DeviceCase) -> list[Row]:
    """The fastest form of each rival over all actions, in turn with our rounds."""
    known = len(case.data.count)
    section = f"{case.actions.size:,} actions, u = {known}, against others, "
    section += name_of(case.dtype)
    say(section)
    points, compared = case.every(case.dtype), case.compare(sizes.sample)
    found: list[tuple[Rival, dict[str, Any]]] = []
    rows = []
    for who, forms in (("by hand", hand_written), ("BoTorch", botorch_forms)):
        try:
            tried = forms(case, case.dtype, sizes.effort)
            rival, _ = fastest(tried, points, compared.phi, sizes.effort)
            theirs = rival.play(points, compared.phi)
        except (ValueError, torch.OutOfMemoryError):
            rows.append(row_of(section, who, note="does not fit"))
            continue
        pair = case.points(torch.tensor([theirs, compared.chosen]))
        mean, var = case.dense().posterior(pair, "triangular")
        score = score_of(mean, var.clamp_min(0).sqrt(), compared.phi)
        lost = float(score[0] - score[1])
        check = check_of("score lost to theirs", lost, LIMIT[case.dtype])
        goal = {"goal": (">=", 100.0)} if who == "BoTorch" else {}
        found.append((rival, {"checks": [check], **goal}))
    contenders = {"ours": in_a_row(case.round, sizes.rounds)} | {
        rival.name: seconds_over(rival, points, compared.phi, sizes.effort)
        for rival, _ in found
    }
    took = medians(contenders, sizes.turns)
    ours = row_of(section, "cbandit", took["ours"], ours=True, checks=compared.checks)
    return [
        ours,
        *(
            row_of(
                section,
                rival.name,
                took[rival.name],
                ratio=took[rival.name] / took["ours"],
                **more,
            )
            for rival, more in found
        ),
        *rows,
    ]


def trials(sizes: Sizes) -> list[Row]:
    """The first paper's experiment with many trials at once, there and on the CPU."""
    section = f"zhou-synthetic, CKB-UCB, {sizes.trials} trials at once, a round"
    say(section)
    took, regret = {}, {}
    problem = cb.problems.zhou_synthetic(trials=sizes.trials)
    belief = cb.GP(problem.known.kernel, noise=problem.known.noise)
    for where in dict.fromkeys((sizes.device.type, "cpu")):
        policy = cb.CKB(
            problem.actions,
            reward=belief,
            costs=belief,
            explore=cb.UCB(2.0),
            step=0.1,
            cap=10.0,
            trials=sizes.trials,
            device=where,
        )
        run = cb.simulate(policy, problem, sizes.horizon, progress=False)
        took[where] = float(run.seconds[sizes.horizon // 2 :].median())
        regret[where] = float(run.regret[:, -1].mean())
    own, other = regret[sizes.device.type], regret["cpu"]
    gap = abs(own - other) / max(abs(other), 1e-9)
    check = check_of("mean regret against the CPU's", gap, 0.02)
    there = took[sizes.device.type]
    return [
        row_of(section, f"on {sizes.device.type}", there, ours=True, checks=[check]),
        row_of(section, "on the CPU", took["cpu"], ratio=took["cpu"] / there),
    ]


def solves(sizes: Sizes) -> list[Row]:
    """The small float64 system: factored there, or here and sent; a row more."""
    section, rows = "the small system, float64: a Cholesky factor, a row more", []
    device = sizes.device
    for u in sizes.solves:
        a = torch.randn(u, 2 * u, dtype=torch.float64)
        gram = (a @ a.mT / u + torch.eye(u, dtype=torch.float64)).to(device)

        def on_the_host(gram: Tensor = gram) -> Tensor:
            factor: Tensor = torch.linalg.cholesky(gram.cpu())
            return factor.to(device)

        for what, call in (
            (
                "a row more and a solve, on the device",
                internals.system_round(gram, FUNCTIONS),
            ),
            ("on the device", partial(torch.linalg.cholesky, gram)),
            ("on the host, both ways", on_the_host),
        ):
            rows.append(row_of(section, f"u = {u}, {what}", median(device, call)))
    return rows


def tuned(sizes: Sizes, case: DeviceCase) -> list[Row]:
    """The stream kernel's pass with other blocks than its own."""
    section = f"the stream kernel's block, {case.actions.size:,} x {sizes.dim}, "
    section += name_of(case.dtype)
    own, used = internals.own_block(sizes.dim, case.dtype), internals.tried(case.policy)
    rows = []
    for block in sizes.blocks:
        call = internals.stream_pass(case.policy, block)
        seconds = median(case.device, call, count=5, warm=2)
        note = "its own" if block == own else ""
        rows.append(row_of(section, f"{block} actions, u = {used}", seconds, note=note))
    return rows


# -- all of it -------------------------------------------------------------------------


def measure(sizes: Sizes) -> list[Row]:
    """All rows; those that the goals are about come first."""
    begun, device = time.perf_counter(), sizes.device
    ceilings, rows = ceilings_of(sizes)
    sets: list[Size] = [*sizes.grids, *sizes.frees]
    small = [size for size in sets if count_of(size) <= 10**6]
    done = set()

    def play(size: Size, u: int, dtype: torch.dtype) -> DeviceCase | None:
        what = f"{size}, u = {u}, {name_of(dtype)}"
        done.add((size, u, dtype))
        release(device)
        if time.perf_counter() - begun > sizes.seconds:
            rows.append(row_of("skipped: time was up", what))
            return None
        say(what)
        found, case = one_round(sizes, size, u, dtype, ceilings)
        rows.extend(found)
        return case

    for dtype in sizes.dtypes:
        for size in small:
            case = play(size, sizes.rival_distinct, dtype)
            if case is not None:
                rows += against(sizes, case)
            case = None
    for size in (sizes.grids[0], sizes.frees[0]):
        play(size, sizes.distinct[0], sizes.dtypes[0])
    rows += trials(sizes)
    rows += solves(sizes)
    to_tune = True
    for dtype in sizes.dtypes:
        for u in sizes.distinct:
            for size in sets:
                if (size, u, dtype) in done:
                    continue
                case = play(size, u, dtype)
                if case is not None and to_tune and size == sizes.frees[-1]:
                    rows += tuned(sizes, case)
                    to_tune = False
                case = None
    order = list(dict.fromkeys(row["section"] for row in rows))
    return sorted(rows, key=lambda row: order.index(row["section"]))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    there = torch.cuda.is_available()
    absent = None if there else "no CUDA device here, so nothing was measured"
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv, absent)


if __name__ == "__main__":
    main()
