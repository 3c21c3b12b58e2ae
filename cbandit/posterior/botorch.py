"""Beliefs as BoTorch models."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

import gpytorch
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.gp_regression import SingleTaskGP
from botorch.models.model_list_gp_regression import ModelListGP
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Log10,
    Normalize,
)
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import Mean
from torch import Tensor

from cbandit.actions import Unit
from cbandit.posterior.covariance import TableKernel, trial_of
from cbandit.posterior.prior_mean import PriorMean

if TYPE_CHECKING:
    from botorch.acquisition.objective import PosteriorTransform
    from botorch.posteriors.gpytorch import GPyTorchPosterior
    from botorch.posteriors.transformed import TransformedPosterior
    from botorch.sampling.base import MCSampler

    from cbandit.posterior.beliefs import Beliefs
    from cbandit.posterior.group import Group

PADDING = 1e20  # variance of a padding point, as a multiple of the prior variance


class BeliefGP(SingleTaskGP):
    """A ``SingleTaskGP`` on means over repeats that knows the noise of one observation.

    The noise of its data is that of means, ``lam / n``; new observations
    (``observation_noise=True``, fantasies, conditioning) have the noise ``lam``.
    """

    observation_noise: Tensor | None  # *trials x 1 x 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("observation_noise", None, persistent=False)

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Return BoTorch's posterior; ``observation_noise=True`` adds ``lam``."""
        if observation_noise is True and self.observation_noise is not None:
            observation_noise = self.observation_noise
        return super().posterior(
            X, output_indices, observation_noise, posterior_transform
        )

    def fantasize(
        self,
        X: Tensor,
        sampler: MCSampler,
        observation_noise: Tensor | None = None,
        **kwargs: object,
    ) -> Self:
        """Return BoTorch's fantasy model, with noise ``lam`` unless one is given."""
        if observation_noise is None:
            observation_noise = self.observation_noise
        return super().fantasize(X, sampler, observation_noise, **kwargs)

    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, **kwargs: object
    ) -> Self:
        """Return GPyTorch's fantasy model, with ``lam`` unless ``noise`` is given."""
        if kwargs.get("noise") is None and self.observation_noise is not None:
            kwargs["noise"] = self.observation_noise[..., 0].expand_as(targets)
        with _any_noise():
            fantasy: Self = super().get_fantasy_model(inputs, targets, **kwargs)
        return fantasy


class BeliefMean(Mean):  # type: ignore[misc]
    """A prior mean that varies, as a module of a BoTorch model.

    Args:
        prior: the prior means, of all trials or of one.
        place: which of its functions.
        unit: the map that the model applies to its inputs; ``None``: there is none.
        sign: -1 where a policy has turned the function's sign.
    """

    def __init__(
        self, prior: PriorMean, place: int, unit: Unit | None, sign: float
    ) -> None:
        super().__init__()
        self._prior, self._unit = prior, unit
        self._place, self._sign = place, sign

    def forward(self, z: Tensor) -> Tensor:
        """Return the means ``(*b, n)`` at the model's inputs ``z (*b, n, d)``."""
        x = z if self._unit is None else self._unit.point(z)
        trials = len(self._prior.level)
        if trials == 1:
            rows = self._prior.told(x.reshape(-1, x.shape[-1]))[0, self._place]
            return self._sign * rows.reshape(x.shape[:-1])
        points = x.movedim(-3, 0)  # T x *b x n x d
        means = self._prior.told(points.flatten(1, -2))[:, self._place]
        return self._sign * means.reshape(points.shape[:-1]).movedim(0, -2)


def _any_noise() -> AbstractContextManager[None]:
    """Return a context in which GPyTorch does not raise small noises to its minimum."""
    limits: AbstractContextManager[None] = gpytorch.settings.min_fixed_noise(
        1e-300, 1e-300, 1e-300
    )
    return limits


def model_list(
    beliefs: Beliefs, trial: int | None = None, signs: Sequence[float] | None = None
) -> ModelListGP:
    """Return a ``ModelListGP`` with one :class:`BeliefGP` per function, reward first.

    Training data are merged: means over repeats, with the noise of a mean. The models'
    batch shape is the trials; a trial with fewer actions is padded with points of so
    much noise that they change nothing. With ``trial``, the models are of that trial,
    without batch shape and padding. The models do not follow what a policy learns
    later. ``signs``, one per function, undo the signs that a policy has turned.
    """
    models: dict[int, BeliefGP] = {}
    batched = bool(beliefs.prior.batch_shape)
    for group in beliefs.groups:
        for place, function in enumerate(group.functions):
            sign = 1.0 if signs is None else signs[function]
            models[function] = _model(group, place, batched, trial, sign)
    return ModelListGP(*[models[f] for f in sorted(models)])


