"""The action known to be safe: as a user gives it, and as tensors of ``T`` trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.hints import hinted
from cbandit.actions import Actions, Star
from cbandit.errors import CBanditError


@hinted
class Safe:
    """An action whose costs are below their thresholds.

    Args:
        index: the action's number, or one for each trial, ``(*trials,)``.
        x: or its coordinates, ``(d,)`` or ``(*trials, d)``; on a :class:`~cbandit.Star`
            these are the centre's.
        reward: its expected reward, a number or ``(*trials,)``; left out, the policy
            plays the action first to estimate it.
        cost: its expected costs, a number, ``(m,)`` or ``(*trials, m)``; left out, the
            policy plays the action first to estimate them.

    Example:
        >>> import cbandit as cb
        >>> safe = cb.Safe(index=0, reward=0.1, cost=0.0)
    """

    def __init__(
        self,
        index: ArrayLike | None = None,
        x: ArrayLike | None = None,
        reward: ArrayLike | None = None,
        cost: ArrayLike | Mapping[str, ArrayLike] | None = None,
    ) -> None:
        if (index is None) == (x is None):
            count = "neither" if index is None else "both"
            raise CBanditError(f"cb.Safe takes one of index= and x=; got {count}")
        self.index, self.x, self.reward, self.cost = index, x, reward, cost

    def __repr__(self) -> str:
        stated = {k: v for k, v in vars(self).items() if v is not None}
        return f"Safe({', '.join(f'{k}={v}' for k, v in stated.items())})"


@dataclass(frozen=True, eq=False)
class SafeAction:
    """The safe action in each of ``T`` trials, and its stated reward and costs.

    Args:
        index: its number in the policy's set, ``(T,)``; ``None`` on a star.
        x: its coordinates, ``(T, d)``.
        reward: its expected reward, ``(T,)``; ``None``: to be estimated.
        cost: its expected costs, ``(T, m)``; ``None``: to be estimated.
        subgaussian: ``R`` of the noise of reward and costs, ``(T, 1 + m)``.
        largest: ``r_max``, the largest possible mean reward, ``(T,)``.
        log_term: ``2 ln((m + 1) horizon / delta)``, which the tests on estimates use; 0
            if nothing is to be estimated.
        fixed_thresholds: whether the thresholds never change.
    """

    index: Tensor | None
    x: Tensor
    reward: Tensor | None
    cost: Tensor | None
    subgaussian: Tensor
    largest: Tensor
    log_term: float
    fixed_thresholds: bool

    @classmethod
    def of(
        cls,
        policy: Any,
        safe: Safe | None,
        subgaussian: Tensor,
        largest: ArrayLike | None,
        default_largest: float = 1.0,
        linear: bool = False,
    ) -> SafeAction:
        """Return the user's safe action as tensors; raise an error if it is invalid.

        Args:
            policy: the policy, which has the set, ``delta`` and the horizon.
            safe: the safe action as the user gives it.
            subgaussian: ``R`` of the noise of reward and costs, ``(T, 1 + m)``.
            largest: the user's ``r_max``; ``None``: ``default_largest``.
            default_largest: ``r_max`` if the user states none.
            linear: whether reward and costs are known to be 0 at the origin.
        """
        safe, batch = policy.objective.safe(safe), policy.batch_shape
        if not isinstance(safe, Safe):
            raise CBanditError(
                "safe must be a cb.Safe(index= or x=, reward=, cost=); got "
                + ("none" if safe is None else type(safe).__name__)
            )
        device, (size, functions) = subgaussian.device, subgaussian.shape
        most = checks.tensor("largest", default_largest if largest is None else largest)
        if largest is not None:
            most = policy.objective.reward(most)
        most = checks.per_trial("largest", checks.finite("largest", most), batch)
        most = devices.put(most, device)
        index, x = _number_and_point(safe, policy.actions, batch, size, device)
        reward = cost = None
        zero = 0.0 if linear and not bool((x != 0).any()) else None
        given_reward = zero if safe.reward is None else safe.reward
        given_cost = zero if safe.cost is None else safe.cost
        if given_reward is not None:
            value = checks.finite(
                "safe.reward", checks.tensor("safe.reward", given_reward)
            )
            reward = checks.per_trial("safe.reward", value, batch).to(device)
            if largest is None and zero is None and bool((reward == most).all()):
                raise CBanditError(
                    f"largest must be given: safe.reward is {reward.max().item():g}, "
                    "and so is the best mean reward that is taken to be possible; then "
                    "no other action could be better, and none would be tried"
                )
            if bool((reward > most).any()):
                raise CBanditError(
                    f"safe.reward must be at most the largest mean reward "
                    f"{most.max().item():g}; got {reward.max().item():g}"
                )
        if given_cost is not None:
            value = checks.finite("safe.cost", checks.tensor("safe.cost", given_cost))
            cost = checks.per_cost("safe.cost", value, batch, functions - 1).to(device)
        log = 0.0
        if reward is None or cost is None:
            if policy.horizon is None:
                raise CBanditError(
                    "horizon must be given where safe has no reward= or no cost=: they "
                    "are then estimated, by tests that rest on it"
                )
            log = 2 * math.log(functions * policy.horizon / policy.delta)
        fixed_thresholds = not callable(policy.thresholds)
        return cls(index, x, reward, cost, subgaussian, most, log, fixed_thresholds)

    @property
    def origin(self) -> Tensor:
        """The trials whose safe action is the origin, ``(T,)`` bool."""
        return (self.x == 0).all(-1)

    @cached_property
    def from_origin(self) -> bool:
        """Whether the action is the origin in all trials and its costs are given."""
        return self.cost is not None and bool(self.origin.all())

    def numbers_and_points(self) -> list[tuple[int | None, Tensor]]:
        """Return each trial's safe action: its number or ``None``, and its point."""
        numbers: list[Any] = [None] * len(self.x)
        if self.index is not None:
            numbers = self.index.tolist()
        return list(zip(numbers, self.x.double().cpu(), strict=True))

    def check_below(self, limits: Tensor) -> None:
        """Raise an error unless the stated costs are below the limits ``(T, m)``."""
        if self.cost is None or not bool((limits <= self.cost).any()):
            return
        at = int((limits - self.cost).flatten().argmin())
        tau, cost = limits.flatten()[at].item(), self.cost.flatten()[at].item()
        raise CBanditError(
            f"safe.cost must be below its threshold; got cost = {cost:g} with "
            f"threshold {tau:g}"
        )

    def number_in(self, actions: Actions) -> Tensor | None:
        """Return the safe action's number in another set, ``(T,)``.

        Raise an error if the set lacks the action. A ``cb.Star`` has no numbers: the
        result is ``None``, and its centre must be the safe action.
        """
        if isinstance(actions, Star):
            _check_centre(actions, self.x)
            return None
        try:
            return _find_numbers(actions, self.x)
        except CBanditError as error:
            raise CBanditError(
                f"actions of this round must contain the safe action: {error}"
            ) from None


