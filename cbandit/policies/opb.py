"""OPB: a distribution over arms each round, within its limits in expectation.

Known: a safe arm with reward ``r1`` and costs ``c1 < tau``. Each round, from the
averages and counts of every arm, with ``w = R sqrt(2 ln(1 / delta') / n)`` and
``delta' = delta / (2 (m + 1) K T)``:

1. ``u_r = r_hat + alpha_r w``, optimistic and inflated by
   ``alpha_r = 1 + 2 (r_max - r1) / min_j (tau_j - c1_j)``; ``u_c = c_hat + w``,
   pessimistic; the safe arm's are exact;
2. ``max_pi E u_r`` subject to ``E u_cj <= tau_j``: a linear programme, at most
   ``m + 1`` arms;
3. draw an arm from ``pi``; observe, update.

Where ``r1`` or ``c1`` is unknown, the safe arm is played until it is known well enough
(:class:`~cbandit.policies.safe.action.SafeAction`).

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise
constraints, 2024, Algorithms 3 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Finite, ProductGrid
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.policies.decision import Decision
from cbandit.policies.opb_gp import GPOPB
from cbandit.policies.safe.action import Safe
from cbandit.policies.safe.arms import ArmPolicy
from cbandit.policies.safe.stagewise import drawn
from cbandit.search.simplex.lp import solve_policy

__all__ = ["OPB", "CountOPB"]


def OPB(actions: Any, **arguments: Any) -> CountOPB | GPOPB:
    """Optimism and pessimism over distributions: limits hold in expectation.

    Args:
        actions: what can be chosen, a :class:`~cbandit.Finite` set or a
            :class:`~cbandit.ProductGrid`.
        arguments: ``reward``, ``costs``, ``safe``, ``delta``, ``alpha`` and more: those
            of :class:`CountOPB` for beliefs of :class:`~cbandit.Counts`, those of
            :class:`~cbandit.policies.opb_gp.GPOPB` for :class:`~cbandit.GP`.

    Example:
        >>> import cbandit as cb, torch
        >>> counts = cb.Counts(subgaussian=1.0)
        >>> policy = cb.OPB(
        ...     cb.Finite(torch.arange(4.0).unsqueeze(-1)), reward=counts, costs=counts,
        ...     safe=cb.Safe(index=0, reward=0.1, cost=0.0), thresholds=0.5,
        ...     horizon=1000,
        ... )
        >>> policy.ask().distribution.probability.sum()
        tensor(1., dtype=torch.float64)
    """
    for name in ("reward", "costs"):
        if arguments.get(name) is None:
            raise CBanditError(f"{name} must be a cb.Counts or a cb.GP; got none")
    if isinstance(arguments["reward"], GP):
        return GPOPB(actions, **arguments)
    if not isinstance(arguments["reward"], Counts):
        raise CBanditError(
            "reward must be a cb.Counts or a cb.GP; got "
            f"{checks.kind(arguments['reward'])}"
        )
    return CountOPB(actions, **arguments)


class CountOPB(ArmPolicy):
    """OPB over independent arms.

    Args:
        actions: the arms.
        reward: the belief about the reward, a :class:`~cbandit.Counts`.
        costs: the belief about the cost, or a list of them.
        safe: the safe arm; its reward and cost where they are known.
        horizon: ``T``; the widths rest on it.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``, or ``(alpha_r, alpha_c)``; the theorem's unless given.
        largest: ``r_max``, the largest possible mean reward.
        common: ``thresholds``, ``seed``, ``trials``, ``device``, ``dtype``.
    """

    name = "OPB"

    def __init__(
        self,
        actions: Any,
        *,
        reward: Counts,
        costs: Any,
        safe: Safe | None = None,
        horizon: int | None = None,
        delta: float = 0.1,
        alpha: Any = None,
        largest: Any = None,
        **common: Any,
    ) -> None:
        if not isinstance(actions, Finite | ProductGrid):
            raise CBanditError(
                f"OPB chooses from a Finite set or a ProductGrid; got {actions!r}"
            )
        if horizon is None:
            raise CBanditError(
                "horizon must be given: OPB's widths rest on it; got none"
            )
        super().__init__(
            actions,
            Counts,
            reward,
            costs,
            safe,
            delta,
            alpha,
            largest,
            horizon=horizon,
            **common,
        )
        size, m = int(actions.size), self.m
        log = math.log(2 * (m + 1) * size * horizon / self.delta)
        self._width = self._subgaussian * math.sqrt(2 * log)  # T x F

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        infeasible = self._safe_round(t, asked, mask)
        tau = self._limits(t)
        pi = solve_policy(*self._bounds(tau, mask), tau)
        self._multiplier = pi.multiplier
        return drawn(pi.distribution, self._safe, self._streams, infeasible)

    def _bounds(self, tau: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """``u_r`` ``(T, K)`` and ``u_c`` ``(T, m, K)``."""
        alpha_r, alpha_c = self._alpha(tau)
        width = self._width.clone()
        width[:, 0] *= alpha_r
        width[:, 1:] *= alpha_c.unsqueeze(-1)
        tally, width = self._tally, width.to(self._tally.mean).unsqueeze(-1)
        u = torch.addcmul(tally.mean, tally.spread, width)
        for j, stated in enumerate(self._ranges):
            # of an arm never pulled nothing is known but the range, [0, 1] unless said
            top = 1.0 if stated is None else stated[1]
            unseen = tally.count[:, j] == 0
            u[:, j] = torch.where(unseen, u[:, j].clamp_min(top), u[:, j])
            if j and stated is not None:
                u[:, j].clamp_(max=top)
        self._safe.exact(u, tau)
        if mask is not None:
            u[:, 0].masked_fill_(~mask, -torch.inf)
        return u[:, 0], u[:, 1:]

    def _believed(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        r = self._subgaussian.to(self._tally.mean).unsqueeze(-1)
        yield 0, self._tally.mean, self._tally.spread * r
