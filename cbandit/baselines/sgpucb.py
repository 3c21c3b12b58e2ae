"""SGP-UCB: the best reward among actions that are surely safe.

A seed set of actions is known to be safe. For ``rounds`` rounds ``T'`` one of them is
drawn uniformly; from then on, each round:

1. ``S_t = seed set + {x : mean_gj + beta std_gj <= 0 for all j}``;
2. ``x_t = argmax mean_f + beta std_f`` over ``S_t``;
3. observe reward and costs, update the beliefs.

S. Amani, M. Alizadeh, C. Thrampoulidis, Regret bound for safe Gaussian process bandit
optimization, 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.baselines.random import uniform_number
from cbandit.baselines.safe_set import SAFE_SET, rounds_of, seed_set
from cbandit.beliefs.gp import GP
from cbandit.explore import UCB
from cbandit.policies.checks import believed_costs
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import CostBeliefs, GPKeywords
from cbandit.policies.round_search import round_blocks
from cbandit.policies.safe.action import Safe
from cbandit.policies.safe.bounds import MAX_SPREADS, EnoughData
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.look import Best, Score, estimated, scan
from cbandit.search import best_feasible


class SGPUCB(GPPolicy):
    """Play a safe seed set uniformly, then UCB over the actions surely safe.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`, ``cb.UCB(2.0)`` unless given.
        safe: the seed set, as for :class:`~cbandit.baselines.SafeOpt`.
        rounds: ``T'``, a number or ``(*trials,)``.
        common: see below.

    A standardised belief is not used to call actions safe before it has five outcomes:
    until then only the seed set is played, and a warning says so.

    If ``ask(among=...)`` leaves no action known to be safe, the choice is marked
    infeasible and the action of least ``max_j`` upper bound is played.
    """

    name = "SGP-UCB"
    abilities = replace(SAFE_SET, categories=False)

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs,
        explore: UCB | None = None,
        safe: ArrayLike | Safe,
        rounds: ArrayLike,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        costs = believed_costs(costs)
        super().__init__(actions, reward=reward, costs=costs, explore=explore, **common)
        self.rounds = rounds_of(rounds, self.batch_shape).to(self.device)
        self._last = int(self.rounds.max())
        self._seed = seed_set(safe, self.actions, self.batch_shape, self.device)
        # the most by which a cost may differ from its threshold, (T, 1, N)
        most = torch.where(self._seed, 0.0, math.inf).to(self.dtype)
        self._most = most.unsqueeze(1).expand(self.size, -1, -1)
        self._enough_data = EnoughData(self.name)

    def score(self, t: int, multiplier: Tensor) -> scores.Feasible:
        """Return ``f`` where all ``g_j <= 0``; both are upper bounds."""
        return scores.Feasible()

    def decide(self, state: GPState, turn: Turn) -> tuple[Decision, GPState]:
        """Return a uniform draw at first, then the best action that is surely safe."""
        drawn, early = self._drawn(turn)
        if drawn is not None and bool(early.all()) and not turn.explores:
            return Decision(drawn, sure=True), state
        enough = self._enough_data.trials(state.beliefs.units())
        safe = self._safe_actions(state, turn, enough) if turn.explores else None
        best, infeasible = best_feasible(self._among_safe(state, turn, enough))
        if drawn is None or best.index is None:
            return Decision(best.index, infeasible, sure=True, safe=safe), state
        index = torch.where(early, drawn, best.index)
        return Decision(index, infeasible & ~early, sure=True, safe=safe), state

    def _safe_actions(
        self, state: GPState, turn: Turn, enough: Tensor | None
    ) -> Tensor:
        """Return the allowed actions that are surely safe, ``(T, N)`` bool."""
        look = self._make_look(state, turn)
        look = replace(look, coefficient=look.coefficient.abs())
        blocks = round_blocks(state.beliefs, turn.actions)
        parts = [estimated(look, b.mean, b.std)[:, 1:] for b in blocks]
        safe = (torch.cat(parts, -1) <= 0).all(1)
        if enough is not None:
            safe &= enough.unsqueeze(-1)
        if turn.actions is self.actions:
            safe |= self._seed
        return safe if turn.mask is None else safe & turn.mask

    def _drawn(self, turn: Turn) -> tuple[Tensor | None, Tensor]:
        """Return a uniform draw from the seed set, and the trials that play it."""
        on_own_set = turn.actions is self.actions
        seed = self._seed.expand(self.size, -1)
        if on_own_set and turn.mask is not None:
            seed = seed & turn.mask
        early = (self.rounds >= turn.t) & seed.any(-1) & on_own_set
        if not on_own_set or turn.t > self._last:
            return None, early
        # always one draw a round, so that trials' streams do not depend on each other
        return uniform_number(seed, turn.streams.uniform()), early

    def _among_safe(
        self, state: GPState, turn: Turn, enough: Tensor | None
    ) -> Callable[[scores.Formed | Score], Best]:
        """Return a function that searches this round's set by upper confidence bounds.

        The seed set's costs are known to keep their thresholds. Trials that have not
        seen ``enough (T,)`` trust no other action.
        """
        on, beliefs = turn.actions, state.beliefs
        on_own_set = on is self.actions
        look = self._make_look(state, turn)
        look = replace(look, coefficient=look.coefficient.abs())  # mean + beta std
        doubt = None if enough is None else MAX_SPREADS * ~enough.view(-1, 1, 1)

        def best(score: scores.Formed | Score) -> Best:
            def known(f: Tensor, g: Tensor) -> Tensor:
                if on_own_set:
                    g, most = g[:, :-1], g[:, -1:]
                else:
                    most = g.new_tensor(math.inf)
                g = g if doubt is None else g + doubt
                return score(f, torch.minimum(g, most))

            close = beliefs.tolerance(scores.of_costs(score))
            wanted = replace(look, score=known, tolerance=close)
            if not on_own_set:
                blocks = ((b.start, b.mean, b.std) for b in round_blocks(beliefs, on))
                return scan(blocks, wanted)
            wanted = replace(wanted, beside=self._most)
            answer: Best = beliefs.choose(wanted)
            return answer

        return best
