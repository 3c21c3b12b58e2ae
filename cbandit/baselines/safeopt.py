"""SafeOpt: stay among surely safe actions, and play the least known one.

From a seed set of actions known to be safe, each round:

1. nested bounds ``l_t``, ``u_t`` of reward and costs from the beliefs
   (:mod:`cbandit.baselines.safe_set`); the safe set ``S_t`` grows, and its expanders
   ``G_t`` are found, by Lipschitz constants if a user gives them;
2. maximisers ``M_t = {x in S_t : u_t(x) >= max over S_t of l_t}``, of the reward;
3. ``x_t = argmax`` over both sets of the width ``u_t - l_t``, the largest over reward
   and costs;
4. observe reward and costs, update the beliefs.

Y. Sui, A. Gotovos, J. Burdick, A. Krause, Safe exploration for optimization with
Gaussian processes, 2015; with several costs as F. Berkenkamp, A. Krause and
A. Schoellig, Bayesian optimization with safety constraints: safe and automatic
parameter tuning in robotics, 2016.
"""

from __future__ import annotations

from typing import Unpack

from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.baselines.safe_set import SAFE_SET, SafeSets
from cbandit.beliefs.gp import GP
from cbandit.explore import UCB
from cbandit.policies.checks import believed_costs
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import CostBeliefs, GPKeywords
from cbandit.policies.safe.action import Safe
from cbandit.policies.saving import locked
from cbandit.policies.turn import Decision, Turn


class SafeOpt(GPPolicy):
    """Play the widest action among expanders and maximisers of the safe set.

    Args:
        actions: what can be chosen (SafeOpt's ``parameter_set``).
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them; ``thresholds`` are upper
            limits (SafeOpt's ``fmin`` with the sign turned).
        explore: :class:`~cbandit.UCB` (SafeOpt's ``beta``), ``cb.UCB(2.0)`` unless
            given.
        safe: the seed set: an action's number, a list of numbers, a tensor of numbers
            ``(*trials,)`` or ``(*trials, k)``, a mask ``(N,)`` or ``(*trials, N)``, or
            points ``(k, d)`` or ``(*trials, k, d)``.
        lipschitz: Lipschitz constants of the costs, a number, ``(m,)`` or
            ``(*trials, m)``, in spreads if a belief is standardised. ``None``: the
            beliefs alone say what is safe.
        common: see below.

    A standardised belief is not used to call actions safe before it has five outcomes:
    until then only the seed set is played, and a warning says so.

    The seed set is believed to be safe. If ``ask(among=...)`` leaves no action known to
    be safe, the choice is marked infeasible and the action of least ``max_j`` upper
    bound is played. Time is quadratic in the number of actions; memory is not, as the
    work is done in chunks.
    """

    name = "SafeOpt"
    abilities = SAFE_SET

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs,
        explore: UCB | None = None,
        safe: ArrayLike | Safe,
        lipschitz: ArrayLike | None = None,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        costs = believed_costs(costs)
        super().__init__(actions, reward=reward, costs=costs, explore=explore, **common)
        self._sets = SafeSets(self, safe, lipschitz)
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
        whole = self._sets.whole(turn, beliefs, looks, beta, limits)
        sets = self._sets.next(state.own, whole)  # l_t, u_t and S_t
        wanted = self._sets.expanders(sets, whole, beliefs) | sets.maximisers()
        return sets.widest(wanted, turn.mask, whole), state._replace(own=sets)
