"""News as beliefs take them in: one observation a choice, or as few as will do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.choice import Choice
from cbandit.policies.ledger import News, Told
from cbandit.posterior.observations import Part

__all__ = ["Place", "by_functions", "packed", "parts_of", "place_of"]


class Place(NamedTuple):
    """Where a choice is: the actions' names and points ``(T, d)``, and its round."""

    keys: list[Any]
    x: Tensor
    t: int


def by_functions(news: News) -> list[tuple[Told, list[int]]]:
    """Return what was told and of which functions: 0 is the reward, then the costs."""
    out = [(told, [0]) for told in news.rewards]
    for told in news.costs:
        columns = told.columns or range(told.values.shape[-1])
        out.append((told, [1 + j for j in columns]))
    return out


def parts_of(news: News, size: int) -> tuple[list[Part], bool]:
    """Return the news as beliefs take them in, and whether all trials saw them."""
    if len(news.rewards) > 1 or len(news.costs) > 1:
        news = news._replace(rewards=_pieced(news.rewards), costs=_pieced(news.costs))
    parts: list[Part] = []
    every, whole = [True] * size, True
    for told, functions in by_functions(news):
        wanted = every
        if told.where is not None:
            wanted = told.where.tolist()
            whole = whole and all(wanted)
        parts.append(Part(functions, told.values, wanted, told.noise))
    return parts, whole


def _pieced(news: Sequence[Told]) -> Sequence[Told]:
    """Return what came to some trials now and to others then as one."""
    if len(news) < 2 or any(
        t.where is None or t.noise is not None or t.columns is not None for t in news
    ):
        return news
    values, where = news[0].values, news[0].where
    for told in news[1:]:
        values = torch.where(told.mask().unsqueeze(-1), told.values, values)
        where = (
            told.where if where is None or told.where is None else where | told.where
        )
    return [news[0]._replace(values=values, where=where)]


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


def packed(loose: Sequence[tuple[Place, Part]], size: int) -> list[_Packed]:
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


def place_of(policy: Any, choice: Choice) -> Place:
    """Return what the history calls the actions chosen, and where they are."""
    x = choice.x.reshape(policy._size, -1)
    if choice.actions is None and choice.keys is not None:
        return Place(choice.keys, x, choice.t)
    if choice.actions is None and choice.index is not None:
        index = choice.index.tolist()
        return Place(index if isinstance(index, list) else [index], x, choice.t)
    return Place(policy.actions.keys(x), x, choice.t)
