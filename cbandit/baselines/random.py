"""Uniformly random actions, the baseline that every policy should beat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.policies.abilities import Abilities
from cbandit.policies.base import Policy
from cbandit.policies.checks import belief_list
from cbandit.policies.choices import News
from cbandit.policies.keywords import CostBeliefs, PolicyKeywords
from cbandit.policies.mixing import numbers
from cbandit.policies.saving import locked
from cbandit.policies.signs import names_of
from cbandit.policies.turn import Decision, Turn
from cbandit.recommend import Recommendation

GOLDEN = 0.5 * (5**0.5 - 1)  # the step from a draw that has failed to the next one
TRIES = 1024  # draws to find an action that has not failed
DRAWS = 4096  # draws to find a point within linear limits
STEPS = 500  # of the walk where none of them is


class Random(Policy):
    """Play a uniform draw from the allowed actions. It learns nothing.

    On a star the actions are its tips.

    Args:
        actions: what can be chosen.
        reward: a belief that is not used, so that all policies are built alike.
        costs: how many costs it is told, or their names, or beliefs that are not used.
        common: see below.

    Example:
        >>> import cbandit as cb
        >>> actions = cb.Finite([[0.0], [1.0]])
        >>> policy = cb.baselines.Random(actions, costs=1)
        >>> policy.tell(policy.ask(), reward=1.0, cost=0.2)
    """

    name = "Random"
    abilities = Abilities(contexts=True)

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP | None = None,
        costs: CostBeliefs | int | Sequence[str] = 0,
        **common: Unpack[PolicyKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        if isinstance(costs, int) and not isinstance(costs, bool):
            m: Any = checks.whole("costs", costs, 0, "how many costs there are")
        else:
            m = names_of(costs) or len(belief_list(costs, GP))
        super().__init__(actions, m, **common)

    def decide(self, state: None, turn: Turn) -> tuple[Decision, None]:
        """Return one random action a trial."""
        count = turn.actions.dim if turn.actions.continuous else 1
        shares = turn.streams.uniform(count).reshape(self.size, -1)
        decision = uniform(turn, shares, self)
        if turn.explores:
            allowed = turn.mask
            if allowed is None:
                allowed = torch.ones(1, int(turn.actions.size), dtype=torch.bool)
            pi = Distribution.uniform(allowed.to(self.device).expand(self.size, -1))
            chance = pi.chance(numbers(decision))
            decision = replace(decision, distribution=pi, chance=chance)
        return decision, None

    def absorb(self, state: None, news: News) -> None:
        """Learn nothing."""

    @locked
    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """Return the best action told: the one of largest mean within the limits.

        The policy has no belief about the reward, and so no chances: ``probability`` is
        NaN, ``feasible`` says whether the means kept the limits, and ``confidence``
        changes nothing. It does not know contexts.
        """
        if self.actions.domain is not self.actions:
            raise CBanditError(f"{self.name} recommends nothing in a context")
        confidence, t = checks.share("confidence", confidence), self._catch_up().t
        limits = self.limits(max(t, 1)).cpu().double()
        table = self._table()
        outcomes = torch.cat([table["reward"].unsqueeze(-1), table["costs"]], -1)
        rows = zip(table["x"].unbind(1), outcomes.unbind(1), limits, strict=True)
        points, means = zip(*(best_tried(*row) for row in rows), strict=True)
        x = devices.put(torch.stack(points).to(self.dtype), self.device)
        mean = torch.stack(means)
        value, margin = mean[:, 0], limits - mean[:, 1:]
        if bool(value.isnan().all()):
            raise CBanditError(
                "recommend: nothing has been told yet of which to take the best; "
                "tell() what came of a choice, its costs too"
            )
        within, on = (margin >= 0).all(-1) & ~value.isnan(), self.actions
        best = Recommendation(
            index=on.index(x.unsqueeze(1)).squeeze(1) if on.finite else None,
            x=x,
            value=devices.put(value, self.device),
            probability=torch.full_like(value, math.nan).to(self.device),
            margin=devices.put(margin, self.device),
            feasible=devices.put(within, self.device),
            confidence=confidence,
            names=on.names,
        )
        return self.objective.recommended(best.of(self._user_shape))


def best_tried(x: Tensor, outcomes: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best action played, ``(d,)``, and its mean outcomes ``(1 + m,)``.

    The best action has the largest mean reward among those whose mean costs keep the
    limits; if none does, it exceeds them least. If no action has a reward and all
    costs, the outcomes are NaN.

    Args:
        x: the actions of all rounds, ``(n, d)``.
        outcomes: reward and costs, ``(n, 1 + m)``, NaN where missing.
        limits: the thresholds, ``(m,)``.
    """
    points, group = torch.unique(x, dim=0, return_inverse=True)
    told = ~outcomes.isnan()
    empty = outcomes.new_zeros(len(points), outcomes.shape[-1])
    count = empty.index_add(0, group, told.to(outcomes))
    means = empty.index_add(0, group, outcomes.nan_to_num(0.0)) / count
    known = (count > 0).all(-1)
    if not bool(known.any()):
        nothing = outcomes.new_full(outcomes.shape[1:], math.nan)
        return (x[0] if len(x) else x.new_zeros(x.shape[1])), nothing
    points, means = points[known], means[known]
    over = torch.nn.functional.pad(means[:, 1:] - limits, (1, 0)).amax(-1).clamp_min(0)
    best = torch.where(over == over.min(), means[:, 0], -math.inf).argmax()
    return points[best], means[best]


