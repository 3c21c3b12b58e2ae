"""The linear programmes of OPNLB, one a triple of functions, solved on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.choice import Distribution
from cbandit.search.simplex.lp import solve_policy

__all__ = ["optimistic", "solved", "stacked"]


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
    best = int(pi.value.masked_fill(pi.infeasible, -torch.inf).argmax())
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
