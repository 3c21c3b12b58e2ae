"""Draws over any set or box, by random Fourier features and an exact correction.

The prior is approximated by ``FEATURES`` features; the update with data is exact.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit._core.threads import on_one_thread
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Covariance, Term
from cbandit.posterior.history import History

FEATURES = 1024


class Waves(NamedTuple):
    """Paths of ``F`` functions as sums of ``k`` random waves.

    Args:
        frequencies: ``(T, d, k)``.
        cosines: the weights of the cosines, ``(T, k, F)``.
        sines: the weights of the sines, likewise.
        origin: the point that points are taken relative to, ``(1, 1, d)``.
    """

    frequencies: Tensor
    cosines: Tensor
    sines: Tensor
    origin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return the paths ``(T, F, n)`` at points, ``(n, d)`` or ``(T, n, d)``."""
        phase = (x - self.origin).to(self.frequencies) @ self.frequencies
        # features next to each other would be copied first, which takes five times as
        # long
        return (phase.cos() @ self.cosines + phase.sin() @ self.sines).mT

    def of(self, functions: slice) -> Waves:
        """Return the paths of the functions in a slice."""
        cosines, sines = self.cosines[..., functions], self.sines[..., functions]
        return self._replace(cosines=cosines, sines=sines)

    def to(self, dtype: torch.dtype) -> Waves:
        """Return the waves in another dtype; points less the origin stay exact."""
        frequencies, cosines, sines = (part.to(dtype) for part in self[:3])
        return Waves(frequencies, cosines, sines, self.origin)

    def along(self, low: Tensor, rate: Tensor) -> Waves:
        """Return the waves as functions of ``x`` where points are ``low + rate x``."""
        origin = (self.origin - low) / rate
        frequencies = self.frequencies * rate.unsqueeze(-1)
        return self._replace(frequencies=frequencies, origin=origin)


class Plane(NamedTuple):
    """Linear and constant paths of ``F`` functions, exact in law.

    Args:
        slopes: ``(T, d, F)``.
        levels: ``(T, F, 1)``.
    """

    slopes: Tensor
    levels: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return the paths ``(T, F, n)`` at points, ``(n, d)`` or ``(T, n, d)``."""
        return (x @ self.slopes).mT + self.levels

    def of(self, functions: slice) -> Plane:
        """Return the paths of the functions in a slice."""
        return Plane(self.slopes[..., functions], self.levels[:, functions])


def waves(
    covariance: Covariance,
    streams: Streams,
    functions: int,
    origin: Tensor | None = None,
) -> Waves | None:
    """Draw paths for the kernel's terms that are stationary and not constant.

    Frequencies come from each term's spectral density: normal for the RBF, Student-t
    for Matern, sums of these for products. For categories, which are whole numbers, a
    frequency is 0 with probability equal to their correlation, else uniform on a
    circle. Every term has equally many frequencies. ``None`` if there is no such term.
    """
    terms = [term for term in _terms(covariance) if term.curved]
    if not terms:
        return None
    count = FEATURES // 2
    frequencies = torch.cat(
        [_frequencies(term, covariance, streams, count) for term in terms], -1
    )
    normal = _leading(streams.normal(2 * frequencies.shape[-1], functions))
    device = frequencies.device
    normal = devices.put(normal / math.sqrt(count), device)
    roots = [devices.put(_root(term), device) for term in terms]
    size = torch.cat([root.expand(-1, count, 1) for root in roots], 1)
    cosines, sines = (part * size for part in normal.chunk(2, 1))
    if origin is None:
        origin = frequencies.new_zeros(1, 1, covariance.dim)
    return Waves(frequencies, cosines, sines, origin)


def plane(covariance: Covariance, streams: Streams, functions: int) -> Plane | None:
    """Draw paths for the linear and constant terms of a kernel; ``None`` if none."""
    terms = [term for term in _terms(covariance) if not term.curved]
    if not terms:
        return None
    zero = torch.zeros(1, 1, 1, dtype=torch.float64, device=covariance.device)
    slopes = zero.expand(-1, covariance.dim, functions)
    levels = zero.expand(-1, functions, -1)
    for term in terms:
        count = covariance.dim if term.forms else 1
        path = _leading(streams.normal(count, functions))
        root = devices.put(_root(term), covariance.device)
        path = devices.put(path, covariance.device) * root
        if term.forms:
            slopes = slopes + path * term.forms[0].scale.unsqueeze(-1)
        else:
            levels = levels + path.mT
    return Plane(slopes, levels)


@on_one_thread
def correction(history: History, tried: Tensor, streams: Streams) -> Tensor:
    """Return weights ``(T, E, F)`` that turn a prior draw into one of the posterior.

    Each weight belongs to an entry of the history's system. The result has mean 0: by
    Matheron's rule it is the draw ``f`` less ``K (K + P^-1)^-1 (f(x_u) + e)``, ``e ~
    N(0, P^-1)``, where ``tried (T, F, U)`` is the draw at the tried actions.
    """
    trials, functions, used = tried.shape
    if used == 0:
        return history.points.new_zeros(trials, used, functions)
    counts = [len(keys) for keys in history.keys()]  # noqa: SIM118
    noise = devices.put(streams.ragged_normal(counts, functions), tried.device)
    precision = history.precision[:, :used].unsqueeze(-1)
    scale = torch.where(precision > 0, precision.rsqrt(), 0.0)
    noise = noise.view(trials, used, functions) * scale
    return history.system().weigh(tried.mT.double() + noise)


@dataclass(frozen=True)
class Pathwise:
    """A draw from a posterior less its mean, a differentiable function of points.

    The prior is approximated by random features; the update is exact.

    Args:
        covariance: the prior covariance.
        waves: the curved part of the prior path over the kernel's inputs, if any.
        plane: the linear and constant part, if any.
        points: the tried actions, ``(T, E, d)``.
        weights: the weights of the correction, ``(T, E, F)``.
    """

    covariance: Covariance
    waves: Waves | None
    plane: Plane | None
    points: Tensor
    weights: Tensor

    @classmethod
    def drawn(cls, history: History, streams: Streams, functions: int) -> Pathwise:
        """Draw a path for each function."""
        covariance, points = history.covariance, history.points[:, : history.used]
        path = cls(
            covariance,
            waves(covariance, streams, functions),
            plane(covariance, streams, functions),
            history.places(history.system()),
            points.new_zeros(0),
        )
        weights = correction(history, path.prior(points), streams)
        return replace(path, weights=weights)

    def of(self, functions: slice) -> Pathwise:
        """Return the draws of the functions in a slice."""
        waves, plane = self.waves, self.plane
        return replace(
            self,
            waves=None if waves is None else waves.of(functions),
            plane=None if plane is None else plane.of(functions),
            weights=self.weights[..., functions],
        )

    def prior(self, x: Tensor) -> Tensor:
        """Return the prior path ``(T, F, n)`` at points ``(n, d)`` or ``(T, n, d)``."""
        inputs = self.covariance.inputs(x)
        parts = [self.waves, self.plane]
        values = [part(inputs) for part in parts if part is not None]
        return functools.reduce(torch.add, values)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the draw ``(T, F, n)`` at points ``(n, d)`` or ``(T, n, d)``."""
        cross = self.covariance.cross(x, self.points)
        return self.prior(x) - (cross @ self.weights).mT


