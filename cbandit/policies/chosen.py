"""The search for the best action: over the policy's own set, another one, or a box."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit import scores
from cbandit._core import checks, devices
from cbandit._core.distributed import Ranks
from cbandit._core.randomness import Streams
from cbandit.actions import nearest_to_middle, point_in_middle
from cbandit.errors import CBanditError
from cbandit.explore import clip
from cbandit.policies.decision import Asked
from cbandit.posterior.look import Best, Look, scan, scorer
from cbandit.posterior.observations import Ahead
from cbandit.search.box import Climbs, Estimate, best_feasible_point, maximise_box
from cbandit.search.finite import best_feasible

__all__ = ["Search", "afresh", "seen_in_full", "stretches"]

INCUMBENTS = 16  # points tried last, which a continuous search starts around too


class Search:
    """Finds where a look is greatest, over a policy's own set or another one.

    Args:
        actions: the policy's own set.
        samples: whether estimates are of joint draws; else of deviations.
        ranks: the processes that share the set.

    Attributes:
        climbs: on a box, how many climbs the searches made, and how many failed.
    """

    def __init__(self, actions: Any, samples: bool, ranks: Ranks) -> None:
        self.actions, self.samples, self.ranks = actions, samples, ranks
        self.climbs = Climbs()
        # a draw shows how much is missing in all; bounds show what may be missing
        self._least = scores.least_total if samples else scores.LeastViolating()

    def best(
        self,
        beliefs: Any,
        look: Look,
        asked: Asked,
        ahead: list[Ahead],
        beside: Any,
        fresh: Tensor | None,
    ) -> tuple[Best, Tensor | None]:
        """Return the best action, and the trials where none is feasible.

        Of trials that begin in the middle nothing is said of the others.

        Args:
            beliefs: about the policy's own set.
            look: which score of which estimates is wanted.
            asked: the round.
            ahead: outstanding choices, whose variance counts as if they had been told.
            beside: costs that are known, ``(T, m, N)``, or on a box as a function of
                ``x (T, n, d)``; ``None``: none are.
            fresh: the trials ``(T,)`` that begin in the middle; ``None``: none does.
        """
        best, infeasible = self._best(beliefs, look, asked, ahead, beside, fresh)
        if fresh is not None and infeasible is not None:
            infeasible = infeasible & ~fresh.to(infeasible.device)
        return best, infeasible

    def _best(
        self,
        beliefs: Any,
        look: Look,
        asked: Asked,
        ahead: list[Ahead],
        beside: Any,
        fresh: Tensor | None,
    ) -> tuple[Best, Tensor | None]:
        if asked.actions.continuous:
            return self._point(beliefs, look, asked, ahead, beside, fresh)
        if beside is not None:
            look = replace(look, beside=beside)
        if fresh is not None:
            look = replace(look, mask=self._begun(asked, fresh))

        if look.score == scores.Feasible.kind:
            start = asked.streams.position()

            def search(score: Any) -> Best:
                asked.streams.go(start)  # one draw, however often it is searched
                kind, close = getattr(score, "kind", score), scores.of_costs(score)
                on = replace(look, score=kind, tolerance=beliefs.tolerance(close))
                return self._numbered(beliefs, on, asked, ahead)

            return best_feasible(search, self._least)
        return _finite(self._numbered(beliefs, look, asked, ahead), look), None

    def _begun(self, asked: Asked, fresh: Tensor) -> Tensor:
        """Return a mask ``(T, N)`` that leaves one action where a trial begins."""
        on, mask = asked.actions, asked.mask
        number = nearest_to_middle(self.actions, on, mask).unsqueeze(-1)
        here = torch.zeros(len(number), on.size, dtype=torch.bool, device=number.device)
        here = here.scatter(1, number, True)
        if bool(fresh.all()):
            return here
        rest = torch.ones_like(here[:1]) if mask is None else mask
        return torch.where(fresh.to(here.device).unsqueeze(-1), here, rest)

    def _numbered(
        self, beliefs: Any, look: Look, asked: Asked, ahead: list[Ahead]
    ) -> Best:
        """Return the best of numbered actions."""
        if asked.actions is not self.actions:
            points = afresh(beliefs, asked.actions, ahead)
            return scan([(0, *points)], look, self.ranks)
        streams = asked.streams if self.samples else None
        found: Best = beliefs.choose(look, streams, ahead)
        return found

    def _point(
        self,
        beliefs: Any,
        look: Look,
        asked: Asked,
        ahead: list[Ahead],
        beside: Any,
        fresh: Tensor | None,
    ) -> tuple[Best, Tensor | None]:
        """Return the best point of a box."""
        box, streams = asked.actions, asked.streams
        draw = beliefs.draws(streams) if self.samples else None
        believed, scale = beliefs.solver(ahead), look.coefficient.unsqueeze(-1)
        offset, bound = (
            None if each is None else each.to(box.lower.dtype).unsqueeze(-1)
            for each in (look.offset, look.bound)
        )

        def estimate(x: Tensor) -> Tensor:
            mean, spread = believed(x)
            if draw is not None:
                spread = draw(x)
            found = mean + scale * spread
            if offset is not None:
                found += offset
            if bound is not None:
                found = clip(found, bound)
            return found if beside is None else torch.cat([found, beside(x)], 1)

        if fresh is None:
            return self._searched(asked, look, estimate, beliefs)
        x = point_in_middle(box).expand(len(fresh), -1)
        fresh = fresh.to(x.device)
        if asked.barred is not None:
            fresh = fresh & ~asked.barred.holds(x)
        here = estimate(x.unsqueeze(1))
        f, g = here[:, 0], here[:, 1:]
        sure = look.score == scores.Feasible.kind  # its score is the reward's estimate
        value = (f if sure else scorer(look)(f, g)).squeeze(-1)
        begun = Best(value, None, here.squeeze(-1), x)
        if bool(fresh.all()):
            return _finite(begun, look), None
        best, infeasible = self._searched(asked, look, estimate, beliefs)
        column = fresh.unsqueeze(-1)
        both = Best(
            torch.where(fresh, begun.value, best.value),
            None,
            torch.where(column, begun.estimate, best.estimate),
            x if best.x is None else torch.where(column, x, best.x),
        )
        return _finite(both, look), infeasible

    def _searched(
        self, asked: Asked, look: Look, estimate: Estimate, beliefs: Any
    ) -> tuple[Best, Tensor | None]:
        """Return the best point of a box, by a search."""
        box, barred, climbs = asked.actions, asked.barred, self.climbs
        around = beliefs.incumbents(INCUMBENTS)
        if look.score == scores.Feasible.kind:
            close = beliefs.tolerance(), beliefs.tolerance(costs=True)
            given = asked.streams, around, climbs, barred, self._least
            return best_feasible_point(box, estimate, *given, *close)
        within = 0.0 if look.tolerance is None else look.tolerance
        rest = around, climbs, barred, within
        best = maximise_box(box, estimate, scorer(look), asked.streams, *rest)
        if barred is not None and best.x is not None and barred.holds(best.x).any():
            raise CBanditError("nothing is left to ask for: everything has failed")
        return _finite(best, look), None


def afresh(beliefs: Any, actions: Any, ahead: list[Ahead]) -> tuple[Tensor, Tensor]:
    """Return means and deviations ``(T, F, n)`` on a set of this round alone."""
    mean, std = beliefs.anywhere(actions.block(0, actions.size), ahead)
    return mean.to(beliefs.dtype), std.to(beliefs.dtype)


def stretches(
    beliefs: Any, streams: Streams | None, ahead: list[Ahead], other: Any
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield ``(start, mean, spread)``, ``(T, F, n)`` each, over all actions.

    Those of the set ``other``, or of the policy's own where that is ``None``. With
    ``streams`` the spread is that of a joint draw from them, else the deviation.
    """
    if other is not None:
        yield 0, *afresh(beliefs, other, ahead)
        return
    for block in beliefs.blocks(streams, ahead):
        yield block.start, block.mean, block.std if streams is None else block.draw


