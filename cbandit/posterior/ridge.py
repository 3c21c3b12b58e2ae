"""Ridge estimates of linear functions, and the ellipsoids around them.

Every function ``h(x) = <x, w>`` has ``Sigma = lam I + sum x x'`` and ``w = Sigma^{-1}
sum y x``; with probability ``1 - delta``, in all rounds, ``|<x, w - w*>|`` is at most
``beta ||x||_{Sigma^{-1}}`` (Abbasi-Yadkori, Pal, Szepesvari, 2011).

If ``h(x0)`` is known, so is ``h`` along ``x0``. Only the part orthogonal to ``x0`` is
estimated: from ``x`` less its part along ``x0``, and ``y`` less the value of that part.
``Sigma`` keeps ``lam`` along ``x0``, which only multiplies zeros: it stays invertible,
and its inverse serves as the pseudo-inverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

BLOCK = 1024  # rounds summed before they are added to the total, to limit rounding
EVERY = slice(None)


@dataclass(frozen=True, eq=False)
class Known:
    """Values of ``F`` functions along some directions, known without data.

    Args:
        along: unit vectors, ``(T, F, d)``, along which a function is known; zero if the
            function is unknown everywhere.
        slope: the function's values there, ``(T, F)``.
        some: whether any function is known along a direction.
    """

    along: Tensor
    slope: Tensor
    some: bool

    @cached_property
    def eye(self) -> Tensor:
        """The identity, ``(d, d)``."""
        dim, device = self.along.shape[-1], self.along.device
        return torch.eye(dim, dtype=torch.float64, device=device)

    @cached_property
    def part(self) -> Tensor:
        """The known part of ``w``, ``(T, F, d)``."""
        return self.along * self.slope.unsqueeze(-1)

    @cached_property
    def across(self) -> Tensor:
        """The projections onto the unknown directions, ``(T, F, d, d)``."""
        return self.eye - self.along.unsqueeze(-1) * self.along.unsqueeze(-2)


@dataclass(frozen=True, eq=False)
class Ridge:
    """A value: estimates of ``F`` linear functions in ``T`` trials.

    Args:
        known: what is known of the functions without data.
        total: ``Sigma``, and ``sum y x`` as one more column, ``(T, F, d, d + 1)``.
        recent: the same sums over the latest rounds, added to ``total`` in blocks.
        fresh: how many rounds are in ``recent``.
        count: the number of observations of each function, ``(T, F)``.
        alike: whether all functions have the same ``lam`` and were observed together.
    """

    known: Known
    total: Tensor
    recent: Tensor
    fresh: int
    count: Tensor
    alike: bool

    @classmethod
    def start(
        cls,
        ridge: Tensor,
        dim: int,
        along: Tensor | None = None,
        slope: Tensor | None = None,
    ) -> Ridge:
        """Return the estimates before any observation.

        Args:
            ridge: ``lam``, ``(T, F)``.
            dim: ``d``.
            along: see :class:`Known`; if left out, nothing is known.
            slope: see :class:`Known`.
        """
        if along is None or slope is None:
            along, slope = ridge.new_zeros(*ridge.shape, dim), torch.zeros_like(ridge)
        known = Known(along, slope, bool(along.any()))
        total = ridge.new_zeros(*ridge.shape, dim, dim + 1)
        total[..., :dim] = ridge[..., None, None] * known.eye
        alike = bool((ridge == ridge[:, :1]).all())
        nothing = torch.zeros_like(total), 0, torch.zeros_like(ridge)
        return cls(known, total, *nothing, alike)

    def added(
        self,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None = None,
        functions: slice = EVERY,
    ) -> Ridge:
        """Return the estimates after one more observation.

        Args:
            x: the action, ``(T, d)``.
            y: the outcomes of ``functions``, ``(T, f)``.
            weight: how often each outcome counts, ``(T, f)``, 0 if it was not observed;
                ``None``: once each.
            functions: which functions were observed.
        """
        row, target = x.unsqueeze(1), y
        if self.known.some:
            along = self.known.along[:, functions]
            share = (row * along).sum(-1, keepdim=True)
            target = y - share.squeeze(-1) * self.known.slope[:, functions]
            row = row - share * along
        else:
            row = row.expand(*y.shape, -1)
        wide = torch.cat([row, target.unsqueeze(-1)], -1)  # T x f x (d + 1)
        if weight is not None:
            wide = wide * weight.unsqueeze(-1)
        once = 1.0 if weight is None else (weight > 0).double()
        square = row.unsqueeze(-1), wide.unsqueeze(-2)
        if functions == EVERY:
            count, recent = self.count + once, torch.addcmul(self.recent, *square)
        else:
            count, recent = self.count.clone(), self.recent.clone()
            count[:, functions] += once
            recent[:, functions] = torch.addcmul(recent[:, functions], *square)
        total, fresh = self.total, self.fresh + 1
        if fresh == BLOCK:
            total, recent, fresh = total + recent, torch.zeros_like(recent), 0
        alike = self.alike and functions == EVERY and weight is None
        return Ridge(self.known, total, recent, fresh, count, alike)

    @property
    def system(self) -> tuple[Tensor, Tensor]:
        """``Sigma`` ``(T, F, d, d)`` and ``sum y x`` ``(T, F, d)``."""
        whole = self.total + self.recent
        return whole[..., :-1], whole[..., -1]

    @cached_property
    def solved(self) -> tuple[Tensor, Tensor]:
        """Return the weights ``w (T, F, d)``, and ``A (T, F, k, d)`` for widths.

        ``||A x|| = sqrt(x' Sigma^{-1} x)`` for every action ``x``.
        """
        sigma, right = self.system
        # always positive definite: a multiple of I plus squares
        factor = torch.linalg.cholesky_ex(sigma).L
        root = torch.linalg.solve_triangular(factor, self.known.eye, upper=False)
        w = (root.mT @ (root @ right.unsqueeze(-1))).squeeze(-1)
        if self.known.some:
            root, w = root @ self.known.across, w + self.known.part
        return w, root

    @cached_property
    def stretch(self) -> Tensor:
        """The largest ratio of each later function's norm to the first function's.

        Norms are ``||x||_{Sigma^{-1}}``, maximised over ``x``; the ratios are
        ``(T, F - 1)``, and at least 1.
        """
        if self.alike:
            return torch.ones_like(self.count[:, 1:])
        first, root = self.system[0][:, :1], self.solved[1][:, 1:]
        square: Tensor = torch.linalg.eigvalsh(root @ first @ root.mT)[..., -1]
        return square.clamp_min(1.0).sqrt()

    def at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and ``||x||_{Sigma^{-1}} (T, F, n)`` at ``x (T or 1, n, d)``."""
        w, _ = self.solved
        points = x.mT
        return w @ points, self.rays(points).square().sum(-2).sqrt()

    def rays(self, points: Tensor) -> Tensor:
        """Return ``A x (T, F, d, n)`` at points given as columns ``(T or 1, d, n)``."""
        _, root = self.solved
        flat = root.flatten(1, 2) @ points
        return torch.unflatten(flat, 1, root.shape[1:3])
