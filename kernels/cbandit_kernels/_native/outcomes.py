"""Count outcomes into their running average and spread, in a compiled loop."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit_kernels._native.compiling import compiled
from cbandit_kernels.types import OutcomeCounts

__all__ = ["count"]


def count(
    before: OutcomeCounts, values: Tensor, came: Tensor, sign: int, alike: float
) -> OutcomeCounts:
    """See :func:`cbandit_kernels.outcomes.count_outcomes_ref`."""
    given = (np.ascontiguousarray(v.numpy()) for v in (*before[:5], values, came))
    counts = list(map(torch.from_numpy, _counting()(*given, sign, alike)))
    counts[-1].sqrt_()  # torch's own root, to the bit
    return OutcomeCounts(*counts)


@cache
def _counting() -> Any:
    """Return the loop over trials and functions; it rounds as torch does."""

    @partial(compiled, fastmath=False)
    def counting(  # type: ignore
        seen, average, squares, most, origin, values, came, sign, alike
    ):
        trials, functions = average.shape
        seen, average, squares = seen.copy(), average.copy(), squares.copy()
        most, origin = most.copy(), origin.copy()
        known, variance = np.zeros(average.shape, np.bool_), np.ones(average.shape)
        for t in range(trials):
            first = seen[t, 0] == 0
            if came[t, 0]:
                seen[t, 0] += sign
            n = seen[t, 0]
            for f in range(functions):
                value = values[t, f]
                if came[t, 0]:
                    if first and sign > 0:
                        origin[t, f] = value
                    gap = sign * (value - average[t, f])
                    average[t, f] += gap / (n if n else 1.0)
                    squares[t, f] += gap * (value - average[t, f])
                if sign < 0 and n <= 0:
                    average[t, f], squares[t, f] = 0.0, 0.0
                most[t, f] = max(most[t, f], squares[t, f])
                now = max(squares[t, f] / max(n - 1.0, 1.0), 0.0)
                if n >= 2 and np.sqrt(now) > alike * abs(average[t, f]):
                    known[t, f], variance[t, f] = True, now
        return seen, average, squares, most, origin, known, variance

    return counting
