"""Epoch penalties: GP-UCB on a penalised reward; multipliers move once an epoch.

Noiseless constraints (``psi`` a convex penalty), ``kappa_j = 1`` at first. Epoch ``l``:

1. GP-UCB for ``S`` rounds on ``F = f - sum_j kappa_j (psi(g_j) - 1)``, that is on the
   targets ``r_s - sum_j kappa_j (psi(g_j(x_s)) - 1)``;
2. ``kappa_j = kappa_j psi(mean of g_j(x_s) over the epoch)``.

Noisy constraints (``psi="linear"``), ``kappa_j = 0`` at first: targets
``r_s - sum_j kappa_j c_js``, noise constant ``R sqrt(1 + sum_j kappa_j^2)``, then
``kappa_j = [kappa_j + rate * mean of c_js]_+``.

``reuse=True`` (ours) keeps all rounds across epochs, recomputes their targets under the
new ``kappa`` and standardises them; ``reuse=False`` starts each epoch from a fresh GP, as
printed. ``inner="ts"`` puts GP-TS in the place of GP-UCB.

M. Shi and A. Eryilmaz, 2022, Algorithms 2 and 3.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit import checks
from cbandit.beliefs.gp import GP
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB, Explore
from cbandit.policies.base import Decision, Told
from cbandit.policies.gp import GPPolicy

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
        reward: the belief about the penalised reward; one a function of the epoch
            number is a list, the last one kept for later epochs.
        costs: how many costs, ``m``.
        explore: :class:`~cbandit.UCB`, or :class:`~cbandit.TS` with ``inner="ts"``.
        epoch: ``S``, rounds an epoch.
        psi: ``"exp"``, ``("polynomial", n)``, ``"linear"`` (noisy constraints), or a
            callable that is 1 up to 0, convex and increasing above, with
            ``psi(x) psi(y) >= psi(x + y)``.
        rate: the multipliers' step with ``psi="linear"``; 0 keeps ``kappa`` fixed.
        inner: ``"ucb"`` or ``"ts"``.
        reuse: keep past rounds across epochs, targets recomputed and standardised.
        kappa: the multipliers at first; 1, or 0 with ``psi="linear"``.
        common: see :class:`~cbandit.policies.gp.GPPolicy`.
    """

    name = "EpochPenalty"

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
        if isinstance(costs, bool) or not isinstance(costs, int) or costs < 1:
            raise CBanditError(
                f"costs must be the number of costs, an int of at least 1; got {costs!r}"
            )
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 1:
            raise CBanditError(f"epoch must be an int of at least 1; got {epoch!r}")
        wanted = {"ucb": UCB, "ts": TS}.get(inner)
        if wanted is None:
            raise CBanditError(f"inner must be 'ucb' or 'ts'; got {inner!r}")
        if not isinstance(explore, wanted):
            raise CBanditError(
                f"inner={inner!r} goes with explore=cb.{wanted.__name__}(...); got "
                f"cb.{type(explore).__name__}"
            )
        if common.get("feedback") is not None:
            raise CBanditError(
                "EpochPenalty takes no feedback=: epochs need every round"
            )
        self.linear, self._psi = psi == "linear", _penalty(psi)
        if self.linear and rate is None:
            raise CBanditError("rate is needed with psi='linear'; O(1 / sqrt(epochs))")
        if not self.linear and rate is not None:
            raise CBanditError("rate goes with psi='linear' only")
        if reuse and isinstance(reward, GP):
            reward = reward.copy()
            reward.standardize = True
        super().__init__(actions, reward, None, explore, m=costs, **common)
        self.epoch, self.reuse, self.inner = epoch, reuse, inner
        self._rate = 0.0 if rate is None else checks.number("rate", rate, minimum=0.0)
        start = kappa if kappa is not None else (0.0 if self.linear else 1.0)
        first = self._per_cost("kappa", checks.nonnegative("kappa", start)).clone()
        # multiplicative: only the logarithm is kept, it outlives the dtype
        self._kappa = first if self.linear else first.log()
        self._warned = False
        self._waiting_for: dict[int, tuple[Choice, list[Told], list[Told]]] = {}
        self._data: list[tuple[int, Tensor, Tensor]] = []  # round, reward, costs
        self._epoch_costs: dict[int, Tensor] = {}  # by round, this epoch's
        self._epoch_number = 0

    @property
    def multiplier(self) -> Tensor:
        """``kappa`` as the next ``ask`` will use it, ``(*trials, m)``."""
        self._deliver()
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
        if not self._epoch_costs:
            return self._kappa
        mean = torch.stack(list(self._epoch_costs.values())).mean(0)
        if self.linear:
            return (self._kappa + self._rate * mean).clamp_min(0)
        return self._kappa + self._psi(mean).log()

    def _turn(self, t: int) -> None:
        """At the start of an epoch: move the multipliers, then all targets."""
        if self._epoch_of(t) == self._epoch_number:
            return
        kappa = self._moved()
        edge = math.log(torch.finfo(kappa.dtype).max)
        if not self.linear and not self._warned and bool((kappa > edge).any()):
            self._warned = True
            warnings.warn(
                "EpochPenalty: kappa has outgrown the dtype and is held at its largest "
                "value; a slower penalty such as psi=('polynomial', 2) keeps it smaller",
                RuntimeWarning,
                stacklevel=4,
            )
        self._kappa, self._epoch_number = kappa, self._epoch_of(t)
        self._epoch_costs = {}
        if not self.reuse:
            self._data.clear()
            self._beliefs.forget_all()
        elif self._data:
            targets = [self._target(r, c) for _, r, c in self._data]
            self._beliefs.groups[0].retarget(torch.stack(targets))

    def _target(self, reward: Tensor, cost: Tensor) -> Tensor:
        """``(T, 1)`` from the reward ``(T, 1)`` and the costs ``(T, m)``."""
        penalty = cost if self.linear else self._psi(cost) - 1
        weighted = self._values(self._kappa) * penalty
        largest = torch.finfo(weighted.dtype).max ** 0.5
        return reward - weighted.sum(-1, keepdim=True).clamp(-largest, largest)

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        self._turn(t)
        best = self._maximise(t, asked, mask, lambda f, g: f)
        return Decision(best.index, x=best.x)

    def _coefficient(self, t: int) -> Tensor:
        width = super()._coefficient(t)
        parts = self._widths.rkhs_parts()
        if not self.linear or not parts:
            return width
        # the targets' noise grows with the multipliers
        norm = parts[0][0].scale()[0]
        grown = (1 + self._kappa.square().sum(-1, keepdim=True)).sqrt()
        return norm + (width - norm) * grown

    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        _, had_rewards, had_costs = self._waiting_for.setdefault(
            choice.t, (choice, [], [])
        )
        had_rewards += rewards
        had_costs += costs
        reward, cost = _whole(had_rewards), _whole(had_costs)
        if reward is None or cost is None:
            return
        del self._waiting_for[choice.t]
        cost = cost - self._limits(choice.t)
        if self._epoch_of(choice.t) == self._epoch_number:
            self._epoch_costs[choice.t] = cost
        elif not self.reuse:
            return  # of an epoch that has ended, and whose data are dropped
        place = len(self._data)
        while place and self._data[place - 1][0] > choice.t:
            place -= 1
        self._data.insert(place, (choice.t, reward, cost))
        keys, x = self._named(choice)
        every = [True] * self._size
        part = ([0], self._target(reward, cost), every, None)
        self._beliefs.absorb(keys, x, [part], choice.t)


def _whole(told: list[Told]) -> Tensor | None:
    """The values, once those of every trial have come."""
    values: Tensor | None = None
    covered: Tensor | None = None
    for part in told:
        if part.where is None:
            return part.values
        mask = part.where.unsqueeze(-1)
        values = (
            part.values if values is None else torch.where(mask, part.values, values)
        )
        covered = part.where if covered is None else covered | part.where
    return values if covered is not None and bool(covered.all()) else None


def _penalty(psi: Any) -> Callable[[Tensor], Tensor]:
    if psi in ("exp", "linear"):
        return exponential
    if isinstance(psi, tuple) and len(psi) == 2 and psi[0] == "polynomial":
        n = checks.number("psi's power n", psi[1], minimum=1.0)
        return _Polynomial(n)
    if not callable(psi):
        raise CBanditError(
            f"psi must be 'exp', ('polynomial', n), 'linear' or a callable; got {psi!r}"
        )
    _check_penalty(psi)
    return psi  # type: ignore[no-any-return]


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
            f"psi must map a tensor to one of its shape; got {tuple(values.shape)} from "
            f"{tuple(z.shape)}"
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
