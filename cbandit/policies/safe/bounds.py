"""Bounds of reward and costs: how far they are inflated, and when they are trusted.

Bounds are optimistic for the reward and pessimistic for costs, and the reward's is
inflated as much as pessimism takes away. If costs have widths ``w_j``, their bounds are
at most ``2 w_j`` above the truth. The best distribution, mixed with the safe action,
then still fits with a share ``g``, where
``1 / g - 1 <= max_j E 2 w_j / (tau_j - c0_j)``; this loses at most
``(1 - g) (r_max - r0)``. A bonus of ``max_j rho_j w_j`` with
``rho_j = 2 (r_max - r0) / (tau_j - c0_j)``, added to the reward's own width, makes up
for it. The bonus must use the costs' widths: the reward's is too small if it is known
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

FEW = 5  # outcomes after which a standardised belief's spread is trusted
FAR = 1e6  # spreads; no believable cost is this large


@dataclass(frozen=True, eq=False)
class Scales:
    """The scales ``alpha_r = 1 + rho`` and ``alpha_c``: given, or the theorem's.

    Args:
        reward: ``alpha_r``, ``(T,)``, or ``None``: by the theorem.
        cost: ``alpha_c``, likewise.
    """

    reward: Tensor | None
    cost: Tensor | None

    @classmethod
    def of(
        cls, alpha: ArrayLike | None, per_trial: Callable[[str, Any], Tensor]
    ) -> Scales:
        """Return the scales that a user states as ``alpha``."""
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

    def inflated(self, beta: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Return the widths, the costs' multiplied by ``alpha_c``, and ``rho (T, m)``.

        Args:
            beta: the widths of reward and costs, ``(T, 1 + m)``.
            ratio: the theorem's ``rho``, ``(T, m)``; used unless the user states
                ``alpha_r``.
        """
        if self.reward is not None:
            ratio = (self.reward.unsqueeze(-1) - 1).expand_as(ratio)
        if self.cost is None:
            return beta, ratio
        costs = beta[:, 1:] * self.cost.unsqueeze(-1)
        return torch.cat([beta[:, :1], costs], -1), ratio


def bounds_of(mean: Tensor, std: Tensor, width: Tensor, rho: Tensor) -> Tensor:
    """Return the upper bounds ``u_r`` and every ``u_c``, ``(T, 1 + m, n)``.

    Args:
        mean: estimates, ``(T, 1 + m, n)``.
        std: spreads of the estimates, ``(T, 1 + m, n)``, or ``(T, 1, n)`` if all are
            equal.
        width: ``beta``, ``(T, 1 + m)``.
        rho: the multiple of each cost's width by which the reward is inflated,
            ``(T, m)``.
    """
    extra = rho * width[:, 1:]
    if std.shape[1] == 1:
        whole = width.clone()
        whole[:, 0] += extra.amax(-1)
        return torch.addcmul(mean, std, whole.to(mean).unsqueeze(-1))
    u = torch.addcmul(mean, std, width.to(mean).unsqueeze(-1))
    bonus = std[:, 1:] * extra.to(mean).unsqueeze(-1)
    u[:, 0] += reduce(torch.maximum, bonus.unbind(1))
    return u


class Trust:
    """A check that spreads rest on enough outcomes to call actions safe.

    Args:
        name: the policy's name, for a warning that is given once.
    """

    def __init__(self, name: str) -> None:
        self.name, self._warned = name, False

    def enough(self, units: Units | None, patience: int = 0) -> Tensor | None:
        """Return the trials ``(T,)`` whose beliefs can say what is safe; ``None``: all.

        A standardised belief cannot while its spread rests on few outcomes. The first
        time that this happens after ``patience`` outcomes, a warning says so.
        """
        if units is None:
            return None
        enough = units.rests_on(FEW)
        if bool(enough.all()):
            return None
        outcomes = int(units.seen.min())
        if outcomes >= patience and not self._warned:
            self._warned = True
            warn(
                f"{self.name}: a standardised belief has seen {outcomes} outcomes; "
                f"before it has seen {FEW}, not all alike, only actions given as safe "
                "count as safe. Tell it data from before by policy.observe(), or give "
                "beliefs without standardize",
            )
        return enough
