"""The price at which the average spend over a window of rows is the target.

A row holds the estimated reward and costs of every choice in one round. Over ``n`` rows

    max  1/n sum_i E f_i   s.t.  1/n sum_i E c_ij <= target_j

where each row may mix its choices. The price is the dual solution. At a price ``phi``
each row plays ``argmax f - phi c``; over all rows this is one *plan*, with an average
reward and an average spend. The programme's solution mixes at most ``m + 1`` plans, all
best at the price; so the last row too has at most that many choices.

It is found by :mod:`cbandit_kernels.prices`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.search.simplex.lp import solve_policy
from cbandit.search.simplex.programme import FEASIBLE, ROUNDING
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
    near = None if begin is None else begin.cpu()
    given = f.cpu(), c.cpu(), target.cpu(), unit.cpu(), near
    found = window_price(*given, feasible=FEASIBLE, rounding=ROUNDING)
    price, arms, shares, near, infeasible = (part.to(f.device) for part in found)
    return Price(price, Distribution(arms, shares, infeasible), near)


def resolve_row(f: Tensor, c: Tensor, target: Tensor, unit: Tensor) -> Price:
    """Return :func:`resolve` over one row of any length: ``(T, K)``, ``(T, m, K)``."""
    scaled, tau = c / unit.unsqueeze(-1), target / unit
    solution = solve_policy(f, scaled, tau)
    infeasible = solution.infeasible
    if bool(infeasible.any()):  # raise all limits alike, by the least possible excess
        way = solution.violation * (1 + RELAXED)
        raised = tau + torch.where(infeasible, way, 0.0).unsqueeze(-1)
        solution = solve_policy(f, scaled, raised)
    pi = solution.distribution
    shares = Distribution(pi.index, pi.probability, infeasible)
    price = solution.multiplier / unit
    return Price(price, shares, price.unsqueeze(1))
