"""Facts about a BoTorch model: its outputs, its data, and its posterior at points."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import gpytorch
import torch
from botorch.models.model import Model, ModelList
from botorch.models.multitask import MultiTaskGP
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.multitask import MultitaskGPPosterior
from botorch.posteriors.posterior_list import PosteriorList
from botorch.sampling.pathwise.utils import get_train_inputs
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError

Outputs = Sequence[tuple[int, float]]
"""Pairs of an output's number and its factor: the reward's first, then the costs'."""


def parts(model: Model) -> list[Model]:
    """Return the models of a list, or the only one."""
    models: Any = model.models if isinstance(model, ModelList) else [model]
    return list(models)


def data(part: Model) -> Tensor | None:
    """Return a model's training points ``(*b, n, d)``; ``None`` if it has none."""
    try:
        x: Tensor = get_train_inputs(part, transformed=False)[0]
        extra = x.dim() - 2 - len(part.batch_shape)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None
    for _ in range(extra):
        x = x.select(-3, 0)  # all outputs have the same
    if isinstance(part, MultiTaskGP) and part.num_outputs > 1:
        # one column names the task; points do not have it
        task = part._task_feature % x.shape[-1]
        x = torch.cat([x[..., :task], x[..., task + 1 :]], -1)
    return x


def coordinates(model: Model) -> int | None:
    """Return the dimension ``d`` of points; ``None`` if the model's data do not say."""
    if any(isinstance(part, MultiTaskGP) for part in model.modules()):
        return None  # points may or may not have a column for the task
    inputs = [data(part) for part in parts(model)]
    widths = {x.shape[-1] for x in inputs if x is not None}
    return widths.pop() if len(widths) == 1 else None


def arrangement(outputs: Outputs | None, count: int) -> tuple[Tensor, Tensor]:
    """Return which outputs are reward and costs, and their factors, ``(1 + m,)``."""
    if outputs is None:
        outputs = [(j, 1.0) for j in range(count)]
    try:
        place = [operator.index(j) for j, _ in outputs]
        factor = [checks.number("outputs", a) for _, a in outputs]
    except (TypeError, ValueError):
        raise CBanditError(
            "outputs must be a list of pairs (number of an output, factor); got "
            f"{outputs!r}"
        ) from None
    if len(place) < 2:
        raise CBanditError(
            "model must have 1 + m outputs, the reward first and m >= 1 costs after; "
            f"got {len(place)}"
        )
    if min(place) < 0 or max(place) >= count or 0 in factor:
        raise CBanditError(
            f"outputs must name outputs 0 .. {count - 1}, with factors other than 0; "
            f"got {outputs!r}"
        )
    return torch.tensor(place), torch.tensor(factor, dtype=torch.float64)


# -- posteriors ------------------------------------------------------------------------


class Moments(Protocol):
    """A posterior with a mean and a variance, as BoTorch's have."""

    @property
    def mean(self) -> Tensor:
        """The mean, ``(*b, n, outputs)``."""

    @property
    def variance(self) -> Tensor:
        """The variance, ``(*b, n, outputs)``."""


# variances below these count as 0; GPyTorch's own limits are too high for functions
# measured in small units
SMALLEST = {torch.float64: 1e-60, torch.float32: 1e-30}


def root(variance: Tensor) -> Tensor:
    """Return the square root of a variance, with a finite gradient at 0."""
    least = SMALLEST.get(variance.dtype, 0.0)
    return variance.clamp_min(least).sqrt().where(variance > least, 0.0)


def small_variances() -> AbstractContextManager[None]:
    """Return a context in which GPyTorch does not raise small variances."""
    single, double = SMALLEST[torch.float32], SMALLEST[torch.float64]
    limits: AbstractContextManager[None] = gpytorch.settings.min_variance(
        single, double, None
    )
    return limits


def mean_of(posterior: Moments) -> Tensor:
    """Return the mean of a posterior, with the correct gradient."""
    if isinstance(posterior, MultitaskGPPosterior):
        # here the gradient of .mean fails or is wrong, but that of a draw is right
        still = posterior.mean.new_zeros(1, *posterior.base_sample_shape)
        return posterior.rsample_from_base_samples(torch.Size([1]), still)[0]
    mean: Tensor = posterior.mean
    return mean


