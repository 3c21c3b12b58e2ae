"""A CKB-UCB round over 10^6 actions, beside BoTorch's posterior and a solve by hand.

    python benchmarks/speed/round.py [--quick] [--json FILE]

Goals, of one ask and one tell, reward and one cost:

- on a grid, 300 actions tried, a round is hundreds of times faster than the same round
  by BoTorch's exact posterior, or by a hand-written Cholesky solve shared by both
  functions, each in its fastest form;
- on free-form points it is several times faster than the solve by hand, and the engine
  that recomputes kernel rows needs next to no memory;
- an exact Thompson draw on the grid costs a few rounds of UCB;
- time grows linearly with the actions and with those tried, not with the rounds.

Each timing is the median of interleaved runs. Beside it the posterior is compared with
a dense float64 solve, the choice with that solve's, and Thompson choices with their
exact law; a fast wrong answer makes the script fail. ``--quick`` takes
float64 alone, fewer free-form points, rivals scaled from a
subset.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import Kernel

import cbandit as cb
from benchmarks.common.case import (
    BETA,
    BOUND,
    LENGTH,
    Case,
    Compared,
    actions_of,
    case_of,
    matern,
    rbf,
)
from benchmarks.common.report import (
    Row,
    check_of,
    free_memory,
    name_of,
    resident,
    row_of,
    say,
)
from benchmarks.common.report import main as report_main
from benchmarks.common.rivals import (
    Effort,
    Rival,
    botorch_forms,
    fastest,
    hand_written,
    seconds_over,
)
from benchmarks.common.timing import clocked, in_a_row, medians


@dataclass(frozen=True)
class Sizes(Effort):
    """How large it all is; the defaults are the full run's."""

    side: int = 1000
    free: int = 10**6
    dim: int = 6
    distinct: int = 300
    many: tuple[int, ...] = (1000,)
    # in a row, by each in its turn: a policy plays them so, and its arrays are in cache
    rounds: int = 50
    free_rounds: int = 5
    turns: int = 3
    warm: int = 3
    draws: int = 150
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)
    growth: tuple[int, ...] = (100, 300, 1000)
    repeats: int = 10
    memory: bool = True


QUICK = Sizes(
    free=10**5,
    many=(),
    rounds=3,
    free_rounds=3,
    subset=10_000,
    chunks=(2000, 5000),
    batches=(1, 10),
    whole=False,
    draws=60,
    dtypes=(torch.float64,),
    growth=(100, 300),
)


# -- memory ----------------------------------------------------------------------------

PEAK_HOW = "resident high-water mark of a process of its own, less imports and actions"


def memory_of(spec: dict[str, Any]) -> None:
    """Print what a policy takes beyond its set of actions; for a process of its own."""
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


