"""The alarm: from some round on a limit is broken.

It bets that costs are above the limit from a round on, for every such round at once. If
no window of rounds is above its limit by more than ``credit`` spreads, it ever sounds
in at most a share ``alpha`` of runs. A policy that pays back what it exceeds (CKB)
needs some credit; one for which every excess counts (RPOL) needs none.

Shapes: 5 jumps that are looked for, ``T`` trials, ``m`` costs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cbandit.receipt.bets import Array
from cbandit.receipt.sums import Costs, Flags, Told

JUMPS = np.array([0.05, 0.1, 0.2, 0.4, 0.8]).reshape(-1, 1, 1)  # in spreads
STEPS = JUMPS / (1 + JUMPS**2)
PRIOR_ROUNDS = 10.0  # rounds that the first guess of the spread counts for
FORGET_AFTER = 1_000  # rounds after which old ones count less for the spread
FORGETTING = 0.999
LEARNED_ROUNDS = 30  # rounds from which a spread learned from outcomes alone counts
MOST = 1e250
MOST_LOST = 0.9  # share of the evidence that one round may take


class Alarm(NamedTuple):
    """A limit that was broken from some round on.

    Args:
        cost: the cost's name.
        since: the round from which on it seems to be broken.
        told: the round whose cost made the alarm sound.
        trial: the trial's number; ``None``: there is no trials axis.
    """

    cost: str
    since: int
    told: int
    trial: int | None = None

    def __str__(self) -> str:
        where = "" if self.trial is None else f" in trial {self.trial}"
        return f"{self.cost} breaks its limit since about round {self.since}{where}"


class Watch(NamedTuple):
    """The evidence that limits are broken; ``(T, m)`` unless stated.

    Args:
        evidence: that costs jumped in one of the rounds so far, ``(5, T, m)``.
        excursion: the evidence since it was last at its least, ``(5, T, m)``.
        since: the round of that, ``(5, T, m)``.
        rounds: rounds so far.
        weight: the weight of the rounds that the spread rests on.
        mean: the mean of what was told.
        squares: of residuals about it.
        below: where a value was below the least that was said, from then on.
        sounded: where the alarm has sounded; nothing moves there until it is armed.
        again: how often it was armed again.
    """

    evidence: Array
    excursion: Array
    since: Array
    rounds: Array
    weight: Array
    mean: Array
    squares: Array
    below: Flags
    sounded: Flags
    again: Array

    @classmethod
    def start(cls, costs: Costs, t: int) -> Watch:
        """Return a watch that begins after round ``t``."""
        limit, low = oriented(costs, costs.first), least(costs)
        zero, bets = np.zeros(limit.shape), np.zeros((len(JUMPS), *limit.shape))
        # where the least value is known, the way to it is a first guess of the spread
        prior = np.where(np.isfinite(low), PRIOR_ROUNDS, 0.0) + zero
        room = np.where(np.isfinite(low), np.maximum(limit - low, 1e-12), 0.0)
        return cls(
            bets,
            bets + 1,
            bets + t,
            zero,
            prior,
            limit + zero,
            prior * room**2,
            np.zeros(limit.shape, dtype=bool),
            np.zeros(limit.shape, dtype=bool),
            zero,
        )

    def after(
        self, costs: Costs, told: Told, t: int, credit: float, alpha: float
    ) -> tuple[Watch, Flags]:
        """Return the watch after costs of one round were told, and where it sounds now.

        Args:
            costs: what is known of the costs.
            told: the costs, and the limits of their round.
            t: their round.
            credit: by how many spreads a window may exceed its limit.
            alpha: the chance of a false alarm of any cost.
        """
        came = told.came[0] & ~self.sounded
        values = np.where(came, told.values[0], 0.0)
        y, limit = oriented(costs, values), oriented(costs, told.limits[0])
        low = least(costs)
        left = 1 / (1 + np.log1p(self.rounds / 100))
        later = 1 / (1 + np.log1p((self.rounds + 1) / 100))
        below = self.below | (came & (y < low))
        signed = below | ~np.isfinite(low)
        excess = y - limit
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            spread = np.sqrt(self.squares / self.weight)
            most = np.where(limit > low, MOST_LOST / (limit - low), np.inf)
            growth = 1 + np.minimum(STEPS / spread, most) * excess
            normal = np.exp(JUMPS * excess / spread - JUMPS**2 / 2)
            learned = (self.rounds >= LEARNED_ROUNDS) & (self.squares > 0)
            growth = np.where(signed, np.where(learned, normal, 1.0), growth)
            # no round moves the evidence beyond what a float holds
            evidence = np.fmin((self.evidence + (left - later)) * growth, MOST)
            fresh = self.excursion <= 1
            excursion = np.fmin(np.where(fresh, 1.0, self.excursion) * growth, MOST)
        since = np.where(fresh, float(t), self.since)
        keep = np.where(self.weight < FORGET_AFTER, 1.0, FORGETTING)
        weight = self.weight * keep + 1
        gap = y - self.mean
        first = (self.weight == 0) & came
        mean = np.where(first, y, self.mean + gap / weight)
        squares = self.squares * keep + gap**2 * (1 - 1 / weight)
        watch = self._replace(
            evidence=np.where(came, evidence, self.evidence),
            excursion=np.where(came, excursion, self.excursion),
            since=np.where(came, since, self.since),
            rounds=self.rounds + came,
            weight=np.where(came, weight, self.weight),
            mean=np.where(came, mean, self.mean),
            squares=np.where(came, squares, self.squares),
            below=below,
        )
        shares = np.exp(-STEPS * credit) / len(JUMPS)
        total = (shares * watch.evidence).sum(0) + later
        needed = self.rounds.shape[1] / alpha * 2.0**watch.again
        sounds = came & (total >= needed)
        return watch._replace(sounded=self.sounded | sounds), sounds

    def began(self, credit: float) -> Array:
        """Return the rounds from which on limits seem to be broken, ``(T, m)``."""
        shares = np.exp(-STEPS * credit) * self.excursion
        best = shares.argmax(0)[None]
        return np.asarray(np.take_along_axis(self.since, best, 0)[0])

    def armed(self, costs: Costs, t: int, where: Flags) -> Watch:
        """Return the watch begun again after round ``t``, ``where (T, m)`` it sounded.

        Each time half the chance of a false alarm is left.
        """
        new = Watch.start(costs, t)
        parts = {
            name: np.where(where, getattr(new, name), getattr(self, name))
            for name in self._fields
            if name != "again"
        }
        return Watch(**parts, again=self.again + where)


def oriented(costs: Costs, values: Array) -> Array:
    """Return values of costs, or their limits, as numbers that are to be small."""
    turned = np.where(costs.of_kind("binary"), 1 - values, -values)
    return np.where(costs.small, values, turned)


def least(costs: Costs) -> Array:
    """Return the least that each cost can be, oriented, minus infinity if unknown."""
    low = np.where(costs.of_kind("count"), 0.0, costs.low)
    end = np.where(costs.small, low, -costs.high)
    end = np.where(costs.of_kind("count") & ~costs.small, np.nan, end)
    end = np.where(costs.of_kind("binary"), 0.0, end)
    return np.where(np.isnan(end), -np.inf, end)
