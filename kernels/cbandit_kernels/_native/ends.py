"""The end of a round: the best of all pieces, and the estimates there."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from cbandit_kernels._native.compiling import compiled
from cbandit_kernels._native.loops import loops

__all__ = ["end"]


@cache
def end(double: bool) -> Any:
    """The loop for float64, or for float32."""
    kind: Any = np.float64 if double else np.float32
    estimated, spread = loops(double).estimated, loops(double).spread
    zero = kind(0)

    @compiled
    def end(values, indices, first, held, asked, drawn, paths, found):  # type: ignore
        """Of equals the lowest number, wherever it was found.

        Args:
            values: ``(T, pieces)``, the best of each.
            indices: likewise, their numbers.
            first: the number of the stretch's first action.
            held: the arrays over the stretch.
            asked: the look.
            drawn: a joint draw, or none.
            paths: the factors of one, or of none: see ``product``.
            found: what is filled: ``(T, 1)``, ``(T, 1)``, ``(T, F, 1)``.
        """
        value, index, estimates = found
        path, right = paths
        tails = right.shape[2]
        for t in range(values.shape[0]):
            top, number = values[t, 0], indices[t, 0]
            for piece in range(1, values.shape[1]):
                other, at = values[t, piece], indices[t, piece]
                if other > top or (other == top and at < number):
                    top, number = other, at
            value[t, 0], index[t, 0] = top, number
            at = number - first
            for f in range(estimates.shape[1]):
                if path.shape[1]:
                    own = right[t if right.shape[0] > 1 else 0]
                    d = zero
                    for r in range(path.shape[3]):
                        d += path[t, f, at // tails, r] * own[r, at % tails]
                else:
                    d = spread(held, drawn, t, f, at)
                estimates[t, f, 0] = estimated(held, asked, t, f, at, d)

    return end
