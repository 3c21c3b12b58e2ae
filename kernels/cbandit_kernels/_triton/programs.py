"""The programs behind :mod:`cbandit_kernels.rounds`.

A program handles one block of actions of one trial. Offsets into the set are 64 bits
wide. Numbers that are the same for all actions of a trial are in small packed tables,
read through the cache: ``table`` has a round's numbers, ``rows`` the tried actions with
their weights.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from cbandit_kernels._triton.powers import distance, power
from cbandit_kernels.forms import KINDS
from cbandit_kernels.types import SCORES

NATURAL, THIRD = tl.constexpr(math.log(2)), tl.constexpr(math.log(2) ** 2 / 3)
LEAST = tl.constexpr(SCORES.index("least"))
FEASIBLE = tl.constexpr(SCORES.index("feasible"))
RECTIFIED = tl.constexpr(SCORES.index("rectified"))
RBF = tl.constexpr(KINDS.index("rbf"))
MATERN12 = tl.constexpr(KINDS.index("matern12"))
MATERN32 = tl.constexpr(KINDS.index("matern32"))
LINEAR = tl.constexpr(KINDS.index("linear"))


@triton.jit
def _wide(value):
    return tl.cast(value, tl.int64)


@triton.jit
def _above(value, floor):
    # NaN stays NaN
    return tl.maximum(value, floor, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _root(value):
    if value.dtype == tl.float32:
        return tl.sqrt_rn(value)
    return tl.sqrt(value)


@triton.jit
def _scores(
    trial,
    block,
    columns,
    mean,
    mean_t,
    mean_f,
    var,
    var_t,
    draw,
    draw_t,
    draw_f,
    mask,
    mask_t,
    table,
    n,
    start,
    K: tl.constexpr,
    F: tl.constexpr,
    SCORE: tl.constexpr,
    CLIPPED: tl.constexpr,
    DRAWN: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update one block by its ``columns``; return its scores and estimates."""
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    table += trial * (K + F * (K + 4) - 1)

    # request all loads before anything waits for one
    held = var + trial * var_t + place
    v = tl.load(held, mask=inside, other=1.0)
    places, means, draws = (), (), ()
    for f in tl.static_range(F):
        at = mean + trial * mean_t + f * _wide(mean_f) + place
        places = places + (at,)
        means = means + (tl.load(at, mask=inside, other=0.0),)
        if DRAWN:
            at = draw + trial * draw_t + f * _wide(draw_f) + place
            draws = draws + (tl.load(at, mask=inside, other=0.0),)
    if MASKED:
        allowed = tl.load(mask + trial * mask_t + start + place, mask=inside, other=0)

    for c in tl.static_range(K):
        v -= tl.load(table + c) * columns[c] * columns[c]
    if K > 0:
        tl.store(held, v, mask=inside)
    spread = v
    if not DRAWN:
        spread = _root(_above(v, 0.0))

    shifts = table + K
    looks = table + K + F * K
    found = ()
    for f in tl.static_range(F):
        m = means[f]
        for c in tl.static_range(K):
            m += tl.load(shifts + f * K + c) * columns[c]
        if K > 0:
            tl.store(places[f], m, mask=inside)
        if DRAWN:
            spread = draws[f]
        e = m + tl.load(looks + f) * spread + tl.load(looks + F + f)
        if CLIPPED:
            bound = tl.load(looks + 2 * F + f)
            e = _above(e, -bound)
            e = tl.minimum(e, bound, propagate_nan=tl.PropagateNan.ALL)
        found = found + (e,)

    score = found[0]
    if SCORE == LEAST:
        score = found[1]
        for f in tl.static_range(2, F):
            score = _above(score, found[f])
        score = -score
    elif SCORE == FEASIBLE:
        for f in tl.static_range(1, F):
            score = tl.where(found[f] > 0, float("-inf"), score)
    else:
        for f in tl.static_range(1, F):
            g = found[f]
            if SCORE == RECTIFIED:
                g = _above(g, 0.0)
            score -= tl.load(looks + 3 * F + f - 1) * g
    score = tl.where(score != score, float("inf"), score)
    if MASKED:
        score = tl.where(allowed != 0, score, float("-inf"))
    return tl.where(inside, score, float("-inf")), found


