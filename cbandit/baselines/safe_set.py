"""Safe sets that grow from a seed set, as SafeOpt and StageOpt keep them.

All actions carry nested bounds ``l_t <= function <= u_t``, which only tighten. The safe
set holds the seed set and grows once a round (:mod:`cbandit.baselines.growth`). All is
in spreads where beliefs are standardised; bounds from before a spread rests on a few
outcomes are not kept.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core.peaks import best_place
from cbandit.errors import CBanditError
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.gp import GPPolicy
from cbandit.policies.safe.trust import FEW, trusted
from cbandit.policies.state import GPState
from cbandit.posterior.units import Units, level

__all__ = ["SafeSet", "Whole", "play", "tightened", "whole"]


class SafeSet(NamedTuple):
    """Nested bounds and the safe set, as a value.

    Args:
        lower: ``l_t`` of reward and costs, ``(T, F, N)``.
        upper: ``u_t``, likewise.
        safe: ``(T, N)``.
        nearest: how far the nearest action is that is not safe, ``(T, N)``; ``None``
            until it is known.
        units: those of the bounds; ``None``: the user's own.
    """

    lower: Tensor
    upper: Tensor
    safe: Tensor
    nearest: Tensor | None = None
    units: Units | None = None

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

    def maximisers(self) -> Tensor:
        """Return ``{x safe : u_t(x) >= max over safe of l_t}``, the reward's bounds."""
        lower, upper = self.lower[:, 0], self.upper[:, 0]
        best = lower.masked_fill(~self.safe, -math.inf).amax(-1, keepdim=True)
        return (upper >= best) & self.safe

    def carried(self, units: Units | None) -> tuple[Tensor, Tensor]:
        """Return the bounds in other units; infinite ones where these are not firm."""
        if units is None or self.units is None:
            return self.lower, self.upper
        old, firm = self.units, self.units.rests_on(FEW)[:, None, None]
        scale = (old.size / units.size).to(self.lower).unsqueeze(-1)
        shift = ((old.center - units.center) / units.size).to(self.lower).unsqueeze(-1)
        lower = torch.where(firm, self.lower * scale + shift, -math.inf)
        return lower, torch.where(firm, self.upper * scale + shift, math.inf)

    def held(self, seed: Tensor, enough: Tensor | None) -> SafeSet:
        """Return the sets where trials that have not seen ``enough`` keep the seeds."""
        if enough is None:
            return self
        return self._replace(safe=torch.where(enough.unsqueeze(-1), self.safe, seed))


class Whole(NamedTuple):
    """Estimates over the whole set.

    Args:
        mean: ``(T, F, N)``.
        beta: ``(T, F)``.
        spread: ``beta`` times the deviations, ``(T, F, N)``.
        tau: this round's thresholds, ``(T, m)``.
        units: those of all these; ``None``: the user's own.
        enough: trials whose units may say what is safe, ``(T,)``; ``None``: all.
        close: rewards, and costs, that differ by less are as good, ``(2, T)``.
    """

    mean: Tensor
    beta: Tensor
    spread: Tensor
    tau: Tensor
    units: Units | None
    enough: Tensor | None
    close: Tensor


def whole(policy: GPPolicy, state: GPState, asked: Asked) -> Whole:
    """Return estimates over the policy's own set; an error if another is asked."""
    if asked.actions is not policy.actions:
        raise CBanditError(
            f"{policy.name} keeps its bounds over its own set: use ask(among=...)"
        )
    units, limits = state.beliefs.units(), policy._limits(asked.t)
    beta = policy._coefficient(state, asked).abs()
    _, means, stds = zip(*policy._looks(state, asked), strict=True)
    mean = (means[0] if len(means) == 1 else torch.cat(means, -1)).to(policy.dtype)
    std = (stds[0] if len(stds) == 1 else torch.cat(stds, -1)).to(policy.dtype)
    spread = beta.to(mean).unsqueeze(-1) * std
    tau, enough = level(units, limits), trusted(policy, units)
    close = torch.stack([state.beliefs.tolerance(costs) for costs in (False, True)])
    return Whole(mean, beta, spread, tau, units, enough, close)


def tightened(sets: SafeSet, seed: Tensor, believed: Whole) -> SafeSet:
    """Return the sets with bounds tightened by ``mean -+ beta std``.

    Args:
        sets: bounds so far.
        seed: the seed set, ``(1 or T, N)``: its costs are at most the thresholds.
        believed: of the whole set.
    """
    lower, upper = believed.mean - believed.spread, believed.mean + believed.spread
    before = sets.carried(believed.units)
    torch.maximum(before[0], lower, out=lower)
    torch.minimum(before[1], upper, out=upper)
    limits = believed.tau.to(upper).unsqueeze(-1)
    known = torch.where(seed.unsqueeze(1), limits, math.inf)
    torch.minimum(upper[:, 1:], known, out=upper[:, 1:])
    return sets._replace(lower=lower, upper=upper, units=believed.units)


def play(
    sets: SafeSet,
    value: Tensor,
    mask: Tensor | None,
    believed: Whole,
    tolerance: Tensor,
) -> Decision:
    """Return the first safe action of greatest ``value`` ``(T, N)``.

    Where ``among`` leaves nothing safe: the least ``max_j`` upper bound.

    Args:
        sets: bounds and the safe set.
        value: see above.
        mask: ``(1 or T, N)``, what ``among`` allows.
        believed: of the whole set.
        tolerance: values that differ by less are as good, ``(T,)``.
    """
    value = value.masked_fill(~sets.safe, -math.inf)
    tolerance = tolerance.to(value)
    if mask is None:
        return Decision(best_place(value, tolerance), sure=True)
    infeasible = ~(sets.safe & mask).any(-1)
    slack = sets.slack(believed.tau).amin(1)
    value = torch.where(infeasible.unsqueeze(-1), slack, value)
    value = value.masked_fill(~mask, -math.inf)
    tolerance = torch.where(infeasible, believed.close[1].to(value), tolerance)
    return Decision(best_place(value, tolerance), infeasible, sure=True)
