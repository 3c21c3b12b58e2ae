"""The best action that is surely safe: what LC-LUCB and Safe-LTS play.

Among finitely many actions it is looked for one by one; on a star along each segment,
where costs' bounds are convex and the reward's is largest at an end of what is safe.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit import search
from cbandit.actions import Star
from cbandit.policies.decision import Decision
from cbandit.policies.safe.linear import LinearPolicy
from cbandit.policies.safe.stagewise import must_hold, share
from cbandit.recommend import Recommendation, quantile, recommend

__all__ = ["SurelySafe"]


class SurelySafe(LinearPolicy):
    """Plays one action, its costs' bounds within their limits.

    Args:
        actions: a finite set, or a :class:`~cbandit.Star` around the safe action.
        arguments: see :class:`~cbandit.policies.safe.linear.LinearPolicy`.
    """

    def __init__(self, actions: Any, *arguments: Any, **common: Any) -> None:
        super().__init__(actions, *arguments, **common)
        self._warned = False
        self._fan: Tensor | None = None  # the policy's own star, see _fan_of
        if isinstance(actions, Star):
            self._fan = self._fan_of(self.actions)
        at = self._safe
        self._rays = at.given[1] and bool(at.origin.all())  # segments start at 0
        self._scale = torch.zeros_like(self._floor)  # this round's widths
        self._shift: Tensor | None = None  # and what moves the reward's estimate

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
                place = (at - start).clamp(0, points.shape[-2] - 1)
                here = (place + start == at)[:, None, None]
                place = place[:, None, None].expand(-1, self.m, 1)
                own = bounds[:, 1:].gather(-1, place)
                own = torch.where(here, own.clamp_max(0.0), own)
                bounds[:, 1:].scatter_(-1, place, own)
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
        if self._shift is not None:
            mean[:, 0] += (self._shift.unsqueeze(-2) @ fan).squeeze(-2)
        a, value = self._ends(mean, ray, tau)  # T x K x e, T x (1 + K e)
        if mask is not None:
            allowed = mask.repeat_interleave(a.shape[-1], -1)
            value[:, 1:].masked_fill_(~allowed, -torch.inf)
        best = value.argmax(-1)
        # 0 is the centre, then both ends of a segment beside each other
        place = (best - 1).clamp_min(0)
        share = a.flatten(1).gather(-1, place.unsqueeze(-1))
        share = share.masked_fill((best == 0).unsqueeze(-1), 0.0)
        segment = place if a.shape[-1] == 1 else place // a.shape[-1]
        tips = fan.expand(self._size, -1, -1)
        tip = tips.gather(-1, (segment + 1).view(-1, 1, 1).expand(-1, fan.shape[1], 1))
        return segment, torch.lerp(tips[..., 0], tip.squeeze(-1), share)

    def _ends(self, mean: Tensor, ray: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        """The safe ends of each segment, and ``V_r`` at the centre and at these.

        From means ``(T, F, 1 + K)`` and ``A x`` ``(T, F, d, 1 + K)`` at the centre and
        the tips.
        """
        scale = self._scale.unsqueeze(-1)
        if self._rays:
            # from 0 on, bounds are in proportion to the share of the way
            bounds = torch.addcmul(mean, scale, ray.square().sum(-2).sqrt())
            cost = self._safe.cost.unsqueeze(-1)
            a = search.furthest(cost, bounds[:, 1:, 1:], tau.unsqueeze(-1))
            bounds[:, 0, 1:] *= a
            return a.unsqueeze(-1), bounds[:, 0]
        a = self._reach(mean, ray, self._scale, tau)
        value = torch.lerp(mean[:, 0, :1, None], mean[:, 0, 1:, None], a)
        start, step = ray[:, 0, :, :1, None], ray[:, 0, :, 1:, None]
        here = torch.lerp(start, step, a.unsqueeze(1)).square().sum(1).sqrt()
        value = torch.addcmul(value, scale[:, :1], here).flatten(1)
        first = ray[:, 0, :, 0].norm(dim=-1, keepdim=True)
        first = torch.addcmul(mean[:, 0, :1], scale[:, 0], first)
        return a, torch.cat([first, value], -1)

    def _reach(self, mean: Tensor, ray: Tensor, scale: Tensor, tau: Tensor) -> Tensor:
        """The ends ``(T, K, e)`` of what is safe of each segment, as shares of it.

        From costs' means ``(T, F, 1 + K)`` at the centre and the tips, ``A x`` there
        ``(T, F, d, 1 + K)``, and widths ``scale`` ``(T, F)``. Where the centre's cost
        is given all is safe up to one end.
        """
        scale, tau = scale[:, 1:].unsqueeze(-1), tau.unsqueeze(-1)
        if self._safe.given[1]:
            norm = ray[:, 1:, :, 1:].square().sum(-2).sqrt()
            costs = torch.addcmul(mean[:, 1:, 1:], scale, norm)
            return search.furthest(self._safe.cost.unsqueeze(-1), costs, tau)[..., None]
        start, step = ray[:, 1:, :, :1], ray[:, 1:, :, 1:] - ray[:, 1:, :, :1]
        return search.safe_interval(
            tau - mean[:, 1:, :1],
            mean[:, 1:, 1:] - mean[:, 1:, :1],
            scale,
            start.square().sum(-2),
            (start * step).sum(-2),
            step.square().sum(-2),
        )

    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """What to deploy: the best action believed feasible with ``confidence``.

        On a star ``index`` is that of its segment, 0 for the centre.
        """
        confidence = share("confidence", confidence)
        self._catch_up()
        limits = self._limits(max(self.t, 1))
        if self._fan is None:
            found = recommend(self._known(), limits, confidence)
            assert found.index is not None
            return self._recommended(found, self.actions.points(found.index))
        fan = self._fan.expand(self._size, -1, -1)  # T x d x (1 + K)
        w, root = self._ridge.solve()
        ray = (root.flatten(1, 2) @ fan).unflatten(1, root.shape[1:3])
        width = quantile(confidence, self.m) * (1 + 1e-9) * self._subgaussian
        a = self._reach(w @ fan, ray, width, limits)
        # the mean reward is affine along a segment: an end, or a tip if none is safe
        tips, centre = fan[..., 1:], fan[..., :1]
        ends = [torch.lerp(centre, tips, a[:, None, :, e]) for e in range(a.shape[-1])]
        points = torch.cat([centre, tips, *ends], -1).mT  # T x n x d
        mean, norm = self._ridge.at(points)
        std = norm * self._subgaussian.unsqueeze(-1)
        found = recommend([(0, mean, std)], limits, confidence)
        assert found.index is not None
        x = points.gather(1, found.index.view(-1, 1, 1).expand(-1, 1, points.shape[-1]))
        segment = (found.index - 1).clamp_min(0) % tips.shape[-1]
        return self._recommended(replace(found, index=segment), x.squeeze(1))

    def _fan_of(self, star: Star) -> Tensor:
        """The centre and the tips, ``(T or 1, d, 1 + K)``."""
        tips = star.tips.double()
        tips = tips if tips.dim() == 3 else tips.unsqueeze(0)
        x0 = self._safe.x.unsqueeze(1)
        if bool((x0 == x0[:1]).all()):
            x0 = x0[:1].expand(len(tips), -1, -1)
        tips = tips.expand(len(x0), -1, -1)
        return torch.cat([x0, tips], 1).mT.contiguous()
