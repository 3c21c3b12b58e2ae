"""A function as a Nystrom dictionary knows it, by pure functions of tensors.

With the dictionary ``S``, features ``z(x) = K_SS^{-1/2} k_S(x)`` (rows ``Z`` for all
past rounds) and noise ``lam``: ``A = I + Z' Z / lam``,
``mean(x) = z(x)' A^{-1} Z' y / lam`` and
``var(x) = k(x, x) - z(x)' z(x) + z(x)' A^{-1} z(x)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit._core import devices

__all__ = ["Sketch", "sketched"]

TINY = 1e-13  # eigenvalues of the dictionary below this share of the largest are noise


@dataclass(frozen=True)
class Sketch:
    """``half(x) = right' k_S(x)`` has the squared norm ``z' A^{-1} z``.

    Args:
        points: the dictionary, ``(T, q, d)``, padded.
        left: ``(T, q, q)``, ``z(x) = left' k_S(x)``; zero rows where padded.
        right: ``left A^{-1/2}``.
        weights: ``(T, 1, q)``, the mean is ``weights k_S(x)``.
        gain: ``(T,)``, ``1/2 log det A``.
    """

    points: Tensor
    left: Tensor
    right: Tensor
    weights: Tensor
    gain: Tensor

    def at(self, k: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``(T, 1, n)``, less the prior's, and variances ``(T, n)``.

        Args:
            k: ``k_S(x)``, ``(T, q, n)``.
            prior: ``k(x, x)``, ``(T, n)``.
        """
        z, half = self.left.mT @ k, self.right.mT @ k
        var = prior - z.square().sum(-2) + half.square().sum(-2)
        return self.weights @ k, var.clamp_min(0)


def sketched(
    points: Tensor, gram: Tensor, precision: Tensor, weighted: Tensor, chosen: Tensor
) -> Sketch:
    """Return what the ``chosen (T, n)`` of the actions tried know, as a dictionary.

    Args:
        points: the actions tried, ``(T, n, d)``.
        gram: their prior covariances, ``(T, n, n)``.
        precision: how often each was tried, over ``lam``, ``(T, n)``.
        weighted: the sums of their outcomes ``y / lam``, ``(T, 1, n)``.
        chosen: the dictionary, bool.
    """
    tried = chosen.shape[-1]
    size = int(chosen.sum(-1).max()) if tried else 0
    order = chosen.to(torch.int8).argsort(stable=True, dim=-1, descending=True)
    order = order[:, :size]
    real = chosen.gather(-1, order).double()
    k_s = gram.gather(1, order.unsqueeze(-1).expand(-1, -1, tried))
    k_s = k_s * real.unsqueeze(-1)  # T x q x n
    k_ss = k_s.gather(-1, order.unsqueeze(1).expand(-1, size, -1))
    k_ss = k_ss * real.unsqueeze(1)
    value, vector = torch.linalg.eigh(k_ss)
    kept = value > TINY * value.amax(-1, keepdim=True) if size else value > 0
    root = torch.where(kept, value, torch.inf).rsqrt()
    left = vector * root.unsqueeze(-2) * real.unsqueeze(-1)
    z = left.mT @ k_s  # T x q x n
    a = (z * precision.unsqueeze(1)) @ z.mT
    a.diagonal(dim1=-2, dim2=-1).add_(1)
    factor = devices.cholesky(a)
    right = torch.linalg.solve_triangular(factor, left.mT, upper=False).mT
    target = weighted @ k_s.mT @ right  # T x 1 x q
    at = order.unsqueeze(-1).expand(-1, -1, points.shape[-1])
    return Sketch(
        points.gather(1, at),
        left,
        right,
        target @ right.mT,
        factor.diagonal(dim1=-2, dim2=-1).log().sum(-1),
    )
