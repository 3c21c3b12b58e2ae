"""Penalties of costs for Shi and Eryilmaz: ``psi`` is 1 up to 0, convex above."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.log import warn
from cbandit.errors import CBanditError
from cbandit.multipliers import exponential, polynomial

__all__ = ["Penalty", "penalty_of", "warn_of_outgrown"]


@dataclass(frozen=True)
class Penalty:
    """A penalty of costs, and how its multiplier ``kappa`` moves.

    Args:
        psi: the penalty; not used where it is linear.
        linear: whether the penalty is the cost itself and ``kappa`` moves by steps;
            otherwise ``kappa`` moves by factors, and its logarithm is kept, which
            outlives the dtype.
        rate: the step of a linear one.
        still: whether ``kappa`` stays as it is.
    """

    psi: Callable[[Tensor], Tensor]
    linear: bool
    rate: float
    still: bool

    def first(self, kappa: Any) -> Tensor:
        """Return the first multipliers that a user gives; 1, or 0 of a linear one."""
        if self.linear:
            return checks.nonnegative("kappa", 0.0 if kappa is None else kappa)
        return checks.positive("kappa", 1.0 if kappa is None else kappa)

    def kept(self, kappa: Tensor) -> Tensor:
        """Return what is kept of multipliers ``(T, m)``."""
        return kappa if self.linear else kappa.log()

    def kappa(self, kept: Tensor) -> Tensor:
        """Return multipliers from what is kept of them, never infinite."""
        if self.linear:
            return kept.clone()
        return kept.exp().clamp_max(torch.finfo(kept.dtype).max)

    def moved(self, kept: Tensor, mean: Tensor) -> Tensor:
        """Return what is kept after an epoch whose costs were ``mean (T, m)``."""
        if self.still:
            return kept
        if self.linear:
            return (kept + self.rate * mean).clamp_min(0)
        # an epoch of which nothing is known has mean 0, and psi(0) = 1
        return (kept + self.psi(mean).log()).clamp_max(2 * _edge(kept))

    def outgrown(self, kept: Tensor) -> bool:
        """Return whether multipliers have left the dtype."""
        return not self.linear and bool((kept > _edge(kept)).any())

    def charge(self, kept: Tensor, cost: Tensor) -> Tensor:
        """Return ``sum_j kappa_j (psi(c_j) - 1)``, or of linear costs, ``(T, 1)``."""
        charge = cost if self.linear else self.psi(cost) - 1
        return (self.kappa(kept) * charge).sum(-1, keepdim=True)


def _edge(kept: Tensor) -> float:
    return math.log(torch.finfo(kept.dtype).max)


def warn_of_outgrown(policy: Any, kept: Tensor) -> None:
    """Warn, once, that multipliers are held at the dtype's largest number."""
    if policy._warned or not policy._penalty.outgrown(kept):
        return
    policy._warned = True
    warn(
        "EpochPenalty: kappa has outgrown the dtype and is held at its largest "
        "value; a slower penalty such as psi=('polynomial', 2) keeps it "
        "smaller",
        RuntimeWarning,
    )


def penalty_of(psi: Any, rate: Any) -> Penalty:
    """Return the penalty that a user's ``psi`` and ``rate`` describe."""
    form, linear = _form(psi), isinstance(psi, str) and psi == "linear"
    if linear and rate is None:
        raise CBanditError("rate is needed with psi='linear'; O(1 / sqrt(epochs))")
    step = 0.0 if rate is None else checks.number("rate", rate, minimum=0.0)
    still = rate is not None and step == 0
    if not linear and rate is not None and not still:
        raise CBanditError(
            "rate goes with psi='linear'; with another psi only rate=0, a kappa that "
            f"stays; got {rate!r}"
        )
    return Penalty(form, linear, step, still)


def _form(psi: Any) -> Callable[[Tensor], Tensor]:
    """Return the function that ``psi`` names, or ``psi`` itself with checks."""
    if isinstance(psi, str) and psi in ("exp", "linear"):
        return exponential
    name, *given = psi if isinstance(psi, tuple) and psi else (None,)
    if name == "exp" and len(given) == 1:
        return _Family(exponential, c=_constant(given[0]))
    if name == "polynomial" and len(given) in (1, 2):
        n = checks.number("psi's power n", given[0], minimum=1.0)
        return _Family(polynomial, n=n, c=_constant(given[1]) if given[1:] else 1.0)
    if not callable(psi):
        raise CBanditError(
            "psi must be 'exp', ('exp', c), ('polynomial', n), ('polynomial', n, c), "
            f"'linear' or a callable; got {psi!r}"
        )
    _check_penalty(psi)
    return _Own(psi)


class _Own:
    """A user's callable, with a check of what it returns."""

    def __init__(self, psi: Callable[[Tensor], Any]) -> None:
        self._psi = psi

    def __call__(self, z: Tensor) -> Tensor:
        value = checks.tensor("psi(z)", self._psi(z)).to(z)
        if not bool((value >= 1 - 1e-9).all()):
            raise CBanditError(
                f"psi must be at least 1 everywhere; got {value.min().item():g}"
            )
        return value


def _constant(given: Any) -> float:
    c = checks.number("psi's constant c", given)
    if c <= 0:
        raise CBanditError(f"psi's constant c must be above 0; got {c:g}")
    return c


class _Family:
    """A built-in family with its constants."""

    def __init__(self, psi: Callable[..., Tensor], **constants: float) -> None:
        self._psi, self._constants = psi, constants

    def __call__(self, z: Tensor) -> Tensor:
        return self._psi(z, **self._constants)


def _check_penalty(psi: Callable[[Tensor], Tensor]) -> None:
    """Raise an error that names a property which a user's ``psi`` lacks."""
    z = torch.linspace(-1, 3, 81, dtype=torch.float64)
    values = checks.finite("psi", checks.tensor("psi(z)", psi(z)))
    if tuple(values.shape) != tuple(z.shape):
        raise CBanditError(
            f"psi must map a tensor to one of its shape; got {tuple(values.shape)} "
            f"from {tuple(z.shape)}"
        )
    above, slack = values[20:], 1e-9 * values.abs().max()
    gaps = above.diff()
    for holds, what in (
        (bool(((values[:21] - 1).abs() <= slack).all()), "be 1 for z <= 0"),
        (bool((gaps > 0).all()), "increase for z > 0"),
        (bool((gaps.diff() >= -slack).all()), "be convex for z > 0"),
    ):
        if not holds:
            raise CBanditError(f"psi must {what}; it is not on [-1, 3]")
    x = z[20:51]
    together = checks.tensor("psi(z)", psi(x.unsqueeze(-1) + x))
    apart = above[:31].unsqueeze(-1) * above[:31]
    if bool((apart < together * (1 - 1e-9)).any()):
        raise CBanditError("psi must satisfy psi(x) psi(y) >= psi(x + y); it does not")
