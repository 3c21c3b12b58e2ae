"""A round's draw from a distribution over actions."""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.policies.decision import Decision
from cbandit.policies.safe.known import Known

__all__ = ["draw", "drawn", "must_hold"]


def draw(distribution: Distribution, streams: Streams) -> Tensor:
    """Return an action's number ``(T,)`` from distributions ``(T, k)``."""
    share = distribution.probability.double()
    last = (share > 0).sum(-1) - 1  # zero-padded: rounding must not reach the padding
    uniform = devices.put(streams.uniform().reshape(-1, 1), share.device)
    place = (uniform >= share.cumsum(-1)).sum(-1)
    at = torch.minimum(place, last).unsqueeze(-1)
    return distribution.index.gather(-1, at).squeeze(-1)


def drawn(
    distribution: Distribution,
    safe: Known,
    at: Tensor,
    streams: Streams,
    infeasible: Tensor | None,
    enough: Tensor | None = None,
) -> Decision:
    """Return a draw; the safe action where too little is known of it yet.

    Args:
        distribution: what to draw from, ``(T, k)``.
        safe: what is known of the safe action.
        at: its number in this round's set, ``(T,)``.
        streams: where the draw comes from.
        infeasible: trials in which the safe action is seen not to be safe, ``(T,)``.
        enough: trials whose beliefs may say what is safe, ``(T,)``; ``None``: all.
    """
    index, probability = distribution.index, distribution.probability
    if not safe.ready or enough is not None:
        warm = (safe.warm if enough is None else safe.warm & enough).unsqueeze(-1)
        only = torch.zeros_like(index)
        only[:, 0] = at
        certain = torch.zeros_like(probability)
        certain[:, 0] = 1.0
        index = torch.where(warm, index, only)
        probability = torch.where(warm, probability, certain)
    played = Distribution(index, probability)
    return Decision(draw(played, streams), infeasible, played, sure=True)


def must_hold(mask: Tensor | None, safe: Tensor | None) -> None:
    """Raise an error unless ``among (1 or T, N)`` leaves the safe action ``(T,)``."""
    if mask is None or safe is None:
        return
    held = mask.expand(len(safe), -1).gather(-1, safe.unsqueeze(-1))
    if not bool(held.all()):
        raise CBanditError("among must leave the safe action in every trial")
