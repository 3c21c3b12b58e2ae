"""The best action under a score."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit import scores
from cbandit.errors import CBanditError
from cbandit.lp import best_policy

__all__ = ["Best", "Score", "best_feasible", "best_policy", "maximise"]

Score = Callable[[Tensor, Tensor], Tensor]
"""``(f (T, n), g (T, m, n)) -> (T, n)``; see :mod:`cbandit.scores`."""


@dataclass
class Best:
    """The best action so far, lowest number on ties, with what is estimated there.

    Args:
        value: its score, ``(T,)``; minus infinity where no action was allowed.
        index: its number, ``(T,)``.
        f: the reward's estimate, ``(T,)``.
        g: the costs' estimates, less their thresholds, ``(T, m)``.
    """

    value: Tensor
    index: Tensor
    f: Tensor
    g: Tensor


def _beats(value: Tensor, best: Tensor) -> Tensor:
    # what is not a number is kept, for the caller to see
    return (value > best) | value.isnan()


def maximise(
    stretches: Iterable[tuple[int, Tensor]], score: Score, mask: Tensor | None = None
) -> Best:
    """The action of greatest score over a set seen in stretches.

    Args:
        stretches: the first action's number and estimates ``(T, F, n)``, reward first.
        score: what to maximise.
        mask: ``(1 or T, N)``, the actions allowed.
    """
    best: Best | None = None
    for start, estimate in stretches:
        f, g = estimate[:, 0], estimate[:, 1:]
        values = score(f, g)
        if mask is not None:
            stop = start + values.shape[-1]
            values = values.masked_fill(~mask[:, start:stop], -torch.inf)
        value, place = values.max(-1)
        if best is not None and len(value) == 1 and not value.is_cuda:
            # on the CPU one comparison saves the look at a worse stretch
            if not _beats(value, best.value):
                continue
            best = None
        at = place[:, None, None].expand(-1, estimate.shape[1], 1)
        here = estimate.gather(-1, at).squeeze(-1)
        index = place + start
        if best is None:
            best = Best(value, index, here[:, 0], here[:, 1:])
            continue
        better = _beats(value, best.value)
        best = Best(
            torch.where(better, value, best.value),
            torch.where(better, index, best.index),
            torch.where(better, here[:, 0], best.f),
            torch.where(better.unsqueeze(-1), here[:, 1:], best.g),
        )
    if best is None:
        raise CBanditError("actions must hold at least one action; got none")
    return best


def best_feasible(
    stretches: Callable[[], Iterable[tuple[int, Tensor]]], mask: Tensor | None = None
) -> tuple[Best, Tensor]:
    """The greatest ``f`` where every ``g <= 0``; where there is none, the least ``g``.

    In trials without such an action, told by the second answer ``(T,)``, the action of
    least ``max_j g_j`` is found, by a second sweep that is made for them alone.
    """
    best = maximise(stretches(), scores.optimistic_feasible, mask)
    if bool(best.value.isfinite().all()):
        return best, torch.zeros_like(best.value, dtype=torch.bool)
    infeasible = best.value.isneginf()
    least = maximise(stretches(), lambda f, g: scores.least_violating(g), mask)
    found = torch.where(infeasible, least.value, best.value)
    if not bool(found.isfinite().all()):
        raise CBanditError(
            "the estimates are not finite numbers at any allowed action; look at "
            "policy.posterior()"
        )
    both = Best(
        found,
        torch.where(infeasible, least.index, best.index),
        torch.where(infeasible, least.f, best.f),
        torch.where(infeasible.unsqueeze(-1), least.g, best.g),
    )
    return both, infeasible