def peak_of(
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
    code = f"from benchmarks.speed.round import memory_of; memory_of({spec!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    told = json.loads(done.stdout.splitlines()[-1])
    return told["bytes"], told["distinct"]


# -- one round -------------------------------------------------------------------------


def grid(sizes: Sizes, dtype: torch.dtype) -> list[Row]:
    """A round on the grid, against a solve by hand and against BoTorch."""
    size = sizes.side**2
    section = (
        f"a CKB-UCB round, {sizes.side} x {sizes.side} grid, u = {sizes.distinct}, "
        f"RBF, {name_of(dtype)}"
    )
    say(section)
    case = case_of(actions_of("product", size, 2), "product", dtype, sizes.distinct)
    case.rounds(1, sizes.warm)
    compared, known = case.compare(), len(case.data.count)
    points = case.every(dtype)
    goals = (500.0, 1500.0) if dtype == torch.float64 else (None, None)
    rivals = [
        _rival(forms(case, dtype, sizes), points, compared, sizes, dtype)
        for forms in ((hand_written, botorch_forms) if sizes.rivals else ())
    ]
    took = medians(
        {
            "ours": in_a_row(case.round, sizes.rounds),
            **{
                rival.name: seconds_over(rival, points, compared.phi, sizes)
                for rival, _ in rivals
            },
        },
        sizes.turns,
    )
    more: dict[str, Any] = {}
    if sizes.memory:
        peak, _ = peak_of("product", size, 2, dtype, sizes.distinct)
        more = {
            "peak_mb": peak / 1e6,
            "note": f"peak memory {peak / 1e6:,.0f} MB ({PEAK_HOW})",
        }
    kept: dict[str, Any] = {"actions": size, "distinct": known, "dtype": name_of(dtype)}
    rows = [
        row_of(
            section,
            "cbandit, product",
            took["ours"],
            ours=True,
            checks=compared.checks,
            **kept,
            **more,
        )
    ]
    for (rival, found), goal in zip(rivals, goals, strict=sizes.rivals):
        rows.append(
            row_of(
                section,
                rival.name,
                took[rival.name],
                ratio=took[rival.name] / took["ours"],
                goal=None if goal is None else (">=", goal),
                **found,
                **kept,
            )
        )
    return rows


def _rival(
    rivals: list[Rival],
    points: torch.Tensor,
    compared: Compared,
    sizes: Sizes,
    dtype: torch.dtype,
) -> tuple[Rival, dict[str, Any]]:
    """The fastest of them; a note, and whether it chooses as we do."""
    best, _ = fastest(rivals, points, compared.phi, sizes)
    tried, size = min(sizes.subset, len(points)), len(points)
    note = f"fastest of {len(rivals)} forms on {tried:,} actions"
    if not sizes.whole:
        return best, {"note": f"{note}, scaled to {size:,}"}
    same = best.play(points, compared.phi) == compared.chosen
    note += f"; run over all {size:,}"
    if dtype == torch.float64:
        check = check_of("other argmax than ours", float(not same), 0.0)
        return best, {"note": note, "checks": [check]}
    return best, {"note": f"{note}; argmax {'the same' if same else 'differs'}"}


def reading(size: int, rows: int, dtype: torch.dtype) -> Callable[[], float]:
    """Seconds to read ``rows x size`` numbers once, by products of 32 rows."""
    chunk = torch.rand(32, size, dtype=dtype)
    weights, out = torch.rand(1, 32, dtype=dtype), torch.empty(1, size, dtype=dtype)
    read = in_a_row(clocked(partial(torch.mm, weights, chunk, out=out)), 3)
    return lambda: read() * rows / 32


def free(sizes: Sizes, dtype: torch.dtype, distinct: int) -> list[Row]:
    """A round on free-form points by both engines for them, against a solve by hand."""
    size, main = sizes.free, distinct == sizes.distinct
    section = (
        f"a CKB-UCB round, free-form {size:,} x {sizes.dim}, u = {distinct}, RBF, "
        f"{name_of(dtype)}"
    )
    say(section)
    kept: dict[str, Any] = {"actions": size, "dtype": name_of(dtype)}
    rows: list[Row] = []
    memory = {
        engine: _memory(sizes, engine, dtype, distinct) if main else {}
        for engine in ("factor", "stream")
    }
    cases: dict[str, tuple[Case, Compared]] = {}
    for engine in ("factor", "stream"):
        needs = 1.2 * (distinct + 10) * size * dtype.itemsize
        if engine == "factor" and needs > free_memory(torch.device("cpu")):
            note = f"skipped: needs {needs / 1e9:.1f} GB"
            rows.append(row_of(section, "cbandit, factor", note=note))
            continue
        case = case_of(actions_of(engine, size, sizes.dim), engine, dtype, distinct)
        case.rounds(1, sizes.warm)
        every = main and engine == "factor"
        cases[engine] = case, case.compare(None if every else 20_000)
    contenders: dict[str, Callable[[], float]] = {
        engine: in_a_row(case.round, sizes.free_rounds)
        for engine, (case, _) in cases.items()
    }
    case, compared = cases["stream"]
    known = len(case.data.count)
    if sizes.rivals:
        scaled = sizes if main else replace(sizes, whole=False, subset=20_000)
        points, forms = case.every(dtype), hand_written(case, dtype, scaled)
        rival, found = _rival(forms, points, compared, scaled, dtype)
        contenders["by hand"] = seconds_over(rival, points, compared.phi, scaled)
        if "factor" in cases:
            contenders["reading"] = reading(size, known, dtype)
    took = medians(contenders, sizes.turns)
    rows += [
        row_of(
            section,
            f"cbandit, {engine}",
            took[engine],
            ours=True,
            checks=compared.checks,
            distinct=known,
            **kept,
            **memory[engine],
        )
        for engine, (_, compared) in cases.items()
    ]
    if "reading" in took:
        what = "reading u N numbers once, which factor cannot do without"
        rows.append(row_of(section, what, took["reading"]))
    if "by hand" in took:
        rows.append(row_of(section, rival.name, took["by hand"], **found, **kept))
        double = dtype == torch.float64
        goals = {"factor": 10.0, "stream": 8.0 if double else 12.0}
        rows += [
            row_of(
                section,
                f"  by hand / {engine}",
                ratio=took["by hand"] / took[engine],
                goal=(">=", goals[engine]) if main else None,
            )
            for engine in cases
        ]
    return rows


def _memory(
    sizes: Sizes, engine: str, dtype: torch.dtype, distinct: int
) -> dict[str, Any]:
    """Peak memory against its goal: the kernel rows, or 100 MB without them."""
    if not sizes.memory:
        return {}
    peak, known = peak_of(engine, sizes.free, sizes.dim, dtype, distinct)
    kept = known * sizes.free * dtype.itemsize
    budget = 1.1 * kept if engine == "factor" else 1e8
    met = peak <= budget
    return {
        "peak_mb": peak / 1e6,
        "memory_ratio": peak / kept,
        "memory_met": met,
        "note": f"peak memory {peak / 1e6:,.0f} MB ({PEAK_HOW}); goal "
        f"{budget / 1e6:,.0f} MB: {'kept' if met else 'NOT KEPT'}",
    }


# -- Thompson draws --------------------------------------------------------------------


TELLING: dict[str, Any] = {
    "explore": cb.TS(BETA),
    "thresholds": -8.0,
    "clip": (BOUND, 16.0),
    "step": 1e-3,
}
"""Settings by which each move of the multiplier tells the cost drawn."""


def thompson(sizes: Sizes) -> list[Row]:
    """An exact draw of both functions over the grid, in rounds of UCB."""
    section = (
        f"an exact Thompson round of both functions, {sizes.side} x {sizes.side} grid, "
        f"u = {sizes.distinct}, float64"
    )
    say(section)
    rows = []
    actions = actions_of("product", sizes.side**2, 2)
    for name, kernel, goal in (
        ("RBF", rbf(LENGTH), 2.0),
        ("Matern-1/2 per axis", matern_product(), 8.0),
    ):
        ucb, ts = (
            Case(
                actions,
                kernel,
                "product",
                torch.float64,
                sizes.distinct,
                length=LENGTH,
                **settings,
            )
            for settings in ({}, TELLING)
        )
        for case in (ucb, ts):
            case.rounds(1, sizes.warm)
        checks = ucb.compare(20_000).checks
        law = law_of(ts, sizes.draws)
        took = medians(
            {case: in_a_row(case.round, sizes.rounds) for case in (ucb, ts)},
            sizes.turns,
        )
        rows.append(
            row_of(section, f"CKB-UCB, {name}", took[ucb], ours=True, checks=checks)
        )
        rows.append(
            row_of(
                section,
                f"CKB-TS, {name}",
                took[ts],
                ours=True,
                ratio=took[ts] / took[ucb],
                goal=("<=", goal),
                checks=[law],
                note="ratio to the UCB round above",
            )
        )
    return rows


def matern_product() -> Kernel:
    """Matern-1/2 on each axis: the grid's factors have full rank."""
    first, second = (matern(LENGTH, nu=0.5, active_dims=(axis,)) for axis in (0, 1))
    return first * second


def law_of(case: Case, draws: int) -> dict[str, Any]:
    """Thompson draws of the cost against their exact law, in deviations.

    Asked for one action alone, the policy chooses that, and its multiplier moves by the
    drawn cost there: each ask tells one draw. ``TELLING`` keeps the clip and a
    multiplier of 0 out of the way. With ``z`` the draws standardised by a dense float64
    solve, the sum of ``z^2`` has mean ``draws`` and variance ``2 draws``.
    """
    generator = torch.Generator().manual_seed(13)
    numbers = torch.randint(case.actions.size, (draws,), generator=generator)
    mean, var = case.dense().posterior(case.points(numbers), "triangular")
    drawn = torch.empty(draws, dtype=torch.float64)
    for k in range(draws):
        before = float(case.policy.multiplier)
        case.policy.cancel(case.policy.ask(among=numbers[k : k + 1]))
        moved = (float(case.policy.multiplier) - before) / TELLING["step"]
        drawn[k] = moved + TELLING["thresholds"]
    z = (drawn - mean[1]) / (BETA * var.sqrt())
    off = float(z.square().sum() - draws) / math.sqrt(2 * draws)
    return check_of("spread of the draws, deviations off the exact law", abs(off), 6.0)


# -- growth ----------------------------------------------------------------------------


def growth(sizes: Sizes) -> list[Row]:
    """Rounds with more actions, more of them tried, and more rounds gone by."""
    section = "growth of a CKB-UCB round, product grid, RBF, float64"
    say(section)
    sides = [max(2, round(sizes.side * math.sqrt(share))) for share in (0.1, 0.3, 1.0)]
    # what grows, how many times, side, distinct, repeats
    forms = [("N", side**2 / sides[0] ** 2, side, sizes.distinct, 1) for side in sides]
    forms += [("u", u / sizes.growth[0], sizes.side, u, 1) for u in sizes.growth]
    forms += [
        ("t", 1.0, sizes.side, sizes.distinct, repeats)
        for repeats in (1, sizes.repeats)
    ]
    cases = []
    for _, _, side, distinct, repeats in forms:
        actions = actions_of("product", side**2, 2)
        case = case_of(actions, "product", torch.float64, distinct, repeats=repeats)
        case.rounds(1, sizes.warm)
        cases.append(case)
    checks = [case.compare(5000).checks for case in cases]
    took = medians(
        {case: in_a_row(case.round, sizes.rounds) for case in cases}, sizes.turns
    )
    first: dict[str, float] = {}
    rows = []
    for form, case, found in zip(forms, cases, checks, strict=True):
        what, times, side, distinct, repeats = form
        base = first.setdefault(what, took[case])
        name = f"N = {side**2:,}, u = {distinct}"
        name += f", t = {distinct * repeats}" if what == "t" else ""
        grown: dict[str, Any] = {}
        if (times, repeats) != (1.0, 1):
            goal = 1.2 if what == "t" else round(1.3 * times, 2)
            grown = {"ratio": took[case] / base, "goal": ("<=", goal)}
        rows.append(row_of(section, name, took[case], ours=True, checks=found, **grown))
    return rows


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    rows: list[Row] = []
    for dtype in sizes.dtypes:
        rows += grid(sizes, dtype)
    for distinct in (sizes.distinct, *sizes.many):
        for dtype in sizes.dtypes:
            rows += free(sizes, dtype, distinct)
    rows += thompson(sizes)
    rows += growth(sizes)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
