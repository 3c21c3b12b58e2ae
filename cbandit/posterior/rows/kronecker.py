"""Rows of a product grid, stored as factors over two groups of its axes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit._core.threads import on_one_thread
from cbandit.actions import ProductGrid
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import AxisKernel, Covariance, Prior, axes_of
from cbandit.posterior.draws.grid import (
    Products,
    by_size,
    even,
    grid_normals,
    grid_path,
    kron,
)
from cbandit.posterior.draws.roots import Root, prior_root
from cbandit.posterior.rows.protocol import Columns, Path, Rounds, Rows, finishing
from cbandit_kernels import (
    FUSED_RANK,
    Change,
    Found,
    Look,
    native,
    product_round,
)


class Kronecker(Rows):
    """A grid's rows as products over two groups of axes: one matrix product a round.

    If the kernel matrix of the second group has low rank ``r`` (the RBF), its rows are
    stored on a basis of its range, so the product's inner dimension is ``r``, not
    ``u``. A first group of several axes is stored axis by axis, so that no row is as
    long as the group; an axis of low rank has a basis too.

    A basis leaves out eigenvectors of an axis' kernel matrix whose eigenvalue is below
    1e-15 of the largest. On an axis of ``n`` values this changes kernel values by at
    most ``n`` 1e-15 of the prior variance, as much as the decomposition's rounding
    does. So in float64 means and deviations stay within 1e-8 of the prior's deviation.
    A basis is used if its rank is below half the number of values: not for short
    lengthscales, nor for Matern kernels and categories, whose matrices have full rank.
    """

    name = "product"
    by_features = False
    BASIS_LIMIT = 2048
    LEFT_OUT = 1e-15  # share of the largest eigenvalue below which others are rounding

    def __init__(self, prior: Prior) -> None:
        actions = prior.actions
        if not isinstance(actions, ProductGrid):
            raise CBanditError(f"engine='product' needs a ProductGrid; got {actions!r}")
        self.actions, self.covariance = actions, prior.covariance
        self.trials, self.dtype, self.device = prior.trials, prior.dtype, prior.device
        self._axes, self._cut = _factors(prior.covariance, actions), actions.cut
        self._tails = math.prod(actions.sizes[self._cut :])
        # the part of the first group that the stored stretch needs
        first, last = prior.ends
        self._heads = slice(first // self._tails, (last - 1) // self._tails + 1)
        # one front for each axis of the first group; a short group is a single front
        cuts = range(self._cut + 1) if self._cut > 1 else (0, self._cut)
        self._spans = list(itertools.pairwise(cuts))
        self._roots: tuple[Root, Root] | None = None
        self._ranked: list[Tensor] = []  # columns of each root a trial has, (T, r)
        spans = [*self._spans, (self._cut, actions.dim)]
        self._bases = [self._low_rank(*span) for span in spans]
        super().__init__(prior)

    def clear(self) -> None:
        """Drop the tried actions."""
        trials, sizes = self.trials, self.actions.sizes
        like: dict[str, Any] = {"dtype": torch.float64, "device": self.device}
        self._fronts = [
            torch.zeros(trials, 0, math.prod(sizes[a:b]), **like)
            for a, b in self._spans
        ]
        # codes of the tried actions on each basis, the tail's too
        self._codes = [
            torch.zeros(trials, 0, 0 if basis is None else basis.shape[-1], **like)
            for basis in self._bases
        ]
        self._tail = torch.zeros(
            trials, 0, self._tails, dtype=self.dtype, device=self.device
        )
        self._number = torch.zeros(trials, 0, dtype=torch.long, device=self.device)
        self._off_grid = False

    def __getstate__(self) -> dict[str, Any]:
        # the factors are closures, built again from the kernel
        return {k: v for k, v in vars(self).items() if k != "_axes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._axes = _factors(self.covariance, self.actions)

    def bytes_per_row(self) -> int:
        """Return the bytes of one row: its factors on the fronts and on the tail."""
        fronts = sum(front.shape[-1] for front in self._fronts)
        return self.trials * (8 * fronts + self.dtype.itemsize * self._tails)

    def bytes_per_column(self) -> int:
        """Return the bytes of the left factor of one column."""
        basis = self._bases[-1]
        inner = self._tails if basis is None else basis.shape[-1]
        return self.trials * 8 * math.prod(self.actions.sizes[: self._cut]) * inner

    @property
    def remark(self) -> str:
        """The ranks of kernel factors that are stored on a basis, in words."""
        ranks = [
            f"{b.shape[-1]} of {b.shape[-2]}" for b in self._bases if b is not None
        ]
        if not ranks:
            return ""
        return f"factors of rank {', '.join(ranks)}, the rest below {self.LEFT_OUT:g}"

    def _low_rank(self, first: int, last: int) -> Tensor | None:
        """Return an orthonormal basis ``(1 or T, n, r)`` of the range over some axes.

        ``None`` if its rank is not much less than the number of values.
        """
        sizes = self.actions.sizes[first:last]
        if not sizes or max(sizes) > self.BASIS_LIMIT:
            return None
        parts = []
        for matrix in self._matrices(first, last):
            values, vectors = torch.linalg.eigh(matrix)
            real = values > self.LEFT_OUT * values[..., -1:]
            rank = int(real.sum(-1).max())
            parts.append(vectors[..., -rank:])
        basis = functools.reduce(kron, parts)
        return basis if 2 * basis.shape[-1] < math.prod(sizes) else None

    def _matrices(self, first: int, last: int) -> list[Tensor]:
        """Return each axis' factor of the prior covariance, ``(1 or T, n, n)``."""
        pairs = zip(self._axes[first:last], self.actions.axes[first:last], strict=True)
        matrices = [kernel(axis, axis) for kernel, axis in pairs]
        return [m if m.dim() == 3 else m.unsqueeze(0) for m in matrices]

    def _row(self, x: Tensor, first: int, last: int) -> Tensor:
        """Return the factor ``(T, n)`` of a row over the axes ``first .. last - 1``."""
        parts = []
        for j in range(first, last):
            part = self._axes[j](self.actions.axes[j], x[:, j : j + 1])[..., 0]
            parts.append(part.expand(x.shape[0], -1))
        if not parts:
            return torch.ones(x.shape[0], 1, dtype=torch.float64, device=self.device)
        return functools.reduce(_rowwise, parts)

    @on_one_thread
    def write(
        self,
        trials: list[int],
        slots: list[int],
        x: Tensor,
        keys: Sequence[Hashable],
    ) -> None:
        """Store the two factors of the rows of ``x``."""
        room = self._tail.shape[1]
        if max(slots) >= room:
            grown = max(16, 2 * room, max(slots) + 1) - room
            self._fronts = [_longer(front, grown) for front in self._fronts]
            self._tail = _longer(self._tail, grown)
            self._codes = [_longer(code, grown) for code in self._codes]
            self._number = torch.nn.functional.pad(self._number, (0, grown))
        numbers = [key if isinstance(key, int) else 0 for key in keys]
        self._off_grid |= not all(isinstance(key, int) for key in keys)
        trial, slot, number = devices.put([trials, slots, numbers], self.device)
        every = x.new_zeros(self.trials, x.shape[-1])
        every[trial] = x
        tail = self._row(every, self._cut, self.actions.dim)
        rows = [*(self._row(every, *span) for span in self._spans), tail]
        for front, row in zip(self._fronts, rows[:-1], strict=True):
            front[trial, slot] = row[trial]
        self._tail[trial, slot] = tail[trial].to(self.dtype)
        self._number[trial, slot] = number
        for code, basis, row in zip(self._codes, self._bases, rows, strict=True):
            if basis is not None:
                on_it = (row.unsqueeze(-2) @ basis).squeeze(-2)
                code[trial, slot] = on_it[trial]

    @on_one_thread
    def multiply(self, weights: Tensor) -> Products:
        """Return ``A^T diag(w) B`` for each column ``w`` of ``weights``."""
        used, skipped = weights.shape[1], self._heads.start
        basis = self._bases[-1]
        if basis is None or self._off_grid or used <= basis.shape[-1]:
            fronts = [front[:, :used] for front in self._fronts]
            rows = functools.reduce(_rowwise, fronts)[..., self._heads]
            left = rows.mT.unsqueeze(1) * weights.mT.unsqueeze(2)
            return Products(left.to(self.dtype), self._tail[:, :used], skipped)
        right = basis.to(self.dtype).mT
        return Products(self._coded(weights).to(self.dtype), right, skipped)

    def _coded(self, weights: Tensor) -> Tensor:
        """Return ``A^T diag(w) code``, ``(T, k, N_1, r)``.

        ``A`` is the rowwise product of the fronts. Factors with a basis stay on it
        until the sum over the tried actions.
        """
        used = weights.shape[1]
        # a single front is cut to the stretch now, several at the end
        stretch = self._heads if len(self._spans) == 1 else slice(None)
        short, bases = [], []
        for front, code, basis in zip(
            self._fronts, self._codes[:-1], self._bases[:-1], strict=True
        ):
            short.append((front[..., stretch] if basis is None else code)[:, :used])
            bases.append(None if basis is None else basis[:, stretch])
        inner = self._codes[-1][:, :used]
        for part in short[:0:-1]:
            inner = _rowwise(part, inner)
        inner = weights.mT.unsqueeze(-1) * inner.unsqueeze(1)
        left = (short[0].mT.unsqueeze(1) @ inner).flatten(2).unsqueeze(2)
        for part, basis in zip(short, bases, strict=True):
            inner_size = left.shape[-1] // part.shape[-1]  # also of no columns
            left = left.reshape(*left.shape[:3], part.shape[-1], inner_size)
            if basis is not None:
                left = basis[:, None, None] @ left
            left = left.flatten(2, 3)
        return left if len(self._spans) == 1 else left[:, :, self._heads]

    def seamless(self, draw: Columns | None) -> bool:
        """Return whether compiled loops need no temporaries, as at small ranks."""
        rank = self._codes[-1].shape[-1]
        if not 0 < rank < FUSED_RANK or not native(self._tail):
            return False
        return draw is None or (isinstance(draw, Products) and draw.fused)

    def rounds(
        self,
        weights: Tensor,
        change: Change,
        look: Look,
        draw: Columns | None,
        backend: str | None,
    ) -> Rounds:
        """Return a pass over whole rows; it multiplies factors if that pays."""
        columns = self.multiply(weights)
        pieces = finishing(columns, change, look, draw, backend)
        if not self.seamless(draw):
            return pieces

        def go(start: int, mean: Tensor, var: Tensor) -> Found:
            stop = start + var.shape[-1]
            if not columns.whole(start, stop):
                return pieces(start, mean, var)
            made = columns.factors(start, stop)
            drawn = draw.factors(start, stop) if isinstance(draw, Products) else None
            return product_round(
                made, change, mean, var, look, start, drawn, backend=backend
            )

        return go

    def path(self, streams: Streams, functions: int, points: Tensor, name: str) -> Path:
        """Draw ``R_1 Z R_2^T`` by a root of each group's covariance, exact in law."""
        if self._off_grid:
            raise CBanditError(
                "exact Thompson draws over a ProductGrid need all observations on the "
                "grid; use engine='factor' where ask(actions=...) leaves it"
            )
        if self._roots is None:
            cuts = (0, self._cut, self.actions.dim)
            self._roots = self._root(*cuts[:2]), self._root(*cuts[1:])
            # on the host, where the draws are made
            self._ranked = [
                root.matrix.ne(0).any(-2).expand(self.trials, -1).cpu()
                for root in self._roots
            ]
        z = by_size(self._roots, grid_normals)(streams, functions, *self._ranked)
        return grid_path(
            self._number[:, : points.shape[1]],
            self._tails,
            self._heads,
            self._roots,
            devices.put(z, self.device),
            self.dtype,
        )

    def _root(self, first: int, last: int) -> Root:
        matrices = self._matrices(first, last)
        if len(matrices) == 1:
            # decided by what all trials share, so that a trial alone draws the same
            mirrored = even(self.actions.axes[first]) and self.covariance.level
            return Root.of(matrices[0], mirrored)
        one = torch.ones(1, 1, 1, dtype=torch.float64, device=self.device)
        return Root(functools.reduce(kron, map(prior_root, matrices), one))


def _rowwise(a: Tensor, b: Tensor) -> Tensor:
    """Return Kronecker products of the rows of ``(T, U, n)`` and ``(T, U, m)``."""
    return (a.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2)


def _factors(covariance: Covariance, actions: ProductGrid) -> list[AxisKernel]:
    axes = axes_of(covariance, actions)
    if axes is None:
        raise CBanditError(
            "engine='product' needs a kernel that factors over the axes (RBF, "
            "periodic, or one kernel per axis through active_dims); got "
            f"{type(covariance.kernel).__name__}. Use engine='factor' or 'stream'"
        )
    return axes


def _longer(rows: Tensor, grown: int) -> Tensor:
    """Pad rows ``(T, room, k)`` by ``grown``; torch 2.8 cannot pad if k is 0."""
    return torch.cat([rows, rows.new_zeros(len(rows), grown, rows.shape[-1])], 1)
