"""The model of stage-wise policies with linear beliefs: estimates, widths, bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.peaks import CLOSE
from cbandit.actions import Star
from cbandit.beliefs.linear import Linear
from cbandit.errors import CBanditError
from cbandit.policies.safe.action import Safe, SafeAction
from cbandit.policies.safe.known import Known
from cbandit.policies.safe.model import Block, Part, Stage
from cbandit.policies.safe.scales import Scales
from cbandit.posterior.ridge import Ridge

__all__ = ["Bounds", "Plane", "linear_safe"]

CHUNK = 2**14  # actions looked at together
LEAST = 1e-10  # of a squared length: less ridge is lost in rounding


class Plane:
    """Linear functions of an action's coordinates, in ``T`` trials.

    Args:
        actions: the policy's set.
        beliefs: about the reward and every cost.
        safe: the safe action. Where its cost is given, costs are estimated across it
            only.
        delta: the share of runs in which the reward's bound may fail; likewise that in
            which any cost's may.
        beta: the width, a number, ``(*trials,)`` or a callable of the round, in place
            of the theory's.
        batch: ``()`` or ``(trials,)``.
    """

    def __init__(
        self,
        actions: Any,
        beliefs: Sequence[Linear],
        safe: SafeAction,
        delta: float,
        beta: Any,
        batch: tuple[int, ...],
    ) -> None:
        self.actions, self.safe, self._batch = actions, safe, batch
        self.subgaussian = safe.subgaussian
        self._lam = self._stacked("ridge", [b.ridge for b in beliefs])  # T x F
        norm = self._stacked("norm", [b.norm for b in beliefs])
        #: of a reward per length, before data
        self._deviation = norm[:, 0] + self.subgaussian[:, 0] / self._lam[:, 0].sqrt()
        lengths = [b.length for b in beliefs if b.length is not None]
        #: ``L``, where it is stated, ``(T,)``
        self.stated = self._stacked("length", lengths).amin(-1) if lengths else None
        self._smallest = self._lam.amin(-1)
        #: the length of the longest action of the policy's set, ``(1 or T,)``
        self.longest = self.length(actions)
        self._look_at_origin()
        # R sqrt(d ln((1 + n L^2 / lam) / delta)) + sqrt(lam) S
        dim = torch.full_like(self._lam, actions.dim)
        if safe.cost is not None:
            dim[:, 1:] -= (~safe.origin).double().unsqueeze(-1)
        share = torch.full_like(self._lam, delta)
        share[:, 1:] /= len(beliefs) - 1
        self._inverse_ridge, self._log_share = 1 / self._lam, -share.log()
        self._slope, self._floor = (
            self.subgaussian.square() * dim,
            self._lam.sqrt() * norm,
        )
        self._beta = beta if beta is None or callable(beta) else self._given(beta)

    def _stacked(self, name: str, values: Sequence[Any]) -> Tensor:
        """Return numbers or ``(*trials,)`` as columns, ``(T, k)``."""
        each = [checks.per_trial(name, value, self._batch) for value in values]
        return devices.put(torch.stack(each, -1), self.subgaussian.device)

    def _look_at_origin(self) -> None:
        safe, zero = self.safe, torch.zeros_like(self.subgaussian)
        reward = zero[:, 0] if safe.reward is None else safe.reward
        cost = zero[:, 1:] if safe.cost is None else safe.cost
        if bool((safe.origin & ((reward != 0) | (cost != 0).any(-1))).any()):
            raise CBanditError(
                "safe: the reward and cost of x = 0 are 0, for they are linear; got "
                f"reward = {reward.tolist()}, cost = {cost.tolist()}"
            )

    # -- learning --------------------------------------------------------------------

    def begun(self, safe: Known, ratio: Tensor | None, multiplier: Tensor) -> Stage:
        """Return the state before data; see ``Model``."""
        return Stage(self._start(), safe, ratio, multiplier, self.longest)

    def _start(self) -> Ridge:
        """Return estimates before data; along a safe action costs may be known."""
        dim, safe = self.actions.dim, self.safe
        if safe.cost is None:
            return Ridge.start(self._lam, dim)
        along = self._lam.new_zeros(*self._lam.shape, dim)
        slope = torch.zeros_like(self._lam)
        length = safe.x.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        along[:, 1:] = (safe.x / length).unsqueeze(1)
        slope[:, 1:] = safe.cost / length
        return Ridge.start(self._lam, dim, along, slope)

    def added(
        self, seen: Ridge, x: Tensor, arm: Tensor | None, parts: Sequence[Part]
    ) -> Ridge:
        """Return the estimates after one more observation; see ``Model``."""
        for functions, y, weight in parts:
            seen = seen.added(x, y, weight, functions)
        return seen

    def numbers(self, points: Tensor) -> None:
        """Return no numbers: coordinates say all."""

    def has_data(self, seen: Ridge) -> Tensor:
        """Return the trials that observed all functions, ``(T, 1)``."""
        return (seen.count > 0).all(-1, keepdim=True)

    def believed(self, seen: Ridge) -> Iterator[Block]:
        """Yield estimates and spreads over the policy's set; of a star, at its tips."""
        for start, points in self.blocks(self.actions):
            mean, norm = seen.at(points)
            yield start, mean, norm * self.subgaussian.unsqueeze(-1)

    # -- widths ----------------------------------------------------------------------

    def width(self, t: int, state: Stage) -> Tensor:
        """Return ``beta`` of every function in round ``t``, ``(T, F)``."""
        if self._beta is not None:
            given = self._given(self._beta(t)) if callable(self._beta) else self._beta
            return given.expand_as(self._floor)
        length = state.longest if self.stated is None else self.stated
        square = length.square().unsqueeze(-1)
        grown = torch.log1p(state.seen.count * square * self._inverse_ridge)
        return (self._slope * (grown + self._log_share)).sqrt() + self._floor

    def scale(self, t: int, state: Stage, scales: Scales, ratio: Tensor) -> Tensor:
        """Return what multiplies norms in ``V_r`` and every ``V_c``, ``(T, F)``.

        The reward's is ``alpha_r beta``. Its bonus stands for the costs' ellipsoids
        (see :mod:`cbandit.policies.safe.scales`) but is measured in the reward's own:
        where a cost's is the longer one, by other noise, norm, ridge or data, the bonus
        grows as much.

        Args:
            t: the round.
            state: of the policy.
            scales: by what widths are inflated.
            ratio: ``2 (r_max - r0) / (tau_j - c0_j)``, ``(T, m)``.
        """
        beta, rho = scales.inflated(self.width(t, state), ratio)
        reward, costs = beta[:, :1], beta[:, 1:]
        bonus = rho * torch.maximum(costs * state.seen.stretch, reward)
        return torch.cat([reward + bonus.amax(-1, keepdim=True), costs], -1)

    def tolerance(self, state: Stage) -> Tensor:
        """Return by how little rewards may differ and be as good, ``(T,)``."""
        close: Tensor = CLOSE * self._deviation * state.longest
        return close

    def _given(self, beta: Any) -> Tensor:
        return self._stacked("beta", [checks.nonnegative("beta", beta)])

    # -- sets ------------------------------------------------------------------------

    def meet(self, state: Stage, on: Any) -> tuple[Tensor | None, Stage]:
        """Return the safe action's number in a round's set, ``(T,)``, and the state.

        A longer action than any before widens all bounds from now on.
        """
        if on is self.actions:
            return self.safe.index, state
        if on.continuous:
            raise CBanditError(
                "actions of this round must be points, a cb.Finite, a cb.ProductGrid "
                f"or a cb.Star; got {on!r}"
            )
        longest, at = self.length(on), self.safe.within(on)
        longest = torch.maximum(state.longest, longest)
        return at, state._replace(longest=longest)

    def length(self, actions: Any) -> Tensor:
        """Return the longest action's length, ``(1 or T,)``; an error if too long."""
        if isinstance(actions, Star):
            ends = actions.ends.double()
            longest: Tensor = ends.norm(dim=-1).amax(-1).reshape(-1)
        else:
            each = [
                p.norm(dim=-1).amax(-1).reshape(-1) for _, p in self.blocks(actions)
            ]
            longest = torch.stack(each).amax(0)
        stated = self.stated
        if stated is not None and bool((longest > stated * (1 + 1e-9)).any()):
            raise CBanditError(
                f"actions must be no longer than length = {stated.min().item():g}; the "
                f"longest has length {longest.max().item():g}"
            )
        if bool((self._smallest < LEAST * longest.square()).any()):
            raise CBanditError(
                f"ridge must be at least {LEAST:g} times the squared length of every "
                "action, or it is lost in the rounding of their sums; got "
                f"{self._smallest.min().item():g}, and the longest action has length "
                f"{longest.max().item():g}"
            )
        return longest

    @staticmethod
    def blocks(actions: Any) -> Iterator[tuple[int, Tensor]]:
        """Yield ``(start, points (1 or T, n, d))``; the tips of a star."""
        if isinstance(actions, Star):
            tips = actions.tips.double()
            yield 0, tips if tips.dim() == 3 else tips.unsqueeze(0)
            return
        for start, stop in actions.stretches(CHUNK):
            points = actions.block(start, stop).double()
            yield start, points if points.dim() == 3 else points.unsqueeze(0)


