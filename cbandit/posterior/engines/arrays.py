"""The arrays of a large set: means, variances and rows over a stretch of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cbandit.actions import Actions
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.engines.protocol import Base
from cbandit.posterior.rows.protocol import Rows

__all__ = ["Arrays"]


class Arrays(Base):
    """Means ``(T, F, n)`` and variances ``(T, n)`` over a stretch of ``n`` actions.

    Args:
        actions: the set.
        covariance: the prior covariance.
        trials: ``T``.
        functions: ``F``.
        dtype: of the arrays.
        device: where they live.
        rows: where kernel rows come from.
        block: actions that are looked at together.
        stretch: its first action, and one past its last; ``None``: all.
    """

    keeps_all = False
    REFRESH_BYTES = 1 << 30

    def __init__(
        self,
        actions: Actions,
        covariance: Covariance,
        trials: int,
        functions: int,
        dtype: torch.dtype,
        device: torch.device,
        rows: Rows,
        block: int,
        stretch: tuple[int, int] | None,
    ) -> None:
        self.actions, self.covariance, self.rows = actions, covariance, rows
        self.dtype, self.device, self.step = dtype, device, block
        self.stretch = stretch or (0, actions.size)
        size = self.stretch[1] - self.stretch[0]
        kept: dict[str, Any] = {"dtype": dtype, "device": device}
        self.mean = torch.zeros(trials, functions, size, **kept)
        self.var = torch.empty(trials, size, **kept)
        self.to_prior()

    def covers(self, stretch: tuple[int, int] | None) -> bool:
        """Whether it keeps this stretch of the set; ``None``: the whole."""
        return self.stretch == (stretch or (0, self.actions.size))

    @property
    def block(self) -> int | None:
        """Actions that a stretch should hold."""
        return self.step

    @property
    def keeps_rows(self) -> bool:
        """Whether it keeps kernel rows, sooner computed than read from a file."""
        return self.rows.kept

    @property
    def by_features(self) -> bool:
        """Whether joint draws are by random features, which not all kernels have."""
        return self.rows.by_features

    @property
    def drifts(self) -> bool:
        """Whether its dtype is so narrow that forgetting leaves errors."""
        return self.dtype != torch.float64

    @property
    def small(self) -> int:
        """Actions in a stretch whose temporaries are large or many."""
        return 1 << 22 if self.device.type == "cuda" else 1 << 16

    def stretches(self, target: int) -> Iterator[tuple[int, int]]:
        """Stretches of about ``target`` actions, of those that are kept."""
        return self.actions.stretches(target, *self.stretch)

    def own(self, start: int, stop: int) -> slice:
        """Where the actions ``start .. stop - 1`` are kept."""
        return slice(start - self.stretch[0], stop - self.stretch[0])

    def prior(self, start: int, stop: int) -> Tensor:
        """The prior variances of a stretch."""
        return self.covariance.variance(self.actions.block(start, stop))

    def to_prior(self) -> None:
        """Set all variances to the prior's."""
        for start, stop in self.stretches(self.small):
            self.var[:, self.own(start, stop)] = self.prior(start, stop)

    def points_of(self, index: Tensor) -> Tensor:
        """Actions ``(n, d)``, or ``(T, n, d)`` of sets of their own, by number."""
        if self.actions.batch_shape:
            index = index.expand(len(self.mean), -1)
        return self.actions.at(index)
