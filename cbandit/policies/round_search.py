"""The search of one round: the best action of a set, or the best point of a box."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbandit import scores
from cbandit._core.distributed import Ranks
from cbandit._core.randomness import Streams
from cbandit.actions import Actions, nearest_to_middle, point_in_middle
from cbandit.errors import CBanditError
from cbandit.explore import clip
from cbandit.policies.acquire import AcquisitionScore
from cbandit.policies.turn import Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import Best, Block, Score, scan, scorer
from cbandit.posterior.observations import Ahead
from cbandit.search.box import Climbs, Estimate, best_feasible_point, maximise_box
from cbandit.search.finite import best_feasible
from cbandit_kernels import Look

INCUMBENTS = 16  # latest points around which a search of a box starts too


@dataclass(frozen=True)
class Search:
    """The search of one round over the policy's set, another set, or a box.

    Args:
        actions: the set of the beliefs.
        samples: whether estimates come from joint draws, not from deviations.
        ranks: the processes that share the set.
        climbs: on a box, counts of climbs and of those that failed.
        beliefs: about the policy's own set.
        look: the score to maximise, and how estimates are made.
        turn: the round.
        ahead: outstanding choices, which reduce the variance as if they had been told.
        beside: costs that are known, ``(T, m, N)``, or on a box as a function of
            ``x (T, n, d)``; ``None``: no cost is known.
        fresh: the trials ``(T,)`` that begin in the middle; ``None``: none does.
    """

    actions: Actions
    samples: bool
    ranks: Ranks
    climbs: Climbs
    beliefs: Beliefs
    look: Look
    turn: Turn
    ahead: list[Ahead]
    beside: Any
    fresh: Tensor | None

    def best(self) -> tuple[Best, Tensor | None]:
        """Return the best action, and the trials where none is feasible.

        A trial that begins in the middle is not reported as infeasible.
        """
        fresh, box = self.fresh, self.turn.actions.continuous
        best, infeasible = self._point() if box else self._action()
        if isinstance(self.look.score, AcquisitionScore):
            best = self.look.score.trimmed(best)
        if fresh is not None and infeasible is not None:
            infeasible = infeasible & ~fresh.to(infeasible.device)
        return best, infeasible

    def _action(self) -> tuple[Best, Tensor | None]:
        """Return the best of numbered actions."""
        look = self.look
        if self.beside is not None:
            look = replace(look, beside=self.beside)
        if self.fresh is not None:
            look = replace(look, mask=self._begun(self.fresh))
        if isinstance(look.score, AcquisitionScore):
            best = look.score.search(self._blocks(), look).best(self.ranks)
            return finite(best, look), None
        if look.score != scores.Feasible.kind:
            return finite(self._numbered(look), look), None
        start = self.turn.streams.position()

        def search(score: scores.Formed | Score) -> Best:
            self.turn.streams.go(start)  # every search uses the same draw
            kind, costs = getattr(score, "kind", score), scores.of_costs(score)
            close = self.beliefs.tolerance(costs)
            return self._numbered(replace(look, score=kind, tolerance=close))

        return best_feasible(search, self._least)

    @property
    def _least(self) -> Score:
        """The score that ranks actions where nothing is feasible.

        It is the total violation if estimates are draws, the largest one if bounds.
        """
        return scores.least_total if self.samples else scores.LeastViolating()

    def _begun(self, fresh: Tensor) -> Tensor:
        """Return a mask ``(T, N)`` in which new trials have only the middle action."""
        on, mask = self.turn.actions, self.turn.mask
        number = nearest_to_middle(self.actions, on, mask).unsqueeze(-1)
        shape, device = (len(number), on.size), number.device
        middle = torch.zeros(shape, dtype=torch.bool, device=device)
        middle = middle.scatter(1, number, True)
        if bool(fresh.all()):
            return middle
        allowed = torch.ones_like(middle[:1]) if mask is None else mask
        return torch.where(fresh.to(middle.device).unsqueeze(-1), middle, allowed)

    def _numbered(self, look: Look) -> Best:
        """Return the best of numbered actions under one score."""
        on, streams = self.turn.actions, self.turn.streams
        draws = streams if self.samples else None
        if on is not self.actions:
            estimates = afresh(self.beliefs, on, self.ahead, draws)
            return scan([(0, *estimates)], look, self.ranks)
        best: Best = self.beliefs.choose(look, draws, self.ahead)
        return best

    def _blocks(self) -> Iterator[Block]:
        """Yield means, deviations and draws over the round's set."""
        on, draws = self.turn.actions, self.turn.streams if self.samples else None
        if on is self.actions:
            return self.beliefs.blocks(draws, self.ahead)
        mean, std = afresh(self.beliefs, on, self.ahead)
        draw = None
        if draws is not None:
            _, draw = afresh(self.beliefs, on, self.ahead, draws)
        return iter([Block(0, on.size, mean, std, draw)])

    def _point(self) -> tuple[Best, Tensor | None]:
        """Return the best point of a box."""
        look, beside, turn = self.look, self.beside, self.turn
        box, beliefs, fresh = turn.actions, self.beliefs, self.fresh
        shown, score = turn.shown, look.score
        streams = turn.streams if self.samples else None
        moments = beliefs.solver(self.ahead, streams)
        deviations = beliefs.solver(self.ahead) if self.samples else None
        scale = look.coefficient.unsqueeze(-1)
        offset, bound = (
            None if part is None else part.to(box.lower.dtype).unsqueeze(-1)
            for part in (look.offset, look.bound)
        )

        def estimate(x: Tensor) -> Tensor:
            x = x if shown is None else shown.whole(x)
            mean, spread = moments(x)
            values = mean + scale * spread
            if look.link is not None:
                values = look.link(values)
            if offset is not None:
                values += offset
            if bound is not None:
                values = clip(values, bound)
            if beside is not None:
                values = torch.cat([values, beside(x)], 1)
            if isinstance(score, AcquisitionScore):
                std = spread if deviations is None else deviations(x)[1]
                return score.rows(values, mean, std)
            return values

        if fresh is None:
            return self._climb(estimate)
        x = point_in_middle(box).expand(len(fresh), -1)
        fresh = fresh.to(x.device)
        left = turn.allows(x.unsqueeze(1))
        if left is not None:
            fresh = fresh & left[:, 0]
        at_middle = estimate(x.unsqueeze(1))
        f, g = at_middle[:, 0], at_middle[:, 1:]
        sure = look.score == scores.Feasible.kind  # its score is the reward's estimate
        value = (f if sure else scorer(look)(f, g)).squeeze(-1)
        begun = Best(value, None, at_middle.squeeze(-1), x)
        if bool(fresh.all()):
            return finite(begun, look), None
        best, infeasible = self._climb(estimate)
        column = fresh.unsqueeze(-1)
        merged = Best(
            torch.where(fresh, begun.value, best.value),
            None,
            torch.where(column, begun.estimate, best.estimate),
            x if best.x is None else torch.where(column, x, best.x),
        )
        return finite(merged, look), infeasible

    def _climb(self, estimate: Estimate) -> tuple[Best, Tensor | None]:
        """Return the best point of a box, by climbs from many places."""
        look, turn, beliefs = self.look, self.turn, self.beliefs
        box, balls, climbs = turn.actions, turn.balls, self.climbs
        around = beliefs.incumbents(INCUMBENTS)
        if turn.shown is not None:
            around = turn.shown.space.split(around)[0]
        if box is not self.actions:  # some of the box's rows may be retired
            around = box.nearest(around)
        fences = turn.excesses()
        if fences:
            over = fences[0] if len(fences) == 1 else partial(_rows, fences)
            return self._within(estimate, around, over)
        if look.score == scores.Feasible.kind:
            return best_feasible_point(
                box,
                estimate,
                turn.streams,
                around,
                climbs,
                balls,
                self._least,
                beliefs.tolerance(),
                beliefs.tolerance(costs=True),
            )
        within = 0.0 if look.tolerance is None else look.tolerance
        best = maximise_box(
            box,
            estimate,
            scorer(look),
            turn.streams,
            around,
            climbs,
            balls,
            within,
        )
        if balls is not None and best.x is not None and balls.holds(best.x).any():
            raise CBanditError("nothing is left to ask for: everything has failed")
        return finite(best, look), None

    def _within(
        self, estimate: Estimate, around: Tensor, over: Estimate
    ) -> tuple[Best, Tensor | None]:
        """Return the best point of a box where ``over (T, b, n)`` is not above 0."""
        look, turn = self.look, self.turn

        def search(score: Score, costs: bool, streams: Streams) -> tuple[Best, Tensor]:
            def goal(x: Tensor) -> Tensor:
                values = estimate(x)
                g = values[:, 1:]
                limits = [g, over(x)] if costs else [over(x)]
                return torch.cat([score(values[:, 0], g).unsqueeze(1), *limits], 1)

            close, box, balls = self.beliefs.tolerance(), turn.actions, turn.balls
            best, infeasible = best_feasible_point(
                box, goal, streams, around, self.climbs, balls, tolerance=close
            )
            # limits differ between searches: keep the reward, estimate the rest later
            return replace(best, estimate=best.estimate[:, :1]), infeasible

        infeasible = None
        if look.score == scores.Feasible.kind:
            later = copy.deepcopy(turn.streams)  # other trials keep their draws
            best, infeasible = search(scores.Reward(), True, turn.streams)
            if bool(infeasible.any()):
                low, _ = search(self._least, False, later)
                best = low.where(infeasible, best)
        else:
            best, _ = search(scorer(look), False, turn.streams)
        x = best.x
        if x is None:
            raise CBanditError("the search of a box came to no point")
        values = estimate(x.unsqueeze(1))[..., 0]
        return finite(Best(best.value, None, values, x), look), infeasible


