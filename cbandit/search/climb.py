"""Climb from many points of the unit cube at once, on functions with kinks.

Climbs make quasi-Newton (BFGS) steps in the coordinates that are not held by a bound,
with a weak Wolfe line search. A line search that meets a kink brackets it, and the
change of slope across the bracket enters the curvature. So the matrix learns how steep
the kink's sides are, and later steps run along the kink (A. Lewis and M. Overton,
Nonsmooth optimization via quasi-Newton methods, 2013). Every climb has its own matrix
and step; evaluations are shared.

scipy's L-BFGS-B repeats climbs that fail, one at a time: see :func:`again`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from cbandit._core.peaks import ranked

ENOUGH, STEEP = 1e-4, 0.9  # constants of the Wolfe conditions: decrease and slope
LOOKS = 12  # most points that a line search evaluates
CLOSE = 0.1  # stop once a bracket can yield no more than this share of the gain so far
# differences below are relative to ``size``, the size of differences that matter
FLAT = 1e-7  # below this a gradient is flat, and the climb is settled
LITTLE, PATIENCE = 1e-7, 8  # settled after this many steps in a row with less gain
WORTH = 1e-12  # a step that promises less promises only rounding errors
FIRST = 0.1  # length of the first step
AGAIN = 100  # most points that L-BFGS-B evaluates
FLOOR = -1e300  # replaces minus infinity, whose differences are NaN


@dataclass
class Climbed:
    """The points where climbs ended.

    Args:
        z: the points, ``(T, n, d)``.
        value: the values there, ``(T, n)``.
        settled: whether a climb stopped because nothing was left to gain, ``(T, n)``.
        failed: whether a climb is not settled, has no finite value, or gained nothing
            over its start although the slope there is not flat, ``(T, n)``.
    """

    z: Tensor
    value: Tensor
    settled: Tensor
    failed: Tensor


@dataclass
class _Spot:
    """The current point of each climb; ``slope`` is that along the line of search."""

    z: Tensor
    loss: Tensor
    gradient: Tensor
    slope: Tensor
    step: Tensor

    def replaced(self, where: Tensor, other: _Spot) -> _Spot:
        column = where.unsqueeze(-1)
        return _Spot(
            torch.where(column, other.z, self.z),
            torch.where(where, other.loss, self.loss),
            torch.where(column, other.gradient, self.gradient),
            torch.where(where, other.slope, self.slope),
            torch.where(where, other.step, self.step),
        )


def climb(
    value: Callable[[Tensor], Tensor],
    z: Tensor,
    size: Tensor,
    free: Tensor,
    sprint: int,
    finalists: int,
    steps: int,
    tolerance: Tensor | float = 0.0,
) -> Climbed:
    """Climb from every ``z`` for a few steps, then go on from the best ones.

    Args:
        value: a differentiable function ``(T, n, d) -> (T, n)`` of single points.
        z: the starts, ``(T, n, d)``, in the unit cube.
        size: ``(T,)``, the size of differences that matter.
        free: ``(d,)``, the coordinates that may change.
        sprint: how many steps all climbs make.
        finalists: how many climbs of each trial go on after that.
        steps: the most steps that these make in all.
        tolerance: if climbs differ by less, the first one counts as better.
    """
    dim, size = z.shape[-1], size.unsqueeze(-1)
    eye = torch.eye(dim, dtype=z.dtype, device=z.device)
    loss, gradient = _look(value, z, free)
    first = loss
    curvature = eye.expand(*z.shape, dim)
    fresh = torch.ones_like(loss, dtype=torch.bool)
    settled, idle = torch.zeros_like(fresh), torch.zeros_like(loss)
    for number in range(steps):
        if number == sprint and finalists < z.shape[1]:
            best = ranked(-loss, finalists, tolerance)
            z, gradient, curvature = (
                at_places(v, best) for v in (z, gradient, curvature)
            )
            loss, idle = at_places(loss, best), at_places(idle, best)
            first = at_places(first, best)
            fresh, settled = at_places(fresh, best), at_places(settled, best)
        held = _held(z, gradient) | ~free
        pull = gradient.masked_fill(held, 0.0)
        settled = settled | (pull.abs().amax(-1) <= FLAT * size)
        either = held.unsqueeze(-1) | held.unsqueeze(-2)
        matrix = torch.where(either, eye, curvature)
        way = -torch.linalg.solve_ex(matrix, pull.unsqueeze(-1))[0].squeeze(-1)
        promised = -(pull * way).sum(-1)
        fresh = fresh | ~(promised > 0)
        settled = settled | (~fresh & (promised <= WORTH * size))
        if bool(settled.all()):
            break
        steepest = pull / pull.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        way = torch.where(fresh.unsqueeze(-1), -FIRST * steepest, way)
        way = way / way.abs().amax(-1, keepdim=True).clamp_min(1.0)
        start = _Spot(z, loss, gradient, (pull * way).sum(-1), torch.zeros_like(loss))
        low, far = _search(value, start, way, free, ~settled)
        curvature, changed = _learned(curvature, far, start, fresh)
        fresh = fresh & ~changed
        idle = torch.where(start.loss - low.loss <= LITTLE * size, idle + 1, 0.0)
        settled = settled | (idle >= PATIENCE)
        z, loss, gradient = low.z, low.loss, low.gradient
    pull = gradient.masked_fill(_held(z, gradient), 0.0).abs().amax(-1)
    stuck = (first - loss <= LITTLE * size) & (pull > FLAT * size)
    lost = ~(loss.abs() < -FLOOR)
    return Climbed(z, -loss, settled, ~settled | stuck | lost)


class Room(Protocol):
    """Limits on points of the unit cube, for scipy's SLSQP."""

    def moved(self, z: Tensor) -> Tensor:
        """Return points ``z (T, n, d)`` moved inside the limits."""

    def near(self, z: Tensor) -> Tensor:
        """Return which points ``z (T, n, d)`` lie at a limit or beyond, ``(T, n)``."""

    def constraint(self, z: Tensor, free: Tensor) -> dict[str, Any]:
        """Return the limits on the free coordinates, given the others of ``z (d,)``.

        The result is in the form that :func:`scipy.optimize.minimize` takes.
        """


