"""The loops themselves, built for one number type at a time.

A *block* is as many actions as fit the first-level cache. Its columns ``c`` are
computed (by a small product, or from kernel values) or read, then change means and
variances, and the result is scored at once: every array is read and written once a
round. Means, variances and draws are passed by address and strides, as they may be
stretches of larger arrays. The parts of a look are passed by address too, 0 for none,
as a number takes a tenth of the time that an array takes to pass.
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
)
from cbandit_kernels.types import SCORES

__all__ = ["BLOCK", "REWARD", "Loops", "loops"]

BLOCK = 512
ROWS = 4  # rows of a grid at a time, and of the inner dimension
LANES = 32  # maxima computed next to each other
RECTIFIED, FEASIBLE = map(SCORES.index, ("rectified", "feasible"))
REWARD = len(SCORES)  # the code of a score without costs


class Loops(NamedTuple):
    """The loops that :func:`loops` returns for one number type."""

    finish: Any
    product: Any
    joint: Any
    look: Any
    reached: Any
    own: Any
    spread: Any
    estimated: Any
    number: Any


@cache
def loops(double: bool) -> Loops:
    """Return the loops for float64, or for float32."""
    kind: Any = np.float64 if double else np.float32
    size = 8 if double else 4
    address: Any = address_of_double if double else address_of_float
    zero, infinity = kind(0), kind(np.inf)

    @compiled
    def own(base, steps, t, f, at, n):  # type: ignore
        """Return numbers ``at .. at + n - 1`` of a function in a larger array."""
        place = base + size * (t * steps[0] + f * steps[1] + at)
        return carray(address(place), (n,), kind)

    @compiled
    def number(base, place, default):  # type: ignore
        """Return a number of a small array; ``default`` if there is no array."""
        if base == 0:
            return default
        return carray(address(base + size * place), (1,), kind)[0]

    @compiled
    def shrink(c, less, v):  # type: ignore
        """Subtract a column's share from a variance."""
        for j in range(v.size):
            v[j] -= less * (c[j] * c[j])

    @compiled
    def grow(c, more, m):  # type: ignore
        """Add a column's share to a mean."""
        for j in range(m.size):
            m[j] += more * c[j]

    @compiled
    def begin(c, less, more, v, m, scale, offset, bound, d, s):  # type: ignore
        """Do :func:`shrink`, the deviation, :func:`grow` and the estimate in one loop.

        The square root takes the time, and all else is done meanwhile.
        """
        for j in range(m.size):
            x = v[j] - less * (c[j] * c[j])
            v[j] = x
            x = math.sqrt(x if not (x < zero) else zero)
            d[j] = x
            y = m[j] + more * c[j]
            m[j] = y
            y = y + scale * x + offset
            y = bound if y > bound else y
            s[j] = -bound if y < -bound else y

    @compiled
    def estimate(c, more, m, d, scale, offset, bound, e):  # type: ignore
        """Do :func:`grow`, then compute the estimate."""
        for j in range(m.size):
            y = m[j] + more * c[j]
            m[j] = y
            y = y + scale * d[j] + offset
            y = bound if y > bound else y
            e[j] = -bound if y < -bound else y

    @compiled
    def weigh(c, more, m, d, scale, offset, bound, least, price, s):  # type: ignore
        """Do :func:`estimate`, at least ``least``; subtract it at a price."""
        for j in range(m.size):
            y = m[j] + more * c[j]
            m[j] = y
            y = y + scale * d[j] + offset
            y = bound if y > bound else y
            s[j] -= price * (least if y < least else y)

    @compiled
    def sort(score, first, e, s):  # type: ignore
        """Update the scores ``s`` by one more cost's estimates ``e``."""
        if score == FEASIBLE:
            for j in range(e.size):
                s[j] = -infinity if e[j] > zero else s[j]
        else:
            for j in range(e.size):
                x = -e[j]
                s[j] = x if first or x < s[j] or x != x else s[j]

    @compiled
    def top(s, lanes):  # type: ignore
        """Return the largest score; NaN counts as infinite.

        Many maxima run next to each other, as a single one would wait for itself.
        """
        n = s.size
        for i in range(LANES):
            lanes[i] = -infinity
        for j in range(n):
            s[j] = s[j] if s[j] == s[j] else infinity
        whole = n - n % LANES
        for j in range(0, whole, LANES):
            for i in range(LANES):
                lanes[i] = s[j + i] if s[j + i] > lanes[i] else lanes[i]
        best = -infinity
        for j in range(whole, n):
            best = s[j] if s[j] > best else best
        for i in range(LANES):
            best = lanes[i] if lanes[i] > best else best
        return best

    @compiled
    def reached(s, least):  # type: ignore
        """Return the place of the first score of at least ``least``."""
        for j in range(s.size):
            if s[j] >= least:
                return j
        return 0

    @compiled
    def look(  # type: ignore
        c, k, n, changes, held, asked, drawn, t, at, first, room
    ):
        """Change means and variance of a block by ``k`` columns; return its top score.

        ``first`` is the number of the block's first action. ``scales``, ``offsets``
        and ``bounds`` are ``(T, F)``; ``room`` is for deviations, estimates and scores
        (left in ``room[2]``). Without columns ``c[0]`` is zeros, and nothing changes.
        """
        spread, shift = changes
        mean, steps, var, var_step = held
        functions, scales, offsets, bounds, score, weight, mask, mask_step, _ = asked
        draw, draw_steps = drawn
        d, e, s = room[0, :n], room[1, :n], room[2, :n]
        v, column = own(var, (var_step, 0), t, 0, at, n), c[0, :n]
        for i in range(1, k):
            shrink(c[i], spread[t, i], v)
        less = spread[t, 0] if k else zero
        if draw != 0:
            shrink(column, less, v)
        for f in range(functions):
            m = own(mean, steps, t, f, at, n)
            for i in range(1, k):
                grow(c[i], shift[t, f, i], m)
            more = shift[t, f, 0] if k else zero
            here = t * functions + f
            scale, offset = number(scales, here, zero), number(offsets, here, zero)
            bound = number(bounds, here, infinity)
            if draw != 0:
                d = own(draw, draw_steps, t, f, at, n)
            if f == 0 and draw == 0:
                begin(column, less, more, v, m, scale, offset, bound, d, s)
            elif f == 0:
                estimate(column, more, m, d, scale, offset, bound, s)
            elif score == REWARD:
                grow(column, more, m)
            elif score < FEASIBLE:
                least = zero if score == RECTIFIED else -bound
                price = number(weight, here - t - 1, zero)  # of T x m numbers
                weigh(column, more, m, d, scale, offset, bound, least, price, s)
            else:
                estimate(column, more, m, d, scale, offset, bound, e)
                sort(score, f == 1, e, s)
        if mask != 0:
            allowed = carray(
                address_of_flag(mask + t * mask_step + first), (n,), np.uint8
            )
            for j in range(n):
                s[j] = s[j] if allowed[j] else -infinity
        return top(s, room[1])

    @compiled
    def spread(held, drawn, t, f, at):  # type: ignore
        """Return the deviation at one action, or a joint draw there."""
        draw, draw_steps = drawn
        if draw != 0:
            return own(draw, draw_steps, t, f, at, 1)[0]
        x = own(held[2], (held[3], 0), t, 0, at, 1)[0]
        return math.sqrt(x if not (x < zero) else zero)

    @compiled
    def estimated(held, asked, t, f, at, d):  # type: ignore
        """Return the estimate at one action, given its spread ``d``."""
        here = t * asked[0] + f
        bound = number(asked[3], here, infinity)
        y = own(held[0], held[1], t, f, at, 1)[0]
        y = y + number(asked[1], here, zero) * d + number(asked[2], here, zero)
        y = bound if y > bound else y
        return -bound if y < -bound else y

    @compiled
    def finish(  # type: ignore
        given, k, n, changes, held, asked, drawn, where, peaks
    ):
        """Process actions ``low .. high - 1`` of a stretch whose columns are known."""
        columns, steps = given
        t, low, high, first = where
        c, room = np.zeros((max(k, 1), BLOCK), kind), np.empty((3, BLOCK), kind)
        for at in range(low, high, BLOCK):
            m = min(BLOCK, high - at)
            for i in range(k):
                given = own(columns, steps, t, i, at, m)
                for j in range(m):
                    c[i, j] = given[j]
            peaks[t, at // BLOCK] = look(
                c, k, m, changes, held, asked, drawn, t, at, first + at, room
            )

    @compiled
    def multiply(c, i, a, b, row, last, begin, n):  # type: ignore
        """Compute ``c[:, i] = a @ b`` from row ``row`` and column ``begin`` on.

        It takes four rows at a time, and four of the inner dimension, a multiple of
        four; rows after ``last`` are copies of it.
        """
        rows = (
            a[row],
            a[min(row + 1, last)],
            a[min(row + 2, last)],
            a[min(row + 3, last)],
        )
        p, q, v, w = rows
        out_0, out_1, out_2, out_3 = c[0, i], c[1, i], c[2, i], c[3, i]
        for j in range(n):
            out_0[j] = out_1[j] = out_2[j] = out_3[j] = zero
        for r in range(0, a.shape[1], 4):
            p0, p1, p2, p3 = p[r], p[r + 1], p[r + 2], p[r + 3]
            q0, q1, q2, q3 = q[r], q[r + 1], q[r + 2], q[r + 3]
            v0, v1, v2, v3 = v[r], v[r + 1], v[r + 2], v[r + 3]
            w0, w1, w2, w3 = w[r], w[r + 1], w[r + 2], w[r + 3]
            b0, b1 = b[r, begin : begin + n], b[r + 1, begin : begin + n]
            b2, b3 = b[r + 2, begin : begin + n], b[r + 3, begin : begin + n]
            for j in range(n):
                x, y, z, u = b0[j], b1[j], b2[j], b3[j]
                out_0[j] = (((out_0[j] + p0 * x) + p1 * y) + p2 * z) + p3 * u
                out_1[j] = (((out_1[j] + q0 * x) + q1 * y) + q2 * z) + q3 * u
                out_2[j] = (((out_2[j] + v0 * x) + v1 * y) + v2 * z) + v3 * u
                out_3[j] = (((out_3[j] + w0 * x) + w1 * y) + w2 * z) + w3 * u

    @compiled
    def product(  # type: ignore
        factors, paths, changes, held, asked, drawn, where, peaks
    ):
        """Process rows ``low .. high - 1`` of a grid, whose columns are products.

        ``left (T, k, rows, r)``, ``right (1 or T, r, tails)``, with ``r`` as
        :func:`multiply` needs it. Joint draws are products too, if ``paths`` has any.
        """
        (left, right), (path, path_right) = factors, paths
        t, low, high, first = where
        k, tails, functions = left.shape[1], right.shape[2], path.shape[1]
        blocks = (tails + BLOCK - 1) // BLOCK  # in a row
        b = right[t if right.shape[0] > 1 else 0]
        path_b = path_right[t if path_right.shape[0] > 1 else 0]
        c, room = np.zeros((ROWS, max(k, 1), BLOCK), kind), np.empty((3, BLOCK), kind)
        d = np.empty((ROWS, functions, BLOCK), kind)
        for row in range(low, high, ROWS):
            rows = min(ROWS, high - row)
            for begin in range(0, tails, BLOCK):
                n = min(BLOCK, tails - begin)
                for i in range(k):
                    multiply(c, i, left[t, i], b, row, high - 1, begin, n)
                for f in range(functions):
                    multiply(d, f, path[t, f], path_b, row, high - 1, begin, n)
                for i in range(rows):
                    at = (row + i) * tails + begin
                    if functions:  # address the block's draws as part of a larger array
                        drawn = d[i].ctypes.data - size * at, (0, BLOCK)
                    peaks[t, (row + i) * blocks + begin // BLOCK] = look(
                        c[i],
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

    @compiled
    def lessen(c, w, here, row):  # type: ignore
        """Subtract a change's share from a row of a covariance."""
        for j in range(row.size):
            row[j] -= here * (c[j] * w)

    @compiled
    def lessen_all(columns, weights, cov, scaled):  # type: ignore
        """Subtract changes from a covariance, four at a time; ``scaled`` is scratch."""
        count, n = columns.shape
        fours = count - count % 4
        for p in range(fours):
            for j in range(n):
                scaled[p, j] = columns[p, j] * weights[p]
        for i in range(n):
            row = cov[i]
            for p in range(0, fours, 4):
                h0, h1 = columns[p, i], columns[p + 1, i]
                h2, h3 = columns[p + 2, i], columns[p + 3, i]
                s0, s1, s2, s3 = scaled[p], scaled[p + 1], scaled[p + 2], scaled[p + 3]
                for j in range(n):
                    row[j] = (
                        ((row[j] - h0 * s0[j]) - h1 * s1[j]) - h2 * s2[j]
                    ) - h3 * s3[j]
            for p in range(fours, count):
                lessen(columns[p], weights[p], columns[p, i], row)

    @compiled
    def joint(arrays, shape, told, asked, drawn, where, found):  # type: ignore
        """Process trials ``low .. high - 1`` of a whole covariance ``(T, N, N)``.

        First condition on ``targets (T, F)`` at ``slots (T,)``, unless these are empty;
        then find the best action and its estimates. The covariance lacks ``waiting``
        changes, which are applied when there is no more room. Arrays are passed by
        address.
        """
        trials, functions, n, most, waiting = shape
        slots, precision, targets = told
        values, indices, estimates = found
        low, high = where
        cov = carray(address(arrays[0]), (trials, n, n), kind)
        mean = carray(address(arrays[1]), (trials, functions, n), kind)
        columns = carray(address(arrays[2]), (trials, most, n), kind)
        weights = carray(address(arrays[3]), (trials, most), kind)
        var = carray(address(arrays[4]), (trials, n), kind)
        column, v = np.empty(n, kind), np.empty(n, kind)
        scaled = np.empty((most, n), kind)
        c = np.zeros((1, n), kind)
        room = np.empty((3, max(n, LANES)), kind)
        nothing = np.empty((0, 0), kind), np.empty((0, 0, 0), kind)
        none = np.int64(0)  # typed, so that its value is not part of its type
        steps = (functions * n, n)
        held = (np.int64(arrays[1]), steps, np.int64(v.ctypes.data), none)
        for t in range(low, high):
            for j in range(n):
                v[j] = var[t, j] if waiting else cov[t, j, j]
            if slots.size:
                slot = slots[t]
                for j in range(n):
                    column[j] = cov[t, slot, j]
                for p in range(waiting):
                    lessen(columns[t, p], weights[t, p], columns[t, p, slot], column)
                own, certain = column[slot], number(precision, t, zero)
                w = certain / (1 + certain * own)
                for f in range(functions):
                    target = number(targets, t * functions + f, zero)
                    gap = (target - mean[t, f, slot]) * w
                    for j in range(n):
                        mean[t, f, j] += gap * column[j]
                for j in range(n):
                    v[j] -= column[j] * (column[j] * w)
                    var[t, j], columns[t, waiting, j] = v[j], column[j]
                weights[t, waiting] = w
                if waiting + 1 == most:
                    lessen_all(columns[t], weights[t], cov[t], scaled)
            value = look(c, 0, n, nothing, held, asked, drawn, t, none, none, room)
            index = reached(room[2, :n], value - number(asked[8], t, zero))
            values[t], indices[t] = value, index
            for f in range(functions):
                d = spread(held, drawn, t, f, index)
                estimates[t, f] = estimated(held, asked, t, f, index, d)

    return Loops(finish, product, joint, look, reached, own, spread, estimated, number)
