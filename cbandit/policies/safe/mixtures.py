"""Distributions over vectors: the best one whose mean surely keeps the limits.

In shapes, ``T`` counts trials, ``m`` costs, ``K`` actions, ``d`` coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cbandit import search
from cbandit._core import devices
from cbandit.choice import Distribution
from cbandit.search.conic import Array, SafePolicies

MAX_PAIRED_ACTIONS = 64  # with more actions, midpoints of pairs are not tried
MAX_STARTS = 8  # points at which ascents may begin
MAX_COSINE = 0.9  # between the directions of two starts
MAX_ASCENTS = 3  # from the starts of largest V_r after one step each
MAX_LEAP_SHARE = 0.05  # of a point's length; an ascent looks no further ahead
EQUAL_DISTANCE = 1e-8  # means of distributions that are closer count as equal


def best_mixture(
    solver: str, points: Array, w: Array, root: Array, tau: Array, x0: Array
) -> Array | None:
    """Return the best safe distribution ``(K,)`` found in one trial, or ``None``.

    Args:
        solver: ``"l1"`` or ``"ascent"``.
        points: the actions, ``(K, d)``.
        w: the estimated coefficients of reward and costs, ``(1 + m, d)``.
        root: ``beta A`` with ``A' A = Sigma^-1`` for each function, ``(1 + m, d, d)``.
        tau: the thresholds, ``(m,)``.
        x0: the safe action, ``(d,)``.
    """
    safe, dim = SafePolicies(points, w[1:], root[1:], tau), points.shape[1]
    # Sigma^{-1} = A' A for any root A; the vertices need the symmetric one
    inverse = root[0].T @ root[0]
    value, vectors = np.linalg.eigh(inverse)
    symmetric = (vectors * np.sqrt(value.clip(0))) @ vectors.T
    vertices = w[0] + math.sqrt(dim) * np.concatenate([symmetric, -symmetric])
    if solver == "l1":
        tried = [
            (pi, float(pi @ (points @ v)))
            for v in vertices
            if (pi := safe.best(v)) is not None
        ]
        best, most = None, -math.inf
        for pi, after in tried:
            if _is_better(after, most):
                best, most = pi, after
        return best

    def best_theta(x: Array) -> tuple[Array, float]:
        """Return the parameter in the reward's ellipsoid under which ``x`` earns most.

        The second value is that reward, ``V_r(x)``.
        """
        length = float(np.linalg.norm(root[0] @ x))
        step = inverse @ x / length if length > 0 else np.zeros(dim)
        return w[0] + step, float(w[0] @ x) + length

    ahead, first = [x0, *_ascent_starts(points, w, root, tau, x0)], _VisitedPoints(dim)
    starts: list[tuple[float, Array, Array]] = []  # V_r, the distribution, its mean
    for theta in [*vertices, *(best_theta(x)[0] for x in ahead)]:
        pi = safe.best(theta)
        if pi is not None and not first.holds(x := points.T @ pi):
            first.add(x)
            starts.append((best_theta(x)[1], pi, x))
    # rounding must not decide the order of equal values
    starts.sort(key=lambda start: -round(start[0], 9))
    best, reached, visited = None, -math.inf, _VisitedPoints(dim)
    for height, start, x in starts[:MAX_ASCENTS]:
        climbed = _ascend(safe, best_theta(x)[0], best_theta, visited)
        for found, after in ((start, height), climbed):
            if _is_better(after, reached):
                best, reached = found, after
    return best


class _VisitedPoints:
    """The points that ascents have visited, vectors of length ``dim``."""

    def __init__(self, dim: int) -> None:
        self._points, self._count = np.empty((64, dim)), 0

    def holds(self, x: Array) -> bool:
        """Return whether ``x`` was visited, up to ``EQUAL_DISTANCE``."""
        away = np.abs(self._points[: self._count] - x).max(-1, initial=0.0)
        return bool((away <= EQUAL_DISTANCE).any())

    def add(self, x: Array) -> None:
        """Add a point."""
        if self._count == len(self._points):
            self._points = np.concatenate([self._points, np.empty_like(self._points)])
        self._points[self._count] = x
        self._count += 1


def _is_better(value: float, before: float) -> bool:
    """Return whether ``value`` exceeds ``before`` by more than a solver's error."""
    return before == -math.inf or value > before + 1e-9 * (1 + abs(before))


