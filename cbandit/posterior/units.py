"""The units in which standardised functions enter scores and multipliers, as a value.

Beliefs that rescale their outcomes are looked at in spreads: a function less its
average, divided by its spread. So a policy does the same whatever its outcomes are
measured in. Users are shown their own units.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Units", "level", "told"]


class Units(NamedTuple):
    """The units of ``F`` functions in ``T`` trials, ``(T, F)`` each.

    A function whose belief does not rescale its outcomes is counted from 0, in the
    user's own unit.

    Args:
        center: what values are counted from.
        size: the unit itself, 1 where there is none yet.
        known: whether there is one: whether two outcomes differ.
        seen: how many outcomes it rests on; infinite where it is the user's own.
    """

    center: Tensor
    size: Tensor
    known: Tensor
    seen: Tensor

    @classmethod
    def own(cls, like: Tensor) -> Units:
        """Return the user's own units, of functions as in ``like (T, f)``."""
        ones = torch.ones_like(like)
        return cls(ones * 0, ones, ones > 0, ones * torch.inf)

    @classmethod
    def joined(cls, parts: list[Units], order: list[int]) -> Units:
        """Return the units of several groups of functions, put into ``order``."""
        columns = [torch.cat(each, -1) for each in zip(*parts, strict=True)]
        if order == sorted(order):
            return cls(*columns)
        # by a list of numbers it would wait for the device
        return cls(*(torch.stack([each[:, k] for k in order], -1) for each in columns))

    def of(self, function: int) -> Units:
        """Return those of one function, ``(T, 1)`` each."""
        return Units(*(each[:, function : function + 1] for each in self))

    def ratio(self, costs: int) -> Tensor:
        """Return the reward's unit in units of each cost, NaN where one lacks.

        ``(T, m)``; costs without a belief have the unit 1.
        """
        reward, known = self.size[:, :1], self.known[:, :1]
        if self.size.shape[1] > 1:
            reward, known = reward / self.size[:, 1:], known & self.known[:, 1:]
        return torch.where(known, reward, torch.nan).expand(-1, costs)

    def rests_on(self, least: int) -> Tensor:
        """Return the trials ``(T,)`` whose units all rest on so many outcomes."""
        return ((self.seen >= least) & self.known).all(-1)


def level(units: Units | None, tau: Tensor) -> Tensor:
    """Return thresholds ``(T, m)`` in units; where there is none, that is the mean."""
    if units is None or units.size.shape[1] == 1:
        return tau
    inside = (tau - units.center[:, 1:]) / units.size[:, 1:]
    return torch.where(units.known[:, 1:], inside, 0.0)


def told(units: Units | None, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and deviations ``(T, F, n)`` in the user's units."""
    if units is None:
        return mean, std
    size = units.size.to(mean).unsqueeze(-1)
    center = units.center.to(mean).unsqueeze(-1)
    return torch.addcmul(center, mean, size), std * size
