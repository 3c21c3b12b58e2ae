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

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit.baselines.safe_set import rounds_of, seed_set, sure
from cbandit.beliefs.gp import GP
from cbandit.explore import UCB
from cbandit.policies.decision import Decision
from cbandit.policies.stepwise import Constrained
from cbandit.search.finite import best_feasible, maximise

__all__ = ["SGPUCB"]


class SGPUCB(Constrained):
    """Uniform play of a safe seed set, then UCB over what is surely safe.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`.
        safe: the seed set, as for :class:`~cbandit.baselines.SafeOpt`.
        rounds: ``T'``, a number or ``(*trials,)``.
        common: see below.

    Where ``ask(among=...)`` leaves no action known to be safe, the choice says
    infeasible and the action of least ``max_j`` upper bound is played.
    """

    name = "SGP-UCB"

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        explore: UCB,
        safe: Any,
        rounds: Any,
        **common: Any,
    ) -> None:
        sure(self.name, common)
        super().__init__(actions, reward=reward, costs=costs, explore=explore, **common)
        self.rounds = rounds_of(rounds, self.batch_shape).to(self.device)
        self._last = int(self.rounds.max())
        self._seed = seed_set(safe, self.actions, self.batch_shape, self.device)

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        own = asked is self.actions
        seed = self._seed.expand(self._size, -1)
        if own and mask is not None:
            seed = seed & mask
        early = (self.rounds >= t) & seed.any(-1) & own
        # what can fail goes before what draws
        coefficient, limits = self._coefficient(t).abs(), self._limits(t)
        # one draw a round whatever happens: a trial's stream is its own
        drawn = (
            _uniform(seed, self._streams.uniform()) if own and t <= self._last else None
        )
        if drawn is not None and bool(early.all()):
            return Decision(drawn)

        def bounds() -> Iterator[tuple[int, Tensor]]:
            for start, upper in self._estimates(coefficient, limits, asked):
                if own:
                    known = self._seed[:, start : start + upper.shape[-1]]
                    safe = upper[:, 1:].clamp_max(0)
                    upper[:, 1:] = torch.where(known.unsqueeze(1), safe, upper[:, 1:])
                yield start, upper

        best, infeasible = best_feasible(lambda score: maximise(bounds(), score, mask))
        if drawn is None:
            return Decision(best.index, infeasible)
        assert best.index is not None
        return Decision(torch.where(early, drawn, best.index), infeasible & ~early)


def _uniform(mask: Tensor, share: Tensor) -> Tensor:
    """The action a ``share (*trials,)`` of the way through those of ``mask (T, N)``."""
    ranks = mask.cumsum(-1)
    count = ranks[:, -1]
    place = (share.reshape(-1).to(mask.device) * count).long().clamp_max(count - 1)
    return torch.searchsorted(ranks, place.unsqueeze(-1) + 1).squeeze(-1)
