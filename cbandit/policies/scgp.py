"""SCGP-UCB: the constraint is seen in full each round, before choosing.

Each round, with a queue ``Q_j`` for each cost, 0 at first:

1. ``f_t = clip(mean + beta_t std, -B, B)``; observe ``g_t(.)`` on all actions,
   ``E g_t = g``;
2. ``x_t = argmax f_t(x) - (1 / V_t) sum_j Q_j g_tj(x)``; observe the reward;
3. ``Q_j = [Q_j + g_tj(x_t) + eps_t]_+``.

Schedule 1: ``eps_t = 1 / sqrt(t)``, ``V_t = delta sqrt(t) / (8 B)``. Schedule 2:
``eps_t = delta / (2 sqrt(t))``, ``V_t = delta^2 sqrt(t) / (16 B)``. With both, if the
``g_t`` are bounded and independent of all else, expected regret grows as ``sqrt(t)``
times the information gain, and expected violation is 0 after ``O(1 / delta^4)`` rounds
(Theorems 3 and 4).

Provably efficient Bayesian optimization with unknown constraints, Algorithm 2: the
longer form, with full-information constraints, of X. Zhou and B. Ji, On kernelized
multi-armed bandits with constraints, 2022. One use is to stay close to an expert at
first: the cost is then the distance from what the expert does, see
:func:`cbandit.problems.expert_distance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import multipliers, scores
from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.abilities import BY_SCORE
from cbandit.policies.checks import COSTS_EXPECTED
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import BeliefKeywords
from cbandit.policies.signs import count_or_names

LIMIT_REFUSAL = "slater= and clip= are for the limits that it was built with"


class SCGPUCB(GPPolicy):
    """Choose by GP-UCB where the costs of all actions are seen before each choice.

    Each cost has a virtual queue, its multiplier, which grows by what the cost exceeds
    its threshold. The longer the queue, the more the cost lowers an action's score.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: how many costs, ``m``, or their names.
        explore: :class:`~cbandit.UCB` in the paper; RKHS widths have the theorem's
            ``ln(2 / delta)``.
        schedule: which of the paper's two pairs of formulas gives ``eps_t`` and
            ``V_t``, 1 or 2.
        slater: Slater's constant ``delta``, a number or ``(*trials,)``: some action (or
            distribution) has every cost at least this far below its threshold. The
            theorems assume at most 1. A larger value is allowed, for costs that are
            scaled up, but the theorems do not cover it.
        clip: the bound ``B`` on the reward, which the schedules need. Of a pair ``(B,
            G)``, ``G`` is not used, as costs are seen and not estimated.
        common: see below. ``ask(observed_costs=g_t)`` needs this round's costs of every
            action; thresholds are subtracted from them.

    Example:
        >>> import cbandit as cb
        >>> class Open(cb.problems.Table):  # shows its costs before every round
        ...     def round(self, t, generator):
        ...         return cb.Round(observed_costs=[[-1.0, 0.2, 1.0]])
        >>> world = Open([1.0, 2.0, 3.0], [[-1.0, 0.2, 1.0]], noise=0.01)
        >>> policy = cb.SCGPUCB(
        ...     world.actions, reward=cb.GP.default(world.actions), costs=1,
        ...     explore=cb.UCB(2.0), slater=1.0, clip=5.0,
        ... )
        >>> run = cb.simulate(policy, world, 50)
    """

    name = "SCGP-UCB"
    abilities = replace(
        BY_SCORE, budgets=False, moves=True, refuses={"limit": LIMIT_REFUSAL}
    )

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: int | Sequence[str],
        explore: Explore | None = None,
        schedule: int = 1,
        slater: ArrayLike | None = None,
        clip: ArrayLike | None = None,
        horizon: int | None = None,
        **common: Unpack[BeliefKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        costs = count_or_names(costs, COSTS_EXPECTED)
        if checks.whole("schedule", schedule, 1, "1 or 2") > 2:
            raise CBanditError(f"schedule must be 1 or 2; got {schedule!r}")
        if slater is None or clip is None:
            missing = "slater=" if slater is None else "clip=B"
            raise CBanditError(
                f"V_t rests on slater (delta) and clip (B): give {missing}"
            )
        super().__init__(
            actions,
            reward=reward,
            costs=costs,
            explore=explore,
            clip=clip,
            horizon=horizon,
            start=0.0,
            observed_costs=True,
            **common,
        )
        self.schedule = schedule
        bound = clip[0] if isinstance(clip, tuple | list) else clip
        self._reward_bound = self._per_trial("clip B", bound).unsqueeze(-1)
        delta = self._per_trial("slater", checks.positive("slater", slater))
        self._slater = delta.unsqueeze(-1)

    def _count_bounds(self, state: GPState) -> int:
        """Return ``c`` of the RKHS widths: 2, so that they have ``ln(2 / delta)``."""
        return self._timing.bound_count(2)

    def score(self, t: int, q: Tensor) -> scores.PrimalDual:
        """Return the score ``f - (1 / V_t) sum_j Q_j g_j``."""
        root, delta, b = math.sqrt(t), self._slater, self._reward_bound
        first = self.schedule == 1
        v = delta * root / (8 * b) if first else delta**2 * root / (16 * b)
        return scores.PrimalDual(q / v)

    def move(
        self, t: int, q: Tensor, estimate: Tensor, arrived: Sequence[Tensor]
    ) -> Tensor:
        """Return ``[q + g_t(x_t) + eps_t]_+``, the queues after round ``t``."""
        root, first = math.sqrt(t), self.schedule == 1
        eps = (
            torch.full_like(self._reward_bound, 1 / root)
            if first
            else self._slater / (2 * root)
        )
        return multipliers.queue(q, estimate[:, 1:], eps, checked=False)
