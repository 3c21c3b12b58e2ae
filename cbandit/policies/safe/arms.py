"""The model of stage-wise policies for independent arms, which have only numbers.

It has the average and the count of every arm, and bounds for arms never pulled.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import torch
from torch import Tensor

from cbandit.actions import Actions
from cbandit.policies.safe.estimate import Block, SafeEstimate
from cbandit.posterior.tally import Tally

BLOCK = 2**16  # arms at a time, so that a block fits into the processor's cache


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
        """Return the tally before any pull."""
        shape = (*self._r.shape, int(self._actions.size))
        return Tally.start(shape, self._dtype, self._r.device)

    def place(self, x: Tensor, arm: Tensor | None) -> Tensor:
        """Return ``arm``; if it is ``None``, the number of the arm at ``x (T, d)``."""
        number: Tensor = self._actions.index(x) if arm is None else arm
        return number

    def has_data(self, observations: Tally) -> Tensor:
        """Return the arms with data of all functions, ``(T, N)``."""
        return (observations.count > 0).all(1)

    def believed(self, observations: Tally) -> Iterator[Block]:
        """Yield the averages of all arms and the averages' deviations."""
        mean = observations.mean
        yield 0, mean, observations.spread * self._r.to(mean).unsqueeze(-1)


def bound_unpulled(
    u: Tensor, count: Tensor, safe: SafeEstimate, tau: Tensor, at: Tensor, top: Tensor
) -> None:
    """Overwrite the bounds of arms that were never pulled, and of the safe arm.

    A cost that was never observed may be as large as the largest mean stated; without a
    statement the arm is not played. The reward's bound is raised until the largest
    share ``g`` of the arm that fits beside the safe one has
    ``g u_r + (1 - g) u_r1 >= r_max``. With a lower bound the arm might look worse than
    known ones and never be tried.

    Args:
        u: bounds ``u_r`` and every ``u_c``, ``(T, 1 + m, K)``.
        count: the pulls of every arm, ``(T, 1 + m, K)``.
        safe: what is known of the safe arm.
        tau: the thresholds, ``(T, m)``.
        at: the safe arm's number, ``(T,)``.
        top: the largest mean stated for every cost, ``(m, 1)``; infinite if none is.
    """
    safe.exact(u, tau, at)
    known = u.gather(-1, at.view(-1, 1, 1).expand(-1, u.shape[1], 1))
    most = safe.action.largest.to(u).unsqueeze(-1)
    gap = (most - known[:, 0]).clamp_min(0.0)
    slope = gap.unsqueeze(-1) / (tau.to(u).unsqueeze(-1) - known[:, 1:])
    top = top.to(u)
    for part, pulls in zip(u.split(BLOCK, -1), count.split(BLOCK, -1), strict=True):
        reward, cost = part[:, 0], part[:, 1:]
        torch.minimum(cost, top, out=cost)
        cost.copy_(torch.where(pulls[:, 1:] > 0, cost, top))
        least = (cost - known[:, 1:]).mul_(slope)
        least = reduce(torch.maximum, [gap, *least.unbind(1)]).add_(known[:, 0])
        # an arm whose cost may be infinite is not played, so no bonus is infinite
        least.nan_to_num_(0.0, posinf=0.0)
        torch.maximum(reward, least, out=least)
        pulled = reduce(torch.minimum, pulls.unbind(1)) > 0
        reward.copy_(torch.where(pulled, reward, least))
    safe.exact(u, tau, at)  # the safe arm may be one never pulled
