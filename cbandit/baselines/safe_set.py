"""Safe sets that grow from a seed set, as SafeOpt and StageOpt keep them.

All actions carry nested bounds ``l_t <= function <= u_t``, which only tighten. In the
safety values ``q_j = threshold_j - cost_j`` (safe at 0 and above):

* the safe set: the seed set, and for each cost, intersected,
  ``{x' : l_t(x) - Lip_j d(x, x') >= 0 for some safe x}``, or without Lipschitz
  constants ``{x' : l_t(x') >= 0}``;
* expanders: for each cost, intersected, safe ``x`` with
  ``u_t(x) - Lip_j d(x, x') >= 0`` for some ``x'`` not yet safe, or without Lipschitz
  constants those where the made-up observation ``u_t(x)`` would give some such ``x'`` a
  lower bound of at least 0.

``d`` is the Euclidean distance, for arms without coordinates the kernel's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.actions import Finite, ProductGrid
from cbandit.beliefs.feedback import Sliding
from cbandit.errors import CBanditError
from cbandit.policies.safe.action import Safe
from cbandit.posterior.beliefs import Beliefs

__all__ = ["SafeSet", "rounds_of", "seed_set", "sure"]

CHUNK = 1 << 22  # numbers in one temporary
SMALL = 1 << 15  # where several are at work at once, and better stay in the cache
KEPT = 1 << 24  # distances kept rather than computed again


def sure(name: str, common: dict[str, Any]) -> None:
    """An error where bounds would not hold, and safe sets not be safe."""
    if isinstance(common.get("feedback"), Sliding):
        raise CBanditError(
            f"feedback must be None or cb.Delayed(window) for {name}: what was safe is "
            "taken to stay safe, in a world that drifts it does not"
        )
    if common.get("pending", "ignore") == "hallucinate":
        raise CBanditError(
            f"pending must be 'ignore' for {name}: a bound that counts what was not "
            "observed yet does not keep the safe set safe"
        )


def rounds_of(rounds: Any, batch_shape: tuple[int, ...]) -> Tensor:
    """A number of rounds, or ``(*trials,)``, as ``(T,)``."""
    value = checks.per_trial(
        "rounds", checks.nonnegative("rounds", rounds), batch_shape
    )
    if bool((value != value.round()).any()):
        raise CBanditError(f"rounds must be whole; got {value.tolist()}")
    return value


def seed_set(
    safe: Any,
    actions: Finite | ProductGrid,
    batch_shape: tuple[int, ...],
    device: torch.device,
) -> Tensor:
    """The seed set as a mask ``(1 or T, N)``, with an action in every trial.

    ``safe`` is an action's number, a list of numbers, a tensor of numbers
    ``(*trials,)`` or ``(*trials, k)``, a mask ``(N,)`` or ``(*trials, N)``, or points
    ``(d,)``, ``(k, d)`` or ``(*trials, k, d)``; or a :class:`~cbandit.Safe`.
    """
    if isinstance(safe, Safe):
        safe = safe.x if safe.index is None else safe.index
    given = checks.tensor("safe", safe, None, device)
    listed = isinstance(safe, list | tuple | range)
    if given.dtype == torch.bool:
        mask = _led(given, 1, batch_shape)
        if mask is None or mask.shape[-1] != actions.size:
            raise _wrong_seed(given, actions, batch_shape)
    else:
        if given.is_floating_point() and given.numel():
            given = _numbers(given, actions, batch_shape)
        elif given.dim() == 0:
            given = given.reshape(1)
        elif given.dim() == 1 and batch_shape and not listed:
            given = given.unsqueeze(-1)
        rows = _led(given, 1, batch_shape)
        if rows is None:
            raise _wrong_seed(given, actions, batch_shape)
        mask = torch.zeros(len(rows), actions.size, dtype=torch.bool, device=device)
        if rows.shape[-1]:
            with checks.about("safe"):
                actions.points(rows.expand(*(batch_shape or (1,)), -1))
            mask.scatter_(-1, rows.long(), True)
    if not bool(mask.any(-1).all()):
        raise CBanditError(
            "safe must name at least one action that is known to be safe in every "
            "trial; got an empty seed set"
        )
    return mask


def _led(value: Tensor, extra: int, batch_shape: tuple[int, ...]) -> Tensor | None:
    """``value`` led by 1 or ``T``, with ``extra`` more axes; ``None``: it is not."""
    if value.dim() == extra:
        return value.unsqueeze(0)
    trials = batch_shape[0] if batch_shape else 1
    if value.dim() == extra + 1 and value.shape[0] in (1, trials):
        return value
    return None


def _numbers(
    points: Tensor, actions: Finite | ProductGrid, batch_shape: tuple[int, ...]
) -> Tensor:
    if points.dim() == 1:
        points = points.unsqueeze(0)
    if points.dim() not in (2, 2 + len(batch_shape)):
        raise _wrong_seed(points, actions, batch_shape)
    if actions.batch_shape and points.dim() == 2:
        points = points.expand(*batch_shape, *points.shape)
    with checks.about("safe"):
        return actions.index(points)


def _wrong_seed(
    given: Tensor, actions: Finite | ProductGrid, batch_shape: tuple[int, ...]
) -> CBanditError:
    return CBanditError(
        "safe must be an action's number, a list of them, numbers (*trials,) or "
        "(*trials, k), a mask (N,) or (*trials, N), or points (k, d) or (*trials, k, "
        f"d), with N = {actions.size}, d = {actions.dim}, trials = {batch_shape}; got "
        f"{given.dtype} of shape {tuple(given.shape)}"
    )


class SafeSet:
    """Nested bounds ``lower``, ``upper`` ``(T, F, N)`` and what is ``safe`` ``(T, N)``.

    Args:
        actions: the set.
        seed: ``(1 or T, N)``, known to be safe.
        lipschitz: ``(T, m)``, or ``None``.
        shape: ``(T, F, N)``.
        fixed: whether thresholds stay as they are.
        dtype: of the bounds.
        device: where they live.
    """

    def __init__(
        self,
        actions: Finite | ProductGrid,
        seed: Tensor,
        lipschitz: Tensor | None,
        shape: tuple[int, int, int],
        fixed: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.actions, self.seed, self.fixed = actions, seed, fixed
        self.lipschitz = (
            None if lipschitz is None else lipschitz.to(dtype).unsqueeze(-1)
        )
        self.upper = torch.full(shape, math.inf, dtype=dtype, device=device)
        self.lower = torch.full(shape, -math.inf, dtype=dtype, device=device)
        self.safe = seed.expand(shape[0], -1).clone()
        self._tau: Tensor | None = None
        self._kept: Tensor | None = None
        self._nearest: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def update(self, mean: Tensor, spread: Tensor, limits: Tensor) -> None:
        """Tighten the bounds by ``mean -+ spread``, then let the safe set grow once.

        ``mean (T, F, N)`` and ``spread = beta std`` in the costs' units; ``limits`` are
        the thresholds, ``(T, m)``.
        """
        torch.maximum(self.lower, mean - spread, out=self.lower)
        torch.minimum(self.upper, mean + spread, out=self.upper)
        tau = limits.to(self.upper).unsqueeze(-1)
        # the seed set's safety is known: its costs are at most the thresholds
        known = torch.where(self.seed.unsqueeze(1), tau, math.inf)
        torch.minimum(self.upper[:, 1:], known, out=self.upper[:, 1:])
        self._tau = tau
        slack = tau - self.upper[:, 1:]  # l_t of the safety values, T x m x N
        if self.lipschitz is None:
            self.safe = (slack >= 0).all(1) | self.seed
        else:
            self._grow(slack)

    def expanders(self, beliefs: Beliefs, mean: Tensor, beta: Tensor) -> Tensor:
        """Safe actions whose upper bounds could make a new one safe, ``(T, N)``."""
        assert self._tau is not None
        if self.lipschitz is None:
            found = self._by_observation(beliefs, mean, beta, self._tau)
        else:
            reach = self._reach(self._tau - self.lower[:, 1:])
            assert self._nearest is not None
            nearest = self._nearest
            found = (reach >= nearest.unsqueeze(1)).all(1) & nearest.isfinite()
        return found & self.safe

    # -- with Lipschitz constants ------------------------------------------------------

    def _reach(self, slack: Tensor) -> Tensor:
        """How far an action of this safety vouches for others, ``(T, m, N)``."""
        assert self.lipschitz is not None
        far = torch.where(slack >= 0, math.inf, -math.inf)
        return torch.where(self.lipschitz > 0, slack / self.lipschitz, far)

    def _grow(self, slack: Tensor) -> None:
        reach = self._reach(slack).masked_fill_(~self.safe.unsqueeze(1), -math.inf)
        if self._nearest is None or not self.fixed:
            rows = torch.arange(len(self.safe), device=reach.device)
        else:
            # what is safe stays safe, and there is nothing new where no safe action
            # reaches the nearest one that is not
            hope = (reach >= self._nearest.unsqueeze(1)).any(-1).all(-1)
            rows = hope.nonzero().squeeze(-1)
        if self._nearest is None:
            self._nearest = torch.empty_like(reach[:, 0])
        elif not len(rows):
            return
        seed = self.seed if len(self.seed) == 1 else self.seed[rows]
        grown = torch.empty_like(self.safe[rows])
        for start, stop, gap in self._distances(rows):
            left = [gap - reach[rows, j].unsqueeze(1) for j in range(reach.shape[1])]
            reached = torch.stack([x.amin(-1) <= 0 for x in left]).all(0)
            grown[:, start:stop] = reached | seed[:, start:stop]
        self.safe[rows] = grown
        for start, stop, gap in self._distances(rows):
            unsafe = gap.masked_fill(grown.unsqueeze(1), math.inf)
            self._nearest[rows, start:stop] = unsafe.amin(-1)

    def _distances(self, rows: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """``(start, stop, (1 or R, n, N))``: distances of a stretch to all actions."""
        size, batched = self.actions.size, bool(self.actions.batch_shape)
        sets = len(self.safe) if batched else 1
        if self._kept is None and sets * size * size <= KEPT:
            self._kept = self._distance(0, size)
        step = max(1, CHUNK // (len(rows) * size))
        for start in range(0, size, step):
            stop = min(start + step, size)
            if self._kept is None:
                gap = self._distance(start, stop)
            else:
                gap = self._kept[:, start:stop]
            yield start, stop, gap[rows] if batched else gap

    def _distance(self, start: int, stop: int) -> Tensor:
        table = self.actions.covariance if isinstance(self.actions, Finite) else None
        if table is not None:
            own = table.diagonal(dim1=-2, dim2=-1)
            gap = own[..., start:stop, None] + own.unsqueeze(-2)
            gap = (gap - 2 * table[..., start:stop, :]).clamp_min(0).sqrt()
        else:
            exact = "donot_use_mm_for_euclid_dist"
            every = self.actions.block(0, self.actions.size)
            gap = torch.cdist(every[..., start:stop, :], every, compute_mode=exact)
        gap = gap.to(self.upper)
        return gap if gap.dim() == 3 else gap.unsqueeze(0)

    # -- without -----------------------------------------------------------------------

    def _by_observation(
        self, beliefs: Beliefs, mean: Tensor, beta: Tensor, tau: Tensor
    ) -> Tensor:
        trials = len(self.safe)
        found = torch.ones_like(self.safe)
        # all that is in some trial safe, and all that is in some trial not
        masks = devices.host(self.safe.any(0), (~self.safe).any(0))
        useful, open_ = (
            devices.put(mask.nonzero().squeeze(-1), mean.device) for mask in masks
        )
        step = max(1, SMALL // (trials * max(1, len(open_))))
        for group in beliefs.groups:
            costs = [f for f in group.functions if f > 0]
            scale, noise = group.units()[1], group.noise
            rows = group.engine.covariances if costs else None
            for at in useful.split(step):
                if rows is None or not len(open_):
                    break
                c, own, there = rows(at, open_)  # T x n x o, T x n, T x o
                seen = own + noise.unsqueeze(-1)
                var = there.unsqueeze(1) - c.square() / seen.unsqueeze(-1)
                std = var.clamp_min(0).sqrt_()
                for f in costs:
                    s = scale[:, group.functions.index(f), None, None]
                    # u_t of the safety value is the threshold less l_t of the cost
                    gap = (self.lower[:, f, at] - mean[:, f, at]).double() / seen
                    after = mean[:, f, None, open_] + c * gap.unsqueeze(-1)
                    after = after + beta[:, f, None, None] * s * std
                    after = torch.minimum(self.upper[:, f, None, open_].double(), after)
                    new = (after <= tau[:, f - 1, None]) & ~self.safe[:, None, open_]
                    found[:, at] &= new.any(-1)
        if not len(open_):
            found.zero_()
        return found
