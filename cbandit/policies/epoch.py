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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core import checks, devices
from cbandit._core.arguments import stated
from cbandit._core.log import warn
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.confidence import RKHS
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB, Explore
from cbandit.multipliers import exponential, polynomial
from cbandit.policies.abilities import GREATEST
from cbandit.policies.acquire import Estimates
from cbandit.policies.checks import COST_COUNT
from cbandit.policies.choices import Asked, Data, News, Place
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import GPKeywords
from cbandit.policies.paired import Paired
from cbandit.policies.saving import locked
from cbandit.policies.words import counted
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import scorer
from cbandit.posterior.observations import Part
from cbandit.recommend import Recommendation
from cbandit_kernels import Look

Psi = str | tuple[Any, ...] | Callable[[Tensor], Tensor]
"""A penalty as users give it, see :class:`EpochPenalty`."""


class Row(NamedTuple):
    """A round whose reward and costs have all come in the trials ``where (T,)``.

    Args:
        place: the round, and where its choice is.
        reward: ``(T, 1)``.
        cost: ``(T, m)``, less the thresholds.
        where: the trials, ``(T,)`` bool on the host.
    """

    place: Place
    reward: Tensor
    cost: Tensor
    where: Tensor


class Epoch(NamedTuple):
    """The state of epoch penalties.

    Args:
        number: the epoch, counted from 0.
        kept: the multipliers ``(T, m)``; their logarithms if they move by factors.
        sums: sums of this epoch's costs, ``(T, m)``.
        counts: how many costs are in the sums.
        waiting: feedback of rounds that have not been told in full.
        rows: rounds told in full, by epoch number; a negative number is earlier data.
    """

    number: int
    kept: Tensor
    sums: Tensor
    counts: Tensor
    waiting: dict[int, Paired]
    rows: dict[int, tuple[Row, ...]]

    @classmethod
    def start(cls, kept: Tensor) -> Epoch:
        """Return the first epoch, before any feedback."""
        zero = torch.zeros_like(kept)
        return cls(0, kept, zero, zero, {}, {})

    def next(self, number: int, kept: Tensor, reuse: bool) -> Epoch:
        """Return a new epoch with other multipliers; ``reuse`` keeps past rounds."""
        fresh = Epoch.start(kept)._replace(number=number, waiting=self.waiting)
        return fresh._replace(rows=self.rows) if reuse else fresh

    def mean(self) -> Tensor:
        """Return the mean of this epoch's costs, 0 where nothing came, ``(T, m)``."""
        return self.sums / self.counts.clamp_min(1)

    def told(self, place: Place, news: News) -> tuple[Epoch, Row]:
        """Return the state with the news, and the round in the trials now complete.

        Args:
            place: the round, and where its choice is.
            news: the feedback of that round.
        """
        before = self.waiting.get(place.t) or Paired.start(self.sums)
        now = before.told(news)
        waiting = {t: other for t, other in self.waiting.items() if t != place.t}
        if not (news.cancelled or bool(now.whole.all())):
            waiting[place.t] = now
        where = now.whole & ~before.whole
        mask = devices.put(where, self.sums.device).unsqueeze(-1)
        reward, cost = (torch.where(mask, v, 0.0) for v in (now.reward, now.cost))
        return self._replace(waiting=waiting), Row(place, reward, cost, where)

    def added(self, number: int, row: Row) -> Epoch:
        """Return the state with one more round of epoch ``number``."""
        epoch = self
        if number == self.number:
            mask = devices.put(row.where, self.sums.device).unsqueeze(-1)
            sums, counts = self.sums + row.cost, self.counts + mask
            epoch = self._replace(sums=sums, counts=counts)
        rows = self.rows.get(number, ())
        before = [other for other in rows if other.place.t <= row.place.t]
        after = rows[len(before) :]
        return epoch._replace(rows={**self.rows, number: (*before, row, *after)})

    def all_rows(self) -> list[Row]:
        """Return all complete rounds, in the order in which the beliefs log them."""
        return [row for _, rows in sorted(self.rows.items()) for row in rows]


