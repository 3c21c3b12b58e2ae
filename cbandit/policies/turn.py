"""A turn: one round as a policy's rule sees it, and the rule's decision.

A rule is the algorithm that chooses an action. Concerns (``round.py``) shape the turn
before the rule: they narrow the mask, or on a box add fences and balls. Shapes: ``T``
trials, ``m`` costs, ``F`` functions (the reward, then costs), ``N`` actions of a set,
``n`` points, ``d`` coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.printing import brief
from cbandit._core.randomness import Streams
from cbandit.actions import Shown
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.policies.balls import Balls
from cbandit.policies.choices import Entry, Ledger
from cbandit.posterior.look import Best
from cbandit.posterior.pending import Ahead

POINT_TOLERANCE = 1e-7  # relative; points that differ by less are the same
TIE_TOLERANCE = 1e-9  # relative; excesses that differ by less are equal
NO_LIMITS = torch.zeros(1, 0)  # (T, m) thresholds where there are no costs
Purpose = Literal["rule", "design", "recommend"]


class Fence(NamedTuple):
    """A condition on means and deviations that rules out actions.

    Args:
        beliefs: the beliefs that give the means and standard deviations.
        excess: a function of means and deviations, ``(T, F, n)`` each, that returns
            ``(T, b, n)``. An action is ruled out if any of its ``b`` values is above 0.
        inside: a faster test of which actions are allowed, ``(T, n)`` bool; ``None``:
            test ``excess`` instead.
        lasting: whether the fence holds in later rounds too, as for actions that fail.
    """

    beliefs: Any
    excess: Callable[[Tensor, Tensor], Tensor]
    inside: Callable[[Tensor, Tensor], Tensor] | None = None
    lasting: bool = False

    def allows(self, mean: Tensor, std: Tensor) -> Tensor:
        """Return which actions the fence allows, ``(T, n)`` bool."""
        return (self.excess(mean, std) <= 0).all(1)

    def largest_excess(self, mean: Tensor, std: Tensor) -> Tensor:
        """Return each action's largest excess, ``(T, n)``; above 0 it is ruled out."""
        return self.excess(mean, std).amax(1)


