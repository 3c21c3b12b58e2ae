"""Choices whose outcome is still to come: they reduce variances, and move no mean.

With ``C`` the posterior covariance of ``b`` such choices and ``P`` their precisions,
the variance of every action falls by ``|z|^2``,

    z = L^-1 P^1/2 c,        L L^T = I + P^1/2 C P^1/2,

where ``c`` is the action's posterior covariance with these choices.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices

CROWD = 64  # outstanding choices, from which on equal ones are joined


class Ahead(NamedTuple):
    """An outstanding choice, or several that are alike.

    Args:
        keys: the actions' keys, one a trial.
        x: ``(T, d)``.
        waits: for each function, the reward first, the trials whose outcome is still to
            come.
        times: how many choices it stands for.
    """

    keys: Sequence[Hashable]
    x: Tensor
    waits: Sequence[Sequence[bool]]
    times: int = 1


def join_alike(ahead: list[Ahead]) -> list[Ahead]:
    """Return outstanding choices, those that are alike as one where there are many."""
    if len(ahead) < CROWD:
        return ahead
    alike: dict[Hashable, list[Ahead]] = {}
    for one in ahead:
        alike.setdefault((*one.keys, *map(tuple, one.waits)), []).append(one)
    return [same[0]._replace(times=len(same)) for same in alike.values()]


class Coming(NamedTuple):
    """Outstanding choices in the form that an engine takes.

    Args:
        keys: for each choice, a list of keys, one a trial.
        x: ``(b, T, d)``.
        precision: ``(T, b)``, 0 in trials where nothing is to come.
    """

    keys: list[Sequence[Hashable]]
    x: Tensor
    precision: Tensor

    @classmethod
    def of(
        cls, ahead: Sequence[Ahead], functions: Sequence[int], noise: Tensor
    ) -> Coming | None:
        """Return outcomes to come of an engine's functions; ``None`` if there are none.

        Functions of one engine are observed together, so the first one decides.
        """
        mine = [[a.times * w for w in a.waits[functions[0]]] for a in ahead]
        if not any(any(waits) for waits in mine):
            return None
        precision = devices.put(mine, noise.device).mT / noise.unsqueeze(-1)
        return cls(
            [a.keys for a in ahead], torch.stack([a.x for a in ahead]), precision
        )

    def numbered(self) -> bool:
        """Return whether all choices are numbered actions of the set."""
        return all(isinstance(row[0], int) for row in self.keys)

    def places(self) -> Tensor:
        """Return the actions, ``(T, b, d)``, float64."""
        return self.x.transpose(0, 1).double()


def explained(covariance: Tensor, cross: Tensor, precision: Tensor) -> Tensor:
    """Return ``z (T, b, n)``, whose squares are subtracted from the variances.

    Args:
        covariance: ``C (T, b, b)``, overwritten.
        cross: the covariances ``c`` of the choices with the actions, ``(T, b, n)``.
        precision: ``P (T, b)``.
    """
    root = precision.sqrt().unsqueeze(-1)
    inner = covariance.mul_(root).mul_(root.mT)
    inner.diagonal(dim1=-2, dim2=-1).add_(1)
    z: Tensor = torch.linalg.solve_triangular(
        devices.cholesky(inner), cross * root, upper=False
    )
    return z
