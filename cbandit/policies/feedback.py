"""When feedback counts: at once; from the choice on; or for a window of rounds.

:mod:`cbandit.policies.censored` has the second and :mod:`cbandit.policies.sliding` the
third. Each turns news into beliefs by functions of values: ``absorb`` when feedback
comes, ``due`` before the next round; ``width`` and ``chances`` say how wide bounds are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.confidence.bound import BoundWidths
from cbandit.policies.censored import Awaited
from cbandit.policies.ledger import News
from cbandit.policies.packing import Place, packed, parts_of
from cbandit.policies.sliding import Windowed
from cbandit.policies.state import Both
from cbandit.posterior.observations import Part, joined

__all__ = ["AtOnce", "Timing", "timing"]


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

    def due(self, both: Both, t: int) -> Both:
        """Return the beliefs with what waited.

        Each trial may be at another round in one of the observations: where delays
        differ from trial to trial, dozens of rounds make a handful of them.
        """
        beliefs, held = both
        if not held.loose:
            return both
        for row in packed(held.loose, self._size):
            part = Part(row.functions, row.values, row.wanted, row.noise)
            beliefs = beliefs.absorb(row.keys, row.x, [part], row.t)
        return beliefs, held._replace(loose=())

    def chances(self, functions: int) -> int:
        """Return how many bounds hold together: one a function."""
        return functions

    def width(self, t: int, widths: BoundWidths, both: Both, chances: int) -> Tensor:
        """Return the widths ``(T, F)`` of round ``t``."""
        return widths.around(both[0], t, chances)


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
