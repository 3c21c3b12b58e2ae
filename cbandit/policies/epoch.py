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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cbandit import scores
from cbandit._core import checks, devices
from cbandit.beliefs.gp import GP
from cbandit.choice import Choice
from cbandit.confidence import RKHS
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB, Explore
from cbandit.policies.gp import GPPolicy
from cbandit.policies.policy import COST_COUNT, Decision, Told
from cbandit.recommend import Recommendation

__all__ = ["EpochPenalty", "exponential", "polynomial"]


def exponential(z: Tensor, c: float = 1.0) -> Tensor:
    """``exp(c z)`` above 0, 1 below."""
    return (c * z.clamp_min(0)).exp()


def polynomial(z: Tensor, n: float = 2.0, c: float = 1.0) -> Tensor:
    """``(c z + 1)^n`` above 0, 1 below; ``n >= 1``."""
    return (c * z.clamp_min(0) + 1) ** n


class EpochPenalty(GPPolicy):
    """Penalised GP-UCB with multipliers that move once an epoch.

    Args:
        actions: what can be chosen.
        reward: the belief about the penalised reward; or a list, one an epoch, the last
            one kept for all that follow.
        costs: how many costs, ``m``.
        explore: :class:`~cbandit.UCB`, or :class:`~cbandit.TS` with ``inner="ts"``.
        epoch: ``S``, rounds an epoch.
        psi: ``"exp"``, ``("polynomial", n)``, ``"linear"`` (noisy constraints), or a
            callable that is 1 up to 0, convex and increasing above, with
            ``psi(x) psi(y) >= psi(x + y)``.
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
    no_noise = "EpochPenalty takes no noise=: its targets mix the reward with costs"
    splits = True

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: int,
        explore: Explore,
        epoch: int,
        psi: Any = "exp",
        rate: Any = None,
        inner: str = "ucb",
        reuse: bool = True,
        kappa: Any = None,
        **common: Any,
    ) -> None:
        costs = checks.whole("costs", costs, 1, COST_COUNT)
        epoch, reuse = checks.whole("epoch", epoch), checks.flag("reuse", reuse)
        checks.one_of("inner", inner, "ucb", "ts")
        wanted = {"ucb": UCB, "ts": TS}[inner]
        if not isinstance(explore, wanted):
            raise CBanditError(
                f"inner={inner!r} goes with explore=cb.{wanted.__name__}(...); got "
                f"{checks.kind(explore)}"
            )
        if common.get("feedback") is not None:
            raise CBanditError(
                "EpochPenalty takes no feedback=: epochs need every round"
            )
        self._psi = _penalty(psi)
        self.linear = isinstance(psi, str) and psi == "linear"
        if self.linear and rate is None:
            raise CBanditError("rate is needed with psi='linear'; O(1 / sqrt(epochs))")
        self._rate = 0.0 if rate is None else checks.number("rate", rate, minimum=0.0)
        self._still = rate is not None and self._rate == 0
        if not self.linear and rate is not None and not self._still:
            raise CBanditError(
                "rate goes with psi='linear'; with another psi only rate=0, a kappa "
                f"that stays; got {rate!r}"
            )
        self._beliefs_of = _listed(reward, reuse)
        super().__init__(actions, self._beliefs_of[0], None, explore, m=costs, **common)
        for k, belief in enumerate(self._beliefs_of):
            belief.suit(f"reward[{k}]", self.actions, self.batch_shape)
        self.epoch, self.reuse, self.inner = epoch, reuse, inner
        start = kappa if kappa is not None else (0.0 if self.linear else 1.0)
        checked = checks.nonnegative if self.linear else checks.positive
        first = self._per_cost("kappa", checked("kappa", start)).clone()
        # multiplicative: only the logarithm is kept, it outlives the dtype
        self._kappa = first if self.linear else first.log()
        self._noises = self._subgaussians(explore)
        self._warned = False
        self._partly: dict[int, _Seen] = {}  # rounds not yet told in full
        self._data: list[_Seen] = []  # in the order of the beliefs' log
        self._sums = torch.zeros_like(first)  # of this epoch's costs
        self._counts = torch.zeros_like(first)
        self._epoch_number = 0

    @property
    def multiplier(self) -> Tensor:
        """``kappa`` as the next ``ask`` will use it, ``(*trials, m)``."""
        self._catch_up()
        moved = (
            self._moved() if self._epoch_of(self.t + 1) > self._epoch_number else None
        )
        return self._outside(self._values(self._kappa if moved is None else moved))

    def _epoch_of(self, t: int) -> int:
        return (t - 1) // self.epoch

    def _values(self, kappa: Tensor) -> Tensor:
        """Multipliers from what is kept of them, never infinite."""
        if self.linear:
            return kappa.clone()
        largest = torch.finfo(kappa.dtype).max
        return kappa.exp().clamp_max(largest)

    def _moved(self) -> Tensor:
        """What is kept of the multipliers, after this epoch's costs."""
        if self._still:
            return self._kappa
        mean = self._sums / self._counts.clamp_min(1)
        if self.linear:
            return (self._kappa + self._rate * mean).clamp_min(0)
        # an epoch of which nothing is known has mean 0, and psi(0) = 1
        return self._kappa + self._psi(mean).log()

    def _turn(self, t: int) -> bool:
        """At the start of an epoch: move the multipliers; whether targets must too."""
        if self._epoch_of(t) == self._epoch_number:
            return False
        kappa = self._moved()
        edge = math.log(torch.finfo(kappa.dtype).max)
        if not self.linear and not self._warned and bool((kappa > edge).any()):
            self._warned = True
            warnings.warn(
                "EpochPenalty: kappa has outgrown the dtype and is held at its largest "
                "value; a slower penalty such as psi=('polynomial', 2) keeps it "
                "smaller",
                RuntimeWarning,
                stacklevel=4,
            )
        if not self.linear:
            kappa = kappa.clamp_max(2 * edge)  # psi itself may be infinite
        self._kappa, self._epoch_number = kappa, self._epoch_of(t)
        self._sums, self._counts = torch.zeros_like(kappa), torch.zeros_like(kappa)
        if not self.reuse:
            self._data = []
        beliefs = self._beliefs_of
        if 0 < self._epoch_number < len(beliefs):
            self._beliefs = self._fresh_beliefs([beliefs[self._epoch_number]])
            for seen in self._data:
                self._condition(seen, self._target(seen))
        elif not self.reuse:
            self._beliefs.forget_all()
        else:
            return bool(self._data)
        return False

    def _retarget(self) -> None:
        targets = [self._target(seen) for seen in self._data]
        self._beliefs.retarget(torch.stack(targets))

    def _target(self, seen: _Seen) -> Tensor:
        """``r - sum_j kappa_j (psi(c_j) - 1)``, or the linear form, ``(T, 1)``."""
        penalty = seen.cost if self.linear else self._psi(seen.cost) - 1
        weighted = (self._values(self._kappa) * penalty).sum(-1, keepdim=True)
        # squares of targets, and their sums, must stay finite too
        largest = min(torch.finfo(self.dtype).max ** 0.5, 1e75)
        return seen.reward - weighted.clamp(-largest, largest)

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        moved = self._retarget if self._turn(t) else None
        best = self._maximise(t, asked, mask, scores.Reward(), first=moved)
        return Decision(best.index, x=best.x, keys=best.keys)

    def _subgaussians(self, explore: Explore) -> Tensor | None:
        """The costs' noise constants ``(T, m)``, where the widths tell them."""
        own = explore.widths.cost_beta
        if not isinstance(own, RKHS):
            return None
        shared, batch = own is explore.widths.beta, self.batch_shape
        count = 1 if shared else self.m
        found = checks.per_cost("subgaussian", own.subgaussian, batch, count)
        return found.expand(-1, self.m).to(self.device)

    def _chances(self) -> int:
        """``c`` of the RKHS widths."""
        if self.horizon is None:
            begun = self._epoch_number + 1
            epochs = begun * (begun + 1)
        else:
            epochs = self._epoch_of(self.horizon) + 1
        return 2 * epochs if self.linear else epochs

    def _coefficient(self, t: int) -> Tensor:
        parts = self._widths.rkhs_parts()
        if not self.linear or not parts:
            return super()._coefficient(t)
        # the targets' noise grows with the multipliers
        part = parts[0][0]
        norm, r = part.scale()
        own = r if self._noises is None else self._noises
        grown = (r.square() + (self._kappa * own).square().sum(-1, keepdim=True)).sqrt()
        gains, noises = self._beliefs.gains(), self._beliefs.noises()
        width = part.schedule()(t, gains, self._chances(), noises, norm, grown)
        return self.explore.coefficient(width, self._streams)

    # -- feedback ----------------------------------------------------------------------

    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        seen = self._partly.get(choice.t)
        if seen is None:
            seen = _Seen.nothing(choice, self._size, self._sums)
        seen, before = replace(seen), seen.whole()
        for told in rewards:
            seen.reward, seen.rewarded = _with(seen.reward, seen.rewarded, told)
        for told in costs:
            less = replace(told, values=told.values - self._limits(choice.t))
            seen.cost, seen.charged = _with(seen.cost, seen.charged, less)
        fresh = seen.whole() & ~before
        mask = devices.put(fresh, self.device).unsqueeze(-1)
        news = replace(
            seen,
            reward=torch.where(mask, seen.reward, 0.0),
            cost=torch.where(mask, seen.cost, 0.0),
            rewarded=fresh,
            charged=fresh,
        )
        target = self._target(news)
        # a user's thresholds and psi have not failed
        if bool(seen.whole().all()):
            self._partly.pop(choice.t, None)
        else:
            self._partly[choice.t] = seen
        if not bool(fresh.any()):
            return
        current = self._epoch_of(choice.t) == self._epoch_number
        if current:
            self._sums = self._sums + news.cost
            self._counts = self._counts + mask
        elif not self.reuse:
            return  # of an epoch that has ended, and whose data are dropped
        place = len(self._data)
        while place and self._data[place - 1].choice.t > choice.t:
            place -= 1
        self._data.insert(place, news)
        self._condition(news, target)

    def _condition(self, seen: _Seen, target: Tensor) -> None:
        keys, x = self._named(seen.choice)
        part = ([0], target, seen.whole().tolist(), None)
        self._beliefs.absorb(keys, x, [part], seen.choice.t)

    def cancel(self, choice: Choice) -> None:
        """Say that the rest of a choice's feedback will never come."""
        super().cancel(choice)
        self._catch_up()
        self._partly.pop(choice.t, None)

    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """What to deploy: the action of greatest expected reward less penalties.

        The costs have no belief of their own: nowhere is it called feasible.
        """
        return replace(super().recommend(confidence), penalised=True)

    def observe(
        self, *, index: Any = None, x: Any = None, reward: Any = None, cost: Any = None
    ) -> None:
        """Learn from ``n`` rows of data from before, reward and cost together."""
        if reward is None or cost is None:
            raise CBanditError(
                "EpochPenalty's observe needs reward= and cost= together"
            )
        super().observe(index=index, x=x, reward=reward, cost=cost)

    def _observe(
        self,
        numbers: Tensor | None,
        places: Tensor,
        parts: list[tuple[list[int], Tensor]],
    ) -> None:
        (_, rewards), (_, costs) = parts
        limits = self._limits(max(self.t, 1))
        every = torch.ones(self._size, dtype=torch.bool)
        owner, rows = self._mark, []
        for i in range(places.shape[1]):
            x = self._outside(places[:, i])
            index = None if numbers is None else self._outside(numbers[:, i])
            choice = Choice(0, index, x, self._nowhere, None, owner)
            reward, cost = (v[:, i].to(self.device) for v in (rewards, costs))
            seen = _Seen(choice, reward, cost - limits, every, every)
            rows.append((seen, self._target(seen)))
        for seen, target in rows:
            place = sum(each.choice.t == 0 for each in self._data)
            self._data.insert(place, seen)
            self._condition(seen, target)


