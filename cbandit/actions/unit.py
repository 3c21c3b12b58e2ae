"""A map of a set's coordinates to the unit cube."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from cbandit.actions.base import Actions, moved
from cbandit.actions.names import Names


class Unit:
    """A map of coordinates to the unit cube: linear, or by their logarithms.

    Args:
        bounds: ``(2, d)``, the least and the greatest coordinates.
        logs: ``(d,)`` bool, coordinates that are mapped by their logarithms.
        whole: ``(d,)`` bool, coordinates that are positions in categories. They are
            rounded first, since kernels take rounding errors for other categories.
    """

    def __init__(
        self, bounds: Tensor, logs: Tensor | None = None, whole: Tensor | None = None
    ) -> None:
        self.bounds, self.logs, self.whole = bounds, logs, whole
        self.low, high = self._bent(bounds)
        self.span = high - self.low

    @classmethod
    def over(cls, bounds: Tensor, names: Names | None) -> Self:
        """Return the map of ``bounds``; ``names`` say where logarithms are taken."""
        if names is None:
            return cls(bounds)
        return cls(bounds, *names.flags()).to(bounds.device)

    @classmethod
    def around(cls, actions: Actions) -> Self:
        """Return the map from the smallest box around a set to the unit cube.

        A side of no length counts as one of length 1.
        """
        low, high = reach(actions)
        bounds = torch.stack([low, torch.where(high > low, high, low + 1)])
        return cls.over(bounds, actions.names)

    def of(self, x: Tensor) -> Tensor:
        """Map points ``(..., d)``, or their last ``k`` coordinates."""
        k = x.shape[-1]
        if self.whole is not None:
            x = torch.where(self.whole[-k:], x.round(), x)
        z: Tensor = (self._bent(x) - self.low[-k:]) / self.span[-k:]
        return z

    def axis(self, a: Tensor, j: int) -> Tensor:
        """Map values ``a`` of coordinate ``j``."""
        if self.logs is not None and bool(self.logs[j]):
            a = a.log()
        z: Tensor = (a - self.low[j]) / self.span[j]
        return z

    def point(self, z: Tensor) -> Tensor:
        """Return the points ``(..., d)`` that are mapped to ``z``."""
        x: Tensor = self.low + self.span * z
        if self.logs is not None:
            x = torch.where(self.logs, x.where(self.logs, 0.0).exp(), x)
        if self.whole is not None:
            x = torch.where(self.whole, x.round(), x)
        return x

    def to(self, device: torch.device) -> Self:
        """Return the same map on another device."""
        flags = (
            None if v is None else moved(v, device) for v in (self.logs, self.whole)
        )
        return type(self)(moved(self.bounds, device), *flags)

    def _bent(self, x: Tensor) -> Tensor:
        """Take logarithms of the coordinates that are mapped by them."""
        if self.logs is None:
            return x
        logs = self.logs[-x.shape[-1] :]
        # other coordinates may have no logarithm, and would spoil the gradient; an
        # engine's free slots lie at 0
        positive = x.where(logs, 1.0).clamp_min(torch.finfo(x.dtype).tiny)
        return torch.where(logs, positive.log(), x)


def reach(actions: Actions) -> Tensor:
    """Return the least and the greatest coordinates over all trials, ``(2, d)``."""
    ends = actions.extent().reshape(-1, 2, actions.dim)
    return torch.stack([ends[:, 0].amin(0), ends[:, 1].amax(0)]).double()
