"""Epoch penalties: GP-UCB on a penalised reward; multipliers move once an epoch.

Noiseless constraints (``psi`` a convex penalty), ``kappa_j = 1`` at first. Epoch ``l``:

1. GP-UCB for ``S`` rounds on ``F = f - sum_j kappa_j (psi(g_j) - 1)``, from the
targets ``r_s - sum_j kappa_j (psi(g_j(x_s)) - 1)``;
2. ``kappa_j = kappa_j psi(mean of g_j(x_s) over the epoch)``.

Noisy constraints (``psi="linear"``), ``kappa_j = 0`` at first: targets
``r_s - sum_j kappa_j c_js``, noise constant ``R sqrt(1 + sum_j kappa_j^2)``, then
``kappa_j = [kappa_j + rate * mean of c_js]_+``.

``reuse=True`` (ours) keeps all rounds, recomputes their targets under the new ``kappa``
and standardises them; ``reuse=False`` starts each epoch from a fresh GP, as printed.

RKHS widths divide ``delta`` among the horizon's ``L`` epochs: ``c = L``, or ``2 L``
with noisy constraints, half of it for the costs' noise. Without a horizon (ours)
epoch ``l`` gets the share ``1 / (l (l + 1))``.

Z. Shi and A. Eryilmaz, A Bayesian approach for stochastic continuum-armed bandit with
long-term constraints, 2022, Algorithms 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core import checks, devices
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.confidence.bound import BoundWidths
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB, Explore
from cbandit.policies.abilities import BY_SCORE
from cbandit.policies.acquire import Estimates
from cbandit.policies.checks import COSTS_EXPECTED
from cbandit.policies.choices import Data, News, Place
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import GPKeywords
from cbandit.policies.paired import Paired
from cbandit.policies.penalties import Psi, penalty_of
from cbandit.policies.round import PolicyState
from cbandit.policies.saving import locked
from cbandit.policies.signs import cost_count
from cbandit.policies.turn import Turn
from cbandit.posterior.observations import Part
from cbandit.posterior.units import Units
from cbandit.recommend import Recommendation
from cbandit_kernels import Look


class Epoch(NamedTuple):
    """The epoch, and the feedback so far.

    Args:
        number: the epoch, counted from 0.
        kept: ``kappa (T, m)`` as it moves: its logarithm, unless ``psi`` is linear.
        sums: sums of this epoch's costs, ``(T, m)``.
        counts: how many costs are in the sums, ``(T, m)``.
        waiting: feedback of rounds that have not been told in full, by round.
        outgrown: whether a ``kappa`` is held at the largest number of its dtype.
    """

    number: int
    kept: Tensor
    sums: Tensor
    counts: Tensor
    waiting: dict[int, Paired]
    outgrown: bool = False

    def hear(self, news: News, counts: bool) -> tuple[Epoch, Tensor, Tensor]:
        """Return the state, and what was told in full now, in which trials.

        Args:
            news: the feedback of one round.
            counts: whether the round is of this epoch.

        Returns:
            The state; reward and costs, less thresholds, ``(T, 1 + m)``, 0 in trials in
            which not all has come or all had come before; the other trials, ``(T,)``
            bool on the host.
        """
        t = news.place.t
        before = self.waiting.get(t) or Paired.start(self.sums)
        now = before.with_news(news)
        waiting = {**self.waiting, t: now}
        if news.cancelled or bool(now.whole.all()):
            del waiting[t]
        where = now.whole & ~before.whole
        mask = devices.put(where, self.sums.device).unsqueeze(-1)
        told = torch.where(mask, torch.cat([now.reward, now.cost], -1), 0.0)
        epoch = self._replace(waiting=waiting)
        if counts:
            sums, counted = self.sums + told[:, 1:], self.counts + mask
            epoch = epoch._replace(sums=sums, counts=counted)
        return epoch, told, where


class EpochPenalty(GPPolicy):
    """Choose by the reward less penalties, whose multipliers move once an epoch.

    Args:
        actions: what can be chosen.
        reward: the belief about the penalised reward; or a list with one belief an
            epoch, of which the last one serves all later epochs.
        costs: how many costs, ``m``, or their names.
        explore: how estimates explore: :class:`~cbandit.UCB`, or :class:`~cbandit.TS`
            with ``inner="ts"``; of width 1 unless given. If ``inner`` is a function,
            any will do, and it finds these estimates in ``f``.
        epoch: ``S``, rounds an epoch.
        psi: the penalty of a cost that is ``z`` above its threshold. It is 1 for ``z <=
            0``. Above, ``"exp"`` is ``exp(z)``, ``("exp", c)`` is ``exp(c z)``,
            ``("polynomial", n)`` is ``(z + 1)^n`` and ``("polynomial", n, c)`` is ``(c
            z + 1)^n``; with ``n > 1`` the violation is sublinear. Or a function: 1 up
            to 0, convex and increasing above, with ``psi(x) psi(y) >= psi(x + y)``. Or
            ``"linear"``, for noisy constraints: the cost itself is charged.
        rate: the multipliers' step with ``psi="linear"``, a number, ``(*trials,)`` or
            ``(1 or *trials, m)``; by the theorem ``O(1 / sqrt(epochs))``. 0, with any
            ``psi``, keeps ``kappa`` fixed (a baseline: no fixed one gives both
            sublinear rates on all problems, Proposition 1).
        inner: ``"ucb"``, or ``"ts"``: GP-TS in place of GP-UCB. Or your own rule: a
            function that takes :class:`~cbandit.Estimates`, whose one mean and
            deviation belong to the penalised reward, and returns a value for each
            action, ``(T, n)``; the greatest is played. It is called as
            :meth:`~cbandit.GPPolicy.acquire` is. Theorem 1 holds for all rules with
            sublinear regret on one fixed function, Theorem 2 (noisy constraints) for
            ``"ucb"`` only. The latter also asks for an action well within all limits.
        reuse: keep past rounds across epochs, with targets recomputed and standardised.
            RKHS widths are then in units of the standardised targets. The theorems do
            not cover their scale, nor that they depend on past multipliers: no
            guarantee.
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
    abilities = replace(
        BY_SCORE,
        budgets=False,
        categories=False,
        partial_costs=False,  # a target needs the reward and all costs
        outcomes=False,
        readings=False,  # beliefs are about targets, which no one tells
        refuses={
            "Delayed": "epochs need every round",
            "Sliding": "epochs need every round",
            "limit": "its belief is about a penalty of costs above the limits it began "
            "with",
            "noise": "EpochPenalty takes no noise=: its targets mix the reward with "
            "costs",
        },
    )

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: int | Sequence[str],
        explore: Explore | None = None,
        epoch: int,
        psi: Psi = "exp",
        rate: ArrayLike | None = None,
        inner: str | Callable[[Estimates], Tensor] = "ucb",
        reuse: bool = True,
        kappa: ArrayLike | None = None,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        costs = cost_count(costs, COSTS_EXPECTED)
        self.epoch = checks.whole("epoch", epoch)
        self.reuse = checks.flag("reuse", reuse)
        self.inner = checks.one_of(
            "inner", inner, "ucb", "ts", other="a function of estimates", called=True
        )
        explore = _checked_exploration(inner, explore)
        if self._acquires and common.get("clip") is not None:
            raise CBanditError("clip goes with inner='ucb' or 'ts', not with a rule")
        beliefs = _listed(reward)
        # only reuse rescales targets; otherwise scores are in the user's units
        self._in_spreads = all(belief.standardize for belief in beliefs)
        if self.reuse:
            beliefs = [_standardised(belief) for belief in beliefs]
        first = beliefs[0]
        super().__init__(actions, reward=first, costs=costs, explore=explore, **common)
        for k, belief in enumerate(beliefs):
            belief.suit(f"reward[{k}]", self.actions.domain, self.batch_shape)
            beliefs[k] = self.objective.belief(0, belief)
        # one belief an epoch; the last one serves all later epochs
        self._by_epoch = beliefs
        self._refits = any(belief.refit_every for belief in beliefs)
        every = explore.widths.bind(self.batch_shape, self.m, self.device, graph=False)
        # R_j of the costs: the reward's unless their own widths state one
        self._noises = [
            part.subgaussian[:, -self.m :] for part, _ in every.rkhs_parts()
        ]
        self._psi = penalty_of(psi)  # None: linear
        linear = self._psi is None
        if linear and rate is None:
            raise CBanditError("rate is needed with psi='linear'; O(1 / sqrt(epochs))")
        step = checks.nonnegative("rate", 0.0 if rate is None else rate)
        self._rate = self._cost_number("rate", step)
        self._fixed = rate is not None and not bool(step.any())
        if not (linear or rate is None or self._fixed):
            raise CBanditError(
                "rate goes with psi='linear'; with another psi only rate=0, a kappa "
                f"that stays; got {rate!r}"
            )
        check = checks.nonnegative if linear else checks.positive
        kappa = check("kappa", float(not linear) if kappa is None else kappa)
        kappa = self._per_cost("kappa", kappa).clone()
        nothing = torch.zeros_like(kappa)
        kept = kappa if linear else kappa.log()
        start = Epoch(0, kept, nothing, nothing, {})
        self.begin(self._now.state._replace(multiplier=kappa, own=start))

    @property
    def _acquires(self) -> bool:
        return callable(self.inner) or self.abilities.acquires

    # -- the rule --------------------------------------------------------------------

    def score(self, t: int, kappa: Tensor) -> scores.Reward:
        """Return the estimate of the penalised reward."""
        return scores.Reward()

    def acquire(self, t: int, kappa: Tensor, estimates: Estimates) -> Tensor:
        """Return the values of the rule given as ``inner``, ``(T, n)``."""
        values: Tensor = self.inner(estimates)
        return values

    def _target(self, kappa: Tensor, told: Tensor) -> Tensor:
        """Return ``r - sum_j kappa_j (psi(c_j) - 1)``, or with ``c_j``, ``(T, 1)``.

        ``told (T, 1 + m)`` are ``r`` and ``c_j``.
        """
        reward, cost = told[:, :1], told[:, 1:]
        penalty = cost if self._psi is None else self._psi(cost) - 1
        charge = (kappa * penalty).sum(-1, keepdim=True)
        # squares of targets, and their sums, must stay finite too
        largest = min(torch.finfo(self.dtype).max ** 0.5, 1e75)
        return reward - charge.clamp(-largest, largest)

    def _epoch_at(self, t: int, epoch: Epoch) -> Epoch:
        """Return round ``t``'s epoch: this one, or the next with ``kappa`` moved."""
        number, kept = self._number_of(t), epoch.kept
        if number <= epoch.number:
            return epoch
        mean = epoch.sums / epoch.counts.clamp_min(1)
        if self._psi is None:
            kept = (kept + self._rate * mean).clamp_min(0)
        elif not self._fixed:
            # an epoch without feedback has mean 0, and psi(0) = 1
            kept = kept + self._psi(mean).log()
        zero = torch.zeros_like(kept)
        return epoch._replace(number=number, kept=kept, sums=zero, counts=zero)

    def _number_of(self, t: int) -> int:
        """Return the number of round ``t``'s epoch; negative during the design."""
        return (t - 1 - self.design) // self.epoch

    def _next_multiplier(
        self, state: GPState, t: int, restarted: Tensor | None
    ) -> Tensor:
        """Return ``kappa`` of round ``t``, always finite."""
        kept = self._epoch_at(t, state.own).kept
        if self._psi is None:
            return kept.clone()
        return kept.exp().clamp_max(torch.finfo(kept.dtype).max)

    def _begin_epoch(self, state: GPState, turn: Turn) -> GPState:
        """Return the state with the targets of a new epoch, where one begins."""
        epoch, kappa = self._epoch_at(turn.t, state.own), state.multiplier
        if epoch is state.own:
            return state
        outgrown = bool((kappa == torch.finfo(kappa.dtype).max).any())
        state, fresh = state._replace(own=epoch._replace(outgrown=outgrown)), None
        # what may fail comes first: an engine that has changed is rebuilt inexactly
        self._coefficient(state, turn)
        if epoch.number < len(self._by_epoch):
            fresh = self._empty_beliefs([self._by_epoch[epoch.number]])
        beliefs = state.beliefs if self.reuse else state.beliefs.forget_all()
        beliefs = beliefs.retarget(partial(self._target, kappa), fresh)
        return state._replace(beliefs=beliefs)

    # -- feedback --------------------------------------------------------------------

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state after news; a round counts once it has come in full."""
        number, current = self._number_of(news.place.t), state.own.number
        epoch, told, where = state.own.hear(news, number == current)
        state = state._replace(own=epoch, moved=None)
        dropped = not self.reuse and max(number, 0) < current
        if dropped or not bool(where.any()):
            return state
        return self._learn(state, news.place, told, where.tolist())

    def _absorb_data(self, state: GPState, data: Data) -> GPState:
        limits = self.limits(max(self.t, 1))
        for keys, x, (reward, cost) in data.rows():
            over = cost.values - limits
            told = torch.cat([reward.values.expand(len(over), 1), over], -1)
            state = self._learn(state, Place(list(keys), x, 0), told, reward.wanted)
        return state

    def _learn(
        self, state: GPState, place: Place, told: Tensor, wanted: Sequence[bool]
    ) -> GPState:
        """Return the state with the target of one round in the trials ``wanted``."""
        part = Part([0], self._target(state.multiplier, told), wanted, source=told)
        beliefs = state.beliefs.absorb(place.keys, place.x, [part], place.t)
        return state._replace(beliefs=beliefs)

    # -- widths, units and words -------------------------------------------------------

    def _count_bounds(self, state: GPState) -> int:
        """Return ``c`` of the RKHS widths."""
        number: int = state.own.number
        epochs = (number + 1) * (number + 2)
        if self.horizon is not None:
            epochs = self._number_of(self.horizon) + 1
        return 2 * epochs if self._psi is None else epochs

    def _widths_of(self, state: GPState) -> BoundWidths:
        """Return the widths; with noisy constraints ``R`` grows with ``kappa``."""
        parts = self._widths.rkhs_parts()
        if self._psi is not None or not parts:
            return self._widths
        r, costs = parts[0][0].subgaussian, state.multiplier * self._noises[-1]
        grown = (r.square() + costs.square().sum(-1, keepdim=True)).sqrt()
        return self._widths.with_noise(grown)

    def _convert_estimates(self, look: Look, units: Units | None) -> Look:
        """Return the look with estimates in the user's units, or in spreads."""
        if units is None or self._in_spreads or self._acquires:
            return look
        close = None if look.tolerance is None else look.tolerance * units.size[:, 0]
        return replace(look, link=units.told, tolerance=close)

    def _alarms(self, now: PolicyState) -> dict[str, str]:
        alarms = super()._alarms(now)
        if now.state.own.outgrown:
            alarms["kappa"] = (
                "kappa has outgrown the dtype and is held at its largest value; a "
                "slower penalty such as psi=('polynomial', 2) keeps it smaller"
            )
        return alarms

    @locked
    def recommend(
        self, confidence: float = 0.95, context: Any = None
    ) -> Recommendation:
        """Return what to deploy: the action of greatest reward less penalties.

        It is never called feasible, as there is no belief about the costs.
        """
        return replace(super().recommend(confidence, context), penalised=True)


def _checked_exploration(inner: object, explore: Explore | None) -> Explore:
    """Return how epochs explore; the width is 1 unless given."""
    wanted: type[UCB | TS] = TS if inner == "ts" else UCB
    explore = wanted(1.0) if explore is None else explore
    if not (callable(inner) or isinstance(explore, wanted)):
        raise CBanditError(
            f"inner={inner!r} goes with explore=cb.{wanted.__name__}(...); got "
            f"{checks.kind(explore)}"
        )
    return explore


def _listed(reward: Any) -> list[GP]:
    """Return one belief an epoch; the last one serves all later epochs."""
    beliefs = list(reward) if isinstance(reward, list | tuple) else [reward]
    if not beliefs or not all(isinstance(belief, GP) for belief in beliefs):
        raise CBanditError(
            f"reward must be a cb.GP, or a list of them, one an epoch; got {reward!r}"
        )
    return beliefs


def _standardised(belief: GP) -> GP:
    """Return a copy of a belief with standardised targets, as ``reuse`` needs."""
    if bool((belief.mean != 0).any()):
        raise CBanditError(
            "reward must have mean 0 with reuse=True: its targets are standardised"
        )
    copied = belief.copy()
    copied.standardize = True
    return copied
