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

    @cached_property
    def small(self) -> Flags:
        """Which costs are to be small, ``(m,)``."""
        return np.array([sense == "<=" for sense in self.senses], dtype=bool)

    @cached_property
    def all_small(self) -> bool:
        """Whether every cost is to be small."""
        return bool(self.small.all())

    @cached_property
    def signs(self) -> Array:
        """The sign of each cost inside policies, ``(m,)``: -1 for those to be large."""
        return np.where(self.small, 1.0, -1.0)

    @cached_property
    def ranged(self) -> bool:
        """Whether both ends of any cost's range are known."""
        return bool((np.isfinite(self.low) & np.isfinite(self.high)).any())

    def mean_after(self, total: Array, weight: Array) -> Array:
        """Return the mean of what was told, a limit counting as one round of it.

        Where no range bounds what a first guess may do, it counts as none.
        """
        own = ~(self.of_kind("number") & np.isnan(self.low) & np.isnan(self.high))
        known = own + weight > 0
        mean = (own * self.first + total) / np.where(known, own + weight, 1.0)
        return np.where(known, mean, self.first)

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
    """Where costs are expected, as known when actions are chosen.

    Args:
        mean: the mean of what was told, ``(T, m)``, or ``(n, T, m)`` for ``n`` rounds.
        trust: where the belief was nearer than the mean so far, likewise.
        informed: where the mean rests on an outcome, likewise.
        believed: what the belief expects, likewise, NaN where it says nothing;
            ``None``: it says nothing.
    """

    mean: Array
    trust: Flags
    informed: Flags
    believed: Array | None = None

    def used(self, costs: Costs) -> tuple[Array, Array, Array]:
        """Return the centres used, the believed ones and the means."""
        if self.believed is None:
            return self.mean, self.mean, self.mean
        believed = np.where(np.isfinite(self.believed), self.believed, self.mean)
        believed = np.fmin(np.fmax(believed, costs.low), costs.high)
        return np.where(self.trust, believed, self.mean), believed, self.mean


class Plays(NamedTuple):
    """Rounds that were played, or turned out not to be played.

    Args:
        add: 1 for costs that are outstanding since, -1 for those that were cancelled,
            0 for others, ``(n, T, m)``.
        limits: the limits of the rounds, ``(n, T, m)``.
        centre: where their costs were expected.
    """

    add: Array
    limits: Array
    centre: Centre


