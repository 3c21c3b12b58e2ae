"""The linear programmes of OPNLB, one a triple of functions, solved on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.peaks import CLOSE, best_place
from cbandit.choice import Distribution
from cbandit.recommend import Recommendation
from cbandit.search.simplex.lp import solve_policy

__all__ = ["optimistic", "solved", "stacked", "valued"]


def optimistic(theta: Tensor, mu: list[Tensor], alpha: Tensor) -> Tensor:
    """Return ``theta + alpha_j (mu'_j - mu''_j)`` of all triples, ``(n, K)``.

    Args:
        theta: the reward's functions, ``(R, K)``.
        mu: those of every cost, ``(G_j, K)``.
        alpha: ``(m,)``.
    """
    gaps = [
        a * (h.unsqueeze(1) - h).flatten(0, 1) for a, h in zip(alpha, mu, strict=True)
    ]
    bonus: Tensor = torch.cat(gaps).unique(dim=0)
    return (theta.unsqueeze(1) + bonus).flatten(0, 1)


def solved(u_r: Tensor, mu: list[Tensor], tau: Tensor) -> Distribution:
    """Return the best answer of a programme for each row of ``u_r`` ``(n, K)``.

    Every function in ``mu`` keeps its cost's limit in ``tau`` ``(m,)``.
    """
    limits = [limit.expand(len(h)) for limit, h in zip(tau, mu, strict=True)]
    u_c = torch.cat(mu).expand(len(u_r), -1, -1)
    pi = solve_policy(u_r, u_c, torch.cat(limits))
    value = pi.value.masked_fill(pi.infeasible, -torch.inf)
    close = CLOSE * (u_r.amax() - u_r.amin())  # there is no prior deviation
    best = int(best_place(value.unsqueeze(0), close))
    return Distribution(pi.distribution.index[best], pi.distribution.probability[best])


def stacked(found: list[Distribution], device: torch.device) -> Distribution:
    """Return one distribution a trial as one, padded with zeros."""
    k = max(one.index.shape[-1] for one in found)

    def padded(value: Tensor) -> Tensor:
        return torch.nn.functional.pad(value, (0, k - value.shape[-1]))

    return Distribution(
        devices.put(torch.stack([padded(one.index) for one in found]), device),
        devices.put(torch.stack([padded(one.probability) for one in found]), device),
    )


def valued(
    pi: Distribution, fit: Tensor, limits: Tensor, confidence: float, actions: Any
) -> Recommendation:
    """Return distributions over a set as a recommendation, feasible with confidence.

    Args:
        pi: over the arms, one a trial.
        fit: the fitted functions, ``(T, 1 + m, K)``.
        limits: the thresholds, ``(T, m)``.
        confidence: that the expected costs are within them.
        actions: the set.
    """
    held = fit.gather(-1, pi.index.unsqueeze(1).expand(-1, fit.shape[1], -1))
    value = (held * pi.probability.unsqueeze(1)).sum(-1)  # T x F
    return Recommendation(
        index=pi.index,
        x=actions.points(pi.index),
        value=value[:, 0],
        probability=torch.full_like(value[:, 0], confidence),
        margin=limits - value[:, 1:],
        feasible=torch.ones_like(value[:, 0], dtype=torch.bool),
        confidence=confidence,
        distribution=pi,
    )
