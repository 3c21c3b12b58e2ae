"""The best direction of a star around 0, and how far along it is safe.

Reward and costs are linear, so bounds grow from 0 in proportion to the way. A policy
judges each segment by its furthest point that keeps the limits under parameters that
the policy takes from the ellipsoids. Then it goes along the best segment as far as the
pessimistic costs ``<x, mu> + beta ||x||_{Sigma^-1}`` keep the limits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core.peaks import best_place
from cbandit.actions import Star
from cbandit.errors import CBanditError
from cbandit.policies.safe.linear import LinearModel
from cbandit.policies.safe.stagewise import SafeState
from cbandit.policies.turn import Decision, Turn
from cbandit.search.segments import furthest


def around_origin(plane: LinearModel, name: str) -> LinearModel:
    """Return a policy's model; raise an error unless its set is a star around 0."""
    if isinstance(plane.actions, Star) and plane.safe.from_origin:
        return plane
    raise CBanditError(
        f"actions must be a Star around 0 for {name}; got {plane.actions!r} with "
        f"safe.x = {plane.safe.x.tolist()}"
    )


class Directions(NamedTuple):
    """The segments of a star around 0 in one round.

    Args:
        tips: the segments' ends, as columns, ``(T or 1, d, K)``.
        mean: estimates of reward and costs there, ``(T, F, K)``.
        wide: ``beta ||tip||_{Sigma^-1}``, ``(T, F, K)``.
        tau: this round's thresholds, ``(T, m)``.
        close: values that differ by less count as equal, ``(T,)``.
    """

    tips: Tensor
    mean: Tensor
    wide: Tensor
    tau: Tensor
    close: Tensor

    @classmethod
    def of(
        cls, plane: LinearModel, state: SafeState, turn: Turn, tau: Tensor
    ) -> tuple[Directions, SafeState]:
        """Return the segments of a round's star, and the state that has met it."""
        star = turn.actions
        if not isinstance(star, Star):
            raise CBanditError(f"actions of this round must be a Star; got {star!r}")
        state.safe.unsafe_trials(tau)  # thresholds that change must stay above 0
        _, state = plane.find_safe_action(state, star)
        tips = plane.star_points(star)[..., 1:]
        norm = state.data.rays(tips).square().sum(-2).sqrt()
        wide = plane.width(turn.t, state).unsqueeze(-1) * norm
        mean = state.data.solved[0] @ tips
        return cls(tips, mean, wide, tau, plane.reward_tolerance(state)), state

    def optimistic(self) -> Tensor:
        """Return the reward's upper and the costs' lower bounds, ``(T, F, K)``."""
        sign = torch.ones_like(self.mean[:, :, :1])
        sign[:, 1:] = -1.0
        return self.mean + sign * self.wide

    def within(self, costs: Tensor) -> Tensor:
        """Return the shares ``(T, K)`` of the way that keep the limits of ``costs``."""
        limit = self.tau.unsqueeze(-1)
        return furthest(torch.zeros_like(limit), costs, limit)

    def play(self, aim: Tensor, turn: Turn, floor: Tensor | float = 0.0) -> Decision:
        """Return the furthest point on the best segment that surely keeps the limits.

        Args:
            aim: reward and costs at the tips by which segments are judged,
                ``(T, F, K)``.
            turn: the round.
            floor: the shares of the way that are safe in any case, ``(T, K)``.
        """
        share = self.within(aim[:, 1:])
        value = share * aim[:, 0]
        if turn.mask is not None:
            value = value.masked_fill(~turn.mask, -torch.inf)
        value = torch.cat([torch.zeros_like(value[:, :1]), value], -1)
        best = best_place(value, self.close)
        segment = (best - 1).clamp_min(0)  # 0 is the centre
        safe = self.within((self.mean + self.wide)[:, 1:])
        share = torch.minimum(share, safe.clamp_min(floor))
        share = share.gather(-1, segment.unsqueeze(-1))
        share = share.masked_fill((best == 0).unsqueeze(-1), 0.0)
        tips = self.tips.expand(len(share), -1, -1)
        at = segment.view(-1, 1, 1).expand(-1, tips.shape[1], 1)
        x = share * tips.gather(-1, at).squeeze(-1)
        return Decision(segment, x=x.to(turn.actions.tips.dtype), sure=True)
