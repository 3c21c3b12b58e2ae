"""The best distribution over arms under expected-cost limits, exactly.

    max_pi  sum_a pi_a u_r[a]   s.t.  sum_a pi_a u_c[j, a] <= tau[j], pi in the simplex

from two arms to 10^7, for any number ``m`` of costs (Pacchiano, Ghavamzadeh, Bartlett,
"Contextual Bandits with Stage-wise Constraints", the programme of OPB). A solution
needs at most ``m + 1`` arms. One cost is solved by :mod:`~cbandit.search.simplex.hull`,
several by :mod:`~cbandit.search.simplex.pricing`. Both end with a certificate: the dual
value over all arms minus the value reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import devices
from cbandit.choice import Distribution
from cbandit.errors import InfeasibleError
from cbandit.search.simplex.hull import one_cost
from cbandit.search.simplex.pricing import several_costs, solve_policy_by_pricing
from cbandit.search.simplex.programme import PolicySolution, checked, joined

SMALL = 2**16  # with at most so many arms times trials, solve a device's on the host
HELD = 2**31  # most bytes of bounds that are stored, not recomputed in every pass


def best_policy(u_r: ArrayLike, u_c: ArrayLike, tau: ArrayLike) -> Distribution:
    """Return the distribution of largest expected ``u_r`` that keeps the limits.

    Args:
        u_r: ``(*trials, K)``; minus infinity forbids an arm.
        u_c: ``(*trials, m, K)``; plus infinity forbids an arm.
        tau: ``(*trials, m)``, or one number for all.

    Returns:
        At most ``m + 1`` arms a trial, in the order of their numbers, zero-padded:
        ``index`` and ``probability`` are ``(*trials, m + 1)``.

    Raises:
        InfeasibleError: no trial has a distribution that keeps the limits. If only some
            trials have none, they are flagged in ``infeasible`` instead and get a
            distribution that violates the limits least.

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


def solve_policy(u_r: ArrayLike, u_c: ArrayLike, tau: ArrayLike) -> PolicySolution:
    """Solve like :func:`best_policy`; also return value, multipliers and certificate.

    Infeasible trials are flagged, without an error.

    Args:
        u_r: ``(*trials, K)``; minus infinity forbids an arm.
        u_c: ``(*trials, m, K)``; plus infinity forbids an arm.
        tau: ``(*trials, m)``, or one number for all.
    """
    device = None
    tensors = [v for v in (u_r, u_c, tau) if isinstance(v, Tensor) and v.is_cuda]
    if len(tensors) == 3 and tensors[0].numel() <= SMALL:
        # every step needs the result of the last one, which the host has at once
        device = tensors[0].device
        u_r, u_c, tau = devices.host(*tensors)
    reward, cost, limit, trials = checked(u_r, u_c, tau)
    count, m, size = cost.shape
    # a few trials at a time, so that arms stay in cache and slow trials delay few
    # others
    budget = 2**21 if reward.device.type == "cpu" else 2**27
    step = max(1, budget // (size * m))
    parts = []
    for start in range(0, count, step):
        rows = slice(start, start + step)
        solve = one_cost if m == 1 else several_costs
        parts.append(solve(reward[rows], cost[rows], limit[rows]))
    return joined(parts, trials, device or reward.device)


def solve_policy_in_blocks(
    bounds: Callable[[], Iterable[tuple[int, Tensor]]], size: int, tau: Tensor
) -> PolicySolution:
    """Solve the programme over arms that come block by block.

    Args:
        bounds: returns all blocks, each time it is called: the number of a block's
            first arm, and ``u_r`` followed by every ``u_c``, ``(T, 1 + m, n)``; a
            reward of minus infinity forbids an arm.
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
        # the best arm of all is among the best arms of the blocks
        candidates = []
        for start, u in bounds():
            u = u.double()
            score = torch.where(
                (weight > 0).unsqueeze(-1),
                u[:, 0],
                torch.where(u[:, 0].isneginf(), u[:, 0], 0.0),
            ) - (lam.unsqueeze(1) @ u[:, 1:]).squeeze(1)
            place = score.argmax(-1, keepdim=True)
            values = u.gather(-1, place.unsqueeze(1).expand(-1, f, 1))
            candidates.append((place + start, values))
        values = torch.cat([v for _, v in candidates], -1)
        return torch.cat([i for i, _ in candidates], -1), values[:, 0], values[:, 1:]

    return solve_policy_by_pricing(price, m, tau)
