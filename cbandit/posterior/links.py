"""Binary and counted outcomes: a Gaussian function behind a link.

A binary outcome has the probability ``Phi(f)`` (probit), a count the rate ``exp(f)``
times its exposure, where ``f`` is the Gaussian process that engines keep. Engines get a
Gaussian *stand-in* for an observation: the normal reading of ``f`` after which the
belief at its action has the exact mean and variance (moment matching).

If a policy has turned a function's sign, ``f`` is turned too: the value is
``-Phi(-f)`` or ``-exp(-f)``, which also rises with ``f``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "BINARY",
    "COUNT",
    "Link",
    "StandIn",
    "normal_share",
    "posterior_moments",
]

BINARY, COUNT = "binary", "count"
STEPS = 60  # of Newton's method, safeguarded by bisection; mostly it needs five
NODES = 512
DROP = 40.0  # the density is ignored where its log is this far below the mode's
GAUSS = 20  # nodes for a smooth integral over a part of [0, 1]
Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]
Gap = Callable[[Tensor, Tensor], Tensor]
NEVER = 1e-300  # a smaller curvature carries no information


class StandIn(NamedTuple):
    """Normal readings of the latent function that stand in for outcomes.

    Args:
        target: the reading.
        precision: one over the reading's variance; 0 if an outcome says nothing.
    """

    target: Tensor
    precision: Tensor


@dataclass(frozen=True)
class Link:
    """The map from a latent function to a probability or a rate.

    Args:
        outcome: ``"binary"`` or ``"count"``.
        sense: -1 if the policy has turned the function's sign, else 1.
    """

    outcome: str
    sense: float = 1.0

    def value(self, latent: Tensor) -> Tensor:
        """Return the probability or rate of latent values, turned like the function."""
        turned = latent if self.sense > 0 else -latent
        out: Tensor
        if self.outcome == BINARY:
            out = normal_share(turned)
        else:
            out = turned.exp()
        return out if self.sense > 0 else -out

    def latent(self, value: Tensor) -> Tensor:
        """Return the latent value of a probability or rate; it may be infinite."""
        plain = self.sense * value
        out: Tensor
        if self.outcome == BINARY:
            out = torch.special.ndtri(plain.clamp(0.0, 1.0))
        else:
            out = plain.clamp_min(0.0).log()
        return out if self.sense > 0 else -out

    def center(self, value: Tensor, variance: Tensor) -> Tensor:
        """Return the latent mean whose expected probability or rate is ``value``.

        ``variance`` is the latent function's variance.
        """
        latent = self.latent(value)
        if self.outcome == BINARY:
            return latent * (1 + variance).sqrt()
        return latent - self.sense * 0.5 * variance

    def moments(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of the probability or rate of ``N(mean, std^2)``.

        The variance of ``Phi(f)`` is twice a difference of Owen's T functions, which is
        an integral of a positive function: nothing cancels.
        """
        var, turned = std.square(), self.sense * mean
        if self.outcome == COUNT:
            # beyond this a rate and its deviation are infinite
            rate = (turned + 0.5 * var).exp()
            return self.sense * rate, rate * var.expm1().sqrt()
        height = turned / (1 + var).sqrt()
        chance = normal_share(height)
        # from a = 1 / sqrt(1 + 2 v) to 1; this form of the distance keeps all digits
        root = (1 + 2 * var).sqrt()
        length = 2 * var / (root * (root + 1))
        half = -0.5 * height.square()
        total = torch.zeros_like(half)
        for node, weight in _gauss():
            x2 = (1 - node * length).square()
            total = total + weight * (half * (1 + x2)).exp() / (1 + x2)
        return self.sense * chance, (total * length / math.pi).sqrt()

    def bound(self, mean: Tensor, std: Tensor, deviates: float) -> Tensor:
        """Return one outcome's mean plus ``deviates`` deviations, within its range.

        The latent function is ``N(mean, std^2)``.
        """
        value, spread = self.moments(mean, std)
        if self.outcome == BINARY:  # an uncertain chance acts like its mean
            low = min(self.sense, 0.0)
            return (value + deviates * self.unit(value)).clamp(low, low + 1)
        return value + deviates * (spread.square() + self.sense * value).sqrt()

    def unit(self, value: Tensor) -> Tensor:
        """Return the deviation of one outcome, whose mean is ``value``."""
        plain = self.sense * value
        variance = plain * (1 - plain) if self.outcome == BINARY else plain
        return variance.clamp_min(torch.finfo(value.dtype).tiny).sqrt()

    def pooled(self, total: Tensor, tries: Tensor) -> Tensor:
        """Return the mean outcome, moved slightly away from the ends of its range."""
        if self.outcome == BINARY:
            share = (total + 0.5) / (tries + 1)
        else:  # as if there were half an event more
            share = torch.where(tries > 0, (total + 0.5) / tries.clamp_min(1e-300), 1.0)
        return self.sense * share

    def information(self, mean: Tensor) -> Tensor:
        """Return the precision of the next outcome's stand-in at ``mean``."""
        turned = self.sense * mean
        if self.outcome == COUNT:
            return turned.exp()
        hazard = _hazard(turned)
        return hazard * _hazard(-turned)

    def stand_in(
        self, share: Tensor, tries: Tensor, mean: Tensor, var: Tensor
    ) -> StandIn:
        """Return the normal reading that stands in for outcomes under ``N(mean, var)``.

        Conditioning on it gives the mean and variance of the exact posterior. All
        arguments have one shape.

        Args:
            share: successes over tries, or events over exposure.
            tries: the tries or the exposure, above 0.
            mean: the latent function's mean before, turned if the function is.
            var: the latent function's variance before.
        """
        turned = self.sense * mean
        if self.outcome == BINARY:
            slope, curve = _one_trial(share, turned, var)
            several = tries != 1
            if bool(several.any()):
                rest = (part[several] for part in (share, tries, turned, var))
                slope[several], curve[several] = self._many(*rest)
        else:
            slope, curve = self._many(share, tries, turned, var)
        # nothing to learn, or less than rounding
        told = (curve > NEVER) & slope.isfinite() & curve.isfinite()
        curve = torch.where(told, curve, 1.0)
        precision = torch.where(told, curve / (1 - var * curve).clamp_min(1e-12), 0.0)
        target = torch.where(told, turned + slope / curve, turned)
        return StandIn(self.sense * target, precision)

    def _many(
        self, share: Tensor, tries: Tensor, mean: Tensor, var: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return slope and minus curvature of the log evidence, by quadrature."""
        after, variance = posterior_moments(self.outcome, share, tries, mean, var)
        return (after - mean) / var, ((var - variance) / var.square()).clamp_min(0)


def _one_trial(share: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Return slope and minus curvature of ``log E Phi(+-f)`` along the mean."""
    sign, total = 2 * share - 1, 1 + var
    z = sign * mean / total.sqrt()
    hazard = _hazard(z)
    # far below 0 the hazard is -z + 1 / -z, so z + hazard would cancel
    far = z < -1e4
    near = hazard * (z + hazard)
    curve = torch.where(far, 1 - z.square().clamp_min(1.0).reciprocal(), near)
    return sign * hazard / total.sqrt(), curve.clamp(0.0, 1.0) / total


def normal_share(z: Tensor) -> Tensor:
    """Return ``Phi(z)`` with all its digits, however small it is.

    ``torch.special.ndtr`` computes ``(1 + erf) / 2``, which rounds to multiples of
    6e-17, and in float32 of 3e-8. On processors it takes half of the time of ``erfc``,
    so that only small values need the latter.
    """
    share: Tensor
    if z.dtype != torch.float64 or z.device.type != "cpu" or z.requires_grad:
        share = 0.5 * torch.special.erfc(-math.sqrt(0.5) * z)
        return share
    share = torch.special.ndtr(z)
    if z.numel() and float(z.amin()) < -3:
        small = z < -3
        share[small] = 0.5 * torch.special.erfc(-math.sqrt(0.5) * z[small])
    return share


def _hazard(z: Tensor) -> Tensor:
    """Return ``phi(z) / Phi(z)``, for any ``z``."""
    scaled: Tensor = torch.special.erfcx(-z / math.sqrt(2))
    return math.sqrt(2 / math.pi) / scaled


def posterior_moments(
    outcome: str, share: Tensor, tries: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of ``N(mean, var)`` given outcomes, to nine digits.

    The density is log-concave. Newton's method finds its mode, then the points left and
    right of it where it is negligible; the trapezoidal rule between them converges
    faster than any power of the number of nodes. (Gauss-Hermite nodes around the mode
    would miss the long side of a skewed density.)

    Args:
        outcome: ``"binary"`` or ``"count"``.
        share: successes over tries, or events over exposure.
        tries: the tries, or the exposure.
        mean: the latent function's mean before.
        var: its variance before.
    """
    binary = outcome == BINARY
    yes, no = share * tries, (1 - share) * tries

    def slopes(f: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first derivative, and minus the second, of the log density."""
        if binary:
            up, down = _hazard(f), _hazard(-f)
            first = yes * up - no * down
            second = yes * _bend(f, up) + no * _bend(-f, down)
        else:
            rate = tries * f.exp()
            first, second = yes - rate, rate
        return first - (f - mean) / var, second + 1 / var

    def gap(f: Tensor, of: Tensor) -> Tensor:
        """Return the log density at ``f`` less that at ``of``."""
        change: Tensor
        if binary:
            log = torch.special.log_ndtr
            change = yes * (log(f) - log(of)) + no * (log(-f) - log(-of))
        else:
            change = yes * (f - of) - tries * of.exp() * (f - of).expm1()
        return change - ((f - mean).square() - (of - mean).square()) / (2 * var)

    mode = _mode(slopes, mean, *_bracket(outcome, share, tries, mean, var))
    width = slopes(mode)[1].rsqrt()
    left, right = (_reach(gap, mode, side * width) for side in (-1.0, 1.0))
    grid = torch.linspace(0, 1, NODES, dtype=mean.dtype, device=mean.device)
    yes, no, tries = (part.unsqueeze(-1) for part in (yes, no, tries))
    mean, var = mean.unsqueeze(-1), var.unsqueeze(-1)
    top, step = mode.unsqueeze(-1), (right - left).unsqueeze(-1)
    nodes = left.unsqueeze(-1) + step * grid  # from the mode
    weight = gap(top + nodes, top).exp()
    weight = weight / weight.sum(-1, keepdim=True)
    shift = (weight * nodes).sum(-1)
    spread = (weight * (nodes - shift.unsqueeze(-1)).square()).sum(-1)
    return mode + shift, spread


def _bracket(
    outcome: str, share: Tensor, tries: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, Tensor]:
    """Return bounds of the mode: the prior's mean, and what outcomes alone say.

    If outcomes alone say infinity, the bound is a point where the prior outweighs them.
    """
    if outcome == BINARY:
        likeliest = torch.special.ndtri(share)
        far = (2 * (2 * tries * var + math.e).log()).sqrt()
        ends = torch.minimum(mean - 1, -far), torch.maximum(mean + 1, far)
    else:
        likeliest = share.log()
        low = torch.minimum(mean - 1, -(tries * var).log())
        ends = low, torch.where(share > 0, likeliest, mean)
    other = likeliest.maximum(ends[0]).minimum(ends[1])
    return torch.minimum(mean, other), torch.maximum(mean, other)


def _bend(f: Tensor, hazard: Tensor) -> Tensor:
    """Return minus the second derivative of ``log Phi``, within [0, 1]."""
    return (hazard * (f + hazard)).clamp(0.0, 1.0)


def _mode(slopes: Slopes, start: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return where a falling slope is 0 between two bounds, by safeguarded Newton."""
    mode, before = start, high - low
    first, second = slopes(mode)
    for _ in range(STEPS):
        low = torch.where(first > 0, mode, low)
        high = torch.where(first < 0, mode, high)
        step = first / second
        # bisect where Newton leaves the bracket, or does not halve its step
        newton = (2 * step.abs() <= before) & (mode + step > low) & (mode + step < high)
        new = torch.where(newton, mode + step, 0.5 * (low + high))
        new = torch.where(first == 0, mode, new)
        before, mode = (new - mode).abs(), new
        if bool((before <= 1e-12 * (1 + mode.abs())).all()):
            break
        first, second = slopes(mode)
    return mode


def _reach(gap: Gap, mode: Tensor, step: Tensor) -> Tensor:
    """Return the distance from the mode at which a density is negligible, one side."""
    inner, outer = torch.zeros_like(step), 8 * step
    for _ in range(STEPS):
        short = gap(mode + outer, mode) > -DROP
        if not bool(short.any()):
            break
        inner = torch.where(short, outer, inner)
        outer = torch.where(short, 2 * outer, outer)
    for _ in range(4):
        middle = 0.5 * (inner + outer)
        short = gap(mode + middle, mode) > -DROP
        inner = torch.where(short, middle, inner)
        outer = torch.where(short, outer, middle)
    return outer


def _gauss() -> list[tuple[float, float]]:
    """Return the nodes and weights of Gauss-Legendre quadrature on [0, 1]."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(GAUSS)
    return list(
        zip((0.5 * (nodes + 1)).tolist(), (0.5 * weights).tolist(), strict=True)
    )
