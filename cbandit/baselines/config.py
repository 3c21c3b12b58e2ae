"""CONFIG: optimism in the reward and in the constraints.

Each round:

1. ``F_t = {x : mean_gj - beta std_gj <= 0 for all j}``, what may yet be feasible;
2. ``x_t = argmax mean_f + beta std_f`` over ``F_t``;
3. observe reward and costs, update the beliefs.

If ``F_t`` is empty the problem is declared infeasible: the choice says so, and the
action with the least largest lower bound of costs is played.

With ``cb.TS`` (ours, after D. Eriksson and M. Poloczek, Scalable constrained Bayesian
optimization, 2021) reward and costs are one joint draw: play the best action that is
feasible in it, or else the one of least total violation.

W. Xu, Y. Jiang, B. Svetozarevic, C. N. Jones, Constrained efficient global optimization
of expensive black-box functions, 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from torch import Tensor

from cbandit import scores
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.explore import TS, UCB
from cbandit.policies.abilities import BY_SCORE
from cbandit.policies.checks import believed_costs
from cbandit.policies.gp import GPPolicy
from cbandit.policies.keywords import CostBeliefs, GPKeywords


class CONFIG(GPPolicy):
    """Play the reward's greatest upper bound where the costs' lower bounds allow it.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`, or :class:`~cbandit.TS`, which keeps looking
            around the best feasible action; ``cb.UCB(1.0)`` unless given.
        common: see below.

    Example:
        >>> import cbandit as cb, torch
        >>> actions = cb.Finite(torch.linspace(0, 1, 50).double().unsqueeze(-1))
        >>> gp = cb.GP.default(actions)
        >>> policy = cb.baselines.CONFIG(
        ...     actions, reward=gp, costs=gp, explore=cb.UCB(2.0)
        ... )
        >>> policy.tell(policy.ask(), reward=0.1, cost=0.2)
    """

    name = "CONFIG"
    abilities = replace(BY_SCORE, explores=(UCB, TS), hallucinates=True)

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs,
        explore: UCB | TS | None = None,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        costs = believed_costs(costs)
        super().__init__(actions, reward=reward, costs=costs, explore=explore, **common)
        if self.explore.samples:
            self.name = "CONFIG-TS"

    def score(self, t: int, multiplier: Tensor) -> scores.Feasible:
        """Return ``f`` where all ``g_j <= 0``."""
        return scores.Feasible()
