"""The linear programme: its arguments, its solution, and passes over its arms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.peaks import at_each, members, neighbours, peaks_of
from cbandit.choice import Distribution
from cbandit.errors import CBanditError

EPS = float(np.finfo(np.float64).eps)
FEASIBLE = 1e-12  # a limit missed by a smaller share of the cost's scale counts as kept
ROUNDING = 8 * EPS  # scores that differ by a smaller share of the reward's scale tie
NEVER = 0.25 * float(np.finfo(np.float64).max)  # the cost of a forbidden arm


@dataclass(frozen=True, eq=False)
class PolicySolution:
    """An optimal distribution, with its certificate.

    Args:
        distribution: at most ``m + 1`` arms a trial, by number, zero-padded.
        value: the expected ``u_r`` it reaches, ``(*trials,)``.
        multiplier: the dual solution, ``(*trials, m)``. In an infeasible trial: weights
            with sum 1 under which even the cheapest arm exceeds the limits.
        gap: the dual's value minus ``value``, 0 up to rounding, ``(*trials,)``. In an
            infeasible trial it certifies ``violation`` in the same way.
        infeasible: whether no distribution keeps the limits, ``(*trials,)``. There
            ``distribution`` is one that violates them least.
        violation: the least possible ``max_j E u_c[j] - tau[j]`` in an infeasible
            trial, else 0, ``(*trials,)``.
    """

    distribution: Distribution
    value: Tensor
    multiplier: Tensor
    gap: Tensor
    infeasible: Tensor
    violation: Tensor

    def spent(self, u_c: Tensor) -> Tensor:
        """Return ``E u_c`` under the distribution, ``(*trials, m)``."""
        at = self.distribution.index.unsqueeze(-2).expand(*u_c.shape[:-1], -1)
        share = self.distribution.probability.unsqueeze(-2)
        return (u_c.gather(-1, at) * share).sum(-1)


def joined(
    parts: list[PolicySolution], trials: tuple[int, ...], device: torch.device
) -> PolicySolution:
    """Join solutions of successive trials, in the shape of the user's trials."""

    def whole(rows: Iterable[Tensor]) -> Tensor:
        out = torch.cat([*rows])
        return devices.put(out.view((*trials, *out.shape[1:])), device)

    infeasible = whole(p.infeasible for p in parts)
    return PolicySolution(
        distribution=Distribution(
            index=whole(p.distribution.index for p in parts),
            probability=whole(p.distribution.probability for p in parts),
            infeasible=infeasible,
        ),
        value=whole(p.value for p in parts),
        multiplier=whole(p.multiplier for p in parts),
        gap=whole(p.gap for p in parts),
        infeasible=infeasible,
        violation=whole(p.violation for p in parts),
    )


def distribution(arm: Tensor, probability: Tensor) -> Distribution:
    """Return a distribution of arms ``(T, k)``, with unused ones last as zeros."""
    last = torch.iinfo(torch.int64).max
    order = arm.masked_fill(probability <= 0, last).argsort(dim=-1, stable=True)
    probability = probability.clamp_min(0).gather(-1, order)
    index = arm.gather(-1, order).masked_fill(probability <= 0, 0)
    return Distribution(index=index, probability=probability)


