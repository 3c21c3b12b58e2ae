"""Uniform play, over all actions or those believed feasible: what others must beat.

Each round:

1. ``x_t`` is uniform over the set; with ``feasible=True`` over the actions where every
   cost's mean is at or below its threshold, failing that the action whose largest mean
   excess is least;
2. observe reward and costs, update the beliefs: ``recommend`` and ``posterior`` are
   those of any policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.arguments import stated
from cbandit.baselines.botorch_policy import drawn
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.gp import GPPolicy
from cbandit.policies.state import GPState
from cbandit.posterior.units import level

__all__ = ["Random"]

TRIES = 1024  # points of a box that are drawn, of which a feasible one is played


class Random(GPPolicy):
    """Uniformly random actions.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward, :meth:`GP.default <cbandit.GP.default>`
            unless given.
        costs: the belief about the cost, or a list of them; or how many costs there
            are, without beliefs; ``None``: no costs.
        feasible: play only actions that are believed feasible. On a box it is the first
            of 1 024 uniform points.
        common: see below.

    Example:
        >>> import cbandit as cb, torch
        >>> actions = cb.Finite(torch.linspace(0, 1, 50).double().unsqueeze(-1))
        >>> gp = cb.GP.default(actions)
        >>> policy = cb.baselines.Random(actions, reward=gp, costs=gp, feasible=True)
        >>> policy.tell(policy.ask(), reward=0.1, cost=0.2)
    """

    splits = False

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP | None = None,
        costs: GP | Sequence[GP] | int | None = None,
        feasible: bool = False,
        **common: Any,
    ) -> None:
        self.settings = stated(self, locals())
        self.feasible = checks.flag("feasible", feasible)
        if feasible and (costs is None or isinstance(costs, int)):
            raise CBanditError(
                "feasible=True needs beliefs about the costs: give costs= as a cb.GP "
                f"or a list of them; got {costs!r}"
            )
        reward = GP.default(actions) if reward is None else reward
        both: dict[str, Any] = {"reward": reward, "costs": costs}
        super().__init__(actions, **both, explore=UCB(0.0), **common)
        self.name = "Random-feasible" if feasible else "Random"

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Return uniform actions."""
        on, box = asked.actions, bool(asked.actions.continuous)
        if self.feasible:
            tau = level(state.beliefs.units(), self._limits(asked.t))
            if box:
                return self._near(state, asked, tau), state
            return self._believed(state, asked, tau), state
        share = asked.streams.uniform(on.dim if box else 1)
        share = share.reshape(self._size, -1).to(self.device)
        if box:
            x = drawn(on, None, share).to(self.dtype)
            return Decision(None, x=x, sure=True), state
        none = [None] * self._size
        masks = none if asked.mask is None else asked.mask.expand(self._size, -1)
        rows = zip(masks, share, strict=True)
        found = torch.stack([drawn(on, mask, each) for mask, each in rows])
        return Decision(found, sure=True), state

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
