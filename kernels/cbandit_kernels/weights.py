"""Add an observation to a Bayesian regression on features, block by block.

A block holds ``A = sum p h h'``, ``b = sum p y h'`` and a root ``W`` of ``(I + A)^-1``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit_kernels.backends import native
from cbandit_kernels.types import WeightSums

__all__ = ["enter_weights", "enter_weights_ref"]


def enter_weights_ref(
    held: WeightSums,
    block: Tensor,
    h: Tensor,
    precision: Tensor,
    values: Tensor,
    *,
    backend: str | None = None,
) -> None:
    """Add an observation, in place.

    With ``v = W' h`` for a precision of 1 and ``r^2 = 1 + |v|^2``, the root of
    ``W (I + v v')^-1 W'`` is ``W (I - v v' / (r (r + 1)))``.

    Args:
        held: the sums.
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
    root = held.root[place].double()
    v = (h * precision.sqrt().unsqueeze(-1)).unsqueeze(-2) @ root  # T x 1 x D
    square = v.square().sum((-2, -1))
    r = (1 + square).sqrt()
    factor = (-1 / (r * (r + 1)))[:, None, None]
    changed = torch.baddbmm(root, root @ v.mT, v * factor)
    held.root[place] = changed.to(held.root.dtype)
    held.log_det[place] += square.log1p()
    rotated = held.weighted[place] @ held.root[place].double()
    held.rotated[place] = rotated
    held.fitted[place] = rotated @ rotated.mT


def enter_weights(
    held: WeightSums,
    block: Tensor,
    h: Tensor,
    precision: Tensor,
    values: Tensor,
    *,
    backend: str | None = None,
) -> None:
    """Do as :func:`enter_weights_ref`, by compiled loops if they are available."""
    if backend == "native" or (backend is None and native(held.sums)):
        from cbandit_kernels._native.weights import enter

        enter(held, block, h, precision, values)
        return
    enter_weights_ref(held, block, h, precision, values)
