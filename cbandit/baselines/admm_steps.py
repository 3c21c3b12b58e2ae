"""How ADMMBO's steps take turns: budgets, iterations, and when a trial stops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.baselines.admm import Split
from cbandit.baselines.admm_search import best_so_far, deployed
from cbandit.errors import CBanditError

__all__ = ["Progress", "evaluations"]


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

    @classmethod
    def start(cls, split: Split) -> Progress:
        """Return the start of the first iteration."""
        stopped = torch.zeros(len(split.x), dtype=torch.long, device=split.x.device)
        return cls(split, split.x, stopped)

    @property
    def going(self) -> Tensor:
        """Trials that have not stopped, ``(T,)``."""
        return self.stopped == 0

    def advanced(self, policy: Any, beliefs: Any, t: int, limits: Tensor) -> Progress:
        """Return the next step, and the next iteration, where a budget is used up.

        Args:
            policy: whose budgets and tolerance they are.
            beliefs: about reward and costs.
            t: this round.
            limits: the thresholds of the round before, ``(T, m)``.
        """
        step, going = self.step, self.going
        budgets = policy.cost_budgets if step else policy.budgets
        if self.done < budgets[min(self.iteration, 1)]:
            return self
        _, found = best_so_far(beliefs, self.split, step, limits)
        split = self.split.stepped(step, found, going)
        if step < policy.m:
            return replace(self, split=split, step=step + 1, done=0)
        last, (primal, dual) = self.iteration + 1, split.residuals()
        small = (primal <= policy._small) & (dual <= policy._small)
        ends = going & (small | (last >= policy.iterations))
        best = deployed(beliefs, limits).where(ends.unsqueeze(-1), self.incumbent)
        stopped = torch.where(ends, t, self.stopped)
        return Progress(split.iterated(going), best, stopped, last)


def evaluations(name: str, budgets: Any) -> tuple[int, int]:
    """Return a step's budget in the first iteration, and in those that follow."""
    if not isinstance(budgets, tuple | list) or len(budgets) != 2:
        raise CBanditError(f"{name} must be two positive ints; got {budgets!r}")
    first, later = (checks.whole(name, n, 1, "two positive ints") for n in budgets)
    return first, later
