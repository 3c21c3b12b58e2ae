"""Bets on what another policy would have earned or paid, from the rounds of a log.

A round's *pseudo-outcome* under a candidate is a number, at least ``-cap``, whose mean
is the candidate's mean outcome, given the past. Bets that this mean is above a value
multiply up to evidence, which exceeds ``1 / a`` ever with probability at most ``a`` if
it is not. Bounds and verdicts rest on it. They hold for any weights, however large, at
any time, if the candidate's mean outcome is the same in all rounds.

Outcomes are scaled to [0, 1]. Shapes: ``n`` rounds, ``K`` choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from cbandit.receipt.bets import Array, mixture

#: shares of what may be lost that are bet
BETS = np.geomspace(1e-3, 0.95, 20)
SMALL_CAP = 1.0  # the cap that is good for what is rare
LEAST_CAP = 0.5
TOGETHER = 8  # factors that are multiplied before a logarithm is taken
SMALLEST, CLOSE = 1e-9, 1e-12  # the least lower bound above 0, and how near it is found


@dataclass(frozen=True, eq=False)
class Weights:
    """How a candidate's probabilities compare with those of a log.

    Args:
        candidate: its probabilities, ``(n, K)``.
        logged: those of the log, ``(n, K)``; NaN but for the choice played where only
            that is known.
        action: the number of the choice played, ``(n,)``.
    """

    candidate: Array
    logged: Array
    action: NDArray[np.int64]

    def of_played(self, values: Array) -> Array:
        """Return those of values ``(n, K)`` that are of the choice played, ``(n,)``."""
        return np.asarray(values[np.arange(len(self.action)), self.action])

    @cached_property
    def whole(self) -> bool:
        """Whether the log knows the probabilities of all choices."""
        return not np.isnan(self.logged).any()

    @cached_property
    def played(self) -> Array:
        """The weight of the choice played, ``(n,)``."""
        return self.of_played(self.candidate) / self.of_played(self.logged)

    @cached_property
    def ratios(self) -> Array:
        """The weights of all choices, infinite where the log never plays one."""
        never = np.where(self.candidate > 0, np.inf, 0.0)
        return np.divide(self.candidate, self.logged, out=never, where=self.logged > 0)

    @cached_property
    def squares(self) -> Array:
        """The expected square of the weight in each round, ``(n,)``.

        If only the probabilities played are known, the square of the weight itself.
        """
        if not self.whole:
            return self.played**2
        possible = self.logged > 0
        none = np.zeros_like(self.candidate)
        parts = np.divide(self.candidate**2, self.logged, out=none, where=possible)
        return np.asarray(parts.sum(1))

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of the mean weight."""
        mean = self.played.mean()
        if self.whole:
            mean = (self.candidate * (self.logged > 0)).sum(1)
        variance = float((self.squares - mean**2).mean())
        return math.sqrt(max(variance, 0.0) / len(self.action))

    @cached_property
    def supported(self) -> float:
        """The share of the candidate's choices that the log could have played."""
        if not self.whole:
            return math.nan
        return float((self.candidate * (self.logged > 0)).sum(1).mean())

    @cached_property
    def worth(self) -> float:
        """How many rounds of the candidate a logged round is worth, by design."""
        mean = self.squares.mean()
        return float(1 / mean) if mean > 0 else 0.0

    @cached_property
    def largest(self) -> float:
        """The largest weight that could have come up."""
        if not self.whole:
            return float(self.played.max())
        return float(self.ratios[np.isfinite(self.ratios)].max(initial=0.0))

    @cached_property
    def caps(self) -> tuple[float, ...]:
        """By how much pseudo-outcomes may be below 0: a little, and as usual.

        A small cap serves what is rare. Where only the probabilities played are
        known there is nothing below 0.
        """
        if not self.whole:
            return (0.0,)
        by_worth = 2 / max(self.worth, 1e-9)
        usual = max(LEAST_CAP, min(by_worth, math.sqrt(len(self.action)) / 8))
        return SMALL_CAP, 2.0 ** round(math.log2(usual))


