"""Estimates of the safe action's reward and costs, and decisions that use them.

If the user does not state reward and costs, Algorithm 5 estimates them: the action is
played until the averages satisfy ``c0 + w <= tau`` and ``r0 + w <= r_max``, where
``w = 3 R sqrt(2 ln((m + 1) horizon / delta) / n)`` after ``n`` plays; each average is
frozen when its test passes. The gaps to ``tau`` and ``r_max`` are then known within a
factor of 1/2 to 3/2.

In shapes, ``T`` counts trials, ``m`` costs, ``F = 1 + m`` functions (the reward first),
``N`` the actions of the set, and ``n`` those in a block of it.

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

from cbandit._core.log import warn
from cbandit._core.randomness import Streams
from cbandit.actions import Actions
from cbandit.choice import Distribution, draw_actions
from cbandit.errors import CBanditError, InfeasibleError
from cbandit.policies.choices import News
from cbandit.policies.concerns.failure_list import blocks_within
from cbandit.policies.safe.action import SafeAction, require_numbers
from cbandit.policies.turn import Decision
from cbandit.posterior.units import Units
from cbandit.recommend import Recommendation, nothing_told, recommend_policy

CHECK_INTERVAL = 64  # on a GPU, rounds between checks for rewards above ``r_max``

Block = tuple[int, Tensor, Tensor]  # first action, means and deviations (T, F, n)


@dataclass(frozen=True, eq=False)
class Average:
    """Averages of ``k`` functions over plays of the safe action, until a test passes.

    Args:
        mean: the averages, ``(T, k)``.
        scale: a factor of the test's width, ``3 R`` with the noise's ``R``, ``(T, k)``.
        log: the test's logarithm, ``2 ln((m + 1) horizon / delta)``.
        plays: how many plays are in each average, ``(T, k)``.
        known: the trials whose test has passed, ``(T,)``; averages are then frozen.
    """

    mean: Tensor
    scale: Tensor
    log: float
    plays: Tensor
    known: Tensor

    @classmethod
    def start(cls, value: Tensor | None, r: Tensor, log: float) -> Average:
        """Return the averages before any play; ``value (T, k)``, if given, is final.

        ``r`` is ``R`` of the noise, ``(T, k)``; ``log`` is as in the class.
        """
        nothing = torch.zeros_like(r)
        known = torch.full_like(nothing[:, 0], value is not None, dtype=torch.bool)
        return cls(nothing if value is None else value, 3 * r, log, nothing, known)

    @property
    def width(self) -> Tensor:
        """The widths ``w`` of the averages, ``(T, k)``."""
        return self.scale * (self.log / self.plays).sqrt()

    def after_play(
        self, values: Tensor, where: Tensor, limit: Tensor, size: Tensor | float = 1.0
    ) -> Average:
        """Return the averages after one more play.

        Args:
            values: the observed values, ``(T, k)``.
            where: which values are those of a play of the safe action, ``(T, k)`` bool.
            limit: what an average plus its width must not exceed, ``(T, k)``.
            size: the unit of ``scale`` in the user's units, ``(T, k)``; infinite while
                it is unknown.
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
    """The estimate of the safe action's reward and costs.

    Args:
        action: the safe action as the user states it.
        reward: its reward, ``(T, 1)``.
        cost: its costs, ``(T, m)``.
        ready: whether reward and costs are known in all trials.
        warned: whether the policy has warned of rewards above ``r_max``.
    """

    action: SafeAction
    reward: Average
    cost: Average
    ready: bool
    warned: bool = False

    @classmethod
    def start(cls, action: SafeAction) -> SafeEstimate:
        """Return the estimate before any play."""
        r, log = action.subgaussian, action.log_term
        reward = None if action.reward is None else action.reward.unsqueeze(-1)
        ready = reward is not None and action.cost is not None
        first = Average.start(reward, r[:, :1], log)
        return cls(action, first, Average.start(action.cost, r[:, 1:], log), ready)

    @property
    def known(self) -> Tensor:
        """The trials in which reward and costs are known, ``(T,)`` bool."""
        return self.reward.known & self.cost.known

    def after(self, news: News, units: Units | None = None) -> SafeEstimate:
        """Return the estimate after feedback; only that of the safe action counts.

        Args:
            news: the choice and its feedback.
            units: the units of the noise; ``None``: the user's units.
        """
        size = self._unit_sizes(units)
        x = news.choice.x.reshape(len(size), -1).double()
        at = (x == self.action.x).all(-1, keepdim=True)
        reward, cost, largest = self.reward, self.cost, self.action.largest
        for told in news.rewards:
            values, came = told.in_columns(1)
            limit = largest.unsqueeze(-1)
            reward = reward.after_play(values, at & came, limit, size[:, :1])
        for told in news.costs:
            values, came = told.in_columns(news.limits.shape[-1])
            cost = cost.after_play(values, at & came, news.limits, size[:, 1:])
        ready = bool((reward.known & cost.known).all())
        return replace(self, reward=reward, cost=cost, ready=ready)

    def check_largest(
        self, news: News, policy: Any, units: Units | None = None
    ) -> SafeEstimate:
        """Warn, once, if rewards are above ``r_max`` beyond doubt; return the estimate.

        That is so if one reward, or the safe action's average reward, is further above
        ``r_max`` than noise may be. In all but a share ``delta`` of runs no warning is
        wrong.

        Args:
            news: the choice and its feedback, which :meth:`after` has added.
            policy: the policy, which has ``delta`` and the direction of rewards.
            units: the units of the noise; ``None``: the user's units.
        """
        if self.warned or not news.rewards:
            return self
        largest, t = self.action.largest.unsqueeze(-1), news.choice.t
        if news.rewards[0].values.is_cuda and t % CHECK_INTERVAL:
            return self  # waiting for the GPU in every round would slow it down
        r = self.action.subgaussian[:, :1]
        if units is not None:  # noise may be learned; 1 is the outcomes' spread
            r = r.clamp_min(1.0)
        r, trials = r * self._unit_sizes(units)[:, :1], 2 * math.log(len(r))
        # noise is above this in any trial of round t with probability delta/(t (t + 1))
        noise = r * math.sqrt(2 * math.log(t * (t + 1) / policy.delta) + trials)
        seen = [("a reward", *told.in_columns(1), noise) for told in news.rewards]
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

    def _unit_sizes(self, units: Units | None) -> Tensor:
        """Return the size of each function's unit in the user's units, ``(T, 1 + m)``.

        Units not known yet have infinite size; without ``units`` all are 1.
        """
        if units is None:
            return torch.ones_like(self.action.subgaussian)
        return torch.where(units.known, units.size, torch.inf)

    def unsafe_trials(
        self, limits: Tensor, units: Units | None = None
    ) -> Tensor | None:
        """Return the trials ``(T,)`` whose data say that the safe action is unsafe.

        ``None`` stands for no trial. If the data of all trials say so, or the stated
        cost is not below a limit that may change, raise an error.

        Args:
            limits: this round's thresholds, ``(T, m)``.
            units: the units of the noise; ``None``: the user's units.
        """
        if self.action.cost is not None:
            if not self.action.fixed_thresholds:
                self.action.check_below(limits)
            return None
        if self.ready:
            return None
        room, played = limits - self.cost.mean, (self.cost.plays > 0).any(-1)
        # w is three times a width that holds with probability 1 - delta
        width = self.cost.width * self._unit_sizes(units)[:, 1:]
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

    def gap_ratio(self, limits: Tensor, units: Units | None = None) -> Tensor:
        """Return ``2 (r_max - r0) / (tau_j - c0_j)``, ``(T, m)``.

        If reward or cost is estimated, the factor is 6 in place of 2, and the divisor
        is 1 in trials where they are not known yet. ``limits`` are ``tau``, in the
        user's units. With ``units`` the ratio is in these, 0 where one is unknown.
        """
        stated = self.action.reward is not None and self.action.cost is not None
        gap = (self.action.largest - self.reward.mean[:, 0]).unsqueeze(-1)
        room = torch.where(self.known.unsqueeze(-1), limits - self.cost.mean, 1.0)
        ratio = (2.0 if stated else 6.0) * gap / room
        if units is None:
            return ratio
        return (ratio / units.ratio(limits.shape[-1])).nan_to_num(0.0)

    def in_units(self, units: Units | None) -> SafeEstimate:
        """Return the estimate with the safe action's stated values in units.

        The stated reward and costs are 0 where a unit is not known yet. Without units
        they stay as they are.
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

    def overwrite_bounds(
        self, u: Tensor, limits: Tensor, safe_index: Tensor, start: int = 0
    ) -> None:
        """Overwrite the safe action's bounds in ``u`` by its stated values.

        If its cost is not stated, the cost's bound is lowered to the limit, if above.

        Args:
            u: bounds of the actions from number ``start`` on, ``(T, 1 + m, n)``.
            limits: this round's thresholds, ``(T, m)``.
            safe_index: the safe action's number in this round's set, ``(T,)``.
            start: the number of the first action in ``u``.
        """
        place, last = safe_index - start, u.shape[-1] - 1
        present, place = (place >= 0) & (place <= last), place.clamp(0, last)
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

    def draw(
        self,
        distribution: Distribution,
        safe_index: Tensor,
        streams: Streams,
        infeasible: Tensor | None,
        enough: Tensor | None = None,
        safe: Tensor | None = None,
    ) -> Decision:
        """Draw an action; in trials with too little data play the safe action.

        Args:
            distribution: the distribution to draw from, ``(T, k)``.
            safe_index: the safe action's number in this round's set, ``(T,)``.
            streams: the random streams.
            infeasible: trials whose data say that the safe action is unsafe, ``(T,)``;
                ``None``: no trial.
            enough: trials whose beliefs have enough data, ``(T,)``; ``None``: all.
            safe: the actions believed safe, ``(T, N)`` bool; ``None``: not asked for.
        """
        index, probability = distribution.index, distribution.probability
        known = None
        if not self.ready or enough is not None:
            known = self.known if enough is None else self.known & enough
            column = known.unsqueeze(-1)
            first = torch.arange(index.shape[-1], device=index.device) == 0
            index = torch.where(column, index, safe_index.unsqueeze(-1) * first)
            probability = torch.where(column, probability, first.to(probability))
        shares = Distribution(index, probability.double())
        number = draw_actions(shares, streams)
        chance = shares.chance(number)
        if known is not None:
            chance = chance.masked_fill(~known, torch.nan)
        played = Distribution(index, probability)
        return Decision(number, infeasible, played, sure=True, chance=chance, safe=safe)

    # -- recommendations -------------------------------------------------------------

    def with_safe_values(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the blocks; the safe action has its stated values and deviation 0."""
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

    def recommend_mixture(
        self,
        actions: Actions,
        blocks: Callable[[], Iterable[Block]],
        limits: Tensor,
        confidence: float,
        mask: Tensor | None,
    ) -> Recommendation:
        """Return the best distribution believed feasible with ``confidence``.

        Args:
            actions: the set.
            blocks: returns estimates and deviations over the set, whenever called.
            limits: the thresholds, ``(T, m)``.
            confidence: the probability that the expected costs keep the thresholds.
            mask: the actions to choose from, ``(T, N)`` bool; ``None``: all.
        """

        def estimates() -> Iterator[Block]:
            return blocks_within(self.with_safe_values(blocks()), mask)

        best = recommend_policy(estimates, int(actions.size), limits, confidence)
        return replace(
            best, x=actions.at(require_numbers(best.index)), names=actions.names
        )

    def recommend(
        self,
        data: Tensor,
        mask: Tensor | None,
        best: Callable[[Tensor | None], Recommendation],
    ) -> Recommendation:
        """Return the best recommendation among the actions with data, in each trial.

        The safe action needs no data if its cost is stated. In a trial without such an
        action nothing is recommended; if no trial has one, raise an error.

        Args:
            data: the actions with data of all functions, ``(T, N)`` bool.
            mask: the actions that have not failed, ``(T, N)`` bool; ``None``: all.
            best: takes the actions to choose from, ``(T, N)`` bool or ``None`` for all;
                returns the best of them.
        """
        action, bare = self.action, ~data.any(-1)
        unknown = torch.zeros_like(bare) if action.cost is not None else bare
        if bool(unknown.all()):
            raise nothing_told()
        if action.cost is not None and action.index is not None:
            data = data.scatter(1, action.index.unsqueeze(-1), True)
        among = data | unknown.unsqueeze(-1)
        if mask is not None:
            among = among & mask
        answer = best(None if bool(among.all()) else among).withheld(unknown)
        if action.reward is not None:
            return answer
        return replace(answer, value=torch.where(bare, torch.nan, answer.value))


def check_has_safe(mask: Tensor | None, safe: Tensor | None) -> None:
    """Raise an error unless ``mask (1 or T, N)`` allows the actions ``safe (T,)``."""
    if mask is None or safe is None:
        return
    allowed = mask.expand(len(safe), -1).gather(-1, safe.unsqueeze(-1))
    if not bool(allowed.all()):
        raise CBanditError(
            "among must leave the safe action in every trial, and so must where="
        )
