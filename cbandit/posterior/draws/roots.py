"""Roots of prior covariances, without columns smaller than rounding."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor


def prior_root(covariance: Tensor, tolerance: float = 1e-15) -> Tensor:
    """Return ``L (*b, N, r)`` with ``L L^T`` the covariance ``(*b, N, N)``.

    Eigenvectors whose eigenvalue is below ``tolerance`` of the largest are left out, as
    together they are below rounding. If covariances of a batch have different ranks,
    missing columns are 0. It is computed on the host: a GPU's eigenvectors have other
    signs, so that the same seed would draw another function there.
    """
    values, vectors = torch.linalg.eigh(covariance.double().cpu())
    least = tolerance * values[..., -1:].clamp_min(0)
    real = values > least
    rank = max(1, int(real.sum(-1).max()))
    values = torch.where(real, values, 0.0)[..., -rank:]
    root: Tensor = vectors[..., -rank:] * values.sqrt().unsqueeze(-2)
    return root.to(covariance.device)


def pivoted_root(covariance: Tensor, tolerance: float = 1e-15) -> Tensor:
    """Return ``L (*b, N, r)`` like :func:`prior_root`, by a pivoted Cholesky factor.

    At full rank it takes a tenth of the time; the columns are not orthogonal. It stops
    once every remaining variance is below ``tolerance`` of the largest. Columns are in
    the order of their size, the largest last, as eigenvectors are: draws go by the last
    columns, and how many small ones there are depends on rounding.
    """
    size = covariance.shape[-1]
    every = covariance.double().cpu().reshape(-1, size, size).numpy()
    roots = []
    for matrix in every:
        least = tolerance * max(matrix.diagonal().max(), 0.0)
        factor, order, rank, _ = lapack.dpstrf(matrix, tol=least, lower=1)
        root = np.zeros((size, max(1, rank)))
        root[order - 1] = np.tril(factor)[:, : max(1, rank)]
        roots.append(root[:, ::-1].copy())
    most = max(root.shape[-1] for root in roots)
    wide = torch.zeros(len(roots), size, most, dtype=torch.float64)
    for out, root in zip(wide, roots, strict=True):
        out[:, most - root.shape[-1] :] = torch.from_numpy(root)
    return wide.view(*covariance.shape[:-1], most).to(covariance.device)


class Root:
    """A root ``R (1 or T, n, r)`` of a covariance, and products with it.

    If the covariance is mirror-symmetric (a stationary kernel on a symmetric axis), its
    eigenvectors are even or odd, so a product's halves are the sum and the difference
    of two products of half the size. This halves the work.
    """

    def __init__(
        self, matrix: Tensor, halves: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.matrix, self._halves = matrix, halves

    @classmethod
    def of(cls, covariance: Tensor, mirrored: bool) -> Root:
        """Return a root of ``covariance (1 or T, n, n)``.

        ``mirrored`` says whether the covariance is mirror-symmetric.
        """
        n = covariance.shape[-1]
        turned = covariance.flip(-1, -2)
        off = (covariance - turned).abs().max()
        if n < 2 or not mirrored or bool(off > 1e-6 * covariance.abs().max()):
            return cls(prior_root(covariance))
        covariance = (covariance + turned) / 2  # symmetric up to rounding before
        half, evens = n // 2, n - n // 2  # a middle action counts as even
        within = covariance[..., :evens, :evens]
        across = covariance.flip(-1)[..., :evens, :evens]
        weight = torch.ones(evens, dtype=covariance.dtype, device=covariance.device)
        weight[half:] = 0.5**0.5
        # covariances of (f(x) + f(-x)) / sqrt(2) and (f(x) - f(-x)) / sqrt(2)
        even = prior_root((within + across) * weight * weight.unsqueeze(-1))
        odd = prior_root((within - across)[..., :half, :half])
        even = even * 0.5**0.5 / weight.unsqueeze(-1)
        odd = odd * 0.5**0.5
        top = torch.cat([even[..., :half, :], odd], -1)
        bottom = torch.cat([even[..., :half, :], -odd], -1).flip(-2)
        nothing = odd.new_zeros(*odd.shape[:-2], evens - half, odd.shape[-1])
        middle = torch.cat([even[..., half:, :], nothing], -1)
        matrix = torch.cat([top, middle, bottom], -2)
        # a thin root multiplies faster whole than in halves
        return cls(matrix, (even, odd) if 2 * matrix.shape[-1] > n else None)

    @property
    def halved(self) -> bool:
        """Whether products are computed by halves."""
        return self._halves is not None

    def to(self, dtype: torch.dtype) -> Root:
        """Return the root in another dtype."""
        halves = self._halves
        if halves is not None:
            halves = halves[0].to(dtype), halves[1].to(dtype)
        return Root(self.matrix.to(dtype), halves)

    def times(self, right: Tensor) -> Tensor:
        """Return ``R right (T, F, n, c)`` of ``right (T, F, r, c)``."""
        if self._halves is None:
            return self.matrix.unsqueeze(1) @ right
        even, odd = (half.unsqueeze(1) for half in self._halves)
        rank, half = even.shape[-1], odd.shape[-2]
        same, other = even @ right[..., :rank, :], odd @ right[..., rank:, :]
        shape = (*same.shape[:-2], self.matrix.shape[-2], same.shape[-1])
        out = same.new_empty(shape)
        torch.add(same[..., :half, :], other, out=out[..., :half, :])
        out[..., half : same.shape[-2], :] = same[..., half:, :]
        out[..., same.shape[-2] :, :] = (same[..., :half, :] - other).flip(-2)
        return out
