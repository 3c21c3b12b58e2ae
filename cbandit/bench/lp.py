"""The linear programme of OPB, timed in argmax passes over the same arms.

    cbandit bench lp [--quick]

Claim: one cost, 10^6 arms, one programme within 40 argmax passes' time, on random arms
and on arcs whose every arm is a vertex of the upper hull; certified by its own duality
gap, at most 1e-12 of the rewards' scale.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbandit.bench.report import this_machine
from cbandit.search.simplex.lp import solve_policy

GOAL = 40.0  # argmax passes
CERTIFIED = 1e-12  # of the rewards' scale


def _circle(x: Tensor) -> Tensor:
    return (1 - (1 - x) ** 2).sqrt()


def _exponential(x: Tensor) -> Tensor:
    return 1 - torch.exp(-20 * x)


HULLS: dict[str, Callable[[Tensor], Tensor]] = {
    "circle": _circle,
    "exponential": _exponential,
    "square-root": torch.sqrt,
}


def instance(
    kind: str, size: int, costs: int, trials: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards ``(trials, size)``, costs ``(trials, costs, size)``, limits.

    ``kind`` is ``random`` or the name of a hull, ``NAME`` with arms in random order,
    ``NAME sorted`` with arms by cost.
    """
    shape = (trials, costs, size)
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    tau = torch.rand((trials, costs), generator=generator, dtype=torch.float64)
    tau = 0.05 + 0.5 * tau
    if kind == "random":
        u_r = torch.rand((trials, size), generator=generator, dtype=torch.float64)
        return u_r, x, tau
    name, _, order = kind.partition(" ")
    if order:
        x = x.sort(-1).values
    return HULLS[name](x).sum(1), x, tau


def _best(function: Callable[[], object], repeats: int) -> float:
    function()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def measure(
    kind: str, size: int, costs: int, trials: int, repeats: int
) -> dict[str, Any]:
    """One row: medians over fresh instances of the best of five, and the worst."""
    generator = torch.Generator().manual_seed(1)
    passes, solves, gaps, misses = [], [], [], []
    for _ in range(repeats):
        u_r, u_c, tau = instance(kind, size, costs, trials, generator)
        passes.append(_best(partial(torch.argmax, u_r, -1), 5))
        solves.append(_best(partial(solve_policy, u_r, u_c, tau), 5))
        solution = solve_policy(u_r, u_c, tau)
        at = solution.distribution.index.unsqueeze(1).expand(-1, costs, -1)
        p = solution.distribution.probability.unsqueeze(1)
        spent = (u_c.gather(2, at) * p).sum(-1)
        gaps.append(float((solution.gap.abs() / u_r.abs().amax(-1)).max()))
        misses.append(float((spent - tau).max()))
    argmax, solve = statistics.median(passes), statistics.median(solves)
    return {
        "hull": kind,
        "arms": size,
        "costs": costs,
        "trials": trials,
        "argmax_ms": 1e3 * argmax,
        "solve_ms": 1e3 * solve,
        "passes": solve / argmax,
        "worst_passes": max(s / argmax for s in solves),
        "gap": max(gaps),
        "violation": max(misses),
        "goal_passes": GOAL if costs == 1 else None,
        "certified": max(gaps) <= CERTIFIED and max(misses) <= CERTIFIED,
    }


def run(quick: bool = False) -> list[dict[str, Any]]:
    """All rows; ``quick`` takes a hundredth of the arms."""
    size, each = (10**4, 10**3) if quick else (10**6, 10**5)
    repeats = 3 if quick else 9
    kinds = ["random", *HULLS, *[f"{name} sorted" for name in HULLS]]
    rows = [measure(kind, size, 1, 1, repeats) for kind in kinds]
    rows += [measure(kind, size, 3, 1, repeats) for kind in ("random", "circle")]
    few = max(2, repeats // 3)
    rows += [measure(kind, each, 1, 50, few) for kind in ("random", "circle")]
    rows += [measure("random", each, 3, 50, few)]
    return rows


def bench_lp(quick: bool = False) -> dict[str, Any]:
    """All rows, and whether each certifies itself."""
    rows = run(quick)
    ok = all(row["certified"] for row in rows)
    return {
        "bench": "lp",
        "quick": quick,
        "machine": this_machine(),
        "rows": rows,
        "ok": ok,
    }


def table(result: dict[str, Any]) -> str:
    """The result as printed."""
    machine = result["machine"]
    head = ("hull", "arms", "costs", "trials", "argmax ms", "solve ms", "passes")
    lines = [
        f"{machine['processor']}, {machine['threads']} threads, "
        f"torch {machine['torch']}",
        "{:<19}{:>9}{:>6}{:>7}{:>10}{:>10}{:>8}".format(*head)
        + "{:>8}{:>9}{:>10}".format("worst", "gap", "violation"),
    ]
    lines += [
        f"{row['hull']:<19}{row['arms']:>9}{row['costs']:>6}{row['trials']:>7}"
        f"{row['argmax_ms']:>10.3f}{row['solve_ms']:>10.2f}{row['passes']:>8.1f}"
        f"{row['worst_passes']:>8.1f}{row['gap']:>9.1e}{row['violation']:>10.1e}"
        for row in result["rows"]
    ]
    slowest = max(r["worst_passes"] for r in result["rows"] if r["goal_passes"])
    lines.append(
        f"one cost: at worst {slowest:.1f} argmax passes, the goal being {GOAL:g}"
    )
    return "\n".join(lines)