def again(
    value: Callable[[Tensor], Tensor],
    climbed: Climbed,
    free: Tensor,
    room: Room | None = None,
) -> tuple[Climbed, Tensor]:
    """Continue failed climbs from their ends by L-BFGS-B, one climb at a time.

    Return the climbs, and which of them it took higher, ``(T, n)``. L-BFGS-B ignores
    kinks, but it judges progress differently, and its line searches are separate. With
    ``room``, SLSQP continues climbs that failed and those that end at a limit.
    """
    z, best, left = climbed.z.clone(), climbed.value.clone(), climbed.failed
    if room is not None:
        left = left | room.near(z)
        z = room.moved(z)
    for trial, number in left.nonzero().tolist():
        points = z[:, number : number + 1].clone()
        constraints: Any = ()
        if room is not None:
            constraints = room.constraint(points[trial, 0], free)
        end, top = _by_scipy(value, points, trial, free, constraints)
        if top > best[trial, number]:
            z[trial, number, free] = end
            best[trial, number] = top
    return replace(climbed, z=z, value=best), best > climbed.value


def _by_scipy(
    value: Callable[[Tensor], Tensor],
    points: Tensor,
    trial: int,
    free: Tensor,
    constraints: Any,
) -> tuple[Tensor, float]:
    """Climb from ``points[trial]`` of ``points (T, 1, d)``, which is changed.

    Return the free coordinates of the end, and the value there. L-BFGS-B climbs, or
    SLSQP where there are ``constraints``.
    """

    def loss(z: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        points[trial, 0, free] = torch.from_numpy(z).to(points)
        below, gradient = _look(value, points, free)
        return float(below[trial, 0]), gradient[trial, 0, free].cpu().numpy()

    start = points[trial, 0, free].cpu().numpy()
    end = minimize(
        loss,
        start,
        jac=True,
        method="SLSQP" if constraints else "L-BFGS-B",
        bounds=[(0.0, 1.0)] * len(start),
        constraints=constraints,
        options={"maxiter": AGAIN, "ftol": 1e-12} if constraints else {"maxfun": AGAIN},
    )
    return torch.from_numpy(end.x).to(points), -float(end.fun)


def _held(z: Tensor, gradient: Tensor) -> Tensor:
    """Return which coordinates a bound holds back, given the loss's gradient."""
    return ((z <= 0) & (gradient > 0)) | ((z >= 1) & (gradient < 0))


def at_places(values: Tensor, place: Tensor) -> Tensor:
    """Return ``values (T, n, ...)`` at the places ``(T, k)``, ``(T, k, ...)``."""
    shape = place.shape + values.shape[2:]
    place = place.view(*place.shape, *[1] * (values.dim() - 2)).expand(shape)
    return values.gather(1, place)


@torch.enable_grad()  # the caller, or an interrupt, may have left it off
def _look(
    value: Callable[[Tensor], Tensor], z: Tensor, free: Tensor
) -> tuple[Tensor, Tensor]:
    """Return minus the value at ``z``, and its gradient."""
    z = z.detach().requires_grad_(True)
    loss = -value(z).clamp_min(FLOOR)
    if not loss.requires_grad:  # no data yet: flat everywhere
        return loss, torch.zeros_like(z)
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    return loss.detach(), gradient.nan_to_num(0.0).masked_fill(~free, 0.0)


def _search(
    value: Callable[[Tensor], Tensor],
    start: _Spot,
    way: Tensor,
    free: Tensor,
    open_: Tensor,
) -> tuple[_Spot, _Spot]:
    """Search along ``way`` for the best point; also return one with a flat slope."""
    low = high = start
    bracketed = torch.zeros_like(open_)
    step = torch.ones_like(start.loss)
    for _ in range(LOOKS):
        z = (start.z + step.unsqueeze(-1) * way).clamp(0, 1)
        loss, gradient = _look(value, z, free)
        stuck = ((z <= 0) & (way < 0)) | ((z >= 1) & (way > 0))
        slope = (gradient * way).masked_fill(stuck, 0.0).sum(-1)
        tried = _Spot(z, loss, gradient, slope, step)
        promised = (start.gradient * (z - start.z)).sum(-1)
        enough = loss <= start.loss + ENOUGH * promised
        steep = slope < STEEP * start.slope
        low = low.replaced(open_ & enough, tried)
        high = high.replaced(open_ & ~enough, tried)
        bracketed = bracketed | (open_ & ~enough)
        open_ = open_ & ~(enough & ~steep)
        # the point where the tangents at the bracket's ends meet: between the ends, a
        # convex function lies above it
        width = high.step - low.step
        turn = high.slope - low.slope
        meet = (low.loss - high.loss + high.slope * width) / turn
        gained = start.loss - low.loss
        left = -low.slope * meet - CLOSE * gained
        closed = bracketed & (high.slope > 0) & (low.step > 0) & (left <= 0)
        open_ = open_ & ~closed
        if not bool(open_.any()):
            break
        share = torch.where(high.slope > 0, meet / width, 0.5).nan_to_num(0.5)
        inside = low.step + width * share.clamp(0.1, 0.9)
        step = torch.where(bracketed, inside, 2 * step)
    crossed = bracketed & (high.slope > 0) & (low.slope < STEEP * start.slope)
    return low, low.replaced(crossed, high)


def _learned(
    curvature: Tensor, far: _Spot, start: _Spot, fresh: Tensor
) -> tuple[Tensor, Tensor]:
    """Update curvatures (BFGS) by the change of gradient from ``start`` to ``far``.

    Return the curvatures, and which of them were updated.
    """
    s, y = far.z - start.z, far.gradient - start.gradient
    sy = (s * y).sum(-1)
    curved = sy > 1e-12 * s.norm(dim=-1) * y.norm(dim=-1)
    safe = torch.where(curved, sy, 1.0)[..., None, None]
    outer = y.unsqueeze(-1) * y.unsqueeze(-2) / safe
    # the first matrix has the curvature of the first step
    eye = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device)
    first = eye * (y.square().sum(-1)[..., None, None] / safe)
    begun = torch.where((fresh & curved)[..., None, None], first, curvature)
    bent = (begun @ s.unsqueeze(-1)).squeeze(-1)
    known = (s * bent).sum(-1)
    curved = curved & (known > 0)
    safe = torch.where(curved, known, 1.0)[..., None, None]
    updated = begun + outer - bent.unsqueeze(-1) * bent.unsqueeze(-2) / safe
    return torch.where(curved[..., None, None], updated, curvature), curved
