"""SGP-UCB: the best reward among what is surely safe.

A seed set of actions is known to be safe. For ``rounds`` rounds ``T'`` one of them is
drawn uniformly; from then on, each round:

1. ``S_t = seed set + {x : mean_gj + beta std_gj <= 0 for all j}``;
2. ``x_t = argmax mean_f + beta std_f`` over ``S_t``;
3. observe reward and costs, update the beliefs.

S. Amani, M. Alizadeh, C. Thrampoulidis, Regret bounds for safe Gaussian process bandit
optimization, 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit import scores
from cbandit._core.arguments import stated
from cbandit.baselines.seeds import rounds_of, seed_set, sure
from cbandit.beliefs.gp import GP
from cbandit.explore import UCB
from cbandit.policies.chosen import afresh
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.gp import GPPolicy
from cbandit.policies.safe.trust import FAR, trusted
from cbandit.policies.state import GPState
from cbandit.policies.suits import believed_costs
from cbandit.posterior.look import Best, Look, Score, scan
from cbandit.search import best_feasible

__all__ = ["SGPUCB"]


class SGPUCB(GPPolicy):
    """Uniform play of a safe seed set, then UCB over what is surely safe.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`, ``cb.UCB(2.0)`` unless given.
        safe: the seed set, as for :class:`~cbandit.baselines.SafeOpt`.
        rounds: ``T'``, a number or ``(*trials,)``.
        common: see below.

    A standardised belief says nothing of safety before it has seen five outcomes: until
    then only the seed set is played, and a warning says so.

    Where ``ask(among=...)`` leaves no action known to be safe, the choice says
    infeasible and the action of least ``max_j`` upper bound is played.
    """

    name = "SGP-UCB"
    explores = (UCB,)
    usual = UCB(2.0)
    continuous = False
    splits = False

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        explore: UCB | None = None,
        safe: Any,
        rounds: Any,
        **common: Any,
    ) -> None:
        self.settings = stated(self, locals())
        sure(self.name, common)
        super().__init__(
            actions,
            reward=reward,
            costs=believed_costs(costs),
            explore=explore,
            **common,
        )
        self.rounds = rounds_of(rounds, self.batch_shape).to(self.device)
        self._last = int(self.rounds.max())
        self._seed = seed_set(safe, self.actions, self.batch_shape, self.device)
        # the most that any cost may be, beside its threshold: T x 1 x N
        most = torch.full(self._seed.shape, math.inf, dtype=self.dtype).to(self.device)
        most = most.masked_fill(self._seed, 0.0).unsqueeze(1)
        self._most = most.expand(self._size, -1, -1)

    def score(self, t: int, multiplier: Tensor) -> scores.Feasible:
        """Return ``f`` where all ``g_j <= 0``, of upper bounds."""
        return scores.Feasible()

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Return a uniform draw at first, then the best of what is surely safe."""
        own, first = asked.actions is self.actions, None
        seed = self._seed.expand(self._size, -1)
        if own and asked.mask is not None:
            seed = seed & asked.mask
        early = (self.rounds >= asked.t) & seed.any(-1) & own
        if own and asked.t <= self._last:
            # one draw a round whatever happens: a trial's stream is its own
            first = _uniform(seed, asked.streams.uniform())
            if bool(early.all()):
                return Decision(first, sure=True), state
        look = self._look(state, asked)
        look = replace(look, coefficient=look.coefficient.abs())
        enough = trusted(self, state.beliefs.units())
        doubt = None if enough is None else FAR * ~enough.view(-1, 1, 1)
        best, infeasible = best_feasible(
            lambda score: self._among_safe(state, asked.actions, look, score, doubt)
        )
        if first is None or best.index is None:
            return Decision(best.index, infeasible, sure=True), state
        index = torch.where(early, first, best.index)
        return Decision(index, infeasible & ~early, sure=True), state

    def _among_safe(
        self,
        state: GPState,
        on: Any,
        look: Look,
        score: scores.Formed | Score,
        doubt: Tensor | None,
    ) -> Best:
        """Return the best action of a set; the seed set's costs are known to be low.

        All other costs are ``doubt (T, 1, 1)`` higher than believed.
        """
        own = on is self.actions

        def known(f: Tensor, g: Tensor) -> Tensor:
            g, most = (g[:, :-1], g[:, -1:]) if own else (g, None)
            g = g if doubt is None else g + doubt
            return score(f, g if most is None else torch.minimum(g, most))

        look = replace(look, score=known, beside=self._most if own else None)
        if not own:
            return scan([(0, *afresh(state.beliefs, on, []))], look)
        found: Best = state.beliefs.choose(look)
        return found


def _uniform(mask: Tensor, share: Tensor) -> Tensor:
    """Return the action a ``share (*trials,)`` of the way through ``mask (T, N)``."""
    ranks = mask.cumsum(-1)
    count = ranks[:, -1]
    place = (share.reshape(-1).to(mask.device) * count).long().clamp_max(count - 1)
    return torch.searchsorted(ranks, place.unsqueeze(-1) + 1).squeeze(-1)
