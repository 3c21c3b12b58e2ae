"""The scores that policies maximise, in plain torch: pure and differentiable.

``f`` is ``(*b, n)``, ``g`` is ``(*b, m, n)``, weights are ``(*b, m)``; feasible means
``g <= 0``. Every other backend computes the same values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit_kernels.types import Look

__all__ = [
    "least_violating",
    "optimistic_feasible",
    "primal_dual",
    "rectified",
    "score_ref",
]


def primal_dual(f: Tensor, g: Tensor, multiplier: Tensor) -> Tensor:
    """Return the Lagrangian ``f - sum_j phi_j g_j``, ``(*b, n)``."""
    if g.shape[-2] == 1:
        return torch.addcmul(f, multiplier, g.squeeze(-2), value=-1)
    return f - (multiplier.unsqueeze(-2) @ g).squeeze(-2)


def rectified(f: Tensor, g: Tensor, multiplier: Tensor) -> Tensor:
    """Return the rectified penalty ``f - sum_j Q_j [g_j]_+``, ``(*b, n)``."""
    return primal_dual(f, g.clamp_min(0), multiplier)


def optimistic_feasible(f: Tensor, g: Tensor) -> Tensor:
    """Return ``f`` where every estimate ``g_j <= 0``, minus infinity elsewhere."""
    return f.masked_fill((g > 0).any(-2), -torch.inf)


def least_violating(g: Tensor) -> Tensor:
    """Return ``-max_j g_j``, to be maximised where nothing is believed feasible."""
    return -g.amax(-2)


def score_ref(f: Tensor, g: Tensor, look: Look) -> Tensor:
    """Return the look's score ``(T, n)`` for ``f (T, n)`` and ``g (T, m, n)``."""
    if callable(look.score):
        return look.score(f, g)
    if look.score == "least":
        return least_violating(g)
    if look.score == "feasible":
        return optimistic_feasible(f, g)
    if look.weight is None:
        return f
    form = rectified if look.score == "rectified" else primal_dual
    return form(f, g, look.weight.to(f))
