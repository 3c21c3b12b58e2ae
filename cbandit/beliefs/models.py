"""Fitted GPyTorch and BoTorch models, read as beliefs and as data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from gpytorch import kernels as gpk
from gpytorch import settings
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, Mean, ZeroMean
from gpytorch.models import ExactGP, IndependentModelList
from torch import Tensor

from cbandit._core.hints import hinted
from cbandit.actions import Unit
from cbandit.errors import CBanditError

LOOKED_AT = 4  # training inputs at which a model's prior is compared
CLOSE = 1e-6  # difference of two prior values, relative, that rounding explains
ONE_EACH = "give a belief for each output, as BoTorch's ModelListGP does"
KINDS = "a gpytorch ExactGP, BoTorch's SingleTaskGP, or a ModelListGP of such models"


class ModelMean(Mean):  # type: ignore[misc]
    """A model's mean as a function of the user's numbers, in the user's unit.

    Args:
        inner: the model's mean, of its transformed inputs and outcomes.
        unit: the map of inputs; ``None``: there is none.
        center: the value that the model's outcomes count as 0.
        size: the size of their unit.
    """

    def __init__(
        self, inner: Mean, unit: Unit | None, center: float, size: float
    ) -> None:
        super().__init__()
        self.inner = inner
        self._unit, self._center, self._size = unit, center, size

    def forward(self, x: Tensor) -> Tensor:
        """Return the means ``(n,)`` at points ``(n, d)``."""
        z = x if self._unit is None else self._unit.to(x.device).of(x)
        value: Tensor = self._center + self._size * self.inner(z)
        return value


class Parts(NamedTuple):
    """The parts of a fitted model of one output that make a belief.

    Args:
        kernel: of its transformed inputs, in its unit.
        mean: of points in the user's numbers, in the user's unit.
        level: the mean where it is constant; ``None``: it varies.
        noise: the variance of one observation, in its unit.
        noise_learned: whether that was fitted.
        noises: the variances ``(n,)`` of its data, in its unit, where they are fixed;
            ``None``: one noise is for all.
        noise_prior: of the noise; ``None``: there is none.
        unit: the map of its inputs; ``None``: there is none.
        scale: the value that its outcomes count as 0, and the size of their unit;
            ``None``: outcomes are as told.
    """

    kernel: gpk.Kernel
    mean: Mean
    level: float | None
    noise: float
    noise_learned: bool
    noises: Tensor | None
    noise_prior: Any
    unit: Unit | None
    scale: tuple[float, float] | None


def parts_of(model: Any, name: str = "model") -> list[Parts]:
    """Return the parts of a model, or of each model in a list of models."""
    if isinstance(model, IndependentModelList):
        each = enumerate(model.models)
        return [_parts(one, f"{name}.models[{j}]") for j, one in each]
    return [_parts(model, name)]


def _parts(model: Any, name: str) -> Parts:
    """Return the parts of a model of one output; raise if there is more to it."""
    _check_kind(model, name)
    kernel, mean, likelihood = model.covar_module, model.mean_module, model.likelihood
    unit, scale = _unit(model, name), _scale(model, name)
    if type(likelihood) not in (GaussianLikelihood, FixedNoiseGaussianLikelihood):
        raise CBanditError(
            f"{name}: its {type(likelihood).__name__} cannot be carried over: a belief "
            "has Gaussian noise, one variance for all observations or one for each"
        )
    noise, noises, prior = likelihood.noise.detach().double().flatten(), None, None
    learned = type(likelihood) is GaussianLikelihood
    if learned:
        prior = copy.deepcopy(getattr(likelihood.noise_covar, "noise_prior", None))
    elif bool((noise != noise[0]).any()):
        noises = noise
    kernel, mean = (copy.deepcopy(part).double() for part in (kernel, mean))
    center, size = scale or (0.0, 1.0)
    whole, level = ModelMean(mean, unit, center, size), None
    if type(mean) in (ConstantMean, ZeroMean):
        level = whole(model.train_inputs[0][:1].double()).item()
    of = kernel, whole, level, float(noise.mean()), learned
    return Parts(*of, noises, prior, unit, scale)


def _check_kind(model: Any, name: str) -> None:
    """Raise unless a model is an exact one of one output, made of mean and kernel."""
    kind = type(model).__name__
    if not isinstance(model, ExactGP):
        raise CBanditError(f"{name} must be {KINDS}; got {kind}, which is no ExactGP")
    inputs, targets = model.train_inputs, model.train_targets
    if inputs is None or targets is None:
        raise CBanditError(f"{name} must have training data; this {kind} has none")
    missing = [
        part for part in ("covar_module", "mean_module") if not hasattr(model, part)
    ]
    if missing:
        raise CBanditError(f"{name}: this {kind} has no {missing[0]}, which is read")
    if len(inputs) > 1 or inputs[0].dim() != 2 or targets.dim() != 1:
        raise CBanditError(
            f"{name} must have one output and no batch shape; this {kind} has training "
            f"targets of shape {tuple(targets.shape)}: {ONE_EACH}"
        )
    z, was_training = inputs[0][:LOOKED_AT], model.training
    check_kernel(model.covar_module, name)
    if model.covar_module.num_outputs_per_input(z, z) != 1 or _tasks(model) != 1:
        raise CBanditError(
            f"{name}: this {kind} is of several tasks or outputs: {ONE_EACH}"
        )
    model.eval()
    with torch.no_grad(), settings.lazily_evaluate_kernels(False):
        prior = model.forward(z)
        gram, level = model.covar_module(z, z).to_dense(), model.mean_module(z)
        apart = (prior.covariance_matrix - gram).abs().max() > CLOSE * gram.abs().max()
        off = (prior.mean - level).abs().max() > CLOSE * (1 + level.abs().max())
    model.train(was_training)
    if bool(apart | off):
        raise CBanditError(
            f"{name}: the forward of this {kind} is more than its mean_module and "
            "covar_module of its inputs, which alone are carried over"
        )


def _tasks(model: Any) -> int:
    return int(getattr(model, "num_tasks", 1))


def check_kernel(kernel: gpk.Kernel, name: str) -> None:
    """Raise, naming its class, if a kernel or a part of it has no scalar values."""
    approximate = gpk.GridInterpolationKernel, gpk.GridKernel, gpk.InducingPointKernel
    several = gpk.MultitaskKernel, gpk.LCMKernel
    for part in kernel.modules():
        if isinstance(part, approximate):
            raise CBanditError(
                f"{name}: {type(part).__name__} approximates: give its base_kernel, "
                "whose posterior is exact here on sets of any size"
            )
        grads = isinstance(part, gpk.Kernel) and "Grad" in type(part).__name__
        if isinstance(part, several) or grads:
            what = "gradients too" if grads else "several outputs"
            raise CBanditError(
                f"{name}: {type(part).__name__} is a kernel of {what}; a belief is of "
                f"one function: {ONE_EACH}"
            )


def _unit(model: Any, name: str) -> Unit | None:
    """Return the map of a model's inputs; raise if it is not affine."""
    transform = getattr(model, "input_transform", None)
    if transform is None:
        return None
    from botorch.models.transforms.input import AffineInputTransform

    kind = type(transform).__name__
    whole = isinstance(transform, AffineInputTransform) and not transform.reverse
    if not (whole and transform.transform_on_eval):
        raise CBanditError(
            f"{name}: its input transform {kind} cannot be carried over; Normalize and "
            "InputStandardize can. Transform the inputs of the set instead, and fit "
            "the model to them"
        )
    low, span = (v.detach().double() for v in (transform.offset, transform.coefficient))
    if low.shape[:-2].numel() != 1:
        raise CBanditError(f"{name}: its {kind} must have no batch shape")
    d = model.train_inputs[0].shape[-1]
    bounds = torch.stack([low.new_zeros(d), low.new_ones(d)])
    some = getattr(transform, "indices", torch.arange(d))
    bounds[0, some], bounds[1, some] = low.flatten(), (low + span).flatten()
    return Unit(bounds)


