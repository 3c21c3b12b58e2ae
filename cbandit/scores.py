"""Scores to maximise: differentiable formulas of estimates and multipliers.

``f`` is ``(*b, n)``, ``g`` is ``(*b, m, n)``, multipliers ``(*b, m)``; feasible means
``g <= 0``. Sets, boxes and the BoTorch plug-ins all call these. A policy returns one of
the classes below, each of which stands for a formula. An engine that knows the formula
scores actions in the same pass that updates their estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from cbandit_kernels.scores import (
    least_violating,
    optimistic_feasible,
    primal_dual,
    rectified,
)

__all__ = [
    "Feasible",
    "Formed",
    "LeastViolating",
    "PrimalDual",
    "Rectified",
    "Reward",
    "clip",
    "least_total",
    "least_violating",
    "optimistic_feasible",
    "primal_dual",
    "rectified",
]


def clip(values: Tensor, bound: Any) -> Tensor:
    """Clip ``values`` to ``[-bound, bound]``; the bound is a number or a tensor."""
    clipped: Tensor = values.clamp(-bound, bound)
    return clipped


def least_total(f: Tensor, g: Tensor) -> Tensor:
    """Return ``-sum_j [g_j]_+``, the score when a draw has no feasible action."""
    total: Tensor = g.clamp_min(0).sum(-2)
    return -total


@dataclass(frozen=True)
class PrimalDual:
    """The score :func:`primal_dual` with multipliers ``(T, m)``."""

    weight: Tensor
    kind: ClassVar[str] = "primal-dual"

    def __call__(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the score, ``(T, n)``."""
        return primal_dual(f, g, self.weight.to(f))


@dataclass(frozen=True)
class Rectified:
    """The score :func:`rectified` with multipliers ``(T, m)``."""

    weight: Tensor
    kind: ClassVar[str] = "rectified"

    def __call__(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the score, ``(T, n)``."""
        return rectified(f, g, self.weight.to(f))


@dataclass(frozen=True)
class Feasible:
    """The score :func:`optimistic_feasible`."""

    weight: ClassVar[None] = None
    kind: ClassVar[str] = "feasible"

    def __call__(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the score, ``(T, n)``."""
        return optimistic_feasible(f, g)


@dataclass(frozen=True)
class LeastViolating:
    """The score :func:`least_violating`."""

    weight: ClassVar[None] = None
    kind: ClassVar[str] = "least"

    def __call__(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the score, ``(T, n)``."""
        return least_violating(g)


@dataclass(frozen=True)
class Reward:
    """The score that is the reward alone."""

    weight: ClassVar[None] = None
    kind: ClassVar[str] = "primal-dual"

    def __call__(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the score ``f``, ``(T, n)``."""
        return f


def of_costs(score: object) -> bool:
    """Return whether a score depends on costs alone."""
    return score is least_total or isinstance(score, LeastViolating)


Formed = PrimalDual | Rectified | Feasible | LeastViolating | Reward
