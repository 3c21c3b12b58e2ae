"""Feedback counts from the moment it comes, and for ever: every policy's default.

Feedback for all trials is absorbed at once. Feedback for some trials only is held until
all news is heard, and is then packed into as few observations as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.policies.choices import News
from cbandit.policies.timing.base import Held, Timing
from cbandit.posterior.log import Observation

PackedRow = list[int | None]
"""For each trial, the number of the feedback in an observation; ``None``: none."""


class AtOnce(Timing):
    """Timing under which feedback counts from the moment it comes, and for ever."""

    def absorb(self, beliefs: Any, held: Held, news: News) -> tuple[Any, Held]:
        """Absorb feedback for all trials; hold feedback for some trials only."""
        observations = news.observations()
        if all(all(each.wanted) for each in observations):
            return beliefs.absorb(observations), held
        return beliefs, held._replace(partial=(*held.partial, *observations))

    def due(self, beliefs: Any, held: Held, t: int) -> tuple[Any, Held]:
        """Absorb the held feedback, packed into observations."""
        if not held.partial:
            return beliefs, held
        for row in _pack(held.partial, beliefs.dated):
            beliefs = beliefs.absorb([_unite(held.partial, row)])
        return beliefs, held._replace(partial=())


def _pack(partial: Sequence[Observation], dated: bool) -> list[PackedRow]:
    """Pack partial feedback into few observations; return a row for each of these.

    An observation may hold different rounds in different trials. So where delays differ
    from trial to trial, dozens of rounds fit into a few observations. If ``dated``, the
    beliefs use the round of an outcome, and an observation holds one round only.
    """
    rows: list[PackedRow] = []
    for number, feedback in enumerate(partial):
        for trial in [i for i, want in enumerate(feedback.wanted) if want]:
            for row in rows:
                first = partial[min(n for n in row if n is not None)]
                if row[trial] is None and _can_share(first, feedback, dated):
                    break
            else:
                row = [None] * len(feedback.wanted)
                rows.append(row)
            row[trial] = number
    return rows


def _can_share(first: Observation, second: Observation, dated: bool) -> bool:
    """Return whether one observation may hold both feedbacks, in different trials."""
    if dated and first.t != second.t:
        return False
    same_kind = (first.tries is None) == (second.tries is None)
    same_noise = first.noise is second.noise
    return same_kind and same_noise and first.functions == second.functions


def _unite(partial: Sequence[Observation], row: PackedRow) -> Observation:
    """Return the observation that ``row`` makes of the feedback."""
    numbers = sorted({n for n in row if n is not None})
    # for each trial, the position of its feedback in numbers; 0 where it has none
    at = [0 if n is None else numbers.index(n) for n in row]
    parts = [partial[n] for n in numbers]
    tries = [part.tries for part in parts if part.tries is not None]
    return parts[0]._replace(
        keys=[parts[k].keys[trial] for trial, k in enumerate(at)],
        x=_select([part.x for part in parts], at),
        values=_select([part.values for part in parts], at),
        wanted=[n is not None for n in row],
        t=max(part.t for part in parts),
        tries=_select(tries, at) if tries else None,
    )


def _select(values: list[Tensor], at: list[int]) -> Tensor:
    """Return ``values[at[trial]][trial]`` for each trial, ``(T, k)``."""
    if len(values) == 1:
        return values[0]
    trial = torch.arange(len(at), device=values[0].device)
    return torch.stack(values)[devices.put(at, values[0].device), trial]
