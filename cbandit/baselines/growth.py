"""How a safe set grows: by Lipschitz constants, or by what the beliefs alone say."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from cbandit._core import checks
from cbandit.baselines.lipschitz import ByLipschitz
from cbandit.baselines.made_up import ByObservation
from cbandit.baselines.safe_set import SafeSet
from cbandit.policies.gp import GPPolicy

__all__ = ["Growth", "growth_of"]


class Growth(Protocol):
    """How a safe set grows."""

    def grown(self, sets: SafeSet, tau: Tensor) -> SafeSet:
        """Return the sets after growing once, under thresholds ``tau`` ``(T, m)``."""

    def expanders(
        self, sets: SafeSet, tau: Tensor, beliefs: Any, mean: Tensor, beta: Tensor
    ) -> Tensor:
        """Return the safe actions that could make a new one safe, ``(T, N)``."""


def growth_of(policy: GPPolicy, seed: Tensor, lipschitz: Any) -> Growth:
    """Return how the safe set grows: by constants, if a user gives any, or without."""
    if lipschitz is None:
        return ByObservation(seed)
    given = checks.nonnegative("lipschitz", lipschitz)
    constants = policy._per_cost("lipschitz", given)
    fixed = not (callable(policy.thresholds) or policy.standardized)
    return ByLipschitz(policy.actions, seed, constants, fixed, policy.dtype)
