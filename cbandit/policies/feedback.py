"""When feedback counts: at once, within a window, or from the choice on.

Each kind turns news into beliefs by functions of values: ``absorb`` when feedback
comes, ``due`` before the next round. The one that counts choices has ``stood`` too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.beliefs.feedback import Delayed, Sliding
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

    def width(self, t: int, widths: BoundWidths, both: Both, chances: int) -> Tensor:
        """Return the widths ``(T, F)`` of round ``t``."""
        return _widths(t, widths, both, chances)

    def chances(self, functions: int) -> int:
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

    def __init__(
        self, feedback: Sliding, size: int, device: torch.device, horizon: int | None
    ) -> None:
        self._window, self._size, self._device = feedback.window, size, device
        self._horizon = horizon

    def absorb(self, both: Both, news: News, place: Place, t: int) -> Both:
        """Return the beliefs with the news of rounds in the window."""
        (beliefs, held), (parts, _) = both, parts_of(news, self._size)
        if place.t < t + 1 - self._window:
            came = sum(torch.tensor(part[2]) for part in parts)
            late = held.late + devices.put(came, self._device)
            return beliefs, held._replace(late=late)
        return beliefs.absorb(place.keys, place.x, parts, place.t), held

    def width(self, t: int, widths: BoundWidths, both: Both, chances: int) -> Tensor:
        """Return the widths ``(T, F)`` of round ``t``."""
        if self._horizon is None and widths.rkhs_parts():
            raise CBanditError(
                "RKHS widths hold for horizon= rounds with feedback=cb.Sliding(...), "
                "each with a window of its own: give the policy horizon="
            )
        return _widths(t, widths, both, chances)

    def chances(self, functions: int) -> int:
        """Return how many bounds hold together: each round has a window of its own."""
        return functions * (self._horizon or 1)

    def due(self, both: Both, t: int) -> Both:
        """Return the beliefs without rounds that have left the window."""
        beliefs, held = both
        return beliefs.expire(t + 1 - self._window, self._window), held


class Awaited:
    """A choice counts when it is made; what comes within a window is filled in.

    The width is ``v_t = beta_t + B_r sum_s sigma_t(x_s)`` over the last ``window``
    choices ``x_s``.
    """

    def __init__(
        self,
        feedback: Delayed,
        batch_shape: tuple[int, ...],
        device: torch.device,
        horizon: int | None,
    ) -> None:
        self._window, self._weight = feedback.window, feedback.weight
        self._batch, self._device, self._horizon = batch_shape, device, horizon
        # whether outstanding choices add nothing, which is then not computed
        given = feedback.weight
        self._weightless = given is not None and not bool(given.any())

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

    def chances(self, functions: int) -> int:
        """Return how many bounds hold together: two a function."""
        return 2 * functions

    def width(self, t: int, widths: BoundWidths, both: Both, chances: int) -> Tensor:
        """Return the widths ``(T, F)`` of round ``t``, outstanding choices counted.

        Those of the theory have ``R + B_r`` in place of ``R``.
        """
        beliefs, held = both
        width = _widths(t, widths, both, chances)
        weight, theory = self._weight_of(widths, width), widths.rkhs_parts()
        if theory:
            width = width.clone()
        for part, at in theory:
            gains, noises = beliefs.gains()[:, at], beliefs.noises()[:, at]
            spread = part.subgaussian + weight[:, at]
            width[:, at] = part.rkhs(t, gains, chances, noises, part.norm, spread)
        idle = self._weightless or (self._weight is None and not theory)
        if idle or not held.recent:
            return width
        std: Tensor = beliefs.deviations(torch.stack(list(held.recent), 1))
        return width + weight * std.sum(-1)

    def _weight_of(self, widths: BoundWidths, width: Tensor) -> Tensor:
        """Return ``B_r``, ``(T, F)``: as given, or the theory's."""
        if self._weight is not None:
            shaped = checks.per_cost(
                "weight", self._weight, self._batch, width.shape[-1]
            )
            return devices.put(shaped, self._device)
        weight = torch.zeros_like(width)
        for part, at in widths.rkhs_parts():
            if self._horizon is None:
                raise CBanditError(
                    "Delayed's weight is B + R sqrt(2 ln T) by the theory: give "
                    "the policy horizon=, or Delayed(window, weight=)"
                )
            root = math.sqrt(2 * math.log(max(self._horizon, 2)))
            weight[:, at] = part.norm + part.subgaussian * root
        return weight


def _widths(t: int, widths: BoundWidths, both: Both, chances: int) -> Tensor:
    if widths.fixed is not None:
        return widths.fixed
    beliefs = both[0]
    return widths(t, beliefs.gains(), beliefs.noises, chances)


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
        return Windowed(feedback, size, device, horizon)
    return AtOnce(size, device)
