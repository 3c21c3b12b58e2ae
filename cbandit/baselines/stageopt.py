"""StageOpt: first expand what is surely safe, then optimise within it.

From a seed set of actions known to be safe, each round:

1. nested bounds ``l_t``, ``u_t`` from the beliefs; the safe set ``S_t`` grows, and its
   expanders ``G_t`` are found (:mod:`cbandit.baselines.safe_set`);
2. in the first ``rounds`` rounds ``T0``, until the widest expander is below ``eps``:
   ``x_t = argmax`` over ``G_t`` of ``u_t - l_t``, the largest over the costs;
3. after that, and where there is no expander: ``x_t = argmax mean_f + beta std_f`` over
   ``S_t``;
4. observe reward and costs, update the beliefs.

Y. Sui, V. Zhuang, J. Burdick, Y. Yue, Stagewise safe Bayesian optimization with
Gaussian processes, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.baselines.safe_set import rounds_of
from cbandit.baselines.safeopt import SafelyGrowing
from cbandit.beliefs.gp import GP
from cbandit.explore import UCB
from cbandit.policies.decision import Decision

__all__ = ["StageOpt"]


class StageOpt(SafelyGrowing):
    """Safe expansion, then UCB over the safe set, which keeps growing.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`.
        safe: the seed set, as for :class:`~cbandit.baselines.SafeOpt`.
        rounds: ``T0``, how many rounds may go to expansion: a number or ``(*trials,)``.
        lipschitz: Lipschitz constants of the costs, a number, ``(m,)`` or
            ``(*trials, m)``. ``None``: the beliefs alone say what is safe.
        eps: expansion ends for good in a trial once its widest expander is narrower, in
            the costs' units; a number or ``(*trials,)``.
        common: see below.

    Where ``ask(among=...)`` leaves no action known to be safe, the choice says
    infeasible and the action of least ``max_j`` upper bound is played.
    """

    name = "StageOpt"

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        explore: UCB,
        safe: Any,
        rounds: Any,
        lipschitz: Any = None,
        eps: Any = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(
            actions,
            reward=reward,
            costs=costs,
            explore=explore,
            safe=safe,
            lipschitz=lipschitz,
            **common,
        )
        self.rounds = rounds_of(rounds, self.batch_shape).to(self.device)
        self._last = int(self.rounds.max())
        self._eps = self._per_trial("eps", checks.nonnegative("eps", eps)).to(
            self.dtype
        )
        self._expanding = torch.ones(self._size, dtype=torch.bool, device=self.device)

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        mean, beta, spread = self._bounds(t, asked)
        value = mean[:, 0] + spread[:, 0]
        if t <= self._last and bool(self._expanding.any()):
            sets = self._sets
            found = sets.expanders(self._beliefs, mean, beta)
            width = (sets.upper - sets.lower)[:, 1:].amax(1)
            width = width.masked_fill(~found, -math.inf)
            # where there is no expander its width is 0: nothing to learn from it
            wide = width.amax(-1).clamp_min(0) >= self._eps
            self._expanding = self._expanding & wide
            if mask is not None:
                found, width = found & mask, width.masked_fill(~mask, -math.inf)
            expand = self._expanding & (self.rounds >= t) & found.any(-1)
            value = torch.where(expand.unsqueeze(-1), width, value)
        return self._play(value, mask, t)
