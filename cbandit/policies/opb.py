"""OPB: a distribution over arms each round, within its limits in expectation.

Known: a safe arm with reward ``r1`` and costs ``c1 < tau``. Each round, from the
averages and counts of every arm, with ``w = R sqrt(2 ln(1 / delta') / n)`` and
``delta' = delta / (2 (m + 1) K T)``:

1. ``u_r = r_hat + alpha_r w``, optimistic and inflated by
   ``alpha_r = 1 + 2 (r_max - r1) / min_j (tau_j - c1_j)``; ``u_c = c_hat + w``,
   pessimistic; the safe arm's are exact. An arm never pulled has the largest mean cost
   that is stated for ``u_c``, and at least ``r_max`` for ``u_r``; where no largest cost
   is stated it is not played;
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
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Finite, ProductGrid
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.opb_gp import GPOPB
from cbandit.policies.safe.action import Safe, numbered
from cbandit.policies.safe.arms import Arms, own_arms
from cbandit.policies.safe.draws import drawn
from cbandit.policies.safe.model import Stage
from cbandit.policies.safe.stagewise import Stagewise, beliefs_of
from cbandit.policies.senses import names_of
from cbandit.posterior.tally import Tally
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
        >>> counts = cb.Counts(subgaussian=0.5, range=(0.0, 1.0))
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
        self._width = self._subgaussian * math.sqrt(2 * log)  # T x F
        tops = [-math.inf if one.means is None else one.means[1] for one in beliefs]
        top = self._width.new_tensor(tops).unsqueeze(-1)
        lost = top.isinf()
        lost[0] = False
        #: costs of which nothing is known before a pull, ``(1 + m, 1)``, if any
        self._unknown = lost if bool(lost.any()) else None
        # no pessimistic cost is above this; of an arm never pulled the bounds are at
        # least that, T x F x 1
        most = top.masked_fill(lost, math.inf)
        most[0] = math.inf
        self._most = most if bool(most.isfinite().any()) else None
        self._least = top.expand(self._size, -1, -1).clone()
        self._least[:, 0, 0] = self._safe.largest

    def decide(self, state: Stage, asked: Asked) -> tuple[Decision, Stage]:
        """Return a draw from the distribution that solves the programme."""
        tau, safe = self._limits(asked.t), state.safe
        infeasible = own_arms(self.name, safe, asked, self.actions, tau)
        width = self._width * self._alpha(state, tau)
        at = numbered(self._safe.index)
        u = self._bounds(state.seen, width, at)
        safe.exact(u, tau)
        if asked.mask is not None:
            u[:, 0].masked_fill_(~asked.mask, -torch.inf)
        pi = solve_policy(u[:, 0], u[:, 1:], tau)
        decision = drawn(pi.distribution, safe, at, asked.streams, infeasible)
        return decision, state._replace(multiplier=pi.multiplier)

    def _bounds(self, seen: Tally, width: Tensor, at: Tensor) -> Tensor:
        """Return ``u_r`` and every ``u_c``, ``(T, 1 + m, K)``.

        Args:
            seen: averages and counts.
            width: of one pull, inflated, ``(T, 1 + m)``.
            at: the safe arm, which is played whatever is known of it, ``(T,)``.
        """
        u = torch.addcmul(seen.mean, seen.spread, width.to(seen.mean).unsqueeze(-1))
        unseen = seen.count == 0
        floor = torch.where(unseen, self._least.to(u), -torch.inf)
        torch.maximum(u, floor, out=u)
        if self._most is not None:
            torch.minimum(u, self._most.to(u), out=u)
        if self._unknown is not None:
            hidden = (unseen & self._unknown).any(1)
            u[:, 0].masked_fill_(
                hidden.scatter(-1, at.unsqueeze(-1), False), -torch.inf
            )
        return u
