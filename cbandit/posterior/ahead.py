"""Choices whose outcome is still to come: their variance counts, their mean does not.

With ``C`` the posterior covariance of ``b`` such choices and ``P`` their precisions,
the variance of every action falls by ``|z|^2``,

    z = L^-1 P^1/2 c,        L L^T = I + P^1/2 C P^1/2,

``c`` the action's posterior covariance with them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices

__all__ = ["Ahead", "Coming", "explained"]


class Ahead(NamedTuple):
    """An outstanding choice.

    Args:
        keys: the actions' names, one a trial.
        x: ``(T, d)``.
        waits: in which trials each function's outcome is to come, the reward's first.
    """

    keys: Sequence[Hashable]
    x: Tensor
    waits: Sequence[Sequence[bool]]


class Coming(NamedTuple):
    """Outstanding choices as an engine takes them.

    Args:
        keys: one list of names a choice.
        x: ``(b, T, d)``.
        precision: ``(T, b)``, 0 where nothing is to come.
    """

    keys: list[Sequence[Hashable]]
    x: Tensor
    precision: Tensor

    @classmethod
    def of(
        cls, ahead: Sequence[Ahead], functions: Sequence[int], noise: Tensor
    ) -> Coming | None:
        """The outcomes to come of these functions; ``None``: there are none.

        Functions that are told apart have engines of their own: one stands for all.
        """
        mine = [a.waits[functions[0]] for a in ahead]
        if not any(any(waits) for waits in mine):
            return None
        precision = devices.put(mine, noise.device).mT / noise.unsqueeze(-1)
        return cls(
            [a.keys for a in ahead], torch.stack([a.x for a in ahead]), precision
        )

    def numbered(self) -> bool:
        """Whether all are actions of the set, named by their numbers."""
        return all(isinstance(row[0], int) for row in self.keys)

    def places(self) -> Tensor:
        """``(T, b, d)``, float64."""
        return self.x.transpose(0, 1).double()


def explained(covariance: Tensor, cross: Tensor, precision: Tensor) -> Tensor:
    """``z (T, b, n)``, whose squares the choices take off the variance.

    Args:
        covariance: ``C (T, b, b)``, overwritten.
        cross: ``(T, b, n)``, rows that combine to the covariances ``c``.
        precision: ``P (T, b)``.
    """
    root = precision.sqrt().unsqueeze(-1)
    inner = covariance.mul_(root).mul_(root.mT)
    inner.diagonal(dim1=-2, dim2=-1).add_(1)
    z: Tensor = torch.linalg.solve_triangular(
        devices.cholesky(inner), cross * root, upper=False
    )
    return z