def check_features(covariance: Covariance) -> None:
    """Raise unless the kernel has random features."""
    _terms(covariance)


def has_features(covariance: Covariance) -> bool:
    """Return whether the kernel has random features."""
    terms, unit = covariance.terms, covariance.unit
    whole = None if unit is None else unit.whole

    def known(term: Term) -> bool:
        kinds = [form.kind for form in term.forms]
        if term.apart is not None:  # categories, as whole numbers
            if whole is None or bool((term.apart[..., ~whole] < 1).any()):
                return False
            kinds.append("categories")
        return kinds == ["linear"] or "linear" not in kinds

    return terms is not None and all(map(known, terms))


def _terms(covariance: Covariance) -> list[Term]:
    """Return a kernel's terms; raise if one of them has no random features."""
    terms = covariance.terms
    if terms is None or not has_features(covariance):
        raise CBanditError(
            "Thompson draws over this set need random features, which exist for RBF, "
            "Matern, linear and constant kernels, for categories of a cb.Space with "
            "cb.GP.default, for products of these without linear ones, scaled, and for "
            f"sums; got {type(covariance.kernel).__name__}. Use engine='joint' (N up "
            "to a few thousand), a ProductGrid with a kernel that factors, or cb.UCB / "
            "cb.Rand"
        )
    return terms


def _frequencies(
    term: Term, covariance: Covariance, streams: Streams, count: int
) -> Tensor:
    """Draw frequencies ``(T, d, count)`` from a term's spectral density."""
    total = torch.zeros((), dtype=torch.float64)
    for form in term.forms:
        normal = _leading(streams.normal(covariance.dim, count))
        if form.kind != "rbf":
            freedom = {"matern12": 1, "matern32": 3, "matern52": 5}[form.kind]
            draws = _leading(streams.normal(freedom, count))
            chi = draws.square().mean(-2, keepdim=True)
            normal = normal / chi.sqrt()
        normal = devices.put(normal, form.scale.device)
        total = total + normal * form.scale.unsqueeze(-1).to(normal)
    if term.apart is None:
        return total
    lots = _leading(streams.uniform(2 * covariance.dim, count))
    lot, share = devices.put(lots, term.apart.device).chunk(2, -2)
    turns = torch.where(lot < term.apart.unsqueeze(-1), 0.0, 2 * math.pi * share)
    if covariance.unit is not None:  # inputs are the whole numbers over their span
        turns = turns * covariance.unit.span.unsqueeze(-1)
    return total + turns


def _root(term: Term) -> Tensor:
    """Return the square root of a term's amplitude, ``(1 or T, 1, 1)``."""
    return term.amplitude.sqrt().reshape(-1, 1, 1)


def _leading(draws: Tensor) -> Tensor:
    """Return draws with the trials as first axis, added if missing."""
    return draws if draws.dim() == 3 else draws.unsqueeze(0)
