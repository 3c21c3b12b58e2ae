"""A turn: one round as a policy's rule sees it, and the rule's decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.randomness import Streams
from cbandit.actions import Shown
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.policies.balls import Balls
from cbandit.policies.choices import Entry, Ledger
from cbandit.posterior.look import Best
from cbandit.posterior.pending import Ahead

SAME = 1e-7  # coordinates that differ by less, relative to their size, are equal
ALIKE = 1e-9  # excesses within this share of the least one count as equal to it
NONE = torch.zeros(1, 0)  # limits of a round that has none
Purpose = Literal["rule", "design", "recommend"]


class Fence(NamedTuple):
    """A rule that leaves out actions by their means and deviations.

    Args:
        beliefs: where the means and deviations come from.
        excess: takes means and deviations, ``(T, F, n)`` each, and returns
            ``(T, b, n)``. An action is left out if any of its ``b`` values is above 0.
        inside: a quicker test of which actions are kept, ``(T, n)`` bool; ``None``:
            there is none.
        lasting: whether the rule holds in later rounds too, as for actions that fail.
    """

    beliefs: Any
    excess: Callable[[Tensor, Tensor], Tensor]
    inside: Callable[[Tensor, Tensor], Tensor] | None = None
    lasting: bool = False

    def keeps(self, mean: Tensor, std: Tensor) -> Tensor:
        """Return which actions lie inside, ``(T, n)``."""
        return (self.excess(mean, std) <= 0).all(1)

    def worst(self, mean: Tensor, std: Tensor) -> Tensor:
        """Return by how much actions exceed the worst of their limits, ``(T, n)``."""
        return self.excess(mean, std).amax(1)


class Turn(NamedTuple):
    """One round, as a policy's rule sees it.

    Args:
        t: the round, counted from 1.
        actions: the set to choose from, mostly the policy's own.
        mask: ``(1 or T, N)`` bool, what ``among`` allows; ``None``: everything.
        observed_costs: this round's costs, as ``ask`` was given them.
        streams: where draws come from; an ``ask`` that fails puts them back.
        ledger: the choices that wait for feedback.
        balls: on a box, those around points that are left out; ``None``: none is.
        shown: the context, on sets that have one. ``actions`` and ``mask`` are then
            what :meth:`~cbandit.actions.Shown.round` returns, and a decision is one of
            them.
        confidence: the least probability ``(T,)`` that all limits are kept, if ``ask``
            was given one.
        limits: the thresholds of the round, ``(T, m)``.
        beliefs: the policy's; ``None``: it has none that concerns look at.
        apart: whether the set was given for this round alone.
        offered: the choices that may be chosen at all, ``(1, N)``; ``None``: all.
        fences: on a box, what concerns rule out. On sets, the mask says so.
        purpose: what the round is for: the policy's rule chooses, or its design does,
            or an action is recommended and nothing is played.
        tight: whether the round chooses again, among what fits.
        restarted: the trials ``(T,)`` that start anew in this round; ``None``: none.
        pending: the outstanding choices that beliefs count as told at their means.
        margin: what is added to the costs' estimates, ``(T, m)``, in units.
        doubtful: the trials ``(T,)`` in which no action is as sure as it should be.
        ranks: the processes that share the set.
        must_work: returns the number and point of the action of each trial that must
            not fail; ``None``: there is no such action.
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
    limits: Tensor = NONE
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

    def within(self, fence: Fence) -> tuple[Turn, Tensor | None]:
        """Return the round inside a fence, and the trials ``(T,)`` where nothing is.

        In these trials the actions that exceed it least are left. On a box the search
        sees to both, and the trials are ``None``.
        """
        if self.actions.continuous:
            return self._replace(fences=(*self.fences, fence)), None
        mask = self._over_set(fence.beliefs, fence.inside or fence.keeps, False)
        if self.mask is not None:
            mask &= self.mask
        empty = ~mask.any(-1)
        if self.ranks.size > 1:
            empty = self.ranks.every(empty)
        if not bool(empty.any()):
            return self._replace(mask=mask), empty
        over = self._over_set(fence.beliefs, fence.worst, torch.inf)
        if self.mask is not None:
            over = over.masked_fill(~self.mask, torch.inf)
        least = self.ranks.least(over.amin(-1)).unsqueeze(-1)
        if bool((least.isinf() & empty.unsqueeze(-1)).any()):
            raise CBanditError("among must leave an action to choose")
        near = over <= least + ALIKE * least.abs()
        mask = torch.where(empty.unsqueeze(-1), near, mask)
        return self._replace(mask=mask), empty

    def without(self, points: Sequence[Tensor], why: str) -> Turn:
        """Return the round without its actions at some points, ``(k, d)`` a trial.

        On a box it is without the balls around them, see :mod:`.balls`. If no action is
        left in a trial, it is an error that says ``why``: every action "has failed".
        """
        on = self.actions
        if on.continuous:
            balls = Balls(on, tuple(points))
            if self.balls is not None:
                balls = self.balls.joined(balls)
            return self._replace(balls=balls)
        left = torch.ones(len(points), on.size, dtype=torch.bool)
        every = on.block(0, on.size).double().cpu()
        every = every if every.dim() == 3 else every.unsqueeze(0)
        for i, rows in enumerate(points):
            for point in rows.double().cpu():
                gap = (every[i % len(every)] - point).abs().amax(-1)
                left[i] &= gap > SAME * (1 + point.abs().max())
        return self.only(devices.put(left, self.limits.device), why)

    def only(self, left: Tensor, why: str) -> Turn:
        """Return the round with the actions ``left (T, N)`` alone.

        If there is none in a trial, it is an error that says ``why`` all are left out.
        """
        of, mask = "of this round", left
        if self.mask is not None:
            of, mask = "that among allows", self.mask & left
        some = mask.any(-1)
        if not bool(some.all()):
            trial = f" in trial {int((~some).nonzero()[0])}" * (len(mask) > 1)
            raise CBanditError(
                f"every action {of} {why}{trial}: nothing is left to ask for"
            )
        return self._replace(mask=mask)

    def _over_set(
        self, beliefs: Any, look: Callable[[Tensor, Tensor], Tensor], other: float
    ) -> Tensor:
        """Return ``look`` of means and deviations over numbered actions, ``(T, N)``.

        The actions that other ranks hold get the value ``other``.
        """
        on = self.actions
        if on is not beliefs.actions:
            return look(*beliefs.anywhere(on.block(0, on.size)))
        dtype = torch.bool if other is False else torch.float64
        shape, device = (len(self.limits), on.size), self.limits.device
        values = torch.full(shape, other, dtype=dtype, device=device)
        for block in beliefs.blocks():
            part = look(block.mean, block.std.expand_as(block.mean))
            values[:, block.start : block.stop] = part
        return values

    def excesses(self) -> list[Callable[[Tensor], Tensor]]:
        """Return functions of points ``(T, n, d)`` of a box, one for each fence.

        They are above 0 where the fence rules a point out, ``(T, b, n)``.
        """
        return [self._excess(fence) for fence in self.fences]

    def _excess(self, fence: Fence) -> Callable[[Tensor], Tensor]:
        solve, shown = fence.beliefs.solver(), self.shown

        def excess(x: Tensor) -> Tensor:
            return fence.excess(*solve(x if shown is None else shown.whole(x)))

        return excess

    def allows(self, x: Tensor) -> Tensor | None:
        """Return which points ``x (T, n, d)`` of a box are left; ``None``: all.

        They are those inside lasting fences and outside balls.
        """
        left: Tensor | None = None
        if self.balls is not None:
            left = ~torch.stack([self.balls.holds(each) for each in x.unbind(1)], 1)
        for fence in self.fences:
            if not fence.lasting:
                continue
            inside = (self._excess(fence)(x) <= 0).all(1)
            left = inside if left is None else left & inside
        return left

    @property
    def by_rule(self) -> bool:
        """Whether the policy's rule chooses."""
        return self.purpose == "rule"

    @property
    def waiting(self) -> list[Entry]:
        """The choices whose feedback has not all come, oldest first."""
        return self.ledger.waiting(self.t - 1)

    def point(self, best: Best | Decision) -> Tensor:
        """Return a search's best action with its context, if any, ``(T, 1, d)``."""
        if best.x is None:
            x: Tensor = self.actions.at(best.index)
            return x.unsqueeze(1)
        x = best.x.unsqueeze(1)
        return x if self.shown is None else self.shown.whole(x)


@dataclass
class Decision:
    """The answer of a policy's rule, for ``T`` trials at once.

    Args:
        index: the action's number, ``(T,)``.
        infeasible: ``(T,)``, or ``None``: nothing to report.
        distribution: the law of the action given the round's draw, ``(T, k)``.
        x: the action itself, ``(T, d)``; ``None``: it follows from its number.
        keys: see :class:`~cbandit.search.Best`, where they are known.
        score: the action's score, ``(T,)``, for the history.
        estimate: of reward and costs in that score, ``(T, 1 + m)``, for the history.
        sure: whether the action is known to fit the set; otherwise ``ask`` checks it.
        idle: trials ``(T,)`` that play nothing; ``None``: none.
        promised: the bounds of what the choice may cost, ``(T, m)``, NaN for costs
            without a budget, for the history.
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

    def doubted(self, where: Tensor) -> Decision:
        """Return the decision, marked as infeasible in the trials ``where (T,)``."""
        if self.infeasible is not None:
            where = where | self.infeasible
        return replace(self, infeasible=where)
