"""Fit hyperparameters by marginal likelihood."""

from __future__ import annotations

import itertools
import math
from typing import Protocol

import gpytorch
import numpy as np
import torch
from gpytorch import kernels as gpk
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cbandit._core import devices
from cbandit._core.threads import threads_for
from cbandit.beliefs.kernel_tree import products, read
from cbandit.posterior.covariance import load_trial, trial_of
from cbandit.posterior.gradients import Array, Closed
from cbandit.posterior.likelihood import (
    VAGUE,
    Learning,
    Merged,
    average,
    negative_log_likelihood,
    noise_bounds,
    spread,
)

APART = 1e-3  # difference in the loss from which another optimum counts as better
LARGE_FIT = 500  # distinct actions, from which a fit gains from more threads
HOST_SLOTS = 256  # at most so many distinct actions are fitted on the host
SHORTEST = 6e-6  # of the largest input: the third root of float64's precision
FAILED = 1e12  # the loss where there is none; after 1e20 the next step rounds to 0


def fit_hyperparameters(
    kernel: gpk.Kernel, noise: Tensor, data: Merged, learning: Learning
) -> tuple[Tensor, Tensor]:
    """Fit the kernel in place by L-BFGS-B; return noise variances and means ``(T,)``.

    So is the prior mean that is learned, if it varies. Each trial is fitted separately,
    with the priors of the kernel, of the noise and of the mean. The result is never
    worse than the start. Small systems are fitted on the host, because every step waits
    for the value of the last one.
    """
    device = noise.device
    if device.type != "cpu" and data.x.shape[-2] <= HOST_SLOTS:
        start, *values = devices.host(noise, *vars(data).values())
        on_host = learning.to(start.device)
        learned = fit_hyperparameters(kernel.cpu(), start, Merged(*values), on_host)
        kernel.to(device)
        learning.load(on_host)
        fitted, means = devices.put(torch.stack(learned), device)
        return fitted, means
    with threads_for(data.x.shape[-2], LARGE_FIT):
        fitted, means = _fit_each(kernel, noise, data, learning)
    kernel.requires_grad_(False)
    return fitted, means


def _fit_each(
    kernel: gpk.Kernel, noise: Tensor, data: Merged, learning: Learning
) -> tuple[Tensor, Tensor]:
    """Fit the kernel in place, trial by trial; return noises and means ``(T,)``."""
    fitted, means = noise.clone(), torch.zeros_like(noise)
    one = trial_of(kernel, 0) if kernel.batch_shape else kernel
    for i in range(len(noise)):
        part = data.trial(i)
        if part.x.shape[-2] == 0:
            continue
        if one is not kernel:  # copying a kernel takes as long as a fit to few data
            load_trial(one, kernel, i)
        what = learning.trial(i)
        fitted[i], means[i] = _fit_one(one, noise[i : i + 1], part, what)
        if one is not kernel:
            parameters = dict(one.named_parameters())
            for name, parameter in kernel.named_parameters():
                parameter.data[i] = parameters[name].data
    return fitted, means


def _fit_one(
    kernel: gpk.Kernel, noise: Tensor, data: Merged, learning: Learning
) -> tuple[Tensor, Tensor]:
    """Fit one trial's kernel in place; return its noise and mean, ``(1,)``."""
    scale, center = spread(data), 0.0
    if learning.mean:
        center = average(data)
        data = data.less(center)
    of = kernel, noise, data, learning, scale
    problem: Problem = Closed.of(*of) or General(*of)
    starts = problem.starts()
    if len(starts[0]):
        problem.put(_minimum(problem, starts))
    fitted, mean = problem.result()
    return fitted, mean + center


class Problem(Protocol):
    """A function to be minimised over a vector of hyperparameters."""

    bounds: list[tuple[float | None, float | None]]

    def starts(self) -> list[Array]:
        """Return vectors to start from, the present one first."""

    def __call__(self, vector: Array) -> tuple[float, Array]:
        """Return the value and the gradient."""

    def put(self, vector: Array) -> None:
        """Set the hyperparameters."""

    def result(self) -> tuple[Tensor, Tensor]:
        """Return the noise and the mean, ``(1,)``."""


