"""The rounds of a log that another policy can be judged by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.evaluation.candidates import probabilities
from cbandit.receipt.bets import Array
from cbandit.receipt.log import Log, read_ranges
from cbandit.receipt.off_policy import Pseudo, Weights, both_sides
from cbandit.receipt.predictions import features_of, predict

NO_PROPENSITIES = (
    "log holds no probabilities of choices: the rule that wrote it was deterministic, "
    "and says nothing of other choices. Build the policy with explore_share=0.05, or "
    "name the column of the probabilities, cb.Log.from_frame(..., propensity='p')"
)


class Outcome(NamedTuple):
    """One outcome of the rounds, in the user's units.

    Args:
        y: what was told, ``(n,)``; NaN where it was not.
        q: predictions from earlier rounds, ``(n, K + 1)``.
        low: the least it can be, or was where no range is known.
        high: the greatest.
        ranged: whether its range is known.
    """

    y: Array
    q: Array
    low: float
    high: float
    ranged: bool

    def scaled(self, low: float) -> tuple[Array, Array]:
        """Return ``y`` and ``q`` with ``low`` to ``high`` turned into 0 to 1."""
        width = self.high - low
        return (self.y - low) / width, (self.q - low) / width

    def sides(
        self, weights: Weights, low: float | None = None
    ) -> tuple[list[Pseudo], list[Pseudo]]:
        """Return the pseudo-outcomes of the scaled outcome ``z``, and of ``1 - z``."""
        return both_sides(*self.scaled(self.low if low is None else low), weights)


class Rounds:
    """The rounds whose probabilities are known, and what was fitted to them.

    To the ``K`` choices of the log one is added for all that it never could choose.

    Args:
        log: the log.
        ranges: what outcomes cannot leave, beside what the log says.
    """

    def __init__(self, log: Any, ranges: Mapping[str, tuple[float, float]] | None):
        if not isinstance(log, Log):
            raise CBanditError(
                "log must be a cb.Log, as policy.log() returns and cb.Log.from_frame "
                f"reads; got {checks.kind(log)}"
            )
        drawn = np.isfinite(log.propensity)
        if not drawn.any():
            raise CBanditError(NO_PROPENSITIES)
        self.log = log[drawn]
        self.left_out = len(log) - len(self.log)
        said = {} if ranges is None else read_ranges(ranges, log.names)
        self.ranges = {**log.ranges, **said}
        n, others = len(self.log), 0.0 if _whole(self.log) else np.nan
        none = np.full((n, 1), others)
        self._logged = np.concatenate([self.log.distribution, none], 1)
        self._features = features_of(self.log.contexts, n)
        self._outcomes: dict[str, Outcome] = {}

    def weights(self, candidate: object, name: str = "candidate") -> Weights:
        """Return the weights of a candidate."""
        shares = probabilities(candidate, self.log, name)
        return Weights(shares, self._logged, self.log.action)

    def logged(self) -> Weights:
        """Return the weights of the rule that wrote the log, 1 each."""
        return Weights(self._logged, self._logged, self.log.action)

    def outcome(self, name: str) -> Outcome:
        """Return an outcome, with its predictions."""
        if name not in self._outcomes:
            y = self.log.outcomes[name].to_numpy()
            low, high = self._ends(name, y)
            z = (y - low) / (high - low)
            q = predict(self._features, self.log.action, z, self._logged.shape[1])
            q = low + (high - low) * q
            self._outcomes[name] = Outcome(y, q, low, high, name in self.ranges)
        return self._outcomes[name]

    def _ends(self, name: str, y: Array) -> tuple[float, float]:
        told = y[~np.isnan(y)]
        if name not in self.ranges:
            ends = (told.min(), told.max()) if len(told) else (0.0, 1.0)
            return (ends[0], ends[1]) if ends[0] < ends[1] else (ends[0], ends[0] + 1)
        low, high = self.ranges[name]
        beyond = (told < low) | (told > high)
        if beyond.any():
            raise CBanditError(
                f"ranges[{name!r}] is ({low:g}, {high:g}), and {name} was "
                f"{told[beyond][0]:g} in {int(beyond.sum())} of {len(told)} rounds: "
                "bounds need a range that no outcome can leave"
            )
        return low, high


def _whole(log: Log) -> bool:
    """Return whether a log knows the probabilities of all choices."""
    return not np.isnan(log.distribution).any()
