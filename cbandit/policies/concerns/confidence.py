"""Choose only what keeps all limits with a stated probability.

The round asks for it, by ``ask(confidence=)``, or the share of rounds that is to be
within all limits does. Where nothing is that sure, the likeliest is left, and the
choice is marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from cbandit._core.distributed import Ranks
from cbandit.policies.choices import Asked, Decision, Fence
from cbandit.policies.round import Concern
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.units import Units, normal
from cbandit.recommend import log_chances

ALIKE = 1e-9  # log probabilities that differ by less count as equal


class Confidence(Concern[None]):
    """Leave out what is not sure enough, in rounds that ask for it.

    Args:
        ranks: the processes that share the set.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def start(self) -> None:
        """Return no state: nothing is kept between rounds."""

    def open_turn(self, state: None, turn: Asked) -> tuple[None, Asked]:
        """Leave out the actions that are not sure enough."""
        if turn.confidence is None:
            return None, turn
        if turn.actions.continuous:
            fence = Fence(_short(turn, turn.confidence))
            return None, turn._replace(fences=(fence, *turn.fences))
        return None, trusted(turn, turn.confidence, self._ranks)

    def check_pick(
        self, state: None, turn: Asked, pick: Decision
    ) -> tuple[None, Decision]:
        """Mark the trials in which nothing was sure enough."""
        if turn.confidence is None or not turn.by_rule:
            return None, pick
        if turn.actions.continuous and pick.x is not None:
            chance = _chance(turn, pick.x.unsqueeze(1)).squeeze(-1)
            return None, replace(pick, infeasible=chance < turn.confidence.log())
        return None, pick if turn.doubtful is None else pick.doubted(turn.doubtful)


def _chance(turn: Asked, x: Tensor) -> Tensor:
    """Return the log probability ``(T, n)`` that points of a box keep all limits."""
    x = x if turn.shown is None else turn.shown.whole(x)
    mean, std = turn.beliefs.anywhere(x)
    return log_chance(turn.beliefs.units(), mean, std, turn.limits)


def _short(turn: Asked, confidence: Tensor) -> Callable[[Tensor], Tensor]:
    """Return how far points of a box fall short of the confidence, as a fence."""
    least = confidence.log().unsqueeze(-1)

    def short(x: Tensor) -> Tensor:
        # asinh, as logarithms of tiny chances are huge
        return (least - _chance(turn, x)).asinh().unsqueeze(1)

    return short


def log_chance(
    units: Units | None,
    mean: Tensor,
    std: Tensor,
    limits: Tensor,
    played: bool = False,
) -> Tensor:
    """Return the log probability ``(T, n)`` that all limits are kept.

    With standardised outcomes, a cost with fewer than two outcomes keeps its limit with
    probability one half, as its scale is unknown. If it was ``played``, its one outcome
    says whether it keeps the limit.

    Args:
        units: the units of the functions; ``None``: the user's.
        mean: ``(T, 1 + m, n)``, in units.
        std: the standard deviations, likewise.
        limits: the thresholds ``(T, m)`` or ``(T, m, n)``, in the user's units.
        played: whether these points are those whose outcomes are known.
    """
    room, spread, vague = _room(units, mean, std, limits)
    chances = log_chances(room, spread)
    if vague is not None and not played:
        chances = chances.masked_fill(vague, math.log(0.5))
    return chances.sum(-2)


def trusted(asked: Asked, least: Tensor, ranks: Ranks) -> Asked:
    """Mask out the actions that keep all limits too improbably.

    Where no action keeps them, only the likeliest ones are left, and the trial is
    doubtful.

    Args:
        asked: the round, over numbered actions.
        least: the probability, ``(T,)``.
        ranks: the processes that share the set.
    """
    beliefs, limits = asked.beliefs, asked.limits
    units, shape = beliefs.units(), (len(limits), asked.actions.size)
    mask = torch.zeros(shape, dtype=torch.bool, device=limits.device)
    # one cost below needed is too unlikely; costs that are all at enough suffice
    needed, enough = (
        torch.special.ndtri(share).unsqueeze(-1)
        for share in (least, least ** (1 / limits.shape[1]))
    )
    for start, mean, std in asked.moments():
        worst = _deviates(units, mean, std, limits).amin(-2)
        sure = worst >= enough
        columns = ((worst >= needed) & ~sure).any(0).nonzero().squeeze(-1)
        if len(columns):
            rows = mean[..., columns], std[..., columns]
            chance = log_chance(units, *rows, limits)
            sure[:, columns] = chance >= least.log().unsqueeze(-1).to(chance)
        mask[:, start : start + sure.shape[-1]] = sure
    if asked.mask is not None:
        mask &= asked.mask
    doubtful = ~mask.any(-1)
    if ranks.size > 1:
        number = torch.zeros(len(mask), dtype=torch.long, device=mask.device)
        parts = ranks.candidates(number, doubtful.double().unsqueeze(-1))[1]
        doubtful = parts[..., 0].bool().all(0)
    if bool(doubtful.any()):
        likeliest = _likeliest(beliefs, asked, limits, ranks)
        mask = torch.where(doubtful.unsqueeze(-1), likeliest, mask)
    return asked._replace(mask=mask, doubtful=doubtful)


def _likeliest(beliefs: Beliefs, asked: Asked, limits: Tensor, ranks: Ranks) -> Tensor:
    """Return a mask ``(T, N)`` of the actions likeliest to keep all limits."""
    units, size = beliefs.units(), asked.actions.size
    chance = limits.new_full((len(limits), size), -torch.inf, dtype=beliefs.dtype)
    for start, mean, std in asked.moments():
        rows = log_chance(units, mean, std, limits)
        chance[:, start : start + rows.shape[-1]] = rows
    if asked.mask is not None:
        chance = chance.masked_fill(~asked.mask, -torch.inf)
    top = chance.amax(-1)
    if ranks.size > 1:
        number = torch.zeros(len(top), dtype=torch.long, device=top.device)
        top = ranks.candidates(number, top.unsqueeze(-1))[1][..., 0].amax(0)
    near = chance >= (top - ALIKE).unsqueeze(-1)
    return near & chance.isfinite()


def _deviates(units: Units | None, mean: Tensor, std: Tensor, limits: Tensor) -> Tensor:
    """Return how many deviations each cost is below its limit, ``(T, m, n)``."""
    room, spread, vague = _room(units, mean, std, limits)
    # a cost without deviation keeps or exceeds its limit for certain
    deviates = (room / spread).nan_to_num(torch.inf, torch.inf, -torch.inf)
    return deviates if vague is None else deviates.masked_fill(vague, 0.0)


def _room(
    units: Units | None, mean: Tensor, std: Tensor, limits: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return limits less means, deviations, and which costs have no known scale.

    All are ``(T, m, n)``, in the user's units; latent where a cost has a link.
    """
    mean, std, limits = normal(units, mean, std, limits)
    limits = limits if limits.dim() == 3 else limits.unsqueeze(-1)
    room, spread = limits.to(mean) - mean[:, 1:], std[:, 1:]
    if units is None:
        return room, spread.expand_as(room), None
    known = units.known[:, 1:].unsqueeze(-1)
    few = units.seen[:, 1:].unsqueeze(-1) <= 1
    return room, spread.masked_fill(~known, 0.0), ~known & few