def one_each(values: Tensor, points: Tensor) -> Tensor:
    """Return ``values (*b, n, outputs)``; raise if a point has several per output."""
    if values.shape[-2] > points.shape[-2]:
        raise CBanditError(
            "model must give each point one value an output: no InputPerturbation; got "
            f"{values.shape[-2]} values for {points.shape[-2]} points"
        )
    return values


def covariances(posterior: Moments) -> list[Tensor]:
    """Return covariances ``(*b, n, k, n, k)``, one for each group of ``k`` outputs."""
    if isinstance(posterior, PosteriorList):
        members: Sequence[Any] = posterior.posteriors
        blocks = [b for part in members for b in covariances(part)]
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
    n, k = posterior.mean.shape[-2:]
    if isinstance(posterior, MultitaskGPPosterior):
        covariance = _conditioned(posterior, n * k)
        return [covariance.reshape(*covariance.shape[:-2], n, k, n, k)]
    normal = posterior.distribution
    covariance = normal.covariance_matrix
    batch = covariance.shape[:-2]
    if isinstance(normal, MultitaskMultivariateNormal) and not normal._interleaved:
        covariance = covariance.reshape(*batch, k, n, k, n)
        return [covariance.transpose(-4, -3).transpose(-2, -1)]
    return [covariance.reshape(*batch, n, k, n, k)]


def variances(posterior: Any) -> Tensor:
    """Return variances ``(*b, n, k)`` of all outputs.

    Those that BoTorch gives of a Kronecker model differ from the model's where tasks
    have different noises.
    """
    if isinstance(posterior, MultitaskGPPosterior):
        (covariance,) = covariances(posterior)
        n, k = covariance.shape[-2:]
        flat = covariance.reshape(*covariance.shape[:-4], n * k, n * k)
        diagonal: Tensor = flat.diagonal(dim1=-2, dim2=-1).unflatten(-1, (n, k))
        return diagonal
    with small_variances():
        variance: Tensor = posterior.variance
    return variance


def _conditioned(posterior: MultitaskGPPosterior, size: int) -> Tensor:
    """Return the covariance of ``size`` outputs of a Kronecker model at new points.

    The posterior's ``distribution`` has variances alone. Here the prior covariance is
    conditioned on the data, as in the posterior's draws.
    """
    data: Any = posterior.train_train_covar + posterior.train_noise
    cross: Tensor = posterior.test_train_covar.to_dense()
    factor = psd_safe_cholesky(data.to_dense())
    solved = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
    root: Tensor = posterior.joint_covariance_matrix.root.to_dense()
    root = root[..., -size:, :]  # new points come after the data
    left: Tensor = root @ root.mT - solved.mT @ solved
    return left


def one_by_one(blocks: list[Tensor], noise: Tensor) -> Tensor:
    """Return the variances of ``n`` points, each given noisy values at those before it.

    Args:
        blocks: covariances ``(*b, n, k, n, k)``; all ``k`` add up to ``F`` outputs.
        noise: the noise's variances at all points but the last, ``(*b, n - 1, F)``.

    Returns:
        ``(*b, F, n)``.
    """
    out = []
    for block, lam in zip(
        blocks, noise.split([b.shape[-1] for b in blocks], -1), strict=True
    ):
        n, k = block.shape[-2:]
        past = (n - 1) * k
        flat = block.reshape(*block.shape[:-4], n * k, n * k)
        lam = lam.flatten(-2)
        # scale what is observed to variance 1, the size that jitter is made for
        size = flat.diagonal(dim1=-2, dim2=-1)[..., :past] + lam
        none = size <= 0
        unit = size.masked_fill(none, 1.0).rsqrt().detach().unsqueeze(-1)
        scaled = (lam + none) * unit.squeeze(-1).square()
        known = flat[..., :past, :past] * unit * unit.mT + torch.diag_embed(scaled)
        factor = psd_safe_cholesky(known)
        # row i of L^-1 K needs points up to i only, so one solve serves every point
        cross = flat[..., :past, :] * unit
        solved = torch.linalg.solve_triangular(factor, cross, upper=False)
        batch = solved.shape[:-2]
        explained = solved.square().reshape(*batch, n - 1, k, n, k).sum(-3)
        before = torch.ones(n - 1, n, dtype=flat.dtype, device=flat.device).triu(1)
        gone = (explained * before.unsqueeze(-1)).sum(-3)
        prior = flat.diagonal(dim1=-2, dim2=-1).unflatten(-1, (n, k))
        out.append((prior - gone).mT)
    return torch.cat(out, -2)
