"""Safe sets that grow from a seed set, as SafeOpt and StageOpt keep them.

All actions carry nested bounds ``l_t <= function <= u_t``, which only tighten. The safe
set holds the seed set and grows once a round, by Lipschitz constants
(:mod:`cbandit.baselines.lipschitz`) or by the bounds alone
(:mod:`cbandit.baselines.made_up`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from cbandit.errors import CBanditError
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.gp import GPPolicy
from cbandit.policies.state import GPState

__all__ = ["Growth", "SafeSet", "Whole", "play", "tightened", "whole"]


class SafeSet(NamedTuple):
    """Nested bounds and the safe set, as a value.

    Args:
        lower: ``l_t`` of reward and costs, ``(T, F, N)``.
        upper: ``u_t``, likewise.
        safe: ``(T, N)``.
        nearest: how far the nearest action is that is not safe, ``(T, N)``; ``None``
            until it is known.
    """

    lower: Tensor
    upper: Tensor
    safe: Tensor
    nearest: Tensor | None = None

    @classmethod
    def start(
        cls, seed: Tensor, shape: tuple[int, int, int], dtype: torch.dtype
    ) -> SafeSet:
        """Return the sets before the first round: the seed set ``(1 or T, N)``."""
        upper = torch.full(shape, math.inf, dtype=dtype, device=seed.device)
        return cls(-upper, upper, seed.expand(shape[0], -1).clone())

    def slack(self, tau: Tensor) -> Tensor:
        """Return lower bounds of the safety values ``tau - cost``, ``(T, m, N)``."""
        return tau.to(self.upper).unsqueeze(-1) - self.upper[:, 1:]


class Growth(Protocol):
    """How a safe set grows."""

    def grown(self, sets: SafeSet, tau: Tensor) -> SafeSet:
        """Return the sets after growing once, under thresholds ``tau`` ``(T, m)``."""

    def expanders(
        self, sets: SafeSet, tau: Tensor, beliefs: Any, mean: Tensor, beta: Tensor
    ) -> Tensor:
        """Return the safe actions that could make a new one safe, ``(T, N)``."""


class Whole(NamedTuple):
    """Estimates over the whole set.

    Args:
        mean: ``(T, F, N)``.
        beta: ``(T, F)``.
        spread: ``beta`` times the deviations, ``(T, F, N)``.
    """

    mean: Tensor
    beta: Tensor
    spread: Tensor


def whole(policy: GPPolicy, state: GPState, asked: Asked) -> Whole:
    """Return estimates over the policy's own set; an error if another is asked."""
    if asked.actions is not policy.actions:
        raise CBanditError(
            f"{policy.name} keeps its bounds over its own set: use ask(among=...)"
        )
    beta = policy._coefficient(state, asked).abs()
    _, means, stds = zip(*policy._looks(state, asked), strict=True)
    mean = (means[0] if len(means) == 1 else torch.cat(means, -1)).to(policy.dtype)
    std = (stds[0] if len(stds) == 1 else torch.cat(stds, -1)).to(policy.dtype)
    return Whole(mean, beta, beta.to(mean).unsqueeze(-1) * std)


def tightened(sets: SafeSet, seed: Tensor, believed: Whole, tau: Tensor) -> SafeSet:
    """Return the sets with bounds tightened by ``mean -+ beta std``.

    Args:
        sets: bounds so far.
        seed: the seed set, ``(1 or T, N)``: its costs are at most the thresholds.
        believed: of the whole set.
        tau: thresholds, ``(T, m)``.
    """
    lower, upper = believed.mean - believed.spread, believed.mean + believed.spread
    torch.maximum(sets.lower, lower, out=lower)
    torch.minimum(sets.upper, upper, out=upper)
    limits = tau.to(upper).unsqueeze(-1)
    known = torch.where(seed.unsqueeze(1), limits, math.inf)
    torch.minimum(upper[:, 1:], known, out=upper[:, 1:])
    return sets._replace(lower=lower, upper=upper)


def play(sets: SafeSet, value: Tensor, mask: Tensor | None, tau: Tensor) -> Decision:
    """Return the safe action of greatest ``value`` ``(T, N)``.

    Where ``among`` leaves nothing safe: the least ``max_j`` upper bound.

    Args:
        sets: bounds and the safe set.
        value: see above.
        mask: ``(1 or T, N)``, what ``among`` allows.
        tau: thresholds, ``(T, m)``.
    """
    value = value.masked_fill(~sets.safe, -math.inf)
    if mask is None:
        return Decision(value.max(-1).indices, sure=True)
    infeasible = ~(sets.safe & mask).any(-1)
    value = torch.where(infeasible.unsqueeze(-1), sets.slack(tau).amin(1), value)
    value = value.masked_fill(~mask, -math.inf)
    return Decision(value.max(-1).indices, infeasible, sure=True)