class Told(NamedTuple):
    """Costs of rounds, as the user told them; ``(n, T, m)`` each.

    Args:
        values: numbers, shares or rates.
        came: where there is one.
        tries: the tries or exposure behind each; ``None``: 1.
        limits: the limits of the rounds.
        centre: where the costs were expected.
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
        informed: rounds told whose centre rests on an outcome.
        squares: of their residuals about the centre used, for the asymptotic bound.
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
    informed: Array
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

    def since(self, start: Sums, largest: Array) -> Sums:
        """Return the sums over the rounds since those of ``start``, with its flags.

        ``largest`` is the largest square of these rounds.
        """
        kept = ("spread", "outside", "tallied", "largest")
        less = {
            name: getattr(self, name) - getattr(start, name)
            for name in self._fields
            if name not in kept
        }
        return self._replace(**less, largest=largest)

    def next_centre(self, costs: Costs) -> Centre:
        """Return the centre of the rounds to come, without the belief's part."""
        mean = costs.mean_after(self.total, self.weight)
        return Centre(mean, self.tried[0] < self.tried[1], self.weight > 0)

    def after_plays(self, costs: Costs, plays: Plays) -> Sums:
        """Return the sums after rounds were played, or cancelled."""
        at, _, _ = plays.centre.used(costs)
        return self._outstanding(costs, plays.add, plays.limits, at)

    def after(self, costs: Costs, told: Told) -> Sums:
        """Return the sums after costs of rounds were told."""
        came, limits = told.came, told.limits
        values = np.where(came, told.values, 0.0)
        weight: Array = came.astype(np.float64)
        if told.tries is not None:
            weight = np.where(came, told.tries, 0.0)
        at, believed, mean = told.centre.used(costs)
        known = came & told.centre.informed
        square = (known * (values - at) * weight) ** 2
        tried = [(((values - c) * weight) ** 2).sum(0) for c in (believed, mean)]
        (low, high), (below, above) = _cut(costs, at), _divisors(costs)
        beyond = np.where(costs.small, values > limits, values < limits) & came
        sums = self._outstanding(costs, -came.astype(np.float64), limits, at)._replace(
            rounds=self.rounds + came.sum(0),
            weight=self.weight + weight.sum(0),
            total=self.total + (values * weight).sum(0),
            limit=self.limit + (limits * weight).sum(0),
            over=self.over + beyond.sum(0),
            informed=self.informed + known.sum(0),
            squares=self.squares + square.sum(0),
            largest=np.maximum(self.largest, square.max(0)),
            tried=self.tried + np.stack(tried),
            below=self.below + (weight * ((values - low) / below) ** 2).sum(0),
            above=self.above + (weight * ((values - high) / above) ** 2).sum(0),
            events=self.events + (known * at * weight).sum(0),
            tallied=self.tallied | (came & (weight != 1)).any(0),
        )
        beyond = came & ((values < costs.low) | (values > costs.high))
        return sums._replace(
            outside=self.outside | beyond.any(0),
            spread=self.spread | sums._too_spread(costs),
        )

    def _outstanding(self, costs: Costs, add: Array, limits: Array, at: Array) -> Sums:
        """Add ``(n, T, m)`` to the outstanding rounds."""
        sums = self._replace(
            out=self.out + add.sum(0), limit_out=self.limit_out + (add * limits).sum(0)
        )
        if not costs.ranged:
            return sums
        (low, high), (below, above) = _cut(costs, at), _divisors(costs)
        ends = costs.low, costs.high
        most_low = np.maximum((ends[0] - low) ** 2, (ends[1] - low) ** 2) / below**2
        most_high = np.maximum((ends[0] - high) ** 2, (ends[1] - high) ** 2) / above**2
        return sums._replace(
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


def over_rounds(
    costs: Costs, values: Array, limits: Array, tries: Array | None = None
) -> Sums:
    """Return the sums over rounds that are known as a whole.

    Args:
        costs: what is known of the costs.
        values: the costs of the rounds, ``(n, T, m)``; NaN where they never came.
        limits: their limits, likewise.
        tries: the tries or exposure behind each, likewise; ``None``: 1.
    """
    return sums_after(costs, values, limits, [len(values)], tries)[0]


def sums_after(
    costs: Costs,
    values: Array,
    limits: Array,
    rounds: Sequence[int],
    tries: Array | None = None,
) -> list[Sums]:
    """Return the sums after each of some rounds, in rising order.

    The other arguments are those of :func:`over_rounds`.
    """
    came = ~np.isnan(values)
    weight = came.astype(np.float64) if tries is None else np.where(came, tries, 0.0)
    told = np.where(came, values, 0.0) * weight
    total, heavy = told.cumsum(0) - told, weight.cumsum(0) - weight
    mean = costs.mean_after(total, heavy)
    trust, informed = np.zeros_like(came), heavy > 0
    sums, out, first = Sums.none(costs.first.shape), [], 0
    for last in rounds:
        part = slice(first, last)
        centre = Centre(mean[part], trust[part], informed[part])
        plays = Plays(np.ones_like(values[part]), limits[part], centre)
        new = Told(
            values[part],
            came[part],
            None if tries is None else weight[part],
            limits[part],
            centre,
        )
        sums = sums.after_plays(costs, plays).after(costs, new)
        out.append(sums)
        first = last
    return out


def _divisors(costs: Costs) -> tuple[Array, Array]:
    """Return both scales, 1 where there is none."""
    below, above = costs.below_scale, costs.above_scale
    return np.where(np.isnan(below), 1.0, below), np.where(np.isnan(above), 1.0, above)


def _cut(costs: Costs, at: Array) -> tuple[Array, Array]:
    """Return the centres for lower and for upper bounds: within a scale of the end."""
    low = np.fmin(at, costs.low + costs.below_scale)
    return low, np.fmax(at, costs.high - costs.above_scale)