@triton.jit
def _finish(
    columns,
    mean,
    mean_t,
    mean_f,
    var,
    var_t,
    draw,
    draw_t,
    draw_f,
    mask,
    mask_t,
    table,
    peak,
    n,
    start,
    K: tl.constexpr,
    F: tl.constexpr,
    SCORE: tl.constexpr,
    CLIPPED: tl.constexpr,
    DRAWN: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update one block, score it, and store its largest score."""
    trial, block = _wide(tl.program_id(1)), _wide(tl.program_id(0))
    score, _ = _scores(
        trial,
        block,
        columns,
        mean,
        mean_t,
        mean_f,
        var,
        var_t,
        draw,
        draw_t,
        draw_f,
        mask,
        mask_t,
        table,
        n,
        start,
        K,
        F,
        SCORE,
        CLIPPED,
        DRAWN,
        MASKED,
        BLOCK,
    )
    tl.store(peak + trial * _wide(tl.num_programs(0)) + block, tl.max(score, 0))


@triton.jit(do_not_specialize=["start"])
def choose_kernel(
    blocks,
    reach,
    mean,
    mean_t,
    mean_f,
    var,
    var_t,
    draw,
    draw_t,
    draw_f,
    mask,
    mask_t,
    table,
    index,
    estimate,
    n,
    start,
    F: tl.constexpr,
    SCORE: tl.constexpr,
    CLIPPED: tl.constexpr,
    DRAWN: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the first action in a trial's block with a score of at least ``reach``."""
    trial = _wide(tl.program_id(0))
    block = tl.load(blocks + trial)
    score, found = _scores(
        trial,
        block,
        (),
        mean,
        mean_t,
        mean_f,
        var,
        var_t,
        draw,
        draw_t,
        draw_f,
        mask,
        mask_t,
        table,
        n,
        start,
        0,
        F,
        SCORE,
        CLIPPED,
        DRAWN,
        MASKED,
        BLOCK,
    )
    lane = tl.arange(0, BLOCK)
    least = tl.minimum(tl.load(reach + trial), tl.max(score, 0))
    first = tl.min(tl.where(score >= least, lane, BLOCK), 0)
    tl.store(index + trial, block * BLOCK + first + start)
    for f in tl.static_range(F):
        here = tl.sum(tl.where(lane == first, found[f], 0.0), 0)
        tl.store(estimate + trial * F + f, here)


@triton.jit(do_not_specialize=["start"])
def finish_kernel(
    columns,
    column_t,
    column_k,
    mean,
    mean_t,
    mean_f,
    var,
    var_t,
    draw,
    draw_t,
    draw_f,
    mask,
    mask_t,
    table,
    peak,
    n,
    start,
    K: tl.constexpr,
    F: tl.constexpr,
    SCORE: tl.constexpr,
    CLIPPED: tl.constexpr,
    DRAWN: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    trial, block = _wide(tl.program_id(1)), _wide(tl.program_id(0))
    place = block * BLOCK + tl.arange(0, BLOCK)
    known = ()
    for c in tl.static_range(K):
        at = columns + trial * column_t + c * _wide(column_k) + place
        known = known + (tl.load(at, mask=place < n, other=0.0),)
    _finish(
        known,
        mean,
        mean_t,
        mean_f,
        var,
        var_t,
        draw,
        draw_t,
        draw_f,
        mask,
        mask_t,
        table,
        peak,
        n,
        start,
        K,
        F,
        SCORE,
        CLIPPED,
        DRAWN,
        MASKED,
        BLOCK,
    )


@triton.jit
def _of_square(t, KIND: tl.constexpr):
    """Return a Matern kernel's value from ``t = |x - y|^2`` in its own scale."""
    a = distance(t)
    decay = power(a * -1.0)  # a factor of -1 is free; 0 - a costs an addition
    if KIND == MATERN12:
        return decay
    if KIND == MATERN32:
        return decay * (a * NATURAL + 1.0)
    return decay * (a * (a * THIRD + NATURAL) + 1.0)


@triton.jit
def _value(
    x,
    squares,
    at,
    q: tl.constexpr,
    D: tl.constexpr,
    FACTORS: tl.constexpr,
    KIND: tl.constexpr,
    FAR: tl.constexpr,
    APART: tl.constexpr,
):
    """Return one factor's values between a block ``x`` and the tried action ``at``."""
    if KIND == LINEAR:
        t = x[q * D] * tl.load(at + q * D)
        for j in tl.static_range(1, D):
            t += x[q * D + j] * tl.load(at + q * D + j)
        return t
    if FAR or KIND == MATERN12:
        gap = x[q * D] - tl.load(at + q * D)
        t = gap * gap
        for j in tl.static_range(1, D):
            gap = x[q * D + j] - tl.load(at + q * D + j)
            t += gap * gap
        if KIND == RBF:
            return power(t * -1.0)
        return _of_square(t, KIND)
    # 2 y or -2 y is stored, with squares of the other sign: one FMA a coordinate
    t = tl.load(at + FACTORS * D + q)
    if not APART:
        t += squares[q]
    for j in tl.static_range(D):
        t += x[q * D + j] * tl.load(at + q * D + j)
    if KIND == RBF:
        return power(t)
    return _of_square(t, KIND)


# the number of tried actions grows, so one kernel serves all numbers
@triton.jit(do_not_specialize=["used", "start"])
def stream_kernel(
    points,
    point_t,
    frames,
    frame_t,
    rows,
    used,
    mean,
    mean_t,
    mean_f,
    var,
    var_t,
    draw,
    draw_t,
    draw_f,
    mask,
    mask_t,
    table,
    peak,
    n,
    start,
    D: tl.constexpr,
    FACTORS: tl.constexpr,
    KIND: tl.constexpr,
    FAR: tl.constexpr,
    STEP: tl.constexpr,
    K: tl.constexpr,
    F: tl.constexpr,
    SCORE: tl.constexpr,
    CLIPPED: tl.constexpr,
    DRAWN: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    trial, block = _wide(tl.program_id(1)), _wide(tl.program_id(0))
    place = block * BLOCK + tl.arange(0, BLOCK)
    frame = frames + trial * frame_t
    x, squares = (), ()
    for q in tl.static_range(FACTORS):
        square = tl.zeros((BLOCK,), points.dtype.element_ty)
        for j in tl.static_range(D):
            at = points + trial * point_t + (place * D + j)
            p = tl.load(at, mask=place < n, other=0.0)
            center = tl.load(frame + 2 * q * D + j)
            p = (p - center) * tl.load(frame + (2 * q + 1) * D + j)
            if KIND[q] == RBF:
                square -= p * p
            else:
                square += p * p
            x = x + (p,)
        squares = squares + (square,)

    # the part of an RBF that depends on the action alone, 2^-|x|^2, multiplies the sum
    APART: tl.constexpr = FACTORS == 1 and KIND[0] == RBF and not FAR
    WIDTH: tl.constexpr = FACTORS * (D + 1) + K
    row = rows + trial * used * WIDTH
    columns = ()
    for _ in tl.static_range(K):
        columns = columns + (tl.zeros((BLOCK,), points.dtype.element_ty),)
    for first in range(0, used, STEP):
        for i in tl.static_range(STEP):
            one = row + (first + i) * WIDTH
            known = _value(x, squares, one, 0, D, FACTORS, KIND[0], FAR, APART)
            for q in tl.static_range(1, FACTORS):
                known *= _value(x, squares, one, q, D, FACTORS, KIND[q], FAR, APART)
            grown = ()
            for c in tl.static_range(K):
                weight = tl.load(one + FACTORS * (D + 1) + c)
                grown = grown + (columns[c] + weight * known,)
            columns = grown
    if APART:
        own = power(squares[0])
        whole = ()
        for c in tl.static_range(K):
            whole = whole + (columns[c] * own,)
        columns = whole
    _finish(
        columns,
        mean,
        mean_t,
        mean_f,
        var,
        var_t,
        draw,
        draw_t,
        draw_f,
        mask,
        mask_t,
        table,
        peak,
        n,
        start,
        K,
        F,
        SCORE,
        CLIPPED,
        DRAWN,
        MASKED,
        BLOCK,
    )
