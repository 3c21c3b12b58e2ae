"""Rounds over a whole set in one call: by a grid's product, or a small set's table.

They have the change, the look and the result of :mod:`cbandit_kernels.rounds`. On the
CPU compiled loops fuse what the references do in several passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cbandit_kernels.backends import native
from cbandit_kernels.rounds import finish_round, finish_round_ref
from cbandit_kernels.types import Change, Factors, Found, Late, Look

__all__ = [
    "joint_round",
    "joint_round_ref",
    "product_round",
    "product_round_ref",
]

FUSED_RANK = 64  # from this inner dimension on, BLAS and a second pass are faster


def product_round_ref(
    columns: Factors,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | Factors | None = None,
    *,
    backend: str | None = None,
) -> Found:
    """Do the pass over whole rows of a grid, with columns as products of two factors.

    Args:
        columns: the factors.
        draw: a joint draw, as values or as factors.
        change, mean, var, look, start, backend: see
            :func:`~cbandit_kernels.rounds.finish_round_ref`.
    """
    drawn = draw.values() if isinstance(draw, Factors) else draw
    return finish_round_ref(columns.values(), change, mean, var, look, start, drawn)


def product_round(
    columns: Factors,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | Factors | None = None,
    *,
    backend: str | None = None,
) -> Found:
    """Do as :func:`product_round_ref`, fused if that pays."""
    if backend == "native" or (backend is None and native(mean)):
        if columns.left.shape[-1] < FUSED_RANK:
            from cbandit_kernels._native.rounds import product

            return product(columns, change, mean, var, look, start, draw)
    drawn = draw.values() if isinstance(draw, Factors) else draw
    made = columns.values()
    return finish_round(made, change, mean, var, look, start, drawn, backend=backend)


def joint_round_ref(
    cov: Tensor,
    mean: Tensor,
    look: Look,
    told: tuple[Sequence[int], Tensor, Tensor] | None = None,
    draw: Tensor | None = None,
    late: Late | None = None,
    *,
    backend: str | None = None,
) -> Found:
    """Do the round of a small set whose whole posterior covariance is stored.

    Args:
        cov: ``(T, N, N)``, changed in place.
        mean: ``(T, F, N)``, likewise.
        look: the score, and how estimates are made.
        told: an observation to condition on first: the action's number in each trial,
            precisions ``(T,)`` (0: not observed) and values ``(T, F)``.
        draw: ``(T, F, N)``, replaces the standard deviation in a joint draw.
        late: changes that ``cov`` lacks. What is told becomes one more of them, which
            the caller counts; if there is then no room for another one, all are
            applied, and none is left. ``None``: ``cov`` is changed at once.
        backend: ``None``, ``"native"`` to require compiled loops, or ``"torch"``.
    """
    late = Late.room(cov, 1) if late is None else late
    var = late.var if late.waiting else cov.diagonal(dim1=-2, dim2=-1).clone()
    if told is not None:
        slots, precision, values = told
        trial = torch.arange(len(cov), device=cov.device)
        slot = torch.tensor(list(slots), device=cov.device)
        column = cov[trial, slot]
        for p in range(late.waiting):
            other, there = late.columns[:, p], late.columns[trial, p, slot]
            scaled = other * late.weights[:, p, None]
            column.addcmul_(there.unsqueeze(-1), scaled, value=-1)
        own, seen = column[trial, slot], mean[trial, :, slot]
        weight = precision / (1 + precision * own)
        gap = (values - seen) * weight.unsqueeze(-1)
        mean.addcmul_(gap.unsqueeze(-1), column.unsqueeze(1))
        var.addcmul_(column, column * weight.unsqueeze(-1), value=-1)
        late.columns[:, late.waiting], late.weights[:, late.waiting] = column, weight
        late.var.copy_(var)
        late = late._replace(waiting=late.waiting + 1)
        if late.waiting == late.columns.shape[1]:
            late.apply(cov)
    trials, functions, size = mean.shape
    nothing = Change(var.new_empty(trials, 0), var.new_empty(trials, functions, 0))
    columns = var.new_empty(trials, 0, size)
    return finish_round_ref(columns, nothing, mean, var.clone(), look, 0, draw)


def joint_round(
    cov: Tensor,
    mean: Tensor,
    look: Look,
    told: tuple[Sequence[int], Tensor, Tensor] | None = None,
    draw: Tensor | None = None,
    late: Late | None = None,
    *,
    backend: str | None = None,
) -> Found:
    """Do as :func:`joint_round_ref`, by compiled loops if they are available."""
    if backend == "native" or (backend is None and native(mean)):
        from cbandit_kernels._native.rounds import joint

        return joint(cov, mean, look, told, draw, late)
    return joint_round_ref(cov, mean, look, told, draw, late)
