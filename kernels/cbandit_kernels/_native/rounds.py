"""The round's one pass on the CPU: the references' signatures, compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit_kernels._native.loops import loops
from cbandit_kernels._native.streams import FACTORS, stream as streaming
from cbandit_kernels._native.threads import share
from cbandit_kernels._native.values import ROOTS
from cbandit_kernels.types import SCORES, Change, Found, Frame, Look

__all__ = ["finish", "product"]

PIECE = 1 << 14  # actions that a thread takes at a time


@lru_cache(maxsize=64)
def _constant(value: float, shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
    return torch.full(shape, value, dtype=dtype).numpy()


def _array(value: Tensor | None, default: float, like: Tensor) -> np.ndarray:
    """A small ``(T, F)`` tensor as the loops take it; a constant where there is none."""
    if value is None:
        return _constant(default, tuple(like.shape[:2]), like.dtype)
    return value.to(like.dtype).contiguous().numpy()


def _asked(look: Look, mean: Tensor) -> tuple[Any, ...]:
    """``look`` as the loops take it: small arrays, a code and an address."""
    mask, step = 0, 0
    if look.mask is not None:
        mask = look.mask.data_ptr()
        step = look.mask.stride(0) if len(look.mask) > 1 else 0
    return (
        _array(look.coefficient, 0.0, mean),
        _array(look.offset, 0.0, mean),
        _array(look.bound, torch.inf, mean),
        SCORES.index(look.score),
        _array(look.weight, 0.0, mean),
        mask,
        step,
    )


def _drawn(draw: Tensor | None) -> tuple[int, tuple[int, int]]:
    if draw is None:
        return 0, (0, 0)
    return draw.data_ptr(), (draw.stride(0), draw.stride(1))


def _found(
    values: np.ndarray, indices: np.ndarray, start: int, mean: Tensor, var: Tensor,
    look: Look, draw: Tensor | None,
) -> Found:
    """The best of all pieces, and the estimates there."""
    value, index = torch.from_numpy(values), torch.from_numpy(indices)
    if values.shape[1] > 1:
        top = value.amax(-1, keepdim=True)
        # of equals the lowest number, wherever it was found
        index = index.where(value == top, torch.iinfo(torch.int64).max)
        index, value = index.amin(-1, keepdim=True), top
    at = (index - start).unsqueeze(1).expand(-1, mean.shape[1], -1)
    seen = mean.gather(-1, at)
    if draw is None:
        spread = var.gather(-1, at[:, 0]).clamp_min(0).sqrt().unsqueeze(1)
    else:
        spread = draw.gather(-1, at)
    estimate = torch.addcmul(seen, look.coefficient.to(seen).unsqueeze(-1), spread)
    if look.offset is not None:
        estimate += look.offset.to(seen).unsqueeze(-1)
    if look.bound is not None:
        bound = look.bound.to(seen).unsqueeze(-1)
        estimate = estimate.clamp(-bound, bound)
    return Found(value, index, estimate)


def finish(
    columns: Tensor, change: Change, mean: Tensor, var: Tensor, look: Look,
    start: int = 0, draw: Tensor | None = None,
) -> Found:
    """See :func:`cbandit_kernels.rounds.finish_round_ref`."""
    trials, k, n = columns.shape
    if columns.stride(-1) != 1:
        columns = columns.contiguous()
    go = loops(mean.dtype == torch.float64).finish
    spread = change.spread.to(mean.dtype).contiguous().numpy()
    shift = change.shift.to(mean.dtype).contiguous().numpy()
    asked, drawn = _asked(look, mean), _drawn(draw)
    each = -(-n // PIECE)
    values = np.empty((trials, each), shift.dtype)
    indices = np.empty((trials, each), np.int64)
    given = columns.data_ptr(), (columns.stride(0), columns.stride(1))
    held = mean.data_ptr(), (mean.stride(0), mean.stride(1)), var.data_ptr(), var.stride(0)

    def work(number: int) -> None:
        t, piece = divmod(number, each)
        low = piece * PIECE
        go(*given, k, n, spread, shift, *held, *asked, *drawn, t, low,
           min(low + PIECE, n), start, values, indices, piece)

    share(work, trials * each)
    return _found(values, indices, start, mean, var, look, draw)


def product(
    left: Tensor, right: Tensor, change: Change, mean: Tensor, var: Tensor, look: Look,
    start: int = 0, draw: Tensor | None = None,
) -> Found:
    """The pass over whole rows of a grid, whose columns are ``left @ right``.

    Args:
        left: ``(T, k, rows, r)``.
        right: ``(1 or T, r, tails)``.
        change, mean, var, look, start, draw: see ``finish_round_ref``; the stretch is
            ``rows x tails`` actions.
    """
    trials, k, rows, _ = left.shape
    tails = right.shape[-1]
    go = loops(mean.dtype == torch.float64).product
    spread = change.spread.to(mean.dtype).contiguous().numpy()
    shift = change.shift.to(mean.dtype).contiguous().numpy()
    asked, drawn = _asked(look, mean), _drawn(draw)
    step = max(1, PIECE // tails)
    each = -(-rows // step)
    values = np.empty((trials, each), shift.dtype)
    indices = np.empty((trials, each), np.int64)
    held = mean.data_ptr(), (mean.stride(0), mean.stride(1)), var.data_ptr(), var.stride(0)
    a, b = left.contiguous().numpy(), right.contiguous().numpy()

    def work(number: int) -> None:
        t, piece = divmod(number, each)
        low = piece * step
        go(a, b, k, spread, shift, *held, *asked, *drawn, t, low,
           min(low + step, rows), start, values, indices, piece)

    share(work, trials * each)
    return _found(values, indices, start, mean, var, look, draw)


STREAM_PIECE = 1 << 12


def stream(
    points: Tensor, frame: Frame, tried: Tensor, weights: Tensor,
    kinds: tuple[str, ...], change: Change, mean: Tensor, var: Tensor, look: Look,
    start: int = 0, draw: Tensor | None = None,
) -> Found:
    """See :func:`cbandit_kernels.rounds.stream_round_ref`."""
    dtype, double = mean.dtype, mean.dtype == torch.float64
    n, dim = points.shape[-2:]
    go = streaming(kinds, dim, frame.far, double)
    roots = torch.tensor([ROOTS[kind] for kind in kinds], dtype=torch.float64)
    scale = frame.scale.double() * roots.view(-1, 1, 1)
    center = frame.center.double()
    near = ((tried.double() - center.unsqueeze(-2)) * scale.unsqueeze(-2)).to(dtype)
    whole = points if points.dim() == 3 else points.unsqueeze(0)
    small = [v.to(dtype).contiguous().numpy() for v in
             (whole, center, scale, near, weights, change.spread, change.shift)]
    asked, drawn = _asked(look, mean), _drawn(draw)
    trials = len(mean)
    each = -(-n // STREAM_PIECE)
    values = np.empty((trials, each), small[0].dtype)
    indices = np.empty((trials, each), np.int64)
    held = mean.data_ptr(), (mean.stride(0), mean.stride(1)), var.data_ptr(), var.stride(0)

    def work(number: int) -> None:
        t, piece = divmod(number, each)
        low = piece * STREAM_PIECE
        go(*small, *held, *asked, *drawn, t, low, min(low + STREAM_PIECE, n), start,
           values, indices, piece)

    share(work, trials * each)
    return _found(values, indices, start, mean, var, look, draw)


SMALL = 1 << 16  # numbers of a covariance up to which one thread takes all trials


def joint(
    cov: Tensor,
    mean: Tensor,
    look: Look,
    told: tuple[Sequence[int], Tensor, Tensor] | None = None,
    draw: Tensor | None = None,
) -> Found:
    """The round of a small set: see :func:`cbandit_kernels.rounds.joint_round_ref`."""
    trials, size, _ = cov.shape
    asked, drawn = _asked(look, mean), _drawn(draw)
    go = loops(cov.dtype == torch.float64).joint
    if told is None:
        slots, precision = np.zeros(trials, np.int64), _constant(0.0, (trials,), cov.dtype)
        targets = _constant(0.0, tuple(mean.shape[:2]), cov.dtype)
    else:
        slots = np.array(told[0], np.int64)
        precision, targets = told[1].numpy(), told[2].numpy()
    values = np.empty(trials, targets.dtype)
    indices = np.empty(trials, np.int64)
    estimates = np.empty(mean.shape[:2], targets.dtype)
    given = cov.numpy(), mean.numpy(), slots, precision, targets, told is not None
    if trials * size * size <= SMALL or trials == 1:
        go(*given, *asked, *drawn, 0, trials, values, indices, estimates)
    else:
        each = -(-trials // 8)

        def work(piece: int) -> None:
            low = piece * each
            high = min(low + each, trials)
            go(*given, *asked, *drawn, low, high, values, indices, estimates)

        share(work, -(-trials // each))
    found = [torch.from_numpy(v).unsqueeze(-1) for v in (values, indices, estimates)]
    return Found(*found)
