"""RPOL: rectified pessimistic-optimistic learning.

Each round, with multiplier ``Q`` (one a cost, 1 at first) and floor ``sqrt(t)``:

1. ``f_t`` is the reward's upper, ``g_t`` the costs' lower confidence bound;
2. ``x_t = argmax f_t(x) - sum_j Q_j [g_tj(x)]_+``;
3. observe reward and costs, update the beliefs;
4. ``Q_j = max(Q_j + [c_j]_+, sqrt(t))``: by the observation, rectified.

No Slater constant and no cap. With ``feedback=cb.Delayed(window)`` it is
RPOL-CensoredUCB: ``Q`` gains the costs that arrive, however late. With
``feedback=cb.Sliding(window)`` it is RPOL-SWUCB.

H. Guo, Z. Qi and X. Liu, Rectified pessimistic-optimistic learning for stochastic
continuum-armed bandit with constraints, 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit import multipliers, scores
from cbandit._core import checks
from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.beliefs.gp import GP
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.gp import GPPolicy
from cbandit.policies.policy import Decision, Told

__all__ = ["RPOL"]


class RPOL(GPPolicy):
    """Rectified penalties: violations never compensate each other.

    ``multiplier`` is 1 at first, gains every rectified cost that comes, however late,
    and is at least ``sqrt(t)`` after round ``t``, whatever came.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB` in the paper.
        penalty: ``"observation"``: ``Q`` gains the rectified cost observed, as in the
            paper. ``"estimate"`` (ours): it gains ``[g_t(x_t)]_+``, since rectified
            noise keeps ``Q`` growing at feasible points.
        common: ``thresholds``, ``clip``, ``horizon``, ``feedback``, ``seed``,
            ``trials``, ``device``, ``dtype``, ``engine``, ``pending``.

    Example:
        >>> import cbandit as cb, torch
        >>> actions = cb.Finite(torch.linspace(0, 1, 50).double().unsqueeze(-1))
        >>> gp = cb.GP.default(actions)
        >>> policy = cb.RPOL(actions, reward=gp, costs=gp, explore=cb.UCB(2.0))
        >>> policy.tell(policy.ask(), reward=0.1, cost=0.2)
    """

    splits = True

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        explore: Explore,
        penalty: str = "observation",
        **common: Any,
    ) -> None:
        checks.one_of("penalty", penalty, "observation", "estimate")
        if costs is None:
            raise CBanditError("costs must be a cb.GP or a list of them; got None")
        super().__init__(actions, reward, costs, explore, **common)
        kind = {Delayed: "Censored", Sliding: "SW"}.get(type(self.feedback), "")
        self.name = f"RPOL-{kind}{explore.name}"
        self.penalty = penalty
        self._multiplier = torch.ones(
            self._size, self.m, dtype=torch.float64, device=self.device
        )
        self._gained = torch.zeros_like(self._multiplier)  # since the last ask

    @property
    def multiplier(self) -> Tensor:
        """``Q`` as the next ``ask`` will use it, ``(*trials, m)``."""
        self._catch_up()
        return self._outside(self._moved())

    def _moved(self) -> Tensor:
        floor = math.sqrt(self.t) if self.t else 1.0
        return multipliers.raised(self._multiplier, self._gained, floor)

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        q = self._moved()
        best = self._maximise(t, asked, mask, scores.Rectified(q))
        self._multiplier, self._gained = q, torch.zeros_like(q)
        if self.penalty == "estimate":
            self._gained = best.g.double().clamp_min(0)
        return Decision(best.index, x=best.x, keys=best.keys)

    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        gained = self._gained
        if self.penalty == "observation":
            # thresholds may be a callable that fails: before the beliefs change
            for told in costs:
                over = (told.values - self._limits(choice.t)).clamp_min(0)
                if told.where is not None:
                    over = over * told.mask().unsqueeze(-1)
                gained = gained + over
        super()._absorb(choice, rewards, costs)
        self._gained = gained
