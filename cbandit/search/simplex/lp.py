"""The best distribution over arms under expected-cost limits, exactly.

    max_pi  sum_a pi_a u_r[a]   s.t.  sum_a pi_a u_c[j, a] <= tau[j], pi in the simplex

from two arms to 10^7, for any number ``m`` of costs (Pacchiano, Ghavamzadeh, Bartlett,
"Contextual Bandits with Stage-wise Constraints", the programme of OPB). A solution
needs at most ``m + 1`` arms.

One cost: the answer is an edge of the upper hull of the points ``(u_c, u_r)``, found by
cutting planes on the dual ``min_{lam >= 0} max_a u_r + lam (tau - u_c)``. Between a
feasible vertex and an infeasible one, the farthest arm above their chord replaces one
of them; arms that lie below the chord are dropped for good.

Several costs: a simplex method over a small pool of arms; one pass over all arms asks
for those with the best reduced cost, until none has a positive one. The same loop works
on sets that are never materialised, see :func:`solve_policy_by_pricing`.

Both end with a certificate: the dual value over all arms minus the value reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.choice import Distribution
from cbandit.errors import CBanditError, InfeasibleError
from cbandit.search.peaks import argmax, at_each, members, neighbours, peaks_of

__all__ = [
    "PolicySolution",
    "Price",
    "best_policy",
    "solve_policy",
    "solve_policy_by_pricing",
    "solve_policy_in_blocks",
]

Array = npt.NDArray[Any]
Price = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]

EPS = float(np.finfo(np.float64).eps)
FEASIBLE = 1e-12  # of a cost's scale: misses below it are rounding
ROUNDING = 8 * EPS  # of the reward's scale: scores closer than it are equal
WHOLE = 1024  # up to so many arms the pool holds them all
FEW = (
    4096  # below so many arms a pass costs no more than what it would take to drop any
)
CANDIDATES = 32  # arms asked of one pass
SMALL = 2**16  # arms times trials that leave the device to be solved on the host
HELD = 2**31  # bytes of bounds made block by block, up to which they are kept
NEVER = 0.25 * float(np.finfo(np.float64).max)  # the cost of an arm never to be played


@dataclass(frozen=True, eq=False)
class PolicySolution:
    """An optimal distribution and its certificate.

    Args:
        distribution: at most ``m + 1`` arms a trial, by number, zero-padded.
        value: the expected ``u_r`` it reaches, ``(*trials,)``.
        multiplier: the dual solution, ``(*trials, m)``; for an infeasible trial the
            weights (they sum to 1) under which even the cheapest arm is too dear.
        gap: the dual's value minus ``value``, 0 up to rounding, ``(*trials,)``; for an
            infeasible trial the same of the least violation.
        infeasible: whether no distribution keeps the limits, ``(*trials,)``; there,
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
        """The same on another device."""
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
        """``E u_c`` under the distribution, ``(*trials, m)``."""
        at = self.distribution.index.unsqueeze(-2).expand(*u_c.shape[:-1], -1)
        share = self.distribution.probability.unsqueeze(-2)
        return (u_c.gather(-1, at) * share).sum(-1)


