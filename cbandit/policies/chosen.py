"""Where a look is greatest: over the policy's own set, another one, or a box."""

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
from cbandit.actions import Box
from cbandit.errors import CBanditError
from cbandit.explore import clip
from cbandit.posterior.beliefs import Ahead
from cbandit.posterior.look import Best, Look, scan, scorer
from cbandit.search.box import Climbs, best_feasible_point, maximise_box
from cbandit.search.finite import best_feasible

__all__ = ["afresh", "best_action", "best_point", "seen_in_full", "stretches"]

INCUMBENTS = 16  # points tried last, which a continuous search starts around too
LEAST = scores.LeastViolating.kind


def best_action(
    beliefs: Any,
    look: Look,
    streams: Streams | None,
    ahead: list[Ahead],
    other: Any,
    ranks: Ranks,
) -> tuple[Best, Tensor | None]:
    """Return the best of numbered actions, and the trials where none is feasible.

    Args:
        beliefs: about the policy's own set.
        look: which score of which estimates is wanted.
        streams: estimates are of a joint draw from these; ``None``: of deviations.
        ahead: outstanding choices, whose variance counts as if they had been told.
        other: a set of this round alone; ``None``: the policy's own.
        ranks: the processes that share the set.
    """

    def search(look: Look) -> Best:
        if other is None:
            found: Best = beliefs.choose(look, streams, ahead)
            return found
        return scan([(0, *afresh(beliefs, other, ahead))], look, ranks)

    if look.score == scores.Feasible.kind:
        return best_feasible(lambda score: search(replace(look, score=score.kind)))
    return _finite(search(look)), None


def best_point(
    box: Box,
    beliefs: Any,
    look: Look,
    draws: Streams | None,
    ahead: list[Ahead],
    beside: Callable[[Tensor], Tensor] | None,
    streams: Streams,
    climbs: Climbs,
) -> tuple[Best, Tensor | None]:
    """Return the best point of a box, and the trials where none is feasible.

    Args:
        box: where to look.
        beliefs: about functions on it.
        look: which score of which estimates is wanted.
        draws: estimates are of a joint draw from these; ``None``: of deviations.
        ahead: outstanding choices, whose variance counts as if they had been told.
        beside: costs that are known, as a function of ``x (T, n, d)``.
        streams: draws of the search.
        climbs: where climbs are counted.
    """
    draw = None if draws is None else beliefs.draws(draws)
    believed, scale = beliefs.looking(ahead), look.coefficient.unsqueeze(-1)
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

    around = beliefs.incumbents(INCUMBENTS)
    if look.score == scores.Feasible.kind:
        return best_feasible_point(box, estimate, streams, around, climbs)
    score = scorer(look)
    return _finite(maximise_box(box, estimate, score, streams, around, climbs)), None


def afresh(beliefs: Any, actions: Any, ahead: list[Ahead]) -> tuple[Tensor, Tensor]:
    """Return means and deviations ``(T, F, n)`` on a set of this round alone."""
    mean, std = beliefs.anywhere(actions.block(0, actions.size), ahead)
    return mean.to(beliefs.dtype), std.to(beliefs.dtype)


def stretches(
    beliefs: Any, streams: Streams | None, ahead: list[Ahead], other: Any
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield ``(start, mean, spread)``, ``(T, F, n)`` each, over all actions."""
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
    if isinstance(actions, Box):
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


def _finite(best: Best) -> Best:
    """Return ``best``, whose numbers are on the host then, if its scores are finite."""
    if not all(map(math.isfinite, best.look())):
        raise CBanditError(
            "the score is not a finite number at any allowed action; look at "
            "policy.posterior() and policy.multiplier"
        )
    return best
