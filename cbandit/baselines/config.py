"""CONFIG: optimism in the reward and in the constraints.

Each round:

1. ``F_t = {x : mean_gj - beta std_gj <= 0 for all j}``, what may yet be feasible;
2. ``x_t = argmax mean_f + beta std_f`` over ``F_t``;
3. observe reward and costs, update the beliefs.

If ``F_t`` is empty the problem is declared infeasible: the choice says so, and the
action whose largest lower bound is least is played.

W. Xu, Y. Jiang, B. Svetozarevic, C. N. Jones, Constrained efficient global optimization
of expensive black-box functions, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cbandit.actions import Box
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.gp import INCUMBENTS, GPPolicy
from cbandit.policies.policy import Decision
from cbandit.search.box import best_feasible_point
from cbandit.search.finite import best_feasible

__all__ = ["CONFIG", "Constrained"]


class Constrained(GPPolicy):
    """A policy with costs and confidence bounds, and no multiplier."""

    continuous = False
    explores = (UCB,)

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        explore: UCB,
        **common: Any,
    ) -> None:
        if costs is None:
            raise CBanditError("costs must be a cb.GP or a list of them; got None")
        super().__init__(actions, reward, costs, explore, **common)


class CONFIG(Constrained):
    """``argmax`` of the reward's upper bound where the costs' lower bounds allow it.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`.
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
    splits = True
    continuous = True

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        coefficient, limits = self._coefficient(t), self._limits(t)
        if isinstance(asked, Box):
            best, infeasible = best_feasible_point(
                asked,
                self._estimate(coefficient, limits),
                self._streams,
                self._beliefs.incumbents(INCUMBENTS),
                self.climbs,
            )
            return Decision(None, infeasible, x=best.x)
        best, infeasible = best_feasible(
            lambda score: self._best_of(asked, mask, score, coefficient, limits)
        )
        return Decision(best.index, infeasible, keys=best.keys)
