"""Rounds that choose only what keeps its limits with a stated probability."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from cbandit._core.distributed import Ranks
from cbandit.policies.choices import Asked
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.units import Units, told
from cbandit.recommend import log_chances

ALIKE = 1e-9  # log probabilities that differ by less are as good


def log_chance(
    units: Units | None, mean: Tensor, std: Tensor, limits: Tensor
) -> Tensor:
    """Return the log probability ``(T, n)`` that all limits are kept.

    A cost without an outcome, or with one alone, keeps its limit with probability one
    half where outcomes are standardised: nothing is known of its scale.

    Args:
        units: the units of the functions; ``None``: the user's.
        mean: ``(T, 1 + m, n)``, in units, as is
        std: the standard deviations.
        limits: the thresholds ``(T, m)``, in the user's units.
    """
    mean, std = told(units, mean, std)
    room, spread = limits.to(mean).unsqueeze(-1) - mean[:, 1:], std[:, 1:]
    if units is None:
        return log_chances(room, spread.expand_as(room)).sum(-2)
    known = units.known[:, 1:].unsqueeze(-1)
    chances = log_chances(room, spread.masked_fill(~known, 0.0))
    vague = ~known & (units.seen[:, 1:].unsqueeze(-1) <= 1)
    return chances.masked_fill(vague, math.log(0.5)).sum(-2)


def trusted(
    beliefs: Beliefs, asked: Asked, least: Tensor, limits: Tensor, ranks: Ranks
) -> tuple[Asked, Tensor]:
    """Leave a round the actions that keep all limits with a probability.

    Where none does, only the likeliest are left.

    Args:
        beliefs: about the reward and the costs.
        asked: the round, over numbered actions.
        least: the probability, ``(T,)``.
        limits: the thresholds, ``(T, m)``.
        ranks: the processes that share the set.

    Returns:
        The round with its mask, and the trials ``(T,)`` where none does.
    """
    on, units = asked.actions, beliefs.units()
    chance = limits.new_full((len(limits), on.size), -torch.inf, dtype=beliefs.dtype)
    for start, mean, std in _moments(beliefs, asked):
        rows = log_chance(units, mean, std, limits)
        chance[:, start : start + rows.shape[-1]] = rows
    if asked.mask is not None:
        chance = chance.masked_fill(~asked.mask, -torch.inf)
    top = chance.amax(-1)
    if ranks.size > 1:
        number = torch.zeros(len(top), dtype=torch.long, device=top.device)
        top = ranks.candidates(number, top.unsqueeze(-1))[1][..., 0].amax(0)
    wanted = least.log().to(top)
    mask = chance >= torch.minimum(wanted, top - ALIKE).unsqueeze(-1)
    return asked._replace(mask=mask), top < wanted


def _moments(beliefs: Beliefs, asked: Asked) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield ``(start, mean, std)``, ``(T, F, n)`` each, over the round's set."""
    on = asked.actions
    if on is not beliefs.actions:
        yield 0, *beliefs.anywhere(on.block(0, on.size))
        return
    for block in beliefs.blocks():
        yield block.start, block.mean, block.std.expand_as(block.mean)
