"""The programme's arguments become tensors here, or errors that name them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError

__all__ = ["NEVER", "checked", "limits"]

NEVER = 0.25 * float(np.finfo(np.float64).max)  # the cost of an arm never to be played


def checked(
    u_r: Any, u_c: Any, tau: Any
) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """Return float64 ``(T, K)``, ``(T, m, K)``, ``(T, m)`` and the trials' shape."""
    reward = checks.tensor("u_r", u_r)
    cost = checks.tensor("u_c", u_c, device=reward.device)
    if reward.dim() == 0 or reward.numel() == 0:
        raise CBanditError(
            f"u_r must have shape (*trials, K), none of them 0; got "
            f"{tuple(reward.shape)}"
        )
    size = reward.shape[-1]
    if cost.dim() < 2 or cost.numel() == 0 or cost.shape[-1] != size:
        raise CBanditError(
            f"u_c must have shape (*trials, m, K) with K = {size} as in u_r, none of "
            f"them 0; got {tuple(cost.shape)}"
        )
    m = cost.shape[-2]
    limit = limits(tau, m, reward.device)
    leads = [reward.shape[:-1], cost.shape[:-2], limit.shape[:-1]]
    try:
        trials = np.broadcast_shapes(*leads)
    except ValueError:
        raise CBanditError(
            "u_r, u_c and tau must lead with the same trials; got "
            f"{tuple(reward.shape)}, {tuple(cost.shape)} and {tuple(limit.shape)}"
        ) from None
    reward = reward.expand(*trials, size).reshape(-1, size)
    cost = cost.expand(*trials, m, size).reshape(-1, m, size)
    limit = limit.expand(*trials, m).reshape(-1, m)
    # the least and the largest entries also show NaN and infinities
    looked = torch.stack([end for v in (reward, cost) for end in (v.amin(), v.amax())])
    ends = iter(looked.tolist())
    for name, allowed in (("u_r", "minus"), ("u_c", "plus")):
        least, largest = next(ends), next(ends)
        wrong = largest if allowed == "minus" else -least
        if math.isnan(least) or wrong == math.inf:
            got = least if math.isnan(least) or allowed == "plus" else largest
            raise CBanditError(
                f"{name} must be finite (or {allowed} infinity, for an arm never to be "
                f"played); got {got}"
            )
        if math.inf in (-least, largest):
            reward, cost = forbidden(reward, cost)
    return reward, cost, limit, trials


def forbidden(reward: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Give arms that must not be played no reward and a cost that nothing offsets."""
    never = reward.isneginf() | (cost >= NEVER).any(-2)
    if bool(never.all(-1).any()):
        raise CBanditError(
            "u_r and u_c must leave an arm to play: every arm of a trial has an "
            "infinite entry"
        )
    reward = reward.masked_fill(never, -torch.inf)
    return reward, cost.masked_fill(never.unsqueeze(-2), NEVER)


def limits(tau: Any, m: int, device: Any = None) -> Tensor:
    """Return finite limits ``(*trials, m)``, from one number for all or one a cost."""
    limit = checks.finite("tau", checks.tensor("tau", tau, device=device))
    if limit.dim() == 0:
        limit = limit.expand(m)
    if limit.shape[-1] != m or limit.numel() == 0:
        raise CBanditError(
            f"tau must have shape (*trials, m) with m = {m}, or be a number; got "
            f"{tuple(limit.shape)}"
        )
    return limit