def require_numbers(index: Tensor | None) -> Tensor:
    """Return actions' numbers; raise an error if there are none, as on a star."""
    if index is None:
        raise CBanditError("actions of this round must be numbered")
    return index


def _number_and_point(
    safe: Safe,
    actions: Actions,
    batch: tuple[int, ...],
    size: int,
    device: torch.device,
) -> tuple[Tensor | None, Tensor]:
    """Return the safe action's number ``(T,)``, ``None`` on a star, and its point."""
    if actions.continuous:
        raise CBanditError(
            f"actions must be a Finite, ProductGrid or Star; got {actions}"
        )
    if isinstance(actions, Star):
        if safe.x is None:
            raise CBanditError("safe: on a Star the safe action is its centre; give x=")
        x = _read_point(safe.x, actions.dim, batch, size).to(device)
        _check_centre(actions, x)
        return None, x
    if safe.index is not None:
        numbers = checks.tensor("safe.index", safe.index, None, device)
        if numbers.dim() > 1 or (
            numbers.dim() == 1 and numbers.shape[0] not in (1, size)
        ):
            raise CBanditError(
                f"safe.index must be a number or have shape (*trials,) = {batch}; got "
                f"{tuple(numbers.shape)}"
            )
        index = numbers.reshape(-1).expand(size)
        try:
            return index.long(), actions.points(index).double()
        except CBanditError as error:
            raise CBanditError(f"safe.{error}") from None
    x = _read_point(safe.x, actions.dim, batch, size).to(device)
    try:
        return _find_numbers(actions, x), x
    except CBanditError as error:
        raise CBanditError(f"safe.{error}") from None


def _find_numbers(actions: Actions, x: Tensor) -> Tensor:
    """Return the number of the action at ``x (T, d)`` in each trial, ``(T,)``."""
    if actions.batch_shape:
        index: Tensor = actions.index(x.unsqueeze(1))
    else:  # a set that all trials share is searched once for equal points
        index = actions.index(x[:1] if bool((x == x[:1]).all()) else x)
    return index.reshape(-1).expand(len(x))


def _read_point(
    x: ArrayLike | None, dim: int, batch: tuple[int, ...], size: int
) -> Tensor:
    """Return the user's coordinates for each trial, ``(size, dim)``."""
    point = checks.finite("safe.x", checks.tensor("safe.x", x))
    if tuple(point.shape) not in ((dim,), (*batch, dim)):
        raise CBanditError(
            f"safe.x must have shape (d,) or (*trials, d) with d = {dim}; got "
            f"{tuple(point.shape)}"
        )
    return point.expand(size, dim)


def _check_centre(star: Star, x: Tensor) -> None:
    """Raise an error unless the safe action ``x`` is the star's centre."""
    gap = float((star.center.to(x) - x).abs().max())
    close = max(1e-9, 8 * torch.finfo(star.center.dtype).eps)
    if gap > close * (1 + float(x.abs().max())):
        raise CBanditError(
            "actions: a Star must have the safe action as its centre; it is "
            f"{gap:.3g} away"
        )