def _model(
    group: Group, place: int, batched: bool, trial: int | None, sign: float
) -> BeliefGP:
    x, y, variance = _data(group, place)
    shift, scale = (v[:, place] for v in group.scale.levels())
    y, shift = sign * y, sign * shift
    level = group.learned_noise()
    if level is not None:  # variances are in units of a learned noise
        variance = variance * level[:, place : place + 1]
        factor = scale.square() * level[:, place]
    else:
        factor = scale.square()
    noise = group.noise * factor
    kernel: Kernel = copy.deepcopy(group.prior.covariance.kernel)
    if trial is not None:
        observed = variance[trial].isfinite()
        x, y, variance = (v[trial, observed].unsqueeze(0) for v in (x, y, variance))
        shift, factor, noise = (v[trial : trial + 1] for v in (shift, factor, noise))
        batched = False
        if isinstance(kernel, TableKernel) and kernel.table.dim() == 3:
            kernel = TableKernel(kernel.table[trial])
        else:
            kernel = trial_of(kernel, trial)
    if group.scale.scaled:
        # back to the user's units: values times the scale, the kernel times its square
        batch = factor.shape if batched else torch.Size()
        kernel = ScaleKernel(kernel, batch_shape=batch).double()
        kernel.outputscale = factor.reshape(batch)
    prior, unit = group.scale.prior, group.prior.covariance.unit
    mean: Mean
    if prior.varies:
        mean = BeliefMean(
            prior if trial is None else prior.trial(trial), place, unit, sign
        )
    else:
        mean = gpytorch.means.ConstantMean(
            batch_shape=torch.Size(shift.shape if batched else ())
        ).double()
        mean.constant.data = (shift if batched else shift[0]).clone()
    if not batched:
        x, y, variance, noise = x[0], y[0], variance[0], noise[0]
    if not bool(variance.isfinite().all()):
        # an infinite variance would be exact, but breaks some Cholesky factorisations
        largest = PADDING * kernel(x, diag=True).detach().amax()
        variance = variance.where(variance.isfinite(), largest)
    transform = None if unit is None else _inputs(unit)
    with warnings.catch_warnings(), _any_noise():
        # BoTorch warns, but outcomes are meant to be in the user's units
        warnings.simplefilter("ignore", InputDataWarning)
        model = BeliefGP(
            x,
            y.unsqueeze(-1),
            variance.unsqueeze(-1),
            covar_module=kernel,
            mean_module=mean,
            outcome_transform=None,
            input_transform=transform,
        )
    model.observation_noise = noise[..., None, None]
    model.requires_grad_(False)
    return model.to(group.prior.device).eval()


def _inputs(unit: Unit) -> InputTransform:
    """Return the map of coordinates to the unit cube as a BoTorch transform."""
    d = unit.bounds.shape[-1]
    if unit.logs is None:
        return Normalize(d=d, bounds=unit.bounds)
    bounds = torch.where(
        unit.logs, unit.bounds.where(unit.logs, 1.0).log10(), unit.bounds
    )
    first = Log10(unit.logs.nonzero().flatten().tolist())
    return ChainedInputTransform(log=first, even=Normalize(d=d, bounds=bounds))


def _data(group: Group, place: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return distinct actions ``(T, U, d)``, mean outcomes and variances ``(T, U)``."""
    x, p, sums = group.merged()
    shift, scale = (v[:, place : place + 1] for v in group.scale.levels())
    w = sums[:, place]
    if group.scale.standardize:
        # outcomes still awaited are at the mean; all are taken less the mean
        gap = shift - group.scale.outcomes.origin[:, place : place + 1]
        w = w - gap * sums[:, -1]
    if not p.shape[-1]:
        # a model needs data: give it one point of infinite variance
        x = p.new_zeros(len(p), 1, group.prior.covariance.dim)
        p, w = (v.new_zeros(len(p), 1) for v in (p, w))
    observed = p > 0
    count = torch.where(observed, p, 1.0)
    y = torch.where(observed, w / count, 0.0)
    if group.scale.prior.varies:
        y = y + group.scale.prior.above(x)[:, place]
    y = y * (1.0 if group.scale.standardize else scale) + shift
    variance = torch.where(observed, scale.square() / count, torch.inf)
    return x, y, variance
