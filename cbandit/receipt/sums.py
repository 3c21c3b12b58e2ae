"""Sums over the rounds of a policy, from which its certificate is computed.

Everything is in the user's numbers and senses. Shapes: ``T`` trials, ``m`` costs, ``n``
rounds. Rounds are added many at a time, which costs little more than one.

A round's *centre* is a number near which a cost is expected, fixed when the action is
chosen: what the belief expects, or the mean of what was told. Any number known by then
is right; a good one makes bounds narrow. The one whose squares were smaller so far is
used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbandit.receipt.bets import Array

Flags = NDArray[np.bool_]

MIN_COUNTS = 20.0  # expected events from which the spread of counts is judged
MIN_ROUNDS = 100  # and rounds
CHUNK = 256  # rounds of a run that are added together


@dataclass(frozen=True, eq=False)
class Costs:
    """The costs, as known before the first round.

    Args:
        names: the costs' names.
        senses: ``"<="`` or ``">="`` for each.
        kinds: ``"number"``, ``"binary"`` or ``"count"`` for each.
        low: the least value of each, ``(m,)``, NaN where it is not known.
        high: the greatest, likewise.
        first: the limits of the first round, ``(T, m)``.
    """

    names: tuple[str, ...]
    senses: tuple[str, ...]
    kinds: tuple[str, ...]
    low: Array
    high: Array
    first: Array

    def of_kind(self, kind: str) -> Flags:
        """Return which costs are of a kind, ``(m,)``."""
        return np.array([each == kind for each in self.kinds], dtype=bool)

    @property
    def small(self) -> Flags:
        """Which costs are to be small, ``(m,)``."""
        return np.array([sense == "<=" for sense in self.senses], dtype=bool)

    @cached_property
    def below_scale(self) -> Array:
        """The scale of residuals for lower bounds, ``(T, m)``, NaN where unknown.

        It is short where the limit is far below the greatest value, so that a broken
        limit shows early.
        """
        width = np.where(np.isnan(self.high), np.inf, self.high) - self.low
        return _scale(width, 2 * (self.first - self.low))

    @cached_property
    def above_scale(self) -> Array:
        """The scale of residuals for upper bounds, likewise."""
        width = self.high - np.where(np.isnan(self.low), -np.inf, self.low)
        return _scale(width, 2 * (self.high - self.first))


def _scale(width: Array, near: Array) -> Array:
    scale = np.where(near > 0, np.minimum(width, near), width)
    return np.where(np.isfinite(scale), scale, np.nan)


class Centre(NamedTuple):
    """Where a round's costs are expected, as known when its action is chosen.

    Args:
        believed: what the belief expects, ``(T, m)``; ``None``: it says nothing.
        mean: the mean of what was told, ``(T, m)``.
        trust: where the belief was nearer than the mean so far, ``(T, m)``.
    """

    believed: Array | None
    mean: Array
    trust: Flags


class Play(NamedTuple):
    """A round in which an action was played, or turned out not to be played.

    Args:
        which: the costs that are outstanding since, or no longer, ``(T, m)``.
        limits: the limits of the round, ``(T, m)``.
        centre: where its costs are expected.
        sign: 1 if it was played, -1 if it was cancelled.
    """

    which: Flags
    limits: Array
    centre: Centre
    sign: float = 1.0


class Told(NamedTuple):
    """Costs of one round, as the user told them.

    Args:
        values: numbers, shares or rates, ``(T, m)``.
        came: where there is one, ``(T, m)``.
        tries: the tries or exposure behind each, ``(T, m)``; ``None``: 1.
        limits: the limits of the round, ``(T, m)``.
        centre: where its costs were expected.
    """

    values: Array
    came: Flags
    tries: Array | None
    limits: Array
    centre: Centre


class Sums(NamedTuple):
    """Sums over rounds; ``(T, m)`` unless stated.

    Args:
        rounds: rounds whose cost was told.
        weight: their tries or exposure; of numbers, 1 a round.
        total: of what was told, times its weight.
        limit: of the limits, times the weight.
        over: rounds whose cost was beyond its limit.
        out: rounds that were played and whose cost was not told.
        limit_out: of the limits of these.
        squares: of residuals about the centre used, for the asymptotic bound.
        largest: the largest of these squares.
        tried: of residuals about the belief and about the mean, ``(2, T, m)``.
        below: of residuals in ``below_scale``, for the lower bound.
        above: of residuals in ``above_scale``, for the upper bound.
        below_out: the most that outstanding rounds can add to ``below``.
        above_out: likewise to ``above``.
        events: counts that the centres expected.
        spread: whether counts were more spread than Poisson's, from then on.
        outside: whether a value was outside the stated range, from then on.
        tallied: whether a round ever had other than one try.
    """

    rounds: Array
    weight: Array
    total: Array
    limit: Array
    over: Array
    out: Array
    limit_out: Array
    squares: Array
    largest: Array
    tried: Array
    below: Array
    above: Array
    below_out: Array
    above_out: Array
    events: Array
    spread: Flags
    outside: Flags
    tallied: Flags

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Sums:
        """Return the sums before the first round."""
        zero, no = np.zeros(shape), np.zeros(shape, dtype=bool)
        values = dict.fromkeys(cls._fields, zero)
        flags = dict.fromkeys(("spread", "outside", "tallied"), no)
        return cls(**{**values, "tried": np.zeros((2, *shape)), **flags})

    def since(self, start: Sums) -> Sums:
        """Return the sums over the rounds since ``start``, which has these flags.

        ``start.largest`` must be the largest square since then.
        """
        less = {
            name: getattr(self, name) - getattr(start, name)
            for name in self._fields
            if name not in ("spread", "outside", "tallied", "largest")
        }
        # a round that was outstanding then and is not now was told since
        kept = dict.fromkeys(("out", "limit_out", "below_out", "above_out"))
        less |= {name: getattr(self, name) for name in kept}
        return self._replace(**less, largest=start.largest)

    def next_centre(self, costs: Costs) -> Centre:
        """Return the centre of the rounds to come, as far as it is known."""
        mean = (costs.first + self.total) / (1 + self.weight)
        return Centre(None, mean, self.tried[0] < self.tried[1])

    def after_plays(self, costs: Costs, plays: Sequence[Play]) -> Sums:
        """Return the sums after rounds were played, or cancelled."""
        if not plays:
            return self
        add = np.stack([play.which * play.sign for play in plays])
        limits = np.stack([play.limits for play in plays])
        at = _centres(costs, [play.centre for play in plays])[0]
        return self._outstanding(costs, add, limits, at)

    def after(self, costs: Costs, rows: Sequence[Told]) -> Sums:
        """Return the sums after costs of rounds were told."""
        if not rows:
            return self
        came = np.stack([row.came for row in rows])
        limits = np.stack([row.limits for row in rows])
        values = np.where(came, np.stack([row.values for row in rows]), 0.0)
        ones = np.ones(came.shape[1:])
        tries = [ones if row.tries is None else row.tries for row in rows]
        weight = np.where(came, np.stack(tries), 0.0)
        at, believed, mean = _centres(costs, [row.centre for row in rows])
        square = ((values - at) * weight) ** 2
        tried = [(((values - c) * weight) ** 2).sum(0) for c in (believed, mean)]
        (low, high), (below, above) = _cut(costs, at), _divisors(costs)
        beyond = np.where(costs.small, values > limits, values < limits) & came
        sums = self._outstanding(costs, -1.0 * came, limits, at)._replace(
            rounds=self.rounds + came.sum(0),
            weight=self.weight + weight.sum(0),
            total=self.total + (values * weight).sum(0),
            limit=self.limit + (limits * weight).sum(0),
            over=self.over + beyond.sum(0),
            squares=self.squares + square.sum(0),
            largest=np.maximum(self.largest, square.max(0)),
            tried=self.tried + np.stack(tried),
            below=self.below + (weight * ((values - low) / below) ** 2).sum(0),
            above=self.above + (weight * ((values - high) / above) ** 2).sum(0),
            events=self.events + (at * weight).sum(0),
            tallied=self.tallied | (came & (weight != 1)).any(0),
        )
        beyond = came & ((values < costs.low) | (values > costs.high))
        return sums._replace(
            outside=self.outside | beyond.any(0),
            spread=self.spread | sums._too_spread(costs),
        )

    def _outstanding(self, costs: Costs, add: Array, limits: Array, at: Array) -> Sums:
        """Add ``(n, T, m)`` to the outstanding rounds."""
        (low, high), (below, above) = _cut(costs, at), _divisors(costs)
        ends = costs.low, costs.high
        most_low = np.maximum((ends[0] - low) ** 2, (ends[1] - low) ** 2) / below**2
        most_high = np.maximum((ends[0] - high) ** 2, (ends[1] - high) ** 2) / above**2
        return self._replace(
            out=self.out + add.sum(0),
            limit_out=self.limit_out + (add * limits).sum(0),
            below_out=self.below_out + (add * np.nan_to_num(most_low)).sum(0),
            above_out=self.above_out + (add * np.nan_to_num(most_high)).sum(0),
        )

    def _too_spread(self, costs: Costs) -> Flags:
        """Return which counts are more spread than Poisson's explain, ``(T, m)``."""
        known = (self.rounds >= MIN_ROUNDS) & (self.events >= MIN_COUNTS)
        known &= costs.of_kind("count")
        if not known.any():
            return known
        events, rounds = np.maximum(self.events, 1.0), np.maximum(self.rounds, 1.0)
        usual = 1 + 5 * np.sqrt((2 + rounds / events) / rounds)
        return known & (self.squares / events > usual)


