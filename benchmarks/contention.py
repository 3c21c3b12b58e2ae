"""Rounds beside other work: how much slower they are when processors are shared.

    python benchmarks/contention.py [--quick] [--json FILE]

Claim: beside one busy process a round takes at most 2.5 times what it takes alone, and
beside two at most 4 times, on a machine of two processors. Threads that wait for each
other in busy loops made some rounds twenty times slower.

Busy processes count as fast as they can. The three kinds of machine take turns; each
turn's time is the median of some rounds, and the medians of turns are compared.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from case import actions_of, case_of
from report import Row, row_of, say
from report import main as report_main
from timing import in_a_row, medians

GOALS = {1: 2.5, 2: 4.0}  # busy processes, and how much slower a round may be
BUSY = "print(flush=True)\nwhile True: pass"


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


def measure(sizes: Sizes) -> list[Row]:
    """The joint, product, factor and stream engines."""
    return [
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
