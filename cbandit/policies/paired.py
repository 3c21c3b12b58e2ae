"""Pair a round's reward with its costs: it counts only when both have come.

``T`` counts the trials and ``m`` the costs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cbandit.policies.choices import News


class Paired(NamedTuple):
    """The reward and costs of a round so far, and the trials in which each has come.

    Args:
        reward: ``(T, 1)``, 0 until it comes.
        cost: costs less the thresholds, ``(T, m)``, 0 until they come.
        rewarded: ``(T,)`` bool on the host, the trials whose reward has come.
        charged: ``(T,)`` bool on the host, the trials whose costs have come.
    """

    reward: Tensor
    cost: Tensor
    rewarded: Tensor
    charged: Tensor

    @classmethod
    def start(cls, like: Tensor) -> Paired:
        """Return a round without feedback, on the device of ``like (T, m)``."""
        nowhere = torch.zeros(len(like), dtype=torch.bool)
        zero = like.new_zeros(len(like), 1)
        return cls(zero, torch.zeros_like(like), nowhere, nowhere)

    @property
    def whole(self) -> Tensor:
        """The trials in which reward and costs have come, ``(T,)`` bool."""
        return self.rewarded & self.charged

    def with_news(self, news: News) -> Paired:
        """Return the round with the reward and costs of the news added."""
        reward, cost, rewarded, charged = self
        for told in news.rewards:
            reward = torch.where(told.mask().unsqueeze(-1), told.values, reward)
            rewarded = rewarded | told.trials
        for told in news.costs:
            over = told.values - news.limits
            cost = torch.where(told.mask().unsqueeze(-1), over, cost)
            charged = charged | told.trials
        return Paired(reward, cost, rewarded, charged)
