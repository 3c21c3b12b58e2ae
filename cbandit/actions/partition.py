"""How numbered actions are cut into stretches: whole rows, or parts of one row.

A grid's actions come in rows of equal length; in other sets a row is one action.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from cbandit.errors import CBanditError

__all__ = ["shares", "stretches"]


def stretches(
    row: int, target: int, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """Cut the actions ``first .. last - 1`` into stretches of about ``target``."""
    rows = row * (target // row)
    start = first
    while start < last:
        begun = start - start % row
        if rows and start == begun and begun + row <= last:
            stop = min(start + rows, last - last % row)
        else:
            stop = min(start + target, begun + row, last)
        yield start, stop
        start = stop


def shares(size: int, row: int, target: int, ranks: int) -> list[tuple[int, int]]:
    """Return one stretch of ``size`` actions for each rank.

    A share ends where a stretch ends, so that every block is computed as one process
    would. If there are fewer stretches than ranks, the set is cut finer.
    """
    if size < ranks:
        raise CBanditError(
            f"actions must be at least as many as the {ranks} ranks that share them; "
            f"got {size}"
        )
    starts = [start for start, _ in stretches(row, target, 0, size)]
    if len(starts) < ranks:
        finer = max(1, size // (8 * ranks))
        starts = [start for start, _ in stretches(row, finer, 0, size)]
    edges = [starts[len(starts) * rank // ranks] for rank in range(ranks)]
    return list(pairwise([*edges, size]))
