"""Confidence sets of finite classes of functions.

The paper fits a cost among all functions and keeps those near the fit that have the
value ``c0`` at the safe arm. Here the fit is sought among the latter: the truth is one
of them, so that the paper's bound on its distance to the fit holds as it is, and the
set is never empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.beliefs.classes import FiniteClass
from cbandit.errors import CBanditError
from cbandit.policies.safe.action import SafeAction, numbered

__all__ = ["Classes", "ConfidenceClass"]


class ConfidenceClass:
    """A finite class and its confidence sets, on the host.

    Args:
        belief: the functions.
        j: 0: of the reward; else of cost ``j``, whose functions have its value ``c0``
            at the safe arm.
        safe: the safe arm, and the noise's ``R``.
        arms: how many arms there are.
    """

    def __init__(
        self, belief: FiniteClass, j: int, safe: SafeAction, arms: int
    ) -> None:
        #: ``(G, K)``
        self.values = values = belief.values
        self._radius, own = belief.radius, safe.subgaussian[:, j]
        self._functions = safe.subgaussian.shape[1]  # whose sets hold together
        self._square = devices.host(own)[0].square().unsqueeze(-1)  # R^2, T x 1
        if values.shape[-1] != arms:
            raise CBanditError(
                f"values must have one column for each of {arms} arms; got "
                f"{tuple(values.shape)}"
            )
        shape = len(safe.x), len(values)
        self._agree = torch.ones(shape, dtype=torch.bool)  # T x G
        if j > 0 and safe.cost is not None:
            at, cost = devices.host(numbered(safe.index), safe.cost)
            gap = (values[:, at].mT - cost[:, j - 1, None]).abs()
            self._agree = gap <= 1e-9 * (1 + values.abs().max())
            if not bool(self._agree.any(-1).all()):
                raise CBanditError(
                    f"costs[{j - 1}] must hold a function whose value at the safe arm "
                    f"is safe.cost = {cost[:, j - 1].tolist()}; got none"
                )

    def fit(self, count: Tensor, mean: Tensor) -> Tensor:
        """Return the function nearest to what was observed, ``(T, K)``.

        Args:
            count: observations of every arm, ``(T, K)``.
            mean: their averages, ``(T, K)``.
        """
        away = self.values - mean.unsqueeze(1)
        error = (count.unsqueeze(1) * away.square()).sum(-1)
        return self.values[error.masked_fill(~self._agree, torch.inf).argmin(-1)]

    def inside(self, t: int, delta: float, count: Tensor, mean: Tensor) -> Tensor:
        """Return which functions are in the confidence set, ``(T, G)``."""
        away = self.values - self.fit(count, mean).unsqueeze(1)
        squared = (count.unsqueeze(1) * away.square()).sum(-1)
        return self._agree & (squared <= self.radius(t, delta))

    def radius(self, t: int, delta: float) -> Tensor:
        """Return the given radius of round ``t``, or the theory's, ``(T, 1)``."""
        given = self._radius
        if given is None:
            # the paper's 24 is 12 for each of a reward and a cost that hold together
            size = len(self.values) * self._functions
            log = math.log(12 * size * math.log(2 * max(t, 1)) / delta)
            return 512 * log * self._square
        value = given(t) if callable(given) else given
        value = checks.number("radius", value, minimum=0)
        return torch.full_like(self._square, value)


@dataclass(frozen=True, eq=False)
class Classes:
    """The classes of the reward and of every cost, in that order."""

    every: list[ConfidenceClass]

    @classmethod
    def of(cls, beliefs: Sequence[FiniteClass], safe: SafeAction, arms: int) -> Classes:
        """Return the classes of a policy's beliefs, see :class:`ConfidenceClass`."""
        pairs = enumerate(beliefs)
        return cls([ConfidenceClass(one, j, safe, arms) for j, one in pairs])

    def fit(self, count: Tensor, mean: Tensor) -> Tensor:
        """Return the functions nearest to what was observed, ``(T, 1 + m, K)``.

        Args:
            count: observations of every arm, ``(T, 1 + m, K)``.
            mean: their averages, ``(T, 1 + m, K)``.
        """
        pairs = enumerate(self.every)
        return torch.stack([c.fit(count[:, j], mean[:, j]) for j, c in pairs], 1)

    def inside(self, t: int, delta: float, count: Tensor, mean: Tensor) -> list[Tensor]:
        """Return which functions are in each class' confidence set, ``(T, G)``."""
        pairs = enumerate(self.every)
        return [c.inside(t, delta, count[:, j], mean[:, j]) for j, c in pairs]

    def left(self, inside: list[Tensor], trial: int) -> list[Tensor]:
        """Return one trial's functions in each confidence set, ``(G', K)``."""
        pairs = zip(self.every, inside, strict=True)
        return [one.values[held[trial]] for one, held in pairs]

    def ends(self, inside: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the least and the greatest values in the sets, ``(T, 1 + m, K)``."""
        pairs = [
            (one.values, held.unsqueeze(-1))
            for one, held in zip(self.every, inside, strict=True)
        ]
        low = [torch.where(held, v, torch.inf).amin(1) for v, held in pairs]
        high = [torch.where(held, v, -torch.inf).amax(1) for v, held in pairs]
        return torch.stack(low, 1), torch.stack(high, 1)
