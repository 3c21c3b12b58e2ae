"""Epoch penalties: GP-UCB on a penalised reward; multipliers move after each epoch.

With noiseless constraints (``psi`` is a convex penalty), ``kappa_j = 1`` at first. In
epoch ``l``:

1. play GP-UCB for ``S`` rounds on ``F = f - sum_j kappa_j (psi(g_j) - 1)``, from the
   targets ``r_s - sum_j kappa_j (psi(g_j(x_s)) - 1)``;
2. set ``kappa_j = kappa_j psi(mean of g_j(x_s) over the epoch)``.

With noisy constraints (``psi="linear"``), ``kappa_j = 0`` at first. The targets are
``r_s - sum_j kappa_j c_js``, with the noise constant ``R sqrt(1 + sum_j kappa_j^2)``;
then ``kappa_j = [kappa_j + rate * mean of c_js]_+``.

``reuse=True`` (ours) keeps all rounds, recomputes their targets under the new ``kappa``
and standardises them; ``reuse=False`` starts each epoch from a GP without data, as in
the paper.

RKHS widths divide ``delta`` among ``c`` bounds: with a horizon of ``L`` epochs these
are ``L``, or ``2 L`` with noisy constraints, as the costs' noise needs as many bounds.
Without a horizon (ours) epoch ``l`` gets the share ``1 / (l (l + 1))``.

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
from cbandit.policies.signs import count_or_names
from cbandit.policies.turn import Turn
from cbandit.posterior.log import Observation
from cbandit.posterior.units import Units
from cbandit.recommend import Recommendation
from cbandit_kernels import Look


class EpochState(NamedTuple):
    """The state of an epoch: ``kappa`` and the costs told in it.

    Args:
        number: the epoch, counted from 0.
        raw_kappa: the logarithm of ``kappa``, or ``kappa`` if ``psi`` is linear,
            ``(T, m)`` for ``T`` trials and ``m`` costs.
        sums: sums of this epoch's costs, ``(T, m)``.
        counts: how many costs are in each sum, ``(T, m)``.
        waiting: by round, the feedback of rounds that still wait for more.
        overflowed: whether a ``kappa`` is held at the largest number of its dtype.
    """

    number: int
    raw_kappa: Tensor
    sums: Tensor
    counts: Tensor
    waiting: dict[int, Paired]
    overflowed: bool = False

    def hear(self, news: News, is_current: bool) -> tuple[EpochState, Tensor, Tensor]:
        """Return the state after feedback, and the results that it completes.

        Args:
            news: the feedback of one round.
            is_current: whether the round is of this epoch.

        Returns:
            The state; the reward, and costs less thresholds, ``(T, 1 + m)``; the trials
            whose feedback this completes, ``(T,)`` bool on the host. In the other
            trials the results are 0.
        """
        t = news.place.t
        before = self.waiting.get(t) or Paired.start(self.sums)
        now = before.with_news(news)
        waiting = {**self.waiting, t: now}
        if news.cancelled or bool(now.whole.all()):
            del waiting[t]
        where = now.whole & ~before.whole
        mask = devices.put(where, self.sums.device).unsqueeze(-1)
        results = torch.where(mask, torch.cat([now.reward, now.cost], -1), 0.0)
        epoch = self._replace(waiting=waiting)
        if is_current:
            sums, counted = self.sums + results[:, 1:], self.counts + mask
            epoch = epoch._replace(sums=sums, counts=counted)
        return epoch, results, where


class EpochPenalty(GPPolicy):
    """Choose by the reward less penalties, whose multipliers move once an epoch.

    Args:
        actions: what can be chosen.
        reward: the belief about the penalised reward; or a list with one belief for
            each epoch, of which the last one is used in all later epochs too.
        costs: how many costs, ``m``, or their names.
        explore: how estimates explore: :class:`~cbandit.UCB`, or :class:`~cbandit.TS`
            with ``inner="ts"``; of width 1 unless given. If ``inner`` is a function,
            any is allowed, and the function finds these estimates in ``f``.
        epoch: ``S``, the number of rounds in an epoch.
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
            ``"ucb"`` only. Theorem 2 also needs an action well within all limits.
        reuse: keep past rounds across epochs, with targets recomputed and standardised.
            RKHS widths are then in units of the standardised targets. There is no
            guarantee: the theorems do not cover these units, nor targets that depend on
            past multipliers.
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
        credit=10.0,
        budgets=False,
        categories=False,
        partial_costs=False,  # a target needs the reward and all costs
        outcomes=False,
        readings=False,  # beliefs are about targets, which users do not tell
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
        costs = count_or_names(costs, COSTS_EXPECTED)
        self.epoch = checks.whole("epoch", epoch)
        self.reuse = checks.flag("reuse", reuse)
        self.inner = checks.one_of(
            "inner", inner, "ucb", "ts", other="a function of estimates", called=True
        )
        explore = _check_exploration(inner, explore)
        if self._acquires and common.get("clip") is not None:
            raise CBanditError("clip goes with inner='ucb' or 'ts', not with a rule")
        beliefs = _list_beliefs(reward)
        # only reuse rescales targets; otherwise scores are in the user's units
        self._in_spreads = all(belief.in_spreads for belief in beliefs)
        if self.reuse:
            beliefs = [_standardise(belief) for belief in beliefs]
        first = beliefs[0]
        super().__init__(actions, reward=first, costs=costs, explore=explore, **common)
        for k, belief in enumerate(beliefs):
            belief.suit(f"reward[{k}]", self.actions.domain, self.batch_shape)
            beliefs[k] = self.objective.belief(0, belief)
        # one belief for each epoch; later epochs use the last one
        self._beliefs_by_epoch = beliefs
        self._refits = any(belief.refit_every for belief in beliefs)
        every = explore.widths.bind(self.batch_shape, self.m, self.device, graph=False)
        # R_j of the costs: the reward's R unless the costs' widths state one
        self._noises = [
            part.subgaussian[:, -self.m :] for part, _ in every.rkhs_parts()
        ]
        self._psi = penalty_of(psi)  # None: linear
        linear = self._psi is None
        if linear and rate is None:
            raise CBanditError("rate is needed with psi='linear'; O(1 / sqrt(epochs))")
        step = checks.nonnegative("rate", 0.0 if rate is None else rate)
        self._rate = self._cost_number("rate", step)
        self._kappa_fixed = rate is not None and not bool(step.any())
        if not (linear or rate is None or self._kappa_fixed):
            raise CBanditError(
                "rate goes with psi='linear'; with another psi only rate=0, a kappa "
                f"that stays; got {rate!r}"
            )
        check = checks.nonnegative if linear else checks.positive
        kappa = check("kappa", float(not linear) if kappa is None else kappa)
        kappa = self._per_cost("kappa", kappa).clone()
        nothing = torch.zeros_like(kappa)
        raw_kappa = kappa if linear else kappa.log()
        start = EpochState(0, raw_kappa, nothing, nothing, {})
        self.begin(self._now.state._replace(multiplier=kappa, own=start))

    @property
    def _acquires(self) -> bool:
        return callable(self.inner) or self.abilities.acquires

    # -- the rule --------------------------------------------------------------------

    def score(self, t: int, kappa: Tensor) -> scores.Reward:
        """Return the score: the estimate of the penalised reward."""
        return scores.Reward()

    def acquire(self, t: int, kappa: Tensor, estimates: Estimates) -> Tensor:
        """Return each action's value by the function given as ``inner``, ``(T, n)``."""
        values: Tensor = self.inner(estimates)
        return values

    def _target(self, kappa: Tensor, results: Tensor) -> Tensor:
        """Return the targets ``r - sum_j kappa_j (psi(c_j) - 1)``, ``(T, 1)``.

        A linear ``psi`` charges ``c_j`` in place of ``psi(c_j) - 1``. ``results (T, 1 +
        m)`` are ``r`` and the ``c_j``.
        """
        reward, cost = results[:, :1], results[:, 1:]
        penalty = cost if self._psi is None else self._psi(cost) - 1
        charge = (kappa * penalty).sum(-1, keepdim=True)
        # squares of targets, and their sums, must stay finite too
        largest = min(torch.finfo(self.dtype).max ** 0.5, 1e75)
        return reward - charge.clamp(-largest, largest)

    def _epoch_at(self, t: int, epoch: EpochState) -> EpochState:
        """Return the state ``epoch`` in round ``t``; a new epoch moves ``kappa``."""
        number, raw_kappa = self._epoch_number(t), epoch.raw_kappa
        if number <= epoch.number:
            return epoch
        mean = epoch.sums / epoch.counts.clamp_min(1)
        if self._psi is None:
            raw_kappa = (raw_kappa + self._rate * mean).clamp_min(0)
        elif not self._kappa_fixed:
            # an epoch without feedback has mean 0, and psi(0) = 1
            raw_kappa = raw_kappa + self._psi(mean).log()
        zero = torch.zeros_like(raw_kappa)
        return epoch._replace(
            number=number, raw_kappa=raw_kappa, sums=zero, counts=zero
        )

    def _epoch_number(self, t: int) -> int:
        """Return the number of round ``t``'s epoch; negative in the initial design."""
        return (t - 1 - self.design) // self.epoch

    def _next_multiplier(
        self, state: GPState, t: int, restarted: Tensor | None
    ) -> Tensor:
        """Return the multiplier ``kappa`` of round ``t``, ``(T, m)``, always finite."""
        raw_kappa = self._epoch_at(t, state.own).raw_kappa
        if self._psi is None:
            return raw_kappa.clone()
        return raw_kappa.exp().clamp_max(torch.finfo(raw_kappa.dtype).max)

    def _begin_epoch(self, state: GPState, turn: Turn) -> GPState:
        """Return the state, with recomputed targets if a new epoch begins."""
        epoch, kappa = self._epoch_at(turn.t, state.own), state.multiplier
        if epoch is state.own:
            return state
        overflowed = bool((kappa == torch.finfo(kappa.dtype).max).any())
        state, fresh = state._replace(own=epoch._replace(overflowed=overflowed)), None
        # what may fail comes first: once changed, an engine is not restored to the bit
        self._coefficient(state, turn)
        if epoch.number < len(self._beliefs_by_epoch):
            fresh = self._empty_beliefs([self._beliefs_by_epoch[epoch.number]])
        beliefs = state.beliefs if self.reuse else state.beliefs.forget_all()
        beliefs = beliefs.retarget(partial(self._target, kappa), fresh)
        return state._replace(beliefs=beliefs)

    # -- feedback --------------------------------------------------------------------

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state after feedback; a round counts once it is told in full."""
        number, current = self._epoch_number(news.place.t), state.own.number
        epoch, results, where = state.own.hear(news, number == current)
        state = state._replace(own=epoch, moved=None)
        dropped = not self.reuse and max(number, 0) < current
        if dropped or not bool(where.any()):
            return state
        return self._add_target(state, news.place, results, where.tolist())

    def _absorb_data(self, state: GPState, data: Data) -> GPState:
        limits = self.limits(max(self.t, 1))
        for reward, cost in data.rows():
            over = cost.values - limits
            results = torch.cat([reward.values.expand(len(over), 1), over], -1)
            place = Place(list(reward.keys), reward.x, 0)
            state = self._add_target(state, place, results, reward.wanted)
        return state

    def _add_target(
        self, state: GPState, place: Place, results: Tensor, wanted: Sequence[bool]
    ) -> GPState:
        """Return the state with the target of ``results`` in the trials ``wanted``."""
        keys, x, t = place
        target = self._target(state.multiplier, results)
        row = Observation([0], keys, x, target, wanted, t=t, source=results)
        return state._replace(beliefs=state.beliefs.absorb([row]))

    # -- widths, units and warnings ----------------------------------------------------

    def _count_bounds(self, state: GPState) -> int:
        """Return ``c`` of the RKHS widths: how many bounds must hold together."""
        number: int = state.own.number
        epochs = (number + 1) * (number + 2)
        if self.horizon is not None:
            epochs = self._epoch_number(self.horizon) + 1
        return 2 * epochs if self._psi is None else epochs

    def _widths_of(self, state: GPState) -> BoundWidths:
        """Return the confidence widths; if ``psi`` is linear ``R`` grows with kappa."""
        parts = self._widths.rkhs_parts()
        if self._psi is not None or not parts:
            return self._widths
        r, costs = parts[0][0].subgaussian, state.multiplier * self._noises[-1]
        grown = (r.square() + costs.square().sum(-1, keepdim=True)).sqrt()
        return self._widths.with_noise(grown)

    def _convert_estimates(self, look: Look, units: Units | None) -> Look:
        """Return a copy of ``look`` that gives estimates in the user's units.

        Return ``look`` itself if this policy's estimates are in spreads of the data.
        """
        if units is None or self._in_spreads or self._acquires:
            return look
        close = None if look.tolerance is None else look.tolerance * units.size[:, 0]
        return replace(look, link=units.told, tolerance=close)

    def _alarms(self, now: PolicyState) -> dict[str, str]:
        alarms = super()._alarms(now)
        if now.state.own.overflowed:
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

        It is never marked as feasible, as there is no belief about the costs.
        """
        return replace(super().recommend(confidence, context), penalised=True)