def checked(
    u_r: object, u_c: object, tau: object
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
    # the extremes also reveal NaN and infinity
    ends = torch.stack([*reward.aminmax(), *cost.aminmax()]).tolist()
    for name, allowed, end, wrong in (
        ("u_r", "minus", ends[1], math.inf),
        ("u_c", "plus", ends[2], -math.inf),
    ):
        if math.isnan(end) or end == wrong:
            raise CBanditError(
                f"{name} must be finite (or {allowed} infinity, for an arm never to be "
                f"played); got {end}"
            )
    if any(map(math.isinf, ends)):
        reward, cost = forbidden(reward, cost)
    return reward, cost, limit, trials


def forbidden(reward: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Give forbidden arms no reward and a cost that nothing can offset."""
    never = reward.isneginf() | (cost >= NEVER).any(-2)
    if bool(never.all(-1).any()):
        raise CBanditError(
            "u_r and u_c must leave an arm to play: every arm of a trial has an "
            "infinite entry"
        )
    reward = reward.masked_fill(never, -torch.inf)
    return reward, cost.masked_fill(never.unsqueeze(-2), NEVER)


def limits(tau: object, m: int, device: torch.device | None = None) -> Tensor:
    """Return finite limits ``(*trials, m)``, from one number or one per cost."""
    limit = checks.finite("tau", checks.tensor("tau", tau, device=device))
    if limit.dim() == 0:
        limit = limit.expand(m)
    if limit.shape[-1] != m or limit.numel() == 0:
        raise CBanditError(
            f"tau must have shape (*trials, m) with m = {m}, or be a number; got "
            f"{tuple(limit.shape)}"
        )
    return limit


def power_of_two(scale: Tensor) -> Tensor:
    """Return powers of two, which multiply exactly, that scale ``scale`` to about 1."""
    exponent = torch.frexp(scale).exponent.clamp(-1000, 1000)
    exponent = exponent.masked_fill(scale == 0, 0)
    return torch.ldexp(torch.ones_like(scale), -exponent)


def piece(arms: Tensor, block: int) -> int:
    """Return how many arms to score in one piece, a multiple of ``block``."""
    room = 2**18 if arms.device.type == "cpu" else 2**27
    return max(1, room // (arms.shape[0] * block)) * block


def scores(
    r: Tensor, c: Tensor, tau: Tensor, lam: Tensor, block: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield ``r - lam (c - tau)`` in pieces ``(T, n)``, with the first arm's number.

    ``r`` and ``c`` are ``(T, K)``, ``tau`` and ``lam`` ``(T, 1)``. The pieces share one
    buffer that stays in cache: a pass costs little more than reading the arms.
    """
    rows, size = r.shape
    step = piece(r, block)
    buffer = r.new_empty((rows, min(step, size)))
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        score = buffer[:, : part.stop - start]
        torch.sub(c[:, part], tau, out=score)
        yield start, torch.addcmul(r[:, part], score, lam, value=-1, out=score)


def best(
    r: Tensor, c: Tensor, tau: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first arm ``(T,)`` of largest score, its score and its ``c - tau``."""
    block = neighbours(r.shape[1])
    peaks = torch.cat(
        [peaks_of(score, block) for _, score in scores(r, c, tau, lam, block)], 1
    )
    at, _ = members(peaks.argmax(1, keepdim=True), block, r.shape[1])
    d = c.gather(1, at) - tau
    score = torch.addcmul(r.gather(1, at), d, lam, value=-1)
    first = score.argmax(1)
    return at_each(at, first), at_each(score, first), at_each(d, first)


def above(
    r: Tensor, c: Tensor, tau: Tensor, lam: Tensor, floor: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keep the arms that score above ``floor (T, 1)``, in rows that have any.

    Return the rows' numbers, then the arms' numbers, ``r`` and ``c - tau``, each packed
    to the left in order and padded.
    """
    places = []
    for start, score in scores(r, c, tau, lam, neighbours(r.shape[1])):
        row, at = (score > floor).nonzero(as_tuple=True)
        places.append((row, at + start))
    row, at = (torch.cat(part) for part in zip(*places, strict=True))
    if len(r) == 1:
        rows, at = row[:1], at.unsqueeze(0)
        return rows, at, r.take(at), c.take(at) - tau
    row, order = row.sort(stable=True)
    at = at[order]
    count = torch.bincount(row, minlength=len(r))
    rows = count.nonzero().squeeze(1)
    most = int(count.max())
    place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    place += ((count > 0).cumsum(0) - 1)[row] * most
    flat = row * r.shape[1] + at

    def moved(value: Tensor, padding: float) -> Tensor:
        out = value.new_full((len(rows) * most,), padding)
        return out.index_copy_(0, place, value).view(len(rows), most)

    d = c.reshape(-1).take(flat) - tau[row, 0]
    r = r.reshape(-1).take(flat)
    return rows, moved(at, 0), moved(r, -torch.inf), moved(d, 0.0)
