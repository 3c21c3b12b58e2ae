"""The prices of a window of rows, trial by trial, in compiled loops."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit_kernels._native.compiling import compiled
from cbandit_kernels._native.simplex import make_search
from cbandit_kernels.types import Priced

__all__ = ["price"]


def price(
    f: Tensor,
    c: Tensor,
    target: Tensor,
    unit: Tensor,
    begin: Tensor | None,
    feasible: float,
    rounding: float,
) -> Priced:
    """See :func:`cbandit_kernels.prices.window_price_ref`."""
    trials, m = target.shape
    near = np.zeros((trials, 0, m)) if begin is None else _plain(begin)
    out = (
        np.empty((trials, m)),
        np.empty((trials, m + 1), np.int64),
        np.empty((trials, m + 1)),
        np.empty((trials, m + 1, m)),
        np.empty(trials, np.bool_),
    )
    given = (_plain(part) for part in (f, c, target, unit))
    _every_trial()(*given, near, feasible, rounding, out)
    return Priced(*map(torch.from_numpy, out))


def _plain(values: Tensor) -> Any:
    """Return the numbers as a contiguous array, which the loops are compiled for."""
    return np.ascontiguousarray(values.numpy())


@cache
def _every_trial() -> Any:
    """Return the loop over trials; it writes results into its last argument."""

    @compiled
    def plan(f, c, weight, price, values):  # type: ignore
        n, count = f.shape
        score = np.empty(count)
        values[:] = 0.0
        at = 0
        for i in range(n):
            for k in range(count):
                score[k] = f[i, k]
            if weight == 0.0:
                for k in range(count):
                    score[k] = 0.0 if score[k] > -np.inf else -np.inf
            for j in range(len(c)):
                p = price[j]
                for k in range(count):
                    score[k] -= p * c[j, i, k]
            best, at = -np.inf, 0
            for k in range(count):
                if score[k] > best:
                    best, at = score[k], k
            values[0] += f[i, at]
            for j in range(len(c)):
                values[1 + j] += c[j, i, at]
        values /= n
        return at

    @compiled
    def invert(square):  # type: ignore
        """Return the inverse, by elimination with the greatest pivot."""
        size = len(square)
        left, right = square.copy(), np.eye(size)
        for i in range(size):
            pivot = i
            for r in range(i + 1, size):
                if abs(left[r, i]) > abs(left[pivot, i]):
                    pivot = r
            for j in range(size):
                left[i, j], left[pivot, j] = left[pivot, j], left[i, j]
                right[i, j], right[pivot, j] = right[pivot, j], right[i, j]
            for j in range(size):
                right[i, j] /= left[i, i]
            for j in range(size - 1, i - 1, -1):
                left[i, j] /= left[i, i]
            for r in range(size):
                if r != i:
                    factor = left[r, i]
                    for j in range(size):
                        left[r, j] -= factor * left[i, j]
                        right[r, j] -= factor * right[i, j]
        return right

    search = make_search(plan, invert, compiled)

    @compiled
    def every_trial(f, c, target, unit, near, feasible, rounding, out):  # type: ignore
        price, arms, shares, ends, infeasible = out
        for t in range(len(target)):
            found = price[t], arms[t], shares[t], ends[t]
            given = f[t], c[t], target[t], unit[t], near[t]
            infeasible[t] = search(*given, feasible, rounding, found)

    return every_trial
