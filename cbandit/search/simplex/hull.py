"""One cost: the answer is an edge of the upper hull of the points ``(u_c, u_r)``.

It is found by cutting planes on the dual
``min_{lam >= 0} max_a u_r + lam (tau - u_c)``: between a feasible vertex and an
infeasible one, the arm farthest above their chord replaces one of them; arms below the
chord are dropped for good.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core.peaks import argmax, at_each
from cbandit.search.simplex.programme import (
    FEASIBLE,
    NEVER,
    ROUNDING,
    PolicySolution,
    above,
    best,
    distribution,
    power_of_two,
)

FEW = 4096  # with at most so many arms, a pass is cheaper than dropping any


def one_cost(reward: Tensor, cost: Tensor, limit: Tensor) -> PolicySolution:
    """Solve by cutting planes, given ``(T, K)``, ``(T, 1, K)`` and ``(T, 1)``."""
    r, c, tau = reward, cost[:, 0], limit
    top = _farthest(r, 0 * tau)
    width = torch.maximum(_farthest(c, tau), tau[:, 0].abs())
    # rescale only extreme numbers, whose products would overflow
    unit_r, unit_c = torch.ones_like(top), torch.ones_like(top)
    extreme = [(s > 1e60) | ((s < 1e-60) & (s > 0)) for s in (top, width)]
    if bool((extreme[0] | extreme[1]).any()):
        unit_r, unit_c = power_of_two(top), power_of_two(width)
        r = r * unit_r.unsqueeze(1)
        c = (c * unit_c.unsqueeze(1)).clamp_max(NEVER)
        tau = tau * unit_c.unsqueeze(1)
        top, width = top * unit_r, width * unit_c

    low = argmax(c, least=True)
    least = at_each(c, low)
    excess = least - tau[:, 0]
    infeasible = excess > FEASIBLE * width
    if bool(infeasible.any()):
        # take the best arm among the least costly
        tied = torch.where(c == least.unsqueeze(1), r, -torch.inf)
        low = torch.where(infeasible, argmax(tied), low)
    # move a limit that is missed by rounding alone
    tau = torch.where(infeasible | (excess <= 0), tau[:, 0], least).unsqueeze(1)

    high = argmax(r)
    low, high, lam, upper = _cuts(r, c, tau, low, high, ~infeasible, ROUNDING * top)
    low_d, high_d = at_each(c, low) - tau[:, 0], at_each(c, high) - tau[:, 0]
    alone = infeasible | (high_d > 0) & (lam == 0)  # play low alone
    first = torch.where(alone, 1.0, high_d / (high_d - low_d))
    first = torch.where(~infeasible & (high_d <= 0), 0.0, first)  # play high alone
    p = torch.stack([first, 1 - first], 1)
    arm = torch.stack([low, high], 1)
    value = torch.where(p > 0, p * reward.gather(1, arm), 0.0).sum(1)
    lam = torch.where(infeasible, 1.0, lam * unit_c / unit_r)
    gap = torch.where(infeasible, 0.0, upper / unit_r - value)
    return PolicySolution(
        distribution=distribution(arm, p),
        value=value,
        multiplier=lam.unsqueeze(1),
        gap=gap,
        infeasible=infeasible,
        violation=torch.where(infeasible, excess / unit_c, 0.0),
    )


def _farthest(value: Tensor, center: Tensor) -> Tensor:
    """Return the largest distance ``(T,)`` of playable arms from ``center (T, 1)``."""
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
    """Find the hull's edge over ``c = tau``: its arms, slope and dual value, ``(T,)``.

    ``low`` is a feasible arm and ``high`` the best arm; if ``high`` is feasible too, it
    is the answer. Each step replaces one of them by the arm farthest above their chord,
    until no arm is above it. The arms of the edge lie on or above any chord between two
    points of the hull. So arms below the chord are dropped, once most of the arms are
    below.
    """
    everything = r, c, tau
    low_r, low_d = at_each(r, low), at_each(c, low) - tau[:, 0]
    high_r, high_d = at_each(r, high), at_each(c, high) - tau[:, 0]
    active = feasible & (high_d > 0)
    lam = torch.zeros_like(slack)
    upper = high_r.clone()
    who = torch.arange(len(slack), device=r.device)  # the trials of the rows left
    arm: Tensor | None = None  # numbers of the arms left, once some are dropped
    while bool(active.any()):
        lam = torch.where(active, (high_r - low_r) / (high_d - low_d), lam)
        chord = torch.maximum(low_r - lam * low_d, high_r - lam * high_d) + slack
        price = lam[who].unsqueeze(1)
        if r.shape[1] > FEW:
            floor = torch.where(active, chord, torch.inf)[who].unsqueeze(1)
            some = slice(None, None, r.shape[1] // 2048)
            sample = r[:, some] - price * (c[:, some] - tau) > floor
            if float(sample.double().mean(1).max()) <= 0.125:
                rows, at, r, c = above(r, c, tau, price, floor)
                arm = at if arm is None else arm[rows].gather(1, at)
                who, price, tau = who[rows], price[rows], torch.zeros_like(price[rows])
                active = torch.zeros_like(active).index_fill_(0, who, True)
                if len(who) == 0:
                    break
        at, score, excess = best(r, c, tau, price)
        new, new_r, new_d, top = low.clone(), low_r.clone(), low_d.clone(), chord + 0
        new[who] = at if arm is None else at_each(arm, at)
        new_r[who], new_d[who], top[who] = at_each(r, at), excess, score
        if arm is None:
            upper = torch.where(active, top, upper)
        # only arms between the two, or exactly above one, so that the loop ends
        inside = (new_d > low_d) & (new_d < high_d)
        inside |= (new_d == low_d) & (new_r > low_r)
        inside |= (new_d == high_d) & (new_r > high_r)
        active = active & (top > chord) & inside
        left, right = active & (new_d <= 0), active & (new_d > 0)
        low = torch.where(left, new, low)
        low_r = torch.where(left, new_r, low_r)
        low_d = torch.where(left, new_d, low_d)
        high = torch.where(right, new, high)
        high_r = torch.where(right, new_r, high_r)
        high_d = torch.where(right, new_d, high_d)
    if arm is not None:  # the certificate must hold for all arms
        upper = best(*everything, lam.unsqueeze(1))[1]
    return low, high, lam, upper