@dataclass(frozen=True)
class Penalty:
    """A penalty of costs, and how its multiplier ``kappa`` moves.

    Args:
        psi: the penalty; not used if ``linear``.
        linear: whether the penalty is the cost itself and ``kappa`` moves by addition;
            otherwise ``kappa`` is multiplied, and its logarithm is kept, which does
            not overflow.
        rate: the step of a linear penalty, ``(T, m)`` or as the user gives it.
        still: whether ``kappa`` never moves.
    """

    psi: Callable[[Tensor], Tensor]
    linear: bool
    rate: Tensor
    still: bool

    @classmethod
    def of(cls, psi: Psi, rate: ArrayLike | None) -> Penalty:
        """Return the penalty that a user's ``psi`` and ``rate`` describe."""
        form, linear = _form(psi), isinstance(psi, str) and psi == "linear"
        if linear and rate is None:
            raise CBanditError("rate is needed with psi='linear'; O(1 / sqrt(epochs))")
        step = checks.nonnegative("rate", 0.0 if rate is None else rate)
        still = rate is not None and not bool(step.any())
        if not linear and rate is not None and not still:
            raise CBanditError(
                "rate goes with psi='linear'; with another psi only rate=0, a kappa "
                f"that stays; got {rate!r}"
            )
        return cls(form, linear, step, still)

    def first(self, kappa: ArrayLike | None) -> Tensor:
        """Return the first multipliers: the user's, else 1, or 0 if linear."""
        if self.linear:
            return checks.nonnegative("kappa", 0.0 if kappa is None else kappa)
        return checks.positive("kappa", 1.0 if kappa is None else kappa)

    def kept(self, kappa: Tensor) -> Tensor:
        """Return multipliers ``(T, m)`` in the state's form: logarithms or not."""
        return kappa if self.linear else kappa.log()

    def kappa(self, kept: Tensor) -> Tensor:
        """Return the multipliers ``(T, m)`` from the state's form; always finite."""
        if self.linear:
            return kept.clone()
        return kept.exp().clamp_max(torch.finfo(kept.dtype).max)

    def moved(self, kept: Tensor, mean: Tensor) -> Tensor:
        """Return the kept multipliers after an epoch of mean costs ``mean (T, m)``."""
        if self.still:
            return kept
        if self.linear:
            return (kept + self.rate * mean).clamp_min(0)
        # an epoch without feedback has mean 0, and psi(0) = 1
        return (kept + self.psi(mean).log()).clamp_max(2 * _edge(kept))

    def outgrown(self, kept: Tensor) -> bool:
        """Return whether a multiplier is too large for its dtype."""
        return not self.linear and bool((kept > _edge(kept)).any())

    def charge(self, kept: Tensor, cost: Tensor) -> Tensor:
        """Return ``sum_j kappa_j (psi(c_j) - 1)`` or ``sum_j kappa_j c_j (T, 1)``."""
        charge = cost if self.linear else self.psi(cost) - 1
        return (self.kappa(kept) * charge).sum(-1, keepdim=True)


