"""The action that is known to be safe, and what it takes to learn how safe it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Box, Star
from cbandit.errors import CBanditError, InfeasibleError

__all__ = ["Safe", "SafeAction"]


class Safe:
    """An action whose costs are below their thresholds.

    Args:
        index: its number in the set, or ``(*trials,)``.
        x: or its coordinates, ``(d,)`` or ``(*trials, d)``; on a :class:`~cbandit.Star`
            its centre.
        reward: its expected reward, a number or ``(*trials,)``; left out, it is
            estimated first by playing the action.
        cost: its expected costs, a number, ``(m,)`` or ``(*trials, m)``; likewise.

    Example:
        >>> import cbandit as cb
        >>> safe = cb.Safe(index=0, reward=0.1, cost=0.0)
    """

    def __init__(
        self, index: Any = None, x: Any = None, reward: Any = None, cost: Any = None
    ) -> None:
        if (index is None) == (x is None):
            given = "neither" if index is None else "both"
            raise CBanditError(f"cb.Safe takes one of index= and x=; got {given}")
        self.index, self.x, self.reward, self.cost = index, x, reward, cost

    def __repr__(self) -> str:
        given = {k: v for k, v in vars(self).items() if v is not None}
        return f"Safe({', '.join(f'{k}={v}' for k, v in given.items())})"


class SafeAction:
    """The safe action of ``T`` trials, with its reward and costs as far as known.

    Where they are not, it is played until ``c0 + w <= tau`` and ``r0 + w <= r_max``
    hold for the averages seen, ``w = 3 R sqrt(2 ln((m + 1) T / delta) / n)``; each
    estimate is frozen when its own test passes. Then both gaps are known within a
    factor of 1/2 to 3/2 (Pacchiano, Ghavamzadeh, Bartlett, 2024, Algorithm 5, with the
    analysis' width).

    Args:
        safe: what the user says.
        actions: the policy's set.
        batch: ``()`` or ``(trials,)``.
        subgaussian: of reward and costs, ``(T, 1 + m)``.
        largest: the largest possible mean reward, ``(T,)``.
        delta: the share of runs in which an estimate may fail.
        horizon: the last round; needed where something is to be estimated.
    """

    def __init__(
        self,
        safe: Safe | None,
        actions: Any,
        batch: tuple[int, ...],
        subgaussian: Tensor,
        largest: Tensor,
        delta: float,
        horizon: int | None,
    ) -> None:
        if not isinstance(safe, Safe):
            raise CBanditError(
                "safe must be a cb.Safe(index= or x=, reward=, cost=); got "
                + ("none" if safe is None else type(safe).__name__)
            )
        device = subgaussian.device
        size, m = subgaussian.shape[0], subgaussian.shape[1] - 1
        self.largest, self._subgaussian = largest, subgaussian
        self.index, self.x = _place(safe, actions, batch, size, device)
        origin = (self.x == 0).all(-1)  # T
        self.given = (safe.reward is not None, safe.cost is not None)
        self.reward = torch.zeros(size, dtype=torch.float64, device=device)
        self.cost = torch.zeros(size, m, dtype=torch.float64, device=device)
        if safe.reward is not None:
            reward = checks.finite(
                "safe.reward", checks.tensor("safe.reward", safe.reward)
            )
            self.reward = checks.per_trial("safe.reward", reward, batch).to(device)
            if bool((self.reward > largest).any()):
                raise CBanditError(
                    f"safe.reward must be at most the largest mean reward "
                    f"{largest.max().item():g}; got {self.reward.max().item():g}"
                )
        if safe.cost is not None:
            cost = checks.finite("safe.cost", checks.tensor("safe.cost", safe.cost))
            self.cost = checks.per_cost("safe.cost", cost, batch, m).to(device)
        self.origin = origin
        self._shared = bool((self.x == self.x[:1]).all())
        known = torch.ones(size, dtype=torch.bool, device=device)
        self.reward_known = known & self.given[0]
        self.cost_known = known & self.given[1]
        self._count = torch.zeros(size, 2, dtype=torch.float64, device=device)
        self._log, self._ready = 0.0, all(self.given)
        self._nowhere = torch.zeros_like(known)
        self._kept: Tensor | None = None  # limits that were seen to be above the costs
        if not all(self.given):
            if horizon is None:
                raise CBanditError(
                    "horizon must be given where safe has no reward= or no cost=: they "
                    "are then estimated, by tests that rest on it"
                )
            self._log = 2 * math.log((m + 1) * horizon / delta)

    @property
    def warm(self) -> Tensor:
        """Trials that know enough, ``(T,)``."""
        return self.reward_known & self.cost_known

    @property
    def ready(self) -> bool:
        """Whether all trials do."""
        if not self._ready:
            self._ready = bool(self.warm.all())
        return self._ready

    def learn(
        self, reward: Tensor | None, cost: Tensor | None, where: Tensor, limits: Tensor
    ) -> None:
        """One play of the action: its reward ``(T, 1)`` or costs ``(T, m)``."""
        if reward is not None:
            fresh = (where & ~self.reward_known).double()
            self._count[:, 0] += fresh
            share = fresh / self._count[:, 0].clamp_min(1)
            self.reward = self.reward + share * (reward[:, 0] - self.reward)
            passed = self.reward + self.width(0)[:, 0] <= self.largest
            self.reward_known = self.reward_known | ((fresh > 0) & passed)
        if cost is not None:
            fresh = (where & ~self.cost_known).double()
            self._count[:, 1] += fresh
            share = (fresh / self._count[:, 1].clamp_min(1)).unsqueeze(-1)
            self.cost = self.cost + share * (cost - self.cost)
            passed = (self.cost + self.width(1) <= limits).all(-1)
            self.cost_known = self.cost_known | ((fresh > 0) & passed)

    def width(self, kind: int) -> Tensor:
        """``w`` of the reward (0), ``(T, 1)``, or of the costs (1), ``(T, m)``."""
        r = self._subgaussian[:, :1] if kind == 0 else self._subgaussian[:, 1:]
        return 3 * r * (self._log / self._count[:, kind, None]).sqrt()

    def check(self, limits: Tensor) -> Tensor:
        """Whether the action is seen not to be safe, ``(T,)``; an error if all are.

        ``limits`` are this round's thresholds, ``(T, m)``.
        """
        if self.given[1]:
            # limits that do not change are looked at once
            if limits is not self._kept:
                if bool((limits <= self.cost).any()):
                    _not_safe(limits, self.cost)
                self._kept = limits
            return self._nowhere
        if self._ready:
            return self._nowhere
        room = limits - self.cost
        seen = self._count[:, 1] > 0
        # w is three times the width that holds with probability 1 - delta
        unsafe = seen & ~self.cost_known & (room + self.width(1) / 3 < 0).any(-1)
        if bool(unsafe.all()):
            raise InfeasibleError(
                f"safe: after {int(self._count[:, 1].max())} plays the safe action's "
                f"mean cost of {self.cost.tolist()} is above its threshold "
                f"{limits.tolist()} beyond doubt; no round can be guaranteed",
                violation=-room,
            )
        return unsafe

    def ratio(self, limits: Tensor) -> Tensor:
        """``2 (r_max - r0) / (tau_j - c0_j)``, ``(T, m)``; 6 for 2 with estimates."""
        factor = 2.0 if all(self.given) else 6.0
        room = torch.where(self.warm.unsqueeze(-1), limits - self.cost, 1.0)
        return factor * (self.largest - self.reward).unsqueeze(-1) / room

    def exact(
        self, u: Tensor, limits: Tensor, here: Tensor | None = None, at: Any = None
    ) -> None:
        """Put what is known of the action into bounds ``u`` ``(T, 1 + m, n)``.

        Where it is estimated, it is admissible all the same. ``here`` and ``at``
        ``(T,)`` say where it is among the ``n``; at its own number unless given.
        """
        at = self.index if at is None else at
        place = at.clamp(0, u.shape[-1] - 1)[:, None, None].expand(-1, u.shape[1], 1)
        own = u.gather(-1, place).squeeze(-1)
        known = own.clone()
        if self.given[0]:
            known[:, 0] = self.reward
        known[:, 1:] = (
            self.cost if self.given[1] else torch.minimum(own[:, 1:], limits.to(u))
        )
        if here is not None:
            known = torch.where(here.unsqueeze(-1), known, own)
        u.scatter_(-1, place, known.unsqueeze(-1))

    def known(
        self, blocks: Iterable[tuple[int, Tensor, Tensor]]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Blocks ``(start, mean (T, F, n), std (T, 1 or F, n))``, with what is given.

        At the action's own number; there is no doubt about it, its spread is 0.
        """
        for start, mean, std in blocks:
            at = self.index
            if at is None or not any(self.given):
                yield start, mean, std
                continue
            here = (at >= start) & (at < start + mean.shape[-1])
            rows, place = here.nonzero()[:, 0], (at - start)[here]
            mean, std = mean.clone(), std.expand_as(mean).clone()
            if self.given[0]:
                mean[rows, 0, place] = self.reward[rows].to(mean)
                std[rows, 0, place] = 0.0
            if self.given[1]:
                mean[rows, 1:, place] = self.cost[rows].to(mean)
                std[rows, 1:, place] = 0.0
            yield start, mean, std

    def within(self, actions: Any) -> Tensor | None:
        """The action's number in another set, ``(T,)``; an error if not there."""
        if isinstance(actions, Star):
            _centre(actions, self.x)
            return None
        try:
            # one look where all trials share set and action
            if not actions.batch_shape and self._shared:
                one: Tensor = actions.index(self.x[0])
                return one.expand(len(self.x))
            x = self.x if not actions.batch_shape else self.x.unsqueeze(1)
            each: Tensor = actions.index(x)
            return each.reshape(len(self.x))
        except CBanditError as error:
            raise CBanditError(
                f"actions of this round must contain the safe action: {error}"
            ) from None


def _not_safe(limits: Tensor, cost: Tensor) -> None:
    at = int((limits - cost).flatten().argmin())
    tau, c0 = limits.flatten()[at].item(), cost.flatten()[at].item()
    raise CBanditError(
        f"safe.cost must be below its threshold; got cost = {c0:g} with threshold "
        f"{tau:g}"
    )


def _place(
    safe: Safe, actions: Any, batch: tuple[int, ...], size: int, device: torch.device
) -> tuple[Tensor | None, Tensor]:
    """The action's number ``(T,)`` (``None`` on a star) and place ``(T, d)``."""
    if isinstance(actions, Box):
        raise CBanditError(
            f"actions must be a Finite, ProductGrid or Star; got {actions}"
        )
    if isinstance(actions, Star):
        if safe.x is None:
            raise CBanditError("safe: on a Star the safe action is its centre; give x=")
        x = _point(safe.x, actions.dim, batch, size).to(device)
        _centre(actions, x)
        return None, x
    if safe.index is not None:
        given = checks.tensor("safe.index", safe.index, None, device)
        if given.dim() > 1 or (given.dim() == 1 and given.shape[0] not in (1, size)):
            raise CBanditError(
                f"safe.index must be a number or have shape (*trials,) = {batch}; got "
                f"{tuple(given.shape)}"
            )
        index = given.reshape(-1).expand(size)
        try:
            return index.long(), actions.points(index).double()
        except CBanditError as error:
            raise CBanditError(f"safe.{error}") from None
    x = _point(safe.x, actions.dim, batch, size).to(device)
    try:
        index = actions.index(x if not actions.batch_shape else x.unsqueeze(1))
    except CBanditError as error:
        raise CBanditError(f"safe.{error}") from None
    return index.reshape(size), x


def _point(x: Any, dim: int, batch: tuple[int, ...], size: int) -> Tensor:
    point = checks.finite("safe.x", checks.tensor("safe.x", x))
    if tuple(point.shape) not in ((dim,), (*batch, dim)):
        raise CBanditError(
            f"safe.x must have shape (d,) or (*trials, d) with d = {dim}; got "
            f"{tuple(point.shape)}"
        )
    return point.expand(size, dim)


def _centre(star: Star, x: Tensor) -> None:
    gap = float((star.center.to(x) - x).abs().max())
    if gap > 1e-9 * (1 + float(x.abs().max())):
        raise CBanditError(
            "actions: a Star must have the safe action as its centre; it is "
            f"{gap:.3g} away"
        )
