"""Distributions over vectors: the best one whose mean keeps its limits."""

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

MOST_PAIRED = 64  # with at most so many actions, midpoints of pairs are considered too
STARTS, NEAR = 8, 0.9  # starts of the ascent, and the cosine below which two differ
CLIMBS = 3  # ascents; the starts of largest V_r after one step of all starts
LEAP = 0.05  # the ascent's longest step ahead, as a share of a point's length
SAME = 1e-8  # the distance within which means of distributions count as equal


def best_mixture(
    solver: str, points: Array, w: Array, root: Array, tau: Array, x0: Array
) -> Array | None:
    """Return the best safe distribution ``(K,)`` found in one trial, or ``None``.

    Args:
        solver: ``"l1"`` or ``"ascent"``.
        points: the actions, ``(K, d)``.
        w: the coefficients of reward and costs, ``(1 + m, d)``.
        root: ``A`` of each ellipsoid, times its width, ``(1 + m, d, d)``.
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
            if _gained(after, most):
                best, most = pi, after
        return best

    def towards(x: Array) -> tuple[Array, float]:
        """Return the ellipsoid's best ``theta'`` for ``x``, and ``V_r(x)``."""
        length = float(np.linalg.norm(root[0] @ x))
        step = inverse @ x / length if length > 0 else np.zeros(dim)
        return w[0] + step, float(w[0] @ x) + length

    ahead, first = [x0, *_promising(points, w, root, tau, x0)], _Places(dim)
    starts: list[tuple[float, Array, Array]] = []  # V_r, the distribution, its mean
    for theta in [*vertices, *(towards(x)[0] for x in ahead)]:
        pi = safe.best(theta)
        if pi is not None and not first.holds(x := points.T @ pi):
            first.add(x)
            starts.append((towards(x)[1], pi, x))
    # equal values differ by rounding, which must not choose between them
    starts.sort(key=lambda start: -round(start[0], 9))
    best, reached, met = None, -math.inf, _Places(dim)
    for height, start, x in starts[:CLIMBS]:
        climbed = _climb(safe, towards(x)[0], towards, met)
        for found, after in ((start, height), climbed):
            if _gained(after, reached):
                best, reached = found, after
    return best


class _Places:
    """Points that ascents have visited, ``(n, dim)``."""

    def __init__(self, dim: int) -> None:
        self._points, self._count = np.empty((64, dim)), 0

    def holds(self, x: Array) -> bool:
        """Return whether a point was visited, within the solver's tolerance."""
        away = np.abs(self._points[: self._count] - x).max(-1, initial=0.0)
        return bool((away <= SAME).any())

    def add(self, x: Array) -> None:
        """Add a point."""
        if self._count == len(self._points):
            self._points = np.concatenate([self._points, np.empty_like(self._points)])
        self._points[self._count] = x
        self._count += 1


def _gained(value: float, before: float) -> bool:
    """Return whether a value is better by more than the solver's tolerance."""
    return before == -math.inf or value > before + 1e-9 * (1 + abs(before))


def _climb(
    safe: SafePolicies,
    theta: Array,
    towards: Callable[[Array], tuple[Array, float]],
    met: _Places,
) -> tuple[Array | None, float]:
    """Return the distribution where an ascent from ``theta`` ends, and its ``V_r``.

    Along a smooth limit there are many similar steps. So as long as it pays, the next
    ``theta`` is that of a point further ahead, twice as far each time.

    Args:
        safe: the distributions.
        theta: the coefficients to begin with.
        towards: returns the ellipsoid's best coefficients for a point, and its ``V_r``.
        met: points that ascents have visited; this ascent adds its own.
    """
    best, reached, leap = None, -math.inf, 0.0
    last = np.zeros(safe.points.shape[1])
    while (pi := safe.best(theta)) is not None:
        x = safe.points.T @ pi
        if met.holds(x):
            break
        after = towards(x)[1]
        if _gained(after, reached):
            way = x - last if best is not None else np.zeros_like(x)
            best, reached, last = pi, after, x
            met.add(x)
            size = max(float(np.linalg.norm(way)), 1e-300)
            far = min(leap, LEAP * float(np.linalg.norm(x)) / size)
            theta, leap = towards(x + far * way)[0], max(1.0, 2 * leap)
        elif leap > 0:
            theta, leap = towards(last)[0], 0.0
        else:
            break
    return best, reached


def _promising(
    points: Array, w: Array, root: Array, tau: Array, x0: Array
) -> list[Array]:
    """Return up to ``STARTS`` feasible points with a high upper bound of the reward.

    They lie in different directions. Each is on a line from the safe action to another
    action, as far along it as is surely feasible. With at most ``MOST_PAIRED`` actions
    the midpoints of pairs are ends of lines too.
    """
    ends = points
    if len(points) <= MOST_PAIRED:
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
        if len(picked) == STARTS:
            break
        if all(away[i] @ away[j] < NEAR for j in picked):
            picked.append(int(i))
    return [boundary[i] for i in picked]


def within_limits(
    shares: Tensor,
    points: Tensor,
    w: Tensor,
    root: Tensor,
    tau: Tensor,
    x0: Tensor,
    c0: Tensor | None,
    at: Tensor,
) -> Tensor:
    """Return ``shares`` mixed with the safe action as far as ``V_c <= tau`` needs.

    Args:
        shares: the distributions, ``(T, K)``; zero in a trial where none was found.
        points: the actions, ``(T, K, d)``.
        w: the coefficients, ``(T, 1 + m, d)``.
        root: ``A`` of the ellipsoids, ``(T, 1 + m, d, d)``.
        tau: the thresholds, ``(T, m)``.
        x0: the safe action, ``(T, d)``.
        c0: its costs, ``(T, m)``, if they are stated.
        at: its number, ``(T,)``.
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
    return mixed.scatter_add(-1, at.unsqueeze(-1), remainder.clamp_min(0.0))


def played(shares: Tensor, device: torch.device) -> Distribution:
    """Return the actions with a positive share as a zero-padded distribution."""
    number, some = torch.arange(shares.shape[1]).expand_as(shares), shares > 0
    order = some.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    order = order[:, : int(some.sum(-1).max())]
    probability = shares.gather(-1, order)
    index = number.gather(-1, order).masked_fill(probability <= 0, 0)
    return Distribution(devices.put(index, device), devices.put(probability, device))
