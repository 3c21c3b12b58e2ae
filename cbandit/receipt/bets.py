"""Mixtures of bets, and the bounds at which they have gathered enough evidence.

Shapes: ``K`` bets; everything else broadcasts, mostly ``(T, m)`` for trials and costs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BEST_ROUNDS = 2_500  # bounds are narrowest after about so many rounds
ODDS = np.geomspace(1e-3, 4.0, 48)  # bets on yes or no and on counts, in log odds
SHARES = np.geomspace(1e-3, 0.95, 48)  # bets on bounded numbers, in 1 / range
EVEN = 0.2  # share of the weights that is spread evenly over the bets
NOTHING = 1e-12  # a smaller lower bound is 0
STEPS = 60  # halvings of an interval that holds a bound
MIN_SPREAD = 10.0  # largest squares that residuals must add up to


def log_weights(bets: Array, variance: Array) -> Array:
    """Return log weights ``(K, ...)`` that serve best at a variance ``(...)``.

    They are half-normal in the bet, apart from the share ``EVEN``.
    """
    bets = bets.reshape(-1, *[1] * np.ndim(variance))
    bell = bets * np.exp(-(bets**2) * variance / 14.8)
    shares = (1 - EVEN) * bell / bell.sum(0) + EVEN / len(bets)
    return np.asarray(np.log(shares))


def mixture(logs: Array) -> Array:
    """Return the logarithm of the sum over the first axis of ``exp(logs)``."""
    top = logs.max(0)
    return np.asarray(top + np.log(np.exp(logs - top).sum(0)))


def root(rising: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Return where a rising function turns positive in ``[low, high]``."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        above = rising(middle) > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high


def rate_bounds(
    total: tuple[Array, Array],
    weight: Array,
    log_weight: Array,
    evidence: Array,
    binary: bool,
) -> tuple[Array, Array]:
    """Return bounds on a mean probability, or on a mean rate.

    They hold for probabilities and rates that change from round to round, whatever the
    actions depend on.

    Args:
        total: the least and the greatest sum of successes or counts.
        weight: the number of tries, or the exposure.
        log_weight: the bets' log weights, ``(K, ...)``.
        evidence: the logarithm of the evidence that excludes a value.
        binary: whether it is a probability.
    """
    bets = ODDS.reshape(-1, *[1] * np.ndim(weight))
    n = np.maximum(weight, 1e-300)

    def log_evidence(mean: Array, sign: int, count: Array) -> Array:
        gain = mean * np.expm1(sign * bets)
        cumulant = np.log1p(gain) if binary else gain
        return mixture(log_weight + sign * bets * count - n * cumulant)

    least, most = total
    mean_least, mean_most = least / n, most / n
    top = np.ones_like(n) if binary else (most + 50 + 10 * np.sqrt(most)) / n
    lower = root(
        lambda p: evidence - log_evidence(p, 1, least), np.zeros_like(n), mean_least
    )
    upper = root(lambda p: log_evidence(p, -1, most) - evidence, mean_most, top)
    lower = np.where((least > 0) & (lower > NOTHING), lower, 0.0)
    unknown = 1.0 if binary else np.inf
    nothing = weight <= 0
    return np.where(nothing, 0.0, lower), np.where(nothing, unknown, upper)


def deviation(variance: Array, evidence: Array) -> Array:
    """Return the sum of residuals that a sum of their squares explains.

    Both are in units of the range; residuals lie within -1 and infinity. (Fan's
    inequality, ``exp(l x - psi(l) x^2) <= 1 + l x``.)
    """
    bets = SHARES.reshape(-1, *[1] * np.ndim(variance))
    psi = -np.log1p(-bets) - bets
    weights = log_weights(SHARES, np.full_like(variance, 100.0))

    def short(u: Array) -> Array:
        return mixture(weights + bets * u - psi * variance) - evidence

    far = 60 * np.sqrt(variance + 1) + 60
    return root(short, np.zeros_like(variance), far)


def asymptotic(squares: Array, largest: Array, rounds: Array, a: Array) -> Array:
    """Return the deviation of a sum that holds at all times as rounds grow.

    Robbins' mixture with the variance plugged in. Four times the largest square is
    added to ``squares``, and there is no bound (infinity) while one round carries a
    tenth of the spread: without both it fails before the first rare event. ``a`` is the
    chance of either side to fail.
    """
    x = -2 * np.log(2 * a)
    per_round = (x + np.log(x + 1)) / BEST_ROUNDS
    n = np.maximum(rounds, 1.0)
    grown = n * per_round
    wide = np.sqrt((grown + 1) / per_round * (np.log(grown + 1) + x))
    width = np.sqrt((squares + 4 * largest) / n) * wide
    shaky = (rounds < 2) | (squares < MIN_SPREAD * largest) | (squares <= 0)
    return np.where(shaky, np.inf, width)