def _ascend(
    safe: SafePolicies,
    theta: Array,
    best_theta: Callable[[Array], tuple[Array, float]],
    visited: _VisitedPoints,
) -> tuple[Array | None, float]:
    """Return the distribution where an ascent from ``theta`` ends, and its ``V_r``.

    Along a smooth limit there are many similar steps. So while ``V_r`` grows, the next
    ``theta`` is the best one for a point further ahead, twice as far each time.

    Args:
        safe: the distributions that keep the limits.
        theta: the coefficients to begin with.
        best_theta: returns the best ``theta'`` for a mean, and the mean's ``V_r``.
        visited: the points that ascents have visited; this one adds its own.
    """
    best, reached, leap = None, -math.inf, 0.0
    last = np.zeros(safe.points.shape[1])
    while (pi := safe.best(theta)) is not None:
        x = safe.points.T @ pi
        if visited.holds(x):
            break
        after = best_theta(x)[1]
        if _is_better(after, reached):
            way = x - last if best is not None else np.zeros_like(x)
            best, reached, last = pi, after, x
            visited.add(x)
            size = max(float(np.linalg.norm(way)), 1e-300)
            far = min(leap, MAX_LEAP_SHARE * float(np.linalg.norm(x)) / size)
            theta, leap = best_theta(x + far * way)[0], max(1.0, 2 * leap)
        elif leap > 0:
            theta, leap = best_theta(last)[0], 0.0
        else:
            break
    return best, reached


def _ascent_starts(
    points: Array, w: Array, root: Array, tau: Array, x0: Array
) -> list[Array]:
    """Return up to ``MAX_STARTS`` feasible points with a high bound on the reward.

    They lie in different directions. Each is on a line from the safe action to another
    action, or, with few actions, to the midpoint of two, as far along it as is surely
    feasible. The arguments are those of :func:`best_mixture`.
    """
    ends = points
    if len(points) <= MAX_PAIRED_ACTIONS:
        first, second = np.triu_indices(len(points), 1)
        ends = np.concatenate([points, (points[first] + points[second]) / 2])
    candidates = np.concatenate([x0[None], ends])
    bound = candidates @ w.T + np.linalg.norm(
        np.einsum("fij,nj->nfi", root, candidates), axis=-1
    )
    start, cost = bound[0, 1:], bound[1:, 1:]
    room, rise = np.maximum(tau - start, 0), np.maximum(cost - start, 1e-300)
    # a cost's bound is convex, so it is below its limit up to this share
    share = np.minimum(room / rise, 1).min(-1)
    boundary = x0 + share[:, None] * (ends - x0)
    image = boundary @ root[0].T
    length = np.linalg.norm(image, axis=-1)
    value = boundary @ w[0] + length
    away = image / np.maximum(length, 1e-300)[:, None]
    picked: list[int] = []
    for i in np.argsort(-value, kind="stable"):
        if len(picked) == MAX_STARTS:
            break
        if all(away[i] @ away[j] < MAX_COSINE for j in picked):
            picked.append(int(i))
    return [boundary[i] for i in picked]


def mix_with_safe(
    shares: Tensor,
    points: Tensor,
    w: Tensor,
    root: Tensor,
    tau: Tensor,
    x0: Tensor,
    c0: Tensor | None,
    safe_index: Tensor,
) -> Tensor:
    """Return ``shares`` mixed with the safe action just enough that ``V_c <= tau``.

    Args:
        shares: the distributions, ``(T, K)``; zero in a trial where none was found.
        points: the actions, ``(T, K, d)``.
        w: the estimated coefficients, ``(T, 1 + m, d)``.
        root: ``beta A`` for each function, ``(T, 1 + m, d, d)``.
        tau: the thresholds, ``(T, m)``.
        x0: the safe action, ``(T, d)``.
        c0: the safe action's costs, ``(T, m)``; ``None``: they are not stated.
        safe_index: the safe action's number, ``(T,)``.
    """
    x0 = x0.unsqueeze(1)  # T x 1 x d
    way = torch.einsum("tk,tkd->td", shares, points).unsqueeze(1) - x0
    if c0 is not None:
        end = (x0 + way).mT
        cost = w[:, 1:] @ end + (root[:, 1:] @ end.unsqueeze(1)).norm(dim=-2)
        a = search.furthest(c0.unsqueeze(-1), cost, tau.unsqueeze(-1))
    else:
        start, step = (root[:, 1:] @ v.mT.unsqueeze(1) for v in (x0, way))
        a = search.safe_interval(
            tau.unsqueeze(-1) - w[:, 1:] @ x0.mT,
            w[:, 1:] @ way.mT,
            torch.ones_like(tau).unsqueeze(-1),
            start.square().sum(-2),
            (start * step).sum(-2),
            step.square().sum(-2),
        )[..., 1]
    empty = shares.sum(-1, keepdim=True) == 0
    mixed = shares * torch.where(empty, 0.0, a)
    remainder = 1 - mixed.sum(-1, keepdim=True)
    return mixed.scatter_add(-1, safe_index.unsqueeze(-1), remainder.clamp_min(0.0))


def as_distribution(shares: Tensor, device: torch.device) -> Distribution:
    """Return ``shares (T, K)`` as a zero-padded distribution of the actions in use."""
    number, some = torch.arange(shares.shape[1]).expand_as(shares), shares > 0
    order = some.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    order = order[:, : int(some.sum(-1).max())]
    probability = shares.gather(-1, order)
    index = number.gather(-1, order).masked_fill(probability <= 0, 0)
    return Distribution(devices.put(index, device), devices.put(probability, device))
