"""Segments from the safe action: how far each is safe, and the best point on them.

Along a segment the costs' bounds are convex: what is safe is one stretch of it. The
reward's bound is convex too, so that it is largest at an end of that stretch.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cbandit import search
from cbandit._core.peaks import best_place
from cbandit.actions import Star
from cbandit.policies.failures import only
from cbandit.policies.safe.action import numbered
from cbandit.policies.safe.known import Known
from cbandit.policies.safe.linear import Bounds
from cbandit.posterior.ridge import Ridge
from cbandit.recommend import Recommendation, quantile, recommend

__all__ = ["best_on_star", "fan_of", "likely_on_star"]


def best_on_star(
    fan: Tensor,
    mask: Tensor | None,
    bounds: Bounds,
    tau: Tensor,
    safe: Known,
    tolerance: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the segment ``(T,)`` and the point ``(T, d)`` of greatest ``V_r``.

    Among the points of a star with ``V_c <= tau``, and its centre.

    Args:
        fan: the star, see :func:`fan_of`.
        mask: ``(1 or T, K)``, the segments allowed.
        bounds: ``V_r`` and ``V_c``.
        tau: ``(T, m)``.
        safe: what is known of the centre.
        tolerance: values that differ by less are as good, ``(T,)``.
    """
    mean, ray = bounds.parts(fan)  # T x F x (1 + K), T x F x d x (1 + K)
    a, value = _ends(mean, ray, bounds.scale, tau, safe)  # T x K x e, T x (1 + K e)
    if mask is not None:
        allowed = mask.repeat_interleave(a.shape[-1], -1)
        value[:, 1:].masked_fill_(~allowed, -torch.inf)
    best = best_place(value, tolerance)
    # 0 is the centre, then both ends of a segment beside each other
    place = (best - 1).clamp_min(0)
    share = a.flatten(1).gather(-1, place.unsqueeze(-1))
    share = share.masked_fill((best == 0).unsqueeze(-1), 0.0)
    segment = place if a.shape[-1] == 1 else place // a.shape[-1]
    tips = fan.expand(len(tau), -1, -1)
    tip = tips.gather(-1, (segment + 1).view(-1, 1, 1).expand(-1, fan.shape[1], 1))
    return segment, torch.lerp(tips[..., 0], tip.squeeze(-1), share)


def _ends(
    mean: Tensor, ray: Tensor, scale: Tensor, tau: Tensor, safe: Known
) -> tuple[Tensor, Tensor]:
    """Return the safe ends of each segment, and ``V_r`` at the centre and at these.

    They are shares of the segment, ``(T, K, e)``; the values are ``(T, 1 + K e)``.

    Args:
        mean: means at the centre and the tips, ``(T, F, 1 + K)``.
        ray: ``A x`` there, ``(T, F, d, 1 + K)``.
        scale: the inflated widths, ``(T, F)``.
        tau: ``(T, m)``.
        safe: what is known of the centre.
    """
    wide = scale.unsqueeze(-1)
    if safe.action.rays:
        # from 0 on, bounds are in proportion to the share of the way
        bounds = torch.addcmul(mean, wide, ray.square().sum(-2).sqrt())
        cost = safe.cost.mean.unsqueeze(-1)
        a = search.furthest(cost, bounds[:, 1:, 1:], tau.unsqueeze(-1))
        bounds[:, 0, 1:] *= a
        return a.unsqueeze(-1), bounds[:, 0]
    a = _reach(mean, ray, scale, tau, safe)
    value = torch.lerp(mean[:, 0, :1, None], mean[:, 0, 1:, None], a)
    start, step = ray[:, 0, :, :1, None], ray[:, 0, :, 1:, None]
    here = torch.lerp(start, step, a.unsqueeze(1)).square().sum(1).sqrt()
    value = torch.addcmul(value, wide[:, :1], here).flatten(1)
    first = ray[:, 0, :, 0].norm(dim=-1, keepdim=True)
    first = torch.addcmul(mean[:, 0, :1], wide[:, 0], first)
    return a, torch.cat([first, value], -1)


def _reach(
    mean: Tensor, ray: Tensor, scale: Tensor, tau: Tensor, safe: Known
) -> Tensor:
    """Return the ends ``(T, K, e)`` of what is safe of each segment, as shares of it.

    All is safe up to one end where the centre's cost is given. Arguments as above.
    """
    wide, tau = scale[:, 1:].unsqueeze(-1), tau.unsqueeze(-1)
    if safe.action.cost is not None:
        norm = ray[:, 1:, :, 1:].square().sum(-2).sqrt()
        costs = torch.addcmul(mean[:, 1:, 1:], wide, norm)
        return search.furthest(safe.action.cost.unsqueeze(-1), costs, tau)[..., None]
    start, step = ray[:, 1:, :, :1], ray[:, 1:, :, 1:] - ray[:, 1:, :, :1]
    return search.safe_interval(
        tau - mean[:, 1:, :1],
        mean[:, 1:, 1:] - mean[:, 1:, :1],
        wide,
        start.square().sum(-2),
        (start * step).sum(-2),
        step.square().sum(-2),
    )


def likely_on_star(
    fan: Tensor,
    ridge: Ridge,
    subgaussian: Tensor,
    limits: Tensor,
    safe: Known,
    confidence: float,
    left: Tensor | None = None,
) -> tuple[Recommendation, Tensor]:
    """Return what to deploy on a star, and where it is, ``(T, d)``.

    ``index`` is that of its segment, 0 for the centre.

    Args:
        fan: the star, see :func:`fan_of`.
        ridge: the estimates.
        subgaussian: ``R``, ``(T, F)``.
        limits: thresholds, ``(T, m)``.
        safe: what is known of the centre.
        confidence: with which probability it is to be feasible.
        left: the segments that have not failed, ``(T, K)``; ``None``: all.
    """
    fan = fan.expand(len(limits), -1, -1)  # T x d x (1 + K)
    width = quantile(confidence, limits.shape[-1]) * (1 + 1e-9) * subgaussian
    a = _reach(ridge.solved[0] @ fan, ridge.rays(fan), width, limits, safe)
    # the mean reward is affine along a segment: an end, or a tip if none is safe
    tips, centre = fan[..., 1:], fan[..., :1]
    ends = [torch.lerp(centre, tips, a[:, None, :, e]) for e in range(a.shape[-1])]
    points = torch.cat([centre, tips, *ends], -1).mT  # T x n x d
    mean, norm = ridge.at(points)
    if left is not None:
        both = [torch.ones_like(left[:, :1]), *[left] * (1 + len(ends))]
        mean = only(torch.cat(both, -1), mean)
    found = recommend([(0, mean, norm * subgaussian.unsqueeze(-1))], limits, confidence)
    place = numbered(found.index)
    x = points.gather(1, place.view(-1, 1, 1).expand(-1, 1, points.shape[-1]))
    segment = (place - 1).clamp_min(0) % tips.shape[-1]
    return replace(found, index=segment), x.squeeze(1)


def fan_of(star: Star, x0: Tensor) -> Tensor:
    """Return the centre and the tips of a star, ``(T or 1, d, 1 + K)``.

    Args:
        star: the star.
        x0: the safe action, its centre, ``(T, d)``.
    """
    tips = star.tips.double()
    tips = tips if tips.dim() == 3 else tips.unsqueeze(0)
    centre = x0.unsqueeze(1)
    if bool((centre == centre[:1]).all()):
        centre = centre[:1].expand(len(tips), -1, -1)
    tips = tips.expand(len(centre), -1, -1)
    return torch.cat([centre, tips], 1).mT.contiguous()
