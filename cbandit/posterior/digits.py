"""Limits by dtype that every engine's posterior is held to.

Now and then an engine's arrays are compared with a float64 solve at actions that were
tried. An error is judged twice. It must be a small share of the prior deviation, and of
the posterior's own deviation there, which may be thousands of times smaller.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

OFF_STD = 0.02  # share of the true deviation by which a kept deviation may be off
OFF_MEAN = 0.1  # the same for a mean
RESOLVED = 1e-8  # share of the prior deviation that a float64 solve may itself be off


class Limits(NamedTuple):
    """The limits of a dtype.

    Args:
        sharp: prior variance over the noise of one observation; beyond it, one
            observation costs running variances too many digits.
        sure: the same for all observations of an action together.
        off: share of the prior deviation by which arrays may be off.
        first: how many changes come before the first check of the arrays.
        every: the most changes between two checks.
    """

    sharp: float
    sure: float
    off: float
    first: int
    every: int


LIMITS = {
    torch.float64: Limits(sharp=1e5, sure=1e5, off=1e-9, first=512, every=512),
    torch.float32: Limits(sharp=1e4, sure=1e2, off=1e-4, first=16, every=64),
}
WIDE = LIMITS[torch.float64]
"""The limits of small systems and of sums of features, which are always float64."""


class Kept(NamedTuple):
    """Means ``(T, F, n)`` less their level, and variances ``(T, n)``."""

    mean: Tensor
    var: Tensor


class Error(NamedTuple):
    """The largest error of an engine's arrays at some actions.

    Args:
        excess: it as a multiple of what the limits allow.
        deviations: it as a multiple of the true deviation at its action.
    """

    excess: float
    deviations: float


def compare(kept: Kept, true: Kept, prior: Tensor, limits: Limits) -> Error:
    """Return how far kept moments are off.

    Args:
        kept: moments of some actions in an engine's arrays.
        true: the same moments by a float64 solve.
        prior: the prior variances, ``(T, n)``.
        limits: those of the arrays' dtype.
    """
    # the largest of them, as it may be 0 at some actions
    size = prior.amax(-1, keepdim=True).sqrt()
    std, least = true.var.clamp_min(0).sqrt(), RESOLVED * size
    level = true.mean.abs().amax(-1, keepdim=True)
    off_std = (kept.var.double().clamp_min(0).sqrt() - std).abs()
    off_mean = (kept.mean.double() - true.mean).abs()
    allowed = torch.minimum(limits.off * size, OFF_STD * std + least)
    wide, small = (v.unsqueeze(1) for v in (size, OFF_MEAN * std + least))
    allowed_mean = torch.minimum(limits.off * (wide + level), small)
    excess = torch.cat([(off_std / allowed).unsqueeze(1), off_mean / allowed_mean], 1)
    off = torch.cat([off_std.unsqueeze(1), off_mean], 1) / (std + least).unsqueeze(1)
    worst = torch.stack([excess.max(), off.max()])
    return Error(*worst.nan_to_num(nan=torch.inf).tolist())
