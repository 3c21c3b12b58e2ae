"""Launches of the kernels behind :mod:`cbandit_kernels.rounds`."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from cbandit_kernels._triton.programs import choose_kernel, finish_kernel, stream_kernel
from cbandit_kernels.forms import KINDS
from cbandit_kernels.types import SCORES, Change, Found, Frame, Look

DIMS = 16  # most coordinates that fit in registers
TRIALS = 65535  # most programs on a launch's second axis
WARPS = 4
UNROLL = 4  # tried actions in a step

# kernels are powers of 2: coordinates are scaled so that the exponent is -|x - y|^2
# for the RBF and -|x - y| for the Matern family
_STRETCH = {
    "rbf": math.sqrt(0.5 / math.log(2)),
    "matern12": 1 / math.log(2),
    "matern32": math.sqrt(3) / math.log(2),
    "matern52": math.sqrt(5) / math.log(2),
    "linear": 1.0,
}


def blocks_of(n, block):
    """Return how many blocks cover ``n`` actions."""
    return triton.cdiv(n, block)


def stream_block(dim: int, factors: int, columns: int, dtype: torch.dtype) -> int:
    """Return the actions of a program, so that a thread's part fits its registers."""
    registers = 176 if dtype.itemsize == 4 else 48
    room = registers // (factors * (dim + 1) + columns + 3)
    each = max(1, min(16, 1 << max(0, room.bit_length() - 1)))
    return 32 * WARPS * each


def _table(change, look, like):
    """Return each trial's numbers of the round in one row; see ``_finish``."""
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
    """Return the grid, arguments of :func:`_finish` except columns, and settings."""
    trials, functions, n = mean.shape
    blocks = blocks_of(n, block)
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
        "peak": torch.empty(trials, blocks, dtype=mean.dtype, device=mean.device),
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
    return (blocks, trials), pointers, settings


def _found(change, look, pointers, settings):
    """Return the first action whose score is within tolerance of the largest.

    It is in the first block whose largest score is, and this block is scored again.
    """
    peak, mean = pointers.pop("peak"), pointers["mean"]
    trials, functions, _ = mean.shape
    value = peak.amax(-1)
    reach = look.reach(value)
    block = (peak >= reach.unsqueeze(-1)).to(torch.uint8).argmax(-1)
    index, estimate = torch.empty_like(block), mean.new_empty(trials, functions)
    # means and variances are changed already
    none = Change(change.spread[:, :0], change.shift[..., :0])
    pointers |= {"table": _table(none, look, mean)}
    settings = {name: it for name, it in settings.items() if name != "K"}
    choose_kernel[(trials,)](
        block,
        reach,
        **pointers,
        index=index,
        estimate=estimate,
        **settings,
        num_warps=WARPS,
    )
    return Found(value, index, estimate)


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
    grid, pointers, settings = _shared(change, mean, var, look, start, draw, block)
    with torch.cuda.device_of(mean):
        finish_kernel[grid](
            columns,
            columns.stride(0),
            columns.stride(1),
            **pointers,
            **settings,
            num_warps=WARPS,
        )
        return _found(change, look, pointers, settings)


def _rows(frame, tried, weights, kinds, like):
    """Return tried actions, squares and weights, ``(T, u, width)``; pad u to UNROLL."""
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
    # sent without waiting for the device's pending work
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
    grid, pointers, settings = _shared(change, mean, var, look, start, draw, block)
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
        return _found(change, look, pointers, settings)
