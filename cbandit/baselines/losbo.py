"""LoSBO: safety by readings and a Lipschitz constant, independent of the beliefs.

Known: a constant ``Lip_j`` of each cost and a bound ``E_j`` on its noise. From a seed
set of actions known to be safe, each round:

1. the safe set ``S_t``: the seed set, and the intersection over costs of
   ``{x : y_j(s) + E_j + Lip_j d(s, x) <= threshold_j for some action s}`` with a
   reading ``y_j(s)``. It uses no norm of the cost and no width of a belief: if both
   constants hold, no limit is ever exceeded;
2. bounds ``mean -+ beta std`` of reward and costs by the beliefs, which are free to be
   wrong and are not nested; expanders, for each cost, intersected: safe ``x`` with
   ``mean - beta std + Lip_j d(x, x') <= threshold_j`` for some ``x'`` not in ``S_t``;
   maximisers as SafeOpt's (:mod:`cbandit.baselines.safeopt`);
3. ``x_t = argmax`` over both of ``beta std``, the largest over reward and costs;
4. observe reward and costs, update the beliefs.

C. Fiedler, J. Menn, L. Kreiskoether, S. Trimpe, On safety in safe Bayesian
optimization, 2024, and the authors' code of its experiments. The paper has one function
for reward and cost; several are intersected as SafeOpt's are. Its Real-beta-SafeOpt is
SafeOpt with ``explore=cb.UCB(cb.RKHS(norm, subgaussian))``.
"""

from __future__ import annotations

from typing import Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.baselines.safe_set import SAFE_SET, Reach, SafeSet, SafeSets, per_cost
from cbandit.beliefs.gp import GP
from cbandit.explore import UCB
from cbandit.policies.checks import believed_costs
from cbandit.policies.choices import Data, News
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import CostBeliefs, GPKeywords
from cbandit.policies.safe.action import Safe, require_numbers
from cbandit.policies.saving import locked
from cbandit.policies.turn import Decision, Turn


class LoSBO(GPPolicy):
    """SafeOpt with a safe set by readings and Lipschitz constants alone.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`, ``cb.UCB(2.0)`` unless given.
        safe: the seed set, as for :class:`~cbandit.baselines.SafeOpt`.
        lipschitz: Lipschitz constants of the costs, a number, ``(m,)`` or
            ``(*trials, m)``, in the costs' own units.
        noise_bound: the most by which a reading of a cost differs from its mean; a
            number, ``(m,)`` or ``(*trials, m)``.
        common: see below.

    Beliefs may be standardised, and learn kernel and noise: safety does not depend on
    them. If ``ask(among=...)`` leaves no action known to be safe, the choice is marked
    infeasible and the action of least ``max_j`` upper bound is played.
    """

    name = "LoSBO"
    abilities = SAFE_SET

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs,
        explore: UCB | None = None,
        safe: ArrayLike | Safe,
        lipschitz: ArrayLike,
        noise_bound: ArrayLike,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        costs = believed_costs(costs)
        super().__init__(actions, reward=reward, costs=costs, explore=explore, **common)
        self._sets = SafeSets(self, safe, None)
        lip, moving = per_cost("lipschitz", lipschitz, self), callable(self.thresholds)
        self._reach = Reach(self.actions, self._sets.seed, lip, not moving)
        self._noise_bound = per_cost("noise_bound", noise_bound, self)
        # a cost's upper bound is the least reading + E of each action
        sets = self._sets.start(self.size, self.m + 1)
        self.begin(self._now.state._replace(own=sets))

    @property
    @locked
    def safe(self) -> Tensor:
        """The safe set as of the last ``ask``, ``(*trials, N)``."""
        return self._user_shape(self._now.state.own.safe.clone())

    def decide(self, state: GPState, turn: Turn) -> tuple[Decision, GPState]:
        """Return the widest action among expanders and maximisers."""
        looks, beliefs = self._moments(state, turn), state.beliefs
        beta, limits = self._coefficient(state, turn).abs(), turn.limits
        whole = self._sets.whole(turn, beliefs, looks, beta, limits, trusted=False)
        seen: SafeSet = state.own
        sets = seen._replace(safe=seen.safe | (seen.slack(limits) >= 0).all(1))
        sets = self._reach.grown(sets, limits)  # S_t
        lower, upper = whole.mean - whole.spread, whole.mean + whole.spread
        bands = sets._replace(lower=lower, upper=upper)
        if whole.units is not None:  # Lipschitz constants are in the user's units
            center, size, known = (part.unsqueeze(-1) for part in whole.units[:3])
            lower = torch.where(known, lower * size + center, -torch.inf)
        expanders = self._reach.expanders(bands._replace(lower=lower), limits)
        wanted = expanders | bands.maximisers()
        return bands.widest(wanted, turn.mask, whole), state._replace(own=sets)

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state with the news in its beliefs and its readings."""
        at = require_numbers(news.choice.index).reshape(self.size)
        for told in news.raw.costs:
            state = self._read(state, at, *told.in_columns(self.m))
        return super().absorb(state, news)

    def _absorb_data(self, state: GPState, data: Data) -> GPState:
        numbers = require_numbers(data.numbers).to(self.device)
        for part in data.raw.parts:
            if part.functions != [0]:
                for at, row in zip(numbers.mT, part.values.unbind(1), strict=True):
                    row = row.to(self.device).expand(self.size, -1)
                    came = torch.ones_like(row, dtype=torch.bool)
                    state = self._read(state, at.expand(self.size), row, came)
        return super()._absorb_data(state, data)

    def _read(
        self, state: GPState, at: Tensor, values: Tensor, came: Tensor
    ) -> GPState:
        """Return the state after readings ``(T, m)`` of costs at actions ``(T,)``."""
        sets: SafeSet = state.own
        rows, upper = torch.arange(len(at), device=at.device), sets.upper.clone()
        most = torch.where(came, values + self._noise_bound, torch.inf).to(upper)
        upper[rows, 1:, at] = torch.minimum(upper[rows, 1:, at], most)
        return state._replace(own=sets._replace(upper=upper))
