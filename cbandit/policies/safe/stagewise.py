"""What policies with a safe action and a constraint at every stage have in common.

Optimism about the reward, pessimism about costs, and a reward that is inflated as much
as pessimism takes away: ``alpha_r = 1 + 2 (r_max - r0) / min_j (tau_j - c0_j)``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.randomness import Streams
from cbandit.beliefs.classes import FiniteClass
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.linear import Linear
from cbandit.choice import Choice, Distribution
from cbandit.errors import CBanditError
from cbandit.policies.believed import Marginal, Posterior
from cbandit.policies.decision import Decision
from cbandit.policies.given import listed
from cbandit.policies.ledger import Told
from cbandit.policies.safe.action import Safe, SafeAction
from cbandit.policies.stepwise import Stepwise
from cbandit.recommend import Recommendation, recommend_policy

__all__ = ["Scales", "Stagewise", "draw", "drawn", "given_scales", "must_hold"]

Belief = Linear | Counts | FiniteClass

_REWARD, _COSTS, _EVERY = slice(0, 1), slice(1, None), slice(None)


class Stagewise(Stepwise):
    """A safe action, scales of optimism, what was observed; a policy adds its rule.

    Args:
        actions: what can be chosen.
        kind: what its beliefs must be.
        reward: the belief about the reward.
        costs: the belief about the cost, or one a cost.
        safe: the action known to be safe.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``, or ``(alpha_r, alpha_c)``; the theorem's unless given.
        largest: ``r_max``, the largest possible mean reward; the upper end of the
            reward's range where that is stated, else 1.
        common: see :class:`~cbandit.policies.policy.Policy`.
    """

    def __init__(
        self,
        actions: Any,
        kind: type[Belief],
        reward: Any,
        costs: Any,
        safe: Safe | None,
        delta: float,
        alpha: Any,
        largest: Any,
        **common: Any,
    ) -> None:
        beliefs = [reward, *listed(costs, kind)]
        for j, belief in enumerate(beliefs):
            if not isinstance(belief, kind):
                name = "reward" if j == 0 else f"costs[{j - 1}]"
                raise CBanditError(
                    f"{name} must be a cb.{kind.__name__}; got {checks.kind(belief)}"
                )
        super().__init__(actions, len(beliefs) - 1, **common)
        self.delta = share("delta", delta)
        self._ranges = [belief.range for belief in beliefs]
        if largest is None:
            largest = 1.0 if reward.range is None else reward.range[1]
        self._largest = self._per_trial(
            "largest", checks.finite("largest", checks.tensor("largest", largest))
        )
        self._subgaussian = torch.stack(
            [
                self._per_trial("subgaussian", getattr(b, "subgaussian", 1.0))
                for b in beliefs
            ],
            -1,
        )
        self._scales = given_scales(alpha, self._per_trial)
        self._safe = SafeAction(
            safe,
            self.actions,
            self.batch_shape,
            self._subgaussian,
            self._largest,
            self.delta,
            self.horizon,
        )
        if self._safe.given[0]:
            self._within("safe.reward", self._safe.reward.unsqueeze(-1), _REWARD)
        if self._safe.given[1]:
            self._within("safe.cost", self._safe.cost, _COSTS)
            self._safe.check(self._limits(1))
        self._fixed_alpha: tuple[Tensor, Tensor] | None = None
        # the last programme's dual solution
        self._multiplier = torch.zeros(
            self._size, self.m, dtype=torch.float64, device=self.device
        )

    def _feedback(self, name: str, value: Any, m: int, mask: Tensor | None) -> Tensor:
        out = super()._feedback(name, value, m, mask)
        if name == "reward":
            return self._within(name, out, _REWARD, mask)
        return self._within(name, out, _COSTS, mask)

    def _within(
        self, name: str, value: Tensor, functions: slice, mask: Tensor | None = None
    ) -> Tensor:
        """``value`` ``(T, f)`` if it lies in the stated ranges."""
        for column, limits in zip(
            value.unbind(-1), self._ranges[functions], strict=True
        ):
            if limits is None:
                continue
            if mask is not None:
                column = column[devices.put(mask, column.device)]
            outside = (column < limits[0]) | (column > limits[1])
            if bool(outside.any()):
                raise CBanditError(
                    f"{name} must lie in the stated range of {limits[0]:g} to "
                    f"{limits[1]:g}; got {column[outside][0].item():g}"
                )
        return value

    # -- learning --------------------------------------------------------

    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        x = choice.x.reshape(self._size, -1).double()
        arm = None
        if choice.index is not None and choice.actions is None:
            arm = choice.index.reshape(self._size)
        told = [(_REWARD, one) for one in rewards] + [(_COSTS, one) for one in costs]
        if not self._safe.ready:
            at, limits = (x == self._safe.x).all(-1), self._limits(choice.t)
            for functions, one in told:
                where = at if one.where is None else at & one.mask()
                if functions is _REWARD:
                    self._safe.learn(one.values, None, where, limits)
                else:
                    self._safe.learn(None, one.values, where, limits)
        if len(told) == 2 and all(o.where is None and o.noise is None for _, o in told):
            whole = torch.cat([one.values for _, one in told], -1)
            told = [(_EVERY, told[0][1]._replace(values=whole))]
        for functions, one in told:
            weight = self._weight(one, functions)
            self._learn(functions, x, arm, one.values, weight)

    def _weight(self, told: Told, functions: slice) -> Tensor | None:
        """How much each observation counts, ``(T, f)``; ``None``: all count once."""
        if told.where is None and told.noise is None:
            return None
        weight = torch.ones_like(told.values)
        if told.noise is not None:
            # noisier observations count less; better ones never more than once
            r = self._subgaussian[:, functions].square()
            weight = (r / told.noise.unsqueeze(-1)).clamp_max(1.0)
        if told.where is not None:
            weight = weight * told.mask().unsqueeze(-1)
        return weight

    def observe(
        self, *, index: Any = None, x: Any = None, reward: Any = None, cost: Any = None
    ) -> None:
        """Learn from ``n`` rows of data from before.

        Args:
            index: the actions' numbers, ``(n,)`` or ``(*trials, n)``.
            x: or the actions themselves, ``(n, d)`` or ``(*trials, n, d)``.
            reward: ``(n,)`` or ``(*trials, n)``.
            cost: ``(n, m)`` or ``(*trials, n, m)``; without the last axis if m = 1.
        """
        if (index is None) == (x is None):
            raise CBanditError("observe takes either index= or x=")
        if reward is None and cost is None:
            raise CBanditError("observe needs reward=, cost= or both; got neither")
        arms, points = self._rows_of(index, x)
        n = points.shape[1]
        parts: list[tuple[slice, Tensor]] = []
        for name, given, functions, m in (
            ("reward", reward, _REWARD, 1),
            ("cost", cost, _COSTS, self.m),
        ):
            if given is None:
                continue
            value = checks.finite(name, checks.tensor(name, given, device=self.device))
            value = checks.rows(name, value, self.batch_shape, (m,), n)
            self._within(name, value.reshape(-1, m), functions)
            parts.append((functions, value))
        self._settled()
        for i in range(n):
            arm = None if arms is None else arms[:, i]
            for functions, value in parts:
                self._learn(functions, points[:, i], arm, value[:, i], None)

    def _rows_of(self, index: Any, x: Any) -> tuple[Tensor | None, Tensor]:
        """Numbers ``(T, n)``, where there are any, and points ``(T, n, d)``."""
        if index is not None:
            given = checks.tensor("index", index, None, self.device)
            numbers = checks.rows("index", given, self.batch_shape)
            return numbers, self.actions.points(numbers).double()
        given = checks.finite("x", checks.tensor("x", x, device=self.device))
        points = checks.rows("x", given, self.batch_shape, (self.actions.dim,))
        return self._arms(points), points

    def _arms(self, points: Tensor) -> Tensor | None:
        """Numbers of the actions at ``points`` ``(T, n, d)``, for counts."""
        found: Tensor = self.actions.index(points)
        return found

    @abstractmethod
    def _learn(
        self,
        functions: slice,
        x: Tensor,
        arm: Tensor | None,
        y: Tensor,
        weight: Tensor | None,
    ) -> None:
        """Observe ``y`` ``(T, f)`` at ``x`` ``(T, d)``, ``weight`` ``(T, f)`` times."""

    # -- deciding --------------------------------------------------------

    def _alpha(self, limits: Tensor) -> tuple[Tensor, Tensor]:
        """``alpha_r`` and ``alpha_c``, ``(T,)`` each."""
        if self._fixed_alpha is None:
            found = self._scales(self._safe.ratio(limits))
            if not self._safe.ready or callable(self._thresholds):
                return found
            self._fixed_alpha = found
        return self._fixed_alpha

    # -- what is believed --------------------------------------------------------

    @abstractmethod
    def _believed(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """``(start, means (T, F, n), spreads (T, F, n))`` over the policy's own set."""

    def posterior(self) -> Posterior:
        """Estimates over the set; ``std`` is that of noise of variance ``R^2``."""
        self._catch_up()
        found = list(self._believed())
        mean = torch.cat([f[1] for f in found], -1)
        std = torch.cat([f[2] for f in found], -1)
        reward = Marginal(self._outside(mean[:, 0]), self._outside(std[:, 0]))
        return Posterior(
            reward, Marginal(self._outside(mean[:, 1:]), self._outside(std[:, 1:]))
        )

    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """What to deploy: the best distribution believed feasible with ``confidence``.

        Over the policy's own set; its expected costs are what is to be feasible.
        """
        confidence = share("confidence", confidence)
        self._catch_up()
        limits, size = self._limits(max(self.t, 1)), int(self.actions.size)
        found = recommend_policy(self._known, size, limits, confidence)
        assert found.index is not None
        return self._recommended(found, self.actions.points(found.index))

    def _known(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """As ``_believed``, with what is given of the safe action."""
        return self._safe.known(self._believed())

    def _recommended(self, found: Recommendation, x: Tensor) -> Recommendation:
        return replace(found, x=x).of(self._outside)

    def lighten(self) -> None:
        """Before a checkpoint; nothing here is worth computing afresh."""


class Scales:
    """``alpha_r`` and ``alpha_c``: given, or the theorem's from the safety gaps."""

    def __init__(self, reward: Tensor | None, cost: Tensor | None) -> None:
        self.reward, self.cost = reward, cost

    def __call__(self, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """From ``2 (r_max - r0) / (tau_j - c0_j)``, ``(T, m)``."""
        alpha = 1 + ratio.amax(-1) if self.reward is None else self.reward
        return alpha, torch.ones_like(alpha) if self.cost is None else self.cost


def given_scales(alpha: Any, per_trial: Any) -> Scales:
    """From what a user gives as ``alpha``."""
    if alpha is None:
        return Scales(None, None)
    pair = alpha if isinstance(alpha, tuple) else (alpha, None)
    if len(pair) != 2:
        raise CBanditError(
            f"alpha must be alpha_r or (alpha_r, alpha_c); got {alpha!r}"
        )
    out = [
        None if a is None else per_trial("alpha", checks.nonnegative("alpha", a))
        for a in pair
    ]
    return Scales(*out)


def draw(distribution: Distribution, streams: Streams) -> Tensor:
    """An action's number ``(T,)`` from distributions ``(T, k)``."""
    share = distribution.probability.double()
    last = (share > 0).sum(-1) - 1  # zero-padded: rounding must not reach the padding
    drawn = devices.put(streams.uniform().reshape(-1, 1), share.device)
    place = (drawn >= share.cumsum(-1)).sum(-1)
    at = torch.minimum(place, last).unsqueeze(-1)
    return distribution.index.gather(-1, at).squeeze(-1)


def drawn(
    distribution: Distribution,
    safe: SafeAction,
    streams: Streams,
    infeasible: Tensor,
    at: Tensor | None = None,
) -> Decision:
    """The round's decision: a draw, or the safe action where too little is known of it.

    ``at`` is its number, ``(T,)``, in a set of this round alone.
    """
    index, probability = distribution.index, distribution.probability
    if not safe.ready:
        at = safe.index if at is None else at
        assert at is not None
        warm, only = safe.warm.unsqueeze(-1), torch.zeros_like(index)
        only[:, 0] = at
        index = torch.where(warm, index, only)
        certain = torch.zeros_like(probability)
        certain[:, 0] = 1.0
        probability = torch.where(warm, probability, certain)
    distribution = Distribution(index, probability)
    return Decision(draw(distribution, streams), infeasible, distribution)


def must_hold(mask: Tensor | None, safe: Tensor | None) -> None:
    """``among`` ``(1 or T, N)`` must leave the safe action ``(T,)``."""
    if mask is None or safe is None:
        return
    held = mask.expand(len(safe), -1).gather(-1, safe.unsqueeze(-1))
    if not bool(held.all()):
        raise CBanditError("among must leave the safe action in every trial")


def share(name: str, value: Any) -> float:
    """``value`` as a number strictly between 0 and 1."""
    out = checks.number(name, value)
    if not 0 < out < 1:
        raise CBanditError(f"{name} must lie between 0 and 1; got {out:g}")
    return out
