"""The state of bandit OCO: where the ascent is, and what has come of its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit.policies.ledger import News, Told

__all__ = ["Played", "Walk"]


class Played(NamedTuple):
    """A round's direction, and what has come of it in which trials.

    Args:
        u: ``(T, d)``.
        reward: ``(T, 1)``, 0 until it comes.
        cost: thresholds subtracted, ``(T, m)``, 0 until they come.
        rewarded: trials whose reward has come, ``(T,)`` on the host.
        charged: trials whose costs have come.
        used: trials in which both have moved the centre.
        over: whether nothing more will come.
    """

    u: Tensor
    reward: Tensor
    cost: Tensor
    rewarded: Tensor
    charged: Tensor
    used: Tensor
    over: bool = False

    @property
    def due(self) -> Tensor:
        """Trials in which all has come and nothing has been made of it, ``(T,)``."""
        return self.rewarded & self.charged & ~self.used

    def told(self, news: News, limits: Tensor) -> Played:
        """Return the round with what has come of it, under thresholds ``(T, m)``."""
        each = self._replace(over=news.cancelled)
        for told in news.rewards:
            reward = torch.where(told.mask().unsqueeze(-1), told.values, each.reward)
            rewarded = each.rewarded | each._came(told)
            each = each._replace(reward=reward, rewarded=rewarded)
        for told in news.costs:
            over = told.values - limits
            cost = torch.where(told.mask().unsqueeze(-1), over, each.cost)
            charged = each.charged | each._came(told)
            each = each._replace(cost=cost, charged=charged)
        return each

    def _came(self, told: Told) -> Tensor:
        """Return the trials in which something was told, ``(T,)`` on the host."""
        return torch.ones_like(self.used) if told.where is None else told.where

    def spent(self) -> Played | None:
        """Return the round after it has moved the centre; ``None``: it is over."""
        used = self.used | self.due
        return None if self.over or bool(used.all()) else self._replace(used=used)


class Walk(NamedTuple):
    """Where the ascent is.

    Args:
        centre: ``y``, ``(T, d)``.
        multiplier: ``lam``, ``(T, m)``.
        rounds: those whose feedback has not moved it yet, by number.
    """

    centre: Tensor
    multiplier: Tensor
    rounds: Mapping[int, Played]
