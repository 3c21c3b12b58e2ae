"""Estimates of the safe action's reward and costs, and decisions that use them.

If reward and costs are not stated, Algorithm 5 estimates them: the action is played
until the averages satisfy ``c0 + w <= tau`` and ``r0 + w <= r_max``, where
``w = 3 R sqrt(2 ln((m + 1) T / delta) / n)``; each average is frozen when its test
passes. Then both gaps are known within a factor of 1/2 to 3/2.

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise
constraints, 2024, Algorithm 5, with the analysis' width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.log import warn
from cbandit._core.randomness import Streams
from cbandit.actions import Actions
from cbandit.choice import Distribution
from cbandit.errors import CBanditError, InfeasibleError
from cbandit.policies.choices import News
from cbandit.policies.concerns.failure_list import blocks_within
from cbandit.policies.safe.action import SafeAction, numbered
from cbandit.policies.turn import Decision
from cbandit.posterior.units import Units
from cbandit.recommend import Recommendation, nothing_told, recommend_policy

SELDOM = 64  # on a device, rounds between looks for rewards above the largest

Block = tuple[int, Tensor, Tensor]  # first action, means (T, F, n), spreads (T, F, n)


@dataclass(frozen=True, eq=False)
class Average:
    """An average over plays of the safe action, frozen once its test has passed.

    Args:
        mean: the average, ``(T, k)``.
        scale: ``3 R``, ``(T, k)``.
        log: ``2 ln((m + 1) T / delta)``.
        plays: how many plays are in each average, ``(T, k)``.
        known: the trials in which the test has passed, ``(T,)``.
    """

    mean: Tensor
    scale: Tensor
    log: float
    plays: Tensor
    known: Tensor

    @classmethod
    def start(cls, value: Tensor | None, r: Tensor, log: float) -> Average:
        """Return the average before any play, or ``value (T, k)`` if that is given.

        ``r`` is ``R`` of the noise, ``(T, k)``.
        """
        nothing = torch.zeros_like(r)
        known = torch.full_like(nothing[:, 0], value is not None, dtype=torch.bool)
        return cls(nothing if value is None else value, 3 * r, log, nothing, known)

    @property
    def width(self) -> Tensor:
        """The width ``w`` of the average, ``(T, k)``."""
        return self.scale * (self.log / self.plays).sqrt()

    def told(
        self, values: Tensor, where: Tensor, limit: Tensor, size: Tensor | float = 1.0
    ) -> Average:
        """Return the average after one more play.

        Args:
            values: what was observed, ``(T, k)``.
            where: which values count, because the action was played and they were told,
                ``(T, k)``.
            limit: what the average plus its width must not exceed, ``(T, k)``.
            size: the unit of ``scale``, ``(T, k)``; infinite while there is none.
        """
        fresh = (where & ~self.known.unsqueeze(-1)).double()
        plays = self.plays + fresh
        share = fresh / plays.clamp_min(1)
        mean = self.mean + share * (values - self.mean)
        now = replace(self, mean=mean, plays=plays)
        passed = (mean + now.width * size <= limit).all(-1)
        return replace(now, known=self.known | ((fresh > 0).any(-1) & passed))


@dataclass(frozen=True, eq=False)
class SafeEstimate:
    """The safe action's reward and costs, as far as they are known.

    Args:
        action: the safe action as the user states it.
        reward: its reward, ``(T, 1)``.
        cost: its costs, ``(T, m)``.
        ready: whether both are known in all trials.
        warned: whether a warning came that rewards are above ``r_max``.
    """

    action: SafeAction
    reward: Average
    cost: Average
    ready: bool
    warned: bool = False

    @classmethod
    def start(cls, action: SafeAction) -> SafeEstimate:
        """Return the estimate before any play."""
        r, log = action.subgaussian, action.log
        reward = None if action.reward is None else action.reward.unsqueeze(-1)
        ready = reward is not None and action.cost is not None
        first = Average.start(reward, r[:, :1], log)
        return cls(action, first, Average.start(action.cost, r[:, 1:], log), ready)

    @property
    def warm(self) -> Tensor:
        """Trials in which both are known, ``(T,)``."""
        return self.reward.known & self.cost.known

    def after(self, news: News, units: Units | None = None) -> SafeEstimate:
        """Return the estimate after feedback, if that is of the safe action.

        Args:
            news: the choice and its feedback.
            units: the units of the noise; ``None``: the user's own.
        """
        size = self._sizes(units)
        x = news.choice.x.reshape(len(size), -1).double()
        at = (x == self.action.x).all(-1, keepdim=True)
        reward, cost, largest = self.reward, self.cost, self.action.largest
        for told in news.rewards:
            values, came = told.wide(1)
            limit = largest.unsqueeze(-1)
            reward = reward.told(values, at & came, limit, size[:, :1])
        for told in news.costs:
            values, came = told.wide(news.limits.shape[-1])
            cost = cost.told(values, at & came, news.limits, size[:, 1:])
        ready = bool((reward.known & cost.known).all())
        return replace(self, reward=reward, cost=cost, ready=ready)

    def compared(
        self, news: News, policy: Any, units: Units | None = None
    ) -> SafeEstimate:
        """Warn, once, if rewards are above ``r_max`` beyond doubt.

        That is so if one reward is further above it than noise may be, or the safe
        action's average is, whose test then never passes. In all but a share ``delta``
        of runs no warning is wrong.

        Args:
            news: the choice and its feedback, which ``after`` took in.
            policy: it has ``delta``, and the direction of rewards.
            units: the units of the noise; ``None``: the user's own.
        """
        if self.warned or not news.rewards:
            return self
        largest, t = self.action.largest.unsqueeze(-1), news.choice.t
        if news.rewards[0].values.is_cuda and t % SELDOM:
            return self  # to wait for the device in every round would slow it down
        r = self.action.subgaussian[:, :1]
        if units is not None:  # noise may be learned; it is within the outcomes' spread
            r = r.clamp_min(1.0)
        r, trials = r * self._sizes(units)[:, :1], 2 * math.log(len(r))
        # noise is above this in any trial of round t with probability delta/(t (t + 1))
        noise = r * math.sqrt(2 * math.log(t * (t + 1) / policy.delta) + trials)
        seen = [("a reward", *told.wide(1), noise) for told in news.rewards]
        waits = ~self.reward.known
        if bool(waits.any()):
            plays, waiting = self.reward.plays, waits.unsqueeze(-1)
            width = r * ((self.reward.log + trials) / plays).sqrt()
            average = (
                "the safe action's mean reward",
                self.reward.mean,
                waiting,
                width,
            )
            seen.append(average)
        for what, value, where, width in seen:
            above = where & (value - width > largest)
            if bool(above.any()):
                i = int(above.flatten().nonzero()[0])
                one, most = (
                    policy.objective.reward(v.flatten()[i].cpu()).item()
                    for v in (value, largest.expand_as(value))
                )
                stays = ", so that only the safe action is played" * bool(waits[i])
                warn(
                    f"largest: {what} of {one:.4g} in round {t} contradicts "
                    f"{most:.4g}, the best mean reward that {policy.name} takes to be "
                    f"possible{stays}: build the policy with largest= the best mean "
                    "reward that an action may have"
                )
                return replace(self, warned=True)
        return self

    def _sizes(self, units: Units | None) -> Tensor:
        """Return the size of each function's unit, ``(T, 1 + m)``.

        It is infinite for a function without a unit yet, 1 if there are no ``units``.
        """
        if units is None:
            return torch.ones_like(self.action.subgaussian)
        return torch.where(units.known, units.size, torch.inf)

    def unsafe(self, limits: Tensor, units: Units | None = None) -> Tensor | None:
        """Return the trials ``(T,)`` whose data say that the safe action is unsafe.

        ``None``: no trial. It raises an error if the data of all trials say so.

        Args:
            limits: this round's thresholds, ``(T, m)``.
            units: the units of the noise; ``None``: the user's own.
        """
        if self.action.cost is not None:
            if not self.action.fixed:
                self.action.below(limits)
            return None
        if self.ready:
            return None
        room, played = limits - self.cost.mean, (self.cost.plays > 0).any(-1)
        # w is three times a width that holds with probability 1 - delta
        width = self.cost.width * self._sizes(units)[:, 1:]
        beyond = (room + width / 3 < 0).any(-1)
        unsafe = played & ~self.cost.known & beyond
        if bool(unsafe.all()):
            raise InfeasibleError(
                f"safe: after {int(self.cost.plays.max())} plays the safe action's "
                f"mean cost of {self.cost.mean.tolist()} is above its threshold "
                f"{limits.tolist()} beyond doubt; no round can be guaranteed",
                violation=-room,
            )
        return unsafe

    def ratio(self, limits: Tensor, units: Units | None = None) -> Tensor:
        """Return ``2 (r_max - r0) / (tau_j - c0_j)``, ``(T, m)``.

        A value that is estimated makes the factor 6, not 2; where too little is known
        the gap counts as 1. With ``units``, the ratio is in these, and 0 where a
        function has none. The limits are in the user's own units.
        """
        stated = self.action.reward is not None and self.action.cost is not None
        gap = (self.action.largest - self.reward.mean[:, 0]).unsqueeze(-1)
        room = torch.where(self.warm.unsqueeze(-1), limits - self.cost.mean, 1.0)
        ratio = (2.0 if stated else 6.0) * gap / room
        if units is None:
            return ratio
        return (ratio / units.ratio(limits.shape[-1])).nan_to_num(0.0)

    def within(self, units: Units | None) -> SafeEstimate:
        """Return this with the stated reward and costs converted to units.

        Where a cost has no unit yet, the safe action's cost is set to its threshold.
        """
        if units is None:
            return self
        action = self.action
        inside = (units.center, units.size, units.known)
        center, size, known = (part.to(action.x.device) for part in inside)
        reward, cost = action.reward, action.cost
        if reward is not None:
            reward = torch.where(known[:, 0], (reward - center[:, 0]) / size[:, 0], 0.0)
        if cost is not None:
            cost = torch.where(known[:, 1:], (cost - center[:, 1:]) / size[:, 1:], 0.0)
        return replace(self, action=replace(action, reward=reward, cost=cost))

    # -- among the actions of a round ------------------------------------------------

    def exact(self, u: Tensor, limits: Tensor, at: Tensor, start: int = 0) -> None:
        """Overwrite the bounds ``u`` of the safe action by what is known of it.

        Even if its cost is only estimated, the action counts as within the limits.

        Args:
            u: bounds of the actions from number ``start`` on, ``(T, 1 + m, n)``.
            limits: this round's thresholds, ``(T, m)``.
            at: the action's number in this round's set, ``(T,)``.
            start: the number of the first action in ``u``.
        """
        at, last = at - start, u.shape[-1] - 1
        present, place = (at >= 0) & (at <= last), at.clamp(0, last)
        place = place[:, None, None].expand(-1, u.shape[1], 1)
        bounds = u.gather(-1, place).squeeze(-1)
        known = bounds.clone()
        if self.action.reward is not None:
            known[:, 0] = self.action.reward
        if self.action.cost is not None:
            known[:, 1:] = self.action.cost
        else:
            known[:, 1:] = torch.minimum(bounds[:, 1:], limits.to(u))
        known = torch.where(present.unsqueeze(-1), known, bounds)
        u.scatter_(-1, place, known.unsqueeze(-1))

    def drawn(
        self,
        distribution: Distribution,
        at: Tensor,
        streams: Streams,
        infeasible: Tensor | None,
        enough: Tensor | None = None,
    ) -> Decision:
        """Return an action drawn, or the safe one while too little is known of it.

        Args:
            distribution: what to draw from, ``(T, k)``.
            at: the safe action's number in this round's set, ``(T,)``.
            streams: where the draw comes from.
            infeasible: trials whose data say that the safe action is unsafe, ``(T,)``.
            enough: trials whose beliefs can say what is safe, ``(T,)``; ``None``: all.
        """
        index, probability = distribution.index, distribution.probability
        if not self.ready or enough is not None:
            warm = (self.warm if enough is None else self.warm & enough).unsqueeze(-1)
            first = torch.arange(index.shape[-1], device=index.device) == 0
            index = torch.where(warm, index, at.unsqueeze(-1) * first)
            probability = torch.where(warm, probability, first.to(probability))
        share = probability.double()
        last = (share > 0).sum(-1) - 1  # rounding must not lead into the zero padding
        uniform = devices.put(streams.uniform().reshape(-1, 1), share.device)
        place = torch.minimum((uniform >= share.cumsum(-1)).sum(-1), last)
        number = index.gather(-1, place.unsqueeze(-1)).squeeze(-1)
        played = Distribution(index, probability)
        return Decision(number, infeasible, played, sure=True)

    # -- recommendations -------------------------------------------------------------

    def among(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the blocks with the safe action's stated values put in, at spread 0."""
        at, reward, cost = self.action.index, self.action.reward, self.action.cost
        for start, mean, std in blocks:
            if at is None or (reward is None and cost is None):
                yield start, mean, std
                continue
            present = (at >= start) & (at < start + mean.shape[-1])
            rows, place = present.nonzero()[:, 0], (at - start)[present]
            mean, std = mean.clone(), std.expand_as(mean).clone()
            if reward is not None:
                mean[rows, 0, place] = reward[rows].to(mean)
                std[rows, 0, place] = 0.0
            if cost is not None:
                mean[rows, 1:, place] = cost[rows].to(mean)
                std[rows, 1:, place] = 0.0
            yield start, mean, std

    def mixture(
        self,
        actions: Actions,
        blocks: Callable[[], Iterable[Block]],
        limits: Tensor,
        confidence: float,
        left: Tensor | None,
    ) -> Recommendation:
        """Return the best distribution believed feasible with ``confidence``.

        Args:
            actions: the set.
            blocks: returns estimates and spreads over the set, each time it is called.
            limits: the thresholds, ``(T, m)``.
            confidence: the probability that the expected costs keep them.
            left: the actions to choose from, ``(T, N)``; ``None``: all.
        """

        def estimates() -> Iterator[Block]:
            return blocks_within(self.among(blocks()), left)

        best = recommend_policy(estimates, int(actions.size), limits, confidence)
        return replace(best, x=actions.at(numbered(best.index)), names=actions.names)

    def recommended(
        self,
        data: Tensor,
        left: Tensor | None,
        best: Callable[[Tensor | None], Recommendation],
    ) -> Recommendation:
        """Return the best recommendation among actions with data, for ``T`` trials.

        The safe action needs no data if its cost is stated. A trial without such an
        action recommends nothing; it is an error if no trial has one.

        Args:
            data: the actions with data of all functions, ``(T, N)``.
            left: the actions that have not failed, ``(T, N)``; ``None``: all.
            best: takes actions ``(T, N)``, or ``None`` for all; returns the best of
                them.
        """
        action, bare = self.action, ~data.any(-1)
        unknown = torch.zeros_like(bare) if action.cost is not None else bare
        if bool(unknown.all()):
            raise nothing_told()
        if action.cost is not None and action.index is not None:
            data = data.scatter(1, action.index.unsqueeze(-1), True)
        among = data | unknown.unsqueeze(-1)
        if left is not None:
            among = among & left
        answer = best(None if bool(among.all()) else among).withheld(unknown)
        if action.reward is not None:
            return answer
        return replace(answer, value=torch.where(bare, torch.nan, answer.value))


def must_hold(mask: Tensor | None, safe: Tensor | None) -> None:
    """Raise an error unless ``among (1 or T, N)`` has the safe action ``(T,)``."""
    if mask is None or safe is None:
        return
    allowed = mask.expand(len(safe), -1).gather(-1, safe.unsqueeze(-1))
    if not bool(allowed.all()):
        raise CBanditError("among must leave the safe action in every trial")
