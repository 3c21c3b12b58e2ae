"""Means and variances of points, from whatever posterior a BoTorch model gives."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.multitask import MultitaskGPPosterior
from botorch.posteriors.posterior_list import PosteriorList
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from cbandit.errors import CBanditError

__all__ = [
    "covariances",
    "mean_of",
    "one_by_one",
    "one_each",
    "root",
    "small_variances",
]

# variances below these count as none; GPyTorch's own limits may exceed a variance in
# small units
SMALLEST = {torch.float64: 1e-60, torch.float32: 1e-30}


def root(variance: Tensor) -> Tensor:
    """Return the deviation, 0 where there is no variance; its slope is finite."""
    least = SMALLEST.get(variance.dtype, 0.0)
    return variance.clamp_min(least).sqrt().where(variance > least, 0.0)


def small_variances() -> Any:
    """Return a context in which variances may be as small as the user's units are."""
    single, double = SMALLEST[torch.float32], SMALLEST[torch.float64]
    return gpytorch.settings.min_variance(single, double, None)


def mean_of(posterior: Any) -> Tensor:
    """Return the mean of a posterior, with a gradient that is right."""
    if isinstance(posterior, MultitaskGPPosterior):
        # here the gradient of .mean fails or is wrong, but that of a draw is right
        still = posterior.mean.new_zeros(1, *posterior.base_sample_shape)
        return posterior.rsample_from_base_samples(torch.Size([1]), still)[0]
    mean: Tensor = posterior.mean
    return mean


def one_each(values: Tensor, points: Tensor) -> Tensor:
    """Return ``values (*b, n, outputs)``, or raise if a point has several."""
    if values.shape[-2] > points.shape[-2]:
        raise CBanditError(
            "model must give each point one value an output: no InputPerturbation; got "
            f"{values.shape[-2]} values for {points.shape[-2]} points"
        )
    return values


def covariances(posterior: Any) -> list[Tensor]:
    """Return covariances ``(*b, n, k, n, k)``, joint for outputs that go together."""
    if isinstance(posterior, PosteriorList):
        parts: list[Any] = posterior.posteriors
        blocks = [block for part in parts for block in covariances(part)]
        most = max(block.dim() for block in blocks)
        # the members of an ensemble are an axis before the points
        return [b if b.dim() == most else b.unsqueeze(-5) for b in blocks]
    if isinstance(posterior, EnsemblePosterior) and posterior.ensemble_size == 1:
        shape = posterior.mean.shape  # a deterministic function
        return [posterior.mean.new_zeros(*shape, *shape[-2:])]
    if not isinstance(posterior, GPyTorchPosterior):
        raise CBanditError(
            "pending points and q > 1 need a model whose posterior is jointly normal; "
            f"got {type(posterior).__name__}"
        )
    normal = posterior.distribution
    covariance: Tensor = normal.covariance_matrix
    n, k = posterior.mean.shape[-2:]
    batch = covariance.shape[:-2]
    if isinstance(normal, MultitaskMultivariateNormal) and not normal._interleaved:
        covariance = covariance.reshape(*batch, k, n, k, n)
        return [covariance.transpose(-4, -3).transpose(-2, -1)]
    return [covariance.reshape(*batch, n, k, n, k)]


def one_by_one(blocks: list[Tensor], noise: Tensor) -> Tensor:
    """Return the variances of ``n`` points, each given noisy values at those before it.

    Args:
        blocks: ``(*b, n, k, n, k)`` each, the ``k`` adding up to ``F``.
        noise: ``(*b, n - 1, F)``.

    Returns:
        ``(*b, F, n)``.
    """
    out = []
    for block, lam in zip(
        blocks, noise.split([b.shape[-1] for b in blocks], -1), strict=True
    ):
        n, k = block.shape[-2:]
        seen = (n - 1) * k
        flat = block.reshape(*block.shape[:-4], n * k, n * k)
        lam = lam.flatten(-2)
        # scale what is observed to variance 1, the size that jitter is made for
        size = flat.diagonal(dim1=-2, dim2=-1)[..., :seen] + lam
        none = size <= 0
        unit = size.masked_fill(none, 1.0).rsqrt().detach().unsqueeze(-1)
        own = (lam + none) * unit.squeeze(-1).square()
        known = flat[..., :seen, :seen] * unit * unit.mT + torch.diag_embed(own)
        factor = psd_safe_cholesky(known)
        # row i of L^-1 K needs points up to i only, so one solve serves every point
        cross = flat[..., :seen, :] * unit
        solved = torch.linalg.solve_triangular(factor, cross, upper=False)
        batch = solved.shape[:-2]
        explained = solved.square().reshape(*batch, n - 1, k, n, k).sum(-3)
        before = torch.ones(n - 1, n, dtype=flat.dtype, device=flat.device).triu(1)
        gone = (explained * before.unsqueeze(-1)).sum(-3)
        prior = flat.diagonal(dim1=-2, dim2=-1).unflatten(-1, (n, k))
        out.append((prior - gone).mT)
    return torch.cat(out, -2)
