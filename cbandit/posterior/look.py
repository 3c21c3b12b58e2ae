"""Find the best action of a set: a :class:`Look` asks, a :class:`Best` answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.peaks import first_reaching
from cbandit.errors import CBanditError
from cbandit.explore import clip, estimates
from cbandit_kernels import SCORES, Found, Look
from cbandit_kernels.scores import score_ref

Score = Callable[[Tensor, Tensor], Tensor]
"""``(f (T, n), g (T, m, n)) -> (T, n)``; see :mod:`cbandit.scores`."""

Reach = Callable[[Tensor], Tensor]
"""Returns the least score ``(T,)`` that counts as equal to the greatest ``(T,)``."""


@dataclass
class Block:
    """A block of ``n`` actions, ``start .. stop - 1``, in ``T`` trials.

    Args:
        start: the first action.
        stop: one past the last action.
        mean: posterior means of ``F`` functions, ``(T, F, n)``.
        std: their standard deviations, ``(T, 1 or F, n)``; ``None`` if only a draw was
            asked for.
        draw: a draw of the functions less their means, ``(T, F, n)``, if asked for.
    """

    start: int
    stop: int
    mean: Tensor
    std: Tensor
    draw: Tensor | None = None

    @property
    def spread(self) -> Tensor:
        """The draw less its mean, or the standard deviations if there is no draw."""
        return self.std if self.draw is None else self.draw


@dataclass
class Best:
    """The best action: the first one whose score is within tolerance of the largest.

    Args:
        value: the largest score, ``(T,)``; minus infinity if no action was allowed,
            plus infinity if a score is not a number.
        index: the action's number, ``(T,)``; ``None`` on a box.
        estimate: of reward and costs there, less thresholds, ``(T, 1 + m)``.
        x: the action itself on a box, ``(T, d)``.
        keys: for each trial its number, or on a box its coordinates, on the host.
    """

    value: Tensor
    index: Tensor | None
    estimate: Tensor
    x: Tensor | None = None
    keys: list[Hashable] | None = None

    def where(self, chosen: Tensor, other: Best) -> Best:
        """Return this action in the trials ``chosen (T,)``, ``other`` elsewhere.

        Both are numbered actions, or both are points of a box.
        """
        index = x = None
        column = chosen.unsqueeze(-1)
        if self.index is not None and other.index is not None:
            index = torch.where(chosen, self.index, other.index)
        elif self.x is not None and other.x is not None:
            x = torch.where(column, self.x, other.x)
        else:
            raise CBanditError("a numbered action does not go with a point of a box")
        return Best(
            torch.where(chosen, self.value, other.value),
            index,
            torch.where(column, self.estimate, other.estimate),
            x,
        )

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

        This is the only place where a round waits for its device.
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
    """Return estimates ``(T, F, n)``, with the look's offset and clipping."""
    estimate = estimates(mean, spread, look.coefficient)
    if look.link is not None:
        estimate = look.link(estimate)
    if look.offset is not None:
        estimate += look.offset.to(estimate).unsqueeze(-1)
    if look.bound is None:
        return estimate
    return clip(estimate, look.bound.to(estimate).unsqueeze(-1))


def scorer(look: Look) -> Score:
    """Return the look's score as a function of ``f (T, n)`` and ``g (T, m, n)``."""
    if not callable(look.score) and look.score not in SCORES:
        raise CBanditError(
            f"score must be a function or one of {SCORES}; got {look.score!r}"
        )
    return lambda f, g: score_ref(f, g, look)


class _Stretch(NamedTuple):
    """A stretch that may hold the best action, with its scores and estimates."""

    start: int
    peak: Tensor
    values: Tensor
    estimate: Tensor

    def first(self, reach: Tensor) -> Best:
        """Return its first action whose score is at least ``reach (T,)``."""
        place = first_reaching(self.values, reach.minimum(self.peak))
        at = place.view(-1, 1, 1).expand(-1, self.estimate.shape[1], 1)
        estimate = self.estimate.gather(-1, at).squeeze(-1)
        return Best(self.peak, place + self.start, estimate)


