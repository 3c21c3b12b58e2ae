"""The loops themselves, built for one number type at a time.

A *block* is as many actions as fit the first-level cache. Its columns ``c`` are made
(by a small product, from kernel values, or read), change means and variance, and the
score of what has come out is taken at once: every array is read and written once a
round. Means, variances and draws are given by address and strides, for they may be
stretches of larger arrays; everything else is small and given as it is.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import carray

from cbandit_kernels._native.compiling import (
    address_of_double,
    address_of_flag,
    address_of_float,
    compiled,
    reordered,
)

__all__ = ["BLOCK", "Loops", "loops"]

BLOCK = 512
PRIMAL_DUAL, RECTIFIED, FEASIBLE, LEAST, REWARD = range(5)


class Loops(NamedTuple):
    """The loops that :func:`loops` builds for one number type."""

    finish: Any
    product: Any
    joint: Any
    update: Any
    judge: Any


@reordered
def _largest(s, n):  # type: ignore
    top = s[0]
    for j in range(1, n):
        top = s[j] if s[j] > top else top
    return top


@cache
def loops(double: bool) -> Loops:
    """The loops for float64, or for float32."""
    kind: Any = np.float64 if double else np.float32
    size = 8 if double else 4
    address: Any = address_of_double if double else address_of_float
    zero, infinity = kind(0), kind(np.inf)

    @compiled
    def update(c, k, n, spread, shift, held, t, at):  # type: ignore
        """Means and variance of a block, changed by ``k`` columns."""
        mean, steps, var, var_step = held
        v = carray(address(var + size * (t * var_step + at)), (n,), kind)
        for i in range(k):
            less = spread[t, i]
            for j in range(n):
                v[j] -= less * (c[i, j] * c[i, j])
        for f in range(shift.shape[1]):
            start = mean + size * (t * steps[0] + f * steps[1] + at)
            m = carray(address(start), (n,), kind)
            for i in range(k):
                more = shift[t, f, i]
                for j in range(n):
                    m[j] += more * c[i, j]

    @compiled
    def judge(  # type: ignore
        n, held, asked, drawn, t, at, number, s, spread, best
    ):
        """The best of a block against the best so far: its score and its number.

        ``scales``, ``offsets`` and ``bounds`` are ``(T, F)``; ``s`` and ``spread`` are
        room for a block; ``number`` is the block's first action's.
        """
        mean, steps, var, var_step = held
        scales, offsets, bounds, score, weight, mask, mask_step = asked
        draw, draw_steps = drawn
        v = carray(address(var + size * (t * var_step + at)), (n,), kind)
        for j in range(n):
            spread[j] = math.sqrt(v[j] if not (v[j] < zero) else zero)
        for f in range(scales.shape[1]):
            if (score == LEAST and f == 0) or (score == REWARD and f > 0):
                continue
            scale, offset, bound = scales[t, f], offsets[t, f], bounds[t, f]
            m = carray(
                address(mean + size * (t * steps[0] + f * steps[1] + at)), (n,), kind
            )
            d = spread
            if draw != 0:
                d = carray(
                    address(draw + size * (t * draw_steps[0] + f * draw_steps[1] + at)),
                    (n,),
                    kind,
                )
            if f == 0:
                for j in range(n):
                    e = m[j] + scale * d[j] + offset
                    e = bound if e > bound else e
                    s[j] = -bound if e < -bound else e
                continue
            price = weight[t, f - 1]
            if score == PRIMAL_DUAL:
                for j in range(n):
                    e = m[j] + scale * d[j] + offset
                    e = bound if e > bound else e
                    e = -bound if e < -bound else e
                    s[j] -= price * e
            elif score == RECTIFIED:
                for j in range(n):
                    e = m[j] + scale * d[j] + offset
                    e = bound if e > bound else e
                    e = zero if e < zero else e
                    s[j] -= price * e
            elif score == FEASIBLE:
                for j in range(n):
                    e = m[j] + scale * d[j] + offset
                    s[j] = -infinity if e > zero else s[j]
            else:
                for j in range(n):
                    e = m[j] + scale * d[j] + offset
                    e = bound if e > bound else e
                    e = -(-bound if e < -bound else e)
                    if f == 1 or e < s[j] or e != e:
                        s[j] = e
        for j in range(n):
            s[j] = s[j] if s[j] == s[j] else infinity
        if mask != 0:
            allowed = carray(
                address_of_flag(mask + t * mask_step + number), (n,), np.uint8
            )
            for j in range(n):
                s[j] = s[j] if allowed[j] else -infinity
        top = _largest(s, n)
        if top > best[0] or (top == best[0] and number < best[1]):
            for j in range(n):
                if s[j] == top:
                    return top, number + j
        return best

    @compiled
    def finish(  # type: ignore
        given, k, n, changes, held, asked, drawn, where, values, indices
    ):
        """Actions ``low .. high - 1`` of a stretch whose columns are known."""
        columns, columns_steps = given
        spread, shift = changes
        t, low, high, first, piece = where
        c = np.empty((max(k, 1), BLOCK), kind)
        s, room = np.empty(BLOCK, kind), np.empty(BLOCK, kind)
        best = (-infinity, first + low)
        for at in range(low, high, BLOCK):
            m = min(BLOCK, high - at)
            for i in range(k):
                start = columns + size * (
                    t * columns_steps[0] + i * columns_steps[1] + at
                )
                given = carray(address(start), (m,), kind)
                for j in range(m):
                    c[i, j] = given[j]
            update(c, k, m, spread, shift, held, t, at)
            best = judge(m, held, asked, drawn, t, at, first + at, s, room, best)
        values[t, piece], indices[t, piece] = best

    @compiled
    def multiply(out, a, b, begin, n):  # type: ignore
        """``out = a @ b`` over ``n`` columns of ``b`` from ``begin`` on."""
        rank = a.shape[0]
        for j in range(n):
            out[j] = zero
        whole = rank - rank % 4
        for r in range(0, whole, 4):
            p0, p1, p2, p3 = a[r], a[r + 1], a[r + 2], a[r + 3]
            b0, b1 = b[r, begin : begin + n], b[r + 1, begin : begin + n]
            b2, b3 = b[r + 2, begin : begin + n], b[r + 3, begin : begin + n]
            for j in range(n):
                out[j] += (p0 * b0[j] + p1 * b1[j]) + (p2 * b2[j] + p3 * b3[j])
        for r in range(whole, rank):
            p = a[r]
            row = b[r, begin : begin + n]
            for j in range(n):
                out[j] += p * row[j]

    @compiled
    def product(  # type: ignore
        left, right, changes, held, asked, drawn, where, values, indices
    ):
        """Rows ``low .. high - 1`` of a grid: columns are ``left @ right``.

        ``left (T, k, rows, r)``, ``right (1 or T, r, tails)``.
        """
        spread, shift = changes
        t, low, high, first, piece = where
        k = left.shape[1]
        tails = right.shape[2]
        own = t if right.shape[0] > 1 else 0
        c = np.empty((k, BLOCK), kind)
        s, room = np.empty(BLOCK, kind), np.empty(BLOCK, kind)
        best = (-infinity, first + low * tails)
        for row in range(low, high):
            for begin in range(0, tails, BLOCK):
                n = min(BLOCK, tails - begin)
                for i in range(k):
                    multiply(c[i], left[t, i, row], right[own], begin, n)
                at = row * tails + begin
                update(c, k, n, spread, shift, held, t, at)
                best = judge(n, held, asked, drawn, t, at, first + at, s, room, best)
        values[t, piece], indices[t, piece] = best

    @compiled
    def joint(  # type: ignore
        cov, mean, told, asked, drawn, where, values, indices, estimates
    ):
        """Trials ``low .. high - 1`` of a whole covariance ``(T, N, N)``.

        With ``change``, first the observation of ``targets (T, F)`` at ``slots (T,)``
        is taken in; then the best action is found and what is estimated there.
        """
        change, slots, precision, targets = told
        low, high = where
        scales, offsets, bounds = asked[0], asked[1], asked[2]
        draw, draw_steps = drawn
        size_of, functions = cov.shape[1], mean.shape[1]
        column, v = np.empty(size_of, kind), np.empty(size_of, kind)
        s, room = np.empty(size_of, kind), np.empty(size_of, kind)
        steps = (functions * size_of, size_of)
        none = np.int64(0)  # of a type that does not tell its value
        held = (np.int64(mean.ctypes.data), steps, np.int64(v.ctypes.data), none)
        start = (-infinity, none)
        for t in range(low, high):
            if change:
                slot = slots[t]
                for j in range(size_of):
                    column[j] = cov[t, slot, j]
                own = column[slot]
                w = precision[t] / (1 + precision[t] * own)
                for f in range(functions):
                    gap = (targets[t, f] - mean[t, f, slot]) * w
                    for j in range(size_of):
                        mean[t, f, j] += gap * column[j]
                for i in range(size_of):
                    here = column[i]
                    for j in range(size_of):
                        cov[t, i, j] -= here * (column[j] * w)
            for j in range(size_of):
                v[j] = cov[t, j, j]
            best = judge(size_of, held, asked, drawn, t, none, none, s, room, start)
            index = best[1]
            values[t, 0], indices[t, 0] = best
            for f in range(functions):
                d = math.sqrt(v[index] if not (v[index] < zero) else zero)
                if draw != 0:
                    place = draw + size * (t * draw_steps[0] + f * draw_steps[1])
                    d = carray(address(place), (size_of,), kind)[index]
                e = mean[t, f, index] + scales[t, f] * d + offsets[t, f]
                e = bounds[t, f] if e > bounds[t, f] else e
                estimates[t, f, 0] = -bounds[t, f] if e < -bounds[t, f] else e

    return Loops(finish, product, joint, update, judge)
