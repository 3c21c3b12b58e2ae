"""Actions of a problem that cannot be measured, always or now and then."""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.policies.signs import Objective


def failing_shares(failed: object, shape: tuple[int, ...]) -> Tensor:
    """Return how often actions fail, checked, as ``(N,)`` or ``(*trials, N)``."""
    shares = checks.finite("failed", checks.tensor("failed", failed)).double()
    if shares.dim() == 1:
        shares = checks.shaped("failed", shares, shape[-1:], "(*trials, N)")
    else:
        shares = checks.shaped("failed", shares, shape, "(*trials, N)")
    if not bool(((shares >= 0) & (shares <= 1)).all()):
        raise CBanditError(
            "failed must hold probabilities, from 0 to 1; got "
            f"{float(shares.min()):g} to {float(shares.max()):g}"
        )
    if bool((shares >= 1).all(-1).any()):
        raise CBanditError(
            "failed must leave an action that can be measured; got all 1"
        )
    return shares


def worst_where_failing(
    f: Tensor, g: Tensor, works: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Return tables in which actions that never work have the others' worst values."""
    up, over = objective.reward(f), objective.costs(g.mT).mT
    low = up.masked_fill(~works, torch.inf).amin(-1, keepdim=True)
    up = torch.where(works, up, low)
    works = works.unsqueeze(-2)
    high = over.masked_fill(~works, -torch.inf).amax(-1, keepdim=True)
    over = torch.where(works, over, high)
    return objective.reward(up), objective.costs(over.mT).mT
