"""Uniformly random actions: what every comparison should beat.

Over all actions, or with ``feasible=True`` over those where every cost's mean is at or
below its threshold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.arguments import stated
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.gp import GPPolicy
from cbandit.policies.ledger import News
from cbandit.policies.policy import Policy
from cbandit.policies.state import GPState
from cbandit.policies.suits import believed_costs
from cbandit.posterior.units import level

__all__ = ["FeasibleRandom", "Random", "Uniform", "drawn"]

TRIES = 1024  # points of a box that are drawn, of which a feasible one is played


def Random(
    actions: Any,
    *,
    reward: GP | None = None,
    costs: Any = 0,
    feasible: bool = False,
    **common: Any,
) -> Uniform | FeasibleRandom:
    """Uniformly random actions, of all or of those believed feasible.

    Args:
        actions: what can be chosen; on a star its tips.
        reward: with ``feasible=True`` the belief about the reward,
            :meth:`GP.default <cbandit.GP.default>` unless given.
        costs: how many costs it is told; with ``feasible=True`` the belief about the
            cost, or a list of them.
        feasible: whether to learn, and to play only what is believed feasible.
        common: ``thresholds``, ``seed``, ``trials``, ``device``, ``dtype``,
            ``horizon``; with ``feasible=True`` also ``feedback``, ``engine``.

    Example:
        >>> import cbandit as cb
        >>> actions = cb.Finite([[0.0], [1.0]])
        >>> policy = cb.baselines.Random(actions, costs=1)
        >>> policy.tell(policy.ask(), reward=1.0, cost=0.2)
        >>> gp = cb.GP.default(actions)
        >>> policy = cb.baselines.Random(actions, costs=gp, feasible=True)
        >>> policy.tell(policy.ask(), reward=1.0, cost=0.2)
    """
    if not checks.flag("feasible", feasible):
        if isinstance(costs, GP) or costs is None:
            costs = int(isinstance(costs, GP))
        elif isinstance(costs, list | tuple | dict):
            costs = len(costs)
        return Uniform(actions, costs=costs, **common)
    if costs is None or isinstance(costs, int):
        raise CBanditError(
            "feasible=True needs beliefs about the costs: give costs= as a cb.GP or a "
            f"list of them; got {costs!r}"
        )
    return FeasibleRandom(actions, reward=reward, costs=costs, **common)


class Uniform(Policy):
    """Every allowed action with the same probability, whatever came of others.

    On a star these are the tips.

    Args:
        actions: what can be chosen.
        costs: how many costs it is told; it learns nothing from them.
        common: see below.
    """

    name = "Random"

    def __init__(self, actions: Any, *, costs: int = 0, **common: Any) -> None:
        self.settings = stated(self, locals())
        m = checks.whole("costs", costs, 0, "how many costs there are")
        super().__init__(actions, m, **common)
        self._begin(None)

    def decide(self, state: None, asked: Asked) -> tuple[Decision, None]:
        """Return one draw a trial."""
        on, mask = asked.actions, asked.mask
        count = on.dim if on.continuous else 1
        shares = asked.streams.uniform(count).reshape(self._size, -1)
        found = torch.stack(
            [
                drawn(on, None if mask is None else mask[k % len(mask)], share)
                for k, share in enumerate(shares.to(self.device))
            ]
        )
        if on.continuous:
            return Decision(None, x=found.to(self.dtype), sure=True), state
        return Decision(found, sure=True), state

    def absorb(self, state: None, news: News) -> None:
        """Learn nothing."""


def drawn(asked: Any, allowed: Tensor | None, share: Tensor) -> Tensor:
    """Return a uniform action, from uniform draws ``share``, ``(*n, d)`` on a box."""
    if asked.continuous:
        x: Tensor = asked.unit.point(share.to(asked.lower))
        if asked.choices is not None:
            row = asked.choices[(share[..., -1] * len(asked.choices)).long()]
            x[..., ~asked.free] = row
        return x
    if allowed is None:
        return (share[0] * int(asked.size)).long()
    numbers = allowed.nonzero().squeeze(-1)
    return numbers[(share[0] * len(numbers)).long()]


class FeasibleRandom(GPPolicy):
    """Uniformly random actions of those believed feasible.

    Where none is, the action whose largest mean excess is least.

    Args:
        actions: what can be chosen. On a box it is the first of 1 024 uniform points.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        common: see below.
    """

    name = "Random-feasible"
    splits = False

    def __init__(
        self, actions: Any, *, reward: GP | None = None, costs: Any, **common: Any
    ) -> None:
        self.settings = stated(self, locals())
        reward = GP.default(actions) if reward is None else reward
        both = {"reward": reward, "costs": believed_costs(costs)}
        super().__init__(actions, **both, explore=UCB(0.0), **common)

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Return one draw a trial."""
        tau = level(state.beliefs.units(), self._limits(asked.t))
        if asked.actions.continuous:
            return self._near(state, asked, tau), state
        return self._believed(state, asked, tau), state

    def _believed(self, state: GPState, asked: Asked, tau: Tensor) -> Decision:
        """Return the action a random share of the way through the feasible ones."""
        share = devices.put(asked.streams.uniform().reshape(-1), self.device)
        masks, kept = asked.mask, []
        least = torch.full_like(share, torch.inf)
        lowest = torch.zeros_like(share, dtype=torch.long)
        for start, mean, _ in self._looks(state, asked):
            over = (mean[:, 1:] - tau.to(mean).unsqueeze(-1)).amax(1).double()
            if masks is not None:
                hidden = ~masks[:, start : start + over.shape[-1]]
                over = over.masked_fill(hidden, torch.inf)
            kept.append(over <= 0)
            value, place = over.min(-1)
            better = value < least
            lowest = torch.where(better, place + start, lowest)
            least = torch.where(better, value, least)
        ranks = torch.cat(kept, -1).cumsum(-1)
        count = ranks[:, -1]
        place = (share * count).long().clamp_max(count - 1)
        index = torch.searchsorted(ranks, place.unsqueeze(-1) + 1).squeeze(-1)
        none = count == 0
        return Decision(torch.where(none, lowest, index), none, sure=True)

    def _near(self, state: GPState, asked: Asked, tau: Tensor) -> Decision:
        """Return the first of many uniform points that is believed feasible."""
        box, size = asked.actions, self._size
        share = asked.streams.uniform(TRIES, box.dim).reshape(size, TRIES, box.dim)
        x = drawn(box, None, share.to(self.device))
        mean, _ = state.beliefs.anywhere(x.double())
        over = (mean[:, 1:] - tau.unsqueeze(-1)).amax(1)
        none = (over > 0).all(-1)
        place = torch.where(none, over.argmin(-1), (over <= 0).int().argmax(-1))
        found = x[torch.arange(size, device=x.device), place]
        return Decision(None, none, x=found.to(self.dtype), sure=True)