class Pseudo(NamedTuple):
    """Pseudo-outcomes of the rounds, ``(n,)``, none below ``-cap``."""

    values: Array
    cap: float


def doubly_robust(y: Array, q: Array, weights: Weights) -> Array:
    """Return the pseudo-outcomes whose mean is the estimate, ``(n,)``.

    Args:
        y: the outcomes, ``(n,)``.
        q: predictions of them under every choice, ``(n, K)``.
        weights: of the candidate.
    """
    expected = (weights.candidate * q).sum(1)
    return np.asarray(weights.played * (y - weights.of_played(q)) + expected)


def pseudo_outcomes(y: Array, q: Array, weights: Weights) -> list[Pseudo]:
    """Return pseudo-outcomes under each cap of the weights.

    Args:
        y: outcomes in [0, 1], ``(n,)``; NaN where they were not told: they count as 0,
            which only widens.
        q: predictions of them from earlier rounds, ``(n, K)``.
        weights: of the candidate.
    """
    y = np.nan_to_num(y)
    if not weights.whole:  # predictions would need the other probabilities
        return [Pseudo(weights.played * y, cap) for cap in weights.caps]
    ratios, found = weights.ratios, []
    for cap in weights.caps:
        most = np.divide(cap, ratios, out=np.full_like(q, np.inf), where=ratios > 0)
        found.append(Pseudo(doubly_robust(y, np.minimum(q, most), weights), cap))
    return found


def both_sides(
    z: Array, q: Array, weights: Weights
) -> tuple[list[Pseudo], list[Pseudo]]:
    """Return the pseudo-outcomes of ``z`` in [0, 1], and those of ``1 - z``."""
    return pseudo_outcomes(z, q, weights), pseudo_outcomes(1 - z, 1 - q, weights)


def combined(factor: float, first: list[Pseudo], second: list[Pseudo]) -> list[Pseudo]:
    """Return ``factor`` times the first and the second, of the same rounds."""
    return [
        Pseudo(factor * one.values + two.values, factor * one.cap + two.cap)
        for one, two in zip(first, second, strict=True)
    ]


def log_evidence(tries: list[Pseudo], value: float) -> float:
    """Return the logarithm of the evidence that the mean is above a value.

    It is the average over the bets and over the tries, which have the same mean.
    """
    logs = np.concatenate([_log_growth(each, value) for each in tries])
    return float(mixture(logs)) - math.log(len(logs))


def _log_growth(pseudo: Pseudo, value: float) -> Array:
    """Return the logarithm of the product over rounds of each bet's growth."""
    share = (pseudo.values - value) / (value + pseudo.cap)
    padded = np.zeros(-len(share) % TOGETHER + len(share))
    padded[: len(share)] = share
    growth = 1 + np.multiply.outer(BETS, padded.reshape(-1, TOGETHER))
    return np.asarray(np.log(growth.prod(2)).sum(1))


def lower_bound(tries: list[Pseudo], a: float) -> float:
    """Return the greatest value that the evidence excludes at ``1 / a``, at least 0."""
    needed = math.log(1 / a)

    def short(value: float) -> float:
        return needed - log_evidence(tries, value)

    if short(SMALLEST) > 0:
        return 0.0
    # no evidence is left at the mean
    top = max(float(each.values.mean()) for each in tries)
    return float(_root(short, SMALLEST, max(top, 2 * SMALLEST)))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    return low if rising(high) < 0 else brentq(rising, low, high, xtol=CLOSE)


def bounds(up: list[Pseudo], down: list[Pseudo], alpha: float) -> tuple[float, float]:
    """Return both bounds of a mean in [0, 1], each at ``alpha / 2``.

    Args:
        up: pseudo-outcomes of ``z``.
        down: pseudo-outcomes of ``1 - z``.
        alpha: the chance that either ever fails.
    """
    return lower_bound(up, alpha / 2), 1 - lower_bound(down, alpha / 2)