def _check_exploration(inner: object, explore: Explore | None) -> Explore:
    """Return the user's exploration, or the default; raise if ``inner`` forbids it."""
    wanted: type[UCB | TS] = TS if inner == "ts" else UCB
    explore = wanted(1.0) if explore is None else explore
    if not (callable(inner) or isinstance(explore, wanted)):
        raise CBanditError(
            f"inner={inner!r} goes with explore=cb.{wanted.__name__}(...); got "
            f"{checks.kind(explore)}"
        )
    return explore


def _list_beliefs(reward: Any) -> list[GP]:
    """Return the user's belief or beliefs as a list; raise if any is not a GP."""
    beliefs = list(reward) if isinstance(reward, list | tuple) else [reward]
    if not beliefs or not all(isinstance(belief, GP) for belief in beliefs):
        raise CBanditError(
            f"reward must be a cb.GP, or a list of them, one an epoch; got {reward!r}"
        )
    return beliefs


def _standardise(belief: GP) -> GP:
    """Return a copy of a belief with standardised targets, as ``reuse`` needs."""
    if belief.stated_mean:
        raise CBanditError(
            "reward must have mean 0 with reuse=True: its targets are standardised"
        )
    copied = belief.copy()
    copied.standardize, copied.scale = True, None
    return copied
