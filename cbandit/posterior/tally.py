"""Averages and counts of independent arms."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit.errors import CBanditError

EVERY = slice(None)


class Tally:
    """A value: averages of ``F`` functions at ``N`` arms in ``T`` trials.

    An observation gives a new tally and leaves the old one as it was, at a cost that
    does not grow with ``N``. Both share one table: it holds the numbers of the newer
    tally, and the older one keeps the few that differ. Using the older one again takes
    the table back; the newer tallies are lost then, and raise an error when used.

    Args:
        table: counts, averages and ``1 / sqrt(n)``, ``(T, 3, F, N)``. An arm never
            pulled has average 0 and the width of one pull.
    """

    def __init__(self, table: Tensor) -> None:
        self._table = table
        self._newer: _Newer | None = None
        self._lost = False

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
        return self._numbers()[:, 0]

    @property
    def mean(self) -> Tensor:
        """Averages, ``(T, F, N)``."""
        return self._numbers()[:, 1]

    @property
    def spread(self) -> Tensor:
        """``1 / sqrt(n)``, ``(T, F, N)``."""
        return self._numbers()[:, 2]

    def added(
        self,
        arm: Tensor,
        y: Tensor,
        weight: Tensor | None = None,
        functions: slice = EVERY,
    ) -> Tally:
        """Return the tally after one more observation.

        Args:
            arm: the arm's number, ``(T,)``.
            y: the outcomes of ``functions``, ``(T, f)``.
            weight: how often each outcome counts, ``(T, f)``; ``None``: once each.
            functions: which functions were observed.
        """
        part = self._numbers()[:, :, functions]  # T x 3 x f x N
        place = arm[:, None, None, None].expand(-1, 3, y.shape[-1], 1)
        before = part.gather(-1, place)
        count, mean = before[..., 0].double().unbind(1)[:2]  # T x f
        once = 1.0 if weight is None else weight
        n = count + once
        real = torch.where(n > 0, n, 1.0)
        mean = mean + once * (y - mean) / real
        after = torch.stack([n, mean, real.rsqrt()], 1).unsqueeze(-1).to(part)
        newer = Tally(self._table)
        # in this order, so that an interrupt leaves this tally as it was
        self._newer = _Newer(newer, part, place, before)
        part.scatter_(-1, place, after)
        return newer

    def _numbers(self) -> Tensor:
        """Return the table, set to this tally's numbers."""
        if self._lost:
            raise CBanditError("this tally was left for an older one, and is lost")
        if self._newer is not None:
            steps = [self._newer]
            while (step := steps[-1].tally._newer) is not None:
                steps.append(step)
            for newer, part, place, before in reversed(steps):
                newer._lost = True
                part.scatter_(-1, place, before)
            self._newer = None
        return self._table

    def __getstate__(self) -> dict[str, Any]:
        return {"_table": self._numbers(), "_newer": None, "_lost": False}


class _Newer(NamedTuple):
    """The next tally, and the numbers it has overwritten in the table."""

    tally: Tally
    part: Tensor  # the part of the table that was written
    place: Tensor
    before: Tensor
