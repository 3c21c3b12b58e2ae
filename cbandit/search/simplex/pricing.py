"""Several costs: a simplex method over a small pool of arms, which passes enlarge.

One pass over all arms asks for those of best reduced cost, until none has a positive
one. The arms need not be materialised: :func:`solve_policy_by_pricing`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.peaks import members, neighbours, peaks_of
from cbandit.errors import CBanditError
from cbandit.search.simplex.inputs import limits
from cbandit.search.simplex.passes import weighed
from cbandit.search.simplex.pool import (
    EPS,
    FEASIBLE,
    ROUNDING,
    Array,
    excess,
    shares,
    solve,
    start,
    unit_of,
)
from cbandit.search.simplex.solution import PolicySolution, distribution, joined

__all__ = ["Price", "several_costs", "solve_policy_by_pricing"]

Price = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]

WHOLE = 1024  # up to so many arms the pool holds them all
CANDIDATES = 32  # arms taken from one pass


def solve_policy_by_pricing(
    price: Price, m: int, tau: Any, *, device: Any = None
) -> PolicySolution:
    """Solve the programme over arms that only ``price`` ever sees.

    Args:
        price: a function of ``weight (*trials,)``, each 0 or 1, and ``lam >= 0`` of
            shape ``(*trials, m)``. It returns the numbers ``(*trials, n)`` of one or
            more arms, their ``u_r (*trials, n)`` and ``u_c (*trials, m, n)``, all of
            them finite. An arm that maximises ``weight * u_r - lam @ u_c`` must be
            among them; more good ones mean fewer passes.
        m: number of costs.
        tau: ``(*trials, m)``, or one number for all.
        device: where ``weight`` and ``lam`` live; that of ``tau`` by default.
    """
    if m < 1:
        raise CBanditError(f"m must be at least 1; got {m}")
    limit = limits(tau, m, device)
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

    return joined([priced(asked, flat)], trials)


def several_costs(reward: Tensor, cost: Tensor, limit: Tensor) -> PolicySolution:
    """Solve by column generation, given ``(T, K)``, ``(T, m, K)`` and ``(T, m)``."""
    count, m, size = cost.shape
    block = neighbours(size)

    def price(weight: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if size <= WHOLE:
            return everything
        # the best arm of each of the best blocks: good arms, far apart
        pieces = weighed(reward, cost, weight, lam, block)
        peaks = torch.cat([peaks_of(score, block) for score in pieces], 1)
        blocks = peaks.topk(min(CANDIDATES, peaks.shape[1]), dim=1).indices
        at, _ = members(blocks, block, size)
        _, r, c = taken(at)
        inside = next(weighed(r, c, weight, lam, r.shape[1]))
        best = inside.view(count, -1, block).argmax(-1)
        at = at.view(count, -1, block).gather(2, best.unsqueeze(2)).squeeze(2)
        return taken(at)

    def taken(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        everywhere = at.unsqueeze(1).expand(-1, m, -1)
        return at, reward.gather(1, at), cost.gather(2, everywhere)

    if size <= WHOLE:
        numbers = torch.arange(size, device=reward.device)
        everything = (numbers.expand(count, size), reward, cost)
    return priced(price, limit, whole=size <= WHOLE)


def priced(price: Price, limit: Tensor, whole: bool = False) -> PolicySolution:
    """Generate columns: ``price`` sees all arms, a simplex method those it returned.

    Args:
        price: as of :func:`solve_policy_by_pricing`, for ``T`` trials.
        limit: ``(T, m)``.
        whole: whether every call returns every arm.
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

    # begin with the best arm, and the least costly ones of each cost
    answers = [ask(np.ones(count), np.zeros((count, m)))]
    if not whole:
        for j in range(m):
            answers.append(ask(np.zeros(count), np.tile(np.eye(m)[j], (count, 1))))
    arm = np.concatenate([f[0] for f in answers], -1)  # T x n
    reward = np.concatenate([f[1] for f in answers], -1)  # T x n
    cost = np.concatenate([f[2] for f in answers], -1)  # T x m x n
    basis = None
    restart = np.ones(count, dtype=bool)
    infeasible = np.zeros(count, dtype=bool)
    while True:
        delta = excess(reward, cost, tau)
        scale = np.abs(delta).max(2)  # T x m
        unit_r = unit_of(np.abs(np.where(np.isneginf(reward), 0, reward)).max(1))
        # each cost has its own unit, but an infeasible trial one for all of them: there
        # the largest miss in the user's numbers is minimised
        unit_d = unit_of(scale)
        unit_d = np.where(infeasible[:, None], unit_d.min(1, keepdims=True), unit_d)
        scaled = delta * unit_d[:, :, None]
        fresh = start(scaled, reward)
        basis = fresh if basis is None else np.where(restart[:, None], fresh, basis)
        basis, x, y = solve(reward * unit_r[:, None], scaled, basis)
        short = (basis == m).any(1)  # not feasible yet: y prices the shortfall
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
        score = score - (lam[:, :, None] * excess(new[1], new[2], tau)).sum(1)
        best, upper = score.argmax(1), score.max(1)
        # an arm known before can be better by rounding only
        known = (arm == np.take_along_axis(new[0], best[:, None], 1)).any(1)
        better = upper * unit - y[:, m] > ROUNDING * (1 + np.abs(y[:, :m]).sum(1))
        better &= ~known
        p, at = shares(x, basis, m)
        mean = (p[:, None] * np.take_along_axis(delta, at[:, None], 2)).sum(2)
        scale = np.maximum(scale, np.abs(tau))
        within = (mean <= FEASIBLE * scale).all(1)
        ended = short & ~better & ~infeasible
        relax = ended & within  # limits missed by rounding alone are moved
        tau[relax] += (np.maximum(mean, 0) + 4 * EPS * scale)[relax]
        infeasible |= ended & ~within
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
        distribution=distribution(
            back(np.take_along_axis(arm, at, 1).astype(np.int64)), back(p)
        ),
        value=back(value),
        multiplier=back(lam),
        gap=back(np.where(infeasible & ~short, worst, gap)),
        infeasible=back(infeasible),
        violation=back(np.where(infeasible, worst, 0.0)),
    )
