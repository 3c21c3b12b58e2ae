"""Draws over any set or box: random Fourier features, corrected at what was tried.

The prior is approximated by ``FEATURES`` features; the correction is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit._core.threads import on_one_thread
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.observations import History

FEATURES = 1024


class Features:
    """A draw of random features: one approximate prior path for each function.

    Frequencies come from the kernel's spectral density (normal for the RBF, Student-t
    for Matern); a linear kernel has exact features. They are drawn anew every round.

    Args:
        covariance: a product of closed forms.
        streams: the random source, one stream a trial.
        functions: how many independent paths, ``F``.
    """

    def __init__(
        self, covariance: Covariance, streams: Streams, functions: int
    ) -> None:
        check_features(covariance)
        self.covariance = covariance
        dim = covariance.dim
        if covariance.linear:
            self.frequencies = None
            weights = _leading(streams.normal(dim, functions))
            self.weights = devices.put(weights, covariance.closed()[0].scale.device)
            return
        count = FEATURES // 2
        total = torch.zeros((), dtype=torch.float64)
        for form in covariance.closed():
            normal = _leading(streams.normal(dim, count))
            if form.kind != "rbf":
                freedom = {"matern12": 1, "matern32": 3, "matern52": 5}[form.kind]
                draws = _leading(streams.normal(freedom, count))
                chi = draws.square().mean(-2, keepdim=True)
                normal = normal / chi.sqrt()
            normal = devices.put(normal, form.scale.device)
            total = total + normal * form.scale.unsqueeze(-1).to(normal)
        self.frequencies = total  # T x d x count
        weights = _leading(streams.normal(2 * count, functions)) / math.sqrt(count)
        self.weights = devices.put(weights, total.device)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the paths ``(T, F, n)`` at ``x``, ``(n, d)`` or ``(T, n, d)``."""
        weights = self.weights.to(x)
        inputs = self.covariance.inputs(x).to(x.dtype)
        if self.frequencies is None:
            scale = self.covariance.closed()[0].scale.unsqueeze(-2).to(x)
            paths = ((inputs * scale) @ weights).mT
        else:
            phase = inputs @ self.frequencies.to(x)
            # features side by side would be copied first: five times the time
            even, odd = weights.chunk(2, -2)
            paths = (phase.cos() @ even + phase.sin() @ odd).mT
        amplitude = self.covariance.amplitude
        if isinstance(amplitude, Tensor):
            return paths * amplitude.sqrt().to(paths)[..., None, None]
        return paths * math.sqrt(amplitude)


@on_one_thread
def correction(history: History, tried: Tensor, streams: Streams) -> Tensor:
    """Return weights ``(T, U, F)`` that turn a prior draw into one of the posterior.

    The result has mean 0. By Matheron's rule it is the draw ``f`` less ``K (K +
    P^-1)^-1 (f(x_u) + e)``, with ``e ~ N(0, P^-1)``; ``tried (T, F, U)`` is the draw at
    the tried actions.
    """
    trials, functions, used = tried.shape
    if used == 0:
        return history.points.new_zeros(trials, used, functions)
    system = history.system()
    counts = [len(keys) for keys in history.keys()]  # noqa: SIM118
    noise = devices.put(streams.ragged_normal(counts, functions), tried.device)
    precision = history.precision[:, :used].unsqueeze(-1)
    scale = torch.where(precision > 0, precision.rsqrt(), 0.0)
    noise = noise.view(trials, used, functions) * scale
    return system.solve(tried.mT.double() + noise)


def pathwise(
    history: History, streams: Streams, functions: int
) -> Callable[[Tensor], Tensor]:
    """Draw from the posterior less its mean, as a differentiable function of ``x``.

    The prior is approximated by random features, the update is exact.
    """
    points = history.points[:, : history.used]
    features = Features(history.covariance, streams, functions)
    weights = correction(history, features(points), streams)

    def path(x: Tensor) -> Tensor:
        cross = history.covariance.cross(x, points)
        return features(x) - (cross @ weights).mT

    return path


def check_features(covariance: Covariance) -> None:
    """Raise unless the kernel has random features."""
    forms = covariance.forms
    if forms is not None and (
        covariance.linear or all(form.kind != "linear" for form in forms)
    ):
        return
    raise CBanditError(
        "Thompson draws over this set need random features, which exist for RBF, "
        "Matern and linear kernels (scaled, or products of the first two); got "
        f"{type(covariance.kernel).__name__}. Use engine='joint' (N up to a few "
        "thousand), a ProductGrid with a kernel that factors, or cb.UCB / cb.Rand"
    )


def _leading(draws: Tensor) -> Tensor:
    """Return draws with a leading axis of trials, added where there is none."""
    return draws if draws.dim() == 3 else draws.unsqueeze(0)
