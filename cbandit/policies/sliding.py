"""RPOL-SWUCB: a world that drifts, so that only the last rounds count.

This is how any GP policy takes ``feedback=cb.Sliding(window, drift)``. Each round:

1. the posterior is that of the last ``W = window`` rounds alone;
2. ``f_t = mean + beta_t std + Gam_t`` and ``g_t = mean - beta_t std - Gam_t`` with
   ``beta_t = B + (R / sqrt(lam)) sqrt(2 gamma + 2 ln((m + 1) T / delta))``, ``gamma``
   the gain of the window and ``Gam_t`` the allowance for the drift inside it;
3. the policy's score and move (:mod:`cbandit.policies.rpol`).

The theory's ``Gam_t`` and ``W`` are in :mod:`cbandit.confidence.drift`.

H. Guo, Q. Zhu and X. Liu, Rectified pessimistic-optimistic learning for stochastic
continuum-armed bandit with constraints, 2023, Theorem 4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.beliefs.feedback import Sliding
from cbandit.confidence.bound import BoundWidths
from cbandit.errors import CBanditError
from cbandit.policies.choices import News, Place
from cbandit.policies.late import Knowledge, parts_of


class Windowed:
    """Timing under which feedback counts for a window of rounds after the choice."""

    def __init__(
        self, feedback: Sliding, size: int, device: torch.device, horizon: int | None
    ) -> None:
        self._window, self._size, self._device = feedback.window, size, device
        self._horizon = horizon

    def absorb(
        self, knowledge: Knowledge, news: News, place: Place, t: int
    ) -> Knowledge:
        """Absorb the news of rounds in the window; count the rest as late."""
        (beliefs, held), (parts, _) = knowledge, parts_of(news, self._size)
        if place.t < t + 1 - self._window:
            came = sum(torch.tensor(part[2]) for part in parts)
            late = held.late + devices.put(came, self._device)
            return beliefs, held._replace(late=late)
        return beliefs.absorb(place.keys, place.x, parts, place.t), held

    def due(self, knowledge: Knowledge, t: int) -> Knowledge:
        """Drop the rounds that have left the window."""
        beliefs, held = knowledge
        return beliefs.expire(t + 1 - self._window, self._window), held

    def chances(self, functions: int) -> int:
        """Return how many bounds must hold together: each round has another window."""
        return functions * (self._horizon or 1)

    def width(
        self, t: int, widths: BoundWidths, knowledge: Knowledge, chances: int
    ) -> Tensor:
        """Return ``beta_t``, ``(T, F)``, of round ``t``."""
        if self._horizon is None and widths.rkhs_parts():
            raise CBanditError(
                "RKHS widths hold for horizon= rounds with feedback=cb.Sliding(...), "
                "each with a window of its own: give the policy horizon="
            )
        return widths.around(knowledge[0], t, chances)


def allowance(
    drift: Any, t: int, functions: int, batch: tuple[int, ...], device: torch.device
) -> Tensor:
    """Return ``Gam_t`` of each function, ``(T, F)``, under a drift."""
    value = drift(t) if callable(drift) else drift
    if isinstance(value, tuple) and len(value) == 2 and functions > 1:
        reward, costs = (checks.nonnegative("drift", part) for part in value)
        first = checks.per_trial("drift", reward, batch).unsqueeze(-1)
        costs = _column(costs, batch)
        others = checks.per_cost("drift", costs, batch, functions - 1)
        return devices.put(torch.cat([first, others], -1), device)
    size = _column(checks.nonnegative("drift", value), batch)
    try:
        return devices.put(checks.per_cost("drift", size, batch, functions), device)
    except CBanditError:
        raise CBanditError(
            "drift must be a number, (*trials,), a pair (reward, costs), or one a "
            f"function, (1 + m,) = {(functions,)} or (*trials, 1 + m); got "
            f"{tuple(size.shape)}"
        ) from None


def _column(size: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Return ``(*trials,)`` numbers as a column; leave other shapes unchanged."""
    return size.unsqueeze(-1) if batch and tuple(size.shape) == batch else size