class Bounds(NamedTuple):
    """``V_r`` and every ``V_c``: ``<x, w> + scale ||x||_{Sigma^-1}``.

    Args:
        ridge: the estimates.
        scale: the inflated widths, ``(T, F)``.
        shift: added to the reward's coefficients, ``(T, d)``.
    """

    ridge: Ridge
    scale: Tensor
    shift: Tensor | None = None

    def at(self, x: Tensor) -> Tensor:
        """Return the bounds ``(T, F, n)`` at points ``(T or 1, n, d)``."""
        mean, norm = self.ridge.at(x)
        bounds = torch.addcmul(mean, norm, self.scale.unsqueeze(-1))
        if self.shift is not None:
            bounds[:, 0] += (x @ self.shift.unsqueeze(-1)).squeeze(-1)
        return bounds

    def parts(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``(T, F, n)`` and ``A x`` ``(T, F, d, n)`` at ``(.., d, n)``."""
        mean = self.ridge.solved[0] @ columns
        if self.shift is not None:
            mean[:, 0] += (self.shift.unsqueeze(-2) @ columns).squeeze(-2)
        return mean, self.ridge.rays(columns)


def linear_safe(safe: Any, actions: Any) -> Any:
    """Return ``safe``; at 0 its reward and costs are 0, nothing has to be estimated.

    An error if the actions have no coordinates.
    """
    if getattr(actions, "covariance", None) is not None:
        raise CBanditError(
            "actions must have coordinates: cb.Linear knows nothing of arms given by "
            "their covariance alone"
        )
    if not isinstance(safe, Safe) or (
        safe.reward is not None and safe.cost is not None
    ):
        return safe
    if safe.x is not None:
        x = checks.tensor("safe.x", safe.x)
    else:
        try:
            x = actions.points(safe.index)
        except CBanditError as error:
            raise CBanditError(f"safe.{error}") from None
    if bool((x != 0).any()):
        return safe
    reward = 0.0 if safe.reward is None else safe.reward
    cost = 0.0 if safe.cost is None else safe.cost
    return Safe(index=safe.index, x=safe.x, reward=reward, cost=cost)
