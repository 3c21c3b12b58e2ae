"""Rows of the prior covariance at the tried actions, over all actions.

Three ways to the same numbers. *Stored* keeps the rows, *Kronecker* a factor of them
per half of the grid's axes, *Recomputed* nothing: it computes them in blocks.
Each is told of a new distinct action by ``write`` and hands out combinations by
``multiply(weights)``, a function of a stretch of actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.posterior.covariance import Prior
from cbandit.posterior.draws.features import Features
from cbandit_kernels import Change, Found, Look, finish_round

Columns = Callable[[int, int], Tensor]
"""``(start, stop) -> (T, k, n)``: combinations of rows over a stretch of actions."""

Rounds = Callable[[int, Tensor, Tensor], Found]
"""``(start, mean, var)``: a round's one pass over a stretch of actions."""


class Path(NamedTuple):
    """A prior draw of ``F`` functions, known over the set and at the tried actions.

    Args:
        tried: at the tried actions, ``(T, F, U)``, float64.
        corrected: the draw less ``weights (T, U, F)`` combinations of kernel rows.
    """

    tried: Tensor
    corrected: Callable[[Tensor], Columns]


class Rows(ABC):
    """Kernel rows at the tried actions, over a stretch of the set.

    Slots are the history's, one for each distinct action that a trial has tried. A slot
    that was given up is given to another action, and ``write`` replaces its row. A
    trial weighs slots that it never wrote by 0; their rows must not hold NaN.

    Args:
        prior: the set, its stretch that is kept, and the covariance.
    """

    name: str
    """The name of the engine that keeps such rows."""
    kept = False
    """Whether whole rows are kept, which are sooner computed than read from a file."""
    by_features = True
    """Whether :meth:`path` draws by random features, which not all kernels have."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.clear()

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
        """Take in a new distinct action ``x (len(trials), d)``, a slot a trial.

        ``keys`` are its names: a number where it is one of the set's.
        """

    @abstractmethod
    def multiply(self, weights: Tensor) -> Columns:
        """``weights^T K``, for ``weights (T, U, k)`` in float64."""

    @abstractmethod
    def bytes_per_row(self) -> int:
        """Bytes that one more distinct action takes."""

    def bytes_per_column(self) -> int:
        """Bytes that each column of ``multiply`` takes for as long as it is used."""
        return 0

    def roomier(self) -> Rows | None:
        """Rows that keep less, and none of these yet; ``None``: there are none."""
        return None

    def rounds(
        self,
        weights: Tensor,
        change: Change,
        look: Look,
        draw: Columns | None,
        backend: str | None,
    ) -> Rounds:
        """A round's pass: apply the columns ``weights^T K``, score, take the best.

        ``draw``: what stands for the standard deviation in a joint draw.
        """
        return finishing(self.multiply(weights), change, look, draw, backend)

    def seamless(self, draw: Columns | None) -> bool:
        """Whether :meth:`rounds` takes all actions at once and needs no room."""
        return False

    def path(self, streams: Streams, functions: int, points: Tensor) -> Path:
        """A prior draw; ``points (T, U, d)`` are the tried actions."""
        actions, dtype = self.prior.actions, self.prior.dtype
        features = Features(self.prior.covariance, streams, functions)

        def corrected(weights: Tensor) -> Columns:
            columns = self.multiply(weights)

            def drawn(start: int, stop: int) -> Tensor:
                x = actions.block(start, stop).to(dtype)
                return features(x) - columns(start, stop)

            return drawn

        return Path(features(points), corrected)


def finishing(
    columns: Columns | None,
    change: Change,
    look: Look,
    draw: Columns | None,
    backend: str | None,
) -> Rounds:
    """Columns by a matrix product, the rest of the round in one pass over them.

    ``None``: there are none.
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
