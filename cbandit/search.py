"""The best action under a score."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit.errors import CBanditError
from cbandit.lp import best_policy

__all__ = ["Best", "Score", "best_policy", "maximise"]

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
            if not float(value) > float(best.value):
                continue
            best = None
        at = place[:, None, None].expand(-1, estimate.shape[1], 1)
        here = estimate.gather(-1, at).squeeze(-1)
        index = place + start
        if best is None:
            best = Best(value, index, here[:, 0], here[:, 1:])
            continue
        better = value > best.value
        best = Best(
            torch.where(better, value, best.value),
            torch.where(better, index, best.index),
            torch.where(better, here[:, 0], best.f),
            torch.where(better.unsqueeze(-1), here[:, 1:], best.g),
        )
    if best is None:
        raise CBanditError("actions must hold at least one action; got none")
    return best
