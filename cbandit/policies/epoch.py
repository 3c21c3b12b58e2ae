"""Epoch penalties: GP-UCB on a penalised reward; multipliers move once an epoch.

Noiseless constraints (``psi`` a convex penalty), ``kappa_j = 1`` at first. Epoch ``l``:

1. GP-UCB for ``S`` rounds on ``F = f - sum_j kappa_j (psi(g_j) - 1)``, that is on the
   targets ``r_s - sum_j kappa_j (psi(g_j(x_s)) - 1)``;
2. ``kappa_j = kappa_j psi(mean of g_j(x_s) over the epoch)``.

Noisy constraints (``psi="linear"``), ``kappa_j = 0`` at first: targets
``r_s - sum_j kappa_j c_js``, noise constant ``R sqrt(1 + sum_j kappa_j^2)``, then
``kappa_j = [kappa_j + rate * mean of c_js]_+``.

``reuse=True`` (ours) keeps all rounds, recomputes their targets under the new ``kappa``
and standardises them; ``reuse=False`` starts each epoch from a fresh GP, as printed.
:mod:`cbandit.policies.penalties` has ``psi`` and ``kappa``,
:mod:`cbandit.policies.penalised` targets and widths.

Z. Shi and A. Eryilmaz, A Bayesian approach for stochastic continuum-armed bandit with
long-term constraints, 2022, Algorithms 2 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from cbandit import scores
from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.beliefs.gp import GP
from cbandit.explore import Explore
from cbandit.policies.alone import alone
from cbandit.policies.believed import Data
from cbandit.policies.decision import Asked
from cbandit.policies.given import COST_COUNT
from cbandit.policies.gp import GPPolicy
from cbandit.policies.ledger import News
from cbandit.policies.packing import place_of
from cbandit.policies.penalised import Targets, bounds, inner_of
from cbandit.policies.penalties import penalty_of, warn_of_outgrown
from cbandit.policies.policy import Policy
from cbandit.policies.seen import Epoch, Seen
from cbandit.policies.senses import counted
from cbandit.policies.state import GPState
from cbandit.posterior.look import Look
from cbandit.recommend import Recommendation

__all__ = ["EpochPenalty"]


class EpochPenalty(GPPolicy):
    """Penalised GP-UCB with multipliers that move once an epoch.

    Args:
        actions: what can be chosen.
        reward: the belief about the penalised reward; or a list, one an epoch, the last
            for all that follow.
        costs: how many costs, ``m``, or their names.
        explore: :class:`~cbandit.UCB`, or :class:`~cbandit.TS` with ``inner="ts"``; of
            width 1 unless given.
        epoch: ``S``, rounds an epoch.
        psi: above 0, ``exp(c z)``: ``"exp"`` or ``("exp", c)``; ``(c z + 1)^n``:
            ``("polynomial", n)`` or ``("polynomial", n, c)``; a callable, 1 up to 0,
            convex and increasing above, with ``psi(x) psi(y) >= psi(x + y)``; or
            ``"linear"``, for noisy constraints.
        rate: the multipliers' step with ``psi="linear"``; 0, with any ``psi``, keeps
            ``kappa`` fixed (a baseline: no fixed one gives both sublinear rates).
        inner: ``"ucb"``, or ``"ts"``: GP-TS in place of GP-UCB.
        reuse: keep past rounds across epochs, targets recomputed and standardised.
        kappa: the multipliers at first; 1, or 0 with ``psi="linear"``.
        common: see below.

    Example:
        >>> import cbandit as cb, torch
        >>> actions = cb.Finite(torch.linspace(0, 1, 50).double().unsqueeze(-1))
        >>> policy = cb.EpochPenalty(
        ...     actions, reward=cb.GP.default(actions), costs=1, explore=cb.UCB(2.0),
        ...     epoch=20,
        ... )
        >>> policy.tell(policy.ask(), reward=0.1, cost=0.2)
    """

    name = "EpochPenalty"
    piecemeal = False  # targets mix the reward with all costs
    takes_no = dict.fromkeys(("Delayed", "Sliding"), "epochs need every round")
    no_noise = "EpochPenalty takes no noise=: its targets mix the reward with costs"
    _warned = False  # of multipliers that outgrow the dtype

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: int | Sequence[str],
        explore: Explore | None = None,
        epoch: int,
        psi: Any = "exp",
        rate: Any = None,
        inner: str = "ucb",
        reuse: bool = True,
        kappa: Any = None,
        **common: Any,
    ) -> None:
        self.settings = stated(self, locals())
        costs = counted(costs, COST_COUNT)
        self.epoch = checks.whole("epoch", epoch)
        self.reuse = checks.flag("reuse", reuse)
        self.inner, explore = inner, inner_of(inner, explore)
        self._penalty = penalty_of(psi, rate)
        targets = Targets.of(self._penalty, reward, self.reuse)
        first = targets.beliefs[0]
        super().__init__(actions, reward=first, costs=costs, explore=explore, **common)
        self._targets = targets.suited(self)
        self._refits = any(belief.refit_every for belief in targets.beliefs)
        kappa = self._per_cost("kappa", self._penalty.first(kappa)).clone()
        own = Epoch.start(self._penalty.kept(kappa))
        self._begin(self._now.state._replace(own=own))

    def _epoch_of(self, t: int) -> int:
        """Return the number of round ``t``'s epoch, -1 before the first."""
        return (t - 1) // self.epoch

    def score(self, t: int, multiplier: Tensor) -> scores.Reward:
        """Return the estimate of the penalised reward."""
        return scores.Reward()

    def _look(self, state: GPState, asked: Asked) -> Look:
        """Return which score is wanted, of estimates in the belief's own units."""
        return self._targets.look(super()._look(state, asked), state.beliefs.units())

    def _chances(self, state: GPState) -> int:
        """Return ``c`` of the RKHS widths."""
        over = None if self.horizon is None else self._epoch_of(self.horizon) + 1
        return bounds(state.own.number, over, self._penalty.linear)

    def _coefficient(self, state: GPState, asked: Asked) -> Tensor:
        width = self._targets.width(self, asked.t, state, self._chances(state))
        if width is None:
            return super()._coefficient(state, asked)
        return self.explore.coefficient(width, asked.streams)

    def _opened(self, state: GPState, asked: Asked) -> GPState:
        """Move multipliers, and targets with them, at the start of an epoch."""
        own, number = state.own, self._epoch_of(asked.t)
        if number == own.number:
            return state
        kept = self._penalty.moved(own.kept, own.mean())
        warn_of_outgrown(self, kept)
        own = own.next(number, kept, self.reuse)
        state = state._replace(own=own)
        # what may fail goes first: a rebuilt engine is equal up to rounding only
        self._limits(asked.t), self._coefficient(state, asked)
        return state._replace(beliefs=self._targets.opened(self, state.beliefs, own))

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state with rounds of which all has come; others wait."""
        place, t = place_of(self, news.choice), news.choice.t
        own, new = state.own.told(place, news, self._limits(t))
        number = self._epoch_of(t)
        # of an epoch that has ended data may be dropped
        if new is None or not (self.reuse or number == own.number):
            return state._replace(own=own)
        return self._targets.learnt(state._replace(own=own), number, new)

    def _observed(self, state: GPState, data: Data) -> GPState:
        for seen in Seen.before(data, self._limits(max(self.t, 1))):
            state = self._targets.learnt(state, -1, seen)
        return state

    @property
    @alone
    def multiplier(self) -> Tensor:
        """``kappa`` as the next ``ask`` will use it, ``(*trials, m)``."""
        own = self._settled().state.own
        over = self._epoch_of(self.t + 1) > own.number
        kept = self._penalty.moved(own.kept, own.mean()) if over else own.kept
        return self._outside(self._penalty.kappa(kept))

    price = Policy.price  # kappa is in the user's units

    @alone
    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """Return what to deploy: the action of greatest reward less penalties.

        The costs have no belief of their own: nowhere is it called feasible.
        """
        return replace(super().recommend(confidence), penalised=True)
