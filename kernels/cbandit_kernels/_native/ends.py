"""The end of a round: the best action and its estimates."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from cbandit_kernels._native.compiling import compiled
from cbandit_kernels._native.loops import BLOCK, loops

__all__ = ["end"]


@cache
def end(double: bool) -> Any:
    """Return the loop for float64, or for float32."""
    kind: Any = np.float64 if double else np.float32
    size, zero = 8 if double else 4, kind(0)
    look, reached = loops(double).look, loops(double).reached
    spread, estimated = loops(double).spread, loops(double).estimated
    number = loops(double).number

    @compiled
    def end(peaks, tails, first, held, asked, drawn, paths, found):  # type: ignore
        """Find the first action whose score is within tolerance of the largest.

        It is in the first block whose largest score is, and this block is scored again.
        So the answer does not depend on how actions were divided.

        Args:
            peaks: ``(T, blocks)``, the largest score of each block, row after row.
            tails: the actions in a row of blocks.
            first: the number of the stretch's first action.
            held: the arrays over the stretch.
            asked: the look.
            drawn: a joint draw, or none.
            paths: the draw's factors, or none: see ``product``.
            found: the arrays to fill: ``(T,)``, ``(T,)``, ``(T, F)``.
        """
        value, index, estimates = found
        path, right = paths
        blocks = (tails + BLOCK - 1) // BLOCK
        c, room = np.zeros((1, BLOCK), kind), np.empty((3, BLOCK), kind)
        d = np.empty((path.shape[1], BLOCK), kind)
        nothing = np.empty((0, 0), kind), np.empty((0, 0, 0), kind)
        for t in range(peaks.shape[0]):
            highest = peaks[t].max()
            reach = highest - number(asked[8], t, zero)
            block = reached(peaks[t], reach)
            row, begin = block // blocks, block % blocks * BLOCK
            at, n = row * tails + begin, min(BLOCK, tails - begin)
            for f in range(path.shape[1]):
                own = right[t if right.shape[0] > 1 else 0]
                for j in range(n):
                    d[f, j] = zero
                    for r in range(path.shape[3]):
                        d[f, j] += path[t, f, row, r] * own[r, begin + j]
            if path.shape[1]:  # address the block's draws as part of a larger array
                drawn = d.ctypes.data - size * at, (0, BLOCK)
            top = look(c, 0, n, nothing, held, asked, drawn, t, at, first + at, room)
            j = reached(room[2, :n], min(reach, top))
            value[t], index[t] = highest, first + at + j
            for f in range(estimates.shape[1]):
                here = spread(held, drawn, t, f, at + j)
                estimates[t, f] = estimated(held, asked, t, f, at + j, here)

    return end