def over_rounds(costs: Costs, values: Array, limits: Array) -> Sums:
    """Return the sums over rounds that are known as a whole.

    Args:
        costs: what is known of the costs.
        values: the costs of the rounds, ``(T, n, m)``; NaN where they never came.
        limits: their limits, likewise.
    """
    came = ~np.isnan(values)
    told = np.where(came, values, 0.0)
    total, count = told.cumsum(1) - told, came.cumsum(1) - came
    mean = (costs.first[:, None] + total) / (1 + count)
    sums, never = Sums.none(costs.first.shape), np.zeros(costs.first.shape, dtype=bool)
    rows = []
    for i in range(values.shape[1]):
        centre = Centre(None, mean[:, i], never)
        rows.append(Told(told[:, i], came[:, i], None, limits[:, i], centre))
    plays = [Play(~never, row.limits, row.centre) for row in rows]
    for start in range(0, len(rows), CHUNK):
        chunk = slice(start, start + CHUNK)
        sums = sums.after_plays(costs, plays[chunk]).after(costs, rows[chunk])
    return sums


def _centres(costs: Costs, centres: Sequence[Centre]) -> tuple[Array, Array, Array]:
    """Return the centres used, the believed ones and the means, ``(n, T, m)`` each."""
    mean = np.stack([centre.mean for centre in centres])
    if all(centre.believed is None for centre in centres):
        return mean, mean, mean
    believed = np.stack([c.mean if c.believed is None else c.believed for c in centres])
    believed = np.where(np.isfinite(believed), believed, mean)
    believed = np.fmin(np.fmax(believed, costs.low), costs.high)
    trust = np.stack([centre.trust for centre in centres])
    return np.where(trust, believed, mean), believed, mean


def _divisors(costs: Costs) -> tuple[Array, Array]:
    """Return both scales, 1 where there is none."""
    below, above = costs.below_scale, costs.above_scale
    return np.where(np.isnan(below), 1.0, below), np.where(np.isnan(above), 1.0, above)


def _cut(costs: Costs, at: Array) -> tuple[Array, Array]:
    """Return the centres for lower and for upper bounds: within a scale of the end."""
    low = np.fmin(at, costs.low + costs.below_scale)
    return low, np.fmax(at, costs.high - costs.above_scale)
