"""The best feasible action of a finite set."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cbandit import scores
from cbandit.errors import CBanditError
from cbandit.posterior.look import Best, Score

LEAST = scores.LeastViolating()


def best_feasible(
    search: Callable[[scores.Formed | Score], Best],
    least: scores.Formed | Score = LEAST,
) -> tuple[Best, Tensor]:
    """Find the greatest ``f`` where every ``g <= 0``, or else the least ``g``.

    In trials without a feasible action, a second search finds the best one under
    ``least``.

    Args:
        search: returns the best action under a score.
        least: the score for trials without a feasible action; by default
            ``-max_j g_j``.

    Returns:
        The best actions, and which trials ``(T,)`` had no feasible one.
    """
    best = search(scores.Feasible())
    if all(map(math.isfinite, best.read())):
        return best, torch.zeros_like(best.value, dtype=torch.bool)
    infeasible = best.value.isneginf()
    low = search(least)
    chosen = low.where(infeasible, best)
    if not all(map(math.isfinite, chosen.read())):
        raise CBanditError(
            "the estimates are not finite numbers at any allowed action; look at "
            "policy.posterior()"
        )
    return chosen, infeasible
