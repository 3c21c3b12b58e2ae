"""Intervals and tests of mean differences over few trials.

The bootstrap is studentised (Efron and Tibshirani, 1993, section 12.5): it resamples
Student's statistic. Percentiles of resampled means, including BCa, are too narrow for
few trials; so is Student's own interval if differences are skewed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

LEVEL = 0.95
FEWEST = 6  # fewer trials cannot reach this level
DRAWS = 9999  # resamples of the bootstrap
FLAT = 0.01  # a larger share of resamples without spread is too many to leave out
COVERAGE = (
    "94 to 96 % of normal differences and of counts, 90 to 93 % of lognormal ones"
)
"""How often intervals hold with 6 to 50 trials: ``benchmarks/quality/intervals.py``."""


class Difference(NamedTuple):
    """A mean difference, the ends of its 95 % interval, and the test that it is 0.

    The ends and ``p`` are NaN with fewer than :data:`FEWEST` trials.
    """

    mean: float
    low: float
    high: float
    p: float


def interval(differences: np.ndarray) -> Difference:
    """Return the mean of ``(n,)`` paired differences with its interval and test.

    The interval is that of the studentised bootstrap, and ``p`` belongs to the test
    that rejects if 0 lies outside the interval. Resamples without spread have no
    statistic and are left out. If more than :data:`FLAT` of them are, as with counts
    that are equal in many trials, the bootstrap alone is too narrow: each end is then
    the farther one of the bootstrap's and Student's, and ``p`` the larger one. If all
    trials are equal, the interval is a point, and the test is the sign test.
    """
    mean, n = float(differences.mean()), len(differences)
    if n < FEWEST or not math.isfinite(mean):
        return Difference(mean, math.nan, math.nan, math.nan)
    if (differences == differences[0]).all():
        return Difference(mean, mean, mean, 2.0 ** (1 - n) if mean else 1.0)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    drawn = differences[_resamples(n)]  # draws x n
    spread = drawn.std(1, ddof=1)
    # with equal numbers the spread may be a rounding error
    firm = spread > 1e-9 * error
    t = (drawn.mean(1)[firm] - mean) / (spread[firm] / math.sqrt(n))
    low, high = np.quantile(t, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    beyond = min((t >= mean / error).sum(), (t <= mean / error).sum())
    p = min(1.0, 2 * (float(beyond) + 1) / (len(t) + 1))
    low, high = mean - float(high) * error, mean - float(low) * error
    if firm.mean() < 1 - FLAT:
        student = _student(mean, error, n)
        low, high = min(low, student.low), max(high, student.high)
        p = max(p, student.p)
    return Difference(mean, low, high, p)


def _student(mean: float, error: float, n: int) -> Difference:
    from scipy.stats import t

    width = float(t.ppf((1 + LEVEL) / 2, n - 1)) * error
    p = 2 * float(t.sf(abs(mean) / error, n - 1))
    return Difference(mean, mean - width, mean + width, p)


@functools.lru_cache(maxsize=4)
def _resamples(n: int) -> np.ndarray:
    """Return the rows that a bootstrap of ``n`` numbers draws, ``(DRAWS, n)``."""
    return torch.randint(
        n, (DRAWS, n), generator=torch.Generator().manual_seed(0)
    ).numpy()


def holm(p: Sequence[float]) -> list[float]:
    """Return the values ``p``, corrected for the number of tests by Holm's procedure.

    Tests whose ``p`` is NaN are left out of the number.
    """
    known = sorted((value, k) for k, value in enumerate(p) if not math.isnan(value))
    out, least = [math.nan] * len(p), 0.0
    for rank, (value, k) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * value))
        out[k] = least
    return out