class EpochPenalty(GPPolicy):
    """Penalised GP-UCB with multipliers that move once an epoch.

    Args:
        actions: what can be chosen.
        reward: the belief about the penalised reward; or a list with one belief an
            epoch, of which the last one serves all later epochs.
        costs: how many costs, ``m``, or their names.
        explore: :class:`~cbandit.UCB`, or :class:`~cbandit.TS` with ``inner="ts"``; of
            width 1 unless given. A rule as ``inner`` gets such estimates as ``f``.
        epoch: ``S``, rounds an epoch.
        psi: above 0, ``exp(c z)``: ``"exp"`` or ``("exp", c)``; ``(c z + 1)^n``:
            ``("polynomial", n)`` or ``("polynomial", n, c)``, whose violation is
            sublinear if ``n > 1``; a callable, 1 up to 0, convex and increasing above,
            with ``psi(x) psi(y) >= psi(x + y)``; or ``"linear"``, for noisy
            constraints.
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
        GREATEST,
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
    _warned = False  # whether it has warned that multipliers outgrow the dtype

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
        costs = counted(costs, COST_COUNT)
        self.epoch = checks.whole("epoch", epoch)
        self.reuse = checks.flag("reuse", reuse)
        self.inner = checks.one_of(
            "inner", inner, "ucb", "ts", other="a function of estimates", called=True
        )
        explore = _inner(inner, explore)
        if self._acquires and common.get("clip") is not None:
            raise CBanditError("clip goes with inner='ucb' or 'ts', not with a rule")
        self._penalty = Penalty.of(psi, rate)
        beliefs = _listed(reward)
        # only reuse rescales targets; otherwise scores are in the user's units
        self._in_spreads = all(belief.standardize for belief in beliefs)
        if self.reuse:
            beliefs = [_standardised(belief) for belief in beliefs]
        first = beliefs[0]
        super().__init__(actions, reward=first, costs=costs, explore=explore, **common)
        for k, belief in enumerate(beliefs):
            belief.suit(f"reward[{k}]", self.actions.domain, self.batch_shape)
            beliefs[k] = self.senses.belief(0, belief)
        # one belief an epoch; the last one serves all later epochs
        self._by_epoch = beliefs
        self._cost_noises = self._noises_of_costs()
        rates = self._number("rate", self._penalty.rate)
        self._penalty = replace(self._penalty, rate=rates)
        self._refits = any(belief.refit_every for belief in beliefs)
        kappa = self._per_cost("kappa", self._penalty.first(kappa)).clone()
        first_epoch = Epoch.start(self._penalty.kept(kappa))
        self.begin(self._now.state._replace(own=first_epoch, multiplier=kappa))

    @property
    def _acquires(self) -> bool:
        return callable(self.inner) or self.abilities.acquires

    def _epoch_of(self, t: int) -> int:
        """Return the number of round ``t``'s epoch; negative during the design."""
        return (t - 1 - self.design) // self.epoch

    def score(self, t: int, multiplier: Tensor) -> scores.Reward:
        """Return the estimate of the penalised reward."""
        return scores.Reward()

    def acquire(self, t: int, multiplier: Tensor, estimates: Estimates) -> Tensor:
        """Return the values of the rule given as ``inner``, ``(T, n)``."""
        values: Tensor = self.inner(estimates)
        return values

    def _look(self, state: GPState, asked: Asked) -> Look:
        """Return the look of a round, its score in the user's units or in spreads."""
        look, units = super()._look(state, asked), state.beliefs.units()
        if units is None or self._in_spreads or self._acquires:
            return look
        form, bound = scorer(look), look.bound

        def score(f: Tensor, g: Tensor) -> Tensor:
            f = torch.addcmul(units.center.to(f), f, units.size.to(f))
            return form(f if bound is None else f.clamp(-bound.to(f), bound.to(f)), g)

        close = None if look.tolerance is None else look.tolerance * units.size[:, 0]
        return replace(look, score=score, bound=None, tolerance=close)

    def _chances(self, state: GPState) -> int:
        """Return ``c`` of the RKHS widths."""
        number = state.own.number
        if self.horizon is None:
            share = (number + 1) * (number + 2)
        else:
            share = self._epoch_of(self.horizon) + 1
        return int(2 * share if self._penalty.linear else share)

    def _coefficient(self, state: GPState, asked: Asked) -> Tensor:
        """Return the factor of this round's spread, ``(T, F)``.

        With noisy constraints targets are noisier than the reward, and RKHS widths grow
        with the multipliers: ``R`` becomes ``sqrt(R^2 + sum_j kappa_j^2 R_j^2)``.
        """
        parts = self._widths.rkhs_parts()
        if not self._penalty.linear or not parts:
            return super()._coefficient(state, asked)
        part, beliefs = parts[0][0], state.beliefs
        r, costs = part.subgaussian, self._cost_noises
        spread = (state.own.kept * (r if costs is None else costs)).square()
        grown = (r.square() + spread.sum(-1, keepdim=True)).sqrt()
        gains, noises = beliefs.gains(), beliefs.noises()
        chances = self._chances(state)
        width = part.rkhs(asked.t, gains, chances, noises, part.norm, grown)
        return self.explore.coefficient(width, asked.streams)

    def _noises_of_costs(self) -> Tensor | None:
        """Return the noise constants ``(T, m)`` that the widths state for the costs."""
        widths = self.explore.widths
        if not isinstance(widths.cost_beta, RKHS):
            return None
        count = 1 if widths.cost_beta is widths.beta else self.m
        r = widths.cost_beta.subgaussian
        noises = checks.per_cost("subgaussian", r, self.batch_shape, count)
        return noises.expand(-1, self.m).to(self.device)

    def _open(self, state: GPState, asked: Asked) -> GPState:
        """At the start of an epoch, move the multipliers and recompute the targets."""
        if not asked.by_rule:
            return super()._open(state, asked)
        epoch, number = state.own, self._epoch_of(asked.t)
        if number == epoch.number:
            return state
        kept = self._penalty.moved(epoch.kept, epoch.mean())
        if not self._warned and self._penalty.outgrown(kept):
            self._warned = True
            warn(
                "EpochPenalty: kappa has outgrown the dtype and is held at its largest "
                "value; a slower penalty such as psi=('polynomial', 2) keeps it "
                "smaller",
                RuntimeWarning,
            )
        epoch = epoch.next(number, kept, self.reuse)
        state = state._replace(own=epoch, multiplier=self._penalty.kappa(kept))
        # first what may fail, as a rebuilt engine agrees only up to rounding
        self._coefficient(state, asked)
        beliefs, rows = state.beliefs, epoch.all_rows()
        if number < len(self._by_epoch):
            beliefs = self._fresh_beliefs([self._by_epoch[number]])
            for row in rows:
                beliefs = self._with_row(beliefs, epoch, row)
        elif not self.reuse:
            beliefs = beliefs.forget_all()
        elif rows:
            targets = [self._target(epoch, row, beliefs.dtype) for row in rows]
            beliefs = beliefs.retarget(torch.stack(targets))
        return state._replace(beliefs=beliefs)

    def _target(self, epoch: Epoch, row: Row, dtype: torch.dtype) -> Tensor:
        """Return a round's target: its reward less the penalty, ``(T, 1)``."""
        charge = self._penalty.charge(epoch.kept, row.cost)
        # squares of targets, and their sums, must stay finite too
        largest = min(torch.finfo(dtype).max ** 0.5, 1e75)
        return row.reward - charge.clamp(-largest, largest)

    def _with_row(self, beliefs: Beliefs, epoch: Epoch, row: Row) -> Any:
        """Return the beliefs with one more round."""
        keys, x, t = row.place
        target = self._target(epoch, row, beliefs.dtype)
        return beliefs.absorb(keys, x, [Part([0], target, row.where.tolist())], t)

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state after news; rounds count once they are complete."""
        place, t = self._place(news.choice), news.choice.t
        epoch, row = state.own.told(place, news)
        state, number = state._replace(own=epoch), self._epoch_of(t)
        # without reuse, data of a past epoch is dropped
        dropped = not self.reuse and number < epoch.number and epoch.number > 0
        if dropped or not bool(row.where.any()):
            return state
        return self._learnt(state, number, row)

    def _learnt(self, state: GPState, number: int, row: Row) -> GPState:
        """Return the state with one more round of epoch ``number``."""
        epoch = state.own.added(number, row)
        beliefs = self._with_row(state.beliefs, epoch, row)
        return state._replace(beliefs=beliefs, own=epoch)

    def _observed(self, state: GPState, data: Data) -> GPState:
        limits = self.limits(max(self.t, 1))
        for keys, x, (reward, cost) in data.rows():
            where, over = torch.tensor(list(reward.wanted)), cost.values - limits
            row = Row(Place(list(keys), x, 0), reward.values, over, where)
            state = self._learnt(state, -1, row)
        return state

    @property
    @locked
    def multiplier(self) -> Tensor:
        """``kappa`` as the next ``ask`` will use it, ``(*trials, m)``."""
        epoch = self._settled().state.own
        over = self._epoch_of(self.t + 1) > epoch.number
        kept = self._penalty.moved(epoch.kept, epoch.mean()) if over else epoch.kept
        return self._outside(self._penalty.kappa(kept))

    def _priced(self, multiplier: Tensor, beliefs: Beliefs) -> Tensor:
        return self._outside(multiplier)  # kappa is in the user's units

    @locked
    def recommend(
        self, confidence: float = 0.95, context: Any = None
    ) -> Recommendation:
        """Return what to deploy: the action of greatest reward less penalties.

        It is never called feasible, as there is no belief about the costs.
        """
        return replace(super().recommend(confidence, context), penalised=True)


def _inner(inner: object, explore: Explore | None) -> Explore:
    """Return how epochs explore; the width is 1 unless given."""
    wanted: type[UCB | TS] = TS if inner == "ts" else UCB
    explore = wanted(1.0) if explore is None else explore
    if not (callable(inner) or isinstance(explore, wanted)):
        raise CBanditError(
            f"inner={inner!r} goes with explore=cb.{wanted.__name__}(...); got "
            f"{checks.kind(explore)}"
        )
    return explore


def _listed(reward: object) -> list[GP]:
    """Return one belief an epoch; the last one serves all later epochs."""
    beliefs = [reward] if isinstance(reward, GP) else reward
    if (
        not isinstance(beliefs, list | tuple)
        or not beliefs
        or not all(isinstance(belief, GP) for belief in beliefs)
    ):
        raise CBanditError(
            f"reward must be a cb.GP, or a list of them, one an epoch; got {reward!r}"
        )
    return list(beliefs)


def _standardised(belief: GP) -> GP:
    """Return a copy of a belief with standardised targets, as ``reuse`` needs."""
    if bool((belief.mean != 0).any()):
        raise CBanditError(
            "reward must have mean 0 with reuse=True: its targets are standardised"
        )
    copied = belief.copy()
    copied.standardize = True
    return copied


def _edge(kept: Tensor) -> float:
    return math.log(torch.finfo(kept.dtype).max)


def _form(psi: Psi) -> Callable[[Tensor], Tensor]:
    """Return the penalty function that ``psi`` names; wrap a callable in checks."""
    if isinstance(psi, str) and psi in ("exp", "linear"):
        return exponential
    name, *numbers = psi if isinstance(psi, tuple) and psi else (None,)
    if name == "exp" and len(numbers) == 1:
        return partial(exponential, c=_constant(numbers[0]))
    if name == "polynomial" and len(numbers) in (1, 2):
        n = checks.number("psi's power n", numbers[0], minimum=1.0)
        c = _constant(numbers[1]) if numbers[1:] else 1.0
        return partial(polynomial, n=n, c=c)
    if not callable(psi):
        raise CBanditError(
            "psi must be 'exp', ('exp', c), ('polynomial', n), ('polynomial', n, c), "
            f"'linear' or a callable; got {psi!r}"
        )
    _check_penalty(psi)
    return CheckedPsi(psi)


class CheckedPsi:
    """A user's penalty, with a check of its values."""

    def __init__(self, psi: Callable[[Tensor], Any]) -> None:
        self._psi = psi

    def __call__(self, z: Tensor) -> Tensor:
        """Return the values of ``psi``."""
        value = checks.tensor("psi(z)", self._psi(z)).to(z)
        if not bool((value >= 1 - 1e-9).all()):
            raise CBanditError(
                f"psi must be at least 1 everywhere; got {value.min().item():g}"
            )
        return value


