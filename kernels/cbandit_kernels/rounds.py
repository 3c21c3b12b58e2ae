"""One pass over the actions a round: update what is believed, score, take the best.

The posterior covariance of what was told with every action is ``k`` columns over the
set, *k* normally 1. They change means and variance in place; estimates, the policy's
score and its maximum follow in the same pass, so that each number is read and written
once a round. Two forms: :func:`stream_round` makes the columns itself, from the ``u``
distinct actions tried; :func:`finish_round` is given them, by a matrix product.

Each has its plain-torch reference beside it, of the same signature. ``T`` trials, ``F``
functions (the reward first), ``n`` actions, ``d`` coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit_kernels.forms import kernel_columns_ref

__all__ = [
    "SCORES",
    "Change",
    "Found",
    "Frame",
    "Look",
    "best_found",
    "finish_round",
    "finish_round_ref",
    "stream_round",
    "stream_round_ref",
]

SCORES = ("primal-dual", "rectified", "feasible", "least")
"""``f - sum w g``; ``f - sum w [g]_+``; ``f`` where all ``g <= 0``; ``-max g``."""


class Frame(NamedTuple):
    """Kernels see coordinates as ``(x - center) * scale``.

    Args:
        center: ``(f, 1 or T, d)``, one a factor; 0 for ``linear``'s own origin.
        scale: likewise.
        far: whether distances must come from differences of coordinates: squares of
            scaled coordinates would cancel noticeably, or powers of them overflow. To
            be set where they may be above 100 (float64: 500) for an action.
    """

    center: Tensor
    scale: Tensor
    far: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """``(f, 1 or T, n, d)`` of ``x``, ``(n, d)`` or ``(T, n, d)``."""
        return (x - self.center.unsqueeze(-2)) * self.scale.unsqueeze(-2)


class Change(NamedTuple):
    """``var -= sum_i spread_i c_i^2`` and ``mean += sum_i shift_i c_i``, ``k`` columns.

    Args:
        spread: ``(T, k)``.
        shift: ``(T, F, k)``.
    """

    spread: Tensor
    shift: Tensor


@dataclass(frozen=True)
class Look:
    """What is asked of every action: ``mean + coefficient * std + offset``, a score.

    Args:
        coefficient: ``(T, F)``.
        offset: ``(T, F)``.
        bound: ``(T, F)``: estimates are kept within ``[-bound, bound]``; ``None``: not.
        score: one of :data:`SCORES`.
        weight: ``(T, F - 1)``, of the costs.
        mask: ``(1 or T, N)`` bool over the whole set: the actions allowed.
    """

    coefficient: Tensor
    offset: Tensor
    bound: Tensor | None
    score: str
    weight: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class Found:
    """The best of each of ``p`` stretches, in order; lowest number on ties.

    Args:
        value: ``(T, p)``; minus infinity where nothing is allowed, plus infinity where
            a score is not a number.
        index: ``(T, p)``, int64, counted from the whole set's first action.
        estimate: ``(T, F, p)``.
    """

    value: Tensor
    index: Tensor
    estimate: Tensor


def best_found(found: Sequence[Found]) -> tuple[Tensor, Tensor, Tensor]:
    """The best of all: value ``(T,)``, index ``(T,)``, estimates ``(T, F)``."""
    value, place = torch.cat([each.value for each in found], -1).max(-1, keepdim=True)
    index = torch.cat([each.index for each in found], -1).gather(-1, place)
    estimate = torch.cat([each.estimate for each in found], -1)
    at = place.unsqueeze(1).expand(-1, estimate.shape[1], -1)
    return value[:, 0], index[:, 0], estimate.gather(-1, at)[..., 0]


def _scored(estimate: Tensor, look: Look) -> Tensor:
    f, g = estimate[:, 0], estimate[:, 1:]
    if look.score == "least":
        return -g.amax(-2)
    if look.score == "feasible":
        return f.masked_fill((g > 0).any(-2), -torch.inf)
    if look.score == "rectified":
        g = g.clamp_min(0)
    return f - (look.weight.to(f).unsqueeze(-2) @ g).squeeze(-2)


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
        backend: ``None``, or ``"triton"`` to insist on it.
    """
    mean.baddbmm_(change.shift.to(mean), columns)
    var.sub_((change.spread.to(var).unsqueeze(1) @ columns.square()).squeeze(1))
    spread = var.clamp_min(0).sqrt().unsqueeze(1) if draw is None else draw
    estimate = torch.addcmul(mean, look.coefficient.to(mean).unsqueeze(-1), spread)
    estimate += look.offset.to(mean).unsqueeze(-1)
    if look.bound is not None:
        bound = look.bound.to(mean).unsqueeze(-1)
        estimate = estimate.clamp(-bound, bound)
    values = _scored(estimate, look)
    values = torch.where(values.isnan(), torch.inf, values)
    if look.mask is not None:
        allowed = look.mask[:, start : start + values.shape[-1]]
        values = values.masked_fill(~allowed, -torch.inf)
    value, place = values.max(-1, keepdim=True)
    at = place.unsqueeze(1).expand(-1, estimate.shape[1], -1)
    return Found(value, place + start, estimate.gather(-1, at))


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
    """:func:`finish_round_ref`; fused, by Triton, on CUDA or where it is asked for."""
    if backend == "triton" or (backend is None and mean.is_cuda):
        from cbandit_kernels._triton.rounds import finish

        return finish(columns, change, mean, var, look, start, draw)
    return finish_round_ref(columns, change, mean, var, look, start, draw)


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
    """:func:`stream_round_ref`; fused, by Triton, on CUDA or where it is asked for."""
    known = (points, frame, tried, weights, kinds, change, mean, var, look, start, draw)
    if backend == "triton" or (backend is None and mean.is_cuda):
        from cbandit_kernels._triton.rounds import stream

        return stream(*known)
    return stream_round_ref(*known)
