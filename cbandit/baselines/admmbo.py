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
has stopped, the best action seen that is believed feasible is played for ever.

S. Ariafar, J. Coll-Font, D. Brooks and J. Dy, ADMMBO: Bayesian optimization with
unknown constraints using ADMM, 2019. Ours: every round's reward and cost enter the
beliefs, whichever step asked for it; incumbents are by posterior mean, since
observations are noisy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.baselines.admm import Split
from cbandit.baselines.admm_search import (
    best_so_far,
    deployed,
    of_step,
    on_box,
    on_set,
)
from cbandit.baselines.botorch_policy import refused
from cbandit.baselines.random import clear
from cbandit.beliefs.gp import GP, _extent
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.alone import alone
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.gp import GPPolicy
from cbandit.policies.state import GPState
from cbandit.policies.suits import believed_costs
from cbandit.posterior.units import level

__all__ = ["ADMMBO"]


@dataclass(frozen=True, eq=False)
class Progress:
    """How far ADMMBO is.

    Args:
        split: the augmented Lagrangian.
        incumbent: the action that is played once a trial has stopped, ``(T, d)``.
        stopped: the round from which it is, ``(T,)``; 0 until then.
        iteration: counted from 0.
        step: 0 the reward's, ``j`` that of cost ``j``.
        done: evaluations of this step.
    """

    split: Split
    incumbent: Tensor
    stopped: Tensor
    iteration: int = 0
    step: int = 0
    done: int = 0

    @property
    def going(self) -> Tensor:
        """Trials that have not stopped, ``(T,)``."""
        return self.stopped == 0