class Turn(NamedTuple):
    """One round, as a policy's rule sees it.

    Args:
        t: the round, counted from 1.
        actions: the set to choose from, mostly the policy's own.
        mask: the actions that may be chosen, ``(1 or T, N)`` bool; ``None``: all.
        observed_costs: this round's costs, as the user gave them to ``ask``.
        streams: the random streams to draw from; a failed ``ask`` rewinds them.
        ledger: the choices that wait for feedback.
        balls: on a box, the balls around points that are ruled out; ``None``: none.
        shown: the context, on sets that have one. ``actions`` and ``mask`` are then
            what :meth:`~cbandit.actions.Shown.round` returns, and a decision is one of
            them. ``None``: the set has no context.
        confidence: the probability ``(T,)`` with which an action must keep all limits;
            ``None``: the user asked for none.
        limits: the thresholds of the round, ``(T, m)``.
        beliefs: the policy's beliefs; ``None``: it has none that concerns use.
        apart: whether the user gave the set for this round alone.
        offered: the choices that are not retired, ``(1, N)`` bool; ``None``: all.
        fences: on a box, the conditions that rule out points. On sets, the mask does.
        purpose: who chooses: the policy's ``"rule"`` or its ``"design"``; or
            ``"recommend"``: an action is recommended and nothing is played.
        tight: whether the round chooses again, as a concern refused its first choice.
        restarted: the trials ``(T,)`` that start anew in this round; ``None``: none.
        pending: the outstanding choices that beliefs treat as told at their means.
        margin: what is added to the costs' estimates, ``(T, m)``, in spreads where
            beliefs are standardised; ``None``: nothing.
        doubtful: the trials ``(T,)`` in which no action reaches ``confidence``;
            ``None``: none.
        ranks: the processes that share the set.
        must_work: returns, for each trial, the number and point of the action that must
            not fail; ``None``: there is no such action.
        explores: whether the decision must say which actions are believed safe, see
            :attr:`Decision.safe`.
    """

    t: int
    actions: Any
    mask: Tensor | None
    observed_costs: Any
    streams: Streams
    ledger: Ledger
    balls: Balls | None = None
    shown: Shown | None = None
    confidence: Tensor | None = None
    limits: Tensor = NO_LIMITS
    beliefs: Any = None
    ranks: Ranks = ALONE
    apart: bool = False
    offered: Tensor | None = None
    fences: tuple[Fence, ...] = ()
    must_work: Callable[[], Sequence[tuple[int | None, Tensor]]] | None = None
    purpose: Purpose = "rule"
    tight: bool = False
    restarted: Tensor | None = None
    pending: list[Ahead] = []  # noqa: RUF012  # never changed
    margin: Tensor | None = None
    doubtful: Tensor | None = None
    explores: bool = False

    def within(
        self, fence: Fence, free: Tensor | None = None
    ) -> tuple[Turn, Tensor | None]:
        """Return the turn inside a fence, and the trials ``(T,)`` with nothing inside.

        Such trials keep the actions of least excess. On a box the fence is handed to
        the search, which does the same, and ``None`` is returned for the trials.

        Args:
            fence: the fence.
            free: the actions to which it does not apply, ``(1 or T, N)`` bool;
                ``None``: it applies to all.
        """
        if self.actions.continuous:
            return self._replace(fences=(*self.fences, fence)), None
        mask = self._evaluate(fence.beliefs, fence.inside or fence.allows, False)
        if free is not None:
            mask |= free
        if self.mask is not None:
            mask &= self.mask
        empty = ~mask.any(-1)
        if self.ranks.size > 1:
            empty = self.ranks.every(empty)
        if not bool(empty.any()):
            return self._replace(mask=mask), empty
        over = self._evaluate(fence.beliefs, fence.largest_excess, torch.inf)
        if self.mask is not None:
            over = over.masked_fill(~self.mask, torch.inf)
        least = self.ranks.least(over.amin(-1)).unsqueeze(-1)
        if bool((least.isinf() & empty.unsqueeze(-1)).any()):
            raise CBanditError("among must leave an action to choose")
        near = over <= least + TIE_TOLERANCE * least.abs()
        mask = torch.where(empty.unsqueeze(-1), near, mask)
        return self._replace(mask=mask), empty

    def without(self, points: Sequence[Tensor], reason: str) -> Turn:
        """Return the turn without the actions at ``points``, ``(k, d)`` for each trial.

        On a box the balls around the points are ruled out, see :mod:`.balls`; there
        points are choices alone, and on a set with contexts they hold the context too.
        Raise an error with ``reason``, such as "has failed", if a trial has no action
        left.
        """
        actions = self.actions
        if actions.continuous:
            balls = Balls(actions, tuple(points))
            if self.balls is not None:
                balls = self.balls.joined(balls)
            return self._replace(balls=balls)
        allowed = torch.ones(len(points), actions.size, dtype=torch.bool)
        x = actions.block(0, actions.size).double().cpu()
        x = x if x.dim() == 3 else x.unsqueeze(0)
        for i, rows in enumerate(points):
            for point in rows.double().cpu():
                gap = (x[i % len(x)] - point).abs().amax(-1)
                allowed[i] &= gap > POINT_TOLERANCE * (1 + point.abs().max())
        return self.only(devices.put(allowed, self.limits.device), reason)

    def only(self, allowed: Tensor, reason: str) -> Turn:
        """Return the turn with the mask narrowed to the actions ``allowed (T, N)``.

        Raise an error with ``reason``, such as "has failed", if a trial has none left.
        """
        of, mask = "of this round", allowed
        if self.mask is not None:
            of, mask = "that among allows", self.mask & allowed
        some = mask.any(-1)
        if not bool(some.all()):
            trial = f" in trial {int((~some).nonzero()[0])}" * (len(mask) > 1)
            raise CBanditError(
                f"every action {of} {reason}{trial}: nothing is left to ask for"
            )
        return self._replace(mask=mask)

    def _evaluate(
        self, beliefs: Any, test: Callable[[Tensor, Tensor], Tensor], default: float
    ) -> Tensor:
        """Return the value of ``test`` for every action of the round's set, ``(T, N)``.

        ``test`` takes means and deviations, ``(T, F, n)`` each. Actions that other
        processes hold get the value ``default``.
        """
        actions = self.actions
        if actions is not beliefs.actions:
            return test(*beliefs.anywhere(actions.block(0, actions.size)))
        dtype = torch.bool if default is False else torch.float64
        shape, device = (len(self.limits), actions.size), self.limits.device
        values = torch.full(shape, default, dtype=dtype, device=device)
        for block in beliefs.blocks():
            part = test(block.mean, block.std.expand_as(block.mean))
            values[:, block.start : block.stop] = part
        return values

    def excess_functions(self) -> list[Callable[[Tensor], Tensor]]:
        """Return, for each fence, its excess as a function of points of a box.

        A function takes points ``(T, n, d)`` and returns ``(T, b, n)``: a point is
        ruled out if any of its ``b`` values is above 0.
        """
        return [self._excess_function(fence) for fence in self.fences]

    def _excess_function(self, fence: Fence) -> Callable[[Tensor], Tensor]:
        """Return the function of one fence, see :meth:`excess_functions`."""
        solve, shown = fence.beliefs.solver(), self.shown

        def excess(x: Tensor) -> Tensor:
            return fence.excess(*solve(x if shown is None else shown.whole(x)))

        return excess

    def allows(self, x: Tensor) -> Tensor | None:
        """Return which points ``x (T, n, d)`` of a box are allowed; ``None``: all.

        A point is allowed if it lies inside all lasting fences and outside all balls.
        """
        allowed: Tensor | None = None
        if self.balls is not None:
            allowed = ~torch.stack([self.balls.holds(each) for each in x.unbind(1)], 1)
        for fence in self.fences:
            if not fence.lasting:
                continue
            inside = (self._excess_function(fence)(x) <= 0).all(1)
            allowed = inside if allowed is None else allowed & inside
        return allowed

    @property
    def by_rule(self) -> bool:
        """Whether the policy's rule chooses, not its design."""
        return self.purpose == "rule"

    @property
    def waiting(self) -> list[Entry]:
        """The choices whose feedback has not all come, oldest first."""
        return self.ledger.waiting(self.t - 1, self.t)

    def point(self, best: Best | Decision) -> Tensor:
        """Return the point of an action, with the round's context, ``(T, 1, d)``."""
        if best.x is None:
            x: Tensor = self.actions.at(best.index)
            return x.unsqueeze(1)
        x = best.x.unsqueeze(1)
        return x if self.shown is None else self.shown.whole(x)


