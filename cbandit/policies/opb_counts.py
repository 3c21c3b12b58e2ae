"""OPB over independent arms: a distribution each round, within limits in expectation.

Known: a safe arm with reward ``r1`` and costs ``c1 < tau``. Each round, from the
averages and counts of every arm, with ``w = R sqrt(2 ln(1 / delta') / n)`` and
``delta' = delta / (2 (m + 1) K T)``:

1. ``u_r = r_hat + alpha_r w``, optimistic and inflated by
   ``alpha_r = 1 + 2 (r_max - r1) / min_j (tau_j - c1_j)``; ``u_c = c_hat + w``,
   pessimistic; the safe arm's are exact. Where reward and costs have widths of their
   own, by other noise or other counts, the inflated part is the costs' (see
   :mod:`cbandit.policies.safe.scales`). An arm never pulled has the largest mean cost
   that is stated, ``top``, for ``u_c``, and for ``u_r`` at least ``r1 + (r_max - r1)
   max(1, max_j (top_j - c1_j) / (tau_j - c1_j))``: the share of it that fits beside the
   safe arm is then worth ``r_max``. Where no largest cost is stated it is not played;
2. ``max_pi E u_r`` subject to ``E u_cj <= tau_j``: a linear programme, at most
   ``m + 1`` arms;
3. draw an arm from ``pi``; observe, update.

Where ``r1`` or ``c1`` is unknown, the safe arm is played until it is known well enough
(:mod:`cbandit.policies.safe.known`).

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise
constraints, 2024, Algorithms 3 and 5.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from cbandit._core.arguments import stated
from cbandit.actions import Finite, ProductGrid
from cbandit.beliefs.counts import Counts
from cbandit.errors import CBanditError
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.safe.action import Safe, numbered
from cbandit.policies.safe.arms import Arms, Unpulled, own_arms
from cbandit.policies.safe.draws import drawn
from cbandit.policies.safe.model import Stage
from cbandit.policies.safe.scales import bounds_of
from cbandit.policies.safe.stagewise import Stagewise, beliefs_of
from cbandit.policies.senses import names_of
from cbandit.search.simplex.lp import solve_policy

__all__ = ["CountOPB"]


class CountOPB(Stagewise):
    """OPB over independent arms.

    In all but a share ``delta`` of runs no round's expected cost is above its limit, if
    the noise is sub-Gaussian with the ``R`` stated, the safe arm has the cost stated,
    and no mean cost is above the top of its belief's ``means`` or ``range``. Where a
    cost states neither, only the safe arm is played, and arms of which that cost was
    observed before (``policy.observe``).

    Args:
        actions: the arms.
        reward: the belief about the reward, a :class:`~cbandit.Counts`.
        costs: the belief about the cost, or a list of them.
        safe: the safe arm; its reward and cost where they are known.
        horizon: ``T``; the widths rest on it.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``, or ``(alpha_r, alpha_c)``; the theorem's unless given.
        largest: ``r_max``, the largest possible mean reward; the upper end of the
            reward's ``means`` or ``range``, or 1, unless given.
        common: see below.
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
        self.settings = stated(self, locals())
        if not isinstance(actions, Finite | ProductGrid):
            raise CBanditError(
                f"OPB chooses from a Finite set or a ProductGrid; got {actions!r}"
            )
        if horizon is None:
            raise CBanditError(
                "horizon must be given: OPB's widths rest on it; got none"
            )
        beliefs, names = beliefs_of(Counts, reward, costs), names_of(costs)
        common = common | {"horizon": horizon}
        super().__init__(actions, beliefs, safe, delta, alpha, largest, names, **common)
        self._start(Arms(self.actions, self._subgaussian, self.dtype))
        log = math.log(2 * (self.m + 1) * int(actions.size) * horizon / self.delta)
        self._width = self._subgaussian * math.sqrt(2 * log)  # of one pull, T x F
        self._unpulled = Unpulled.of(beliefs[1:], self._safe.largest)

    def decide(self, state: Stage, asked: Asked) -> tuple[Decision, Stage]:
        """Return a draw from the distribution that solves the programme."""
        tau, seen, safe = self._limits(asked.t), state.seen, state.safe
        infeasible = own_arms(self.name, safe, asked, self.actions, tau)
        at = numbered(self._safe.index)
        inflated = self._scales.inflated(self._width, self._ratio(state, tau))
        u = bounds_of(seen.mean, seen.spread, *inflated)
        self._unpulled.bound(u, seen.count, safe, tau, at)
        if asked.mask is not None:
            u[:, 0].masked_fill_(~asked.mask, -torch.inf)
        pi = solve_policy(u[:, 0], u[:, 1:], tau)
        decision = drawn(pi.distribution, safe, at, asked.streams, infeasible)
        return decision, state._replace(multiplier=pi.multiplier)
