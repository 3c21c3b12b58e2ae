"""Seed sets: the actions that a user knows to be safe, in any form."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Finite, ProductGrid
from cbandit.errors import CBanditError
from cbandit.policies.safe.action import Safe

__all__ = ["SURE", "at_most", "rounds_of", "seed_set", "uniform"]

SURE = {
    "Sliding": "what was safe is taken to stay safe, and in a drifting world does not",
    "hallucinate": "a bound that counts what was not observed yet keeps nothing safe",
}
"""Feedback and choices under which bounds would not hold, and why."""


def rounds_of(rounds: Any, batch_shape: tuple[int, ...]) -> Tensor:
    """Return a number of rounds, or ``(*trials,)``, as ``(T,)``."""
    value = checks.per_trial(
        "rounds", checks.nonnegative("rounds", rounds), batch_shape
    )
    if bool((value != value.round()).any()):
        raise CBanditError(f"rounds must be whole; got {value.tolist()}")
    return value


def seed_set(
    safe: Any,
    actions: Finite | ProductGrid,
    batch_shape: tuple[int, ...],
    device: torch.device,
) -> Tensor:
    """Return the seed set as a mask ``(1 or T, N)``, with an action in every trial.

    ``safe`` is an action's number, a list of numbers, a tensor of numbers
    ``(*trials,)`` or ``(*trials, k)``, a mask ``(N,)`` or ``(*trials, N)``, or points
    ``(d,)``, ``(k, d)`` or ``(*trials, k, d)``; or a :class:`~cbandit.Safe`.
    """
    if isinstance(safe, Safe):
        safe = safe.x if safe.index is None else safe.index
    given = checks.tensor("safe", safe, None, device)
    listed = isinstance(safe, list | tuple | range)
    if given.dtype == torch.bool:
        mask = _led(given, 1, batch_shape)
        if mask is None or mask.shape[-1] != actions.size:
            raise _wrong_seed(given, actions, batch_shape)
    else:
        if given.is_floating_point() and given.numel():
            given = _numbers(given, actions, batch_shape)
        elif given.dim() == 0:
            given = given.reshape(1)
        elif given.dim() == 1 and batch_shape and not listed:
            given = given.unsqueeze(-1)
        rows = _led(given, 1, batch_shape)
        if rows is None:
            raise _wrong_seed(given, actions, batch_shape)
        mask = torch.zeros(len(rows), actions.size, dtype=torch.bool, device=device)
        if rows.shape[-1]:
            with checks.about("safe"):
                actions.points(rows.expand(*(batch_shape or (1,)), -1))
            mask.scatter_(-1, rows.long(), True)
    if not bool(mask.any(-1).all()):
        raise CBanditError(
            "safe must name at least one action that is known to be safe in every "
            "trial; got an empty seed set"
        )
    return mask


def at_most(seed: Tensor, trials: int, dtype: torch.dtype) -> Tensor:
    """Return the most that any cost may be, beside its threshold, ``(T, 1, N)``.

    It is 0 in the seed set ``(1 or T, N)``, infinite elsewhere.
    """
    most = torch.full(seed.shape, math.inf, dtype=dtype, device=seed.device)
    return most.masked_fill(seed, 0.0).unsqueeze(1).expand(trials, -1, -1)


def uniform(mask: Tensor, share: Tensor) -> Tensor:
    """Return the action a ``share (*trials,)`` of the way through ``mask (T, N)``."""
    ranks = mask.cumsum(-1)
    count = ranks[:, -1]
    place = (share.reshape(-1).to(mask.device) * count).long().clamp_max(count - 1)
    return torch.searchsorted(ranks, place.unsqueeze(-1) + 1).squeeze(-1)


def _led(value: Tensor, extra: int, batch_shape: tuple[int, ...]) -> Tensor | None:
    """Return ``value`` led by 1 or ``T``, then ``extra`` axes; ``None``: it cannot."""
    if value.dim() == extra:
        return value.unsqueeze(0)
    trials = batch_shape[0] if batch_shape else 1
    if value.dim() == extra + 1 and value.shape[0] in (1, trials):
        return value
    return None


def _numbers(
    points: Tensor, actions: Finite | ProductGrid, batch_shape: tuple[int, ...]
) -> Tensor:
    if points.dim() == 1:
        points = points.unsqueeze(0)
    if points.dim() not in (2, 2 + len(batch_shape)):
        raise _wrong_seed(points, actions, batch_shape)
    if actions.batch_shape and points.dim() == 2:
        points = points.expand(*batch_shape, *points.shape)
    with checks.about("safe"):
        return actions.index(points)


def _wrong_seed(
    given: Tensor, actions: Finite | ProductGrid, batch_shape: tuple[int, ...]
) -> CBanditError:
    return CBanditError(
        "safe must be an action's number, a list of them, numbers (*trials,) or "
        "(*trials, k), a mask (N,) or (*trials, N), or points (k, d) or (*trials, k, "
        f"d), with N = {actions.size}, d = {actions.dim}, trials = {batch_shape}; got "
        f"{given.dtype} of shape {tuple(given.shape)}"
    )
