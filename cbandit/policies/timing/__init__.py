"""Timings: when feedback counts. At once, within a delay, or for some rounds only."""

from __future__ import annotations

import torch

from cbandit.beliefs import feedback as specs
from cbandit.policies.timing.at_once import AtOnce
from cbandit.policies.timing.base import Held, Timing
from cbandit.policies.timing.delayed import Delayed
from cbandit.policies.timing.sliding import Sliding

__all__ = ["AtOnce", "Held", "Timing", "timing_of"]


def timing_of(
    feedback: specs.Delayed | specs.Sliding | None,
    functions: int,
    batch_shape: tuple[int, ...],
    device: torch.device,
    horizon: int | None,
) -> Timing:
    """Return the timing that a policy's argument ``feedback=`` asks for.

    Args:
        feedback: the argument; ``None``: feedback counts at once.
        functions: how many functions have a belief, ``F``.
        batch_shape: the shape of the trials.
        device: where beliefs live.
        horizon: the last round; ``None``: unknown.
    """
    if isinstance(feedback, specs.Delayed):
        return Delayed(feedback, batch_shape, device, horizon)
    if isinstance(feedback, specs.Sliding):
        return Sliding(feedback, functions, batch_shape, device, horizon)
    return AtOnce()
