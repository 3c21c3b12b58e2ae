"""Estimates and multipliers become a score to maximise: pure, differentiable.

``f`` is ``(*b, n)``, ``g`` is ``(*b, m, n)``, multipliers ``(*b, m)``; feasible means
``g <= 0``. The grid path, the continuous path and the BoTorch plug-ins all call these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

__all__ = [
    "Feasible",
    "Formed",
    "LeastViolating",
    "PrimalDual",
    "Rectified",
    "Reward",
    "clip",
    "least_violating",
    "optimistic_feasible",
    "primal_dual",
    "rectified",
]


def clip(values: Tensor, bound: Tensor | float) -> Tensor:
    """``values`` kept within ``[-bound, bound]``."""
    if isinstance(bound, Tensor):
        return values.clamp(-bound, bound)
    return values.clamp(-bound, bound)


def primal_dual(f: Tensor, g: Tensor, multiplier: Tensor) -> Tensor:
    """The Lagrangian ``f - sum_j phi_j g_j``, ``(*b, n)``."""
    if g.shape[-2] == 1:
        return torch.addcmul(f, multiplier, g.squeeze(-2), value=-1)
    return f - (multiplier.unsqueeze(-2) @ g).squeeze(-2)


def rectified(f: Tensor, g: Tensor, multiplier: Tensor) -> Tensor:
    """The rectified penalty ``f - sum_j Q_j [g_j]_+``, ``(*b, n)``."""
    return primal_dual(f, g.clamp_min(0), multiplier)


def optimistic_feasible(f: Tensor, g: Tensor) -> Tensor:
    """``f`` where every estimate ``g_j <= 0``, minus infinity elsewhere."""
    return f.masked_fill((g > 0).any(-2), -torch.inf)


def least_violating(g: Tensor) -> Tensor:
    """``-max_j g_j``: what to maximise where nothing is believed feasible."""
    return -g.amax(-2)


# -- scores that say what they are, for engines that form them in passing --------------


@dataclass(frozen=True)
class PrimalDual:
    """:func:`primal_dual` with multipliers ``(T, m)``."""

    weight: Tensor
    kind: ClassVar[str] = "primal-dual"

    def __call__(self, f: Tensor, g: Tensor) -> Tensor:
        """The score, ``(T, n)``."""
        return primal_dual(f, g, self.weight.to(f))


@dataclass(frozen=True)
class Rectified:
    """:func:`rectified` with multipliers ``(T, m)``."""

    weight: Tensor
    kind: ClassVar[str] = "rectified"

    def __call__(self, f: Tensor, g: Tensor) -> Tensor:
        """The score, ``(T, n)``."""
        return rectified(f, g, self.weight.to(f))


@dataclass(frozen=True)
class Feasible:
    """:func:`optimistic_feasible`."""

    weight: ClassVar[None] = None
    kind: ClassVar[str] = "feasible"

    def __call__(self, f: Tensor, g: Tensor) -> Tensor:
        """The score, ``(T, n)``."""
        return optimistic_feasible(f, g)


@dataclass(frozen=True)
class LeastViolating:
    """:func:`least_violating`."""

    weight: ClassVar[None] = None
    kind: ClassVar[str] = "least"

    def __call__(self, f: Tensor, g: Tensor) -> Tensor:
        """The score, ``(T, n)``."""
        return least_violating(g)


@dataclass(frozen=True)
class Reward:
    """``f`` alone."""

    weight: ClassVar[None] = None
    kind: ClassVar[str] = "primal-dual"

    def __call__(self, f: Tensor, g: Tensor) -> Tensor:
        """The score, ``(T, n)``."""
        return f


Formed = PrimalDual | Rectified | Feasible | LeastViolating | Reward
