"""Add an observation to a regression on features, in compiled loops."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from cbandit_kernels._native.compiling import compiled
from cbandit_kernels.types import WeightSums

__all__ = ["enter"]


def enter(
    held: WeightSums, block: Tensor, h: Tensor, precision: Tensor, values: Tensor
) -> None:
    """See :func:`cbandit_kernels.weights.enter_weights_ref`."""
    if not all(part.is_contiguous() for part in held):
        raise ValueError("all sums must be contiguous, for they change in place")
    told = (np.ascontiguousarray(v.numpy()) for v in (block, h, precision, values))
    _entering()(*(part.numpy() for part in held), *told)


@cache
def _entering() -> Any:
    """Return the loop over trials."""

    @compiled
    def entering(  # type: ignore
        sums, weighted, root, rotated, fitted, log_det, block, h, precision, values
    ):
        trials, functions, width = len(h), weighted.shape[2], h.shape[1]
        v, kept, taken = np.empty(width), np.empty(width), np.empty(width)
        for t in range(trials):
            k, p = block[t], precision[t]
            if p == 0.0:
                continue
            a, w = sums[t, k], root[t, k]
            b, bw = weighted[t, k], rotated[t, k]
            v[:] = 0.0
            for i in range(width):
                scaled = p * h[t, i]
                for j in range(width):
                    a[i, j] += scaled * h[t, j]
                for f in range(functions):
                    b[f, i] += scaled * values[t, f]
                part = np.sqrt(p) * h[t, i]
                for j in range(i, width):
                    v[j] += part * w[i, j]
            square = 0.0
            for j in range(width):
                before = 1.0 + square
                square += v[j] * v[j]
                both = np.sqrt(before * (1.0 + square))
                kept[j], taken[j] = before / both, v[j] / both
            log_det[t, k] += np.log1p(square)
            bw[:] = 0.0
            for i in range(width):
                along = 0.0
                for j in range(i, width):
                    value = w[i, j]
                    w[i, j] = kept[j] * value - taken[j] * along
                    along += v[j] * value
                for f in range(functions):
                    for j in range(i, width):
                        bw[f, j] += b[f, i] * w[i, j]
            for f in range(functions):
                for g in range(functions):
                    total = 0.0
                    for j in range(width):
                        total += bw[f, j] * bw[g, j]
                    fitted[t, k, f, g] = total

    return entering
