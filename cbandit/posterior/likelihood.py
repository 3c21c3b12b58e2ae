"""The marginal likelihood of observations merged by action.

With ``c`` observations at the model's noise ``lam`` in a slot, and precision ``q`` from
observations with a noise of their own, ``p = c / lam + q`` and ``ybar`` their weighted
mean, the log likelihood of all observations is, up to a constant,

    log N(ybar; 0, K + P^-1) + 1/2 log det P^-1 - 1/2 sum c log lam - W / (2 lam),

where ``W`` is the spread within the slots. The cost depends on distinct actions only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from gpytorch.priors import Prior
from torch import Tensor

from cbandit._core import devices
from cbandit.posterior.history import ByAction
from cbandit.posterior.log import Log
from cbandit.posterior.prior_mean import PriorMean

VAGUE = 1.0  # prior variance of a learned mean, in units of the outcomes' variance


@dataclass(frozen=True)
class Merged:
    """Observations of one function, merged by action, for ``T`` trials.

    Args:
        x: the actions, ``(T, U, d)``.
        count: how many observations have the model's noise, ``(T, U)``.
        total: their sum, ``(T, U)``.
        within: their squared distances from their slot's mean, summed, ``(T,)``.
        own_precision: the precision of observations with their own noise, ``(T, U)``.
        own_weighted: the sum of those observations times their precision, ``(T, U)``.
        places: the actions in the user's numbers, ``(T, U, d)``.
    """

    x: Tensor
    count: Tensor
    total: Tensor
    within: Tensor
    own_precision: Tensor
    own_weighted: Tensor
    places: Tensor

    def less(self, shift: float | Tensor) -> Merged:
        """Return the data less ``shift``: a number, ``(T, 1)``, or ``(T, U)``."""
        return replace(
            self,
            total=self.total - shift * self.count,
            own_weighted=self.own_weighted - shift * self.own_precision,
        )

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
            self.places[i : i + 1, real],
        )


def merged(log: Log, shift: Tensor, scale: Tensor, least: Tensor) -> Merged:
    """Merge one function's log by action, with outcomes ``(y - shift) / scale``.

    ``shift`` and ``scale`` are ``(T, 1)``; ``least``, ``()`` or ``(T,)``, is a lower
    bound on the noise.
    """
    rows, device = list(log), shift.device
    actions = ByAction(rows, shift)
    y = (torch.stack([row.values[:, :1] for row in rows]) - shift) / scale
    y = y.squeeze(-1)
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

    count, precision = actions.sum(ours.double()), actions.sum(theirs)
    total = actions.sum(torch.where(ours, y, 0.0))
    squares = actions.sum(torch.where(ours, y.square(), 0.0))
    own_weighted = actions.sum(theirs * y)
    within = (squares - total.square() / count.clamp_min(1)).clamp_min(0).sum(-1)
    of = count, total, within, precision, own_weighted
    return Merged(actions.x, *of, places=actions.x)


def negative_log_likelihood(
    gram: Tensor, noise: Tensor, data: Merged, vague: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return minus the log likelihood up to a constant, and the mean, ``(T,)`` each.

    The mean is the likeliest constant under a normal prior around 0.

    Args:
        gram: the kernel at the slots, ``(T, U, U)``.
        noise: ``(T,)``.
        data: the observations.
        vague: the variance of the mean's prior; 0: the mean is 0.
    """
    lam = noise.unsqueeze(-1)
    precision = data.count / lam + data.own_precision
    weighted = data.total / lam + data.own_weighted
    real = precision > 0
    # a padding slot's root is 0, and its gradient must be 0 too
    root = torch.where(real, precision, 1.0).sqrt() * real
    b = gram * root.unsqueeze(-1) * root.unsqueeze(-2)
    b = b + torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
    factor = torch.linalg.cholesky(b)
    # quadratic form less sum p ybar^2 / 2 vanishes against the slots' own terms:
    # y' (K + P^-1)^-1 y = s' B^-1 s, with s = S ybar
    s = weighted / torch.where(real, root, 1.0)
    half = torch.linalg.solve_triangular(factor, s.unsqueeze(-1), upper=False)
    quadratic = half.squeeze(-1).square().sum(-1)
    mean = torch.zeros_like(quadratic)
    if vague:
        ones = torch.linalg.solve_triangular(factor, root.unsqueeze(-1), upper=False)
        known = ones.square().sum((-2, -1)) + 1 / vague
        pull = (ones * half).sum((-2, -1))
        mean, quadratic = pull / known, quadratic - pull.square() / known
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    # weighted means omit the spread between both kinds of observations within a slot
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
    return total, mean


@dataclass(frozen=True)
class Learning:
    """The quantities that a fit learns beside the kernel's hyperparameters.

    Args:
        noise: whether it learns the noise.
        mean: whether it learns a constant mean.
        noise_prior: the prior of the noise as a share of the outcomes' variance;
            ``None``: no prior.
        default: whether the kernel is that of :meth:`cbandit.GP.default`, which has
            slopes in closed form, and several starts while data are few.
        prior: a prior mean whose parameters it learns; ``None``: there is none.
        noise_as_share: whether ``noise_prior`` is of that share, not of the noise.
    """

    noise: bool
    mean: bool
    noise_prior: Prior | None
    default: bool
    prior: PriorMean | None = None
    noise_as_share: bool = True

    def trial(self, i: int) -> Learning:
        """Return what is learned in one trial."""
        return replace(self, prior=self.prior and self.prior.trial(i))

    def to(self, device: torch.device) -> Learning:
        """Return the same with a copy of the prior mean on a device."""
        return replace(self, prior=self.prior and self.prior.to(device))

    def load(self, other: Learning) -> None:
        """Take over the prior mean's parameters from a copy on another device."""
        if self.prior is not None and other.prior is not None:
            pairs = zip(self.prior.modules, other.prior.modules, strict=True)
            for mean, fitted in pairs:
                mean.load_state_dict(fitted.state_dict())


def noise_bounds(scale: float) -> tuple[float, float]:
    """Return bounds on the log noise, given the outcomes' variance."""
    return math.log(1e-6 * scale), math.log(1e2 * scale)


def average(data: Merged) -> float:
    """Return the average of the outcomes; 0 if there are none at the model's noise."""
    count = float(data.count.sum())
    return float(data.total.sum()) / count if count else 0.0


def spread(data: Merged) -> float:
    """Return the variance of the outcomes; 1 if they do not vary."""
    real = data.count > 0
    means = (data.total / data.count.clamp_min(1))[real]
    if means.numel() < 2:
        return 1.0
    spread = float(means.var()) + float(data.within.sum() / data.count.sum())
    return spread if spread > 0 else 1.0
