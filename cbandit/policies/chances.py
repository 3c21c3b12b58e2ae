"""Rounds that choose only what keeps its limits with a stated probability."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from cbandit._core.distributed import Ranks
from cbandit.policies.choices import Asked
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.units import Units, normal
from cbandit.recommend import log_chances

ALIKE = 1e-9  # log probabilities that differ by less count as equal


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


def trusted(
    beliefs: Beliefs, asked: Asked, least: Tensor, limits: Tensor, ranks: Ranks
) -> tuple[Asked, Tensor]:
    """Mask out of a round the actions that do not keep all limits with a probability.

    Where no action keeps them, only the likeliest ones are left.

    Args:
        beliefs: about the reward and the costs.
        asked: the round, over numbered actions.
        least: the probability, ``(T,)``.
        limits: the thresholds, ``(T, m)``.
        ranks: the processes that share the set.

    Returns:
        The round with its mask, and the trials ``(T,)`` where no action does.
    """
    units, shape = beliefs.units(), (len(limits), asked.actions.size)
    mask = torch.zeros(shape, dtype=torch.bool, device=limits.device)
    # one cost below needed is too unlikely; costs that are all at enough suffice
    needed, enough = (
        torch.special.ndtri(share).unsqueeze(-1)
        for share in (least, least ** (1 / limits.shape[1]))
    )
    for start, mean, std in _moments(beliefs, asked):
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
    return asked._replace(mask=mask), doubtful


def _likeliest(beliefs: Beliefs, asked: Asked, limits: Tensor, ranks: Ranks) -> Tensor:
    """Return a mask ``(T, N)`` of the actions likeliest to keep all limits."""
    units, size = beliefs.units(), asked.actions.size
    chance = limits.new_full((len(limits), size), -torch.inf, dtype=beliefs.dtype)
    for start, mean, std in _moments(beliefs, asked):
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


def _moments(beliefs: Beliefs, asked: Asked) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield ``(start, mean, std)``, ``(T, F, n)`` each, over the round's set."""
    on = asked.actions
    if on is not beliefs.actions:
        yield 0, *beliefs.anywhere(on.block(0, on.size))
        return
    for block in beliefs.blocks():
        yield block.start, block.mean, block.std.expand_as(block.mean)
