"""Finitely many actions, each given by its coordinates or known by its number alone."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.actions.base import Actions, checked_index, coordinates, tolerance
from cbandit.errors import CBanditError


@hinted
class Finite(Actions):
    """Finitely many actions, given by coordinates or by a prior covariance alone.

    Args:
        points: ``(N, d)``, or ``(*trials, N, d)`` if each trial has a set of its own;
            copied.
        covariance: in place of ``points``, the prior covariance of arms that have no
            coordinates, ``(N, N)`` or ``(*trials, N, N)``, symmetric and positive
            semi-definite. Then ``x`` is the arm's number and ``d = 1``.

    Example:
        >>> import cbandit as cb, torch
        >>> cb.Finite(torch.linspace(0, 1, 100).unsqueeze(-1)).size
        100
    """

    finite = True

    def __init__(
        self, points: ArrayLike | None = None, *, covariance: ArrayLike | None = None
    ) -> None:
        if (points is None) == (covariance is None):
            number = "neither" if points is None else "both"
            raise CBanditError(
                f"Finite takes one of points and covariance=; got {number}"
            )
        if covariance is not None:
            self.covariance = _checked_covariance(covariance)
            arms = torch.arange(self.covariance.shape[-1], dtype=torch.float64)
            self.all = arms.unsqueeze(-1)
        else:
            rows = checks.tensor("points", points, None)
            rows = rows if rows.is_floating_point() else rows.double()
            # contiguous, so that equal sets have equal digests and give equal bits
            self.all = checks.finite("points", rows).contiguous()
            if rows.dim() not in (2, 3) or 0 in rows.shape:
                raise CBanditError(
                    "points must have shape (N, d), so (N, 1) on a line, or "
                    f"(trials, N, d), none of them 0; got {tuple(rows.shape)}"
                )
        base = self.all if self.covariance is None else self.covariance
        self.batch_shape = tuple(base.shape[:-2])
        self.size, self.dim = int(self.all.shape[-2]), int(self.all.shape[-1])

    @classmethod
    def of_row(cls, points: Tensor) -> Finite:
        """Return the set of a round's points, without a check and without a copy.

        Args:
            points: ``(N, d)`` or ``(trials, N, d)``.
        """
        out = object.__new__(cls)
        out.all, out.batch_shape = points, tuple(points.shape[:-2])
        out.size, out.dim = points.shape[-2:]
        return out

    def points(self, index: ArrayLike) -> Tensor:
        """Return the coordinates ``(*index.shape, d)`` of the numbered actions.

        If each trial has a set of its own, ``index`` leads with the trials.
        """
        return self.at(checked_index(index, self.size, self.all.device))

    def at(self, numbers: Tensor) -> Tensor:
        """Return :meth:`points` without checking the numbers."""
        return rows_of(self.all, numbers)

    def block(self, start: int, stop: int) -> Tensor:
        """Return the actions ``start .. stop - 1``, ``(*trials, n, d)``."""
        return self.all[..., start:stop, :]

    def rows(self, numbers: Tensor) -> Tensor:
        """Return the actions ``numbers (k,)`` of every trial, ``(*trials, k, d)``."""
        return self.all[..., numbers, :]

    def index(self, x: ArrayLike) -> Tensor:
        """Return the numbers of the actions at the points ``x`` ``(..., d)``."""
        x = coordinates("x", x, self.dim, self.all)
        if self.all.dim() == 3 and (x.dim() < 2 or x.shape[0] != self.all.shape[0]):
            raise CBanditError(
                f"x must lead with the {self.all.shape[0]} trials; got {tuple(x.shape)}"
            )
        flat = x.reshape(*self.all.shape[:-2], -1, self.dim)
        if x.numel() == 0:
            return torch.zeros(x.shape[:-1], dtype=torch.long, device=x.device)
        # compare one point with all actions at a time: temporaries stay as small as the
        # set
        nearest = [
            (self.all - one.unsqueeze(-2)).abs().amax(-1).min(-1)
            for one in flat.unbind(-2)
        ]
        gap = torch.stack([one.values for one in nearest], -1)
        if bool((gap > tolerance(x) * (1 + self.all.abs().max())).any()):
            raise CBanditError(
                f"x must be a point of the set of {self.size} actions; the nearest is "
                f"{gap.max().item():.3g} away"
            )
        return torch.stack([one.indices for one in nearest], -1).view(x.shape[:-1])

    def extent(self) -> Tensor:
        """Return the least and the greatest coordinates, ``(*trials, 2, d)``."""
        return torch.stack([self.all.amin(-2), self.all.amax(-2)], -2)

    def __repr__(self) -> str:
        if self.names is not None:
            return f"Finite({self.names!r}, size={self.size})"
        kind = "points" if self.covariance is None else "covariance"
        return f"Finite({kind}, size={self.size}, dim={self.dim})"


def rows_of(points: Tensor, numbers: Tensor) -> Tensor:
    """Return the rows ``numbers`` of ``points (N, d)`` or ``(trials, N, d)``."""
    if points.dim() == 2:
        # always a copy: a view would let its user write into the set
        return torch.embedding(points, numbers)
    trials, _, dim = points.shape
    if numbers.dim() == 0 or numbers.shape[0] != trials:
        raise CBanditError(
            f"index must lead with the {trials} trials; got {tuple(numbers.shape)}"
        )
    flat = numbers.reshape(trials, -1, 1).expand(-1, -1, dim)
    return points.gather(1, flat).view(*numbers.shape, dim)


def _checked_covariance(value: object) -> Tensor:
    k = checks.finite("covariance", checks.tensor("covariance", value))
    shape = tuple(k.shape)
    if k.dim() not in (2, 3) or shape[-1] != shape[-2] or 0 in shape:
        raise CBanditError(
            f"covariance must have shape (N, N) or (trials, N, N); got {shape}"
        )
    scale = float(k.diagonal(dim1=-2, dim2=-1).abs().max().clamp_min(1e-300))
    gap = float((k - k.mT).abs().max())
    if gap > 1e-8 * scale:
        raise CBanditError(f"covariance must be symmetric; it is {gap:.3g} off")
    k = (0.5 * (k + k.mT)).contiguous()
    least = float(torch.linalg.eigvalsh(k).min())
    if least < -1e-8 * scale * shape[-1]:
        raise CBanditError(
            f"covariance must be positive semi-definite; its least eigenvalue is "
            f"{least:.3g}"
        )
    return k
