"""Distributions over vectors: the best of those whose mean keeps its limits."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from cbandit import search
from cbandit._core import devices
from cbandit.choice import Distribution
from cbandit.search.conic import Array, SafePolicies

__all__ = ["best_mixture", "played", "within_limits"]


def best_mixture(
    solver: str, points: Array, w: Array, root: Array, tau: Array, x0: Array
) -> Array | None:
    """Return the distribution ``(K,)`` found best in one trial; ``None``: none is safe.

    Args:
        solver: ``"l1"`` or ``"ascent"``.
        points: the actions, ``(K, d)``.
        w: coefficients of reward and costs, ``(1 + m, d)``.
        root: ``A`` of their ellipsoids, ``(1 + m, d, d)``, times their widths.
        tau: ``(m,)``.
        x0: the safe action, ``(d,)``.
    """
    safe, dim = SafePolicies(points, w[1:], root[1:], tau), points.shape[1]
    # Sigma^{-1} = A' A, whatever root A is: its symmetric one spans the vertices
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
        return max(tried, key=lambda one: one[1])[0] if tried else None

    def towards(x: Array) -> tuple[Array, float]:
        """Return the ellipsoid's best ``theta'`` for ``x``, and ``V_r(x)``."""
        length = float(np.linalg.norm(root[0] @ x))
        step = inverse @ x / length if length > 0 else np.zeros(dim)
        return w[0] + step, float(w[0] @ x) + length

    best, reached = None, -math.inf
    for theta in [towards(x0)[0], *vertices]:
        before = -math.inf
        while (pi := safe.best(theta)) is not None:
            theta, after = towards(points.T @ pi)
            if after > reached:
                best, reached = pi, after
            if after <= before + 1e-9 * (1 + abs(before)):
                break
            before = after
    return best


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
        shares: distributions, ``(T, K)``; empty where none was found.
        points: the actions, ``(T, K, d)``.
        w: ``(T, 1 + m, d)``.
        root: ``(T, 1 + m, d, d)``.
        tau: ``(T, m)``.
        x0: the safe action, ``(T, d)``.
        c0: its costs, ``(T, m)``, if they were given.
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
    rest = 1 - mixed.sum(-1, keepdim=True)
    return mixed.scatter_add(-1, at.unsqueeze(-1), rest.clamp_min(0.0))


def played(shares: Tensor, device: torch.device) -> Distribution:
    """Return the actions with a share, by number, zero-padded, on ``device``."""
    number, some = torch.arange(shares.shape[1]).expand_as(shares), shares > 0
    order = some.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    order = order[:, : int(some.sum(-1).max())]
    probability = shares.gather(-1, order)
    index = number.gather(-1, order).masked_fill(probability <= 0, 0)
    return Distribution(devices.put(index, device), devices.put(probability, device))
