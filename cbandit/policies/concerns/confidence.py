"""Choose only actions that keep all limits with a stated probability.

The probability comes from ``ask(confidence=)``, or from the policy's ``share=``. Where
no action reaches it, only the likeliest ones are left, and the choice is marked as
infeasible. ``T`` counts the trials, ``m`` the costs and ``n`` actions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Decision, Fence, Turn
from cbandit.posterior.units import Units, normal
from cbandit.recommend import log_chances


class Confidence(Concern[None]):
    """Leave out actions too unlikely to keep the limits, if a round asks for it."""

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy with beliefs about all costs."""
        return cls(setup) if setup.can_narrow else None

    def start(self) -> None:
        """Return no state: nothing is kept between rounds."""

    def open_turn(self, state: None, turn: Turn) -> tuple[None, Turn]:
        """Leave out the actions below the round's confidence."""
        if turn.confidence is None:
            return None, turn
        units, limits, least = turn.beliefs.units(), turn.limits, turn.confidence

        def excess(mean: Tensor, std: Tensor) -> Tensor:
            short = least.log().unsqueeze(-1) - log_chance(units, mean, std, limits)
            # asinh, as logarithms of tiny probabilities are huge
            return short.asinh().unsqueeze(1)

        def inside(mean: Tensor, std: Tensor) -> Tensor:
            return _sure_enough(units, mean, std, limits, least)

        turn, empty = turn.within(Fence(turn.beliefs, excess, inside))
        return None, turn._replace(doubtful=empty)

    def check_pick(
        self, state: None, turn: Turn, pick: Decision
    ) -> tuple[None, Decision]:
        """Mark the trials in which no action reached the confidence as infeasible."""
        if turn.confidence is None or not turn.by_rule:
            return None, pick
        if turn.actions.continuous and pick.x is not None:
            mean, std = turn.beliefs.anywhere(turn.point(pick))
            chance = log_chance(turn.beliefs.units(), mean, std, turn.limits)[:, 0]
            return None, replace(pick, infeasible=chance < turn.confidence.log())
        return None, pick if turn.doubtful is None else pick.doubted(turn.doubtful)


def log_chance(
    units: Units | None,
    mean: Tensor,
    std: Tensor,
    limits: Tensor,
) -> Tensor:
    """Return the log probability ``(T, n)`` that all limits are kept.

    With standardised outcomes, a cost with fewer than two outcomes keeps its limit with
    probability one half, as its scale is unknown.

    Args:
        units: the units of the functions; ``None``: the user's.
        mean: the means of reward and costs, ``(T, 1 + m, n)``, in units.
        std: the standard deviations, in the same form.
        limits: the thresholds ``(T, m)`` or ``(T, m, n)``, in the user's units.
    """
    room, spread, vague = room_of(units, mean, std, limits)
    chances = log_chances(room, spread)
    if vague is not None:
        chances = chances.masked_fill(vague, math.log(0.5))
    return chances.sum(-2)


def _sure_enough(
    units: Units | None, mean: Tensor, std: Tensor, limits: Tensor, least: Tensor
) -> Tensor:
    """Return where all limits hold with probability ``least (T,)``, ``(T, n)`` bool.

    The product over the costs is computed only where the costs' smallest probability
    leaves the answer open: below ``least`` the answer is no; from the m-th root of
    ``least`` on it is yes.
    """
    needed, enough = (
        torch.special.ndtri(share).unsqueeze(-1)
        for share in (least, least ** (1 / limits.shape[1]))
    )
    worst = _deviations_below(units, mean, std, limits).amin(-2)
    sure: Tensor = worst >= enough
    columns = ((worst >= needed) & ~sure).any(0).nonzero().squeeze(-1)
    if len(columns):
        rows = mean[..., columns], std[..., columns]
        chance = log_chance(units, *rows, limits)
        sure[:, columns] = chance >= least.log().unsqueeze(-1).to(chance)
    return sure


def _deviations_below(
    units: Units | None, mean: Tensor, std: Tensor, limits: Tensor
) -> Tensor:
    """Return how many deviations each cost's mean is below its limit, ``(T, m, n)``."""
    room, spread, vague = room_of(units, mean, std, limits)
    # a cost without deviation keeps or exceeds its limit for certain
    deviates = (room / spread).nan_to_num(torch.inf, torch.inf, -torch.inf)
    return deviates if vague is None else deviates.masked_fill(vague, 0.0)


def room_of(
    units: Units | None, mean: Tensor, std: Tensor, limits: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return limits less means, deviations, and which costs have no known scale.

    All are ``(T, m, n)``, the third maybe ``(T, m, 1)``, or ``None``: all scales are
    known. They are in the user's units, latent for binary and counted costs.
    """
    mean, std, limits = normal(units, mean, std, limits)
    limits = limits if limits.dim() == 3 else limits.unsqueeze(-1)
    room, spread = limits.to(mean) - mean[:, 1:], std[:, 1:]
    if units is None:
        return room, spread.expand_as(room), None
    known = units.known[:, 1:].unsqueeze(-1)
    few = units.seen[:, 1:].unsqueeze(-1) <= 1
    return room, spread.masked_fill(~known, 0.0), ~known & few
