"""Epoch penalties: GP-UCB on a penalised reward; multipliers move once an epoch.

Noiseless constraints (``psi`` a convex penalty), ``kappa_j = 1`` at first. Epoch ``l``:

1. GP-UCB for ``S`` rounds on ``F = f - sum_j kappa_j (psi(g_j) - 1)``, that is on the
   targets ``r_s - sum_j kappa_j (psi(g_j(x_s)) - 1)``;
2. ``kappa_j = kappa_j psi(mean of g_j(x_s) over the epoch)``.

Noisy constraints (``psi="linear"``), ``kappa_j = 0`` at first: targets
``r_s - sum_j kappa_j c_js``, noise constant ``R sqrt(1 + sum_j kappa_j^2)``, then
``kappa_j = [kappa_j + rate * mean of c_js]_+``.

RKHS widths share ``delta`` among the horizon's ``L`` epochs: ``c = L``, and ``2 L``
with noisy constraints, half of it being for the costs' noise. Without a horizon (ours)
epoch ``l`` has the share ``1 / (l (l + 1))``.

``reuse=True`` (ours) keeps all rounds across epochs, recomputes their targets under the
new ``kappa`` and standardises them; ``reuse=False`` starts each epoch from a fresh GP,
as printed. ``inner="ts"`` puts GP-TS in the place of GP-UCB.

M. Shi and A. Eryilmaz, 2022, Algorithms 2 and 3.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit import scores
from cbandit._core import checks, devices
from cbandit._core.arguments import stated
from cbandit.beliefs.gp import GP
from cbandit.confidence import RKHS
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB, Explore
from cbandit.policies.alone import alone
from cbandit.policies.believed import Data
from cbandit.policies.decision import Asked
from cbandit.policies.given import COST_COUNT
from cbandit.policies.gp import GPPolicy
from cbandit.policies.ledger import News
from cbandit.policies.packing import Place, place_of
from cbandit.policies.penalties import penalty_of
from cbandit.policies.seen import Epoch, Seen
from cbandit.policies.senses import counted
from cbandit.policies.state import GPState
from cbandit.posterior.look import Look, scorer
from cbandit.recommend import Recommendation

__all__ = ["EpochPenalty"]


class EpochPenalty(GPPolicy):
    """Penalised GP-UCB with multipliers that move once an epoch.

    Args:
        actions: what can be chosen.
        reward: the belief about the penalised reward; or a list, one an epoch, the last
            one kept for all that follow.
        costs: how many costs, ``m``, or their names.
        explore: :class:`~cbandit.UCB`, or :class:`~cbandit.TS` with ``inner="ts"``; of
            width 1 unless given.
        epoch: ``S``, rounds an epoch.
        psi: ``"exp"`` or ``("exp", c)``, ``exp(c z)`` above 0; ``("polynomial", n)`` or
            ``("polynomial", n, c)``, ``(c z + 1)^n`` above 0 (``c`` is 1 unless given;
            both families are in :mod:`cbandit.multipliers`); ``"linear"``, for noisy
            constraints; or a callable that is 1 up to 0, convex and increasing above,
            with ``psi(x) psi(y) >= psi(x + y)``.
        rate: the multipliers' step with ``psi="linear"``; 0, with any ``psi``, keeps
            ``kappa`` fixed (a baseline: no fixed one gives both sublinear rates).
        inner: ``"ucb"`` or ``"ts"``.
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
    no_noise = "EpochPenalty takes no noise=: its targets mix the reward with costs"

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
        epoch, reuse = checks.whole("epoch", epoch), checks.flag("reuse", reuse)
        checks.one_of("inner", inner, "ucb", "ts")
        wanted: type[UCB | TS] = UCB if inner == "ucb" else TS
        explore = wanted(1.0) if explore is None else explore
        if not isinstance(explore, wanted):
            raise CBanditError(
                f"inner={inner!r} goes with explore=cb.{wanted.__name__}(...); got "
                f"{checks.kind(explore)}"
            )
        if common.get("feedback") is not None:
            raise CBanditError(
                "EpochPenalty takes no feedback=: epochs need every round"
            )
        self._penalty = penalty_of(psi, rate)
        self._beliefs_of = _listed(reward, reuse)
        listed = reward if isinstance(reward, list | tuple) else [reward]
        # targets that are rescaled here alone are looked at in the user's units
        self._in_spreads = all(belief.standardize for belief in listed)
        one = self._beliefs_of[0]
        super().__init__(actions, reward=one, costs=costs, explore=explore, **common)
        for k, belief in enumerate(self._beliefs_of):
            belief.suit(f"reward[{k}]", self.actions, self.batch_shape)
        turn = self.senses.belief
        self._beliefs_of = [turn(0, belief) for belief in self._beliefs_of]
        self._refits = any(belief.refit_every for belief in self._beliefs_of)
        self.epoch, self.reuse, self.inner = epoch, reuse, inner
        linear = self._penalty.linear
        start = kappa if kappa is not None else (0.0 if linear else 1.0)
        checked = checks.nonnegative if linear else checks.positive
        first = self._per_cost("kappa", checked("kappa", start)).clone()
        self._noises = self._subgaussians(explore)
        self._warned = False
        kept, none = self._penalty.kept(first), torch.zeros_like(first)
        own = Epoch(0, kept, none, none, {}, {})
        self._begin(self._now.state._replace(own=own))

    @property
    @alone
    def multiplier(self) -> Tensor:
        """``kappa`` as the next ``ask`` will use it, ``(*trials, m)``."""
        own = self._settled().state.own
        over = self._epoch_of(self.t + 1) > own.number
        kept = self._penalty.moved(own.kept, own.mean()) if over else own.kept
        return self._outside(self._penalty.kappa(kept))

    @property
    @alone
    def price(self) -> Tensor:
        """As :attr:`multiplier`, which is in the user's units here."""
        return self.multiplier

    def _epoch_of(self, t: int) -> int:
        """Return the number of round ``t``'s epoch, -1 before the first."""
        return (t - 1) // self.epoch

    def score(self, t: int, multiplier: Tensor) -> scores.Reward:
        """Return the estimate of the penalised reward."""
        return scores.Reward()

    def _look(self, state: GPState, asked: Asked) -> Look:
        """Return which score is wanted, of estimates in the belief's own units."""
        look, units = super()._look(state, asked), state.beliefs.units()
        if units is None or self._in_spreads:
            return look
        form, bound = scorer(look), look.bound

        def score(f: Tensor, g: Tensor) -> Tensor:
            f = torch.addcmul(units.center.to(f), f, units.size.to(f))
            return form(f if bound is None else f.clamp(-bound.to(f), bound.to(f)), g)

        return replace(look, score=score, bound=None)

    def _opened(self, state: GPState, asked: Asked) -> GPState:
        """Move multipliers and targets at the start of an epoch."""
        own, number = state.own, self._epoch_of(asked.t)
        if number == own.number:
            return state
        kept = self._penalty.moved(own.kept, own.mean())
        if not self._penalty.linear:
            edge = math.log(torch.finfo(kept.dtype).max)
            self._warn(bool((kept > edge).any()))
            kept = kept.clamp_max(2 * edge)  # psi itself may be infinite
        none = torch.zeros_like(kept)
        data = own.data if self.reuse else {}
        own = Epoch(number, kept, none, none, own.partly, data)
        seen, beliefs = own.seen(), state.beliefs
        if 0 < number < len(self._beliefs_of):
            beliefs = self._fresh_beliefs([self._beliefs_of[number]])
            for each in seen:
                beliefs = self._conditioned(beliefs, own, each)
        elif not self.reuse:
            beliefs = beliefs.forget_all()
        elif seen:
            # what may fail goes first: a rebuilt engine is equal up to rounding only
            self._limits(asked.t), self._coefficient(state._replace(own=own), asked)
            targets = torch.stack([self._target(own, each) for each in seen])
            beliefs = beliefs.retarget(targets)
        return state._replace(beliefs=beliefs, own=own)

    def _warn(self, outgrown: bool) -> None:
        if outgrown and not self._warned:
            self._warned = True
            warnings.warn(
                "EpochPenalty: kappa has outgrown the dtype and is held at its largest "
                "value; a slower penalty such as psi=('polynomial', 2) keeps it "
                "smaller",
                RuntimeWarning,
                stacklevel=6,
            )

    def _target(self, own: Epoch, seen: Seen) -> Tensor:
        """Return the reward less the penalty, ``(T, 1)``."""
        charge = self._penalty.charge(own.kept, seen.cost)
        # squares of targets, and their sums, must stay finite too
        largest = min(torch.finfo(self.dtype).max ** 0.5, 1e75)
        return seen.reward - charge.clamp(-largest, largest)

    def _conditioned(self, beliefs: Any, own: Epoch, seen: Seen) -> Any:
        """Return the beliefs with one more round."""
        keys, x, t = seen.place
        part = ([0], self._target(own, seen), seen.whole().tolist(), None)
        return beliefs.absorb(keys, x, [part], t)

    # -- widths ------------------------------------------------------------------------

    def _subgaussians(self, explore: Explore) -> Tensor | None:
        """Return the costs' noise constants ``(T, m)``, where the widths tell them."""
        own = explore.widths.cost_beta
        if not isinstance(own, RKHS):
            return None
        shared, batch = own is explore.widths.beta, self.batch_shape
        count = 1 if shared else self.m
        found = checks.per_cost("subgaussian", own.subgaussian, batch, count)
        return found.expand(-1, self.m).to(self.device)

    def _chances(self, state: GPState) -> int:
        """Return ``c`` of the RKHS widths."""
        if self.horizon is None:
            begun: int = state.own.number + 1
            epochs = begun * (begun + 1)
        else:
            epochs = self._epoch_of(self.horizon) + 1
        return 2 * epochs if self._penalty.linear else epochs

    def _coefficient(self, state: GPState, asked: Asked) -> Tensor:
        parts = self._estimating.widths.rkhs_parts()
        if not self._penalty.linear or not parts:
            return super()._coefficient(state, asked)
        # the targets' noise grows with the multipliers
        part, beliefs = parts[0][0], state.beliefs
        norm, r = part.norm, part.subgaussian
        own = r if self._noises is None else self._noises
        spread = (state.own.kept * own).square().sum(-1, keepdim=True)
        grown = (r.square() + spread).sqrt()
        gains, noises, chances = beliefs.gains(), beliefs.noises(), self._chances(state)
        width = part.rkhs(asked.t, gains, chances, noises, norm, grown)
        return self.explore.coefficient(width, asked.streams)

    # -- feedback ----------------------------------------------------------------------

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state with rounds of which all has come; others wait."""
        own, t = state.own, news.choice.t
        before = own.partly.get(t) or Seen.nothing(
            place_of(self, news.choice), own.sums
        )
        seen = before.told(news, self._limits(t))
        partly = {s: each for s, each in own.partly.items() if s != t}
        if not (news.cancelled or bool(seen.whole().all())):
            partly[t] = seen
        own = own._replace(partly=partly)
        fresh = seen.whole() & ~before.whole()
        number = self._epoch_of(t)
        current = number == own.number
        # of an epoch that has ended data may be dropped
        if not bool(fresh.any()) or not (current or self.reuse):
            return state._replace(own=own)
        mask = devices.put(fresh, self.device).unsqueeze(-1)
        new = seen.only(fresh, mask)
        if current:
            own = own._replace(sums=own.sums + new.cost, counts=own.counts + mask)
        own = own.added(number, new)
        beliefs = self._conditioned(state.beliefs, own, new)
        return state._replace(beliefs=beliefs, own=own)

    @alone
    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """Return what to deploy: the action of greatest reward less penalties.

        The costs have no belief of their own: nowhere is it called feasible.
        """
        return replace(super().recommend(confidence), penalised=True)

    @alone
    def observe(
        self,
        *,
        index: Any = None,
        x: Any = None,
        reward: Any = None,
        cost: Any = None,
        params: Any = None,
    ) -> None:
        """Learn from ``n`` rows of data from before, reward and cost together."""
        if reward is None or cost is None:
            raise CBanditError(
                "EpochPenalty's observe needs reward= and cost= together"
            )
        where = {"index": index, "x": x, "params": params}
        super().observe(reward=reward, cost=cost, **where)

    def _observed(self, state: GPState, data: Data) -> GPState:
        limits = self._limits(max(self.t, 1))
        every = torch.ones(self._size, dtype=torch.bool)
        own, beliefs = state.own, state.beliefs
        for keys, x, ((_, reward, *_), (_, cost, *_)) in data.rows():
            seen = Seen(Place(list(keys), x, 0), reward, cost - limits, every, every)
            own = own.added(-1, seen)
            beliefs = self._conditioned(beliefs, own, seen)
        return state._replace(beliefs=beliefs, own=own)


def _listed(reward: Any, reuse: bool) -> list[GP]:
    """Return the belief of each epoch, the last one for all that follow."""
    beliefs = [reward] if isinstance(reward, GP) else reward
    if (
        not isinstance(beliefs, list | tuple)
        or not beliefs
        or not all(isinstance(each, GP) for each in beliefs)
    ):
        raise CBanditError(
            f"reward must be a cb.GP, or a list of them, one an epoch; got {reward!r}"
        )
    if not reuse:
        return list(beliefs)
    out = []
    for belief in beliefs:
        if bool((belief.mean != 0).any()):
            raise CBanditError(
                "reward must have mean 0 with reuse=True: its targets are standardised"
            )
        copied = belief.copy()
        copied.standardize = True
        out.append(copied)
    return out