class Running:
    """A running search for the first action whose score ties with the greatest.

    The answer does not depend on how the set is cut into stretches. For this, each
    stretch is kept whose greatest score exceeds all earlier ones and may still tie in
    the end; mostly that is one stretch.

    Args:
        score: the score to maximise.
        mask: ``(1 or T, N)``, the actions allowed.
        tolerance: ``(T,)``, in the score's unit; ``None``: 0.
    """

    def __init__(
        self,
        score: Score,
        mask: Tensor | None = None,
        tolerance: Tensor | None = None,
    ) -> None:
        self._score, self._mask, self._tolerance = score, mask, tolerance
        self._held: list[_Stretch] = []
        self._top: Tensor | None = None

    def add(self, start: int, estimate: Tensor) -> None:
        """Score a stretch from action ``start`` on, given estimates ``(T, F, n)``."""
        f, g = estimate.select(1, 0), estimate.narrow(1, 1, estimate.shape[1] - 1)
        values = self._score(f, g)
        if self._mask is not None:
            stop = start + values.shape[-1]
            values = values.masked_fill(~self._mask[:, start:stop], -torch.inf)
        # NaN wins, so that the caller's check finds it
        peak = values.amax(-1).nan_to_num(torch.inf, torch.inf, -torch.inf)
        if self._top is None:
            self._top = peak
        elif bool((peak > self._top).any()):
            self._top = peak.maximum(self._top)
            reach = self.reach(self._top)
            self._held = [s for s in self._held if bool((s.peak >= reach).any())]
        else:
            return  # an earlier stretch is at least as good in every trial
        self._held.append(_Stretch(start, peak, values, estimate))

    def best(self, ranks: Ranks = ALONE) -> Best:
        """Return the best action of all stretches, and of all ``ranks``."""
        if self._top is None:
            raise CBanditError("actions must hold at least one action; got none")
        best = self.first(self.reach(self._top))
        best.value = self._top
        if ranks.size == 1:
            return best
        return among(best, ranks, self.reach, self.first)

    def reach(self, top: Tensor) -> Tensor:
        """Return the least score that counts as equal to the greatest, ``(T,)``."""
        return top if self._tolerance is None else top - self._tolerance.to(top)

    def first(self, reach: Tensor) -> Best:
        """Return the first action whose score is at least ``reach (T,)``."""
        *earlier, last = self._held
        best = last.first(reach)
        for stretch in reversed(earlier):
            best = stretch.first(reach).where(stretch.peak >= reach, best)
        return best


def scan(
    stretches: Iterable[tuple[int, Tensor, Tensor]], look: Look, ranks: Ranks = ALONE
) -> Best:
    """Return the best action under a look.

    Args:
        stretches: each one's first action number, means ``(T, F, n)``, and deviations
            ``(T, 1 or F, n)`` or draws around the means.
        look: the score, and how its estimates are made.
        ranks: the processes that share the set; the stretches are of this one's part.
    """
    running = Running(scorer(look), look.mask, look.tolerance)
    for start, mean, spread in stretches:
        estimate = estimated(look, mean, spread)
        if look.beside is not None:
            costs = look.beside[..., start : start + estimate.shape[-1]]
            estimate = torch.cat([estimate, costs.to(estimate)], 1)
        running.add(start, estimate)
    return running.best(ranks)


def maximise(
    stretches: Iterable[tuple[int, Tensor]],
    score: Score,
    mask: Tensor | None = None,
    tolerance: Tensor | None = None,
) -> Best:
    """Return the action of greatest score over the stretches of a set.

    Args:
        stretches: each one's first action number and estimates ``(T, F, n)``, reward
            first.
        score: the score to maximise.
        mask: ``(1 or T, N)``, the actions allowed.
        tolerance: ``(T,)``, see :class:`Running`.
    """
    running = Running(score, mask, tolerance)
    for start, estimate in stretches:
        running.add(start, estimate)
    return running.best()


def among(
    best: Best, ranks: Ranks, reach: Reach, again: Callable[[Tensor], Best]
) -> Best:
    """Return the best of all ranks' candidates, the same on every rank.

    Args:
        best: the best action of this rank's part of the set.
        ranks: the processes that share the set.
        reach: the least score that counts as equal to the greatest.
        again: scans this rank's part again; returns the first action whose score is at
            least its argument ``(T,)``.
    """

    def closer(chosen: Tensor, reach: Tensor) -> Found:
        mine = bool((chosen == ranks.rank).any())
        return _exchanged(again(reach) if mine else best, ranks)

    return first_of(_exchanged(best, ranks), reach, closer)


def first_of(
    parts: Found,
    reach: Reach,
    closer: Callable[[Tensor, Tensor], Found],
) -> Best:
    """Return the first candidate that ties with the greatest score of all parts.

    Each part has the first action that ties with its own greatest score. If a chosen
    part's greatest score is not the greatest of all, the part is scanned again.

    Args:
        parts: the candidates of ``R`` parts in order, ``(R, T)``.
        reach: the least score that counts as equal to the greatest.
        closer: scans the chosen parts ``(T,)`` again; returns the first actions whose
            scores are at least its second argument ``(T,)``.
    """
    top = parts.value.amax(0)
    least = reach(top)
    chosen = (parts.value >= least).to(torch.uint8).argmax(0)
    trial = torch.arange(len(chosen), device=chosen.device)
    if bool((parts.value[chosen, trial] < top).any()):
        parts = closer(chosen, least)
    return Best(top, parts.index[chosen, trial], parts.estimate[chosen, trial])


def _exchanged(best: Best, ranks: Ranks) -> Found:
    """Return the candidates of all ranks."""
    if best.index is None:
        raise CBanditError("ranks share numbered actions; got a point of a box")
    numbers = torch.cat([best.value.unsqueeze(-1), best.estimate], -1)
    index, numbers = ranks.candidates(best.index, numbers)
    return Found(numbers[..., 0], index, numbers[..., 1:])
