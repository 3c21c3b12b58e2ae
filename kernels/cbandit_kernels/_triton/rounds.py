"""The kernels behind :mod:`cbandit_kernels.rounds`.

A program takes one block of actions of one trial. Offsets into the set are 64 bits
wide. What is the same for all actions of a trial travels in small packed tables, which
programs read through the cache: ``table`` holds a round's numbers, ``rows`` the tried
actions with their weights.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbandit_kernels._triton.powers import distance, power
from cbandit_kernels.forms import KINDS
from cbandit_kernels.types import SCORES, Change, Found, Frame, Look

DIMS = 16  # coordinates that fit in registers
TRIALS = 65535  # a launch's second axis
WARPS = 4
UNROLL = 4  # tried actions a step
NATURAL, THIRD = tl.constexpr(math.log(2)), tl.constexpr(math.log(2) ** 2 / 3)
LEAST = tl.constexpr(SCORES.index("least"))
FEASIBLE = tl.constexpr(SCORES.index("feasible"))
RECTIFIED = tl.constexpr(SCORES.index("rectified"))
RBF = tl.constexpr(KINDS.index("rbf"))
MATERN12 = tl.constexpr(KINDS.index("matern12"))
MATERN32 = tl.constexpr(KINDS.index("matern32"))
LINEAR = tl.constexpr(KINDS.index("linear"))

# kernels are powers of 2: coordinates are scaled so that the exponent is -|x - y|^2
# for the RBF and -|x - y| for the Matern family
_STRETCH = {
    "rbf": math.sqrt(0.5 / math.log(2)),
    "matern12": 1 / math.log(2),
    "matern32": math.sqrt(3) / math.log(2),
    "matern52": math.sqrt(5) / math.log(2),
    "linear": 1.0,
}


@triton.jit
def _wide(value):
    return tl.cast(value, tl.int64)


@triton.jit
def _above(value, floor):
    # what is not a number stays so
    return tl.maximum(value, floor, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _root(value):
    if value.dtype == tl.float32:
        return tl.sqrt_rn(value)
    return tl.sqrt(value)


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
    value,
    index,
    estimate,
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
    """Update one block by its ``columns``, score it, write down its best."""
    trial, block = _wide(tl.program_id(1)), _wide(tl.program_id(0))
    lane = tl.arange(0, BLOCK)
    place = block * BLOCK + lane
    inside = place < n
    table += trial * (K + F * (K + 4) - 1)

    # what is read is asked for before anything waits for it
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
    score = tl.where(inside, score, float("-inf"))

    best, first = tl.max(score, 0, return_indices=True)
    blocks = _wide(tl.num_programs(0))
    slot = trial * blocks + block
    tl.store(value + slot, best)
    tl.store(index + slot, block * BLOCK + first + start)
    for f in tl.static_range(F):
        here = tl.sum(tl.where(lane == first, found[f], 0.0), 0)
        tl.store(estimate + (trial * F + f) * blocks + block, here)


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
    value,
    index,
    estimate,
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
        value,
        index,
        estimate,
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
    """A Matern kernel's value from ``t = |x - y|^2`` in its own scale."""
    a = distance(t)
    decay = power(a * -1.0)  # its sign costs nothing; that of 0 - a, an addition
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
    """One factor's values between a block ``x`` and the tried action at ``at``."""
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
    # 2 y is kept, or -2 y, and squares of the other sign: one FMA a coordinate
    t = tl.load(at + FACTORS * D + q)
    if not APART:
        t += squares[q]
    for j in tl.static_range(D):
        t += x[q * D + j] * tl.load(at + q * D + j)
    if KIND == RBF:
        return power(t)
    return _of_square(t, KIND)


# the number of tried actions grows: one kernel for all of them
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
    value,
    index,
    estimate,
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

    # an RBF's share of the action alone, 2^-|x|^2, multiplies the sum
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
        value,
        index,
        estimate,
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


# -- launches --------------------------------------------------------------------------


def blocks_of(n, block):
    """How many blocks cover ``n`` actions."""
    return triton.cdiv(n, block)


def stream_block(dim: int, factors: int, columns: int, dtype: torch.dtype) -> int:
    """Actions a program, so that a thread's own fit in its registers."""
    registers = 176 if dtype.itemsize == 4 else 48
    room = registers // (factors * (dim + 1) + columns + 3)
    each = max(1, min(16, 1 << max(0, room.bit_length() - 1)))
    return 32 * WARPS * each


def _table(change, look, like):
    """A trial's numbers of the round in one row; see ``_finish``."""
    coefficient = look.coefficient
    offset = torch.zeros_like(coefficient) if look.offset is None else look.offset
    bound = coefficient if look.bound is None else look.bound
    weight = (
        torch.zeros_like(coefficient[:, 1:]) if look.weight is None else look.weight
    )
    looks = [coefficient, offset, bound, weight]
    row = torch.cat([change.spread, change.shift.flatten(1), *looks], -1)
    return row.to(like)


