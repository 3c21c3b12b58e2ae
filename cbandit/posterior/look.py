"""A round's question and its answer: :class:`Look` in, :class:`Best` out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.peaks import argmax
from cbandit.errors import CBanditError
from cbandit.explore import clip, estimates
from cbandit.scores import (
    least_violating,
    optimistic_feasible,
    primal_dual,
    rectified,
)
from cbandit_kernels import SCORES, Look

__all__ = [
    "SHORT",
    "Best",
    "Look",
    "Running",
    "Scan",
    "Score",
    "among",
    "estimated",
    "maximise",
    "scan",
    "scorer",
]

SHORT = 1 << 15  # up to this length one pass for maximum and place is as fast as two

Score = Callable[[Tensor, Tensor], Tensor]
"""``(f (T, n), g (T, m, n)) -> (T, n)``; see :mod:`cbandit.scores`."""


@dataclass
class Best:
    """The best action so far, lowest number on ties, with the estimates there.

    Args:
        value: its score, ``(T,)``; minus infinity where no action was allowed.
        index: its number, ``(T,)``; ``None`` on a box.
        estimate: of the reward and the costs, less thresholds, ``(T, 1 + m)``.
        x: the action itself on a box, ``(T, d)``.
        keys: its number, or on a box its coordinates, of each trial, on the host.
    """

    value: Tensor
    index: Tensor | None
    estimate: Tensor
    x: Tensor | None = None
    keys: list[Any] | None = None

    @property
    def f(self) -> Tensor:
        """The reward's estimate, ``(T,)``."""
        return self.estimate[:, 0]

    @property
    def g(self) -> Tensor:
        """The costs' estimates, less their thresholds, ``(T, m)``."""
        return self.estimate[:, 1:]

    def read(self) -> list[float]:
        """Copy scores and ``keys`` to the host; return the scores.

        A round waits for its device here, and nowhere else.
        """
        place = self.x if self.index is None else self.index
        if place is None:
            raise CBanditError("a best action needs a number or a point; got neither")
        value = self.value
        if value.is_cuda:
            value, place = devices.host(value, place)
        keys = place.tolist()
        self.keys = keys if self.x is None else [tuple(row) for row in keys]
        return value.tolist()


def estimated(look: Look, mean: Tensor, spread: Tensor) -> Tensor:
    """This round's estimates ``(T, F, n)`` of a stretch, offset and clip included."""
    estimate = estimates(mean, spread, look.coefficient)
    if look.offset is not None:
        estimate += look.offset.to(estimate).unsqueeze(-1)
    if look.bound is None:
        return estimate
    return clip(estimate, look.bound.to(estimate).unsqueeze(-1))


def scorer(look: Look) -> Score:
    """The look's score as a function of ``f (T, n)`` and ``g (T, m, n)``."""
    score, weight = look.score, look.weight
    if not isinstance(score, str):
        return score
    if score == "feasible":
        return optimistic_feasible
    if score == "least":
        return lambda f, g: least_violating(g)
    if score not in SCORES:
        raise CBanditError(
            f"score must be a function or one of {SCORES}; got {score!r}"
        )
    if weight is None:
        return lambda f, g: f
    form = rectified if score == "rectified" else primal_dual
    return lambda f, g: form(f, g, weight.to(f))


class Scan:
    """The best action under a look, stretch after stretch, in plain torch.

    Args:
        look: the score, and which estimates it is of.
    """

    __slots__ = ("_best", "_look")

    def __init__(self, look: Look) -> None:
        self._look, self._best = look, Running(scorer(look), look.mask)

    def add(self, start: int, mean: Tensor, spread: Tensor) -> None:
        """A stretch from action ``start`` on: means ``(T, F, n)``, and their spread."""
        estimate, beside = estimated(self._look, mean, spread), self._look.beside
        if beside is not None:
            known = beside[..., start : start + estimate.shape[-1]]
            estimate = torch.cat([estimate, known.to(estimate)], 1)
        self._best.add(start, estimate)

    def best(self, ranks: Ranks = ALONE) -> Best:
        """The best of all stretches, and of all ``ranks`` that share the set."""
        return self._best.best(ranks)


