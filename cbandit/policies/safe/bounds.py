"""Bounds of reward and costs: how far they are inflated, and when they are trusted.

The reward's bound is optimistic, the costs' are pessimistic, and the reward's is
inflated by as much as pessimism may lose. If costs have widths ``w_j``, their bounds
are at most ``2 w_j`` above the truth. The best distribution, mixed with the safe action
so that it has a share ``g``, then keeps these bounds, where
``1 / g - 1 <= max_j E 2 w_j / (tau_j - c0_j)``; the mixture loses at most
``(1 - g) (r_max - r0)`` of reward. A bonus of ``max_j rho_j w_j`` with
``rho_j = 2 (r_max - r0) / (tau_j - c0_j)``, added to the reward's own width, makes up
for this. The bonus must use the costs' widths: the reward's is too small if it is known
better. With one width ``w`` for all functions the sum is ``alpha_r w``,
``alpha_r = 1 + max_j rho_j``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit._core.log import warn
from cbandit.errors import CBanditError
from cbandit.posterior.units import Units

MIN_OUTCOMES = 5  # a standardised belief with fewer outcomes calls no action safe
MAX_SPREADS = 1e6  # in spreads of the outcomes; no believable cost is this large


@dataclass(frozen=True, eq=False)
class WidthFactors:
    """The factors ``alpha_r = 1 + rho`` and ``alpha_c`` that inflate the widths.

    Args:
        reward: ``alpha_r``, ``(T,)``; ``None``: the theorem's.
        cost: ``alpha_c``, ``(T,)``; ``None``: 1.
    """

    reward: Tensor | None
    cost: Tensor | None

    @classmethod
    def of(
        cls, alpha: ArrayLike | None, per_trial: Callable[[str, Any], Tensor]
    ) -> WidthFactors:
        """Return the factors in ``alpha``; ``per_trial`` turns each into ``(T,)``."""
        if alpha is None:
            return cls(None, None)
        pair = alpha if isinstance(alpha, tuple) else (alpha, None)
        if len(pair) != 2:
            raise CBanditError(
                f"alpha must be alpha_r or (alpha_r, alpha_c); got {alpha!r}"
            )
        reward, cost = (
            None if a is None else per_trial("alpha", checks.nonnegative("alpha", a))
            for a in pair
        )
        return cls(reward, cost)

    def inflate(self, beta: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Return the widths, the costs' multiplied by ``alpha_c``, and ``rho (T, m)``.

        Args:
            beta: the widths of reward and costs, ``(T, 1 + m)``.
            ratio: the theorem's ``rho``, ``(T, m)``; used unless the user gives
                ``alpha_r``.
        """
        if self.reward is not None:
            ratio = (self.reward.unsqueeze(-1) - 1).expand_as(ratio)
        if self.cost is None:
            return beta, ratio
        costs = beta[:, 1:] * self.cost.unsqueeze(-1)
        return torch.cat([beta[:, :1], costs], -1), ratio


def upper_bounds(mean: Tensor, std: Tensor, width: Tensor, rho: Tensor) -> Tensor:
    """Return the upper bounds of reward and costs at ``n`` actions, ``(T, 1 + m, n)``.

    Args:
        mean: the estimates, ``(T, 1 + m, n)``.
        std: deviations of the estimates, ``(T, 1 + m, n)``, or ``(T, 1, n)`` if those
            of all functions are equal.
        width: ``beta``, ``(T, 1 + m)``.
        rho: the multiple of each cost's width by which the reward is inflated,
            ``(T, m)``.
    """
    inflation = rho * width[:, 1:]
    if std.shape[1] == 1:
        inflated = width.clone()
        inflated[:, 0] += inflation.amax(-1)
        return torch.addcmul(mean, std, inflated.to(mean).unsqueeze(-1))
    u = torch.addcmul(mean, std, width.to(mean).unsqueeze(-1))
    bonus = std[:, 1:] * inflation.to(mean).unsqueeze(-1)
    u[:, 0] += reduce(torch.maximum, bonus.unbind(1))
    return u


def within_limits(u: Tensor, tau: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the actions whose bounds keep all limits, ``(T, n)`` bool.

    Args:
        u: the bounds of reward and costs, ``(T, 1 + m, n)``.
        tau: the limits, ``(T, m)``.
        mask: the actions to choose from, ``(1 or T, n)``; ``None``: all.
    """
    inside = (u[:, 1:] <= tau.to(u).unsqueeze(-1)).all(1)
    return inside if mask is None else inside & mask


class EnoughData:
    """A check that beliefs have enough outcomes to call actions safe.

    Args:
        name: the policy's name, for the warning that the check gives once.
    """

    def __init__(self, name: str) -> None:
        self.name, self._warned = name, False

    def trials(self, units: Units | None, warn_after: int = 0) -> Tensor | None:
        """Return the trials ``(T,)`` whose beliefs have enough outcomes; ``None``: all.

        Only a standardised belief needs them, as its unit is the outcomes' spread. Warn
        once if a belief has too few outcomes, but at least ``warn_after``.
        """
        if units is None:
            return None
        enough = units.rests_on(MIN_OUTCOMES)
        if bool(enough.all()):
            return None
        outcomes = int(units.seen.min())
        if outcomes >= warn_after and not self._warned:
            self._warned = True
            warn(
                f"{self.name}: a standardised belief has seen {outcomes} outcomes; "
                f"before it has seen {MIN_OUTCOMES}, not all alike, only actions given "
                "as safe count as safe. Tell it data from before by policy.observe(), "
                "or give beliefs without standardize",
            )
        return enough
