"""Predictions of a logged outcome under every choice, from earlier rounds alone.

They are fitted again whenever the rounds have doubled. A poor prediction widens a band
and a good one narrows it; neither makes it wrong.

Shapes: ``n`` rounds, ``K`` choices, ``d`` numbers that describe a context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cbandit.receipt.bets import Array

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = 0.5  # the prediction before any round
PENALTIES = np.geomspace(1e4, 1e-2, 13)  # among which ridge regressions choose
SURELY = 1 - 1e-9  # the most that a row may weigh in its own prediction
ROUNDING = 1e-6
MOST_LEVELS = 50  # different values of a category beyond which it is not used


def features_of(contexts: pd.DataFrame | None, n: int) -> Array:
    """Return contexts as numbers, ``(n, d)``: categories become a column a value."""
    columns: list[Array] = []
    for _, column in [] if contexts is None else contexts.items():
        if column.dtype.kind in "biuf":
            columns.append(np.nan_to_num(column.to_numpy(dtype=np.float64)))
        elif column.dtype.kind in "mM":
            columns.append(np.asarray(column.astype("int64"), dtype=np.float64))
        else:
            levels, texts = column.astype(str).unique(), column.astype(str).to_numpy()
            if len(levels) <= MOST_LEVELS:
                columns += [np.where(texts == each, 1.0, 0.0) for each in levels]
    return np.stack(columns, -1) if columns else np.zeros((n, 0))


def predict(x: Array, action: NDArray[np.int64], z: Array, size: int) -> Array:
    """Return the predictions of an outcome in [0, 1], ``(n, K)``.

    Args:
        x: the contexts as numbers, ``(n, d)``.
        action: the number of the choice played, ``(n,)``.
        z: the outcomes, ``(n,)``, NaN where not told.
        size: the number of choices.
    """
    n = len(z)
    q, start = np.full((n, size), UNKNOWN), 1
    while start < n:
        told = np.flatnonzero(~np.isnan(z[:start]))
        rows = slice(start, 2 * start)
        if len(told):
            model = _Model(x[told], action[told], z[told], size)
            q[rows] = model.at(x[rows])
        start *= 2
    return q


class _Model:
    """Ridge regressions: what choices share, then what each adds to it."""

    def __init__(
        self, x: Array, action: NDArray[np.int64], z: Array, size: int
    ) -> None:
        self._mean, spread = x.mean(0), x.std(0)
        self._scale = np.where(spread > 0, spread, np.inf)  # constants say nothing
        x, self._choices = self._scaled(x), np.eye(size)
        shared = np.concatenate([x, self._choices[action]], 1)
        self._level = z.mean()
        self._shared = _ridge(shared, z - self._level)
        left = z - self._level - shared @ self._shared
        self._own = np.zeros((size, 1 + x.shape[1]))
        for k in np.unique(action):
            rows = action == k
            self._own[k] = _ridge(_with_one(x[rows]), left[rows])

    def at(self, x: Array) -> Array:
        """Return the predictions at contexts ``(n, d)``, ``(n, K)``."""
        x = self._scaled(x)
        d = x.shape[1]
        shared = (x @ self._shared[:d])[:, None] + self._shared[d:]
        own = _with_one(x) @ self._own.T
        return np.asarray(np.clip(self._level + shared + own, 0.0, 1.0))

    def _scaled(self, x: Array) -> Array:
        return np.asarray((x - self._mean) / self._scale)


def _with_one(x: Array) -> Array:
    return np.concatenate([np.ones((len(x), 1)), x], 1)


def _ridge(x: Array, y: Array) -> Array:
    """Return coefficients, with the penalty that errs least on rows left out."""
    values, vectors = np.linalg.eigh(x.T @ x)
    turned = x @ vectors
    target = turned.T @ y
    shrunk = 1 / (np.maximum(values, 0.0)[:, None] + PENALTIES)  # d x penalties
    left = y[:, None] - turned @ (shrunk * target[:, None])
    own = np.minimum(turned**2 @ shrunk, SURELY)  # of a row in its own prediction
    errors = ((left / (1 - own)) ** 2).sum(0)
    # of errors that are equal but for rounding, that of the largest penalty
    best = int((errors <= errors.min() * (1 + ROUNDING)).argmax())
    return np.asarray(vectors @ (shrunk[:, best] * target))
