"""Safe sets that grow by what the beliefs alone say.

* the next safe set: the seed set, and where every cost's upper bound keeps its
  threshold;
* expanders: for each cost, intersected, safe ``x`` where a made-up observation of the
  cost's *lower* bound would give some ``x'`` that is not yet safe an upper bound within
  the threshold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.baselines.safe_set import SafeSet

__all__ = ["ByObservation"]

SMALL = 1 << 17  # numbers in a temporary: several at once should stay in the cache


class ByObservation:
    """Growth without Lipschitz constants.

    Args:
        seed: the seed set, ``(1 or T, N)``.
    """

    def __init__(self, seed: Tensor) -> None:
        self._seed = seed

    def grown(self, sets: SafeSet, tau: Tensor) -> SafeSet:
        """Return the sets with all actions whose bounds keep the thresholds.

        Args:
            sets: bounds and the safe set before.
            tau: thresholds, ``(T, m)``.
        """
        return sets._replace(safe=(sets.slack(tau) >= 0).all(1) | self._seed)

    def expanders(
        self, sets: SafeSet, tau: Tensor, beliefs: Any, mean: Tensor, beta: Tensor
    ) -> Tensor:
        """Return the safe actions that could make a new one safe, ``(T, N)``.

        Args:
            sets: bounds and the safe set.
            tau: thresholds, ``(T, m)``.
            beliefs: where covariances come from.
            mean: of all actions, ``(T, F, N)``.
            beta: by what deviations are multiplied, ``(T, F)``.
        """
        found, tau = torch.ones_like(sets.safe), tau.to(sets.upper).unsqueeze(-1)
        # all that is in some trial safe, and all that is in some trial not
        masks = devices.host(sets.safe.any(0), (~sets.safe).any(0))
        useful, open_ = (
            devices.put(mask.nonzero().squeeze(-1), mean.device) for mask in masks
        )
        if not len(open_):
            return torch.zeros_like(sets.safe)
        step = max(1, SMALL // (len(found) * len(open_)))
        for group in beliefs.groups:
            costs = [f for f in group.functions if f > 0]
            if not costs:
                continue
            noise = group.noise
            covariances = group.engine.covariances(open_)
            for at in useful.split(step):
                c, own, there = covariances(at)  # T x n x o, T x n, T x o
                seen = own + noise.unsqueeze(-1)
                var = there.unsqueeze(1) - c.square() / seen.unsqueeze(-1)
                std = var.clamp_min(0).sqrt_()
                for f in costs:
                    # the cost's lower bound, less its mean
                    gap = (sets.lower[:, f, at] - mean[:, f, at]).double() / seen
                    after = mean[:, f, None, open_] + c * gap.unsqueeze(-1)
                    after = after + beta[:, f, None, None] * std
                    after = torch.minimum(sets.upper[:, f, None, open_].double(), after)
                    new = (after <= tau[:, f - 1, None]) & ~sets.safe[:, None, open_]
                    found[:, at] &= new.any(-1)
        return found & sets.safe