@dataclass
class _Seen:
    """What came of one round, and in which trials.

    Args:
        choice: the round's.
        reward: ``(T, 1)``.
        cost: ``(T, m)``, less the thresholds.
        rewarded: ``(T,)``, on the host, the trials whose reward has come.
        charged: likewise for the costs.
    """

    choice: Choice
    reward: Tensor
    cost: Tensor
    rewarded: Tensor
    charged: Tensor

    @classmethod
    def nothing(cls, choice: Choice, trials: int, like: Tensor) -> _Seen:
        """Nothing yet; ``like`` is ``(T, m)``."""
        nowhere = torch.zeros(trials, dtype=torch.bool)
        return cls(choice, torch.zeros_like(like[:, :1]), like * 0, nowhere, nowhere)

    def whole(self) -> Tensor:
        """The trials in which reward and costs have both come, ``(T,)``."""
        return self.rewarded & self.charged


def _with(values: Tensor, seen: Tensor, told: Told) -> tuple[Tensor, Tensor]:
    if told.where is None:
        return told.values, torch.ones_like(seen)
    return (
        torch.where(told.mask().unsqueeze(-1), told.values, values),
        seen | told.where,
    )


def _listed(reward: Any, reuse: bool) -> list[GP]:
    """The belief of each epoch, the last one for all that follow."""
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


