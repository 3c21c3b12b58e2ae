"""The best action that is surely safe, which LC-LUCB and Safe-LTS play.

Among finitely many actions it is looked for one by one, on a star along its segments
(:mod:`cbandit.policies.safe.rays`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit import search
from cbandit._core.log import warn
from cbandit.actions import Star
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.failures import remaining
from cbandit.policies.safe.action import numbered
from cbandit.policies.safe.draws import must_hold
from cbandit.policies.safe.linear import Bounds, Plane
from cbandit.policies.safe.model import Stage
from cbandit.policies.safe.rays import best_on_star, fan_of, likely_on_star
from cbandit.recommend import Recommendation, recommend

__all__ = ["SurelySafe", "best_on_points"]


class SurelySafe:
    """The action of greatest ``V_r`` with ``V_c <= tau``; the safe action always fits.

    Args:
        name: the policy's.
        plane: its model.
        dtype: of its actions.
    """

    def __init__(self, name: str, plane: Plane, dtype: torch.dtype) -> None:
        self._name, self._plane, self._dtype = name, plane, dtype
        on = plane.actions
        self._fan = fan_of(on, plane.safe.x) if isinstance(on, Star) else None

    def play(
        self,
        state: Stage,
        asked: Asked,
        bounds: Bounds,
        tau: Tensor,
        at: Tensor | None,
    ) -> tuple[Decision, Stage]:
        """Return a round's decision, and the state after it.

        Args:
            state: of the policy.
            asked: the round.
            bounds: ``V_r`` and ``V_c``.
            tau: thresholds, ``(T, m)``.
            at: the safe action's number in this round's set, ``(T,)``.
        """
        on, safe = asked.actions, state.safe
        infeasible = safe.unsafe(tau)
        must_hold(asked.mask, at)
        close = self._plane.tolerance(state)
        if at is None:
            fan, x0 = self._fan, safe.action.x
            if fan is None or on is not self._plane.actions:
                fan = fan_of(on, x0)
            index, x = best_on_star(fan, asked.mask, bounds, tau, safe, close)
            if not safe.ready:
                x = torch.where(safe.warm.unsqueeze(-1), x, x0)
            x = x.to(self._dtype)
            return Decision(index, infeasible, x=x, sure=True), state
        index = best_on_points(on, asked.mask, bounds, tau, at, close)
        if not state.warned and bool((index == at).all()):
            state = state._replace(warned=True)
            warn(
                f"{self._name} plays the safe action, being sure of no other. On a "
                "Finite set it may never leave it, as that teaches nothing about the "
                "others; a Star around it, where one can go part of the way, does",
            )
        if not safe.ready:
            index = torch.where(safe.warm, index, at)
        return Decision(index, infeasible, sure=True), state

    def likely(
        self, state: Stage, limits: Tensor, confidence: float, left: Tensor | None
    ) -> Recommendation:
        """Return the best action believed feasible with ``confidence``.

        On a star ``index`` is that of its segment, 0 for the centre. It is one of those
        ``left (T, N)`` that have not failed; ``None``: none has.
        """
        safe, ridge = state.safe, state.seen
        if self._fan is not None:
            r = self._plane.subgaussian
            given = self._fan, ridge, r, limits, safe, confidence, left
            found, x = likely_on_star(*given)
            return replace(found, x=x)
        every = safe.among(self._plane.believed(ridge))
        blocks = remaining(every, left)
        found = recommend(blocks, limits, confidence)
        x = self._plane.actions.at(found.index)
        return replace(found, x=x)


def best_on_points(
    on: Any,
    mask: Tensor | None,
    bounds: Bounds,
    tau: Tensor,
    at: Tensor,
    tolerance: Tensor,
) -> Tensor:
    """Return the number ``(T,)`` of the action of greatest ``V_r`` with ``V_c <= tau``.

    The safe action, number ``at`` ``(T,)``, is always admissible.

    Args:
        on: the actions, finitely many.
        mask: ``(1 or T, N)``, those allowed.
        bounds: ``V_r`` and ``V_c``.
        tau: ``(T, m)``.
        at: see above.
        tolerance: values that differ by less are as good, ``(T,)``.
    """

    def estimates() -> Iterator[tuple[int, Tensor]]:
        for start, points in Plane.blocks(on):
            v = bounds.at(points)
            v[:, 1:] -= tau.unsqueeze(-1)
            place = (at - start).clamp(0, points.shape[-2] - 1)
            here = (place + start == at)[:, None, None]
            place = place[:, None, None].expand(-1, tau.shape[-1], 1)
            own = v[:, 1:].gather(-1, place)
            v[:, 1:].scatter_(-1, place, torch.where(here, own.clamp_max(0.0), own))
            yield start, v

    best = search.maximise(estimates(), search.within_limits, mask, tolerance)
    return numbered(best.index)
