"""The base class of policies with a safe action, which keep limits in every round.

In shapes, ``T`` counts trials, ``m`` costs, ``F = 1 + m`` functions, ``N`` actions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Actions
from cbandit.beliefs.classes import FiniteClass
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.linear import Linear
from cbandit.errors import CBanditError
from cbandit.policies.abilities import SAFE_REFUSES, Abilities
from cbandit.policies.base import Policy
from cbandit.policies.checks import belief_list, read_points
from cbandit.policies.choices import News, Outcome
from cbandit.policies.inbox import check_ranges
from cbandit.policies.keywords import PolicyKeywords
from cbandit.policies.posterior import Marginal, Posterior
from cbandit.policies.safe.action import Safe, SafeAction
from cbandit.policies.safe.bounds import WidthFactors
from cbandit.policies.safe.estimate import Block, SafeEstimate, check_has_safe
from cbandit.policies.saving import locked
from cbandit.policies.signs import names_of
from cbandit.policies.turn import Turn
from cbandit.recommend import Recommendation

REWARD_COLUMN, COST_COLUMNS = slice(0, 1), slice(1, None)


class Model(Protocol):
    """A policy's model of reward and costs: linear functions or independent arms."""

    @property
    def longest(self) -> Tensor | None:
        """Length of the longest action, ``(1 or T,)``; ``None`` without coordinates."""

    def start(self) -> Any:
        """Return empty observations, for the time before the first round."""

    def identify(self, x: Tensor, arm: Tensor | None) -> Tensor:
        """Return the action's point, or number, by which observations are stored.

        Args:
            x: the action, ``(T, d)``.
            arm: its number in the policy's set, ``(T,)``; ``None``: unknown.
        """

    def has_data(self, observations: Any) -> Tensor:
        """Return the actions with data of all functions, ``(T, 1 or N)`` bool."""

    def estimates(self, observations: Any) -> Iterator[Block]:
        """Yield estimates and deviations over the policy's set, in blocks."""

    def recommend_likely(
        self, state: SafeState, limits: Tensor, confidence: float, mask: Tensor | None
    ) -> Recommendation:
        """Return the best action or distribution believed feasible.

        Args:
            state: the policy's state.
            limits: the thresholds, ``(T, m)``.
            confidence: the probability that the costs keep the thresholds.
            mask: the actions that have not failed, ``(T, N)`` bool; ``None``: all.
        """


class SafeState(NamedTuple):
    """The state of a stage-wise policy between rounds.

    Args:
        data: the observations, as the model keeps them.
        safe: the estimate of the safe action's reward and costs.
        multiplier: the dual solution of the last programme, ``(T, m)``; 0 without one.
        longest: in linear policies, the greatest length of an action so far,
            ``(1 or T,)``; ``None`` in others.
        warned: whether a linear policy has warned that it may never leave the safe
            action.
    """

    data: Any
    safe: SafeEstimate
    multiplier: Tensor
    longest: Any = None
    warned: bool = False


