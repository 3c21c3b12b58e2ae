"""The answer to the programme, with its certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.choice import Distribution

__all__ = ["PolicySolution", "distribution", "joined"]


@dataclass(frozen=True, eq=False)
class PolicySolution:
    """An optimal distribution and its certificate.

    Args:
        distribution: at most ``m + 1`` arms a trial, by number, zero-padded.
        value: the expected ``u_r`` it reaches, ``(*trials,)``.
        multiplier: the dual solution, ``(*trials, m)``. In an infeasible trial: weights
            that sum to 1 and under which even the cheapest arm is too dear.
        gap: the dual's value minus ``value``, 0 up to rounding, ``(*trials,)``. In an
            infeasible trial it certifies ``violation`` in the same way.
        infeasible: whether no distribution keeps the limits, ``(*trials,)``. There
            ``distribution`` is one that violates them least.
        violation: the least achievable ``max_j E u_c[j] - tau[j]`` of an infeasible
            trial, else 0, ``(*trials,)``.
    """

    distribution: Distribution
    value: Tensor
    multiplier: Tensor
    gap: Tensor
    infeasible: Tensor
    violation: Tensor

    def to(self, device: torch.device) -> PolicySolution:
        """Return the same solution on another device."""
        infeasible = devices.put(self.infeasible, device)
        pi = self.distribution
        return PolicySolution(
            Distribution(
                devices.put(pi.index, device),
                devices.put(pi.probability, device),
                infeasible,
            ),
            devices.put(self.value, device),
            devices.put(self.multiplier, device),
            devices.put(self.gap, device),
            infeasible,
            devices.put(self.violation, device),
        )

    def spent(self, u_c: Tensor) -> Tensor:
        """Return ``E u_c`` under the distribution, ``(*trials, m)``."""
        at = self.distribution.index.unsqueeze(-2).expand(*u_c.shape[:-1], -1)
        share = self.distribution.probability.unsqueeze(-2)
        return (u_c.gather(-1, at) * share).sum(-1)


def joined(parts: list[PolicySolution], trials: tuple[int, ...]) -> PolicySolution:
    """Put the solutions of some trials after each other, in the users' shapes."""

    def put(pick: Callable[[PolicySolution], Tensor], *tail: int) -> Tensor:
        return torch.cat([pick(part) for part in parts]).view((*trials, *tail))

    m = parts[0].multiplier.shape[-1]
    infeasible = put(lambda p: p.infeasible)
    return PolicySolution(
        distribution=Distribution(
            index=put(lambda p: p.distribution.index, m + 1),
            probability=put(lambda p: p.distribution.probability, m + 1),
            infeasible=infeasible,
        ),
        value=put(lambda p: p.value),
        multiplier=put(lambda p: p.multiplier, m),
        gap=put(lambda p: p.gap),
        infeasible=infeasible,
        violation=put(lambda p: p.violation),
    )


def distribution(arm: Tensor, probability: Tensor) -> Distribution:
    """Order ``(T, k)`` arms by number; those without a share come last, as zeros."""
    last = torch.iinfo(torch.int64).max
    order = arm.masked_fill(probability <= 0, last).argsort(dim=-1, stable=True)
    probability = probability.clamp_min(0).gather(-1, order)
    index = arm.gather(-1, order).masked_fill(probability <= 0, 0)
    return Distribution(index=index, probability=probability)
