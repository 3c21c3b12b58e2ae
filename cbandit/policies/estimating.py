"""How a GP policy's estimates come from its beliefs: widths, offsets and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.log import warn
from cbandit.beliefs.feedback import Sliding
from cbandit.beliefs.gp import GP
from cbandit.confidence.bound import BoundWidths
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.sliding import allowance
from cbandit.posterior.units import Units, level

__all__ = ["Estimating"]

SMALL = 0.5  # the small-lam form is a heuristic beside less noise than this


class Estimating:
    """``mean + coefficient * spread + offset``, kept within ``bound``.

    Args:
        policy: whose trials, costs, thresholds, feedback and dtype these are.
        explore: how estimates come from beliefs.
        beliefs: one a function that has one, the reward's first.
        clip: ``(B, G)``, ``B`` alone for one function, or ``None``.
    """

    def __init__(
        self, policy: Any, explore: Explore, beliefs: Sequence[GP], clip: Any
    ) -> None:
        self._functions = len(beliefs)
        feedback, widths = policy.feedback, explore.widths
        self._drift = drift = getattr(feedback, "drift", None)
        if isinstance(feedback, Sliding):
            widths = widths.for_any_noise()
        batch, device = policy.batch_shape, policy.device
        self.widths = widths.bind(batch, self._functions - 1, device)
        _warn_of(self.widths, beliefs)
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
        out, functions = None, self._functions
        if self._drift is not None:
            batch, device = policy.batch_shape, policy.device
            size = allowance(self._drift, t, functions, batch, device).to(policy.dtype)
            out = torch.cat([size[:, :1], -size[:, 1:]], -1)
        if functions > 1 and (policy._limited or units is not None):
            limits = level(units, limits)
            tau = torch.cat([torch.zeros_like(limits[:, :1]), limits], -1)
            out = -tau if out is None else out - tau
        return out


def _warn_of(widths: BoundWidths, beliefs: Sequence[GP]) -> None:
    """Warn where a width that is a heuristic stands in for a guarantee."""
    for part, which in widths.rkhs_parts():
        noises = [float(belief.noise.min()) for belief in beliefs[which]]
        if part.rkhs.form == "small-lam" and min(noises) < SMALL:
            warn(
                "RKHS(form='small-lam') is a guarantee for a noise of 1 + 2/T; beside "
                f"a noise of {min(noises):g} it is a heuristic, which most runs can "
                "leave. form='any-lam' holds for every noise",
            )
            return