def _shared(change, mean, var, look, start, draw, block):
    """Arguments of :func:`_finish` but for the columns, and what it fills in."""
    trials, functions, n = mean.shape
    blocks = blocks_of(n, block)
    found = Found(
        torch.empty(trials, blocks, dtype=mean.dtype, device=mean.device),
        torch.empty(trials, blocks, dtype=torch.long, device=mean.device),
        torch.empty(trials, functions, blocks, dtype=mean.dtype, device=mean.device),
    )
    mask = look.mask
    if mask is not None:
        dense = mask if mask.stride(-1) == 1 else mask.contiguous()
        mask = dense.view(torch.uint8)
    pointers = {
        "mean": mean,
        "mean_t": mean.stride(0),
        "mean_f": mean.stride(1),
        "var": var,
        "var_t": var.stride(0),
        "draw": mean if draw is None else draw,
        "draw_t": 0 if draw is None else draw.stride(0),
        "draw_f": 0 if draw is None else draw.stride(1),
        "mask": mean if mask is None else mask,
        "mask_t": 0 if mask is None or len(mask) == 1 else mask.stride(0),
        "table": _table(change, look, mean),
        "value": found.value,
        "index": found.index,
        "estimate": found.estimate,
        "n": n,
        "start": start,
    }
    settings = {
        "K": change.spread.shape[-1],
        "F": functions,
        "SCORE": SCORES.index(look.score),
        "CLIPPED": look.bound is not None,
        "DRAWN": draw is not None,
        "MASKED": mask is not None,
        "BLOCK": block,
    }
    return (blocks, trials), pointers, settings, found


def _checked(mean, var, *others):
    for each in (mean, var, *others):
        if each is not None and each.stride(-1) != 1 and each.shape[-1] > 1:
            raise ValueError(f"the last axis must be dense; got {each.stride()}")
        if each is not None and each.dtype != mean.dtype:
            raise TypeError(f"expected {mean.dtype}; got {each.dtype}")
    if len(mean) > TRIALS:
        raise ValueError(f"at most {TRIALS} trials at once; got {len(mean)}")


def finish(
    columns: Tensor,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int,
    draw: Tensor | None,
    block: int = 1024,
) -> Found:
    """Launch :func:`finish_kernel`."""
    _checked(mean, var, columns, draw)
    grid, pointers, settings, found = _shared(
        change, mean, var, look, start, draw, block
    )
    with torch.cuda.device_of(mean):
        finish_kernel[grid](
            columns,
            columns.stride(0),
            columns.stride(1),
            **pointers,
            **settings,
            num_warps=WARPS,
        )
    return found


def _rows(frame, tried, weights, kinds, like):
    """Tried actions, squares and weights, ``(T, u, width)``; u a multiple of UNROLL."""
    parts, squares = [], []
    for y, kind in zip(frame(tried.to(like)), kinds, strict=True):
        sign = -1 if kind == "rbf" else 1
        plain = frame.far or kind in ("linear", "matern12")
        parts.append(y if plain else y * (-2 * sign))
        squares.append(y.square().sum(-1, keepdim=True) * sign)
    every = [part.expand(len(weights), -1, -1) for part in parts + squares]
    rows = torch.cat([*every, weights.to(like)], -1)
    missing = -rows.shape[1] % UNROLL
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)).contiguous()


def stream(
    points: Tensor,
    frame: Frame,
    tried: Tensor,
    weights: Tensor,
    kinds: tuple[str, ...],
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int,
    draw: Tensor | None,
    block: int = 0,
) -> Found:
    """Launch :func:`stream_kernel`."""
    _checked(mean, var, points, draw)
    dim = points.shape[-1]
    if dim > DIMS:
        raise ValueError(f"at most {DIMS} coordinates; got {dim}")
    if not points.is_contiguous():
        points = points.contiguous()
    stretch = [_STRETCH[kind] for kind in kinds]
    # sent without waiting for what the device still has to do
    stretch = torch.tensor(stretch, dtype=mean.dtype)
    stretch = stretch.to(mean.device, non_blocking=True)
    frame = frame._replace(
        center=frame.center.to(mean),
        scale=frame.scale.to(mean) * stretch[:, None, None],
    )
    frames = torch.stack([frame.center, frame.scale], 1)  # f x 2 x (1 or T) x d
    frames = frames.permute(2, 0, 1, 3).contiguous()
    rows = _rows(frame, tried, weights, kinds, mean)
    block = block or stream_block(dim, len(kinds), weights.shape[-1], mean.dtype)
    grid, pointers, settings, found = _shared(
        change, mean, var, look, start, draw, block
    )
    with torch.cuda.device_of(mean):
        stream_kernel[grid](
            points,
            points.stride(0) if points.dim() == 3 else 0,
            frames,
            0 if len(frames) == 1 else frames.stride(0),
            rows,
            rows.shape[1],
            **pointers,
            **settings,
            D=dim,
            FACTORS=len(kinds),
            KIND=tuple(KINDS.index(kind) for kind in kinds),
            FAR=frame.far,
            STEP=UNROLL,
            num_warps=WARPS,
        )
    return found
