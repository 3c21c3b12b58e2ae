"""RPOL: rectified pessimistic-optimistic learning.

Each round, with a multiplier ``Q_j`` for each cost, 1 at first:

1. ``f_t`` is the reward's upper, ``g_t`` the costs' lower confidence bound;
2. ``x_t = argmax f_t(x) - sum_j Q_j [g_tj(x)]_+``;
3. observe reward and costs, update the beliefs;
4. ``Q_j = max(Q_j + [c_j]_+, sqrt(t))``, with the observed cost ``c_j``.

There is no Slater constant and no cap. With ``feedback=cb.Delayed(window)`` it is
RPOL-CensoredUCB (:mod:`cbandit.policies.timing.delayed`): ``Q`` gains the costs that
arrive, however late. With ``feedback=cb.Sliding(window)`` it is RPOL-SWUCB
(:mod:`cbandit.policies.timing.sliding`).

H. Guo, Q. Zhu and X. Liu, Rectified pessimistic-optimistic learning for stochastic
continuum-armed bandit with constraints, 2023, Theorem 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from cbandit import multipliers, scores
from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.beliefs.gp import GP
from cbandit.explore import UCB, Explore
from cbandit.policies.abilities import BY_SCORE
from cbandit.policies.checks import believed_costs
from cbandit.policies.gp import GPPolicy
from cbandit.policies.keywords import CostBeliefs, GPKeywords


class RPOL(GPPolicy):
    """Rectified penalties: rounds below a limit do not make up for rounds above it.

    ``multiplier`` is 1 at first, grows by every rectified cost told, however late, and
    is at least ``sqrt(t)`` after round ``t``. For a world that drifts at an unknown
    speed, ``restart=H, forget=True`` starts anew every ``H`` rounds and counts rounds
    from there. ``restart="adaptive", forget=True`` needs no ``H``: a trial starts anew
    when its predictions fail. That stands in for the reduction that the paper's second
    remark names, see :mod:`cbandit.policies.concerns.restarts`.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB` in the paper; ``cb.UCB(1.0)`` unless given, and
            ``cb.UCB(1.0, margin=2.0)`` where all beliefs are
            :meth:`cbandit.GP.default`'s and feedback is not delayed, so that few
            rounds end just above a limit. The paper's bounds are for no margin;
            with a margin they hold for limits tightened by it. With
            :class:`~cbandit.TS` it keeps looking for better feasible actions; under
            such beliefs ``cb.TS()`` has a margin too (:meth:`cbandit.TS.cautious`).
            No bound covers draws.
        penalty: ``"observation"``: ``Q`` gains the rectified cost observed, as in the
            paper. ``"estimate"`` (ours): ``Q`` gains ``[g_t(x_t)]_+``, because
            rectified noise makes ``Q`` grow at feasible points too. Binary and counted
            costs always use the estimate, as a single 1 exceeds every limit.
        restart: rounds between restarts of the multiplier, ``"adaptive"`` or ``None``.
        forget: whether restarts drop the data too. Feedback that is told after a
            restart enters the new beliefs, whatever round it is of.
        common: see below.

    Example:
        >>> import cbandit as cb, torch
        >>> actions = cb.Finite(torch.linspace(0, 1, 50).double().unsqueeze(-1))
        >>> gp = cb.GP.default(actions)
        >>> policy = cb.RPOL(actions, reward=gp, costs=gp, explore=cb.UCB(2.0))
        >>> policy.tell(policy.ask(), reward=0.1, cost=0.2)
    """

    abilities = replace(
        BY_SCORE,
        moves=True,
        counts_epoch=True,
        hallucinates=True,
        cautious=UCB(1.0, margin=2.0),
    )

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs,
        explore: Explore | None = None,
        penalty: str = "observation",
        restart: int | str | None = None,
        forget: bool = False,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        checks.one_of("penalty", penalty, "observation", "estimate")
        super().__init__(
            actions,
            reward=reward,
            costs=believed_costs(costs),
            explore=explore,
            start=1.0,
            restart=restart,
            forget=forget,
            **common,
        )
        kind = {Delayed: "Censored", Sliding: "SW"}.get(type(self.feedback), "")
        self.name = f"RPOL-{kind}{self.explore.name}"
        self.penalty = penalty
        # which costs move Q by their estimates, (m,)
        estimated = [
            penalty == "estimate" or 1 + j in self._outcomes for j in range(self.m)
        ]
        self._estimated_costs = torch.tensor(estimated, device=self.device)
        self._uses_estimates = any(estimated)

    def score(self, t: int, q: Tensor) -> scores.Rectified:
        """Return the score ``f - sum_j Q_j [g_j]_+``."""
        return scores.Rectified(q)

    def move(
        self, t: int | Tensor, q: Tensor, estimate: Tensor, arrived: Sequence[Tensor]
    ) -> Tensor:
        """Return ``max(q + [c]_+, sqrt(t))``, ``c`` the observed or estimated costs."""
        gained = torch.zeros_like(q)
        for cost in arrived:
            gained = gained + cost.clamp_min(0)
        if self._uses_estimates:
            estimated = estimate[:, 1:].clamp_min(0)
            gained = torch.where(self._estimated_costs, estimated, gained)
        floor = t.double().sqrt() if isinstance(t, Tensor) else math.sqrt(t)
        return multipliers.rectified(q, gained, floor, checked=False)