class Running:
    """The action of greatest score so far.

    Args:
        score: the score to maximise.
        mask: ``(1 or T, N)``, the actions allowed.
    """

    __slots__ = ("_best", "_mask", "_score")

    def __init__(self, score: Score, mask: Tensor | None = None) -> None:
        self._score, self._mask = score, mask
        self._best: Best | None = None

    def add(self, start: int, estimate: Tensor) -> None:
        """A stretch from action ``start`` on: ``(T, F, n)``, the reward first."""
        f, g = estimate.select(1, 0), estimate.narrow(1, 1, estimate.shape[1] - 1)
        values, best = self._score(f, g), self._best
        if self._mask is not None:
            stop = start + values.shape[-1]
            values = values.masked_fill(~self._mask[:, start:stop], -torch.inf)
        if len(values) == 1 and not values.is_cuda:
            # comparing is cheap on the CPU: a worse stretch needs no place
            long = values.numel() > SHORT
            value, place = (values.amax(-1), None) if long else values.max(-1)
            if best is None or _beats(value, best.value):
                place = argmax(values) if place is None else place
                here = estimate.select(-1, int(place))
                index = place + start if start else place
                self._best = Best(value, index, here)
            return
        value, place = values.max(-1)
        at = place[:, None, None].expand(-1, estimate.shape[1], 1)
        here = estimate.gather(-1, at).squeeze(-1)
        index = place + start
        if best is None:
            self._best = Best(value, index, here)
            return
        better = _beats(value, best.value)
        self._best = Best(
            torch.where(better, value, best.value),
            index if best.index is None else torch.where(better, index, best.index),
            torch.where(better.unsqueeze(-1), here, best.estimate),
        )

    def best(self, ranks: Ranks = ALONE) -> Best:
        """The best of all stretches, and of all ``ranks`` that share the set."""
        if self._best is None:
            raise CBanditError("actions must hold at least one action; got none")
        return self._best if ranks.size == 1 else among(self._best, ranks)


def scan(
    stretches: Iterable[tuple[int, Tensor, Tensor]], look: Look, ranks: Ranks = ALONE
) -> Best:
    """The best action under a look.

    Args:
        stretches: the first action's number, means ``(T, F, n)`` and what is spread
            around them, ``(T, 1 or F, n)``.
        look: the score, and which estimates it is of.
        ranks: the processes that share the set; the stretches are this one's.
    """
    running = Scan(look)
    for start, mean, spread in stretches:
        running.add(start, mean, spread)
    return running.best(ranks)


def maximise(
    stretches: Iterable[tuple[int, Tensor]],
    score: Score,
    mask: Tensor | None = None,
    ranks: Ranks = ALONE,
) -> Best:
    """The action of greatest score over a set seen in stretches.

    Args:
        stretches: the first action's number and estimates ``(T, F, n)``, reward first.
        score: the score to maximise.
        mask: ``(1 or T, N)``, the actions allowed.
        ranks: the processes that share the set; the stretches are this one's.
    """
    running = Running(score, mask)
    for start, estimate in stretches:
        running.add(start, estimate)
    return running.best(ranks)


def _beats(value: Tensor, best: Tensor) -> Tensor:
    # NaN wins, so that the caller's check finds it
    return (value > best) | value.isnan()


def among(best: Best, ranks: Ranks) -> Best:
    """The best of all ranks' candidates, on every rank."""
    if best.index is None:
        raise CBanditError("ranks share numbered actions; got a point of a box")
    numbers = torch.cat([best.value.unsqueeze(-1), best.estimate], -1)
    index, numbers = ranks.candidates(best.index, numbers)
    value = numbers[..., 0]
    # a later rank's actions have higher numbers: it must do better, not as well
    chosen = torch.zeros_like(index[0])
    for rank in range(1, ranks.size):
        so_far = value.gather(0, chosen.unsqueeze(0)).squeeze(0)
        chosen = torch.where(_beats(value[rank], so_far), rank, chosen)
    trial = torch.arange(len(chosen), device=chosen.device)
    found = numbers[chosen, trial]
    return Best(found[:, 0], index[chosen, trial], found[:, 1:])
