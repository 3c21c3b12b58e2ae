"""The safe action's reward and costs: given, or estimated first by Algorithm 5.

It is played until ``c0 + w <= tau`` and ``r0 + w <= r_max`` hold for the averages seen,
``w = 3 R sqrt(2 ln((m + 1) T / delta) / n)``; each estimate is frozen when its own test
passes. Then both gaps are known within a factor of 1/2 to 3/2.

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise
constraints, 2024, Algorithm 5, with the analysis' width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cbandit.errors import InfeasibleError
from cbandit.policies.ledger import News
from cbandit.policies.safe.action import SafeAction
from cbandit.posterior.units import Units

__all__ = ["Estimate", "Known"]


@dataclass(frozen=True, eq=False)
class Estimate:
    """An average of plays of the safe action, until its test has passed.

    Args:
        mean: ``(T, k)``.
        scale: ``3 R``, ``(T, k)``.
        log: ``2 ln((m + 1) T / delta)``.
        plays: of each, ``(T, k)``.
        known: trials in which the test has passed, ``(T,)``.
    """

    mean: Tensor
    scale: Tensor
    log: float
    plays: Tensor
    known: Tensor

    @property
    def width(self) -> Tensor:
        """``w``, ``(T, k)``."""
        return self.scale * (self.log / self.plays).sqrt()

    def told(
        self, values: Tensor, where: Tensor, limit: Tensor, size: Tensor | float = 1.0
    ) -> Estimate:
        """Return the estimate after one more play.

        Args:
            values: what was observed, ``(T, k)``.
            where: in which trials the action was played and this was observed, ``(T,
                k)``.
            limit: what the estimate and its width must stay under, ``(T, k)``.
            size: the unit of ``scale``, ``(T, k)``; infinite where there is none yet.
        """
        fresh = (where & ~self.known.unsqueeze(-1)).double()
        plays = self.plays + fresh
        share = fresh / plays.clamp_min(1)
        mean = self.mean + share * (values - self.mean)
        now = replace(self, mean=mean, plays=plays)
        passed = (mean + now.width * size <= limit).all(-1)
        return replace(now, known=self.known | ((fresh > 0).any(-1) & passed))


@dataclass(frozen=True, eq=False)
class Known:
    """The safe action's reward and costs, given or estimated, as a value.

    Args:
        action: what was given.
        reward: its reward, ``(T, 1)``.
        cost: its costs, ``(T, m)``.
        ready: whether both are known in all trials.
    """

    action: SafeAction
    reward: Estimate
    cost: Estimate
    ready: bool

    @classmethod
    def start(cls, action: SafeAction) -> Known:
        """Return what is known before any play."""
        size, functions = action.subgaussian.shape
        nothing = action.subgaussian.new_zeros(size, functions)
        given = None if action.reward is None else action.reward.unsqueeze(-1)
        scale, log = 3 * action.subgaussian, action.log

        def begun(given: Tensor | None, columns: slice) -> Estimate:
            mean = nothing[:, columns] if given is None else given
            known = torch.full_like(nothing[:, 0], given is not None, dtype=torch.bool)
            return Estimate(mean, scale[:, columns], log, nothing[:, columns], known)

        ready = action.reward is not None and action.cost is not None
        reward, cost = begun(given, slice(0, 1)), begun(action.cost, slice(1, None))
        return cls(action, reward, cost, ready)

    @property
    def warm(self) -> Tensor:
        """Trials in which both are known, ``(T,)``."""
        return self.reward.known & self.cost.known

    def after(self, news: News, limits: Tensor, units: Units | None = None) -> Known:
        """Return this after feedback of a choice, if that was the safe action.

        Args:
            news: what came of it.
            limits: that round's thresholds, ``(T, m)``.
            units: those of the noise; ``None``: the user's own.
        """
        size = _sizes(self.action.subgaussian, units)
        x = news.choice.x.reshape(len(size), -1).double()
        at = (x == self.action.x).all(-1, keepdim=True)
        reward, cost, largest = self.reward, self.cost, self.action.largest
        for told in news.rewards:
            values, came = told.wide(1)
            own = at & came, largest.unsqueeze(-1), size[:, :1]
            reward = reward.told(values, *own)
        for told in news.costs:
            values, came = told.wide(limits.shape[-1])
            cost = cost.told(values, at & came, limits, size[:, 1:])
        ready = bool((reward.known & cost.known).all())
        return Known(self.action, reward, cost, ready)

    def unsafe(self, limits: Tensor, units: Units | None = None) -> Tensor | None:
        """Return the trials ``(T,)`` in which it is seen not to be safe.

        ``None``: in no trial; an error if that is so in all.

        Args:
            limits: this round's thresholds, ``(T, m)``.
            units: those of the noise; ``None``: the user's own.
        """
        if self.action.cost is not None:
            if not self.action.fixed:
                self.action.below(limits)
            return None
        if self.ready:
            return None
        room, seen = limits - self.cost.mean, (self.cost.plays > 0).any(-1)
        # w is three times the width that holds with probability 1 - delta
        width = self.cost.width * _sizes(self.action.subgaussian, units)[:, 1:]
        beyond = (room + width / 3 < 0).any(-1)
        found = seen & ~self.cost.known & beyond
        if bool(found.all()):
            raise InfeasibleError(
                f"safe: after {int(self.cost.plays.max())} plays the safe action's "
                f"mean cost of {self.cost.mean.tolist()} is above its threshold "
                f"{limits.tolist()} beyond doubt; no round can be guaranteed",
                violation=-room,
            )
        return found

    def ratio(self, limits: Tensor, units: Units | None = None) -> Tensor:
        """Return ``2 (r_max - r0) / (tau_j - c0_j)``, ``(T, m)``.

        With an estimate it is 6 in place of 2; 1 for the gap where too little is known.
        In units it is 0 where there is none yet. Limits are the user's own.
        """
        given = self.action.reward is not None and self.action.cost is not None
        gap = (self.action.largest - self.reward.mean[:, 0]).unsqueeze(-1)
        room = torch.where(self.warm.unsqueeze(-1), limits - self.cost.mean, 1.0)
        ratio = (2.0 if given else 6.0) * gap / room
        if units is None:
            return ratio
        return (ratio / units.ratio(limits.shape[-1])).nan_to_num(0.0)

    def within(self, units: Units | None) -> Known:
        """Return the same with what was given in units.

        Where there is none yet, the safe action's cost is at its threshold.
        """
        if units is None:
            return self
        action = self.action
        reward, cost = action.reward, action.cost
        inside = (units.center, units.size, units.known)
        center, size, known = (each.to(action.x.device) for each in inside)
        if reward is not None:
            reward = (reward - center[:, 0]) / size[:, 0]
            reward = torch.where(known[:, 0], reward, 0.0)
        if cost is not None:
            cost = (cost - center[:, 1:]) / size[:, 1:]
            cost = torch.where(known[:, 1:], cost, 0.0)
        return replace(self, action=replace(action, reward=reward, cost=cost))

    def exact(self, u: Tensor, limits: Tensor, at: Tensor, start: int = 0) -> None:
        """Write what is known of the action into fresh bounds, if it is among theirs.

        Where its cost is estimated, it is admissible all the same.

        Args:
            u: bounds of the actions from ``start`` on, ``(T, 1 + m, n)``.
            limits: this round's thresholds, ``(T, m)``.
            at: the action's number in this round's set, ``(T,)``.
            start: the number of the first of the ``n``.
        """
        at, last = at - start, u.shape[-1] - 1
        here, place = (at >= 0) & (at <= last), at.clamp(0, last)
        place = place[:, None, None].expand(-1, u.shape[1], 1)
        own = u.gather(-1, place).squeeze(-1)
        known = own.clone()
        if self.action.reward is not None:
            known[:, 0] = self.action.reward
        if self.action.cost is not None:
            known[:, 1:] = self.action.cost
        else:
            known[:, 1:] = torch.minimum(own[:, 1:], limits.to(u))
        known = torch.where(here.unsqueeze(-1), known, own)
        u.scatter_(-1, place, known.unsqueeze(-1))

    def among(
        self, blocks: Iterable[tuple[int, Tensor, Tensor]]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield blocks with what is given of the action, whose spread is 0 there.

        Args:
            blocks: ``(start, mean (T, F, n), std (T, 1 or F, n))``.
        """
        at, reward, cost = self.action.index, self.action.reward, self.action.cost
        for start, mean, std in blocks:
            if at is None or (reward is None and cost is None):
                yield start, mean, std
                continue
            here = (at >= start) & (at < start + mean.shape[-1])
            rows, place = here.nonzero()[:, 0], (at - start)[here]
            mean, std = mean.clone(), std.expand_as(mean).clone()
            if reward is not None:
                mean[rows, 0, place] = reward[rows].to(mean)
                std[rows, 0, place] = 0.0
            if cost is not None:
                mean[rows, 1:, place] = cost[rows].to(mean)
                std[rows, 1:, place] = 0.0
            yield start, mean, std


def _sizes(like: Tensor, units: Units | None) -> Tensor:
    """Return the units' sizes ``(T, 1 + m)``, infinite where there is none yet."""
    if units is None:
        return torch.ones_like(like)
    return torch.where(units.known, units.size, torch.inf)
