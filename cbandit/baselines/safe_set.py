"""Safe sets that grow from a seed set, for SafeOpt, StageOpt, LoSBO and SGP-UCB.

All actions have nested bounds ``l_t <= function <= u_t``, which only tighten. The safe
set contains the seed set and grows once a round. With standardised beliefs all values
are in spreads; bounds from before a spread rests on enough outcomes are dropped.

By the beliefs alone:

* the next safe set: the seed set, and where every cost's upper bound keeps its
  threshold;
* expanders: for each cost, intersected, safe ``x`` where a made-up observation of the
  cost's *lower* bound would give some ``x'`` that is not yet safe an upper bound within
  the threshold.

By Lipschitz constants, in the safety values ``q_j = threshold_j - cost_j``, with nested
bounds ``l <= q <= u``:

* the next safe set: the seed set, and for each cost, intersected,
  ``{x' : l(x) - Lip_j d(x, x') >= 0 for some safe x}``;
* expanders: for each cost, intersected, safe ``x`` with ``u(x) - Lip_j d(x, x') >= 0``
  for some ``x'`` not yet safe.

``d`` is the Euclidean distance, for arms without coordinates the kernel's. Both are
quadratic in the number of actions, and made in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.peaks import best_place
from cbandit.actions import Finite, ProductGrid
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.abilities import OWN_RULE, PESSIMISTIC_REASON, SAFE_REFUSES
from cbandit.policies.gp import GPPolicy
from cbandit.policies.safe.action import Safe
from cbandit.policies.safe.bounds import MIN_OUTCOMES, EnoughData
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.units import Units, level

CHUNK = 1 << 22  # numbers in one temporary
KEPT = 1 << 24  # with at most so many distances, store them
SMALL = 1 << 17  # numbers in a temporary, so that several at once fit the cache
#: of policies that choose from a safe set
SAFE_SET = replace(
    OWN_RULE,
    boxes=False,
    explores=(UCB,),
    explore=UCB(2.0),
    refuses={
        **SAFE_REFUSES,
        "Sliding": "what was safe is taken to stay safe, and in a drifting world does "
        "not",
        "hallucinate": "a bound that counts what was not observed yet keeps nothing "
        "safe",
        "caution": PESSIMISTIC_REASON,
    },
)


class Whole(NamedTuple):
    """Estimates over the whole set.

    Args:
        mean: ``(T, F, N)``.
        beta: ``(T, F)``.
        spread: ``beta`` times the deviations, ``(T, F, N)``.
        tau: this round's thresholds, ``(T, m)``.
        units: the units of all these; ``None``: the user's own.
        enough: trials whose units can say what is safe, ``(T,)``; ``None``: all.
        close: rewards and costs that differ by less count as equal, ``(2, T)``.
    """

    mean: Tensor
    beta: Tensor
    spread: Tensor
    tau: Tensor
    units: Units | None
    enough: Tensor | None
    close: Tensor


class SafeSet(NamedTuple):
    """The nested bounds and the safe set of one round.

    Args:
        lower: ``l_t`` of reward and costs, ``(T, F, N)``.
        upper: ``u_t``, ``(T, F, N)``.
        safe: the safe set, ``(T, N)`` bool.
        nearest: the distance to the nearest action that is not safe, ``(T, N)``; minus
            infinity until it is known.
        units: the units of the bounds; ``None``: the user's own.
    """

    lower: Tensor
    upper: Tensor
    safe: Tensor
    nearest: Tensor
    units: Units | None = None

    def slack(self, tau: Tensor) -> Tensor:
        """Return lower bounds of the safety values ``tau - cost``, ``(T, m, N)``."""
        return tau.to(self.upper).unsqueeze(-1) - self.upper[:, 1:]

    def maximisers(self) -> Tensor:
        """Return the safe actions that may be best, ``u_t >= max over safe of l_t``."""
        lower, upper = self.lower[:, 0], self.upper[:, 0]
        best = lower.masked_fill(~self.safe, -math.inf).amax(-1, keepdim=True)
        return (upper >= best) & self.safe

    def _carried(self, units: Units | None) -> tuple[Tensor, Tensor]:
        """Return the bounds in ``units``; infinite if the old units were not firm."""
        if units is None or self.units is None:
            return self.lower, self.upper
        old, firm = self.units, self.units.rests_on(MIN_OUTCOMES)[:, None, None]
        scale = (old.size / units.size).to(self.lower).unsqueeze(-1)
        shift = ((old.center - units.center) / units.size).to(self.lower).unsqueeze(-1)
        lower = torch.where(firm, self.lower * scale + shift, -math.inf)
        return lower, torch.where(firm, self.upper * scale + shift, math.inf)

    def tightened(self, seed: Tensor, whole: Whole) -> SafeSet:
        """Return the sets with bounds tightened by ``mean -+ beta std``.

        The costs of the ``seed (1 or T, N)`` are at most the thresholds.
        """
        lower, upper = whole.mean - whole.spread, whole.mean + whole.spread
        before = self._carried(whole.units)
        torch.maximum(before[0], lower, out=lower)
        torch.minimum(before[1], upper, out=upper)
        limits = whole.tau.to(upper).unsqueeze(-1)
        known = torch.where(seed.unsqueeze(1), limits, math.inf)
        torch.minimum(upper[:, 1:], known, out=upper[:, 1:])
        return self._replace(lower=lower, upper=upper, units=whole.units)

    def play(
        self, value: Tensor, mask: Tensor | None, whole: Whole, tolerance: Tensor
    ) -> Decision:
        """Return the first safe action of greatest ``value`` ``(T, N)``.

        If ``among`` leaves no safe action, it is the action of least ``max_j`` upper
        bound.

        Args:
            value: the score of each action, ``(T, N)``.
            mask: ``(1 or T, N)``, what ``among`` allows.
            whole: estimates.
            tolerance: values that differ by less count as equal, ``(T,)``.
        """
        value = value.masked_fill(~self.safe, -math.inf)
        tolerance = tolerance.to(value)
        if mask is None:
            return Decision(best_place(value, tolerance), sure=True, safe=self.safe)
        safe = self.safe & mask
        infeasible = ~safe.any(-1)
        slack = self.slack(whole.tau).amin(1)
        value = torch.where(infeasible.unsqueeze(-1), slack, value)
        value = value.masked_fill(~mask, -math.inf)
        tolerance = torch.where(infeasible, whole.close[1].to(value), tolerance)
        place = best_place(value, tolerance)
        return Decision(place, infeasible, sure=True, safe=safe)

    def widest(self, wanted: Tensor, mask: Tensor | None, whole: Whole) -> Decision:
        """Return the safe action of greatest ``u_t - l_t``, the largest over functions.

        Args:
            wanted: the actions to choose from, ``(T, N)``; if ``among`` or crossed
                bounds leave none of them, all safe ones.
            mask: ``(1 or T, N)``, what ``among`` allows.
            whole: estimates.
        """
        if mask is not None:
            wanted = wanted & mask
        wanted = wanted | ~wanted.any(-1, keepdim=True)
        width = (self.upper - self.lower).amax(1).masked_fill(~wanted, -math.inf)
        return self.play(width, mask, whole, whole.close.amax(0))


class SafeSets:
    """How a policy's safe sets grow: by Lipschitz constants, or by the beliefs alone.

    Args:
        policy: the policy that has these sets.
        safe: the seed set, see :func:`seed_set`.
        lipschitz: a constant for each cost; ``None``: beliefs alone.
    """

    def __init__(
        self, policy: GPPolicy, safe: ArrayLike | Safe, lipschitz: ArrayLike | None
    ) -> None:
        self._actions, self._dtype = policy.actions, policy.dtype
        self._enough_data, batch = EnoughData(policy.name), policy.batch_shape
        self.seed = seed_set(safe, self._actions, batch, policy.device)
        self._reach: Reach | None = None
        if lipschitz is not None:
            lip = per_cost("lipschitz", lipschitz, policy)
            fixed = not (callable(policy.thresholds) or policy.standardized)
            self._reach = Reach(self._actions, self.seed, lip, fixed)

    def start(self, trials: int, functions: int) -> SafeSet:
        """Return the sets before the first round: the seed set."""
        safe = self.seed.expand(trials, -1).clone()
        shape, kind = (trials, functions, safe.shape[-1]), self._dtype
        upper = torch.full(shape, math.inf, dtype=kind, device=safe.device)
        return SafeSet(-upper, upper, safe, -upper[:, 0])

    def whole(
        self,
        turn: Turn,
        beliefs: Beliefs,
        looks: Iterable[tuple[int, Tensor, Tensor]],
        beta: Tensor,
        limits: Tensor,
        trusted: bool = True,
    ) -> Whole:
        """Return estimates over the policy's own set; raise an error for another set.

        Args:
            turn: the round.
            beliefs: about reward and costs.
            looks: means and deviations over the set, block by block.
            beta: the factors of the deviations, ``(T, F)``.
            limits: the thresholds, ``(T, m)``.
            trusted: whether beliefs say what is safe, once they have seen enough.
        """
        if turn.actions is not self._actions:
            raise CBanditError(
                f"{self._enough_data.name} keeps its bounds over its own set: use "
                "ask(among=...)"
            )
        units, (_, means, stds) = beliefs.units(), zip(*looks, strict=True)
        mean, std = (
            (parts[0] if len(parts) == 1 else torch.cat(parts, -1)).to(self._dtype)
            for parts in (means, stds)
        )
        spread = beta.to(mean).unsqueeze(-1) * std
        tau = level(units, limits)
        enough = self._enough_data.trials(units) if trusted else None
        close = torch.stack([beliefs.tolerance(costs) for costs in (False, True)])
        return Whole(mean, beta, spread, tau, units, enough, close)

    def next(self, sets: SafeSet, whole: Whole) -> SafeSet:
        """Return the sets of a round: tighter bounds, ``S_t`` grown once.

        Trials whose beliefs have seen too little keep the seed set.
        """
        sets = sets.tightened(self.seed, whole)
        if self._reach is not None:
            sets = self._reach.grown(sets, whole.tau)
        else:
            safe = (sets.slack(whole.tau) >= 0).all(1) | self.seed
            sets = sets._replace(safe=safe)
        if whole.enough is None:
            return sets
        enough = whole.enough.unsqueeze(-1)
        return sets._replace(safe=torch.where(enough, sets.safe, self.seed))

    def expanders(self, sets: SafeSet, whole: Whole, beliefs: Beliefs) -> Tensor:
        """Return the safe actions that could make another one safe, ``(T, N)``."""
        if self._reach is not None:
            return self._reach.expanders(sets, whole.tau)
        mean, beta = whole.mean, whole.beta
        useful, tau = torch.ones_like(sets.safe), whole.tau.to(mean).unsqueeze(-1)
        # actions safe in some trial, and actions not safe in some trial
        masks = devices.host(sets.safe.any(0), (~sets.safe).any(0))
        inside, outside = (
            devices.put(mask.nonzero().squeeze(-1), mean.device) for mask in masks
        )
        if not len(outside):
            return torch.zeros_like(sets.safe)
        step = max(1, SMALL // (len(useful) * len(outside)))
        for group in beliefs.groups:
            costs = [f for f in group.functions if f > 0]
            if not costs:
                continue
            noise = group.noise
            covariances = group.engine.covariances(outside)
            for at in inside.split(step):
                c, var_inside, var_outside = covariances(at)  # T x n x o, T x n, T x o
                total = var_inside + noise.unsqueeze(-1)
                var = var_outside.unsqueeze(1) - c.square() / total.unsqueeze(-1)
                std = var.clamp_min(0).sqrt_()
                for f in costs:
                    # the cost's lower bound, less its mean
                    gap = (sets.lower[:, f, at] - mean[:, f, at]).double() / total
                    after = mean[:, f, None, outside] + c * gap.unsqueeze(-1)
                    after = after + beta[:, f, None, None] * std
                    upper = sets.upper[:, f, None, outside].double()
                    after = torch.minimum(upper, after)
                    new = (after <= tau[:, f - 1, None]) & ~sets.safe[:, None, outside]
                    useful[:, at] &= new.any(-1)
        return useful & sets.safe


class Reach:
    """Growth of the safe set by Lipschitz constants.

    Args:
        actions: the set, finite.
        seed: the seed set, ``(1 or T, N)``.
        lipschitz: a constant for each cost, ``(T, m)``.
        fixed: whether thresholds never change.
    """

    def __init__(
        self, actions: Any, seed: Tensor, lipschitz: Tensor, fixed: bool
    ) -> None:
        self._actions, self._seed, self._fixed = actions, seed, fixed
        self._lipschitz = lipschitz.unsqueeze(-1)
        self._table: Tensor | None = None  # all distances, if they are few

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def grown(self, sets: SafeSet, tau: Tensor) -> SafeSet:
        """Return the sets with the actions added that safe ones show to be safe.

        Args:
            sets: bounds and the safe set before.
            tau: thresholds, ``(T, m)``.
        """
        reach = self._reach(sets.slack(tau))  # T x m x N
        reach = reach.masked_fill_(~sets.safe.unsqueeze(1), -math.inf)
        if self._fixed:
            # safe actions stay safe, and there are no new ones if no safe action
            # reaches the nearest action that is not safe
            hope = (reach >= sets.nearest.unsqueeze(1)).any(-1).all(-1)
            rows = hope.nonzero().squeeze(-1)
            if not len(rows):
                return sets
        else:
            rows = torch.arange(len(reach), device=reach.device)
        seed = self._seed if len(self._seed) == 1 else self._seed[rows]
        grown = torch.empty_like(sets.safe[rows])
        for start, stop, gap in self._distances(rows, reach):
            left = [gap - reach[rows, j].unsqueeze(1) for j in range(reach.shape[1])]
            reached = torch.stack([x.amin(-1) <= 0 for x in left]).all(0)
            grown[:, start:stop] = reached | seed[:, start:stop]
        safe, nearest = sets.safe.clone(), sets.nearest.clone()
        safe[rows] = grown
        for start, stop, gap in self._distances(rows, reach):
            unsafe = gap.masked_fill(grown.unsqueeze(1), math.inf)
            nearest[rows, start:stop] = unsafe.amin(-1)
        return sets._replace(safe=safe, nearest=nearest)

    def expanders(self, sets: SafeSet, tau: Tensor) -> Tensor:
        """Return safe actions whose upper bounds reach an unsafe one, ``(T, N)``."""
        reach = self._reach(tau.to(sets.lower).unsqueeze(-1) - sets.lower[:, 1:])
        near = (reach >= sets.nearest.unsqueeze(1)).all(1) & sets.nearest.isfinite()
        return near & sets.safe

    def _reach(self, slack: Tensor) -> Tensor:
        """Return the radius within which an action shows others safe, ``(T, m, N)``."""
        far = torch.where(slack >= 0, math.inf, -math.inf)
        return torch.where(self._lipschitz > 0, slack / self._lipschitz, far)

    def _distances(
        self, rows: Tensor, like: Tensor
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Yield ``(start, stop, gap)`` with distances ``gap (1 or R, n, N)`` to all."""
        size, batched = self._actions.size, bool(self._actions.batch_shape)
        count = len(like) if batched else 1
        if self._table is None and count * size * size <= KEPT:
            self._table = self._distance(0, size, like)
        step = max(1, CHUNK // (len(rows) * size))
        for start in range(0, size, step):
            stop = min(start + step, size)
            if self._table is None:
                gap = self._distance(start, stop, like)
            else:
                gap = self._table[:, start:stop]
            yield start, stop, gap[rows] if batched else gap

    def _distance(self, start: int, stop: int, like: Tensor) -> Tensor:
        table = self._actions.covariance
        if table is not None:
            square = table.diagonal(dim1=-2, dim2=-1)
            gap = square[..., start:stop, None] + square.unsqueeze(-2)
            gap = (gap - 2 * table[..., start:stop, :]).clamp_min(0).sqrt()
        else:
            exact = "donot_use_mm_for_euclid_dist"
            every = self._actions.block(0, self._actions.size)
            gap = torch.cdist(every[..., start:stop, :], every, compute_mode=exact)
        found: Tensor = gap.to(like)
        return found if found.dim() == 3 else found.unsqueeze(0)


def per_cost(name: str, value: ArrayLike, policy: GPPolicy) -> Tensor:
    """Return a constant for each cost, at least 0, as ``(T, m)``."""
    constant = checks.nonnegative(name, value)
    constant = checks.per_cost(name, constant, policy.batch_shape, policy.m)
    return devices.put(constant, policy.device).to(policy.dtype)


def rounds_of(rounds: ArrayLike, batch_shape: tuple[int, ...]) -> Tensor:
    """Return a number of rounds, or ``(*trials,)``, as ``(T,)``."""
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
    """Return the seed set as a mask ``(1 or T, N)``, with an action in every trial.

    ``safe`` is an action's number, a list of numbers, a tensor of numbers
    ``(*trials,)`` or ``(*trials, k)``, a mask ``(N,)`` or ``(*trials, N)``, or points
    ``(d,)``, ``(k, d)`` or ``(*trials, k, d)``; or a :class:`~cbandit.Safe`.
    """
    if isinstance(safe, Safe):
        safe = safe.x if safe.index is None else safe.index
    value = checks.tensor("safe", safe, None, device)
    listed = isinstance(safe, list | tuple | range)
    if value.dtype == torch.bool:
        mask = _led(value, 1, batch_shape)
        if mask is None or mask.shape[-1] != actions.size:
            raise _wrong_seed(value, actions, batch_shape)
    else:
        if value.is_floating_point() and value.numel():
            value = _numbers(value, actions, batch_shape)
        elif value.dim() == 0:
            value = value.reshape(1)
        elif value.dim() == 1 and batch_shape and not listed:
            value = value.unsqueeze(-1)
        rows = _led(value, 1, batch_shape)
        if rows is None:
            raise _wrong_seed(value, actions, batch_shape)
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
    """Return ``value`` with a first axis of 1 or ``T``; ``None`` if it does not fit."""
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
    value: Tensor, actions: Finite | ProductGrid, batch_shape: tuple[int, ...]
) -> CBanditError:
    return CBanditError(
        "safe must be an action's number, a list of them, numbers (*trials,) or "
        "(*trials, k), a mask (N,) or (*trials, N), or points (k, d) or (*trials, k, "
        f"d), with N = {actions.size}, d = {actions.dim}, trials = {batch_shape}; got "
        f"{value.dtype} of shape {tuple(value.shape)}"
    )
