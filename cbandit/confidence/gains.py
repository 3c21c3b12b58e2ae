"""Bounds on the information gain, for widths."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.peaks import CLOSE


def greedy_gain(covariance: Tensor, rounds: int, noise: float) -> Tensor:
    """Return the gain after each of ``rounds`` greedy picks, ``(*b, rounds)``.

    Each round picks the action of largest posterior variance, at the cost of one column
    of the covariance. ``covariance`` is the prior's, ``(*b, N, N)``.
    """
    checks.number("noise", noise, minimum=1e-300)
    var = covariance.diagonal(dim1=-2, dim2=-1).clone()
    close = CLOSE * var.amax(-1, keepdim=True)
    columns: list[Tensor] = []
    gains = []
    for _ in range(rounds):
        good = var >= var.amax(-1, keepdim=True) - close
        place = good.to(torch.uint8).argmax(-1, keepdim=True)  # the first of equal ones
        best = var.gather(-1, place)
        rows = place.unsqueeze(-1).expand(*place.shape, covariance.shape[-1])
        column = covariance.gather(-2, rows).squeeze(-2)
        if columns:
            past = torch.stack(columns, -2)  # *b x s x N
            at = past.gather(-1, place.unsqueeze(-2).expand(*past.shape[:-1], 1))
            column = column - (past * at).sum(-2)
        column = column / (best + noise).sqrt()
        columns.append(column)
        var = (var - column.square()).clamp_min(0)
        gains.append(0.5 * torch.log1p(best.squeeze(-1) / noise))
    return torch.stack(gains, -1).cumsum(-1)


def worst_case_gain(covariance: Tensor, rounds: int, noise: float) -> Tensor:
    """Return an upper bound on the largest gain of ``rounds`` rounds, ``(*b,)``.

    Greedy picks reach at least ``1 - 1/e`` of the largest gain.
    """
    return greedy_gain(covariance, rounds, noise)[..., -1] / (1 - math.exp(-1))
