"""Draws of the prior over an action set, exact where that is affordable.

* a small set: a root of its covariance, cut where the rest is below rounding;
* a product grid: one root per axis, so a draw is ``R_1 Z R_2^T``;
* other sets: random Fourier features, an approximate prior (``FEATURES`` of them).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.history import History

__all__ = ["FEATURES", "Features", "Root", "check_features", "correction", "prior_root"]

FEATURES = 1024


def prior_root(covariance: Tensor, tolerance: float = 1e-15) -> Tensor:
    """``L (*b, N, r)`` with ``L L^T`` the covariance ``(*b, N, N)``.

    Eigenvectors whose eigenvalue is below ``tolerance`` of the largest are left out:
    together they are worth less than rounding. In a batch each covariance leaves out
    its own; columns it lacks are 0.
    """
    values, vectors = torch.linalg.eigh(covariance.double())
    least = tolerance * values[..., -1:].clamp_min(0)
    kept = values > least
    rank = max(1, int(kept.sum(-1).max()))
    values = torch.where(kept, values, 0.0)[..., -rank:]
    root: Tensor = vectors[..., -rank:] * values.sqrt().unsqueeze(-2)
    return root


class Root:
    """A root ``R (1 or T, n, r)`` of a covariance, ``R R^T``, and products with it.

    Where the covariance is the same read from both ends (a stationary kernel on an axis
    that is), its eigenvectors are even or odd: the halves of a product are the sum and
    the difference of two products of half the size, which halves the work.
    """

    def __init__(
        self, matrix: Tensor, halves: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.matrix, self._halves = matrix, halves

    @classmethod
    def of(cls, covariance: Tensor, mirrored: bool) -> Root:
        """A root of ``covariance (1 or T, n, n)``, ``mirrored`` or not."""
        n = covariance.shape[-1]
        turned = covariance.flip(-1, -2)
        off = (covariance - turned).abs().max()
        if n < 2 or not mirrored or bool(off > 1e-6 * covariance.abs().max()):
            return cls(prior_root(covariance))
        covariance = (covariance + turned) / 2  # but for rounding it was
        half, rest = n // 2, n - n // 2  # a middle action is even
        own = covariance[..., :rest, :rest]
        across = covariance.flip(-1)[..., :rest, :rest]
        weight = torch.ones(rest, dtype=covariance.dtype, device=covariance.device)
        weight[half:] = 0.5**0.5
        # covariances of (f(x) + f(-x)) / sqrt(2) and (f(x) - f(-x)) / sqrt(2)
        even = prior_root((own + across) * weight * weight.unsqueeze(-1))
        odd = prior_root((own - across)[..., :half, :half])
        even = even * 0.5**0.5 / weight.unsqueeze(-1)
        odd = odd * 0.5**0.5
        top = torch.cat([even[..., :half, :], odd], -1)
        bottom = torch.cat([even[..., :half, :], -odd], -1).flip(-2)
        nothing = odd.new_zeros(*odd.shape[:-2], rest - half, odd.shape[-1])
        middle = torch.cat([even[..., half:, :], nothing], -1)
        matrix = torch.cat([top, middle, bottom], -2)
        # of a thin root a product as it stands takes less than putting halves together
        return cls(matrix, (even, odd) if 2 * matrix.shape[-1] > n else None)

    def to(self, dtype: torch.dtype) -> Root:
        """In another dtype."""
        halves = self._halves
        if halves is not None:
            halves = halves[0].to(dtype), halves[1].to(dtype)
        return Root(self.matrix.to(dtype), halves)

    def times(self, right: Tensor) -> Tensor:
        """``R right``, ``(T, F, n, c)``, of ``right (T, F, r, c)``."""
        if self._halves is None:
            return self.matrix.unsqueeze(1) @ right
        even, odd = (half.unsqueeze(1) for half in self._halves)
        rank, half = even.shape[-1], odd.shape[-2]
        same, other = even @ right[..., :rank, :], odd @ right[..., rank:, :]
        shape = (*same.shape[:-2], self.matrix.shape[-2], same.shape[-1])
        out = same.new_empty(shape)
        torch.add(same[..., :half, :], other, out=out[..., :half, :])
        out[..., half : same.shape[-2], :] = same[..., half:, :]
        out[..., same.shape[-2] :, :] = (same[..., :half, :] - other).flip(-2)
        return out


class Features:
    """One draw of random features: an approximate prior path for each function.

    Frequencies come from the kernel's spectral density (normal for the RBF, Student-t
    for Matern); a linear kernel has exact features. They are drawn anew every round.

    Args:
        covariance: a product of closed forms.
        streams: the draws, one stream a trial.
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
            assert covariance.forms is not None
            self.weights = devices.put(weights, covariance.forms[0].scale.device)
            return
        count = FEATURES // 2
        total: Tensor | float = 0.0
        assert covariance.forms is not None
        for form in covariance.forms:
            normal = _leading(streams.normal(dim, count))
            if form.kind != "rbf":
                freedom = {"matern12": 1, "matern32": 3, "matern52": 5}[form.kind]
                draws = _leading(streams.normal(freedom, count))
                chi = draws.square().mean(-2, keepdim=True)
                normal = normal / chi.sqrt()
            normal = devices.put(normal, form.scale.device)
            total = total + normal * form.scale.unsqueeze(-1).to(normal)
        assert isinstance(total, Tensor)
        self.frequencies = total  # T x d x count
        weights = _leading(streams.normal(2 * count, functions)) / math.sqrt(count)
        self.weights = devices.put(weights, total.device)

    def __call__(self, x: Tensor) -> Tensor:
        """The paths at ``x``, ``(n, d)`` or ``(T, n, d)``: ``(T, F, n)``."""
        weights = self.weights.to(x)
        inputs = self.covariance.inputs(x).to(x.dtype)
        if self.frequencies is None:
            assert self.covariance.forms is not None
            scale = self.covariance.forms[0].scale.unsqueeze(-2).to(x)
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


def correction(history: History, tried: Tensor, streams: Streams) -> Tensor:
    """What makes a prior draw a posterior one, less its mean: weights ``(T, U, F)``.

    Pathwise (Matheron): the draw ``f`` less ``K (K + P^-1)^-1 (f(x_u) + e)``, with
    ``e ~ N(0, P^-1)``; ``tried (T, F, U)`` is the draw at the tried actions.
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


def check_features(covariance: Covariance) -> None:
    """An error, unless the kernel has features."""
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
    """Draws with a trials axis, where there is none too."""
    return draws if draws.dim() == 3 else draws.unsqueeze(0)