def drawn(actions: Any, allowed: Tensor | None, share: Tensor) -> Tensor:
    """Return an action by uniform draws ``share``, which are ``(*n, d)`` on a box."""
    if actions.continuous:
        x = _uniform_point(actions, share)
        if actions.linear is None or bool(actions.linear.holds(x)):
            return x
        return _uniform_inside(actions, share)
    if allowed is None:
        return (share[0] * int(actions.size)).long()
    numbers = allowed.nonzero().squeeze(-1)
    return numbers[(share[0] * len(numbers)).long()]


def _uniform_point(box: Any, share: Tensor) -> Tensor:
    """Return points of a box for uniform draws ``(*n, d)``, whatever its limits."""
    x: Tensor = box.unit.point(share.to(box.lower))
    if box.playable is not None:
        row = box.playable[(share[..., -1] * len(box.playable)).long()]
        x[..., ~box.free] = row
    return x


def _uniform_inside(box: Any, share: Tensor) -> Tensor:
    """Return a uniform draw ``(d,)`` from what linear limits leave of a box.

    It is the first of many draws that keeps them. If none does, BoTorch's random walk
    inside takes the place of draws. All draws follow from ``share (d,)``.
    """
    from botorch.utils.sampling import sample_polytope

    seed = int(share.double().sum() / len(share) * 2**53) % 2**31
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(DRAWS, box.dim, dtype=torch.float64, generator=generator)
    x = _uniform_point(box, draws.to(share.device))
    inside = box.linear.holds(x).nonzero()
    if len(inside):
        return x[inside[0, 0]]
    start = box.centred(_uniform_point(box, share))
    low, high = (end[box.free].double().cpu() for end in (box.lower, box.upper))
    matrix, bound = (each.double().cpu() for each in box.polytope.rows(start))
    z = ((start[box.free].double().cpu() - low) / (high - low)).unsqueeze(-1)
    eye = torch.eye(len(low), dtype=torch.float64)
    sides = torch.cat([matrix * (high - low), eye, -eye])
    ends = torch.cat([bound - matrix @ low, torch.ones_like(low), 0.0 * low])
    walk = sample_polytope(sides, ends.unsqueeze(-1), z, n=1, n0=STEPS, seed=seed)
    start[box.free] = (low + (high - low) * walk[0]).to(start)
    point: Tensor = box.nearest(start)
    return point


def uniform_number(mask: Tensor, share: Tensor) -> Tensor:
    """Return the action a ``share (*trials,)`` of the way through ``mask (T, N)``."""
    ranks = mask.cumsum(-1)
    count = ranks[:, -1]
    place = (share.reshape(-1).to(mask.device) * count).long().clamp_max(count - 1)
    return torch.searchsorted(ranks, place.unsqueeze(-1) + 1).squeeze(-1)


def clear(turn: Turn, trial: int, share: Tensor) -> Tensor:
    """Return one trial's uniform action, moved on to one that has not failed."""
    on, mask, balls = turn.actions, turn.mask, turn.balls
    allowed = None if mask is None else mask[trial % len(mask)]
    for _ in range(TRIES):
        x = drawn(on, allowed, share)
        if balls is None or not bool(balls.of_trial(trial).holds(x.unsqueeze(0))):
            return x
        share = (share + GOLDEN) % 1
    raise CBanditError("nothing is left to ask for: all that was drawn has failed")


def uniform(turn: Turn, shares: Tensor, policy: Policy) -> Decision:
    """Return a uniform action of each trial, from uniform draws ``(T, d or 1)``."""
    every = enumerate(shares.to(policy.device))
    return together(turn, [clear(turn, *pair) for pair in every], policy.dtype)


def together(turn: Turn, actions: list[Tensor], dtype: torch.dtype) -> Decision:
    """Return the decision to play one action a trial: numbers, or points of a box."""
    if turn.actions.continuous:
        return Decision(None, x=torch.stack(actions).to(dtype), sure=True)
    return Decision(torch.stack(actions), sure=True)
