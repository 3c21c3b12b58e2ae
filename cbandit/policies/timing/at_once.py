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
from cbandit.policies.choices import News, Place
from cbandit.policies.timing.base import Held, Timing
from cbandit.posterior.log import Part, joined

PartialFeedback = tuple[Place, Part]
"""Feedback for some trials: where the choice is, and its values."""

PackedRow = list[int | None]
"""For each trial, the number of the feedback in an observation; ``None``: none."""


class AtOnce(Timing):
    """Timing under which feedback counts from the moment it comes, and for ever."""

    def absorb(self, beliefs: Any, held: Held, news: News) -> tuple[Any, Held]:
        """Absorb feedback for all trials; hold feedback for some trials only."""
        place, parts = news.place, news.parts()
        if all(all(part.wanted) for part in parts):
            return beliefs.absorb(place.keys, place.x, parts, place.t), held
        partial = tuple((place, part) for part in joined(parts))
        return beliefs, held._replace(partial=held.partial + partial)

    def due(self, beliefs: Any, held: Held, t: int) -> tuple[Any, Held]:
        """Absorb the held feedback, packed into observations."""
        if not held.partial:
            return beliefs, held
        for row in _pack(held.partial, beliefs.dated):
            beliefs = _absorb_row(beliefs, held.partial, row)
        return beliefs, held._replace(partial=())


def _pack(partial: Sequence[PartialFeedback], dated: bool) -> list[PackedRow]:
    """Pack partial feedback into few observations; return a row for each of these.

    An observation may hold different rounds in different trials. So where delays differ
    from trial to trial, dozens of rounds fit into a few observations. If ``dated``, the
    beliefs use the round of an outcome, and an observation holds one round only.
    """
    rows: list[PackedRow] = []
    for number, (place, part) in enumerate(partial):
        for trial in [i for i, want in enumerate(part.wanted) if want]:
            for row in rows:
                first = partial[min(n for n in row if n is not None)]
                if row[trial] is None and _can_share(first, (place, part), dated):
                    break
            else:
                row = [None] * len(part.wanted)
                rows.append(row)
            row[trial] = number
    return rows


def _can_share(first: PartialFeedback, second: PartialFeedback, dated: bool) -> bool:
    """Return whether one observation may hold both feedbacks, in different trials."""
    (place, part), (second_place, second_part) = first, second
    if dated and place.t != second_place.t:
        return False
    same_kind = (part.tries is None) == (second_part.tries is None)
    same_noise = part.noise is second_part.noise
    return same_kind and same_noise and part.functions == second_part.functions


def _absorb_row(
    beliefs: Any, partial: Sequence[PartialFeedback], row: PackedRow
) -> Any:
    """Return the beliefs after the observation that ``row`` makes of the feedback."""
    numbers = sorted({n for n in row if n is not None})
    # for each trial, the position of its feedback in numbers; 0 where it has none
    at = [0 if n is None else numbers.index(n) for n in row]
    places, parts = [partial[n][0] for n in numbers], [partial[n][1] for n in numbers]
    tries = [part.tries for part in parts if part.tries is not None]
    observation = Part(
        parts[0].functions,
        _select([part.values for part in parts], at),
        [n is not None for n in row],
        parts[0].noise,
        _select(tries, at) if tries else None,
    )
    keys = [places[k].keys[trial] for trial, k in enumerate(at)]
    x, t = _select([place.x for place in places], at), max(place.t for place in places)
    return beliefs.absorb(keys, x, [observation], t)


def _select(values: list[Tensor], at: list[int]) -> Tensor:
    """Return ``values[at[trial]][trial]`` for each trial, ``(T, k)``."""
    if len(values) == 1:
        return values[0]
    trial = torch.arange(len(at), device=values[0].device)
    return torch.stack(values)[devices.put(at, values[0].device), trial]
