"""Policies whose beliefs are linear functions of an action's coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Box, Finite, ProductGrid, Star
from cbandit.actions.partition import partition
from cbandit.beliefs.linear import Linear, Ridge
from cbandit.errors import CBanditError
from cbandit.policies.safe.action import Safe
from cbandit.policies.safe.stagewise import Stagewise

__all__ = ["LinearPolicy"]

CHUNK = 2**14  # actions looked at together
LEAST = 1e-10  # of a squared length: less ridge is lost in rounding


class LinearPolicy(Stagewise):
    """Ridge estimates of reward and costs, and their confidence widths.

    Args:
        actions: a set of vectors.
        reward: the belief about the reward.
        costs: the belief about the cost, or one a cost.
        safe: the action known to be safe. Where its cost is given, costs are estimated
            across it only.
        delta: the share of runs in which the reward's bound may fail; likewise that in
            which any cost's may.
        alpha: ``alpha_r``, or ``(alpha_r, alpha_c)``; the theorem's unless given.
        beta: the width, a number, ``(*trials,)`` or a callable of the round, in place
            of the theory's.
        largest: ``r_max``, the largest possible mean reward.
        common: see :class:`~cbandit.policies.policy.Policy`.
    """

    def __init__(
        self,
        actions: Any,
        reward: Linear,
        costs: Any,
        safe: Safe | None,
        delta: float,
        alpha: Any,
        beta: Any,
        largest: Any,
        **common: Any,
    ) -> None:
        if isinstance(actions, Finite) and actions.covariance is not None:
            raise CBanditError(
                "actions must have coordinates: cb.Linear knows nothing of arms given "
                "by their covariance alone"
            )
        safe = _at_origin(safe, actions)
        super().__init__(
            actions, Linear, reward, costs, safe, delta, alpha, largest, **common
        )
        beliefs: list[Linear] = [
            reward,
            *([costs] if isinstance(costs, Linear) else costs),
        ]
        per_trial = self._per_trial
        ridge = torch.stack([per_trial("ridge", b.ridge) for b in beliefs], -1)
        norm = torch.stack([per_trial("norm", b.norm) for b in beliefs], -1)
        lengths = [b.length for b in beliefs if b.length is not None]
        self._stated = None  # L, (T,)
        if lengths:
            each = [per_trial("length", length) for length in lengths]
            self._stated = torch.stack(each).amin(0)
        self._smallest = ridge.amin(-1)
        self._longest = self._length(self.actions)
        at = self._safe
        if bool((at.origin & ((at.reward != 0) | (at.cost != 0).any(-1))).any()):
            raise CBanditError(
                "safe: the reward and cost of x = 0 are 0, for they are linear; got "
                f"reward = {at.reward.tolist()}, cost = {at.cost.tolist()}"
            )
        self._ridge = self._fresh(ridge)
        dim = torch.full_like(ridge, actions.dim)
        dim[:, 1:] -= self._ridge.along[:, 1:].any(-1).double()
        # R sqrt(d ln((1 + n L^2 / lam) / delta)) + sqrt(lam) S
        share = torch.full_like(ridge, self.delta)
        share[:, 1:] /= self.m
        self._inverse_ridge, self._log_share = 1 / ridge, -share.log()
        self._slope, self._floor = self._subgaussian.square() * dim, ridge.sqrt() * norm
        self._beta = beta if beta is None or callable(beta) else self._given_beta(beta)

    def _fresh(self, ridge: Tensor) -> Ridge:
        """Nothing seen; what is along a safe action of known cost is known."""
        at, dim = self._safe, self.actions.dim
        along = torch.zeros(*ridge.shape, dim, dtype=torch.float64, device=self.device)
        slope = torch.zeros_like(ridge)
        if at.given[1]:
            length = at.x.norm(dim=-1, keepdim=True).clamp_min(1e-300)
            along[:, 1:] = (at.x / length).unsqueeze(1)
            slope[:, 1:] = at.cost / length
        return Ridge(ridge, dim, along, slope)

    def _given_beta(self, beta: Any) -> Tensor:
        return self._per_trial("beta", checks.nonnegative("beta", beta)).unsqueeze(-1)

    def _length(self, actions: Any) -> Tensor:
        """The longest action, ``(1 or T,)``; an error if it is longer than stated."""
        if isinstance(actions, Star):
            ends = torch.cat(
                [actions.tips, actions.center.expand_as(actions.tips[..., :1, :])], -2
            )
            longest: Tensor = ends.double().norm(dim=-1).amax(-1).reshape(-1)
        else:
            longest = torch.stack(
                [
                    actions.block(a, b).double().norm(dim=-1).amax(-1).reshape(-1)
                    for a, b in partition(actions, CHUNK)
                ]
            ).amax(0)
        if self._stated is not None and bool(
            (longest > self._stated * (1 + 1e-9)).any()
        ):
            raise CBanditError(
                f"actions must be no longer than length = "
                f"{self._stated.min().item():g}; "
                f"the longest has length {longest.max().item():g}"
            )
        if bool((self._smallest < LEAST * longest.square()).any()):
            raise CBanditError(
                f"ridge must be at least {LEAST:g} times the squared length of every "
                "action, or it is lost in the rounding of their sums; got "
                f"{self._smallest.min().item():g}, and the longest action has length "
                f"{longest.max().item():g}"
            )
        return longest

    def _round_actions(self, actions: Any) -> Any:
        asked = super()._round_actions(actions)
        if isinstance(asked, Box):
            raise CBanditError(
                "actions of this round must be points, a cb.Finite, a cb.ProductGrid "
                f"or a cb.Star; got {asked!r}"
            )
        batch = tuple(asked.batch_shape)
        if batch and batch != self.batch_shape:
            raise CBanditError(
                f"actions of this round have sets for {batch[0]} trials; the policy "
                f"has {self.batch_shape}"
            )
        self._asked_longest = self._length(asked)
        self._asked_safe = self._safe.within(asked)
        return asked

    def _width(self, t: int) -> Tensor:
        """``beta`` of every function, ``(T, F)``."""
        if self._beta is not None:
            if callable(self._beta):
                return self._given_beta(self._beta(t)).expand_as(self._floor)
            return self._beta.expand_as(self._floor)
        length = self._longest if self._stated is None else self._stated
        grown = torch.log1p(
            self._ridge.count * length.square().unsqueeze(-1) * self._inverse_ridge
        )
        return (self._slope * (grown + self._log_share)).sqrt() + self._floor

    def _at_safe(self, asked: Any) -> Tensor | None:
        """The safe action's number in the set asked on, ``(T,)``."""
        if asked is self.actions:
            return self._safe.index
        # a longer action than any before widens every bound from now on
        self._longest = torch.maximum(self._longest, self._asked_longest)
        return self._asked_safe

    def _stretches(self, actions: Any) -> Iterator[tuple[int, Tensor]]:
        """``(start, points (1 or T, n, d))``; the tips of a star."""
        if isinstance(actions, Star):
            tips = actions.tips.double()
            yield 0, tips if tips.dim() == 3 else tips.unsqueeze(0)
            return
        if isinstance(actions, ProductGrid) or actions.size > CHUNK:
            for a, b in partition(actions, CHUNK):
                points = actions.block(a, b).double()
                yield a, points if points.dim() == 3 else points.unsqueeze(0)
            return
        points = actions.all.double()
        yield 0, points if points.dim() == 3 else points.unsqueeze(0)

    def _learn(
        self,
        functions: slice,
        x: Tensor,
        arm: Tensor | None,
        y: Tensor,
        weight: Tensor | None,
    ) -> None:
        self._ridge.add(functions, x, y, weight)

    def _arms(self, points: Tensor) -> Tensor | None:
        return None

    def _believed(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        for start, points in self._stretches(self.actions):
            mean, norm = self._ridge.at(points)
            yield start, mean, norm * self._subgaussian.unsqueeze(-1)


def _at_origin(safe: Any, actions: Any) -> Any:
    """A linear function is 0 at 0: nothing about it has to be estimated there."""
    if not isinstance(safe, Safe) or (
        safe.reward is not None and safe.cost is not None
    ):
        return safe
    if safe.x is not None:
        x = checks.tensor("safe.x", safe.x)
    else:
        try:
            x = actions.points(safe.index)
        except CBanditError as error:
            raise CBanditError(f"safe.{error}") from None
    if bool((x != 0).any()):
        return safe
    reward = 0.0 if safe.reward is None else safe.reward
    cost = 0.0 if safe.cost is None else safe.cost
    return Safe(index=safe.index, x=safe.x, reward=reward, cost=cost)
