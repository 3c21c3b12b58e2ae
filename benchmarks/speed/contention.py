"""Rounds beside other work: how much slower they are when processors are shared.

    python benchmarks/speed/contention.py [--quick] [--json FILE]

Goal: beside one busy process a round takes at most 2.5 times what it takes alone, and
beside two at most 4 times, on a machine of two processors. Threads that wait for each
other in busy loops are slower by far.

And beside two, small programs take at most twice what they take on one thread, although
no variable says so: forty rounds of ``cb.GP.default``, which fits, and the README's
first program. Each runs in processes of its own, with ``OMP_NUM_THREADS=1`` and
without, which take turns; their choices must be the same.

Busy processes count as fast as they can. The three kinds of machine take turns; each
turn's time is the median of some rounds, and the medians of turns are compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from benchmarks.common.case import actions_of, case_of
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main
from benchmarks.common.timing import in_a_row, medians

GOALS = {1: 2.5, 2: 4.0}  # busy processes, and how much slower a round may be
BUSY = "print(flush=True)\nwhile True: pass"
TWICE = 2.0  # how much slower a small program may be without a variable
FITS, FIRST = "40 rounds with fits, 441 settings", "the README's first program"
PROGRAM = """
import sys, time
import cbandit as cb, gpytorch, torch

def play(fits, rounds):
    axis = torch.linspace(0, 1, 21 if fits else 101, dtype=torch.float64)
    actions = cb.ProductGrid([axis, axis])
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.5, dtype=torch.float64)
    fixed = cb.GP(kernel, noise=0.05**2, standardize=True)
    belief = cb.GP.default(actions) if fits else fixed
    policy = cb.CKB(actions, reward=belief, costs=belief, thresholds=0.5)
    for _ in range(rounds):
        choice = policy.ask()
        a, b = choice.x.tolist()
        cost = 0.4 * a + 0.5 * b**2 + 0.4 * a * b
        policy.tell(choice, reward=1.5 * a + b - 0.5 * a**2, cost=cost)
        yield int(choice.index)

fits, rounds = sys.argv[1] == "fits", int(sys.argv[2])
list(play(fits, 6))  # modules are imported, loops compiled
begun = time.perf_counter()
chosen = list(play(fits, rounds))
print(time.perf_counter() - begun, *chosen)
"""


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    grid: int = 1_000_000
    free: int = 1_000_000
    small: int = 100
    dim: int = 6
    distinct: int = 300
    turns: int = 7
    rounds: int = 5  # in a row
    fits: int = 40  # rounds with fits
    first: int = 120  # rounds of the README's first program


QUICK = Sizes(grid=250_000, free=40_000, distinct=100, turns=3, rounds=3)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that never wait, for as long as this lasts."""
    command = [sys.executable, "-c", BUSY]
    beside = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for each in beside:
            if each.stdout is not None:
                each.stdout.readline()  # it has begun
        time.sleep(0.05 if count else 0.0)  # and the scheduler knows of it
        yield
    finally:
        for each in beside:
            each.kill()
        for each in beside:
            each.wait()
            if each.stdout is not None:
                each.stdout.close()


def engine_rows(engine: str, size: int, sizes: Sizes) -> list[Row]:
    """Rounds of one engine alone, and beside busy processes."""
    distinct = min(sizes.distinct, size // 2)
    section = f"{engine}, {size:,} actions, {distinct} distinct, float64"
    say(section)
    case = case_of(actions_of(engine, size, sizes.dim), engine, torch.float64, distinct)
    case.rounds(sizes.rounds, 2)

    def beside(count: int) -> Callable[[], float]:
        def turn() -> float:
            with busy(count):
                return in_a_row(case.round, sizes.rounds)()

        return turn

    found = medians({count: beside(count) for count in (0, *GOALS)}, sizes.turns)
    checks = case.compare(200).checks
    rows = [row_of(section, "a round, alone", found[0], ours=True, checks=checks)]
    for count, goal in GOALS.items():
        rows.append(
            row_of(
                section,
                f"a round beside {count} busy process{'es' if count > 1 else ''}",
                found[count],
                ratio=found[count] / found[0],
                goal=("<=", goal),
            )
        )
    return rows


def program_rows(what: str, kind: str, rounds: int, turns: int) -> list[Row]:
    """A small program beside two busy processes, on one thread and as it comes."""
    section = f"{what}, beside 2 busy processes"
    say(section)
    free = {name: v for name, v in os.environ.items() if name != "OMP_NUM_THREADS"}
    chosen: dict[bool, list[str]] = {}

    def run(one: bool) -> Callable[[], float]:
        def turn() -> float:
            with busy(2):
                done = subprocess.run(
                    [sys.executable, "-c", PROGRAM, kind, str(rounds)],
                    env=free | ({"OMP_NUM_THREADS": "1"} if one else {}),
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
            seconds, *chosen[one] = done.stdout.split()
            return float(seconds)

        return turn

    found = medians({one: run(one) for one in (True, False)}, turns)
    pairs = zip(chosen[True], chosen[False], strict=True)
    apart = sum(alone != many for alone, many in pairs)
    free_row = row_of(
        section,
        "no variable",
        found[False],
        ours=True,
        ratio=found[False] / found[True],
        goal=("<=", TWICE),
        checks=[check_of("choices that differ", apart, 0)],
    )
    return [row_of(section, "OMP_NUM_THREADS=1", found[True]), free_row]


def measure(sizes: Sizes) -> list[Row]:
    """Small programs; the joint, product, factor and stream engines."""
    return [
        *program_rows(FITS, "fits", sizes.fits, sizes.turns),
        *program_rows(FIRST, "first", sizes.first, sizes.turns),
        *engine_rows("joint", sizes.small, sizes),
        *engine_rows("product", sizes.grid, sizes),
        *engine_rows("factor", sizes.free // 10, sizes),
        *engine_rows("stream", sizes.free, sizes),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
