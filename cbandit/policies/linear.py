"""Policies whose beliefs are linear functions of an action's coordinates."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cbandit import checks, search
from cbandit.actions import Finite, ProductGrid, Star
from cbandit.beliefs.linear import Linear, Ridge
from cbandit.errors import CBanditError
from cbandit.policies.base import Decision
from cbandit.policies.stagewise import Stagewise, must_hold
from cbandit.posterior.blocks import partition
from cbandit.safe import Safe

__all__ = ["LinearPolicy"]

CHUNK = 2**14  # actions looked at together


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
        common: see :class:`~cbandit.policies.base.Policy`.
    """

    def __init__(
        self,
        actions: Any,
        reward: Linear,
        costs: Any,
        safe: Safe,
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
        self._warned = False
        self._fan: Tensor | None = None  # the policy's own star, see _fan_of
        if isinstance(actions, Star):
            self._fan = self._fan_of(self.actions)
        self._scale = torch.zeros_like(ridge)  # this round's widths
        self._shift: Tensor | None = None  # and what moves the reward's estimate
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
        return longest

    def _round_actions(self, actions: Any) -> Any:
        asked = super()._round_actions(actions)
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

    # -- the best action that is surely safe
    # --------------------------------------------------------

    def _best_safe(
        self,
        t: int,
        asked: Any,
        mask: Tensor | None,
        tau: Tensor,
        alpha: Tensor,
        shift: Tensor | None = None,
    ) -> Decision:
        """``argmax V_r`` over ``{V_c <= tau}``, widths scaled by ``alpha`` ``(T, F)``.

        ``shift`` ``(T, d)`` moves the reward's coefficients.
        """
        infeasible = self._safe.check(tau)
        at = self._at_safe(asked)
        must_hold(mask, at)
        self._scale, self._shift = self._width(t) * alpha, shift
        if isinstance(asked, Star):
            index, x = self._on_star(asked, mask, tau)
            if not self._safe.ready:
                x = torch.where(self._safe.warm.unsqueeze(-1), x, self._safe.x)
            return Decision(index, infeasible, x=x.to(self.dtype))
        assert at is not None
        index = self._on_points(asked, mask, tau, at)
        if not self._safe.ready:
            index = torch.where(self._safe.warm, index, at)
        return Decision(index, infeasible)

    def _bounds(self, x: Tensor) -> Tensor:
        """``V_r`` and every ``V_c``, ``(T, 1 + m, n)``, at ``x`` ``(T or 1, n, d)``."""
        mean, norm = self._ridge.at(x)
        bounds = torch.addcmul(mean, norm, self._scale.unsqueeze(-1))
        if self._shift is not None:
            bounds[:, 0] += (x @ self._shift.unsqueeze(-1)).squeeze(-1)
        return bounds

    def _on_points(
        self, asked: Any, mask: Tensor | None, tau: Tensor, at: Tensor
    ) -> Tensor:
        """The number ``(T,)`` of the best safe one of finitely many actions."""

        def estimates() -> Any:
            for start, points in self._stretches(asked):
                bounds = self._bounds(points)
                bounds[:, 1:] -= tau.unsqueeze(-1)
                here = (at >= start) & (at < start + points.shape[-2])
                rows, places = here.nonzero()[:, 0], (at - start)[here]
                bounds[rows, 1:, places] = bounds[rows, 1:, places].clamp_max(0.0)
                yield start, bounds

        best = search.maximise(estimates(), search.within_limits, mask)
        assert best.index is not None
        if not self._warned and bool((best.index == at).all()):
            self._warned = True
            warnings.warn(
                f"{self.name} plays the safe action, being sure of no other. On a "
                "Finite set it may never leave it, as that teaches nothing about the "
                "others; a Star around it, where one can go part of the way, does",
                stacklevel=5,
            )
        return best.index

    def _on_star(
        self, star: Star, mask: Tensor | None, tau: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The segment ``(T,)`` and the point ``(T, d)`` on it."""
        fan = self._fan
        if fan is None or star is not self.actions:
            fan = self._fan_of(star)  # T x d x (1 + K)
        w, root = self._ridge.solve()
        mean = w @ fan  # T x F x (1 + K)
        ray = (root.flatten(1, 2) @ fan).unflatten(
            1, root.shape[1:3]
        )  # T x F x d x (1 + K)
        scale, tau = self._scale.unsqueeze(-1), tau.unsqueeze(-1)
        if self._safe.given[1]:
            norm = ray[:, 1:, :, 1:].square().sum(-2).sqrt()
            costs = torch.addcmul(mean[:, 1:, 1:], scale[:, 1:], norm)
            a = search.furthest(self._safe.cost.unsqueeze(-1), costs, tau).unsqueeze(-1)
        else:
            start, step = ray[:, 1:, :, :1], ray[:, 1:, :, 1:] - ray[:, 1:, :, :1]
            a = search.safe_interval(
                tau - mean[:, 1:, :1],
                mean[:, 1:, 1:] - mean[:, 1:, :1],
                scale[:, 1:],
                start.square().sum(-2),
                (start * step).sum(-2),
                step.square().sum(-2),
            )
        # at a share a of the way, T x K x e, all is affine but the norm
        if self._shift is not None:
            mean = mean[:, :1] + self._shift.unsqueeze(-2) @ fan
        value = torch.lerp(mean[:, 0, :1, None], mean[:, 0, 1:, None], a)
        here = torch.lerp(
            ray[:, 0, :, :1, None], ray[:, 0, :, 1:, None], a.unsqueeze(1)
        )
        value = torch.addcmul(value, scale[:, :1], here.square().sum(1).sqrt())
        if mask is not None:
            value = value.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        first = mean[:, 0, :1] + scale[:, 0] * ray[:, 0, :, 0].norm(
            dim=-1, keepdim=True
        )
        best = torch.cat([first, value.flatten(1)], -1).argmax(-1)
        # 0 is the centre, then both ends of a segment beside each other
        place = (best - 1).clamp_min(0)
        share = a.flatten(1).gather(-1, place.unsqueeze(-1))
        share = share.masked_fill((best == 0).unsqueeze(-1), 0.0)
        segment = place if a.shape[-1] == 1 else place // a.shape[-1]
        tips = fan.expand(self._size, -1, -1)
        tip = tips.gather(-1, (segment + 1).view(-1, 1, 1).expand(-1, fan.shape[1], 1))
        return segment, torch.lerp(tips[..., 0], tip.squeeze(-1), share)

    def _fan_of(self, star: Star) -> Tensor:
        """The centre and the tips, ``(T or 1, d, 1 + K)``."""
        tips = star.tips.double()
        tips = tips if tips.dim() == 3 else tips.unsqueeze(0)
        x0 = self._safe.x.unsqueeze(1)
        if bool((x0 == x0[:1]).all()):
            x0 = x0[:1].expand(len(tips), -1, -1)
        tips = tips.expand(len(x0), -1, -1)
        return torch.cat([x0, tips], 1).mT.contiguous()

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
        x = actions.points(safe.index)
    if bool((x != 0).any()):
        return safe
    reward = 0.0 if safe.reward is None else safe.reward
    cost = 0.0 if safe.cost is None else safe.cost
    return Safe(index=safe.index, x=safe.x, reward=reward, cost=cost)
