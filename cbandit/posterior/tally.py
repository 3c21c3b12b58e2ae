"""Averages and counts of independent arms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Tally"]

EVERY = slice(None)


@dataclass(frozen=True, eq=False)
class Tally:
    """Averages of ``F`` functions at ``N`` arms in ``T`` trials, as a value.

    Args:
        table: counts, averages and ``1 / sqrt(n)``, ``(T, 3, F, N)``. An arm never
            pulled has the width of one pull, around 0.
    """

    table: Tensor

    @classmethod
    def start(
        cls, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
    ) -> Tally:
        """Return the tally of ``shape`` ``(T, F, N)`` before any pull."""
        trials, functions, arms = shape
        table = torch.zeros(trials, 3, functions, arms, dtype=dtype, device=device)
        table[:, 2] = 1.0
        return cls(table)

    @property
    def count(self) -> Tensor:
        """How often each arm was observed, ``(T, F, N)``."""
        return self.table[:, 0]

    @property
    def mean(self) -> Tensor:
        """Averages, ``(T, F, N)``."""
        return self.table[:, 1]

    @property
    def spread(self) -> Tensor:
        """``1 / sqrt(n)``, ``(T, F, N)``."""
        return self.table[:, 2]

    def added(
        self,
        arms: Tensor,
        y: Tensor,
        weight: Tensor | None = None,
        functions: slice = EVERY,
    ) -> Tally:
        """Return the tally after more observations.

        Args:
            arms: numbers, ``(T, n)``.
            y: the outcomes of ``functions``, ``(T, n, f)``.
            weight: how much each counts, ``(T, n, f)``; ``None``: all count once.
            functions: which of them were observed.
        """
        table = self.table.clone()
        own = table[:, :, functions]  # T x 3 x f x N
        for i in range(arms.shape[1]):
            at = arms[:, i, None, None, None].expand(-1, 3, y.shape[-1], 1)
            value = y[:, i].unsqueeze(-1)  # T x f x 1
            once = 1.0 if weight is None else weight[:, i].unsqueeze(-1)
            count, old = own.gather(-1, at)[:, :2].double().unbind(1)
            n = count + once
            real = torch.where(n > 0, n, 1.0)
            mean = old + once * (value - old) / real
            new = torch.stack([n, mean, real.rsqrt()], 1)
            own.scatter_(-1, at, new.to(table))
        return Tally(table)