def best_policy(u_r: Any, u_c: Any, tau: Any) -> Distribution:
    """The distribution over arms of largest expected ``u_r`` that keeps the limits.

    Args:
        u_r: ``(*trials, K)``; minus infinity forbids an arm.
        u_c: ``(*trials, m, K)``; plus infinity forbids an arm.
        tau: ``(*trials, m)``, or one number for all.

    Returns:
        At most ``m + 1`` arms a trial, in the order of their numbers, zero-padded:
        ``index`` and ``probability`` are ``(*trials, m + 1)``.

    Raises:
        InfeasibleError: no distribution keeps the limits (in any trial, where there
            are several: a trial among others is flagged in ``infeasible`` instead and
            gets a distribution that violates them least).

    Example:
        >>> import cbandit as cb
        >>> best = cb.search.best_policy([0.0, 1.0], [[0.0, 1.0]], 0.25)
        >>> best.probability
        tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    solution = solve_policy(u_r, u_c, tau)
    if bool(solution.infeasible.all()):
        least = float(solution.violation.min())
        raise InfeasibleError(
            "no distribution over the arms keeps every expected cost at or below tau; "
            f"the least achievable max_j E u_c[j] - tau[j] is {least:.6g}",
            violation=solution.violation,
            best=solution.distribution,
        )
    return solution.distribution


def solve_policy(u_r: Any, u_c: Any, tau: Any) -> PolicySolution:
    """:func:`best_policy` with value, multipliers and certificate; flags, never raises.

    Args:
        u_r: ``(*trials, K)``; minus infinity forbids an arm.
        u_c: ``(*trials, m, K)``; plus infinity forbids an arm.
        tau: ``(*trials, m)``, or one number for all.
    """
    given = u_r, u_c, tau
    there = all(isinstance(v, Tensor) and v.is_cuda for v in given)
    if there and u_r.numel() <= SMALL:
        # every step looks at the last one's answer: on the host there is no waiting
        return solve_policy(*devices.host(*given)).to(u_r.device)
    reward, cost, limit, trials = _checked(u_r, u_c, tau)
    count, m, size = cost.shape
    # a few trials at a time: their arms stay in the cache, slow ones hold up few
    budget = 2**21 if reward.device.type == "cpu" else 2**27
    step = max(1, budget // (size * m))
    parts = []
    for start in range(0, count, step):
        rows = slice(start, start + step)
        solve = _one_cost if m == 1 else _several_costs
        parts.append(solve(reward[rows], cost[rows], limit[rows]))
    return _joined(parts, trials)


def solve_policy_by_pricing(
    price: Price, m: int, tau: Any, *, device: Any = None
) -> PolicySolution:
    """The same programme over arms that only ``price`` has ever seen.

    Args:
        price: ``price(weight, lam)`` with ``weight`` of shape ``(*trials,)``, each 0
            or 1, and ``lam >= 0`` of shape ``(*trials, m)``: returns the number
            ``(*trials, n)`` of one or more arms, their ``u_r`` ``(*trials, n)`` and
            ``u_c`` ``(*trials, m, n)``. An arm that maximises
            ``weight * u_r - lam @ u_c`` must be among them; more good ones mean fewer
            passes. Every value returned must be finite.
        m: number of costs.
        tau: ``(*trials, m)``, or one number for all.
        device: where ``weight`` and ``lam`` live; that of ``tau`` by default.
    """
    if m < 1:
        raise CBanditError(f"m must be at least 1; got {m}")
    limit = checks.finite("tau", checks.tensor("tau", tau, device=device))
    if limit.dim() == 0:
        limit = limit.expand(m)
    if limit.shape[-1] != m or limit.numel() == 0:
        raise CBanditError(
            f"tau must have shape (*trials, m) with m = {m}; got {tuple(limit.shape)}"
        )
    trials = tuple(limit.shape[:-1])
    flat = limit.reshape(-1, m)

    def asked(weight: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        index, reward, cost = price(
            weight.view(trials).to(limit.device),
            lam.view(*trials, m).to(limit.device),
        )
        n = int(index.shape[-1]) if index.dim() else 0
        shapes = {"index": index, "u_r": reward, "u_c": cost}
        for name, value in shapes.items():
            expected = (*trials, m, n) if name == "u_c" else (*trials, n)
            if n == 0 or tuple(value.shape) != expected:
                raise CBanditError(
                    f"price must return {name} of shape "
                    f"{'(*trials, m, n)' if name == 'u_c' else '(*trials, n)'}, "
                    f"n >= 1; got {tuple(value.shape)}"
                )
        checks.finite("u_r of price", reward)
        checks.finite("u_c of price", cost)
        count = flat.shape[0]
        return (
            index.reshape(count, n),
            reward.reshape(count, n),
            cost.reshape(count, m, n),
        )

    return _joined([_priced(asked, flat)], trials)


def solve_policy_in_blocks(
    bounds: Callable[[], Iterable[tuple[int, Tensor]]], size: int, tau: Tensor
) -> PolicySolution:
    """The same programme over arms that are seen block by block.

    Args:
        bounds: gives all blocks again at every call: the number of a block's first arm
            and ``u_r`` before every ``u_c``, ``(T, 1 + m, n)``; a reward of minus
            infinity forbids an arm.
        size: how many arms there are.
        tau: ``(T, m)``.
    """
    count, m = tau.shape
    f = 1 + m
    if count * f * size * 8 <= HELD:
        held = torch.empty((f, count, size), dtype=torch.float64, device=tau.device)
        for start, u in bounds():
            held[..., start : start + u.shape[-1]] = u.movedim(1, 0)
        return solve_policy(held[0], held[1:].movedim(0, 1), tau)

    def price(weight: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # the best arm of every block: one of them is the best of all
        found = []
        for start, u in bounds():
            u = u.double()
            score = torch.where(
                (weight > 0).unsqueeze(-1),
                u[:, 0],
                torch.where(u[:, 0].isneginf(), u[:, 0], 0.0),
            ) - (lam.unsqueeze(1) @ u[:, 1:]).squeeze(1)
            place = score.argmax(-1, keepdim=True)
            values = u.gather(-1, place.unsqueeze(1).expand(-1, f, 1))
            found.append((place + start, values))
        values = torch.cat([v for _, v in found], -1)
        return torch.cat([i for i, _ in found], -1), values[:, 0], values[:, 1:]

    return solve_policy_by_pricing(price, m, tau)


# --- arguments and answers


def _checked(
    u_r: Any, u_c: Any, tau: Any
) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """Float64 ``(T, K)``, ``(T, m, K)``, ``(T, m)`` and the shape of the trials."""
    reward = checks.tensor("u_r", u_r)
    cost = checks.tensor("u_c", u_c, device=reward.device)
    limit = checks.finite("tau", checks.tensor("tau", tau, device=reward.device))
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
    if limit.dim() == 0:
        limit = limit.expand(m)
    if limit.shape[-1] != m:
        raise CBanditError(
            f"tau must have shape (*trials, m) with m = {m}, or be a number; got "
            f"{tuple(limit.shape)}"
        )
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
    # least and largest entry: NaN passes through, infinities show
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
            reward, cost = _forbidden(reward, cost)
    return reward, cost, limit, trials


def _forbidden(reward: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Arms never to be played get no reward at all and a cost that nothing offsets."""
    never = reward.isneginf() | (cost >= NEVER).any(-2)
    if bool(never.all(-1).any()):
        raise CBanditError(
            "u_r and u_c must leave an arm to play: every arm of a trial has an "
            "infinite entry"
        )
    reward = reward.masked_fill(never, -torch.inf)
    return reward, cost.masked_fill(never.unsqueeze(-2), NEVER)


