"""The round over free points: kernel values are computed, used, dropped in cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from cbandit_kernels._native.compiling import compiled, in_wide_registers
from cbandit_kernels._native.loops import BLOCK, loops
from cbandit_kernels._native.values import kernel

__all__ = ["stream"]


@cache
def stream(kinds: tuple[str, ...], dim: int, far: bool, double: bool) -> Any:
    """Return the loop for a product of up to three kernels in ``dim`` coordinates.

    Points are ``(1 or T, n, dim)``; ``center`` and ``scale`` ``(f, 1 or T, dim)``
    convert them to what :func:`kernel` takes, and ``tried (f, 1 or T, u, dim)`` is
    converted already. ``weights`` are ``(T, u, k)``.
    """
    number: Any = np.float64 if double else np.float32
    zero = number(0.0)
    look = loops(double).look
    count = len(kinds)
    each = [kernel(kind, dim, far, double) for kind in kinds]
    fill_0 = each[0]
    fill_1, fill_2 = each[min(1, count - 1)], each[min(2, count - 1)]

    @compiled
    def scaled(points, own, low, n, center, scale, x, squares):  # type: ignore
        for j in range(n):
            squares[j] = zero
        for d in range(dim):
            middle, rate = center[d], scale[d]
            for j in range(n):
                v = number((points[own, low + j, d] - middle) * rate)
                x[d, j] = v
                squares[j] += v * v

    @compiled
    def go(framed, weights, changes, held, asked, drawn, where, peaks):  # type: ignore
        in_wide_registers()
        points, center, scale, tried = framed
        t, low, high, first = where
        k, used = weights.shape[2], weights.shape[1]
        x = np.empty((count, dim, BLOCK), number)
        squares = np.empty((count, BLOCK), number)
        c, v = np.zeros((max(k, 1), BLOCK), number), np.empty(BLOCK, number)
        room = np.empty((3, BLOCK), number)
        own = t if points.shape[0] > 1 else 0
        frame = t if center.shape[1] > 1 else 0
        place = t if tried.shape[1] > 1 else 0
        for at in range(low, high, BLOCK):
            n = min(BLOCK, high - at)
            for f in range(count):
                scaled(
                    points,
                    own,
                    at,
                    n,
                    center[f, frame],
                    scale[f, frame],
                    x[f],
                    squares[f],
                )
            for i in range(k):
                for j in range(n):
                    c[i, j] = zero
            for u in range(used):
                fill_0(x[0], squares[0], tried[0, place, u], n, True, v)
                if count > 1:
                    fill_1(x[1], squares[1], tried[1, place, u], n, False, v)
                if count > 2:
                    fill_2(x[2], squares[2], tried[2, place, u], n, False, v)
                for i in range(k):
                    w, column = weights[t, u, i], c[i]
                    for j in range(n):
                        column[j] += w * v[j]
            peaks[t, at // BLOCK] = look(
                c, k, n, changes, held, asked, drawn, t, at, first + at, room
            )

    return go
