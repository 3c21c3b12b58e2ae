"""One pass over the actions a round: update the beliefs, score, find the best.

The posterior covariance of what was told with every action is ``k`` columns over the
set, normally 1. They change means and variances in place; estimates, the policy's score
and its maximum follow in the same pass, so each number is read and written once a
round. There are three forms: :func:`stream_round` computes the columns from the ``u``
distinct actions tried, :func:`stored_round` sums them from stored kernel rows, and
:func:`finish_round` takes them as an argument.

Each has a plain-torch reference with the same signature, which replaces it on a device
where the two disagree (:mod:`cbandit_kernels.checked`). ``T`` trials, ``F`` functions
(the reward first), ``n`` actions, ``d`` coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cbandit_kernels.backends import native, streams_natively
from cbandit_kernels.checked import ACTIONS, Numbers, agrees, sample_frame
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

VALUES = 1 << 25  # kernel values computed at once

TRIED = 9  # tried actions in a sample that checks a kernel


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
    """Do the pass over a stretch whose columns are known; return the best action.

    Args:
        columns: ``(T, k, n)``; ``k`` may be 0.
        change: how the columns change means and variances.
        mean: ``(T, F, n)``, changed in place; may be a stretch of a larger tensor.
        var: ``(T, n)``, likewise.
        look: the score, and how estimates are made.
        start: the number of the first action of the stretch.
        draw: ``(T, F, n)``, replaces the standard deviation in a joint draw.
        backend: ``None``: the fastest available. ``"triton"``, ``"native"`` or
            ``"torch"`` to require it.
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
    place = good.to(torch.uint8).argmax(-1)  # the first one
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
    known = columns, change, mean, var, look, start, draw
    if backend == "triton" or (backend is None and _finishes(mean, change, look, draw)):
        return _launch_finish(*known)
    if backend == "native" or (backend is None and native(mean)):
        from cbandit_kernels._native.rounds import finish as finish_natively

        return finish_natively(*known)
    return finish_round_ref(*known)


def _launch_finish(
    columns: Tensor,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int,
    draw: Tensor | None,
) -> Found:
    from cbandit_kernels._triton.rounds import finish

    return finish(columns, change, mean, var, look, start, draw)


def _finishes(mean: Tensor, change: Change, look: Look, draw: Tensor | None) -> bool:
    """Return whether the device's kernel is checked for such a round."""
    if not on_device(mean):
        return False
    count = change.spread.shape[-1]

    def columns(numbers: Numbers) -> tuple[object, ...]:
        return (numbers.values(numbers.trials, count, ACTIONS),)

    known = change, mean, look, draw
    return agrees("finish", _launch_finish, finish_round_ref, known, None, columns)


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
    """Do the pass over a stretch with stored kernel rows; return the best action.

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
    """Do as :func:`stored_round_ref`, by compiled loops if they are available."""
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
    """Do the pass over a stretch of points, with kernel values computed on the way.

    Args:
        points: the stretch, ``(n, d)`` or ``(T, n, d)``.
        frame: how kernels scale coordinates.
        tried: the distinct tried actions, ``(1 or T, u, d)``.
        weights: ``(T, u, k)``: the columns are these combinations of kernel rows.
        kinds: the kernel of each factor, one of :data:`KINDS`; the kernel is their
            product.
        change, mean, var, look, start, draw, backend: see :func:`finish_round_ref`.
    """
    x, y = frame(points), frame(tried.to(points.dtype))
    if points.dim() == 2 and x.shape[1] == 1:
        x = x.squeeze(1)
    weights = weights.to(points.dtype)
    step = max(1, VALUES // max(1, y[0].shape[:-1].numel()))
    parts = x.split(step, -2)
    columns = torch.cat(
        [kernel_columns_ref(part, y, weights, kinds, frame.far) for part in parts], -1
    )
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
    if backend == "triton" or (
        backend is None and _streams(points, frame, kinds, change, mean, look, draw)
    ):
        return _launch_stream(*known)
    dim = points.shape[-1]
    if backend == "native" or (backend is None and streams_natively(mean, kinds, dim)):
        from cbandit_kernels._native.rounds import stream as stream_natively

        return stream_natively(*known)
    return stream_round_ref(*known)


def _launch_stream(
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
) -> Found:
    from cbandit_kernels._triton.rounds import stream

    return stream(
        points, frame, tried, weights, kinds, change, mean, var, look, start, draw
    )


def _streams(
    points: Tensor,
    frame: Frame,
    kinds: tuple[str, ...],
    change: Change,
    mean: Tensor,
    look: Look,
    draw: Tensor | None,
) -> bool:
    """Return whether the device's kernel is checked for such a round."""
    if not on_device(mean):
        return False
    count, dim, own = change.spread.shape[-1], points.shape[-1], points.dim() == 3

    def columns(numbers: Numbers) -> tuple[object, ...]:
        trials = numbers.trials
        places = numbers.share(*([trials] if own else []), ACTIONS, dim).to(mean)
        tried = numbers.share(trials, TRIED, dim)
        weights = numbers.signed(trials, TRIED, count)
        alike = sample_frame(numbers, frame, len(kinds), dim)
        return places, alike, tried, weights, kinds

    known, form = (change, mean, look, draw), (kinds, dim, own, frame.far)
    return agrees("stream", _launch_stream, stream_round_ref, known, form, columns)


def on_device(values: Tensor) -> bool:
    """Return whether ``values`` are where Triton's kernels run."""
    return values.is_cuda
