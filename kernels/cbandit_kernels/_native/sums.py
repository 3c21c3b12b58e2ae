"""The round over a set with stored kernel rows: read once, summed, used, dropped."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from cbandit_kernels._native.compiling import compiled
from cbandit_kernels._native.loops import BLOCK, loops

__all__ = ["SUM_PIECE", "summed"]

SUM_PIECE = 1 << 15  # actions in a thread's piece
WIDE = 4  # blocks of a row that are read at once


@cache
def summed(double: bool) -> Any:
    """Return the loop for float64, or for float32.

    ``chunks`` are addresses of ``(T, each, n)`` rows, ``weights (T, u, k)``.
    """
    number: Any = np.float64 if double else np.float32
    zero = number(0.0)
    look, own = loops(double).look, loops(double).own

    @compiled
    def add(c, w, row, n):  # type: ignore
        for j in range(n):
            c[j] += w * row[j]

    @compiled
    def add_four(c, w0, w1, w2, w3, r0, r1, r2, r3, n):  # type: ignore
        for j in range(n):
            c[j] = (((c[j] + w0 * r0[j]) + w1 * r1[j]) + w2 * r2[j]) + w3 * r3[j]

    @compiled
    def kept(given, t, u, at, n):  # type: ignore
        """Return the numbers ``at .. at + n - 1`` of a trial's row ``u``."""
        chunks, each, steps = given
        return own(chunks[u // each], steps, t, u % each, at, n)

    @compiled
    def go(given, weights, changes, held, asked, drawn, where, peaks):  # type: ignore
        t, low, high, first = where
        k, used = weights.shape[2], weights.shape[1]
        c = np.zeros((WIDE, max(k, 1), BLOCK), number)
        room = np.empty((3, BLOCK), number)
        fours = used - used % 4
        for start in range(low, high, WIDE * BLOCK):
            stop = min(start + WIDE * BLOCK, high)
            c[:] = zero
            for u in range(0, fours, 4):
                for i in range(k):
                    w0, w1 = weights[t, u, i], weights[t, u + 1, i]
                    w2, w3 = weights[t, u + 2, i], weights[t, u + 3, i]
                    for at in range(start, stop, BLOCK):
                        n = min(BLOCK, stop - at)
                        add_four(
                            c[(at - start) // BLOCK, i],
                            w0,
                            w1,
                            w2,
                            w3,
                            kept(given, t, u, at, n),
                            kept(given, t, u + 1, at, n),
                            kept(given, t, u + 2, at, n),
                            kept(given, t, u + 3, at, n),
                            n,
                        )
            for u in range(fours, used):
                for i in range(k):
                    for at in range(start, stop, BLOCK):
                        n = min(BLOCK, stop - at)
                        row = kept(given, t, u, at, n)
                        add(c[(at - start) // BLOCK, i], weights[t, u, i], row, n)
            for at in range(start, stop, BLOCK):
                n = min(BLOCK, stop - at)
                peaks[t, at // BLOCK] = look(
                    c[(at - start) // BLOCK],
                    k,
                    n,
                    changes,
                    held,
                    asked,
                    drawn,
                    t,
                    at,
                    first + at,
                    room,
                )

    return go
