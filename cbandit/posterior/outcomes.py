"""The units of standardised outcomes: their average and spread, as a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.posterior.log import Observation
from cbandit.posterior.units import Units

__all__ = ["Outcomes"]

ALIKE = 1e-12  # a spread below this share of the values' size is their rounding
ASTRAY = 8.0  # spreads from the origin, beyond which float32 loses what differs
LOST = 1e-6  # below this share of the peak of the squares, count again from the log


class Outcomes(NamedTuple):
    """Running statistics of the outcomes of ``f`` functions in ``T`` trials.

    Args:
        seen: how many, ``(T, 1)``.
        average: ``(T, f)``.
        squares: ``(T, f)``, squared distances from the average, summed.
        most: ``(T, f)``, the largest that sum has been.
        origin: ``(T, f)``, a first guess of the mean: engines keep differences from it,
            not levels.
    """

    seen: Tensor
    average: Tensor
    squares: Tensor
    most: Tensor
    origin: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Outcomes:
        """No outcome has been seen, of functions as in ``like (T, f)``."""
        zeros = torch.zeros_like(like, dtype=torch.float64)
        return cls(zeros.new_zeros(len(like), 1), zeros, zeros, zeros, zeros)

    @classmethod
    def of(cls, rows: Iterable[Observation], like: Tensor) -> Outcomes:
        """The statistics of all these rows."""
        out = cls.none(like)
        for row in rows:
            out = out.counted(row)
        return out

    def counted(self, row: Observation, sign: int = 1) -> Outcomes:
        """These with a row more, or with ``sign=-1`` with one less."""
        if row.arrived is None:
            wanted = devices.put(row.wanted, self.seen.device).unsqueeze(-1)
        else:
            wanted = row.arrived[:, :1]  # one function, where outcomes are rescaled
        first = wanted & (self.seen == 0) if sign > 0 else wanted & False
        origin = torch.where(first, row.values, self.origin)
        seen = self.seen + sign * wanted
        gap = torch.where(wanted, row.values - self.average, 0.0)
        average = self.average + sign * gap / seen.clamp_min(1)
        squares = self.squares + sign * gap * (row.values - average) * wanted
        if sign < 0:
            # where nothing is left it is as if nothing had been seen
            left = seen > 0
            average, squares = average * left, squares * left
        return Outcomes(
            seen, average, squares, torch.maximum(self.most, squares), origin
        )

    @property
    def lost(self) -> bool:
        """Whether so little is left that rounding errors of what is gone show."""
        return bool((self.squares < LOST * self.most).any())

    @property
    def astray(self) -> bool:
        """Whether the outcomes have left the origin so far behind that a narrow dtype,
        in which differences from it are kept, holds their own differences no more.
        """
        units = self.units()
        gap = (units.center - self.origin).abs()
        return bool((units.known & (gap > ASTRAY * units.size)).any())

    def units(self) -> Units:
        """Count from the average, in spreads; 1 until two outcomes differ.

        Those that share their first twelve digits do not: of what is left much may be
        rounding, and a unit that small would make anything that comes later enormous.
        """
        spread = (self.squares / (self.seen - 1).clamp_min(1)).clamp_min(0).sqrt()
        known = (self.seen >= 2) & (spread > ALIKE * self.average.abs())
        size = torch.where(known, spread, 1.0)
        return Units(self.average, size, known, self.seen.expand_as(size))

    def columns(self, kept: Tensor) -> Outcomes:
        """The same of some functions alone."""
        return Outcomes(self.seen, *(value[:, kept] for value in self[1:]))
