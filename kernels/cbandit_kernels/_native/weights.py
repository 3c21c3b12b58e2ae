"""A regression on features and its moments at some rows, in compiled loops."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from cbandit_kernels._native.compiling import compiled
from cbandit_kernels.types import WeightRows, WeightSums

__all__ = ["enter", "look"]


def enter(
    held: WeightSums,
    rows: WeightRows,
    block: Tensor,
    h: Tensor,
    precision: Tensor,
    values: Tensor,
) -> None:
    """See :func:`cbandit_kernels.weights.enter_weights_ref`."""
    told = (np.ascontiguousarray(v.numpy()) for v in (block, h, precision, values))
    _entering()(*_in_place(held), *_in_place(rows[:3]), *rows[3:], *told)


def look(held: WeightSums, rows: WeightRows, h: Tensor) -> None:
    """See :func:`cbandit_kernels.weights.look_weights_ref`."""
    read = held.root, held.rotated, held.log_det
    row = np.ascontiguousarray(h.numpy())
    _looking()(*_in_place(read), *_in_place(rows[:3]), rows.stop, row)


def _in_place(parts: tuple[Tensor, ...]) -> list[Any]:
    """Return the arrays of contiguous tensors, which share their memory."""
    if not all(part.is_contiguous() for part in parts):
        raise ValueError("all sums must be contiguous, for they change in place")
    return [part.numpy() for part in parts]


@cache
def _entering() -> Any:
    """Return the loop over trials."""

    @compiled
    def entering(  # type: ignore
        sums,
        weighted,
        root,
        rotated,
        fitted,
        log_det,
        features,
        mean,
        var,
        start,
        stop,
        block,
        h,
        precision,
        values,
    ):
        trials, functions, width = len(h), weighted.shape[2], h.shape[1]
        v, kept, taken = np.empty(width), np.empty(width), np.empty(width)
        column, gap = np.empty(stop - start), np.empty(functions)
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
            for f in range(functions):
                gap[f] = np.sqrt(p) * values[t, f]
                for j in range(width):
                    gap[f] -= bw[f, j] * v[j]
                    bw[f, j] = 0.0
            column[:] = 0.0
            for i in range(width):
                along = 0.0
                for j in range(i, width):
                    value = w[i, j]
                    w[i, j] = kept[j] * value - taken[j] * along
                    along += v[j] * value
                for r in range(stop - start):
                    column[r] += along * features[t, i, start + r]
                for f in range(functions):
                    for j in range(i, width):
                        bw[f, j] += b[f, i] * w[i, j]
            for r in range(stop - start):
                var[t, start + r, k] -= column[r] * column[r] / (1.0 + square)
            for f in range(functions):
                size = gap[f] / (1.0 + square)
                for r in range(stop - start):
                    mean[t, f, start + r, k] += size * column[r]
                for g in range(functions):
                    total = 0.0
                    for j in range(width):
                        total += bw[f, j] * bw[g, j]
                    fitted[t, k, f, g] = total

    return entering


@cache
def _looking() -> Any:
    """Return the loop over trials and blocks."""

    @compiled
    def looking(root, rotated, log_det, features, mean, var, place, h):  # type: ignore
        trials, blocks, functions, width = rotated.shape
        v = np.empty(width)
        for t in range(trials):
            prior = 0.0
            for i in range(width):
                features[t, i, place] = h[t, i]
                prior += h[t, i] * h[t, i]
            for k in range(blocks):
                if log_det[t, k] == 0.0:  # nothing was observed
                    var[t, place, k] = prior
                    for f in range(functions):
                        mean[t, f, place, k] = 0.0
                    continue
                w, bw = root[t, k], rotated[t, k]
                v[:] = 0.0
                for i in range(width):
                    for j in range(i, width):
                        v[j] += h[t, i] * w[i, j]
                square = 0.0
                for j in range(width):
                    square += v[j] * v[j]
                var[t, place, k] = square
                for f in range(functions):
                    total = 0.0
                    for j in range(width):
                        total += bw[f, j] * v[j]
                    mean[t, f, place, k] = total

    return looking
