"""How a GP policy's estimates come from its beliefs: widths, offsets and bounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.posterior.units import Units, level

__all__ = ["Estimating"]


class Estimating:
    """``mean + coefficient * spread + offset``, kept within ``bound``.

    Args:
        policy: whose trials, costs, thresholds and dtype these are.
        explore: how estimates come from beliefs.
        functions: how many functions have a belief.
        clip: ``(B, G)``, ``B`` alone for one function, or ``None``.
        drift: the allowance of ``Sliding`` for a world that drifts, or ``None``.
    """

    def __init__(
        self, policy: Any, explore: Explore, functions: int, clip: Any, drift: Any
    ) -> None:
        self._functions, self._drift = functions, drift
        batch, device = policy.batch_shape, policy.device
        self.widths = explore.widths.bind(batch, functions - 1, device)
        #: ``(T, F)``; ``None``: estimates are not clipped
        self.bound = None if clip is None else self._bounds(policy, clip)
        self._fixed = not (callable(policy.thresholds) or callable(drift))
        limits = policy.thresholds
        self._always = self._offset(policy, 1, limits, None) if self._fixed else None

    def _bounds(self, policy: Any, clip: Any) -> Tensor:
        if self._functions == 1 and not isinstance(clip, tuple | list):
            clip = (clip, None)
        try:
            bound, cost_bound = clip
        except (TypeError, ValueError):
            raise CBanditError(f"clip must be a pair (B, G); got {clip!r}") from None
        b = policy._per_trial("clip B", checks.positive("clip B", bound)).unsqueeze(-1)
        if self._functions == 1:
            out: Tensor = b
            return out
        g = policy._number("clip G", checks.positive("clip G", cost_bound))
        return torch.cat([b, g], -1)

    def offset(
        self, policy: Any, t: int, limits: Tensor, units: Units | None
    ) -> Tensor | None:
        """Return what is added to the estimates of round ``t``, ``(T, F)``, in units.

        Args:
            policy: as the constructor's.
            t: the round.
            limits: its thresholds ``(T, m)``, in the user's units.
            units: those of the beliefs.
        """
        if self._fixed and units is None:
            return self._always
        return self._offset(policy, t, limits, units)

    def _offset(
        self, policy: Any, t: int, limits: Tensor, units: Units | None
    ) -> Tensor | None:
        """Return minus thresholds ``(T, m)``, and what a drift adds to the widths."""
        out, functions, drift = None, self._functions, self._drift
        if drift is not None:
            value = drift(t) if callable(drift) else drift
            size = policy._per_trial("drift", checks.nonnegative("drift", value))
            size = size.to(policy.dtype).unsqueeze(-1)
            out = torch.cat([size, -size.expand(-1, functions - 1)], -1)
        if functions > 1 and (policy._limited or units is not None):
            limits = level(units, limits)
            tau = torch.cat([torch.zeros_like(limits[:, :1]), limits], -1)
            out = -tau if out is None else out - tau
        return out
