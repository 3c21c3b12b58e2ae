"""Penalty functions ``psi`` of :class:`~cbandit.EpochPenalty`: named forms and checks.

``psi(z)`` is 1 for ``z <= 0``, convex and increasing for ``z > 0``, and
``psi(x) psi(y) >= psi(x + y)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.multipliers import exponential, polynomial

Psi = str | tuple[Any, ...] | Callable[[Tensor], Tensor]
"""A user's ``psi=``, see :class:`~cbandit.EpochPenalty`."""


def penalty_of(psi: Psi) -> Callable[[Tensor], Tensor] | None:
    """Return a user's ``psi=`` as a checked function; ``None``: it is linear."""
    match psi:
        case "linear":
            return None
        case "exp":
            return exponential
        case ("exp", c):
            return partial(exponential, c=_check_constant(c))
        case ("polynomial", n):
            return partial(polynomial, n=_check_power(n))
        case ("polynomial", n, c):
            return partial(polynomial, n=_check_power(n), c=_check_constant(c))
    if not callable(psi):
        raise CBanditError(
            "psi must be 'exp', ('exp', c), ('polynomial', n), ('polynomial', n, c), "
            f"'linear' or a callable; got {psi!r}"
        )
    _check_penalty(psi)
    return partial(at_least_one, psi)


def at_least_one(psi: Callable[[Tensor], Any], z: Tensor) -> Tensor:
    """Return a user's ``psi(z)``; raise an error if a value is below 1."""
    value = checks.tensor("psi(z)", psi(z)).to(z)
    if not bool((value >= 1 - 1e-9).all()):
        raise CBanditError(
            f"psi must be at least 1 everywhere; got {value.min().item():g}"
        )
    return value


def _check_penalty(psi: Callable[[Tensor], Any]) -> None:
    """Raise an error if a user's ``psi``, on a grid, is no penalty function."""
    z = torch.linspace(-1, 3, 81, dtype=torch.float64)
    values = checks.finite("psi", checks.tensor("psi(z)", psi(z)))
    if tuple(values.shape) != tuple(z.shape):
        raise CBanditError(
            f"psi must map a tensor to one of its shape; got {tuple(values.shape)} "
            f"from {tuple(z.shape)}"
        )
    below, above = values[:21], values[20:]  # z[20] is 0
    slack, steps = 1e-9 * values.abs().max(), above.diff()
    x, of_x = z[20:51], above[:31]
    of_sums = checks.tensor("psi(z)", psi(x.unsqueeze(-1) + x))
    for holds, what in (
        ((below - 1).abs() <= slack, "be 1 for z <= 0"),
        (steps > 0, "increase for z > 0"),
        (steps.diff() >= -slack, "be convex for z > 0"),
        (
            of_x.unsqueeze(-1) * of_x >= of_sums * (1 - 1e-9),
            "satisfy psi(x) psi(y) >= psi(x + y)",
        ),
    ):
        if not bool(holds.all()):
            raise CBanditError(f"psi must {what}; this fails on [-1, 3]")


def _check_power(n: object) -> float:
    return checks.number("psi's power n", n, minimum=1.0)


def _check_constant(value: object) -> float:
    c = checks.number("psi's constant c", value)
    if c <= 0:
        raise CBanditError(f"psi's constant c must be above 0; got {c:g}")
    return c