class ADMMBO(GPPolicy):
    """Alternating directions with expected improvement in each.

    Args:
        actions: a finite set, a product grid, or a :class:`~cbandit.Box` (there
            BoTorch's ``optimize_acqf`` searches, trial by trial).
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        rho: of the augmented Lagrangian, at first; a number or ``(*trials,)``.
        weight: ``M``, in the reward's unit, as ``rho``.
        budgets: evaluations of the optimality step: the first one's, the later ones'.
        cost_budgets: likewise of each feasibility step.
        tolerance: of the residuals, in parts of the diagonal of the set.
        iterations: at most so many.
        num_restarts, raw_samples: of ``optimize_acqf``.
        common: see below. Coordinates are needed.
    """

    name = "ADMMBO"
    splits = False

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        rho: Any = 0.1,
        weight: float = 50.0,
        budgets: tuple[int, int] = (10, 5),
        cost_budgets: tuple[int, int] = (50, 5),
        tolerance: float = 0.03,
        iterations: int = 100,
        num_restarts: int = 4,
        raw_samples: int = 64,
        **common: Any,
    ) -> None:
        self.settings = stated(self, locals())
        refused(common)
        super().__init__(
            actions,
            reward=reward,
            costs=believed_costs(costs),
            explore=UCB(0.0),
            **common,
        )
        for name, pair in (("budgets", budgets), ("cost_budgets", cost_budgets)):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise CBanditError(f"{name} must be two positive ints; got {pair!r}")
            for n in pair:
                checks.whole(name, n, 1, "two positive ints")
        self.weight = checks.number("weight", weight)
        if self.weight <= 0:
            raise CBanditError(f"weight must be above 0; got {self.weight:g}")
        self.budgets, self.cost_budgets = tuple(budgets), tuple(cost_budgets)
        self.tolerance = checks.number("tolerance", tolerance, minimum=0.0)
        self.iterations = checks.whole("iterations", iterations)
        expected = "a positive int"
        self.num_restarts = checks.whole("num_restarts", num_restarts, 1, expected)
        self.raw_samples = checks.whole("raw_samples", raw_samples, 1, expected)
        low, high = _extent(self.actions).to(self.device)
        self._diagonal = float((high - low).norm())
        rho = self._per_trial("rho", checks.positive("rho", rho))
        # from the upper corner, as published
        split = Split.start(high, self.m, rho, self.weight)
        stopped = torch.zeros(self._size, dtype=torch.long, device=self.device)
        own = Progress(split, split.x, stopped)
        self._begin(self._now.state._replace(own=own))

    @property
    @alone
    def multiplier(self) -> Tensor:
        """``|y_j|``, ``(*trials, m)``."""
        return self._outside(self._now.state.own.split.y.norm(dim=-1))

    @property
    @alone
    def stopped(self) -> Tensor:
        """The round from which the incumbent is played, ``(T,)``; 0 until then."""
        stopped: Tensor = self._now.state.own.stopped.clone()
        return stopped

    # -- one round -------------------------------------------------------------------

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Return the greatest improvement of the present step."""
        if asked.actions is not self.actions:
            raise CBanditError("ADMMBO chooses from its own set: no actions=")
        beliefs, own = state.beliefs, state.own
        trials = range(self._size)
        if asked.t == 1 or not all(beliefs.observed(i) for i in trials):
            return self._first(asked), state
        if not bool(own.going.any()):
            return self._play(_left(asked, own.incumbent)), state
        before = self._limits(max(asked.t - 1, 1))
        units = beliefs.units()
        before = level(units, before)
        own = self._advanced(beliefs, own, asked.t, before)
        best, here = best_so_far(beliefs, own.split, own.step, before)
        limit = of_step(level(units, self._limits(asked.t)), own.step)
        split, step = own.split, own.step
        if self.actions.continuous:
            tries, raw = self.num_restarts, self.raw_samples
            found = on_box(asked, beliefs, split, step, limit, best, tries, raw)
        else:
            found = on_set(asked, beliefs, split, step, limit, best, here)
        x = torch.where(own.going.unsqueeze(-1), found, own.incumbent)
        return self._play(x), state._replace(own=replace(own, done=own.done + 1))

    def _first(self, asked: Asked) -> Decision:
        """Return uniform actions, until every trial has seen every function."""
        count = asked.actions.dim if asked.actions.continuous else 1
        share = asked.streams.uniform(1 + count).reshape(self._size, -1)
        shares = share[:, 1:].to(self.device)
        found = torch.stack(
            [clear(asked, i, each) for i, each in enumerate(shares.unbind(0))]
        )
        if asked.actions.continuous:
            return Decision(None, x=found.to(self.dtype), sure=True)
        return Decision(found, sure=True)

    def _play(self, x: Tensor) -> Decision:
        x = x.to(self.dtype)
        if self.actions.continuous:
            return Decision(None, x=x, sure=True)
        return Decision(self.actions.index(x), sure=True)

    def _advanced(
        self, beliefs: Any, own: Progress, t: int, limits: Tensor
    ) -> Progress:
        """Return the next step, and the next iteration, where a budget is used up."""
        step, going = own.step, own.going
        budget = (self.cost_budgets if step else self.budgets)[min(own.iteration, 1)]
        if own.done < budget:
            return own
        _, found = best_so_far(beliefs, own.split, step, limits)
        split = own.split.stepped(step, found, going)
        if step < self.m:
            return replace(own, split=split, step=step + 1, done=0)
        small, last = self.tolerance * self._diagonal, own.iteration + 1
        primal, dual = split.residuals()
        ends = (primal <= small) & (dual <= small) | (last >= self.iterations)
        ends &= going
        best = deployed(beliefs, limits)
        incumbent = torch.where(ends.unsqueeze(-1), best, own.incumbent)
        stopped = torch.where(ends, t, own.stopped)
        return Progress(split.iterated(going), incumbent, stopped, last)


def _left(asked: Asked, x: Tensor) -> Tensor:
    """Return an incumbent ``(T, d)``, an error where it has failed or may not be."""
    if asked.barred is not None:
        gone = bool(asked.barred.holds(x).any())
    elif asked.mask is not None:
        at = asked.actions.index(x.to(asked.actions.extent())).unsqueeze(-1)
        gone = not bool(asked.mask.expand(len(at), -1).gather(-1, at).all())
    else:
        gone = False
    if gone:
        raise CBanditError(
            "ADMMBO has ended, and what it found has failed or among leaves it out"
        )
    return x
