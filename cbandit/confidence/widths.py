"""Formulas of exploration widths ``beta``, and schedules for users."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError


def rkhs_width(
    norm: Tensor,
    subgaussian: Tensor,
    gain: Tensor,
    delta: float,
    functions: int = 2,
    noise: Tensor | None = None,
    tight: bool = False,
) -> Tensor:
    """Return ``B + R / sqrt(noise) sqrt(2 gain + 2 ln(functions / delta))``.

    It holds for every likelihood variance ``noise``. With ``tight`` it is the square
    root of the sum of both terms' squares (Flynn & Reeb, 2024), not their sum. Without
    ``noise`` it has the form of Chowdhury & Gopalan (2017), ``B + R sqrt(2 (gain + 1 +
    ln(functions / delta)))``, a guarantee for a likelihood variance of ``1 +
    2/T`` and a heuristic for less.
    """
    log = math.log(functions / delta)
    if noise is None:
        return torch.addcmul(norm, subgaussian, (gain + (1 + log)).mul_(2).sqrt_())
    scale, root = subgaussian / noise.sqrt(), (gain + log).mul_(2).sqrt_()
    if tight:
        return torch.hypot(norm.expand_as(root), scale * root)
    return torch.addcmul(norm, scale, root)


def sketched_width(
    norm: Tensor,
    subgaussian: Tensor,
    dimension: Tensor,
    mass: Tensor,
    noise: Tensor,
    delta: float,
) -> Tensor:
    """Return the width around a Nystrom sketch (Calandriello et al. 2019).

    It is ``(1 + sqrt(2)) B + (2 R / sqrt(lam)) sqrt(3 (1 + ln(1 + mass)) d +
    ln(1 /
    delta))``, the paper's with accuracy ``1/2``, in units of the belief's deviation.
    ``d`` is the effective dimension, the sum of the sketch's ``var(x_s) / lam`` over
    past rounds; ``mass`` is the sum of ``k(x_s, x_s) / lam``. The paper has
    ``ln(kappa^2 t)`` instead of ``1 + ln(1 + mass)``. That bounds the information gain
    only for ``lam`` near 1; this bounds it for every ``lam``.
    """
    spent = 3 * (1 + torch.log1p(mass)) * dimension - math.log(delta)
    scale = 2 * subgaussian / noise.sqrt()
    return (1 + math.sqrt(2)) * norm + scale * spent.sqrt()


def linear_width(
    t: int,
    dim: int,
    subgaussian: float,
    ridge: float,
    norm: float,
    length: float,
    delta: float,
) -> float:
    """Return ``R sqrt(d ln((1 + (t-1) L^2 / lam) / delta)) + sqrt(lam) S``."""
    grown = (1 + (t - 1) * length**2 / ridge) / delta
    return subgaussian * math.sqrt(dim * math.log(grown)) + math.sqrt(ridge) * norm


def count_width(counts: Tensor, subgaussian: float, delta: float) -> Tensor:
    """Return ``R sqrt(2 ln(1/delta) / T_a)``, with ``T_a`` at least 1."""
    return subgaussian * (2 * math.log(1 / delta) / counts.clamp_min(1)).sqrt()


class Constant:
    """A width that is the same in every round."""

    def __init__(self, beta: Any) -> None:
        self.beta = checks.nonnegative("beta", beta, graph=True)

    __getstate__ = checks.numbers_of

    def __call__(self, t: int, gain: Tensor) -> Tensor:
        """Return ``beta``, whatever the round."""
        return self.beta

    def __repr__(self) -> str:
        return f"Constant({self.beta.tolist()})"


class RKHS:
    """A schedule by theory, for a function of RKHS norm at most ``norm``.

    Args:
        norm: ``B``, a number or ``(*trials,)``; in ``cost_beta`` also one number a
            cost, ``(m,)`` or ``(*trials, m)``.
        subgaussian: ``R`` of the noise, in the same shapes.
        delta: the share of runs that may leave the confidence band.
        form: ``"any-lam"``, ``B + (R / sqrt(lam)) sqrt(2 gain + 2 ln(c / delta))``, a
            guarantee for every likelihood variance ``lam``; ``"tight"``, ``sqrt(B^2 +
            (R^2 / lam) (2 gain + 2 ln(c / delta)))`` (Flynn and Reeb, 2024), also a
            guarantee for every ``lam``, and up to 29 % narrower; or ``"small-lam"``,
            ``B + R sqrt(2 (gain + 1 + ln(c / delta)))``, which the papers run. The last
            is a guarantee for ``lam = 1 + 2/T`` and a heuristic for smaller ones; a
            policy warns once if its noise is below 0.5. ``c`` is the number of
            functions, ``m + 1``, or more in policies that say so.
            :class:`~cbandit.Sliding` and :class:`~cbandit.Delayed` have other formulas,
            given there; :class:`~cbandit.Delayed` does not take ``"tight"``.

    Example:
        >>> import cbandit as cb
        >>> explore = cb.UCB(cb.RKHS(norm=1.0, subgaussian=0.1))
    """

    def __init__(
        self, norm: Any, subgaussian: Any, delta: float = 0.1, form: str = "any-lam"
    ) -> None:
        self.norm = checks.nonnegative("norm", norm, graph=True)
        self.subgaussian = checks.nonnegative("subgaussian", subgaussian, graph=True)
        self.delta = checks.share("delta", delta)
        self.form: str = checks.one_of("form", form, "any-lam", "tight", "small-lam")

    __getstate__ = checks.numbers_of

    @property
    def needs_noise(self) -> bool:
        """Whether the width depends on the likelihood variance."""
        return self.form != "small-lam"

    def for_any_noise(self) -> RKHS:
        """Return the same schedule in the form that holds for any noise."""
        return RKHS(self.norm, self.subgaussian, self.delta)

    def __call__(
        self,
        t: int,
        gain: Tensor,
        functions: int = 2,
        noise: Tensor | None = None,
        norm: Tensor | None = None,
        subgaussian: Tensor | None = None,
    ) -> Tensor:
        """Return the width in round ``t``, with other ``norm`` or ``subgaussian``."""
        if self.needs_noise and noise is None:
            raise CBanditError(
                f"form={self.form!r} needs the likelihood variance: call it with "
                "noise=, or hand it to a policy, which knows"
            )
        return rkhs_width(
            self.norm if norm is None else norm,
            self.subgaussian if subgaussian is None else subgaussian,
            gain,
            self.delta,
            functions,
            noise if self.needs_noise else None,
            self.form == "tight",
        )

    def __repr__(self) -> str:
        return (
            f"RKHS(norm={self.norm.tolist()}, subgaussian={self.subgaussian.tolist()}, "
            f"delta={self.delta}, form={self.form!r})"
        )


class BayesWidth:
    """The width ``sqrt(2 ln((m + 1) N pi^2 t^2 / (6 delta)))`` for draws of the prior.

    With probability ``1 - delta`` all functions stay within it at all ``N`` actions in
    all rounds (N. Srinivas et al., 2010).
    """

    def __init__(self, functions: int, size: int, delta: float) -> None:
        self._scale = functions * size * math.pi**2 / (6 * delta)

    def __call__(self, t: int, gain: Tensor) -> float:
        """Return the width of round ``t``."""
        return math.sqrt(2 * math.log(self._scale * t * t))
