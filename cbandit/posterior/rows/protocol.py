"""Rows of the prior covariance at the tried actions, over all actions.

There are three ways to the same numbers. *Stored* keeps the rows, *Kronecker* a factor
of them for each of two groups of grid axes, *Recomputed* nothing: it computes them in
blocks. ``write`` adds a new distinct action; ``multiply(weights)`` returns combinations
of rows, as a function of a stretch of actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.posterior.covariance import Prior
from cbandit.posterior.draws.lots import Lots
from cbandit_kernels import Change, Found, Look, finish_round

Columns = Callable[[int, int], Tensor]
"""``(start, stop) -> (T, k, n)``: combinations of rows over a stretch of actions."""

Rounds = Callable[[int, Tensor, Tensor], Found]
"""``(start, mean, var)``: one round's pass over a stretch of actions."""


class Path(NamedTuple):
    """A prior draw of ``F`` functions, known over the set and at the tried actions.

    Args:
        tried: the draw at the tried actions, ``(T, F, U)``, float64.
        corrected: takes ``weights (T, U, F)``; returns the draw less the kernel rows
            combined with them.
    """

    tried: Tensor
    corrected: Callable[[Tensor], Columns]


class Rows(ABC):
    """Kernel rows at the tried actions, over a stretch of the set.

    Slots are the history's, one for each distinct action of a trial. A slot may be
    given to another action; then ``write`` replaces its row. In a trial, slots never
    written have weight 0; their rows must not hold NaN.

    Args:
        prior: the set, its stretch that is stored here, and the covariance.
    """

    name: str
    """The name of the engine that keeps rows of this kind."""
    kept = False
    """Whether whole rows are stored, which are faster to compute than to read."""
    by_features = True
    """Whether :meth:`path` uses random features, which not all kernels have."""

    def __init__(self, prior: Prior) -> None:
        self.prior, self._lots = prior, Lots(prior)
        self.clear()

    @property
    def remark(self) -> str:
        """How rows are stored, in words for users; may be empty."""
        return ""

    @abstractmethod
    def clear(self) -> None:
        """Drop all rows."""

    @abstractmethod
    def write(
        self,
        trials: list[int],
        slots: list[int],
        x: Tensor,
        keys: Sequence[Hashable],
    ) -> None:
        """Add a new distinct action ``x (len(trials), d)``, in one slot per trial.

        ``keys`` are the actions' keys: numbers for actions of the set.
        """

    @abstractmethod
    def multiply(self, weights: Tensor) -> Columns:
        """Return ``weights^T K`` for ``weights (T, U, k)`` in float64."""

    @abstractmethod
    def bytes_per_row(self) -> int:
        """Return the bytes that one more distinct action takes."""

    def bytes_per_column(self) -> int:
        """Return the bytes that a column of ``multiply`` takes while in use."""
        return 0

    def roomier(self) -> Rows | None:
        """Return empty rows of a kind that takes less memory; ``None``: no kind."""
        return None

    def rounds(
        self,
        weights: Tensor,
        change: Change,
        look: Look,
        draw: Columns | None,
        backend: str | None,
    ) -> Rounds:
        """Return a pass that applies columns ``weights^T K`` and finds the best action.

        ``draw`` is the joint draw that replaces the standard deviation.
        """
        return finishing(self.multiply(weights), change, look, draw, backend)

    def seamless(self, draw: Columns | None) -> bool:
        """Return whether :meth:`rounds` needs no temporaries for the whole set."""
        return False

    def path(self, streams: Streams, functions: int, points: Tensor, name: str) -> Path:
        """Draw from the prior; ``points (T, U, d)`` are the tried actions.

        Draws with the same ``name`` may share frequencies, others do not.
        """
        prior = self._lots.draw(streams, functions, name)

        def corrected(weights: Tensor) -> Columns:
            columns = self.multiply(weights)
            return lambda start, stop: prior(start, stop) - columns(start, stop)

        return Path(prior.at(points).double(), corrected)


def finishing(
    columns: Columns | None,
    change: Change,
    look: Look,
    draw: Columns | None,
    backend: str | None,
) -> Rounds:
    """Return a pass that applies columns from a matrix product and finds the best.

    ``columns`` is ``None`` if there are no columns.
    """

    def go(start: int, mean: Tensor, var: Tensor) -> Found:
        made, stop = var.new_empty(len(var), 0, var.shape[-1]), start + var.shape[-1]
        if columns is not None:
            made = columns(start, stop)
        drawn = None if draw is None else draw(start, stop).to(var.dtype)
        return finish_round(
            made, change, mean, var, look, start, drawn, backend=backend
        )

    return go