def _joined(parts: list[PolicySolution], trials: tuple[int, ...]) -> PolicySolution:
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


def _distribution(arm: Tensor, probability: Tensor) -> Distribution:
    """``(T, k)`` arms in the order of their numbers, those without a share last."""
    last = torch.iinfo(torch.int64).max
    order = arm.masked_fill(probability <= 0, last).argsort(dim=-1, stable=True)
    probability = probability.clamp_min(0).gather(-1, order)
    index = arm.gather(-1, order).masked_fill(probability <= 0, 0)
    return Distribution(index=index, probability=probability)


def _power(scale: Tensor) -> Tensor:
    """The power of two that brings ``scale`` to about 1: multiplying by it is exact."""
    exponent = torch.frexp(scale).exponent.clamp(-1000, 1000)
    exponent = exponent.masked_fill(scale == 0, 0)
    return torch.ldexp(torch.ones_like(scale), -exponent)


# --- passes over the arms


def _step(arms: Tensor, block: int) -> int:
    """How many arms, in whole blocks, to look at in one piece."""
    room = 2**18 if arms.device.type == "cpu" else 2**27
    return max(1, room // (arms.shape[0] * block)) * block


def _scores(
    r: Tensor, c: Tensor, tau: Tensor, lam: Tensor, block: int
) -> Iterator[tuple[int, Tensor]]:
    """``r - lam (c - tau)`` in pieces ``(T, n)``, each with the number of its first.

    ``r`` and ``c`` are ``(T, K)``, ``tau`` and ``lam`` ``(T, 1)``. The pieces share one
    buffer that stays in the cache; a pass then costs little more than reading the arms.
    """
    rows, size = r.shape
    step = _step(r, block)
    buffer = r.new_empty((rows, min(step, size)))
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        score = buffer[:, : part.stop - start]
        torch.sub(c[:, part], tau, out=score)
        yield start, torch.addcmul(r[:, part], score, lam, value=-1, out=score)


def _best(
    r: Tensor, c: Tensor, tau: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The first arm ``(T,)`` of largest score, that score, its ``c - tau``."""
    block = neighbours(r.shape[1])
    peaks = torch.cat(
        [peaks_of(score, block) for _, score in _scores(r, c, tau, lam, block)], 1
    )
    at, _ = members(peaks.argmax(1, keepdim=True), block, r.shape[1])
    d = c.gather(1, at) - tau
    score = torch.addcmul(r.gather(1, at), d, lam, value=-1)
    best = score.argmax(1)
    return at_each(at, best), at_each(score, best), at_each(d, best)


def _above(
    r: Tensor, c: Tensor, tau: Tensor, lam: Tensor, floor: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rows with an arm that scores above ``floor`` ``(T, 1)``, and those arms.

    Their numbers, ``r`` and ``c - tau``: moved to the left in their order and padded.
    """
    found = []
    for start, score in _scores(r, c, tau, lam, neighbours(r.shape[1])):
        row, at = (score > floor).nonzero(as_tuple=True)
        found.append((row, at + start))
    row, at = (torch.cat(part) for part in zip(*found, strict=True))
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


# --- one cost


def _one_cost(reward: Tensor, cost: Tensor, limit: Tensor) -> PolicySolution:
    """Cutting planes on ``(T, K)``, ``(T, 1, K)``, ``(T, 1)``."""
    r, c, tau = reward, cost[:, 0], limit
    top = _largest(r, 0 * tau)
    width = torch.maximum(_largest(c, tau), tau[:, 0].abs())
    # plain numbers need no rescaling; products of extreme ones would overflow
    unit_r, unit_c = torch.ones_like(top), torch.ones_like(top)
    extreme = [(s > 1e60) | ((s < 1e-60) & (s > 0)) for s in (top, width)]
    if bool((extreme[0] | extreme[1]).any()):
        unit_r, unit_c = _power(top), _power(width)
        r = r * unit_r.unsqueeze(1)
        c = (c * unit_c.unsqueeze(1)).clamp_max(NEVER)
        tau = tau * unit_c.unsqueeze(1)
        top, width = top * unit_r, width * unit_c

    low = argmax(c, least=True)
    least = at_each(c, low)
    excess = least - tau[:, 0]
    infeasible = excess > FEASIBLE * width
    if bool(infeasible.any()):
        # of the least costly arms the best one
        tied = torch.where(c == least.unsqueeze(1), r, -torch.inf)
        low = torch.where(infeasible, argmax(tied), low)
    # feasible but for rounding: the limit follows
    tau = torch.where(infeasible | (excess <= 0), tau[:, 0], least).unsqueeze(1)

    high = argmax(r)
    low, high, lam, upper = _cuts(r, c, tau, low, high, ~infeasible, ROUNDING * top)
    low_d, high_d = at_each(c, low) - tau[:, 0], at_each(c, high) - tau[:, 0]
    alone = infeasible | (high_d > 0) & (lam == 0)  # low alone
    first = torch.where(alone, 1.0, high_d / (high_d - low_d))
    first = torch.where(~infeasible & (high_d <= 0), 0.0, first)  # high alone
    p = torch.stack([first, 1 - first], 1)
    arm = torch.stack([low, high], 1)
    value = torch.where(p > 0, p * reward.gather(1, arm), 0.0).sum(1)
    lam = torch.where(infeasible, 1.0, lam * unit_c / unit_r)
    gap = torch.where(infeasible, 0.0, upper / unit_r - value)
    return PolicySolution(
        distribution=_distribution(arm, p),
        value=value,
        multiplier=lam.unsqueeze(1),
        gap=gap,
        infeasible=infeasible,
        violation=torch.where(infeasible, excess / unit_c, 0.0),
    )


def _largest(value: Tensor, center: Tensor) -> Tensor:
    """Largest distance ``(T,)`` of playable arms' ``(T, K)`` from ``(T, 1)``."""
    least, largest = value.amin(-1, keepdim=True), value.amax(-1, keepdim=True)
    if bool(torch.isinf(least).any()) or bool((largest > NEVER / 2).any()):
        out = (value - center).abs()
        return out.masked_fill(out > NEVER / 4, 0).amax(-1)
    return torch.maximum(center - least, largest - center).squeeze(1)


def _cuts(
    r: Tensor,
    c: Tensor,
    tau: Tensor,
    low: Tensor,
    high: Tensor,
    feasible: Tensor,
    slack: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The hull's edge over ``c = tau``: its arms, slope and the dual's value, ``(T,)``.

    ``low`` is a feasible arm and ``high`` the best one; where ``high`` is feasible too
    it is the answer. Every step replaces one of them by the arm farthest above their
    chord, so what lies between them shrinks until no arm is above it. A chord that
    joins two points of the hull has every arm of the edge sought on it or above, hence
    those below are left out of the later passes as soon as they are most.
    """
    everything = r, c, tau
    low_r, low_d = at_each(r, low), at_each(c, low) - tau[:, 0]
    high_r, high_d = at_each(r, high), at_each(c, high) - tau[:, 0]
    active = feasible & (high_d > 0)
    lam = torch.zeros_like(slack)
    upper = high_r.clone()
    who = torch.arange(len(slack), device=r.device)  # the trial of each row kept
    arm: Tensor | None = None  # the number of each arm kept, once some are dropped
    while bool(active.any()):
        lam = torch.where(active, (high_r - low_r) / (high_d - low_d), lam)
        chord = torch.maximum(low_r - lam * low_d, high_r - lam * high_d) + slack
        here = lam[who].unsqueeze(1)
        if r.shape[1] > FEW:
            floor = torch.where(active, chord, torch.inf)[who].unsqueeze(1)
            some = slice(None, None, r.shape[1] // 2048)
            sample = r[:, some] - here * (c[:, some] - tau) > floor
            if float(sample.double().mean(1).max()) <= 0.125:
                rows, at, r, c = _above(r, c, tau, here, floor)
                arm = at if arm is None else arm[rows].gather(1, at)
                who, here, tau = who[rows], here[rows], torch.zeros_like(here[rows])
                active = torch.zeros_like(active).index_fill_(0, who, True)
                if len(who) == 0:
                    break
        at, score, excess = _best(r, c, tau, here)
        new, new_r, new_d, best = low.clone(), low_r.clone(), low_d.clone(), chord + 0
        new[who] = at if arm is None else at_each(arm, at)
        new_r[who], new_d[who], best[who] = at_each(r, at), excess, score
        if arm is None:
            upper = torch.where(active, best, upper)
        # between the two, or right above one: strict progress, so an end
        inside = (new_d > low_d) & (new_d < high_d)
        inside |= (new_d == low_d) & (new_r > low_r)
        inside |= (new_d == high_d) & (new_r > high_r)
        active = active & (best > chord) & inside
        left, right = active & (new_d <= 0), active & (new_d > 0)
        low = torch.where(left, new, low)
        low_r = torch.where(left, new_r, low_r)
        low_d = torch.where(left, new_d, low_d)
        high = torch.where(right, new, high)
        high_r = torch.where(right, new_r, high_r)
        high_d = torch.where(right, new_d, high_d)
    if arm is not None:  # the certificate speaks of all arms
        upper = _best(*everything, lam.unsqueeze(1))[1]
    return low, high, lam, upper


# --- several costs


def _several_costs(reward: Tensor, cost: Tensor, limit: Tensor) -> PolicySolution:
    """The pool's loop on ``(T, K)``, ``(T, m, K)``, ``(T, m)``."""
    count, m, size = cost.shape
    block = neighbours(size)

    def price(weight: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if size <= WHOLE:
            return everything
        # the best arm of each of the best blocks: all good, and far apart
        pieces = _scores_of_many(reward, cost, weight, lam, block)
        peaks = torch.cat([peaks_of(score, block) for score in pieces], 1)
        blocks = peaks.topk(min(CANDIDATES, peaks.shape[1]), dim=1).indices
        at, _ = members(blocks, block, size)
        _, r, c = taken(at)
        inside = next(_scores_of_many(r, c, weight, lam, r.shape[1]))
        best = inside.view(count, -1, block).argmax(-1)
        at = at.view(count, -1, block).gather(2, best.unsqueeze(2)).squeeze(2)
        return taken(at)

    def taken(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        everywhere = at.unsqueeze(1).expand(-1, m, -1)
        return at, reward.gather(1, at), cost.gather(2, everywhere)

    if size <= WHOLE:
        numbers = torch.arange(size, device=reward.device)
        everything = (numbers.expand(count, size), reward, cost)
    return _priced(price, limit, whole=size <= WHOLE)


def _scores_of_many(
    reward: Tensor, cost: Tensor, weight: Tensor, lam: Tensor, block: int
) -> Iterator[Tensor]:
    """``weight * reward - lam @ cost`` in pieces ``(T, n)``, like :func:`_scores`."""
    rows, m, size = cost.shape
    step = _step(reward, block)
    buffer = reward.new_empty((rows, min(step, size)))
    # without its reward a forbidden arm stays so by its cost
    searching = (weight == 0).unsqueeze(1)
    some = bool(searching.any())
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        score = buffer[:, : part.stop - start].copy_(reward[:, part])
        if some:
            score.masked_fill_(searching, 0.0)
        for j in range(m):
            score.addcmul_(cost[:, j, part], lam[:, j, None], value=-1)
        yield score


def _priced(price: Price, limit: Tensor, whole: bool = False) -> PolicySolution:
    """Column generation: ``price`` over all arms, a simplex method over those seen.

    ``limit`` is ``(T, m)``; ``whole`` says that every call returns every arm.
    """
    count, m = limit.shape
    tau = limit.cpu().numpy().copy()

    def ask(weight: Array, lam: Array) -> tuple[Array, Array, Array]:
        arm, r, c = price(
            torch.as_tensor(weight, dtype=torch.float64, device=limit.device),
            torch.as_tensor(lam, dtype=torch.float64, device=limit.device),
        )
        r, c = r.detach().double(), c.detach().double()
        return arm.cpu().numpy(), r.cpu().numpy(), c.cpu().numpy()

    # the best arm, and the least costly ones of each cost
    found = [ask(np.ones(count), np.zeros((count, m)))]
    if not whole:
        for j in range(m):
            found.append(ask(np.zeros(count), np.tile(np.eye(m)[j], (count, 1))))
    arm = np.concatenate([f[0] for f in found], -1)  # T x n
    reward = np.concatenate([f[1] for f in found], -1)  # T x n
    cost = np.concatenate([f[2] for f in found], -1)  # T x m x n
    basis = None
    restart = np.ones(count, dtype=bool)
    infeasible = np.zeros(count, dtype=bool)
    while True:
        delta = _excess(reward, cost, tau)
        scale = np.abs(delta).max(2)  # T x m
        unit_r = _unit(np.abs(np.where(np.isneginf(reward), 0, reward)).max(1))
        # each cost in its own unit; where the limits cannot be kept all in one, as what
        # is least then is the largest miss in the user's numbers
        unit_d = _unit(scale)
        unit_d = np.where(infeasible[:, None], unit_d.min(1, keepdims=True), unit_d)
        scaled = delta * unit_d[:, :, None]
        fresh = _start(scaled, reward)
        basis = fresh if basis is None else np.where(restart[:, None], fresh, basis)
        basis, x, y = _simplex(reward * unit_r[:, None], scaled, basis)
        short = (basis == m).any(1)  # no feasible point yet: y prices the shortfall
        unit = np.where(short, unit_d.min(1), unit_r)
        with np.errstate(over="ignore"):
            lam = np.maximum(y[:, :m], 0) * unit_d / unit[:, None]
        if not np.isfinite(lam).all():
            raise CBanditError(
                "u_r and u_c must be of scales whose ratio is a number; got about "
                f"{1 / unit_r.min():.0e} and {1 / unit_d.max():.0e}"
            )
        new = (arm, reward, cost) if whole else ask(np.where(short, 0.0, 1.0), lam)
        score = np.where(short[:, None] & ~np.isneginf(new[1]), 0.0, new[1])
        score = score - (lam[:, :, None] * _excess(new[1], new[2], tau)).sum(1)
        best, upper = score.argmax(1), score.max(1)
        # an arm already seen can only be better by rounding
        seen = (arm == np.take_along_axis(new[0], best[:, None], 1)).any(1)
        better = upper * unit - y[:, m] > ROUNDING * (1 + np.abs(y[:, :m]).sum(1))
        better &= ~seen
        p, at = _shares(x, basis, m)
        mean = (p[:, None] * np.take_along_axis(delta, at[:, None], 2)).sum(2)
        scale = np.maximum(scale, np.abs(tau))
        kept = (mean <= FEASIBLE * scale).all(1)
        ended = short & ~better & ~infeasible
        relax = ended & kept  # feasible but for rounding: the limits follow
        tau[relax] += (np.maximum(mean, 0) + 4 * EPS * scale)[relax]
        infeasible |= ended & ~kept
        restart = ended
        if not (better | restart).any():
            break
        if not whole:
            arm = np.concatenate([arm, new[0]], -1)
            reward = np.concatenate([reward, new[1]], -1)
            cost = np.concatenate([cost, new[2]], -1)

    def back(value: Array) -> Tensor:
        return torch.as_tensor(value, device=limit.device)

    chosen = np.take_along_axis(reward, at, 1)
    value = np.where(p > 0, p * np.where(p > 0, chosen, 0), 0).sum(1)
    worst = mean.max(1)
    gap = upper + np.where(infeasible, worst, -value)
    return PolicySolution(
        distribution=_distribution(
            back(np.take_along_axis(arm, at, 1).astype(np.int64)), back(p)
        ),
        value=back(value),
        multiplier=back(lam),
        gap=back(np.where(infeasible & ~short, worst, gap)),
        infeasible=back(infeasible),
        violation=back(np.where(infeasible, worst, 0.0)),
    )


def _excess(reward: Array, cost: Array, tau: Array) -> Array:
    """Cost above its limit, ``(T, m, n)``; 0 for arms that are never played."""
    never = np.isneginf(reward)[:, None, :]
    out: Array = np.where(never, 0.0, cost - tau[:, :, None])
    return out


def _unit(scale: Array) -> Array:
    """The power of two that brings ``scale`` to about 1: multiplying by it is exact."""
    exponent = np.clip(np.frexp(scale)[1], -1000, 1000)
    out: Array = np.ldexp(1.0, np.where(scale == 0, 0, -exponent))
    return out


def _shares(x: Array, basis: Array, m: int) -> tuple[Array, Array]:
    """Probabilities and places in the pool, ``(T, m + 1)`` both."""
    p = np.where(basis > m, np.maximum(x, 0), 0)
    return p / p.sum(1, keepdims=True), np.maximum(basis - m - 1, 0)


# The variables of the simplex method, by number: 0 .. m-1 the slack of each cost, m the
# shortfall (what all limits would have to give way), m+1+k the k-th arm of the pool.


def _start(delta: Array, reward: Array) -> Array:
    """A basis ``(T, m + 1)``: one arm, slacks, and the shortfall where it needs one."""
    count, m, _ = delta.shape
    worst = np.where(np.isneginf(reward), np.inf, delta.max(1))
    k = worst.argmin(1)
    basis = np.concatenate([np.tile(np.arange(m), (count, 1)), k[:, None] + m + 1], 1)
    excess = np.take_along_axis(delta, k[:, None, None], 2)[:, :, 0]
    rows = np.flatnonzero(excess.max(1) > 0)
    basis[rows, excess.argmax(1)[rows]] = m
    return basis


def _simplex(reward: Array, delta: Array, basis: Array) -> tuple[Array, Array, Array]:
    """The best basis over the pool, its point and its duals, ``(T, m + 1)`` each.

    While the shortfall is in the basis it is what is minimised; once out it stays
    out."""
    count, m, n = delta.shape
    rows = np.arange(count)
    columns = np.zeros((count, m + 1, m + 1 + n))
    columns[:, :m, :m] = np.eye(m)
    columns[:, :m, m] = -1
    columns[:, :m, m + 1 :] = delta
    columns[:, m, m + 1 :] = 1
    gain = np.zeros((2, count, m + 1 + n))
    gain[0, :, m + 1 :] = reward
    gain[1, :, m] = -1
    gain[1, :, m + 1 :] = np.where(np.isneginf(reward), -np.inf, 0)
    right = np.zeros((count, m + 1, 1))
    right[:, m] = 1
    basis = basis.copy()
    patience = 50 * (m + 2)
    step = 0
    while True:
        short = (basis == m).any(1)
        now = np.where(short[:, None], gain[1], gain[0])
        square = np.take_along_axis(columns, basis[:, None, :], 2)
        x = np.linalg.solve(square, right)[:, :, 0]
        held = np.take_along_axis(now, basis, 1)
        y = np.linalg.solve(square.swapaxes(1, 2), held[:, :, None])[:, :, 0]
        better = now - (y[:, None, :] @ columns)[:, 0]
        np.put_along_axis(better, basis, -np.inf, 1)
        better[:, m] = -np.inf
        tolerance = ROUNDING * (1 + np.abs(y[:, :m]).sum(1))
        # the steepest one; the first one, should that ever go in circles (Bland)
        bland = step > patience
        enter = (better > tolerance[:, None] if bland else better).argmax(1)
        go = better[rows, enter] > tolerance
        if not go.any() or step > 20 * patience:
            return basis, x, y
        into = columns[rows, :, enter]
        w = np.linalg.solve(square, into[:, :, None])[:, :, 0]
        falls = w > 1e-13 * np.abs(w).max(1, keepdims=True)
        ratio = np.where(falls, np.maximum(x, 0) / np.where(falls, w, 1), np.inf)
        tied = ratio <= ratio.min(1, keepdims=True) * (1 + 4 * EPS)
        key = np.where(tied, -basis if bland else w, -np.inf)
        key[tied & (basis == m)] = np.inf
        leave = key.argmax(1)
        basis[rows[go], leave[go]] = enter[go]
        step += 1
