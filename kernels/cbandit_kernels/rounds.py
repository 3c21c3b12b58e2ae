"""One pass over the actions a round: update what is believed, score, take the best.

The posterior covariance of what was told with every action is ``k`` columns over the
set, *k* normally 1. They change means and variance in place; estimates, the policy's
score and its maximum follow in the same pass, so that each number is read and written
once a round. Three forms: :func:`stream_round` makes the columns itself, from the ``u``
distinct actions tried; :func:`stored_round` sums them from kernel rows that are kept;
:func:`finish_round` is given them, by a matrix product.

Each has its plain-torch reference beside it, of the same signature. ``T`` trials, ``F``
functions (the reward first), ``n`` actions, ``d`` coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cbandit_kernels.backends import native, streams_natively
from cbandit_kernels.forms import kernel_columns_ref
from cbandit_kernels.scores import score_ref
from cbandit_kernels.types import Change, Found, Frame, Look

__all__ = [
    "finish_round",
    "finish_round_ref",
    "stored_round",
    "stored_round_ref",
    "stream_round",
    "stream_round_ref",
]


def finish_round_ref(
    columns: Tensor,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Found:
    """The pass over a stretch whose columns are known.

    Args:
        columns: ``(T, k, n)``; ``k`` may be 0.
        change: what they change.
        mean: ``(T, F, n)``, changed in place; it may be a stretch of a larger tensor.
        var: ``(T, n)``, likewise.
        look: what to ask.
        start: the number of the first action of the stretch.
        draw: ``(T, F, n)``: what stands for the standard deviation in a joint draw.
        backend: ``None``: the fastest at hand. ``"triton"``, ``"native"`` or
            ``"torch"`` to insist on it.
    """
    mean.baddbmm_(change.shift.to(mean), columns)
    var.sub_((change.spread.to(var).unsqueeze(1) @ columns.square()).squeeze(1))
    spread = var.clamp_min(0).sqrt().unsqueeze(1) if draw is None else draw
    estimate = torch.addcmul(mean, look.coefficient.to(mean).unsqueeze(-1), spread)
    if look.offset is not None:
        estimate += look.offset.to(mean).unsqueeze(-1)
    if look.bound is not None:
        bound = look.bound.to(mean).unsqueeze(-1)
        estimate = estimate.clamp(-bound, bound)
    values = score_ref(estimate[:, 0], estimate[:, 1:], look)
    values = torch.where(values.isnan(), torch.inf, values)
    if look.mask is not None:
        allowed = look.mask[:, start : start + values.shape[-1]]
        values = values.masked_fill(~allowed, -torch.inf)
    value = values.amax(-1)
    good = values >= look.reach(value).unsqueeze(-1)
    place = good.to(torch.uint8).argmax(-1)  # the first of them
    at = place.view(-1, 1, 1).expand(-1, estimate.shape[1], 1)
    return Found(value, place + start, estimate.gather(-1, at)[..., 0])


def finish_round(
    columns: Tensor,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Found:
    """Do as :func:`finish_round_ref`, fused: by Triton on CUDA, compiled on the CPU."""
    if backend == "triton" or (backend is None and mean.is_cuda):
        from cbandit_kernels._triton.rounds import finish

        return finish(columns, change, mean, var, look, start, draw)
    if backend == "native" or (backend is None and native(mean)):
        from cbandit_kernels._native.rounds import finish as finish_natively

        return finish_natively(columns, change, mean, var, look, start, draw)
    return finish_round_ref(columns, change, mean, var, look, start, draw)


def stored_round_ref(
    rows: Sequence[Tensor],
    weights: Tensor,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Found:
    """The pass over a stretch of which all kernel rows are kept.

    Args:
        rows: the rows in chunks, ``(T, each, n)``; the last chunk may hold more.
        weights: ``(T, u, k)``: the columns are these combinations of the rows.
        change, mean, var, look, start, draw, backend: see :func:`finish_round_ref`.
    """
    columns = mean.new_zeros(len(mean), weights.shape[-1], mean.shape[-1])
    parts = weights.to(mean).split(rows[0].shape[1], 1)
    for chunk, part in zip(rows, parts, strict=True):
        columns.baddbmm_(part.mT, chunk[:, : part.shape[1]])
    return finish_round_ref(columns, change, mean, var, look, start, draw)


def stored_round(
    rows: Sequence[Tensor],
    weights: Tensor,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Found:
    """:func:`stored_round_ref`, by compiled loops where they are at hand."""
    known = (rows, weights, change, mean, var, look, start, draw)
    if backend == "native" or (backend is None and native(mean)):
        from cbandit_kernels._native.rounds import stored

        return stored(*known)
    return stored_round_ref(*known)


def stream_round_ref(
    points: Tensor,
    frame: Frame,
    tried: Tensor,
    weights: Tensor,
    kinds: tuple[str, ...],
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Found:
    """The pass over a stretch of free-form actions, their kernel values made anew.

    Args:
        points: the stretch, ``(n, d)`` or ``(T, n, d)``.
        frame: how kernels see coordinates.
        tried: the distinct tried actions, ``(1 or T, u, d)``.
        weights: ``(T, u, k)``: the columns are these combinations of kernel rows.
        kinds: one of :data:`KINDS` a factor; the kernel is their product.
        change, mean, var, look, start, draw, backend: see :func:`finish_round_ref`.
    """
    x, y = frame(points), frame(tried.to(points.dtype))
    if points.dim() == 2 and x.shape[1] == 1:
        x = x.squeeze(1)
    columns = kernel_columns_ref(x, y, weights.to(points.dtype), kinds, frame.far)
    columns = columns.expand(var.shape[0], -1, -1)
    return finish_round_ref(columns, change, mean, var, look, start, draw)


def stream_round(
    points: Tensor,
    frame: Frame,
    tried: Tensor,
    weights: Tensor,
    kinds: tuple[str, ...],
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Found:
    """Do as :func:`stream_round_ref`, fused: by Triton on CUDA, compiled on the CPU."""
    known = (points, frame, tried, weights, kinds, change, mean, var, look, start, draw)
    if backend == "triton" or (backend is None and mean.is_cuda):
        from cbandit_kernels._triton.rounds import stream

        return stream(*known)
    dim = points.shape[-1]
    if backend == "native" or (backend is None and streams_natively(mean, kinds, dim)):
        from cbandit_kernels._native.rounds import stream as stream_natively

        return stream_natively(*known)
    return stream_round_ref(*known)