def _rows(functions: Sequence[Estimate], x: Tensor) -> Tensor:
    """Return the values ``(T, b, n)`` of several functions at ``x``, joined.

    Each function has ``b`` values of its own, which the result has one after another.
    """
    return torch.cat([each(x).double() for each in functions], 1)


def finite(best: Best, look: Look) -> Best:
    """Read ``best`` to the host; raise an error unless its scores are finite."""
    values = best.read()
    if all(map(math.isfinite, values)):
        return best
    lost = [i for i, value in enumerate(values) if not math.isfinite(value)]
    trials = f" (trials {lost})" if len(values) > 1 else ""
    if look.weight is not None and not bool(look.weight.isfinite().all()):
        raise CBanditError(f"the multiplier that move returned is not finite{trials}")
    raise CBanditError(
        f"the score is not a finite number at any allowed action{trials}; look at "
        "policy.posterior() and policy.multiplier"
    )


def afresh(
    beliefs: Beliefs,
    actions: Actions,
    ahead: list[Ahead],
    streams: Streams | None = None,
) -> tuple[Tensor, Tensor]:
    """Return means and spreads ``(T, F, n)`` on a set of this round alone.

    With ``streams`` the spread is a joint draw less its mean, else the deviation.
    """
    points = actions.block(0, actions.size)
    mean, spread = beliefs.anywhere(points, ahead)
    if streams is not None:
        spread = beliefs.drawn(points, streams)
    return mean.to(beliefs.dtype), spread.to(beliefs.dtype)


def stretches(
    beliefs: Any, streams: Streams | None, ahead: list[Ahead], other: Actions | None
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield ``(start, mean, spread)``, ``(T, F, n)`` each, over all actions.

    The actions are those of ``other``, or of the policy's own set if that is
    ``None``. With ``streams`` the spread is a joint draw, else the deviation.
    """
    if other is not None:
        yield 0, *afresh(beliefs, other, ahead, streams)
        return
    for block in beliefs.blocks(streams, ahead):
        yield block.start, block.mean, block.std if streams is None else block.draw