class General:
    """The fit of any gpytorch kernel, with slopes by automatic differentiation."""

    def __init__(
        self,
        kernel: gpk.Kernel,
        noise: Tensor,
        data: Merged,
        learning: Learning,
        scale: float,
    ) -> None:
        self._kernel, self._noise, self._data = kernel, noise, data
        self._learning, self._scale = learning, scale
        self._log_noise = noise.clone().log()
        self._parameters: list[Tensor] = []
        self.bounds: list[tuple[float | None, float | None]] = []
        means = () if learning.prior is None else learning.prior.modules
        self._modules = (kernel, *means)
        least = shortest_scales(kernel, data.x)
        for module in self._modules:
            self._add(module, least if module is kernel else {})
        if learning.noise:
            self._parameters.append(self._log_noise)
            self.bounds.append(noise_bounds(scale))

    def _add(
        self, module: gpytorch.Module, least: dict[str, list[float | None]]
    ) -> None:
        """Add a module's hyperparameters; ``least`` are lower bounds by their name."""
        for name, parameter, constraint in module.named_parameters_and_constraints():
            self._parameters.append(parameter)
            low = high = None
            if constraint is not None and not constraint.enforced:
                low, high = float(constraint.lower_bound), float(constraint.upper_bound)
            lows = least.get(name, [low] * parameter.numel())
            self.bounds += [(each, high) for each in lows]

    def starts(self) -> list[Array]:
        """Return the present hyperparameters."""
        if not self._parameters:
            return [np.zeros(0)]
        return [parameters_to_vector(self._parameters).detach().cpu().numpy().copy()]

    def put(self, vector: Array) -> None:
        """Set the hyperparameters."""
        values = torch.from_numpy(vector.copy())
        values = devices.put(values, self._parameters[0].device)
        vector_to_parameters(values, self._parameters)

    @torch.enable_grad()  # whatever the caller, or an interrupt, has left
    def __call__(self, vector: Array) -> tuple[float, Array]:
        """Return the value and the gradient."""
        self.put(vector)
        for parameter in self._parameters:
            parameter.requires_grad_(True)
        try:
            value = self._loss()
            gradients = torch.autograd.grad(value, self._parameters, allow_unused=True)
        finally:
            for parameter in self._parameters:
                parameter.requires_grad_(False)
        flat = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(self._parameters, gradients, strict=True)
        ]
        # copied to the host at once
        parts = [value.detach().reshape(1), *(g.flatten() for g in flat)]
        joined = torch.cat(parts).cpu().double().numpy()
        return float(joined[0]), joined[1:]

    def _likelihood(self) -> tuple[Tensor, Tensor]:
        with gpytorch.settings.lazily_evaluate_kernels(False):
            gram = self._kernel(self._data.x, self._data.x).to_dense()
        vague = VAGUE * self._scale if self._learning.mean else 0.0
        noise, data, prior = self._log_noise.exp(), self._data, self._learning.prior
        if prior is not None:
            data = data.less(prior.above(data.places)[:, 0])
        return negative_log_likelihood(gram, noise, data, vague)

    def _loss(self) -> Tensor:
        total = self._likelihood()[0].sum()
        for _, module, prior, closure, _ in itertools.chain.from_iterable(
            module.named_priors() for module in self._modules
        ):
            total = total - prior.log_prob(closure(module)).sum()
        prior = self._learning.noise_prior
        if self._learning.noise and prior is not None:
            share = self._log_noise.exp()
            if self._learning.noise_as_share:
                share = share / self._scale
            total = total - prior.log_prob(share).sum()
        return total

    @torch.no_grad()
    def result(self) -> tuple[Tensor, Tensor]:
        """Return the noise and the mean, ``(1,)``."""
        noise = self._log_noise.exp() if self._learning.noise else self._noise.clone()
        if not self._learning.mean:
            return noise, torch.zeros_like(noise)
        return noise, self._likelihood()[1]


def shortest_scales(kernel: gpk.Kernel, x: Tensor) -> dict[str, list[float | None]]:
    """Return lower bounds of raw lengthscales and periods, by parameter name.

    Divided by a shorter one, inputs lose the digits that tell them apart.

    Args:
        kernel: of one trial.
        x: its inputs, ``(..., n, d)``.
    """
    names = {id(each): name for name, each in kernel.named_parameters()}
    size = SHORTEST * x.abs().reshape(-1, x.shape[-1]).amax(0)
    tree, least = read(kernel, range(x.shape[-1])), {}
    for leaf in (each for product in products(tree) for each in product.factors):
        for word in ("raw_lengthscale", "raw_period_length"):
            raw = getattr(leaf.kernel, word, None)
            constraint = leaf.kernel._constraints.get(f"{word}_constraint")
            if raw is None or constraint is None:
                continue
            own = size[list(leaf.axes)]
            own = own if raw.shape[-1] == len(own) else own.amax().reshape(1)
            low = own.to(constraint.lower_bound).clamp_min(1e-300)
            low = torch.where(low > constraint.lower_bound, low, math.nan)
            low = low if not constraint.enforced else constraint.inverse_transform(low)
            values = low.expand(raw.shape).flatten().tolist()
            least[names[id(raw)]] = [v if math.isfinite(v) else None for v in values]
    return least


def _minimum(problem: Problem, starts: list[Array]) -> Array:
    """Return the best vector found from all starts, or the first start if none is."""

    def value(vector: Array) -> tuple[float, Array]:
        try:
            with np.errstate(all="ignore"):  # a step may lead anywhere
                value, gradient = problem(vector)
        except RuntimeError:  # the factorisation failed: avoid this point
            return FAILED, np.zeros_like(vector)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return FAILED, np.zeros_like(vector)
        return value, gradient

    best, least, margin = starts[0], value(starts[0])[0], 0.0
    for start in starts:
        result = minimize(
            value,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=problem.bounds,
            options={"maxiter": 200},
        )
        if np.isfinite(result.fun) and result.fun <= least - margin:
            best, least = result.x, result.fun
        margin = APART  # the same optimum found again is not better for its last bits
    return best
