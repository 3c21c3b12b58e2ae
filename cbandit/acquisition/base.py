"""Estimates of reward and costs from a BoTorch model; subclasses score them.

A batch of ``q`` points is scored sequentially: the first point's score, plus the
second's with the first one pending, and so on. A pending point narrows the deviations,
because it will be observed. It moves no mean, since the value assumed there is the
mean. On an ensemble (a fully Bayesian model) a score is the mean of its members'
scores.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.transforms import (
    average_over_ensemble_models,
    t_batch_mode_transform,
)
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import pad, softplus

from cbandit._core import checks
from cbandit.acquisition.beneath import evaluated
from cbandit.acquisition.models import (
    Moments,
    Outputs,
    arrangement,
    coordinates,
    covariances,
    mean_of,
    one_by_one,
    one_each,
    root,
    small_variances,
    variances,
)
from cbandit.errors import CBanditError
from cbandit.explore import estimates


class Score(AcquisitionFunction):
    """The base class of scores of a model's estimates of reward and costs.

    Arguments that are tensors may lead with the model's batch shape ``*b``.

    Args:
        model, beta, cost_beta, thresholds, noise, outputs, X_pending, units: see
            :class:`~cbandit.acquisition.PrimalDual`.
    """

    width: Tensor  # *b x (1 + m)
    thresholds: Tensor  # *b x m
    noise: Tensor | None  # one per output of the model
    place: Tensor  # 1 + m
    units: Tensor | None  # 1 + m
    scale: Tensor  # 1 + m

    def __init__(
        self,
        model: Model,
        beta: ArrayLike,
        cost_beta: ArrayLike | None,
        thresholds: ArrayLike,
        noise: ArrayLike | None,
        outputs: Outputs | None,
        X_pending: Tensor | None,
        units: ArrayLike | None,
    ) -> None:
        if not isinstance(model, Model):
            raise CBanditError(
                f"model must be a BoTorch model; got {type(model).__name__}"
            )
        super().__init__(model=model)
        self._dim = coordinates(model)
        place, scale = arrangement(outputs, model.num_outputs)
        self._hold("place", place)
        self._hold("scale", scale)
        self.m = len(scale) - 1
        width = self._functions("beta", beta, "cost_beta", cost_beta)
        self._hold("width", checks.nonnegative("beta and cost_beta", width, graph=True))
        tau = checks.finite(
            "thresholds", checks.tensor("thresholds", thresholds, graph=True)
        )
        self._hold("thresholds", self._costs("thresholds", tau))
        self._hold("units", None if units is None else _units(units, 1 + self.m))
        if noise is not None:
            noise = checks.nonnegative("noise", noise, graph=True)
            noise = one_or_each("noise", noise, model.num_outputs)
        self._hold("noise", noise)
        self.register_buffer("X_pending", None)
        self.set_X_pending(X_pending)

    @abstractmethod
    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the score ``(*b, q)`` of ``f (*b, q)`` and ``g (*b, m, q)``."""

    def forward(self, X: Tensor) -> Tensor:
        """Return the scores of ``X (*b, q, d)``, summed over ``q`` points: ``*b``."""
        total: Tensor = self._summed(self._points("X", X))
        return total

    @t_batch_mode_transform()
    @average_over_ensemble_models  # type: ignore[arg-type]
    def _summed(self, X: Tensor) -> Tensor:
        return self.score(*self.estimates(X)).sum(-1)

    def estimates(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the reward's upper and the costs' lower bounds at ``X (*b, q, d)``.

        They are ``(*b, q)`` and ``(*b, m, q)``, thresholds subtracted, divided by
        ``units`` and clipped. Policies subtract the average reward before they clip;
        a model does not know it, so with ``units`` give a ``B`` that does not bind.
        """
        X = self._points("X", X)
        mean, std = evaluated(self.model, self._moments, X, self.noise)
        sign = torch.ones_like(self.width)
        sign[..., 1:] = -1
        return self._finished(estimates(mean, std, sign * self.width))

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Set the points ``(p, d)`` that are being evaluated, or ``None``."""
        if X_pending is not None:
            shape = tuple(self._points("X_pending", X_pending).shape)
            if len(shape) != 2:
                raise CBanditError(f"X_pending must have shape (p, d); got {shape}")
            checks.finite("X_pending", X_pending)
        super().set_X_pending(X_pending)

    def _points(self, name: str, X: object) -> Tensor:
        """Return ``X``, or raise unless it holds points of the model's dimension."""
        if not isinstance(X, Tensor):
            raise CBanditError(
                f"{name} must be a tensor of points (..., d); got {checks.kind(X)}"
            )
        if X.dim() < 2 or self._dim not in (None, X.shape[-1]):
            wanted = "(p, d)" if name == "X_pending" else "(..., n, d)"
            known = "" if self._dim is None else f" with d = {self._dim}, the model's"
            raise CBanditError(
                f"{name} must have shape {wanted}{known}; got {tuple(X.shape)}"
            )
        dtype = next(self.model.parameters(), X).dtype
        if X.dtype == torch.float64 and dtype == torch.float32:
            raise CBanditError(
                f"{name} must be float32, as the model is; got float64 (or build the "
                "model on float64 data)"
            )
        return X

    # -- from the model ----------------------------------------------------------------

    def _moments(self, X: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of all functions, ``(*b, 1 + m, q)``."""
        pending: Tensor | None = self.X_pending
        points, p = X, 0
        if pending is not None:
            p = pending.shape[-2]
            waiting = pending.to(X).expand(*X.shape[:-2], *pending.shape)
            points = torch.cat([waiting, X], -2)
        posterior: Any = self.model.posterior(points)
        mean = one_each(mean_of(posterior), points)[..., p:, :].mT
        if points.shape[-2] == 1:
            variance = variances(posterior).mT
        else:
            # before a single new point come the pending ones, the same in all t-batches
            before = points[..., :-1, :]
            if pending is not None and X.shape[-2] == 1:
                before = pending.to(X)
            lam = self._noise(before, posterior, noise)
            variance = one_by_one(covariances(posterior), lam)[..., p:]
        return self._arranged(mean), self._arranged(root(variance), sign=False)

    def _arranged(self, values: Tensor, sign: bool = True) -> Tensor:
        """Pick reward and costs from the model's outputs, ``(*b, outputs, q)``."""
        scale = (self.scale if sign else self.scale.abs()).to(values).unsqueeze(-1)
        return values.index_select(-2, self.place.to(values.device)) * scale

    def _noise(
        self, before: Tensor, posterior: Moments, noise: Tensor | None
    ) -> Tensor:
        """Return the noise's variance at ``before``, ``(*b, n - 1, outputs)``."""
        mean = posterior.mean[..., :-1, :]
        if noise is not None:
            return noise.to(mean).expand_as(mean)
        with small_variances():
            noisy: Any = self.model.posterior(before, observation_noise=True)
            lam: Tensor = noisy.variance - posterior.variance[..., :-1, :]
            lam = lam.clamp_min(0)
        if checks.readable() and not bool(torch.isfinite(lam).all()):
            raise CBanditError(
                "noise cannot be had from the model, which has data of infinite "
                "variance: give noise=, the variance of an observation"
            )
        return lam

    def _finished(self, estimate: Tensor) -> tuple[Tensor, Tensor]:
        """Subtract thresholds, divide by units and clip; return reward and costs."""
        tau = pad(self.thresholds, (1, 0)).to(estimate)  # 0 for the reward
        values = estimate - tau.unsqueeze(-1)
        if self.units is not None:
            values = values / self.units.to(values).unsqueeze(-1)
        values = self._clipped(values)
        return values[..., 0, :], values[..., 1:, :]

    def _clipped(self, estimate: Tensor) -> Tensor:
        return estimate

    # -- arguments ---------------------------------------------------------------------

    def _hold(self, name: str, value: Tensor | None) -> None:
        """Register a buffer on the model's device."""
        device = next((p.device for p in self.model.parameters()), None)
        self.register_buffer(name, None if value is None else value.clone().to(device))

    def _check_batch(self, name: str, lead: torch.Size) -> None:
        """Raise unless the shape ``lead`` fits the model's batch shape."""
        try:
            batch = self.model.batch_shape
        except NotImplementedError:
            batch = None
        if batch is None:  # not every model says
            return
        try:
            fits = torch.broadcast_shapes(lead, batch).numel() == batch.numel()
            fits = fits and len(lead) <= max(1, len(batch))
        except RuntimeError:
            fits = False
        if not fits:
            raise CBanditError(
                f"{name} must be the same for all points, or lead with the model's "
                f"batch shape {tuple(batch)}; got {tuple(lead)}"
            )

    def _costs(self, name: str, value: Tensor) -> Tensor:
        """Return ``value`` of shape ``(m,)`` or ``(*b, m)``; a number is expanded."""
        if value.dim() == 0:
            return value.expand(self.m)
        if value.shape[-1] != self.m:
            raise CBanditError(
                f"{name} must be a number or have shape (m,) or (*batch, m) with m = "
                f"{self.m}, for the model has a reward and {self.m} costs; got "
                f"{tuple(value.shape)}"
            )
        self._check_batch(name, value.shape[:-1])
        return value

    def _functions(
        self, name: str, value: object, cost_name: str, costs: object
    ) -> Tensor:
        """Join values of the reward and of the costs to ``(*b, 1 + m)``."""
        first = checks.tensor(name, value, graph=True).unsqueeze(-1)
        self._check_batch(name, first.shape[:-1])
        if costs is None:
            return first.expand(*first.shape[:-1], 1 + self.m)
        others = self._costs(cost_name, checks.tensor(cost_name, costs, graph=True))
        try:
            batch = torch.broadcast_shapes(first.shape[:-1], others.shape[:-1])
        except RuntimeError:
            raise CBanditError(
                f"{name} and {cost_name} must have shapes (*batch,) and (*batch, m); "
                f"got {tuple(first.shape[:-1])} and {tuple(others.shape)}"
            ) from None
        return torch.cat([first.expand(*batch, 1), others.expand(*batch, self.m)], -1)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        *rest: object,
        **named: object,
    ) -> None:
        # make room for as many pending points as the state holds
        held = state_dict.get(prefix + "X_pending")
        room = None if held is None else torch.empty_like(held).to(self.width.device)
        self.register_buffer("X_pending", room)
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)


def soft(values: Tensor, temperature: Tensor) -> Tensor:
    """Return a smooth approximation of ``[values]_+``."""
    return temperature * softplus(values / temperature)


def _units(units: object, count: int) -> Tensor:
    """Return the units of ``count`` functions."""
    value = checks.positive("units", units, graph=True)
    if tuple(value.shape) != (count,):
        raise CBanditError(
            f"units must have shape (1 + m,) = {(count,)}, the reward's first; got "
            f"{tuple(value.shape)}"
        )
    return value


def one_or_each(name: str, value: Tensor, count: int) -> Tensor:
    """Return ``value``, a number or one per output, expanded to ``(count,)``."""
    if value.dim() and tuple(value.shape) != (count,):
        raise CBanditError(
            f"{name} must be a number or have shape {(count,)}; got "
            f"{tuple(value.shape)}"
        )
    return value.expand(count)
