"""Rows of the prior covariance at the tried actions, over all actions.

Three ways to the same numbers. *Stored* keeps the rows, *Kronecker* a factor of them
per half of the grid's axes, *Recomputed* nothing: it computes them in blocks.
Each is told of a new distinct action by ``write`` and hands out combinations by
``multiply(weights)``, a function of a stretch of actions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.actions import Actions
from cbandit.posterior.covariance import Covariance
from cbandit_kernels import Change, Found, Look, finish_round

__all__ = ["Columns", "Path", "Rounds", "Rows", "finishing"]

Columns = Callable[[int, int], Tensor]
"""``(start, stop) -> (T, k, n)``: combinations of rows over a stretch of actions."""

Rounds = Callable[[int, Tensor, Tensor], Found]
"""``(start, mean, var)``: a round's one pass over a stretch of actions."""


class Path(Protocol):
    """A prior draw of ``F`` functions, known over the set and at the tried actions."""

    tried: Tensor
    """``(T, F, U)``, float64."""

    def corrected(self, weights: Tensor) -> Columns:
        """The draw less ``weights (T, U, F)`` combinations of kernel rows."""
        ...


class Rows(Protocol):
    """Kernel rows at the tried actions, over a stretch of the set.

    They are made by ``(actions, covariance, trials, dtype, device, stretch=None)``, in
    :mod:`cbandit.posterior.engines.choice`.

    Slots are the history's, one for each distinct action that a trial has tried. A slot
    that was given up is given to another action, and ``write`` replaces its row. A
    trial weighs slots that it never wrote by 0; their rows must not hold NaN.
    """

    covariance: Covariance
    dtype: torch.dtype
    kept: bool
    """Whether whole rows are kept, which are sooner computed than read from a file."""
    by_features: bool
    """Whether :meth:`path` draws by random features, which not all kernels have."""

    @property
    def actions(self) -> Actions:
        """The set."""
        ...

    @property
    def name(self) -> str:
        """The name of the engine that keeps such rows."""
        ...

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
        ...

    def multiply(self, weights: Tensor) -> Columns:
        """``weights^T K``, for ``weights (T, U, k)`` in float64."""
        ...

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
        ...

    def seamless(self, draw: Columns | None) -> bool:
        """Whether :meth:`rounds` takes all actions at once and needs no room."""
        ...

    def path(self, streams: Streams, functions: int, points: Tensor) -> Path:
        """A prior draw; ``points (T, U, d)`` are the tried actions."""
        ...

    def clear(self) -> None:
        """Drop all rows."""
        ...

    def roomier(self) -> Rows | None:
        """Rows that keep less, and none of these yet; ``None``: there are none."""
        ...

    def bytes_per_row(self) -> int:
        """Bytes that one more distinct action takes."""
        ...

    def bytes_per_column(self) -> int:
        """Bytes that each column of ``multiply`` takes for as long as it is used."""
        ...


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
