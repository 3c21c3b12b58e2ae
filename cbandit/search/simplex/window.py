"""The price at which the average spend over a window of rows is the target.

A row holds the estimated reward and costs of every choice in one round. Over ``n`` rows

    max  1/n sum_i E f_i   s.t.  1/n sum_i E c_ij <= target_j

where each row may mix its choices. The price is the dual solution. At a price ``phi``
each row plays ``argmax f - phi c``; over all rows this is one *plan*, with an average
reward and an average spend. The programme's solution mixes at most ``m + 1`` plans, all
best at the price; so the last row too has at most that many choices.

One cost: :mod:`cbandit_kernels.prices`. Several: column generation, with plans as arms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.search.simplex.lp import solve_policy
from cbandit.search.simplex.pricing import solve_policy_by_pricing
from cbandit.search.simplex.programme import (
    FEASIBLE,
    ROUNDING,
    PolicySolution,
    distribution,
)
from cbandit_kernels import window_price

RELAXED = 1e-9  # share added to the least excess when infeasible limits are raised


@dataclass(frozen=True, eq=False)
class Price:
    """A price, and what the last row plays at it.

    Args:
        price: ``(T, m)``.
        shares: the last row's choices and their probabilities, ``(T, m + 1)`` each,
            zero-padded. ``infeasible``: trials in which no plan reaches the target;
            their price and shares are those of the least relative excess.
        near: prices at which the mixed plans are best, ``(T, k, m)``, where a later
            search may begin.
    """

    price: Tensor
    shares: Distribution
    near: Tensor


def resolve(
    f: Tensor, c: Tensor, target: Tensor, unit: Tensor, begin: Tensor | None = None
) -> Price:
    """Return the price at which the average spend over a window is the target.

    Args:
        f: estimated rewards, ``(T, n, K)`` float64; minus infinity forbids a choice.
        c: estimated costs, ``(T, m, n, K)``.
        target: ``(T, m)``.
        unit: what each cost's excess is divided by, ``(T, m)``, above 0.
        begin: prices to begin with, as ``near`` of an earlier :class:`Price`.
    """
    if not bool((f.amax(-1) > -torch.inf).all()):
        raise CBanditError("f must allow a choice in every row; got a row without any")
    if c.shape[1] == 1:
        return _one_price(f, c[:, 0], target[:, 0], begin)
    return _several_prices(f, c, target, unit, begin)


def resolve_row(f: Tensor, c: Tensor, target: Tensor, unit: Tensor) -> Price:
    """Return :func:`resolve` over one row of any length: ``(T, K)``, ``(T, m, K)``."""
    scaled = c / unit.unsqueeze(-1)

    def solved(tau: Tensor) -> PolicySolution:
        return solve_policy(f, scaled, tau)

    solution, infeasible = _relaxed(solved, target / unit)
    pi = solution.distribution
    shares = Distribution(pi.index, pi.probability, infeasible)
    price = solution.multiplier / unit
    return Price(price, shares, price.unsqueeze(1))


# -- one cost --------------------------------------------------------------------------


def _one_price(f: Tensor, c: Tensor, target: Tensor, begin: Tensor | None) -> Price:
    """Return the price of one cost, ``c (T, n, K)``, ``target (T,)``."""
    near = None if begin is None else begin[..., 0].cpu()
    given = f.cpu(), c.cpu(), target.cpu(), near
    found = window_price(*given, feasible=FEASIBLE, rounding=ROUNDING)
    price, arms, shares, near, infeasible = (part.to(f.device) for part in found)
    pi = Distribution(arms, shares, infeasible)
    return Price(price.unsqueeze(-1), pi, near.unsqueeze(-1))


# -- several costs ---------------------------------------------------------------------


class _Pool:
    """The plans found so far, numbered in each trial; equal plans share a number.

    Args:
        f: rewards, ``(T, n, K)``.
        c: costs, ``(T, m, n, K)``.
        begin: prices ``(T, k, m)`` whose plans are added to the first result.
    """

    def __init__(self, f: Tensor, c: Tensor, begin: Tensor | None) -> None:
        self._f, self._c, self._begin = f, c, begin
        trials, m = c.shape[:2]
        self.values = f.new_zeros(trials, 1 + m, 0)
        self.last = torch.zeros(trials, 0, dtype=torch.long, device=f.device)
        self.prices = f.new_zeros(trials, 0, m)

    def price(self, weight: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return plans, among them the one that maximises ``weight f - lam c``."""
        asked = [(weight, lam)]
        if self._begin is not None:
            asked += [(torch.ones_like(weight), near) for near in self._begin.unbind(1)]
            self._begin = None
        plans = [self._plan(*each) for each in asked]
        numbers = torch.stack([number for number, _ in plans], -1)
        values = torch.stack([value for _, value in plans], -1)
        return numbers, values[:, 0], values[:, 1:]

    def _plan(self, weight: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best plan's number ``(T,)``, its reward and spends ``(T, 1 + m)``.

        A weight of 0 drops the reward, but forbidden choices stay forbidden.
        """
        f, c = self._f, self._c
        spend = torch.einsum("tm,tmnk->tnk", lam, c)
        counts = f.isneginf() | (weight > 0)[:, None, None]
        reward = torch.where(counts, f, 0.0)
        at = (reward - spend).argmax(-1, keepdim=True)
        values = [f.gather(-1, at).mean((1, 2))]
        values += [cost.gather(-1, at).mean((1, 2)) for cost in c.unbind(1)]
        value = torch.stack(values, -1)
        same = (self.values == value.unsqueeze(-1)).all(1)
        same = torch.cat([same, same.new_ones(len(same), 1)], -1)
        number = same.to(torch.uint8).argmax(-1)
        self.values = torch.cat([self.values, value.unsqueeze(-1)], -1)
        self.last = torch.cat([self.last, at[:, -1]], -1)
        self.prices = torch.cat([self.prices, lam.unsqueeze(1)], 1)
        return number, value


def _several_prices(
    f: Tensor, c: Tensor, target: Tensor, unit: Tensor, begin: Tensor | None
) -> Price:
    """Return the prices of several costs."""
    scaled = c / unit[..., None, None]
    if begin is not None:
        begin = begin * unit.unsqueeze(1)
    pool = _Pool(f, scaled, begin)

    def solved(tau: Tensor) -> PolicySolution:
        return solve_policy_by_pricing(pool.price, c.shape[1], tau)

    solution, infeasible = _relaxed(solved, target / unit)
    plans, p = solution.distribution.index, solution.distribution.probability
    # several plans may play the same choice in the last row
    last = pool.last.gather(-1, plans)
    first = (last.unsqueeze(-1) == last.unsqueeze(-2)).to(torch.uint8).argmax(-1)
    pi = distribution(last, torch.zeros_like(p).scatter_add(-1, first, p))
    at = plans.unsqueeze(-1).expand(-1, -1, c.shape[1])
    near = pool.prices.gather(1, at) / unit.unsqueeze(1)
    price = solution.multiplier / unit
    return Price(price, Distribution(pi.index, pi.probability, infeasible), near)


def _relaxed(
    solved: Callable[[Tensor], PolicySolution], tau: Tensor
) -> tuple[PolicySolution, Tensor]:
    """Solve a programme; raise all limits alike in trials where it is infeasible.

    Return the solution, and the trials ``(T,)`` whose limits were raised: by the least
    possible excess plus a rounding error.
    """
    solution = solved(tau)
    infeasible = solution.infeasible
    if bool(infeasible.any()):
        way = solution.violation * (1 + RELAXED)
        solution = solved(tau + torch.where(infeasible, way, 0.0).unsqueeze(-1))
    return solution, infeasible
