"""When feedback counts: at once, within a window, or from the choice on.

Each kind turns news into beliefs by functions of values: ``absorb`` when feedback
comes, ``due`` before the next round. The one that counts choices has ``stood`` too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.beliefs.feedback import Delayed, Sliding, delayed_width
from cbandit.confidence.bound import BoundWidths
from cbandit.errors import CBanditError
from cbandit.policies.ledger import News
from cbandit.policies.packing import Place, by_functions, packed, parts_of
from cbandit.posterior.parts import Part, joined

__all__ = ["Arrivals", "AtOnce", "Awaited", "Timing", "Windowed", "timing"]


class Arrivals(NamedTuple):
    """Traces of feedback beside the beliefs.

    Args:
        late: ``(T,)``, how many values came too late to count.
        loose: feedback of some trials only, which waits for the rest of the news.
        recent: the points ``(T, d)`` of the last rounds, where they still count.
    """

    late: Tensor
    loose: tuple[tuple[Place, Part], ...] = ()
    recent: tuple[Tensor, ...] = ()


Both = tuple[Any, Arrivals]
"""The beliefs and what is beside them."""


class AtOnce:
    """Feedback counts when it comes, and for good."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._device = size, device

    def absorb(self, both: Both, news: News, place: Place, t: int) -> Both:
        """Return the beliefs with the news; what some trials saw waits for the rest."""
        (beliefs, held), (parts, whole) = both, parts_of(news, self._size)
        if not whole:
            new = tuple((place, part) for part in joined(parts))
            return beliefs, held._replace(loose=held.loose + new)
        return beliefs.absorb(place.keys, place.x, parts, place.t), held

    def widened(self, width: Tensor, *rest: Any) -> Tensor:
        """Return widths as they are."""
        return width

    def chances(self, functions: int, horizon: int | None) -> int:
        """Return how many bounds hold together: one a function."""
        return functions

    def due(self, both: Both, t: int) -> Both:
        """Return the beliefs with what waited.

        Each trial may be at another round in one of the observations: where delays
        differ from trial to trial, dozens of rounds make a handful of them.
        """
        beliefs, held = both
        if not held.loose:
            return both
        for row in packed(held.loose, self._size):
            part = (row.functions, row.values, row.wanted, row.noise)
            beliefs = beliefs.absorb(row.keys, row.x, [part], row.t)
        return beliefs, held._replace(loose=())


class Windowed:
    """Feedback counts for a window of rounds."""

    def __init__(self, feedback: Sliding, size: int, device: torch.device) -> None:
        self._window, self._size, self._device = feedback.window, size, device

    def absorb(self, both: Both, news: News, place: Place, t: int) -> Both:
        """Return the beliefs with the news of rounds in the window."""
        (beliefs, held), (parts, _) = both, parts_of(news, self._size)
        if place.t < t + 1 - self._window:
            came = sum(torch.tensor(part[2]) for part in parts)
            late = held.late + devices.put(came, self._device)
            return beliefs, held._replace(late=late)
        return beliefs.absorb(place.keys, place.x, parts, place.t), held

    def widened(self, width: Tensor, *rest: Any) -> Tensor:
        """Return widths as they are."""
        return width

    def chances(self, functions: int, horizon: int | None) -> int:
        """Return how many bounds hold together: each round has a window of its own."""
        return functions if horizon is None else functions * horizon

    def due(self, both: Both, t: int) -> Both:
        """Return the beliefs without rounds that have left the window."""
        beliefs, held = both
        return beliefs.expire(t + 1 - self._window, self._window), held


class Awaited:
    """A choice counts when it is made; what comes within a window is filled in."""

    def __init__(
        self,
        feedback: Delayed,
        batch_shape: tuple[int, ...],
        device: torch.device,
        horizon: int | None,
    ) -> None:
        self._window, self._weight = feedback.window, feedback.weight
        self._batch, self._device, self._horizon = batch_shape, device, horizon

    def stood(self, both: Both, place: Place, limits: Tensor) -> Both:
        """Return the beliefs with a choice whose outcome is waited for."""
        beliefs, held = both
        beliefs = beliefs.await_feedback(place.keys, place.x, place.t, limits)
        recent = (*held.recent, place.x.double())[-self._window :]
        return beliefs, held._replace(recent=recent)

    def absorb(self, both: Both, news: News, place: Place, t: int) -> Both:
        """Return the beliefs with what came in time filled in."""
        beliefs, late = both[0], both[1].late
        for told, functions in by_functions(news):
            mask = told.mask()
            if told.at - place.t > self._window:
                late = late + mask
            else:
                beliefs = beliefs.fill(place.t, functions, told.values, mask)
        return beliefs, both[1]._replace(late=late)

    def due(self, both: Both, t: int) -> Both:
        """Return the beliefs, no longer waiting for rounds before the window."""
        return both[0].stop_waiting(t - self._window), both[1]

    def chances(self, functions: int, horizon: int | None) -> int:
        """Return how many bounds hold together: one a function."""
        return functions

    def widened(
        self, width: Tensor, widths: BoundWidths, beliefs: Any, recent: Sequence[Tensor]
    ) -> Tensor:
        """Return widths ``(T, F)`` that count outstanding rounds' deviations."""
        gains, given, horizon = beliefs.gains(), self._weight, self._horizon
        weight, counts = torch.zeros_like(width), True
        if given is not None:
            shaped = checks.per_cost("weight", given, self._batch, width.shape[-1])
            weight = devices.put(shaped, self._device)
            counts = bool(shaped.any())
        for part, columns in widths.rkhs_parts():
            norm, r = part.norm, part.subgaussian
            if given is None:
                if horizon is None:
                    raise CBanditError(
                        "Delayed's weight is B + R sqrt(2 ln T) by the theory: give "
                        "the policy horizon=, or Delayed(window, weight=)"
                    )
                weight[:, columns] = norm + r * math.sqrt(2 * math.log(max(horizon, 2)))
            width = width.clone()
            width[:, columns] = delayed_width(
                part.rkhs, norm, r, gains[:, columns], weight[:, columns]
            )
        if not counts or not recent:
            return width
        std: Tensor = beliefs.deviations(torch.stack(list(recent), 1))
        return width + weight * std.sum(-1)


Timing = AtOnce | Windowed | Awaited


def timing(
    feedback: Delayed | Sliding | None,
    batch_shape: tuple[int, ...],
    device: torch.device,
    horizon: int | None,
) -> Timing:
    """Return when feedback counts, for what a user gives as ``feedback``."""
    size = batch_shape[0] if batch_shape else 1
    if isinstance(feedback, Delayed):
        return Awaited(feedback, batch_shape, device, horizon)
    if isinstance(feedback, Sliding):
        return Windowed(feedback, size, device)
    return AtOnce(size, device)
