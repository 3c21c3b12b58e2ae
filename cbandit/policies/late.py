"""Feedback on its way into beliefs: late, or of some trials only.

When feedback counts is a policy's timing, one of three: at once (in
:mod:`cbandit.policies.gp`), from the choice on (:mod:`cbandit.policies.censored`), or
for a window of rounds (:mod:`cbandit.policies.sliding`). A timing has ``absorb``,
called when feedback comes, ``due``, called before the next round, and ``width`` and
``chances``, which say how wide bounds are. Feedback of some trials only is kept here
until the other trials have theirs, and is then packed into as few observations as
possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.policies.choices import News, Place, Told
from cbandit.posterior.observations import Part, joined


class Arrivals(NamedTuple):
    """Feedback that a policy keeps beside its beliefs.

    Args:
        late: how many values came too late to count, ``(T,)``.
        loose: feedback of some trials only, kept until the other trials have theirs.
        recent: the points ``(T, d)`` of the last rounds, where they still matter.
    """

    late: Tensor
    loose: tuple[tuple[Place, Part], ...] = ()
    recent: tuple[Tensor, ...] = ()


Knowledge = tuple[Any, Arrivals]
"""The beliefs, and the feedback kept beside them."""


def absorbed_apart(
    knowledge: Knowledge, news: News, place: Place, size: int
) -> Knowledge:
    """Absorb news that all trials have; keep news of some trials only."""
    (beliefs, held), (parts, whole) = knowledge, parts_of(news, size)
    if whole:
        return beliefs.absorb(place.keys, place.x, parts, place.t), held
    new = tuple((place, part) for part in joined(parts))
    return beliefs, held._replace(loose=held.loose + new)


def parts_of(news: News, size: int) -> tuple[list[Part], bool]:
    """Return the news in the form beliefs absorb, and whether all trials have it."""
    if len(news.rewards) > 1 or len(news.costs) > 1:
        news = news._replace(rewards=_pieced(news.rewards), costs=_pieced(news.costs))
    parts = news.parts(size)
    return parts, all(all(part.wanted) for part in parts)


def _pieced(news: Sequence[Told]) -> Sequence[Told]:
    """Merge items into one, if they are of different trials at different times."""
    if len(news) < 2 or any(
        t.where is None or (t.noise, t.columns, t.tries) != (None, None, None)
        for t in news
    ):
        return news
    values, where = news[0].values, news[0].where
    for told in news[1:]:
        values = torch.where(told.mask().unsqueeze(-1), told.values, values)
        if where is not None and told.where is not None:
            where = where | told.where
    return [news[0]._replace(values=values, where=where)]


def absorbed_loose(knowledge: Knowledge, size: int) -> Knowledge:
    """Absorb the feedback that was kept, packed into as few observations as possible.

    One observation may hold different rounds in different trials, so that where delays
    differ from trial to trial, dozens of rounds fit into a few observations. It holds
    one round where it matters which one an outcome is of.
    """
    (beliefs, held), rows = knowledge, list[list[int | None]]()
    loose = held.loose
    for number, (place, part) in enumerate(loose):
        for trial in [i for i, want in enumerate(part.wanted) if want]:
            for row in rows:
                there, first = loose[min(n for n in row if n is not None)]
                alike = first.functions == part.functions and first.noise is part.noise
                alike = alike and (first.tries is None) == (part.tries is None)
                alike = alike and (there.t == place.t or not beliefs.dated)
                if alike and row[trial] is None:
                    break
            else:
                row = [None] * size
                rows.append(row)
            row[trial] = number
    for row in rows:
        numbers = sorted({n for n in row if n is not None})
        first = loose[numbers[0]][1]
        at = [0 if n is None else numbers.index(n) for n in row]
        places = [loose[n][0] for n in numbers]
        keys = [places[k].keys[trial] for trial, k in enumerate(at)]
        values = _picked([loose[n][1].values for n in numbers], at)
        wanted = [n is not None for n in row]
        tries = [loose[n][1].tries for n in numbers]
        of = (
            None
            if first.tries is None
            else _picked([n for n in tries if n is not None], at)
        )
        part = Part(first.functions, values, wanted, first.noise, of)
        x, t = _picked([place.x for place in places], at), max(p.t for p in places)
        beliefs = beliefs.absorb(keys, x, [part], t)
    return beliefs, held._replace(loose=())


def _picked(values: list[Tensor], at: list[int]) -> Tensor:
    """Return ``(T, k)``: for each trial its own row of ``values[at[trial]]``."""
    if len(values) == 1:
        return values[0]
    trial = torch.arange(len(at), device=values[0].device)
    return torch.stack(values)[devices.put(at, values[0].device), trial]
