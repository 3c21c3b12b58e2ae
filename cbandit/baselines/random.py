"""Uniformly random actions, the baseline that every policy should beat.

They are drawn from all actions, or with ``feasible=True`` from those where every cost's
mean is at or below its threshold. If there are none, the action whose largest mean
excess is least is played.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit._core.peaks import best_place
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.policies.abilities import Abilities
from cbandit.policies.base import Policy
from cbandit.policies.checks import listed
from cbandit.policies.choices import News
from cbandit.policies.keywords import CostBeliefs, PolicyKeywords
from cbandit.policies.round_search import stretches
from cbandit.policies.saving import locked
from cbandit.policies.signs import names_of
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.observations import Part
from cbandit.recommend import Recommendation

GOLDEN = 0.5 * (5**0.5 - 1)  # the step from a draw that has failed to the next one
TRIES = 1024  # points of a box drawn to find a feasible one


class Random(Policy):
    """Play a uniform draw from the allowed actions, or from those believed feasible.

    On a star the actions are its tips.

    Args:
        actions: what can be chosen; with ``feasible=True`` no star.
        reward: a belief that is not used, so that all policies are built alike.
        costs: how many costs it is told, their names, or beliefs about them, which
            ``feasible=True`` needs.
        feasible: play only what is believed feasible; on a box the first such point of
            1 024 uniform ones. Otherwise nothing is learned.
        common: see below.

    Example:
        >>> import cbandit as cb
        >>> actions = cb.Finite([[0.0], [1.0]])
        >>> policy = cb.baselines.Random(actions, costs=1)
        >>> policy.tell(policy.ask(), reward=1.0, cost=0.2)
        >>> gp = cb.GP.default(actions)
        >>> policy = cb.baselines.Random(actions, costs=gp, feasible=True)
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
        feasible: bool = False,
        **common: Unpack[PolicyKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        counted = isinstance(costs, int) and not isinstance(costs, bool)
        beliefs = [] if counted or _named(costs) else listed(costs, GP)
        m: Any = names_of(costs) or len(beliefs)
        if counted:
            m = checks.whole("costs", costs, 0, "how many costs there are")
        super().__init__(actions, m, **common)
        self.feasible = checks.flag("feasible", feasible)
        if not self.feasible:
            self.begin(None)
            return
        self.name = "Random-feasible"
        if not beliefs or not all(isinstance(belief, GP) for belief in beliefs):
            raise CBanditError(
                "feasible=True needs beliefs about the costs: give costs= as a cb.GP "
                f"or a list of them; got {costs!r}"
            )
        domain = self.actions.domain
        for j, belief in enumerate(beliefs):
            belief.suit(f"costs[{j}]", domain, self.batch_shape)
            beliefs[j] = self.objective.belief(1 + j, belief)
        batch = self.batch_shape
        self.begin(Beliefs(beliefs, domain, batch, self.dtype, self.device))

    def decide(
        self, state: Beliefs | None, turn: Turn
    ) -> tuple[Decision, Beliefs | None]:
        """Return one random action a trial."""
        on = turn.actions
        if state is not None:
            near = self._near if on.continuous else self._among
            return near(state, turn), state
        count = on.dim if on.continuous else 1
        shares = turn.streams.uniform(count).reshape(self.size, -1)
        return uniform(turn, shares, self), state

    def absorb(self, state: Beliefs | None, news: News) -> Beliefs | None:
        """Learn the costs if ``feasible=True``; otherwise nothing."""
        if state is None:
            return None
        keys, x, t = self._place(news.choice)
        for told in news.costs:
            wanted = told.mask().expand(self.size).tolist()
            part = Part(list(range(self.m)), told.values, wanted, told.noise)
            state = state.absorb(keys, x, [part], t)
        return state

    @locked
    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """Return the best action told: the one of largest mean within the limits.

        The policy has no belief about the reward, and so no chances: ``probability`` is
        NaN, ``feasible`` says whether the means kept the limits, and ``confidence``
        changes nothing. It does not know contexts.
        """
        if self.actions.domain is not self.actions:
            raise CBanditError(f"{self.name} recommends nothing in a context")
        return self._best_tried(confidence)

    def _fit(self, state: Beliefs | None) -> Beliefs | None:
        return None if state is None else state.refit(due_only=True)

    def _excess(self, beliefs: Beliefs, mean: Tensor, t: int) -> Tensor:
        """Return the largest mean excess ``(T, n)`` of means ``(T, m, n)``."""
        tau, units = self.limits(t), beliefs.units()
        if units is not None:
            inside = (tau - units.center) / units.size
            tau = torch.where(units.known, inside, 0.0)
        over: Tensor = (mean - tau.to(mean).unsqueeze(-1)).amax(1)
        return over.double()

    def _among(self, beliefs: Beliefs, turn: Turn) -> Decision:
        """Return the action at a random share of the way through the feasible ones."""
        share = turn.streams.uniform()
        other = None if turn.actions is self.actions.domain else turn.actions
        looks = stretches(beliefs, None, [], other)
        over = [self._excess(beliefs, mean, turn.t) for _, mean, _ in looks]
        excess = torch.cat(over, -1)
        if turn.mask is not None:
            excess = excess.masked_fill(~turn.mask, torch.inf)
        feasible = excess <= 0
        index, none = uniform_number(feasible, share), ~feasible.any(-1)
        index = torch.where(none, best_place(-excess, _tolerance(beliefs)), index)
        return Decision(index, none, sure=True)

    def _near(self, beliefs: Beliefs, turn: Turn) -> Decision:
        """Return the first of many uniform points that is believed feasible."""
        box, size = turn.actions, self.size
        share = turn.streams.uniform(TRIES, box.dim).reshape(size, TRIES, box.dim)
        x = drawn(box, None, share.to(self.device))
        points = x if turn.shown is None else turn.shown.whole(x)
        mean, _ = beliefs.anywhere(points.double())
        over = self._excess(beliefs, mean, turn.t)
        if turn.barred is not None:
            over = over.masked_fill(turn.barred(box.unit.of(x)), torch.inf)
        none = (over > 0).all(-1)
        lowest = best_place(-over, _tolerance(beliefs))
        place = torch.where(none, lowest, (over <= 0).int().argmax(-1))
        x = x[torch.arange(size, device=x.device), place].to(self.dtype)
        return Decision(None, none, x=x, sure=True)


def _tolerance(beliefs: Beliefs) -> Tensor:
    """Return the difference below which excesses of costs count as equal."""
    return beliefs.tolerance().maximum(beliefs.tolerance(costs=True))


def _named(costs: object) -> bool:
    """Return whether costs are names alone."""
    return names_of(costs) is not None and not isinstance(costs, dict)


def drawn(actions: Any, allowed: Tensor | None, share: Tensor) -> Tensor:
    """Return an action by uniform draws ``share``, which are ``(*n, d)`` on a box."""
    if actions.continuous:
        x: Tensor = actions.unit.point(share.to(actions.lower))
        if actions.choices is not None:
            row = actions.choices[(share[..., -1] * len(actions.choices)).long()]
            x[..., ~actions.free] = row
        return x
    if allowed is None:
        return (share[0] * int(actions.size)).long()
    numbers = allowed.nonzero().squeeze(-1)
    return numbers[(share[0] * len(numbers)).long()]


def uniform_number(mask: Tensor, share: Tensor) -> Tensor:
    """Return the action a ``share (*trials,)`` of the way through ``mask (T, N)``."""
    ranks = mask.cumsum(-1)
    count = ranks[:, -1]
    place = (share.reshape(-1).to(mask.device) * count).long().clamp_max(count - 1)
    return torch.searchsorted(ranks, place.unsqueeze(-1) + 1).squeeze(-1)


def clear(turn: Turn, trial: int, share: Tensor) -> Tensor:
    """Return one trial's uniform action, moved on to one that has not failed."""
    on, mask, barred = turn.actions, turn.mask, turn.barred
    allowed = None if mask is None else mask[trial % len(mask)]
    for _ in range(TRIES):
        x = drawn(on, allowed, share)
        if barred is None or not bool(barred.of(trial).holds(x.unsqueeze(0))):
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
