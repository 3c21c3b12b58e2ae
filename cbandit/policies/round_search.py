"""The search of one round: the best action of a set, or the best point of a box.

A :class:`Look` is the score to maximise and how estimates of reward and costs are made
from means and spreads. A spread is a standard deviation, or a joint draw less its mean.
Shapes: ``T`` trials, ``m`` costs, ``F`` functions (the reward, then costs), ``N``
actions of a set, ``n`` points, ``d`` coordinates.
"""

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
from cbandit._core.randomness import Streams
from cbandit.actions import Actions, nearest_to_middle, point_in_middle
from cbandit.errors import CBanditError
from cbandit.explore import clip
from cbandit.policies.acquire import AcquisitionScore
from cbandit.policies.turn import Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import Best, Block, Score, scan, scorer
from cbandit.posterior.pending import Ahead
from cbandit.search.box import Climbs, Estimate, best_feasible_point, maximise_box
from cbandit.search.finite import best_feasible
from cbandit_kernels import Look

MAX_INCUMBENTS = 16  # points tried last, around which a search of a box starts too


@dataclass(frozen=True)
class Search:
    """The search of one round over the policy's set, another set, or a box.

    Args:
        samples: whether estimates come from joint draws, not from deviations.
        climbs: on a box, counts of climbs and of those that failed.
        beliefs: the policy's beliefs, about the actions of its own set.
        look: the score to maximise, and how estimates are made.
        turn: the round; its set may be another one. Its pending choices reduce the
            variance as if they had been told.
        known_costs: costs that the user gave to ``ask``, ``(T, m, N)``, or on a box a
            function of ``x (T, n, d)``; ``None``: none.
        without_data: the trials ``(T,)`` that have no data, and so play the action in
            the middle of the set; ``None``: none.
    """

    samples: bool
    climbs: Climbs
    beliefs: Beliefs
    look: Look
    turn: Turn
    known_costs: Any
    without_data: Tensor | None

    def best(self) -> tuple[Best, Tensor | None]:
        """Return the best action, and the trials where none is feasible.

        ``None`` in place of the trials: the score does not ask for feasibility. Trials
        without data are not reported as infeasible.
        """
        without_data, box = self.without_data, self.turn.actions.continuous
        best, infeasible = self._best_point() if box else self._best_action()
        if isinstance(self.look.score, AcquisitionScore):
            best = self.look.score.trimmed(best)
        if without_data is not None and infeasible is not None:
            infeasible = infeasible & ~without_data.to(infeasible.device)
        return best, infeasible

    def _best_action(self) -> tuple[Best, Tensor | None]:
        """Return the best action of a set, and the trials where none is feasible."""
        look = self.look
        if self.known_costs is not None:
            look = replace(look, beside=self.known_costs)
        if self.without_data is not None:
            look = replace(look, mask=self._middle_mask(self.without_data))
        if isinstance(look.score, AcquisitionScore):
            best = look.score.search(self._blocks(), look).best(self.turn.ranks)
            return check_finite(best, look), None
        if look.score != scores.Feasible.kind:
            return check_finite(self._best_numbered(look), look), None
        start = self.turn.streams.position()

        def search(score: scores.Formed | Score) -> Best:
            self.turn.streams.go(start)  # every search uses the same draw
            kind, costs = getattr(score, "kind", score), scores.of_costs(score)
            close = self.beliefs.tolerance(costs)
            return self._best_numbered(replace(look, score=kind, tolerance=close))

        return best_feasible(search, self._violation_score)

    @property
    def _violation_score(self) -> Score:
        """The score that ranks actions where none is feasible.

        If estimates are draws, the score is minus the total violation of the limits; if
        they are bounds, minus the largest violation.
        """
        return scores.least_total if self.samples else scores.LeastViolating()

    def _middle_mask(self, without_data: Tensor) -> Tensor:
        """Return the mask ``(T, N)``; trials without data may play the middle only."""
        on, mask = self.turn.actions, self.turn.mask
        number = nearest_to_middle(self.beliefs.actions, on, mask).unsqueeze(-1)
        shape, device = (len(number), on.size), number.device
        middle = torch.zeros(shape, dtype=torch.bool, device=device)
        middle = middle.scatter(1, number, True)
        if bool(without_data.all()):
            return middle
        allowed = torch.ones_like(middle[:1]) if mask is None else mask
        return torch.where(
            without_data.to(middle.device).unsqueeze(-1), middle, allowed
        )

    def _best_numbered(self, look: Look) -> Best:
        """Return the best action of a set under the score of ``look``."""
        turn = self.turn
        if turn.actions is self.beliefs.actions:
            streams = turn.streams if self.samples else None
            return self.beliefs.choose(look, streams, turn.pending)
        blocks = ((b.start, b.mean, b.spread) for b in self._blocks())
        return scan(blocks, look, turn.ranks)

    def _blocks(self) -> Iterator[Block]:
        """Yield the round's set in blocks, with draws if estimates come from them."""
        turn = self.turn
        streams = turn.streams if self.samples else None
        return round_blocks(self.beliefs, turn.actions, streams, turn.pending)

    def _best_point(self) -> tuple[Best, Tensor | None]:
        """Return the best point of a box, and the trials where none is feasible."""
        look, known_costs, turn = self.look, self.known_costs, self.turn
        box, beliefs, without_data = turn.actions, self.beliefs, self.without_data
        shown, score = turn.shown, look.score
        streams = turn.streams if self.samples else None
        moments = beliefs.solver(turn.pending, streams)
        deviations = beliefs.solver(turn.pending) if self.samples else None
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
            if known_costs is not None:
                values = torch.cat([values, known_costs(x)], 1)
            if isinstance(score, AcquisitionScore):
                std = spread if deviations is None else deviations(x)[1]
                return score.rows(values, mean, std)
            return values

        if without_data is None:
            return self._climb(estimate)
        x = point_in_middle(box).expand(len(without_data), -1)
        without_data = without_data.to(x.device)
        left = turn.allows(x.unsqueeze(1))
        if left is not None:
            without_data = without_data & left[:, 0]
        at_middle = estimate(x.unsqueeze(1))
        f, g = at_middle[:, 0], at_middle[:, 1:]
        sure = look.score == scores.Feasible.kind  # its score is the reward's estimate
        value = (f if sure else scorer(look)(f, g)).squeeze(-1)
        middle = Best(value, None, at_middle.squeeze(-1), x)
        if bool(without_data.all()):
            return check_finite(middle, look), None
        best, infeasible = self._climb(estimate)
        column = without_data.unsqueeze(-1)
        merged = Best(
            torch.where(without_data, middle.value, best.value),
            None,
            torch.where(column, middle.estimate, best.estimate),
            x if best.x is None else torch.where(column, x, best.x),
        )
        return check_finite(merged, look), infeasible

    def _climb(self, estimate: Estimate) -> tuple[Best, Tensor | None]:
        """Return the best point of a box, and the trials where none is feasible.

        Climbs start at many points. ``estimate`` returns estimates ``(T, F, n)`` of
        reward and costs at points ``(T, n, d)``.
        """
        look, turn, beliefs = self.look, self.turn, self.beliefs
        box, balls, climbs = turn.actions, turn.balls, self.climbs
        around = beliefs.incumbents(MAX_INCUMBENTS)
        if turn.shown is not None:
            around = turn.shown.space.split(around)[0]
        if box is not beliefs.actions:  # some of the box's rows may be retired
            around = box.nearest(around)
        fences = turn.excess_functions()
        if fences:
            excess = fences[0] if len(fences) == 1 else partial(_join_values, fences)
            return self._climb_inside(estimate, around, excess)
        if look.score == scores.Feasible.kind:
            return best_feasible_point(
                box,
                estimate,
                turn.streams,
                around,
                climbs,
                balls,
                self._violation_score,
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
        return check_finite(best, look), None

    def _climb_inside(
        self, estimate: Estimate, around: Tensor, excess: Estimate
    ) -> tuple[Best, Tensor | None]:
        """Return the best point of a box where all of ``excess (T, b, n)`` are <= 0.

        ``estimate`` is as in :meth:`_climb`; ``around (T, k, d)`` are points to start
        climbs from. The second value is the trials where no point is feasible.
        """
        look, turn = self.look, self.turn

        def search(score: Score, costs: bool, streams: Streams) -> tuple[Best, Tensor]:
            def goal(x: Tensor) -> Tensor:
                values = estimate(x)
                g = values[:, 1:]
                limits = [g, excess(x)] if costs else [excess(x)]
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
                low, _ = search(self._violation_score, False, later)
                best = low.where(infeasible, best)
        else:
            best, _ = search(scorer(look), False, turn.streams)
        x = best.x
        if x is None:
            raise CBanditError("the search of a box came to no point")
        values = estimate(x.unsqueeze(1))[..., 0]
        return check_finite(Best(best.value, None, values, x), look), infeasible


def _join_values(functions: Sequence[Estimate], x: Tensor) -> Tensor:
    """Return values ``(T, b, n)`` of several functions at ``x``, joined along ``b``."""
    return torch.cat([each(x).double() for each in functions], 1)


def trials_without_data(beliefs: Beliefs, turn: Turn) -> Tensor | None:
    """Return the trials ``(T,)`` without data or open choices; ``None``: none.

    By a default belief these trials play the middle of the set: all actions are equal
    there, and the first one, which would win the tie, is often a corner.
    """
    fresh: Tensor = ~beliefs.has_data().any(-1)
    for entry in turn.waiting:
        if not bool(fresh.any()):
            return None
        fresh &= ~entry.waits()
    return fresh if bool(fresh.any()) else None


def check_finite(best: Best, look: Look) -> Best:
    """Return ``best``, copied to the host; raise an error if a score is not finite."""
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


def round_blocks(
    beliefs: Any,
    actions: Actions,
    streams: Streams | None = None,
    pending: Sequence[Ahead] = (),
) -> Iterator[Block]:
    """Yield a round's set in blocks; with ``streams`` they hold a joint draw too.

    A set given for this round alone is one block. ``pending`` choices reduce variances.
    """
    if actions is beliefs.actions:
        yield from beliefs.blocks(streams, pending)
        return
    points, dtype = actions.block(0, actions.size), beliefs.prior.dtype
    mean, std = beliefs.anywhere(points, pending)
    draw = None if streams is None else beliefs.drawn(points, streams).to(dtype)
    yield Block(0, actions.size, mean.to(dtype), std.to(dtype), draw)
