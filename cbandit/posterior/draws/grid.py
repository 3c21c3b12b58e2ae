"""Columns and joint draws over a product grid, as products of two factors.

Draws have exactly the posterior's law, from a root for each group of axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import torch
from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit._core.threads import on_one_thread
from cbandit.posterior.draws.roots import Root
from cbandit.posterior.rows.protocol import Columns, Path
from cbandit_kernels import FUSED_RANK, Factors, native

Given = ParamSpec("Given")


class Products:
    """``left @ right`` over a stretch of the grid: columns, or a joint draw.

    Args:
        left: ``(T, k, rows, r)``.
        right: ``(1 or T, r, tails)``.
        skipped: how many rows of the grid precede the first row of ``left``.
    """

    def __init__(self, left: Tensor, right: Tensor, skipped: int) -> None:
        self._left, self._right, self._skipped = left, right, skipped

    @property
    def fused(self) -> bool:
        """Whether a compiled round can use the factors instead of their product."""
        return self._left.shape[-1] < FUSED_RANK and native(self._left)

    def whole(self, start: int, stop: int) -> bool:
        """Return whether a stretch consists of whole rows of the grid."""
        tails = self._right.shape[-1]
        return start % tails == 0 == stop % tails

    def factors(self, start: int, stop: int) -> Factors:
        """Return the factors of a stretch for which :meth:`whole` is true."""
        tails, skipped = self._right.shape[-1], self._skipped
        rows = slice(start // tails - skipped, stop // tails - skipped)
        return Factors(self._left[:, :, rows], self._right)

    def __call__(self, start: int, stop: int) -> Tensor:
        """Return the product over a stretch, ``(T, k, stop - start)``."""
        left, right, skipped = self._left, self._right, self._skipped
        trials, k, tails = len(left), left.shape[1], right.shape[-1]
        first, last = start // tails, (stop - 1) // tails
        part = left[:, :, first - skipped : last + 1 - skipped]
        if stop - start < tails:
            low = start - first * tails
            out = part @ right.unsqueeze(1)[..., low : low + stop - start]
        elif trials == 1:
            flat = part[0].flatten(0, 1)
            out = flat @ right[0]
        else:
            out = part @ right.unsqueeze(1)
        return out.reshape(trials, k, stop - start)


def grid_path(
    number: Tensor,
    tails: int,
    heads: slice,
    roots: tuple[Root, Root],
    z: Tensor,
    dtype: torch.dtype,
) -> Path:
    """Return the draw ``R_1 Z R_2^T``; changing ``Z`` corrects it for data.

    Args:
        number: the tried actions' numbers, ``(T, U)``.
        tails: the size of the second group of axes.
        heads: the part of the first group that is stored here.
        roots: the roots of the two groups' covariances.
        z: standard normals, ``(T, F, r_1, r_2)``.
        dtype: the dtype of the values returned.
    """
    first, second = (
        root.matrix.expand(len(number), -1, -1).gather(
            1, place.unsqueeze(-1).expand(-1, -1, root.matrix.shape[-1])
        )
        for root, place in zip(roots, (number // tails, number % tails), strict=True)
    )  # T x U x r

    def tried() -> Tensor:
        return ((first.unsqueeze(1) @ z) * second.unsqueeze(1)).sum(-1)

    def left_of(weights: Tensor) -> Tensor:
        """Return ``R_1`` times the corrected ``Z``."""
        scaled = first.unsqueeze(1) * weights.mT.unsqueeze(-1)
        return roots[0].times(z - scaled.mT @ second.unsqueeze(1))

    def corrected(weights: Tensor) -> Columns:
        left = by_size(roots, left_of)(weights)[:, :, heads].to(dtype)
        right = roots[1].to(dtype)
        products = Products(left, right.matrix.mT, heads.start)
        if not right.halved:
            return products

        def columns(start: int, stop: int) -> Tensor:
            if not products.whole(start, stop):
                return products(start, stop)
            rows = left[
                :, :, start // tails - heads.start : stop // tails - heads.start
            ]
            return right.times(rows.mT).mT.reshape(*left.shape[:2], stop - start)

        return columns

    return Path(by_size(roots, tried)(), corrected)


def by_size(
    roots: tuple[Root, Root], work: Callable[Given, Tensor]
) -> Callable[Given, Tensor]:
    """Return ``work``, on one thread if the matrices are too small for more."""
    return work if roots[1].halved else on_one_thread(work)


def grid_normals(
    streams: Streams, functions: int, first: Tensor, second: Tensor
) -> Tensor:
    """Draw normals ``(T, F, r_1, r_2)`` on the host, only for real columns.

    ``first (T, r_1)`` and ``second (T, r_2)`` flag the columns that a trial has.
    """
    counts = [mask.sum(-1).tolist() for mask in (first, second)]
    shapes = [(functions, rows, columns) for rows, columns in zip(*counts, strict=True)]
    draws = streams.normals(shapes)
    shape = functions, first.shape[-1], second.shape[-1]
    if len(draws) == 1 and shapes[0] == shape:
        return draws[0].unsqueeze(0)
    z = torch.zeros(len(draws), *shape, dtype=torch.float64)
    for trial, rows, columns, draw in zip(z, first, second, draws, strict=True):
        trial[:, rows.unsqueeze(-1) & columns] = draw.flatten(1)
    return z


def even(axis: Tensor) -> bool:
    """Return whether an axis is symmetric about its middle, up to rounding."""
    turned = axis[0] + axis[-1] - axis.flip(-1)
    return bool((axis - turned).abs().max() <= 1e-14 * axis.abs().max())


def kron(a: Tensor, b: Tensor) -> Tensor:
    """Return the Kronecker product of ``(1 or T, n, r)`` and ``(1 or T, m, s)``."""
    out = a[:, :, None, :, None] * b[:, None, :, None, :]
    return out.reshape(out.shape[0], a.shape[1] * b.shape[1], -1)
