"""A simplex method over a small pool of arms, many trials at once, on the host.

Its variables by number: ``0 .. m - 1`` the slack of each cost, ``m`` the shortfall (by
how much all limits would have to give way), ``m + 1 + k`` the ``k``-th arm of the pool.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EPS", "FEASIBLE", "ROUNDING", "excess", "shares", "solve", "start"]

Array = npt.NDArray[Any]

EPS = float(np.finfo(np.float64).eps)
FEASIBLE = 1e-12  # a limit missed by less than this share of the cost's scale is kept
ROUNDING = 8 * EPS  # scores closer than this share of the reward's scale are equal


def excess(reward: Array, cost: Array, tau: Array) -> Array:
    """Return costs above their limits, ``(T, m, n)``; 0 for arms never to be played."""
    never = np.isneginf(reward)[:, None, :]
    out: Array = np.where(never, 0.0, cost - tau[:, :, None])
    return out


def unit_of(scale: Array) -> Array:
    """Return powers of two, which multiply exactly, that bring ``scale`` to about 1."""
    exponent = np.clip(np.frexp(scale)[1], -1000, 1000)
    out: Array = np.ldexp(1.0, np.where(scale == 0, 0, -exponent))
    return out


def shares(x: Array, basis: Array, m: int) -> tuple[Array, Array]:
    """Return probabilities and places in the pool, ``(T, m + 1)`` both."""
    p = np.where(basis > m, np.maximum(x, 0), 0)
    return p / p.sum(1, keepdims=True), np.maximum(basis - m - 1, 0)


def start(delta: Array, reward: Array) -> Array:
    """Return a first basis ``(T, m + 1)``: an arm, slacks, the shortfall if needed."""
    count, m, _ = delta.shape
    worst = np.where(np.isneginf(reward), np.inf, delta.max(1))
    k = worst.argmin(1)
    basis = np.concatenate([np.tile(np.arange(m), (count, 1)), k[:, None] + m + 1], 1)
    over = np.take_along_axis(delta, k[:, None, None], 2)[:, :, 0]
    rows = np.flatnonzero(over.max(1) > 0)
    basis[rows, over.argmax(1)[rows]] = m
    return basis


def solve(reward: Array, delta: Array, basis: Array) -> tuple[Array, Array, Array]:
    """Return the best basis over the pool, its point and its duals: ``(T, m + 1)``.

    While the shortfall is in the basis, it is minimised; once out, it stays out.
    """
    count, m, n = delta.shape
    rows = np.arange(count)
    columns = np.zeros((count, m + 1, m + 1 + n))
    columns[:, :m, :m] = np.eye(m)
    columns[:, :m, m] = -1
    columns[:, :m, m + 1 :] = delta
    columns[:, m, m + 1 :] = 1
    gain = np.zeros((2, count, m + 1 + n))
    gain[0, :, m + 1 :] = reward
    gain[1, :, m] = -1
    gain[1, :, m + 1 :] = np.where(np.isneginf(reward), -np.inf, 0)
    right = np.zeros((count, m + 1, 1))
    right[:, m] = 1
    basis = basis.copy()
    patience = 50 * (m + 2)
    step = 0
    while True:
        short = (basis == m).any(1)
        now = np.where(short[:, None], gain[1], gain[0])
        square = np.take_along_axis(columns, basis[:, None, :], 2)
        x = np.linalg.solve(square, right)[:, :, 0]
        held = np.take_along_axis(now, basis, 1)
        y = np.linalg.solve(square.swapaxes(1, 2), held[:, :, None])[:, :, 0]
        better = now - (y[:, None, :] @ columns)[:, 0]
        np.put_along_axis(better, basis, -np.inf, 1)
        better[:, m] = -np.inf
        tolerance = ROUNDING * (1 + np.abs(y[:, :m]).sum(1))
        # the steepest one enters; after long the first one (Bland), against circles
        bland = step > patience
        enter = (better > tolerance[:, None] if bland else better).argmax(1)
        go = better[rows, enter] > tolerance
        if not go.any() or step > 20 * patience:
            return basis, x, y
        into = columns[rows, :, enter]
        w = np.linalg.solve(square, into[:, :, None])[:, :, 0]
        falls = w > 1e-13 * np.abs(w).max(1, keepdims=True)
        ratio = np.where(falls, np.maximum(x, 0) / np.where(falls, w, 1), np.inf)
        tied = ratio <= ratio.min(1, keepdims=True) * (1 + 4 * EPS)
        key = np.where(tied, -basis if bland else w, -np.inf)
        key[tied & (basis == m)] = np.inf
        leave = key.argmax(1)
        basis[rows[go], leave[go]] = enter[go]
        step += 1