def seen_in_full(
    observed: Any, actions: Any, limits: Tensor, batch: tuple[int, ...]
) -> Tensor | Callable[[Tensor], Tensor]:
    """Return costs less thresholds: ``(T, m, N)``, on a box a function of points."""
    name, (trials, m) = "observed_costs", limits.shape
    if actions.continuous:
        if not callable(observed):
            raise CBanditError(
                f"{name} must be a callable on a Box, x (*trials, n, d) -> "
                f"(*trials, m, n); got {type(observed).__name__}"
            )

        def at(x: Tensor) -> Tensor:
            values: Tensor = observed(x if batch else x[0])
            return values.reshape(trials, m, x.shape[1]) - limits.unsqueeze(-1)

        return at
    # looked at where it is given, mostly on the host
    given = checks.finite(name, checks.tensor(name, observed))
    g, size = devices.put(given, limits.device), actions.size
    shape = tuple(g.shape)
    if m == 1 and shape == (*batch, size):
        g = g.reshape(trials, 1, size)
    elif shape in ((*batch, m, size), (m, size)):
        g = g.expand(trials, m, size)
    else:
        raise CBanditError(
            f"{name} must have shape (*trials, m, N) = {(*batch, m, size)}; got {shape}"
        )
    return g - limits.unsqueeze(-1)


def _finite(best: Best, look: Look) -> Best:
    """Return ``best``, whose numbers are on the host then, if its scores are finite."""
    lost = [i for i, value in enumerate(best.read()) if not math.isfinite(value)]
    if not lost:
        return best
    trials = f" (trials {lost})" if len(best.value) > 1 else ""
    if look.weight is not None and not bool(look.weight.isfinite().all()):
        raise CBanditError(f"the multiplier that move returned is not finite{trials}")
    raise CBanditError(
        f"the score is not a finite number at any allowed action{trials}; look at "
        "policy.posterior() and policy.multiplier"
    )
