"""A Bayesian regression on features, block by block, and its moments at some rows.

A block holds ``A = sum p h h'``, ``b = sum p y h'`` and the upper triangular root ``W``
of ``(I + A)^-1``. An observation changes the root by one rank, and so the moments of
its block at all rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit_kernels.backends import native
from cbandit_kernels.types import WeightRows, WeightSums

__all__ = ["enter_weights", "enter_weights_ref", "look_weights", "look_weights_ref"]


def enter_weights_ref(
    held: WeightSums,
    rows: WeightRows,
    block: Tensor,
    h: Tensor,
    precision: Tensor,
    values: Tensor,
    *,
    backend: str | None = None,
) -> None:
    """Add an observation, in place.

    The root stays upper triangular with a positive diagonal, so that it is a function
    of the sums and not of the order of observations. With ``v = W' h`` for a precision
    of 1 and ``t_j = 1 + v_1^2 + .. + v_j^2``, its column ``j`` becomes
    ``(t_{j-1} W_j - v_j (v_1 W_1 + .. + v_{j-1} W_{j-1})) / sqrt(t_{j-1} t_j)``. At a
    row of features ``r`` the variance falls by ``c^2 / t_D`` with ``c = r' W v``, and
    the mean grows by ``c (y - b W v) / t_D``.

    Args:
        held: the sums.
        rows: the rows whose moments follow.
        block: the block of each trial's observation, ``(T,)``.
        h: its features, ``(T, D)``.
        precision: ``(T,)``; 0 where nothing was observed.
        values: ``(T, F)``.
        backend: ``None``, ``"native"`` to require compiled loops, or ``"torch"``.
    """
    place = torch.arange(len(block), device=block.device), block
    row = (h * precision.unsqueeze(-1)).unsqueeze(-2)
    sums, weighted = held.sums[place], held.weighted[place]
    held.sums[place] = sums.baddbmm_(h.unsqueeze(-1), row)
    held.weighted[place] = weighted.baddbmm_(values.unsqueeze(-1), row)
    root, size = held.root[place].double(), precision.sqrt().unsqueeze(-1)
    v = (h * size).unsqueeze(-2) @ root  # T x 1 x D
    square, along = v.square(), root * v
    total = square.cumsum(-1)
    last, at = 1 + total[..., -1], slice(rows.start, rows.stop)
    column = (along.sum(-1, keepdim=True).mT @ rows.h[..., at])[:, 0]  # T x n
    gap = values * size - (held.rotated[place] @ v.mT)[..., 0]
    rows.var[place[0], at, block] -= column.square() / last
    rows.mean[place[0], :, at, block] += (gap / last).unsqueeze(-1) * column.unsqueeze(
        1
    )
    before, after = 1 + total - square, 1 + total
    changed = root * before - v * (along.cumsum(-1) - along)
    changed = changed / (before * after).sqrt()
    held.root[place] = changed.to(held.root.dtype)
    held.log_det[place] += total[:, 0, -1].log1p()
    rotated = held.weighted[place] @ held.root[place].double()
    held.rotated[place] = rotated
    held.fitted[place] = rotated @ rotated.mT


def enter_weights(
    held: WeightSums,
    rows: WeightRows,
    block: Tensor,
    h: Tensor,
    precision: Tensor,
    values: Tensor,
    *,
    backend: str | None = None,
) -> None:
    """Do as :func:`enter_weights_ref`, by compiled loops if they are available."""
    told = block, h, precision, values
    if backend == "native" or (backend is None and native(held.sums)):
        from cbandit_kernels._native.weights import enter

        enter(held, rows, *told)
        return
    enter_weights_ref(held, rows, *told)


def look_weights_ref(
    held: WeightSums, rows: WeightRows, h: Tensor, *, backend: str | None = None
) -> None:
    """Write a row and its moments in all blocks behind the last row.

    Args:
        held: the sums.
        rows: the rows, with room for one more.
        h: the new row's features, ``(T, D)``.
        backend: ``None``, ``"native"`` to require compiled loops, or ``"torch"``.
    """
    half = h.to(held.root)[:, None, None] @ held.root  # T x K x 1 x D
    rows.h[..., rows.stop] = h
    rows.var[:, rows.stop] = half.double().square().sum((-2, -1))
    mean = (held.rotated @ half.double().mT)[..., 0]  # T x K x F
    rows.mean[:, :, rows.stop] = mean.mT


def look_weights(
    held: WeightSums, rows: WeightRows, h: Tensor, *, backend: str | None = None
) -> None:
    """Do as :func:`look_weights_ref`, by compiled loops if they are available."""
    if backend == "native" or (backend is None and native(held.sums)):
        from cbandit_kernels._native.weights import look

        look(held, rows, h)
        return
    look_weights_ref(held, rows, h)
