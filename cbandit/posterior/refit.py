"""Fit hyperparameters by marginal likelihood, to observations merged by action.

With ``c`` observations at the model's noise ``lam`` in a slot and precision ``q`` from
observations with a noise of their own, ``p = c / lam + q`` and ``ybar`` their weighted
mean, the log likelihood of all observations is, up to a constant,

    log N(ybar; 0, K + P^-1) + 1/2 log det P^-1 - 1/2 sum c log lam - W / (2 lam),

``W`` the spread within the slots. It costs what the distinct actions cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import gpytorch
import numpy as np
import torch
from gpytorch import kernels as gpk
from gpytorch.priors import Prior
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cbandit._core import devices
from cbandit.posterior.covariance import trial_of
from cbandit.posterior.observations import Log, Slots, add_up

HOST_SLOTS = 256  # distinct actions up to which the host fits for a device too


@dataclass(frozen=True)
class Merged:
    """Observations of one function, merged by action, for ``T`` trials.

    Args:
        x: ``(T, U, d)``.
        count: ``(T, U)``, observations at the model's noise.
        total: ``(T, U)``, their sum.
        within: ``(T,)``, their squared distances from their slot's mean, summed.
        own_precision: ``(T, U)``, precision of observations with their own noise.
        own_weighted: ``(T, U)``, those observations weighted by it.
    """

    x: Tensor
    count: Tensor
    total: Tensor
    within: Tensor
    own_precision: Tensor
    own_weighted: Tensor

    def trial(self, i: int) -> Merged:
        """Return the observations of trial ``i`` alone, without padding."""
        real = (self.count[i] > 0) | (self.own_precision[i] > 0)
        return Merged(
            self.x[i : i + 1, real],
            self.count[i : i + 1, real],
            self.total[i : i + 1, real],
            self.within[i : i + 1],
            self.own_precision[i : i + 1, real],
            self.own_weighted[i : i + 1, real],
        )


def merged(log: Log, shift: Tensor, scale: Tensor, least: Tensor) -> Merged:
    """Merge a log of one function by action, outcomes less ``shift`` over ``scale``.

    ``shift`` and ``scale`` are ``(T, 1)``; ``least``, ``()`` or ``(T,)``, is a lower
    bound on the noise.
    """
    rows, device, trials = list(log), shift.device, len(shift)
    slots_of = Slots(trials)
    placed = [slots_of.place(row.keys, row.wanted) for row in rows]
    slots = [places for places, _ in placed]
    used = slots_of.used
    zeros = torch.zeros(trials, used, dtype=torch.float64, device=device)
    y = torch.stack([((row.values - shift) / scale)[:, 0] for row in rows])
    arrived = devices.put([list(row.wanted) for row in rows], device)
    if any(row.arrived is not None for row in rows):
        every = torch.ones_like(arrived[0])
        came = [every if r.arrived is None else r.arrived[:, 0] for r in rows]
        arrived = arrived & torch.stack(came)
    usual = [row.noise is None for row in rows]
    ours = arrived & devices.put(usual, device).unsqueeze(-1)
    theirs = torch.zeros_like(y)
    if not all(usual):
        noises = [scale[:, 0] if r.noise is None else r.noise for r in rows]
        noise = (torch.stack(noises) / scale[:, 0].square()).maximum(least)
        theirs = torch.where(arrived & ~ours, noise.reciprocal(), 0.0)

    def summed(values: Tensor) -> Tensor:
        return add_up(zeros.clone(), slots, values)

    count, precision = summed(ours.double()), summed(theirs)
    total = summed(torch.where(ours, y, 0.0))
    squares = summed(torch.where(ours, y.square(), 0.0))
    own_weighted = summed(theirs * y)
    # where each slot's action was first seen
    x = zeros.new_zeros(trials, used, rows[0].x.shape[-1])
    first = [
        (trial, slots[number][trial], number)
        for number, (_, fresh) in enumerate(placed)
        for trial in fresh
    ]
    if first:
        who, slot, number = devices.put(list(zip(*first, strict=True)), device)
        x[who, slot] = torch.stack([row.x for row in rows])[number, who].double()
    within = (squares - total.square() / count.clamp_min(1)).clamp_min(0).sum(-1)
    return Merged(x, count, total, within, precision, own_weighted)


def negative_log_likelihood(gram: Tensor, noise: Tensor, data: Merged) -> Tensor:
    """Return minus the log marginal likelihood up to a constant, ``(T,)``.

    Args:
        gram: ``(T, U, U)``, the kernel at the slots.
        noise: ``(T,)``.
        data: the observations.
    """
    lam = noise.unsqueeze(-1)
    precision = data.count / lam + data.own_precision
    weighted = data.total / lam + data.own_weighted
    real = precision > 0
    # the root of a padding slot is 0, and its gradient must be too
    root = torch.where(real, precision, 1.0).sqrt() * real
    b = gram * root.unsqueeze(-1) * root.unsqueeze(-2)
    b = b + torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
    factor = torch.linalg.cholesky(b)
    # quadratic form less sum p ybar^2 / 2 vanishes against the slots' own terms:
    # y' (K + P^-1)^-1 y = s' B^-1 s, with s = S ybar
    s = weighted / torch.where(real, root, 1.0)
    half = torch.linalg.solve_triangular(factor, s.unsqueeze(-1), upper=False)
    quadratic = half.squeeze(-1).square().sum(-1)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    # weighted means leave out how far both kinds of noise lie apart within a slot
    stated = torch.where(data.own_precision > 0, data.own_precision, 1.0)
    usual = data.count.clamp_min(1)
    gap = (data.total / usual - data.own_weighted / stated).square()
    mixed = (data.count > 0) & (data.own_precision > 0)
    share = torch.where(
        mixed, data.count * stated / lam / torch.where(real, precision, 1.0), 0.0
    )
    total: Tensor = (
        0.5 * quadratic
        + log_det
        + 0.5 * data.count.sum(-1) * noise.log()
        + 0.5 * data.within / noise
        + 0.5 * (share * gap).sum(-1)
    )
    return total


@torch.enable_grad()  # whatever the caller, or an interrupt, has left
def fit_hyperparameters(
    kernel: gpk.Kernel,
    noise: Tensor,
    data: Merged,
    learn_noise: bool,
    noise_prior: Prior | None,
) -> Tensor:
    """Fit the kernel in place by L-BFGS-B and return the noise variances ``(T,)``.

    Each trial is fitted separately. Priors registered with the kernel, and the noise's,
    count. The result is never worse than the start. Small systems are fitted on the
    host, because every step waits for the value of the last one.
    """
    device = noise.device
    if device.type != "cpu" and data.x.shape[-2] <= HOST_SLOTS:
        start, *values = devices.host(noise, *vars(data).values())
        of = kernel.cpu(), start, Merged(*values)
        learned = fit_hyperparameters(*of, learn_noise, noise_prior)
        kernel.to(device)
        return devices.put(learned, device)
    fitted = noise.clone()
    for i in range(len(noise)):
        one = trial_of(kernel, i) if kernel.batch_shape else kernel
        part = data.trial(i)
        if part.x.shape[-2] == 0:
            continue
        fitted[i] = _fit_one(one, noise[i : i + 1], part, learn_noise, noise_prior)[0]
        if one is not kernel:
            parameters = dict(one.named_parameters())
            for name, parameter in kernel.named_parameters():
                parameter.data[i] = parameters[name].data
    kernel.requires_grad_(False)
    return fitted


def _fit_one(
    kernel: gpk.Kernel,
    noise: Tensor,
    data: Merged,
    learn_noise: bool,
    noise_prior: Prior | None,
) -> Tensor:
    start_noise = noise.clone()
    log_noise = noise.clone().log().requires_grad_(learn_noise)
    scale = _spread(data)
    parameters: list[Tensor] = []
    bounds: list[tuple[float | None, float | None]] = []
    for _, parameter, constraint in kernel.named_parameters_and_constraints():
        parameter.requires_grad_(True)
        parameters.append(parameter)
        low = high = None
        if constraint is not None and not constraint.enforced:
            low, high = float(constraint.lower_bound), float(constraint.upper_bound)
        bounds += [(low, high)] * parameter.numel()
    if learn_noise:
        parameters.append(log_noise)
        floor = math.log(1e-6 * scale)
        bounds += [(floor, math.log(1e2 * scale))] * log_noise.numel()
    if not parameters:
        return noise

    def loss() -> Tensor:
        with gpytorch.settings.lazily_evaluate_kernels(False):
            gram = kernel(data.x, data.x).to_dense()
        total = negative_log_likelihood(gram, log_noise.exp(), data).sum()
        for _, module, prior, closure, _ in kernel.named_priors():
            total = total - prior.log_prob(closure(module)).sum()
        if learn_noise and noise_prior is not None:
            total = total - noise_prior.log_prob(log_noise.exp() / scale).sum()
        return total

    try:
        _minimise(loss, parameters, bounds)
    finally:
        kernel.requires_grad_(False)
    fitted = log_noise.detach().exp()
    return fitted if learn_noise else start_noise


def _minimise(
    loss: Callable[[], Tensor],
    parameters: list[Tensor],
    bounds: list[tuple[float | None, float | None]],
) -> None:
    device = parameters[0].device

    def put(vector: np.ndarray) -> None:
        values = devices.put(torch.from_numpy(vector.copy()), device)
        vector_to_parameters(values, parameters)

    def objective(vector: np.ndarray) -> tuple[float, np.ndarray]:
        put(vector)
        try:
            value = loss()
        except RuntimeError:  # the factorisation failed: not a place to go
            return 1e300, np.zeros_like(vector)
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        flat = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(parameters, gradients, strict=True)
        ]
        # copied to the host at once
        parts = [value.detach().reshape(1), *(g.flatten() for g in flat)]
        joined = torch.cat(parts).cpu().double().numpy()
        if not np.isfinite(joined[0]):
            return 1e300, np.zeros_like(vector)
        return float(joined[0]), joined[1:]

    start = parameters_to_vector(parameters).detach().cpu().numpy().copy()
    first = objective(start)[0]
    result = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 200},
    )
    improved = np.isfinite(result.fun) and result.fun <= first
    put(result.x if improved else start)


def _spread(data: Merged) -> float:
    """Return the variance of the outcomes; 1 if they do not vary."""
    real = data.count > 0
    means = (data.total / data.count.clamp_min(1))[real]
    if means.numel() < 2:
        return 1.0
    spread = float(means.var()) + float(data.within.sum() / data.count.sum())
    return spread if spread > 0 else 1.0