def _constant(value: object) -> float:
    c = checks.number("psi's constant c", value)
    if c <= 0:
        raise CBanditError(f"psi's constant c must be above 0; got {c:g}")
    return c


def _check_penalty(psi: Callable[[Tensor], Tensor]) -> None:
    """Raise an error if a user's ``psi`` lacks a property that penalties need."""
    z = torch.linspace(-1, 3, 81, dtype=torch.float64)
    values = checks.finite("psi", checks.tensor("psi(z)", psi(z)))
    if tuple(values.shape) != tuple(z.shape):
        raise CBanditError(
            f"psi must map a tensor to one of its shape; got {tuple(values.shape)} "
            f"from {tuple(z.shape)}"
        )
    above, slack = values[20:], 1e-9 * values.abs().max()
    gaps = above.diff()
    for holds, what in (
        (bool(((values[:21] - 1).abs() <= slack).all()), "be 1 for z <= 0"),
        (bool((gaps > 0).all()), "increase for z > 0"),
        (bool((gaps.diff() >= -slack).all()), "be convex for z > 0"),
    ):
        if not holds:
            raise CBanditError(f"psi must {what}; it is not on [-1, 3]")
    x = z[20:51]
    together = checks.tensor("psi(z)", psi(x.unsqueeze(-1) + x))
    apart = above[:31].unsqueeze(-1) * above[:31]
    if bool((apart < together * (1 - 1e-9)).any()):
        raise CBanditError("psi must satisfy psi(x) psi(y) >= psi(x + y); it does not")
