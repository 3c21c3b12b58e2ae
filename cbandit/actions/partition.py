"""A stretch of actions with what is believed of it; the currency of a round."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from cbandit.actions import Finite, ProductGrid
from cbandit.errors import CBanditError

__all__ = ["Block", "free_memory", "grid_split", "partition", "shares"]


@dataclass
class Block:
    """The actions ``start .. stop - 1`` (``n`` of them) in ``T`` trials.

    Args:
        start: the first action.
        stop: one past the last action.
        mean: posterior means of ``F`` functions, ``(T, F, n)``.
        std: their standard deviations, ``(T, 1 or F, n)``; ``None`` where only a draw
            was asked for.
        draw: a draw of the functions less their means, ``(T, F, n)``, where asked for.
    """

    start: int
    stop: int
    mean: Tensor
    std: Tensor
    draw: Tensor | None = None


def grid_split(grid: ProductGrid) -> int:
    """Where to cut the axes in two groups: those before it, and those from it on.

    An action's number is ``i * (size of the second group) + j``; the two sizes are
    kept as close as the axes allow.
    """
    costs = [
        grid.size // _tail(grid, cut) + _tail(grid, cut) for cut in range(grid.dim)
    ]
    least = min(costs)
    return max(cut for cut, cost in enumerate(costs) if cost == least)


def _tail(grid: ProductGrid, cut: int) -> int:
    return math.prod(grid.sizes[cut:])


def free_memory(device: torch.device) -> int:
    """Bytes free now on ``device``."""
    if device.type == "cuda":
        # what torch holds and does not use is free too
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def partition(
    actions: Finite | ProductGrid,
    target: int,
    first: int = 0,
    last: int | None = None,
) -> Iterator[tuple[int, int]]:
    """Stretches of about ``target`` actions; on a grid, whole rows or parts of one.

    Of the actions ``first .. last - 1``, where not all are meant.
    """
    tail = 1
    if isinstance(actions, ProductGrid):
        tail = _tail(actions, grid_split(actions))
    end = actions.size if last is None else last
    rows = tail * (target // tail)
    start = first
    while start < end:
        row = start - start % tail
        if rows and start == row and row + tail <= end:
            stop = min(start + rows, end - end % tail)
        else:
            stop = min(start + target, row + tail, end)
        yield start, stop
        start = stop


def shares(
    actions: Finite | ProductGrid, target: int, ranks: int
) -> list[tuple[int, int]]:
    """One stretch of actions for each rank.

    Cut where :func:`partition` cuts, so that every block is computed as one process
    would; a set of fewer blocks than ranks is cut finer.
    """
    if actions.size < ranks:
        raise CBanditError(
            f"actions must be at least as many as the {ranks} ranks that share them; "
            f"got {actions.size}"
        )
    starts = [start for start, _ in partition(actions, target)]
    if len(starts) < ranks:
        finer = max(1, actions.size // (8 * ranks))
        starts = [start for start, _ in partition(actions, finer)]
    edges = [starts[len(starts) * rank // ranks] for rank in range(ranks)]
    return list(pairwise([*edges, actions.size]))
