"""The best point of a box under a score: many candidates, L-BFGS-B, then a closing
zoom.

Scores have kinks (clipping, rectified penalties) on which their maximum often lies, and
where gradients alone stall. So the gradient search is followed by a zoom: points drawn
around the best one, ever closer, which no kink disturbs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.quasirandom import SobolEngine

from cbandit.actions import Box
from cbandit.randomness import Streams
from cbandit.search import Best, Score

__all__ = ["Estimate", "maximise_box"]

Estimate = Callable[[Tensor], Tensor]
"""``x (T, n, d) -> (T, F, n)``, differentiable: estimates, reward first."""

CANDIDATES = 1024
STARTS = 4
ZOOMS = 16
ZOOM_POINTS = 192


def maximise_box(
    box: Box,
    estimate: Estimate,
    score: Score,
    streams: Streams,
    incumbents: Tensor | None = None,
) -> Best:
    """The point of greatest score.

    Args:
        box: where to look.
        estimate: estimates at points.
        score: what to maximise of them.
        streams: draws of candidates.
        incumbents: ``(T, k, d)``, points to look around.
    """
    low, span = box.lower, box.upper - box.lower

    def value(z: Tensor) -> Tensor:
        found = estimate(low + span * z)
        return score(found[:, 0], found[:, 1:])

    with torch.no_grad():
        z = _candidates(box, streams, incumbents)
        first = value(z)
        top = first.topk(min(STARTS, z.shape[1]), dim=-1).indices
        starts = _at(z, top)
    climbed = _climb(value, starts)
    with torch.no_grad():
        both = torch.cat([starts, climbed], 1)
        values = value(both)
        z_best, best = _pick(both, values)
        z_best, best = _zoom(value, z_best, best, streams)
        x = low + span * z_best
        here = estimate(x.unsqueeze(1))[..., 0]
    return Best(best, None, here[:, 0], here[:, 1:], x)


def _candidates(box: Box, streams: Streams, incumbents: Tensor | None) -> Tensor:
    """``(T, n, d)`` in the unit cube: Sobol points, shifted a trial, and neighbours."""
    sobol = SobolEngine(box.dim).draw(CANDIDATES, dtype=torch.float64)
    shift = streams.uniform(1, box.dim).reshape(-1, 1, box.dim)
    z = ((sobol + shift) % 1).to(box.lower.device)
    if incumbents is None or incumbents.shape[1] == 0:
        return z
    centre = (incumbents - box.lower) / (box.upper - box.lower)
    copies = max(1, CANDIDATES // (4 * centre.shape[1]))
    near = centre.repeat(1, copies, 1)
    noise = streams.normal(near.shape[1], box.dim).reshape(-1, *near.shape[1:])
    # half of them close by, half at a tenth of the box
    size = torch.where(torch.arange(near.shape[1]) % 2 == 0, 0.01, 0.1)
    near = near + noise.to(near) * size.to(near).unsqueeze(-1)
    return torch.cat([z, centre, near.clamp(0, 1)], 1)


def _climb(value: Callable[[Tensor], Tensor], starts: Tensor) -> Tensor:
    """L-BFGS-B on all starts of all trials at once, with exact gradients."""

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        z = torch.as_tensor(flat).view(starts.shape).to(starts.device)
        z.requires_grad_(True)
        total = -value(z).clamp_min(-1e12).sum()
        if not total.requires_grad:  # nothing is known yet: flat everywhere
            return total.item(), np.zeros_like(flat)
        (slope,) = torch.autograd.grad(total, z)
        slope = slope.nan_to_num(0.0)
        return total.item(), slope.flatten().cpu().numpy()

    found = minimize(
        objective,
        starts.flatten().cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * starts.numel(),
        options={"maxiter": 60, "maxfun": 120},
    )
    return torch.as_tensor(found.x).view(starts.shape).to(starts.device)


def _zoom(
    value: Callable[[Tensor], Tensor], z: Tensor, best: Tensor, streams: Streams
) -> tuple[Tensor, Tensor]:
    """Draw around the best point, ever closer; ``z (T, d)``, ``best (T,)``."""
    dim = z.shape[-1]
    noise = streams.normal(ZOOM_POINTS, dim).reshape(-1, ZOOM_POINTS, dim).to(z)
    # half of the draws move along one axis only
    axis = torch.arange(ZOOM_POINTS, device=z.device) % (2 * dim)
    single = torch.nn.functional.one_hot(axis % dim, dim).bool()
    noise = torch.where((axis < dim).unsqueeze(-1) & ~single, 0.0, noise)
    radius = 0.1
    for _ in range(ZOOMS):
        near = (z.unsqueeze(1) + radius * noise).clamp(0, 1)
        values = value(near)
        z_new, new = _pick(near, values)
        better = new > best
        z = torch.where(better.unsqueeze(-1), z_new, z)
        best = torch.where(better, new, best)
        radius *= 0.45
    return z, best


def _at(z: Tensor, index: Tensor) -> Tensor:
    return z.gather(1, index.unsqueeze(-1).expand(-1, -1, z.shape[-1]))


def _pick(z: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    best, place = values.max(-1)
    return _at(z, place.unsqueeze(-1))[:, 0], best
