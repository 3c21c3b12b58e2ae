"""The round's one pass on the CPU: the references' signatures, compiled loops."""

from __future__ import annotations

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


def _asked(look: Look, mean: Tensor) -> tuple[Any, ...]:
    """``look`` as the loops take it: one small array, codes and addresses."""
    coefficient = look.coefficient
    bound = look.bound
    if bound is None:
        bound = torch.full_like(coefficient, torch.inf)
    asked = torch.stack([coefficient, look.offset.to(coefficient), bound.to(coefficient)])
    weight = look.weight.to(mean.dtype)
    asked = asked.to(mean.dtype)
    mask, step = 0, 0
    if look.mask is not None:
        mask = look.mask.data_ptr()
        step = look.mask.stride(0) if len(look.mask) > 1 else 0
    return asked.numpy(), SCORES.index(look.score), weight.numpy(), mask, step


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