def _penalty(psi: Any) -> Callable[[Tensor], Tensor]:
    if isinstance(psi, str) and psi in ("exp", "linear"):
        return exponential
    pair = isinstance(psi, tuple) and len(psi) == 2 and isinstance(psi[0], str)
    if pair and psi[0] == "polynomial":
        n = checks.number("psi's power n", psi[1], minimum=1.0)
        return _Polynomial(n)
    if not callable(psi):
        raise CBanditError(
            f"psi must be 'exp', ('polynomial', n), 'linear' or a callable; got {psi!r}"
        )
    _check_penalty(psi)
    return _Own(psi)


class _Own:
    """A user's callable, whose answers are looked at."""

    def __init__(self, psi: Callable[[Tensor], Any]) -> None:
        self._psi = psi

    def __call__(self, z: Tensor) -> Tensor:
        value = checks.tensor("psi(z)", self._psi(z)).to(z)
        if not bool((value >= 1 - 1e-9).all()):
            raise CBanditError(
                f"psi must be at least 1 everywhere; got {value.min().item():g}"
            )
        return value


class _Polynomial:
    def __init__(self, n: float) -> None:
        self._n = n

    def __call__(self, z: Tensor) -> Tensor:
        return polynomial(z, self._n)


def _check_penalty(psi: Callable[[Tensor], Tensor]) -> None:
    """An error that names the property a user's ``psi`` lacks, where one is seen."""
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