@dataclass
class Decision:
    """The answer of a policy's rule, for ``T`` trials at once.

    Args:
        index: the action's number, ``(T,)``; ``None`` on a box.
        infeasible: the trials ``(T,)`` without a feasible action; ``None``: none, or
            the rule does not look.
        distribution: the probabilities ``(T, k)`` from which the action was drawn;
            ``None``: it was not drawn.
        x: the action's point, ``(T, d)``; ``None``: it follows from its number.
        keys: the actions' numbers or coordinates on the host, as in
            :class:`~cbandit.search.Best`; ``None``: not known.
        score: the action's score, ``(T,)``, for the history; ``None``: there is none.
        estimate: the estimates of reward and costs in that score, ``(T, 1 + m)``, for
            the history; ``None``: there are none.
        sure: whether the action is known to be in the set; otherwise ``ask`` checks it.
        idle: the trials ``(T,)`` that play nothing; ``None``: none.
        promised: upper bounds of what the choice costs, ``(T, m)``, NaN for costs
            without a budget, for the history; ``None``: there are no budgets.
        expected: what is expected of the costs, for the certificate, see
            :class:`~cbandit.policies.concerns.receipt.Expected`; ``None``: unknown.
        chance: the propensity: the probability ``(T,)`` with which the action was
            played, given the past alone; NaN in trials whose action was certain.
            ``None``: it was certain in all trials, or is known given a draw only.
        safe: the actions ``(T, N)`` that the rule believes safe, if
            ``turn.explores``; ``None``: it does not judge single actions.
    """

    index: Tensor | None
    infeasible: Tensor | None = None
    distribution: Distribution | None = None
    x: Tensor | None = None
    keys: list[Any] | None = None
    score: Tensor | None = None
    estimate: Tensor | None = None
    sure: bool = False
    idle: Tensor | None = None
    promised: Tensor | None = None
    expected: Any = None
    chance: Tensor | None = None
    safe: Tensor | None = None

    __repr__ = brief

    def doubted(self, where: Tensor) -> Decision:
        """Return the decision with the trials ``where (T,)`` marked as infeasible."""
        if self.infeasible is not None:
            where = where | self.infeasible
        return replace(self, infeasible=where)
