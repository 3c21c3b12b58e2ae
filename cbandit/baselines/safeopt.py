"""SafeOpt: never leave what is surely safe, and play what is least known of it.

From a seed set of actions known to be safe, each round:

1. nested bounds ``l_t``, ``u_t`` of reward and costs from the beliefs; the safe set
   ``S_t`` grows, and its expanders ``G_t`` are found
   (:mod:`cbandit.baselines.safe_set`);
2. maximisers ``M_t = {x in S_t : u_t(x) >= max over S_t of l_t}``, of the reward;
3. ``x_t = argmax`` over both sets of the width ``u_t - l_t``, the largest over reward
   and costs;
4. observe reward and costs, update the beliefs.

Y. Sui, A. Gotovos, J. Burdick, A. Krause, Safe exploration for optimization with
Gaussian processes, 2015; with several costs as F. Berkenkamp, A. Krause and
A. Schoellig, 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.baselines.safe_set import SafeSet, seed_set, sure
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.decision import Decision
from cbandit.policies.stepwise import Constrained

__all__ = ["SafeOpt", "SafelyGrowing"]


class SafelyGrowing(Constrained):
    """A policy that plays within a safe set grown from a seed set."""

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        explore: UCB,
        safe: Any,
        lipschitz: Any = None,
        **common: Any,
    ) -> None:
        sure(self.name, common)
        super().__init__(actions, reward=reward, costs=costs, explore=explore, **common)
        seed = seed_set(safe, self.actions, self.batch_shape, self.device)
        if lipschitz is not None:
            lipschitz = checks.nonnegative("lipschitz", lipschitz)
            lipschitz = self._per_cost("lipschitz", lipschitz)
        shape = (self._size, self.m + 1, self.actions.size)
        self._sets = SafeSet(
            self.actions,
            seed,
            lipschitz,
            shape,
            not callable(self._thresholds),
            self.dtype,
            self.device,
        )

    @property
    def safe(self) -> Tensor:
        """The safe set as of the last ``ask``, ``(*trials, N)``."""
        return self._outside(self._sets.safe.clone())

    def _bounds(self, t: int, asked: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Means ``(T, F, N)``, ``beta`` and ``beta std``; the safe set is grown."""
        if asked is not self.actions:
            raise CBanditError(
                f"{self.name} keeps its bounds over its own set: use ask(among=...)"
            )
        beta, limits = self._coefficient(t).abs(), self._limits(t)
        looks = list(self._looks(asked))
        mean = looks[0][1] if len(looks) == 1 else torch.cat([x[1] for x in looks], -1)
        std = looks[0][2] if len(looks) == 1 else torch.cat([x[2] for x in looks], -1)
        mean = mean.to(self.dtype)
        spread = beta.to(mean).unsqueeze(-1) * std.to(self.dtype)
        self._sets.update(mean, spread, limits)
        return mean, beta, spread

    def _play(self, value: Tensor, mask: Tensor | None, t: int) -> Decision:
        """The greatest ``value (T, N)`` of the safe set.

        Where ``among`` leaves nothing safe, the least ``max_j`` upper bound.
        """
        sets = self._sets
        value = value.masked_fill(~sets.safe, -math.inf)
        if mask is None:
            return Decision(value.max(-1).indices)
        infeasible = ~(sets.safe & mask).any(-1)
        risk = sets.upper[:, 1:] - self._limits(t).to(value).unsqueeze(-1)
        value = torch.where(infeasible.unsqueeze(-1), -risk.amax(1), value)
        value = value.masked_fill(~mask, -math.inf)
        return Decision(value.max(-1).indices, infeasible)


class SafeOpt(SafelyGrowing):
    """The widest action among expanders and maximisers of the safe set.

    Args:
        actions: what can be chosen (SafeOpt's ``parameter_set``).
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them; ``thresholds`` are what
            they are kept under (SafeOpt's ``fmin``, turned around).
        explore: :class:`~cbandit.UCB` (SafeOpt's ``beta``).
        safe: the seed set: an action's number, a list of numbers, a tensor of numbers
            ``(*trials,)`` or ``(*trials, k)``, a mask ``(N,)`` or ``(*trials, N)``, or
            points ``(k, d)`` or ``(*trials, k, d)``.
        lipschitz: Lipschitz constants of the costs, a number, ``(m,)`` or
            ``(*trials, m)``. ``None``: the beliefs alone say what is safe.
        common: see below.

    The seed set is taken at its word. Where ``ask(among=...)`` leaves no action known
    to be safe, the choice says infeasible and the action of least ``max_j`` upper bound
    is played. Time is quadratic in the number of actions; memory is not, for the work
    is done in chunks.
    """

    name = "SafeOpt"

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        mean, beta, _ = self._bounds(t, asked)
        sets = self._sets
        expanders = sets.expanders(self._beliefs, mean, beta)
        lower, upper = sets.lower[:, 0], sets.upper[:, 0]
        best = lower.masked_fill(~sets.safe, -math.inf).amax(-1, keepdim=True)
        wanted = (expanders | (upper >= best)) & sets.safe
        if mask is not None:
            wanted = wanted & mask
        # bounds that crossed, or among, may leave neither: then all that is safe
        wanted = wanted | ~wanted.any(-1, keepdim=True)
        width = (sets.upper - sets.lower).amax(1)
        return self._play(width.masked_fill(~wanted, -math.inf), mask, t)
