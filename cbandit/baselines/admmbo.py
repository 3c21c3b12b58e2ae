"""ADMMBO: an augmented Lagrangian split between ``x`` and one copy ``z_j`` per cost.

To maximise ``f(x) - sum_j 1[g_j(z_j) > 0]`` (times a constant ``M``) over ``x = z_j``,
with multipliers ``y_j``, in turn:

1. optimality: expected improvement on ``f(x) - sum_j (rho/2) |x - z_j + y_j/rho|^2``;
2. feasibility, each ``j``: expected improvement on
   ``-(1[g_j(z) > 0] + (rho/2M) |x - z + y_j/rho|^2)``, the indicator Bernoulli under
   the belief about ``g_j``;
3. ``y_j += rho (x - z_j)``; ``rho`` doubled or halved where the residuals ``|x - z|``
   and ``rho |z - z_before|`` differ tenfold; stop where both are small.

Each step has its own budget of evaluations, and all of them count as rounds. After it
has stopped, the best action seen that is believed feasible is played for ever. The
Lagrangian is in :mod:`cbandit.baselines.admm`, the steps' turns and the stop are in
:mod:`cbandit.baselines.admm_steps`.

S. Ariafar, J. Coll-Font, D. Brooks and J. Dy, ADMMBO: Bayesian optimization with
unknown constraints using ADMM, 2019. Ours: every round's reward and cost enter the
beliefs, whichever step asked for it; incumbents are by posterior mean, since
observations are noisy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Unit
from cbandit.baselines.admm import Split
from cbandit.baselines.admm_search import (
    best_so_far,
    decision_at,
    may_be,
    of_step,
    on_box,
    on_set,
)
from cbandit.baselines.admm_steps import Progress, evaluations
from cbandit.baselines.botorch_policy import TAKES_NO
from cbandit.baselines.random import uniform
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.alone import alone
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.gp import GPPolicy
from cbandit.policies.state import GPState
from cbandit.policies.suits import believed_costs
from cbandit.posterior.units import level

__all__ = ["ADMMBO"]


class ADMMBO(GPPolicy):
    """Alternating directions with expected improvement in each.

    Args:
        actions: a finite set, a product grid, or a :class:`~cbandit.Box` (there
            BoTorch's ``optimize_acqf`` searches, trial by trial).
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        rho: of the augmented Lagrangian, at first; a number or ``(*trials,)``.
        weight: ``M``, in the reward's unit; a number or ``(*trials,)``.
        budgets: evaluations of the optimality step: the first one's, the later ones'.
        cost_budgets: likewise of each feasibility step.
        tolerance: of the residuals, in parts of the diagonal of the set.
        iterations: at most so many.
        num_restarts, raw_samples: of ``optimize_acqf``.
        common: see below. Coordinates are needed.
    """

    name = "ADMMBO"
    takes_no = TAKES_NO
    splits = False

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        rho: Any = 0.1,
        weight: Any = 50.0,
        budgets: tuple[int, int] = (10, 5),
        cost_budgets: tuple[int, int] = (50, 5),
        tolerance: float = 0.03,
        iterations: int = 100,
        num_restarts: int = 4,
        raw_samples: int = 64,
        **common: Any,
    ) -> None:
        self.settings = stated(self, locals())
        costs, means = believed_costs(costs), UCB(0.0)
        super().__init__(actions, reward=reward, costs=costs, explore=means, **common)
        self.budgets = evaluations("budgets", budgets)
        self.cost_budgets = evaluations("cost_budgets", cost_budgets)
        self.tolerance = checks.number("tolerance", tolerance, minimum=0.0)
        self.iterations = checks.whole("iterations", iterations)
        self.num_restarts = checks.whole("num_restarts", num_restarts)
        self.raw_samples = checks.whole("raw_samples", raw_samples)
        low, high = Unit.around(self.actions).bounds.to(self.device)
        self._small = self.tolerance * float((high - low).norm())  # of residuals
        rho = self._per_trial("rho", checks.positive("rho", rho))
        weight = self._per_trial("weight", checks.positive("weight", weight))
        # from the upper corner, as published
        own = Progress.start(Split.start(high, self.m, rho, weight))
        self._begin(self._now.state._replace(own=own))

    @property
    @alone
    def multiplier(self) -> Tensor:
        """``|y_j|``, ``(*trials, m)``."""
        return self._outside(self._now.state.own.split.y.norm(dim=-1))

    @property
    @alone
    def stopped(self) -> Tensor:
        """The round since which the incumbent is played, ``(*trials,)``, or 0."""
        return self._outside(self._now.state.own.stopped.clone())

    # -- one round -------------------------------------------------------------------

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Return the greatest improvement of the present step."""
        if asked.actions is not self.actions:
            raise CBanditError("ADMMBO chooses from its own set: no actions=")
        beliefs, own = state.beliefs, state.own
        if asked.t == 1 or not bool(beliefs.has_data().all()):
            count = self.actions.dim if self.actions.continuous else 1
            share = asked.streams.uniform(1 + count).reshape(self._size, -1)
            return uniform(asked, share[:, 1:], self), state
        if not bool(own.going.any()):
            return decision_at(self, may_be(asked, own.incumbent)), state
        units = beliefs.units()
        before = level(units, self._limits(asked.t - 1))
        own = own.advanced(self, beliefs, asked.t, before)
        split, step = own.split, own.step
        best, here = best_so_far(beliefs, split, step, before)
        limit = of_step(level(units, self._limits(asked.t)), step)
        if self.actions.continuous:
            tries, raw = self.num_restarts, self.raw_samples
            found = on_box(asked, beliefs, split, step, limit, best, tries, raw)
        else:
            found = on_set(asked, beliefs, split, step, limit, best, here)
        x = torch.where(own.going.unsqueeze(-1), found, own.incumbent)
        return decision_at(self, x), state._replace(own=replace(own, done=own.done + 1))
