"""Linear functions: ridge estimates and the ellipsoids around them.

Every function ``h(x) = <x, w>`` has ``Sigma = lam I + sum x x'`` and ``w = Sigma^{-1}
sum y x``; with probability ``1 - delta``, in all rounds, ``|<x, w - w*>|`` is at most
``beta ||x||_{Sigma^{-1}}`` (Abbasi-Yadkori, Pal, Szepesvari, 2011).

Where ``h(x0)`` is known, what is along ``x0`` is known too: only what is across is
estimated, from ``x`` less its part along ``x0`` and ``y`` less what that part gives.
Then ``Sigma`` keeps ``lam`` along ``x0``, which nothing is ever multiplied by; it stays
invertible, and its inverse is the pseudo-inverse wherever that is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError

__all__ = ["Linear", "Ridge", "checked_range"]

BLOCK = 1024  # rounds summed apart before they join the rest: rounding stays small


class Linear:
    """What is believed of a linear function.

    Args:
        subgaussian: ``R`` of the noise, a number or ``(*trials,)``.
        ridge: ``lam``, likewise; at least 1e-10 times the squared length of actions.
        norm: ``S``, a bound on the length of the coefficients, likewise.
        length: ``L``, a bound on the length of all actions; the longest one's so far
            unless given.
        range: ``(low, high)`` that every observation lies in, where that is known:
            others are refused.

    Example:
        >>> import cbandit as cb
        >>> belief = cb.Linear(subgaussian=0.1, ridge=1.0, norm=1.0)
    """

    def __init__(
        self,
        subgaussian: Any,
        ridge: Any = 1.0,
        norm: Any = 1.0,
        length: Any = None,
        range: Any = None,
    ) -> None:
        self.subgaussian = checks.nonnegative("subgaussian", subgaussian)
        self.ridge = checks.positive("ridge", ridge)
        self.norm = checks.nonnegative("norm", norm)
        self.length = None if length is None else checks.positive("length", length)
        self.range = checked_range(range)

    def __repr__(self) -> str:
        return (
            f"Linear(subgaussian={self.subgaussian.tolist()}, "
            f"ridge={self.ridge.tolist()}, norm={self.norm.tolist()})"
        )


def checked_range(given: Any) -> tuple[float, float] | None:
    """``(low, high)`` of observations, or ``None``."""
    if given is None:
        return None
    try:
        low, high = (float(v) for v in given)
    except (TypeError, ValueError):
        raise CBanditError(f"range must be a pair (low, high); got {given!r}") from None
    if not low < high:
        raise CBanditError(f"range must have low < high; got ({low:g}, {high:g})")
    return low, high


class Ridge:
    """``F`` linear functions in ``T`` trials, kept current.

    Args:
        ridge: ``lam``, ``(T, F)``.
        dim: ``d``.
        along: unit vectors, ``(T, F, d)``, along which a function is known (zero:
            none).
        slope: the function's value at them, ``(T, F)``.
    """

    def __init__(self, ridge: Tensor, dim: int, along: Tensor, slope: Tensor) -> None:
        eye = self._eye = torch.eye(dim, dtype=torch.float64, device=ridge.device)
        self.along, self.slope = along, slope
        self.known = along * slope.unsqueeze(-1)  # what is known, T x F x d
        self.across = eye - along.unsqueeze(-1) * along.unsqueeze(-2)
        self.split = bool(along.any())
        # the last column holds the sum of y x: one addition a round
        self._sum = torch.zeros(*ridge.shape, dim, dim + 1, dtype=torch.float64).to(
            ridge
        )
        self._sum[..., :dim] = ridge[..., None, None] * eye
        self._recent = torch.zeros_like(self._sum)
        self._fresh = 0
        self.count = torch.zeros_like(ridge)
        self._solved: tuple[Tensor, Tensor] | None = None

    def add(
        self, functions: slice, x: Tensor, y: Tensor, weight: Tensor | None
    ) -> None:
        """Observe ``y`` ``(T, f)`` at ``x`` ``(T, d)``.

        ``weight`` is ``(T, f)``, 0 for what was not observed; ``None``: all are 1.
        """
        row = x.unsqueeze(1)
        target = y
        if self.split:
            part = self.along[:, functions]
            share = (row * part).sum(-1, keepdim=True)
            target = y - share.squeeze(-1) * self.slope[:, functions]
            row = row - share * part
        else:
            row = row.expand(*y.shape, -1)
        wide = torch.cat([row, target.unsqueeze(-1)], -1)  # T x f x (d + 1)
        if weight is None:
            self.count[:, functions] += 1
        else:
            wide = wide * weight.unsqueeze(-1)
            self.count[:, functions] += (weight > 0).double()
        recent = self._recent[:, functions]
        torch.addcmul(recent, row.unsqueeze(-1), wide.unsqueeze(-2), out=recent)
        self._fresh += 1
        if self._fresh == BLOCK:
            self._sum += self._recent
            self._recent.zero_()
            self._fresh = 0
        self._solved = None

    @property
    def system(self) -> tuple[Tensor, Tensor]:
        """``Sigma`` ``(T, F, d, d)`` and ``sum y x`` ``(T, F, d)``."""
        whole = self._sum + self._recent
        return whole[..., :-1], whole[..., -1]

    def solve(self) -> tuple[Tensor, Tensor]:
        """``w`` ``(T, F, d)`` and ``A`` with ``||x||_{Sigma^{-1}} = ||A x||``."""
        if self._solved is None:
            sigma, right = self.system
            # positive definite whatever comes: a multiple of I plus squares
            factor = torch.linalg.cholesky_ex(sigma).L
            root = torch.linalg.solve_triangular(factor, self._eye, upper=False)
            w = (root.mT @ (root @ right.unsqueeze(-1))).squeeze(-1)
            if self.split:
                root = root @ self.across
                w = w + self.known
            self._solved = w, root
        return self._solved

    def at(self, x: Tensor, functions: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Means and ``||x||_{Sigma^{-1}}``, ``(T, F, n)``, at ``(T or 1, n, d)``."""
        w, root = (v[:, functions] for v in self.solve())
        points = x.mT
        ray = (root.flatten(1, 2) @ points).unflatten(1, root.shape[1:3])
        return w @ points, ray.square().sum(-2).sqrt()
