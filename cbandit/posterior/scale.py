"""The way from the user's units into an engine's and back, as a value."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.posterior.log import Log, Observation
from cbandit.posterior.outcomes import Outcomes
from cbandit.posterior.units import Units
from cbandit.posterior.value import Value

__all__ = ["Scale"]


class Scale(Value):
    """How the outcomes of ``f`` functions in ``T`` trials enter their engine.

    An engine conditions on differences: from the prior mean, or, where outcomes are
    standardised, from a first guess of their own. Then a column of ones stands beside
    them, which tells how far each mean has moved from the prior's.

    Args:
        means: the prior means, ``(T, f)``.
        noise: the belief's variance of one observation, ``(T,)``.
        least: less noise than this counts as this, ``()`` or ``(T,)``.
        standardize: whether outcomes are rescaled by their own average and spread.
    """

    means: Tensor
    noise: Tensor
    standardize: bool
    outcomes: Outcomes
    shifted: bool  # whether there is anything to subtract
    usual: Tensor  # the belief's own precision, (T,)
    _least: Tensor

    def __init__(
        self, means: Tensor, noise: Tensor, least: Tensor, standardize: bool
    ) -> None:
        super().__init__(
            means=means,
            standardize=standardize,
            outcomes=Outcomes.none(means),
            shifted=bool((means != 0).any()),
            **_of_noise(noise, least),
        )

    @property
    def columns(self) -> int:
        """The functions of an engine: these, and the ones."""
        return self.means.shape[1] + int(self.standardize)

    @property
    def least(self) -> Tensor:
        """Less noise than this counts as this, ``()`` or ``(T,)``."""
        return self._least

    def fitted(self, noise: Tensor, least: Tensor) -> Self:
        """The same with another noise."""
        return self._with(**_of_noise(noise, least))

    def counted(self, row: Observation, sign: int = 1) -> Self:
        """The same once a row is counted in, or with ``sign=-1`` out again."""
        if not self.standardize:
            return self
        return self._with(outcomes=self.outcomes.counted(row, sign))

    def over(self, log: Log) -> Self:
        """The same with all statistics counted afresh from a log."""
        rows = log if self.standardize else ()
        return self._with(outcomes=Outcomes.of(rows, self.means))

    def narrowed(self, kept: Tensor) -> Self:
        """The same of some functions alone."""
        means = self.means[:, kept]
        return self._with(
            means=means,
            outcomes=self.outcomes.columns(kept),
            shifted=bool((means != 0).any()),
        )

    def engine_columns(self, kept: Tensor) -> Tensor:
        """Which of an engine's functions belong to these of ours."""
        if not self.standardize:
            return kept
        return torch.cat([kept, kept.new_tensor([self.means.shape[1]])])

    # -- into the engine -------------------------------------------------------------

    def targets(self, row: Observation) -> Tensor:
        """The differences that the engine conditions on, ``(T, F)``."""
        targets = row.values
        if not self.standardize:
            return targets - self.means if self.shifted else targets
        targets = targets - self.outcomes.origin
        if row.arrived is None:
            ones = torch.ones_like(self.outcomes.seen)
        else:
            targets = torch.where(row.arrived, targets, 0.0)
            ones = row.arrived[:, :1].double()
        return torch.cat([targets, ones], -1)

    def precision(self, row: Observation) -> Tensor:
        """The row's precision ``(T,)``, 0 where nothing was seen."""
        precision = self.usual
        if row.noise is not None:
            noise = row.noise
            if self.standardize:  # the belief's own, until there is a unit
                units = self.outcomes.units()
                noise = noise / units.size[:, 0].square()
                noise = torch.where(units.known[:, 0], noise, self.noise)
            precision = noise.maximum(self._least).reciprocal()
        if all(row.wanted):
            return precision
        return devices.put(row.wanted, self.means.device) * precision

    # -- out of it -------------------------------------------------------------------

    def units(self) -> Units:
        """The units in which means and deviations are handed out."""
        return self.outcomes.units() if self.standardize else Units.own(self.means)

    def targets_of(self) -> tuple[Tensor, Tensor]:
        """The shift and the divisor of what is fitted, ``(T, f)`` each."""
        if self.standardize:
            units = self.outcomes.units()
            return units.center, units.size
        return self.means, torch.ones_like(self.means)

    def mean(self, mean: Tensor) -> Tensor:
        """The engine's mean ``(T, F, n)`` in units, ``(T, f, n)``."""
        if not self.standardize:
            return mean + self.means.unsqueeze(-1)
        units = self.outcomes.units()
        gap = (units.center - self.outcomes.origin).unsqueeze(-1)
        # the mean is linear in its targets: those of (y - shift) are those of y less
        # shift times those of 1
        return (mean[:, :-1] - gap * mean[:, -1:]) / units.size.unsqueeze(-1)

    def weights(self, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """``w (T, f, U)`` and ``b (T, f)``: the mean in units is ``w k_u(x) + b``."""
        if not self.standardize:
            return alpha.mT, self.means
        return self.mean(alpha.mT), torch.zeros_like(self.means)


def _of_noise(noise: Tensor, least: Tensor) -> dict[str, Any]:
    noise = noise.maximum(least)
    return {"noise": noise, "_least": least, "usual": noise.reciprocal()}