class Stagewise(Policy):
    """Base class of policies with a safe action and limits in every round.

    It has the safe action, the factors of the widths and the observations. A policy
    adds its rule, and calls ``_start`` at the end of its constructor.

    Args:
        actions: what can be chosen.
        belief_type: the class of the beliefs.
        reward: the belief about the reward.
        costs: the belief about the cost, a list with one for each cost, or a dict of
            them by name.
        safe: the action known to be safe.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``, or ``(alpha_r, alpha_c)``; by the theorem unless given.
        largest: ``r_max``, the largest possible mean reward; unless given, the upper
            end of the reward's means or range if that is known, else 1.
        common: see :class:`~cbandit.policies.base.Policy`.
    """

    _model: Model
    abilities = Abilities(partial_costs=True, refuses=SAFE_REFUSES)

    def __init__(
        self,
        actions: Actions,
        belief_type: type[Linear | Counts | FiniteClass],
        reward: object,
        costs: object,
        safe: Safe | None,
        delta: float,
        alpha: ArrayLike | None,
        largest: ArrayLike | None,
        **common: Unpack[PolicyKeywords],
    ) -> None:
        beliefs, names = [reward, *belief_list(costs, belief_type)], names_of(costs)
        for j, belief in enumerate(beliefs):
            if not isinstance(belief, belief_type):
                name = "reward" if j == 0 else f"costs[{j - 1}]"
                wanted = f"cb.{belief_type.__name__}"
                raise CBanditError(
                    f"{name} must be a {wanted}; got {checks.kind(belief)}"
                )
        if belief_type is Linear and getattr(actions, "covariance", None) is not None:
            raise CBanditError(
                "actions must have coordinates: cb.Linear knows nothing of arms given "
                "by their covariance alone"
            )
        super().__init__(actions, names or len(beliefs) - 1, **common)
        self._beliefs = [self.objective.belief(j, one) for j, one in enumerate(beliefs)]
        self.delta = checks.share("delta", delta)
        self._ranges = [belief.range for belief in self._beliefs]
        reward_range = getattr(self._beliefs[0], "means", self._ranges[0])
        noises = [
            self._per_trial("subgaussian", belief.subgaussian)
            for belief in self._beliefs
        ]
        self._subgaussian = r = torch.stack(noises, -1)
        self._factors = WidthFactors.of(alpha, self._per_trial)
        default_largest = 1.0 if reward_range is None else reward_range[1]
        linear = belief_type is Linear
        self._safe = SafeAction.of(self, safe, r, largest, default_largest, linear)
        if self._safe.reward is not None:
            stated = self._safe.reward.unsqueeze(-1)
            check_ranges("safe.reward", stated, (0,), self._ranges)
        if self._safe.cost is not None:
            stated, every = self._safe.cost, range(1, self.m + 1)
            check_ranges("safe.cost", stated, every, self._ranges)
            self._safe.check_below(self.limits(1))

    def _must_work(self) -> list[tuple[int | None, Tensor]]:
        """Return the number and point of each trial's action that must not fail."""
        return self._safe.numbers_and_points()

    def _start(self, model: Model) -> None:
        """Set the model, and the state before the first round."""
        self._model, safe = model, SafeEstimate.start(self._safe)
        zero = torch.zeros(self.size, self.m, dtype=torch.float64, device=self.device)
        self.begin(SafeState(model.start(), safe, zero, model.longest))

    @property
    @locked
    def multiplier(self) -> Tensor:
        """The dual solution of the last programme, ``(*trials, m)``; 0 without one."""
        return self._user_shape(self._now.state.multiplier.clone())

    # -- deciding --------------------------------------------------------------------

    def _unsafe_trials(
        self, state: SafeState, turn: Turn, tau: Tensor
    ) -> Tensor | None:
        """Return the trials in which the data say the safe arm is unsafe, ``(T,)``.

        ``None`` stands for no trial. This is for policies that know arms by number
        alone: raise an error if the round has another set, or lacks the safe arm.
        """
        if turn.actions is not self.actions:
            raise CBanditError(
                "ask(actions=...) needs coordinates that tell something; "
                f"{self.name} knows its arms by their numbers alone and takes "
                "ask(among=...)"
            )
        unsafe = state.safe.unsafe_trials(tau)
        check_has_safe(turn.mask, self._safe.index)
        return unsafe

    # -- learning --------------------------------------------------------------------

    def absorb(self, state: SafeState, news: News) -> SafeState:
        """Return the state after feedback of one choice."""
        choice = news.choice
        arm = None
        if choice.index is not None and choice.actions is None:
            arm = choice.index.reshape(self.size)
        place = self._model.identify(choice.x.reshape(self.size, -1).double(), arm)
        if not state.safe.ready:
            state = state._replace(safe=state.safe.after(news))
        state = state._replace(safe=state.safe.check_largest(news, self))
        told = [(REWARD_COLUMN, item) for item in news.rewards]
        told += [(COST_COLUMNS, item) for item in news.costs]
        plain = all(item.is_full and item.noise is None for _, item in told)
        if len(told) == 2 and plain:
            values = torch.cat([item.values for _, item in told], -1)
            return state._replace(data=state.data.added(place, values))
        observations = state.data
        for functions, item in told:
            row = self._values_and_weights(functions, item)
            observations = observations.added(place, *row, functions)
        return state._replace(data=observations)

    def _values_and_weights(
        self, functions: slice, told: Outcome
    ) -> tuple[Tensor, Tensor | None]:
        """Return the values of one told outcome and their weights in the estimates.

        Both are ``(T, f)``, for the columns ``functions``. Weights ``None`` are all 1.
        """
        if told.is_full and told.noise is None:
            return told.values, None
        values, came = told.in_columns(self.m)
        weight = came.to(values)
        if told.noise is not None:
            # noisier observations count less; more precise ones count once
            r = self._subgaussian[:, functions].square()
            weight = weight * (r / told.noise.unsqueeze(-1)).clamp_max(1.0)
        return values, weight

    @locked
    def observe(
        self,
        *,
        index: ArrayLike | None = None,
        x: ArrayLike | None = None,
        reward: Any = None,
        cost: Any = None,
        params: Any = None,
    ) -> None:
        """Learn from ``n`` rows of earlier data.

        Args:
            index: the actions' numbers, ``(n,)`` or ``(*trials, n)``.
            x: or the actions' coordinates, ``(n, d)`` or ``(*trials, n, d)``.
            params: or the actions by name, ``n`` dicts, or with trials lists of dicts.
            reward: the rewards, ``(n,)`` or ``(*trials, n)``; left out: not observed.
            cost: the costs, ``(n, m)`` or ``(*trials, n, m)``, or without the last axis
                if m = 1; left out: not observed.
        """
        x = read_points(self.actions, x, params)
        if (index is None) == (x is None):
            raise CBanditError("observe takes one of index=, x= and params=")
        if reward is None and cost is None:
            raise CBanditError("observe needs reward=, cost= or both; got neither")
        arms, points = self._read_rows(index, x)
        parts: list[tuple[slice, Tensor]] = []
        for name, data, functions, m in (
            ("reward", reward, REWARD_COLUMN, 1),
            ("cost", cost, COST_COLUMNS, self.m),
        ):
            if data is None:
                continue
            data = self.objective.stacked(data)
            value = checks.tensor(name, data, device=self.device)
            value = checks.measured(name, value, self.dtype)
            value = checks.rows(name, value, self.batch_shape, (m,), points.shape[1])
            every = range(1 + self.m)[functions]
            value = self.objective.turned(value, every)
            check_ranges(name, value.reshape(-1, m), every, self._ranges)
            parts.append((functions, value))
        state = self._catch_up().state
        observations = state.data
        for i in range(points.shape[1]):
            arm = None if arms is None else arms[:, i]
            place = self._model.identify(points[:, i], arm)
            for functions, value in parts:
                observations = observations.added(place, value[:, i], None, functions)
        self._set_state(state._replace(data=observations))

    def _read_rows(
        self, index: ArrayLike | None, x: ArrayLike | None
    ) -> tuple[Tensor | None, Tensor]:
        """Return the actions' numbers ``(T, n)`` and their points ``(T, n, d)``.

        The numbers are ``None`` if the user gave points, ``x``.
        """
        if index is not None:
            numbers = checks.tensor("index", index, None, self.device)
            numbers = checks.rows("index", numbers, self.batch_shape)
            return numbers, self.actions.points(numbers).double()
        points = checks.finite("x", checks.tensor("x", x, device=self.device))
        points = checks.rows("x", points, self.batch_shape, (self.actions.dim,))
        return None, points

    # -- what is believed ------------------------------------------------------------

    def _estimates(self, state: SafeState) -> Iterator[Block]:
        """Yield estimates and deviations over the policy's set, in blocks."""
        return self._model.estimates(state.data)

    @locked
    def posterior(self) -> Posterior:
        """Return estimates over the set, and deviations under noise ``R^2``."""
        blocks = self._estimates(self._catch_up().state)
        _, means, stds = zip(*blocks, strict=True)
        mean, std = torch.cat(means, -1), torch.cat(stds, -1)
        return self._make_posterior(mean, std)

    def _believe_at(self, x: Tensor) -> Posterior | None:
        """Return the beliefs at actions of the set; ``None``: some are not in it."""
        with contextlib.suppress(CBanditError):
            index, posterior = self.actions.index(x.to(self.dtype)), self.posterior()
            parts = [
                Marginal(part.mean[..., index], part.std[..., index])
                for part in (posterior.reward, posterior.costs)
                if part is not None
            ]
            return Posterior(parts[0], parts[1] if len(parts) > 1 else None)
        return None

    def _points_to_deploy(self, trial: int) -> Tensor | None:
        with contextlib.suppress(CBanditError):  # no data
            best = self.recommend()
            x = best.x.reshape(self.size, -1, self.actions.dim)[trial]
            if best.distribution is None:
                return x
            share = best.distribution.probability.reshape(self.size, -1)[trial]
            order = share.argsort(descending=True)
            return x[order][share[order] > 0]
        return None

    @locked
    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """Return what to deploy: the best distribution believed feasible.

        Its expected costs keep the limits with probability ``confidence``. A policy
        that plays single actions recommends one. Before any data, return the safe
        action if the user stated its cost.
        """
        confidence = checks.share("confidence", confidence)
        now = self._catch_up()
        limits = self.limits(max(now.t, 1))
        size = (self.size, int(self.actions.size))
        data, mask = self._has_data(now.state).expand(size), self._unplayed_turn().mask

        def best(among: Tensor | None) -> Recommendation:
            return self._recommend_likely(now.state, limits, confidence, among)

        answer = now.state.safe.recommend(data, mask, best)
        return self.objective.recommended(answer.of(self._user_shape))

    def _has_data(self, state: SafeState) -> Tensor:
        """Return the actions with data of all functions, ``(T, 1 or N)`` bool."""
        return self._model.has_data(state.data)

    def _recommend_likely(
        self, state: SafeState, limits: Tensor, confidence: float, mask: Tensor | None
    ) -> Recommendation:
        """Return each trial's best action or distribution that is believed feasible."""
        return self._model.recommend_likely(state, limits, confidence, mask)
