"""When feedback counts: at once, within a window, or from the choice on.

Each kind turns news into beliefs by three functions of values: ``stood`` when a choice
is made, ``absorb`` when feedback of it comes, ``due`` before the next round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.beliefs.feedback import Delayed, Sliding, delayed_width
from cbandit.confidence.bound import BoundWidths
from cbandit.errors import CBanditError
from cbandit.policies.ledger import News, Told
from cbandit.posterior.beliefs import Part, joined

__all__ = ["Arrivals", "AtOnce", "Awaited", "Place", "Timing", "Windowed", "timing"]


class Place(NamedTuple):
    """Where a choice is: the actions' names and points ``(T, d)``, and its round."""

    keys: list[Any]
    x: Tensor
    t: int


class Arrivals(NamedTuple):
    """What feedback leaves behind beside the beliefs.

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

    def stood(self, both: Both, place: Place, limits: Tensor) -> Both:
        """Return what a choice changes: nothing."""
        return both

    def absorb(self, both: Both, news: News, place: Place, t: int) -> Both:
        """Return the beliefs with the news; what some trials saw waits for the rest."""
        (beliefs, held), parts = both, _parts(news, self._size)
        if any(not all(part[2]) for part in parts):
            new = tuple((place, part) for part in joined(parts))
            return beliefs, held._replace(loose=held.loose + new)
        return beliefs.absorb(place.keys, place.x, parts, place.t), held

    def due(self, both: Both, t: int) -> Both:
        """Return the beliefs with what waited.

        Each trial may be at another round in one of the observations: where delays
        differ from trial to trial, dozens of rounds make a handful of them.
        """
        beliefs, held = both
        if not held.loose:
            return both
        for row in _packed(held.loose, self._size):
            part = (row.functions, row.values, row.wanted, row.noise)
            beliefs = beliefs.absorb(row.keys, row.x, [part], row.t)
        return beliefs, held._replace(loose=())


class Windowed:
    """Feedback counts for a window of rounds."""

    def __init__(self, feedback: Sliding, size: int, device: torch.device) -> None:
        self._window, self._size, self._device = feedback.window, size, device

    def stood(self, both: Both, place: Place, limits: Tensor) -> Both:
        """Return what a choice changes: nothing."""
        return both

    def absorb(self, both: Both, news: News, place: Place, t: int) -> Both:
        """Return the beliefs with the news of rounds in the window."""
        (beliefs, held), parts = both, _parts(news, self._size)
        if place.t < t + 1 - self._window:
            came = sum(torch.tensor(part[2]) for part in parts)
            late = held.late + devices.put(came, self._device)
            return beliefs, held._replace(late=late)
        return beliefs.absorb(place.keys, place.x, parts, place.t), held

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
        for told, functions in _by_functions(news):
            mask = told.mask()
            if told.at - place.t > self._window:
                late = late + mask
            else:
                beliefs = beliefs.fill(place.t, functions, told.values, mask)
        return beliefs, both[1]._replace(late=late)

    def due(self, both: Both, t: int) -> Both:
        """Return the beliefs, no longer waiting for rounds before the window."""
        return both[0].stop_waiting(t - self._window), both[1]

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


def _by_functions(news: News) -> list[tuple[Told, list[int]]]:
    """Return what was told and of which functions: 0 is the reward, then the costs."""
    out = [(told, [0]) for told in news.rewards]
    if news.costs:
        m = news.costs[0].values.shape[-1]
        out += [(told, list(range(1, m + 1))) for told in news.costs]
    return out


def _parts(news: News, size: int) -> list[Part]:
    """Return the news as beliefs take them in."""
    every = [True] * size
    news = news._replace(rewards=_pieced(news.rewards), costs=_pieced(news.costs))
    return [
        (
            functions,
            told.values,
            every if told.where is None else told.where.tolist(),
            told.noise,
        )
        for told, functions in _by_functions(news)
    ]


def _pieced(news: Sequence[Told]) -> Sequence[Told]:
    """Return what came to some trials now and to others then as one."""
    if len(news) < 2 or any(t.where is None or t.noise is not None for t in news):
        return news
    values, where = news[0].values, news[0].where
    for told in news[1:]:
        values = torch.where(told.mask().unsqueeze(-1), told.values, values)
        where = (
            told.where if where is None or told.where is None else where | told.where
        )
    return [replace(news[0], values=values, where=where)]


@dataclass
class _Packed:
    """One observation whose trials may be at different rounds.

    Args:
        functions: the functions that were seen.
        keys: the actions' names, one a trial.
        wanted: the trials that saw something.
        noise: the observation's own variance ``(T,)``, or ``None``.
        source: the number of what waits that each trial's is from.
        t: the last round among them.
        x: the actions' points, ``(T, d)``.
        values: ``(T, f)``.
    """

    functions: list[int]
    keys: list[Any]
    wanted: list[bool]
    noise: Tensor | None
    source: list[int]
    t: int
    x: Tensor
    values: Tensor


def _packed(loose: Sequence[tuple[Place, Part]], size: int) -> list[_Packed]:
    """Return what came to some trials only as few observations as will do."""
    rows: list[_Packed] = []
    for number, (place, (functions, values, wanted, noise)) in enumerate(loose):
        for trial in [i for i, want in enumerate(wanted) if want]:
            for row in rows:
                alike = row.functions == functions and row.noise is noise
                if alike and not row.wanted[trial]:
                    break
            else:
                keys, nowhere, source = (
                    list(place.keys),
                    [False] * size,
                    [number] * size,
                )
                first = (noise, source, place.t, place.x, values)
                row = _Packed(functions, keys, nowhere, *first)
                rows.append(row)
            row.keys[trial], row.wanted[trial] = place.keys[trial], True
            row.source[trial], row.t = number, max(row.t, place.t)
    for row in rows:
        numbers = sorted(set(row.source))
        at = [numbers.index(number) for number in row.source]
        row.x = _picked([loose[i][0].x for i in numbers], at)
        row.values = _picked([loose[i][1][1] for i in numbers], at)
    return rows


def _picked(values: list[Tensor], at: list[int]) -> Tensor:
    """Return ``(T, k)``: each trial's row of the one of ``values`` that ``at`` says."""
    if len(values) == 1:
        return values[0]
    trial = torch.arange(len(at), device=values[0].device)
    return torch.stack(values)[devices.put(at, values[0].device), trial]
