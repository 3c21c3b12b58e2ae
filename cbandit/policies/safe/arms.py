"""The model of stage-wise policies for independent arms, known by number alone.

The model keeps each arm's average and count; arms never pulled get bounds of their own.
In shapes, ``T`` counts trials, ``m`` costs, ``F = 1 + m`` functions, ``K`` arms.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce

import torch
from torch import Tensor

from cbandit.actions import Actions
from cbandit.policies.safe.estimate import Block, SafeEstimate
from cbandit.policies.safe.stagewise import SafeState
from cbandit.posterior.tally import Tally
from cbandit.recommend import Recommendation

BLOCK_ARMS = 2**16  # arms in a block, which then fits into the processor's cache


class Arms:
    """A model of independent arms: the average and count of each.

    Args:
        actions: the arms.
        subgaussian: ``R`` of reward and costs, ``(T, F)``.
        dtype: the dtype of the averages.
    """

    longest = None

    def __init__(
        self, actions: Actions, subgaussian: Tensor, dtype: torch.dtype
    ) -> None:
        self._actions, self._dtype = actions, dtype
        self._r = subgaussian

    def start(self) -> Tally:
        """Return the empty tally of averages and counts."""
        shape = (*self._r.shape, int(self._actions.size))
        return Tally.start(shape, self._dtype, self._r.device)

    def identify(self, x: Tensor, arm: Tensor | None) -> Tensor:
        """Return the arm's number ``(T,)``: ``arm`` if given, else the one at ``x``."""
        number: Tensor = self._actions.index(x) if arm is None else arm
        return number

    def has_data(self, observations: Tally) -> Tensor:
        """Return the arms with data of reward and all costs, ``(T, K)`` bool."""
        return (observations.count > 0).all(1)

    def estimates(self, observations: Tally) -> Iterator[Block]:
        """Yield one block: the averages of all arms, and their deviations."""
        mean = observations.mean
        yield 0, mean, observations.spread * self._r.to(mean).unsqueeze(-1)

    def recommend_likely(
        self, state: SafeState, limits: Tensor, confidence: float, mask: Tensor | None
    ) -> Recommendation:
        """Return the best distribution believed feasible in each trial."""
        blocks, safe = partial(self.estimates, state.data), state.safe
        return safe.recommend_mixture(self._actions, blocks, limits, confidence, mask)


def bound_unpulled(
    u: Tensor,
    count: Tensor,
    safe: SafeEstimate,
    tau: Tensor,
    safe_index: Tensor,
    max_costs: Tensor,
) -> None:
    """Overwrite the bounds of arms that were never pulled, and of the safe arm.

    The bound of a cost that was never observed is the largest mean stated for it;
    without one the arm is not played. The reward's bound is raised until the arm,
    played with the largest share ``g`` that fits beside the safe arm, has
    ``g u_r + (1 - g) u_r1 >= r_max``. With a lower bound the arm might look worse than
    known ones and never be tried.

    Args:
        u: the bounds ``u_r`` and every ``u_c``, ``(T, 1 + m, K)``; changed in place.
        count: the pulls of every arm, ``(T, 1 + m, K)``.
        safe: the estimate of the safe arm's reward and costs.
        tau: the thresholds, ``(T, m)``.
        safe_index: the safe arm's number, ``(T,)``.
        max_costs: the largest mean of every cost, ``(m, 1)``; infinite if not stated.
    """
    safe.overwrite_bounds(u, tau, safe_index)
    known = u.gather(-1, safe_index.view(-1, 1, 1).expand(-1, u.shape[1], 1))
    most = safe.action.largest.to(u).unsqueeze(-1)
    gap = (most - known[:, 0]).clamp_min(0.0)
    slope = gap.unsqueeze(-1) / (tau.to(u).unsqueeze(-1) - known[:, 1:])
    max_costs = max_costs.to(u)
    for part, pulls in zip(
        u.split(BLOCK_ARMS, -1), count.split(BLOCK_ARMS, -1), strict=True
    ):
        reward, cost = part[:, 0], part[:, 1:]
        torch.minimum(cost, max_costs, out=cost)
        cost.copy_(torch.where(pulls[:, 1:] > 0, cost, max_costs))
        least = (cost - known[:, 1:]).mul_(slope)
        least = reduce(torch.maximum, [gap, *least.unbind(1)]).add_(known[:, 0])
        # an arm whose cost may be infinite is not played, so no bonus is infinite
        least.nan_to_num_(0.0, posinf=0.0)
        torch.maximum(reward, least, out=least)
        pulled = reduce(torch.minimum, pulls.unbind(1)) > 0
        reward.copy_(torch.where(pulled, reward, least))
    safe.overwrite_bounds(u, tau, safe_index)  # the safe arm may be one never pulled
