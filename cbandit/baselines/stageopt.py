"""StageOpt: first expand the safe set, then optimise within it.

From a seed set of actions known to be safe, each round:

1. nested bounds ``l_t``, ``u_t`` from the beliefs (:mod:`cbandit.baselines.safe_set`);
   the safe set ``S_t`` grows, and its expanders ``G_t`` are found, by Lipschitz
   constants if a user gives them;
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
from typing import NamedTuple, Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.baselines.safe_set import SAFE_SET, SafeSet, SafeSets, rounds_of
from cbandit.beliefs.gp import GP
from cbandit.explore import UCB
from cbandit.policies.checks import believed_costs
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import CostBeliefs, GPKeywords
from cbandit.policies.safe.action import Safe
from cbandit.policies.saving import locked
from cbandit.policies.turn import Decision, Turn


class Expansion(NamedTuple):
    """The state of StageOpt between two rounds.

    Args:
        sets: bounds and the safe set.
        going: the trials whose expansion has not ended for good, ``(T,)``.
    """

    sets: SafeSet
    going: Tensor


class StageOpt(GPPolicy):
    """Safe expansion, then UCB over the safe set, which keeps growing.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`, ``cb.UCB(2.0)`` unless given.
        safe: the seed set, as for :class:`~cbandit.baselines.SafeOpt`.
        rounds: ``T0``, the most rounds of expansion: a number or ``(*trials,)``.
        lipschitz: Lipschitz constants of the costs, a number, ``(m,)`` or
            ``(*trials, m)``. ``None``: the beliefs alone say what is safe.
        eps: expansion ends for good in a trial once its widest expander is narrower
            than this, in the costs' units, or in spreads if a belief is standardised; a
            number or ``(*trials,)``.
        common: see below.

    A standardised belief is not used to call actions safe before it has five outcomes:
    until then only the seed set is played, and a warning says so.

    If ``ask(among=...)`` leaves no action known to be safe, the choice is marked
    infeasible and the action of least ``max_j`` upper bound is played.
    """

    name = "StageOpt"
    abilities = SAFE_SET

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs,
        explore: UCB | None = None,
        safe: ArrayLike | Safe,
        rounds: ArrayLike,
        lipschitz: ArrayLike | None = None,
        eps: ArrayLike = 0.0,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        costs = believed_costs(costs)
        super().__init__(actions, reward=reward, costs=costs, explore=explore, **common)
        self._sets = SafeSets(self, safe, lipschitz)
        self.rounds = rounds_of(rounds, self.batch_shape).to(self.device)
        self._last = int(self.rounds.max())
        eps = self._per_trial("eps", checks.nonnegative("eps", eps))
        self._eps = eps.to(self.dtype)
        going = torch.ones(self.size, dtype=torch.bool, device=self.device)
        start = Expansion(self._sets.start(self.size, self.m + 1), going)
        self.begin(self._now.state._replace(own=start))

    @property
    @locked
    def safe(self) -> Tensor:
        """The safe set as of the last ``ask``, ``(*trials, N)``."""
        return self._user_shape(self._now.state.own.sets.safe.clone())

    def decide(self, state: GPState, turn: Turn) -> tuple[Decision, GPState]:
        """Return the widest expander, and later the best action of the safe set."""
        looks, beliefs = self._moments(state, turn), state.beliefs
        beta, limits = self._coefficient(state, turn).abs(), turn.limits
        whole = self._sets.whole(turn, beliefs, looks, beta, limits)
        sets = self._sets.next(state.own.sets, whole)  # l_t, u_t and S_t
        value, (close, of_costs) = whole.mean[:, 0] + whole.spread[:, 0], whole.close
        going = state.own.going
        if turn.t <= self._last and bool(going.any()):
            expanders = self._sets.expanders(sets, whole, beliefs)
            width = (sets.upper - sets.lower)[:, 1:].amax(1)
            width = width.masked_fill(~expanders, -math.inf)
            # without an expander the width is 0: nothing is left to learn
            over = width.amax(-1).clamp_min(0) < self._eps
            going = going & ~(over if whole.enough is None else over & whole.enough)
            if turn.mask is not None:
                width = width.masked_fill(~turn.mask, -math.inf)
            some = (width > -math.inf).any(-1)
            expand = going & (self.rounds >= turn.t) & some
            value = torch.where(expand.unsqueeze(-1), width, value)
            close = torch.where(expand, of_costs, close)
        decision = sets.play(value, turn.mask, whole, close)
        return decision, state._replace(own=Expansion(sets, going))
