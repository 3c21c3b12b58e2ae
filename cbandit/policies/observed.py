"""Recommend the best of what was observed, for policies that believe nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.errors import CBanditError
from cbandit.recommend import Recommendation

__all__ = ["best_observed"]


def best_observed(policy: Any, confidence: float) -> Recommendation:
    """Return the action of greatest mean reward among those seen to keep the limits.

    Means are of what was told of an action. Where no action kept the limits it is the
    one that exceeded them least. Trials without one that was told in full have NaN for
    its numbers; an error if that is so in all.
    """
    policy._settled()
    table = policy._record.table(policy._ledger.all(policy.t))
    limits = policy._limits(max(policy.t, 1)).cpu().double()
    x, outcomes = (
        table["x"],
        torch.cat([table["reward"][..., None], table["costs"]], -1),
    )
    rows = [_best(x[:, i], outcomes[:, i], limits[i]) for i in range(policy._size)]
    points, value, margin = (torch.stack(each) for each in zip(*rows, strict=True))
    if bool(value.isnan().all()):
        raise CBanditError(
            "recommend: nothing has been told yet of which to take the best; tell() "
            "what came of a choice, its costs too"
        )
    on, names = policy.actions, policy.actions.names
    points = devices.put(points.to(policy.dtype), policy.device)
    index = None if on.continuous else on.index(points.unsqueeze(1)).squeeze(1)
    found = Recommendation(
        index=index,
        x=points,
        value=devices.put(value, policy.device),
        probability=torch.full_like(value, math.nan).to(policy.device),
        margin=devices.put(margin, policy.device),
        feasible=devices.put((margin >= 0).all(-1) & ~value.isnan(), policy.device),
        confidence=confidence,
        names=names,
    )
    said: Recommendation = policy.senses.recommended(found.of(policy._outside))
    return said


def _best(x: Tensor, outcomes: Tensor, limits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return one trial's action ``(d,)``, its mean reward and its margins ``(m,)``.

    Args:
        x: the actions of all rounds, ``(n, d)``.
        outcomes: reward and costs, ``(n, 1 + m)``, NaN where nothing was told.
        limits: ``(m,)``.
    """
    points, group = torch.unique(x, dim=0, return_inverse=True)
    told = ~outcomes.isnan()
    empty = outcomes.new_zeros(len(points), outcomes.shape[-1])
    count = empty.index_add(0, group, told.to(outcomes))
    means = empty.index_add(0, group, outcomes.nan_to_num(0.0)) / count
    known = (count > 0).all(-1)
    if not bool(known.any()):
        nothing = limits.new_full((1 + len(limits),), math.nan)
        return (x[0] if len(x) else x.new_zeros(x.shape[1])), nothing[0], nothing[1:]
    points, means = points[known], means[known]
    margin = limits - means[:, 1:]
    short = (-margin).clamp_min(0).amax(-1) if margin.shape[-1] else means[:, 0] * 0
    value = torch.where(short == short.min(), means[:, 0], -math.inf)
    at = value.argmax()
    return points[at], means[at, 0], margin[at]