def _scale(model: Any, name: str) -> tuple[float, float] | None:
    """Return the center and the size of a model's outcomes; raise if they are bent."""
    transform = getattr(model, "outcome_transform", None)
    if transform is None:
        return None
    from botorch.models.transforms.outcome import Standardize

    if type(transform) is not Standardize:
        raise CBanditError(
            f"{name}: its outcome transform {type(transform).__name__} cannot be "
            "carried over; Standardize can. Fit the model to transformed outcomes, and "
            "tell those"
        )
    return transform.means.item(), transform.stdvs.item()


@hinted
def data_of(model: Any, costs: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a model's training data as keywords of ``policy.observe``.

    Args:
        model: a gpytorch ``ExactGP``, BoTorch's ``SingleTaskGP``, or a ``ModelListGP``,
            the reward's model first. All must have the same training inputs.
        costs: the names of the costs, where a policy has names for them.

    Returns:
        ``x (n, d)``, ``reward (n,)``, with costs ``cost (n, m)``, or by name, and where
        models have fixed noises that differ, ``noise`` by function.

    Example:
        >>> import cbandit as cb, torch
        >>> from botorch.models import SingleTaskGP
        >>> x = torch.rand(8, 2, dtype=torch.float64)
        >>> model = SingleTaskGP(x, x.sum(-1, keepdim=True))
        >>> belief = cb.GP.of(model)
        >>> policy = cb.GPUCB(cb.Box([0, 0], [1, 1]), reward=belief)
        >>> policy.observe(**cb.data_of(model))
    """
    several = isinstance(model, IndependentModelList)
    models, parts = list(model.models) if several else [model], parts_of(model)
    xs = [_inputs(one).detach().double() for one in models]
    if any(x.shape != xs[0].shape or bool((x != xs[0]).any()) for x in xs):
        raise CBanditError(
            "the models must have the same training inputs; these differ: observe the "
            "data of each, as in policy.observe(x=x, cost={name: values})"
        )
    values, noises = [], []
    for one, part in zip(models, parts, strict=True):
        center, size = part.scale or (0.0, 1.0)
        values.append(center + size * one.train_targets.detach().double())
        own = part.noises
        noises.append(None if own is None else size**2 * own)
    names = [f"cost{j}" for j in range(1, len(models))]
    if costs is not None:
        names = [str(name) for name in costs]
        if len(names) != len(models) - 1:
            raise CBanditError(
                f"costs must name each of the {len(models) - 1} costs; got {names}"
            )
    out: dict[str, Any] = {"x": xs[0], "reward": values[0]}
    if names:
        by_name = dict(zip(names, values[1:], strict=True))
        out["cost"] = torch.stack(values[1:], -1) if costs is None else by_name
    labels = ["reward", *names]
    fixed = {k: v for k, v in zip(labels, noises, strict=True) if v is not None}
    return out | ({"noise": fixed} if fixed else {})


def _inputs(model: Any) -> Tensor:
    """Return a model's training inputs as the user gave them, ``(n, d)``."""
    was_training = model.training
    model.train()  # otherwise BoTorch has them transformed
    inputs: Tensor = model.train_inputs[0]
    model.train(was_training)
    return inputs
