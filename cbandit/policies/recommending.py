"""Moments in the user's units, and the best point of a box, for recommendations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.errors import CBanditError
from cbandit.policies.turn import Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.units import Units, normal, normal_limits
from cbandit.search.box import best_feasible_point

LIKELY = 160  # latest points around which that search starts too


def told_blocks(
    beliefs: Beliefs, limits: Tensor
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield ``(start, mean, std)``, ``(T, F, n)`` each, in the user's units.

    Costs with a link stay latent, as do their limits (:func:`normal_limits`).
    """
    units = beliefs.units()
    return (
        (b.start, *spread_in_units(units, b.mean, b.std, limits))
        for b in beliefs.blocks()
    )


def spread_in_units(
    units: Units | None, mean: Tensor, std: Tensor, limits: Tensor
) -> tuple[Tensor, Tensor]:
    """Return means and deviations in the user's units; latent for costs with a link.

    The deviation of a cost that never varied is 0, as its belief has no unit yet.
    """
    mean, std, _ = normal(units, mean, std, limits)
    if units is None:
        return mean, std
    sure = ~units.known.unsqueeze(-1)
    sure[:, 0] = False  # the reward's deviation shows where it was tried
    return mean, std.masked_fill(sure, 0.0)


def likely_point(
    beliefs: Beliefs,
    turn: Turn,
    limits: Tensor,
    confidence: float,
    streams: Streams,
) -> Tensor:
    """Return the box's point of greatest mean reward that is likely feasible."""
    box, shown, barred = turn.actions, turn.shown, turn.barred
    look, units, fences = beliefs.solver(), beliefs.units(), turn.excesses()
    bounds = normal_limits(units, limits)

    def estimate(choices: Tensor) -> Tensor:
        x = choices if shown is None else shown.whole(choices)
        mean, std, _ = normal(units, *look(x), limits)
        tau = bounds.unsqueeze(-1)
        room = torch.where(tau.isinf(), 0.0, tau - mean[:, 1:]) / std[:, 1:]
        # a chance below confidence counts like one more cost above its limit
        share = torch.where(tau.isinf(), 0.0, torch.special.log_ndtr(room))
        short = math.log(confidence) - share.sum(-2, keepdim=True)
        # asinh, as logarithms of tiny chances are huge
        rows = [mean[:, :1], short.asinh()]
        rows += [excess(choices) for excess in fences]
        return torch.cat(rows, 1)

    incumbents = beliefs.incumbents(LIKELY)
    if shown is not None:
        incumbents = shown.space.split(incumbents)[0]
    if box is not beliefs.actions:  # some of the box's rows may be retired
        incumbents = box.nearest(incumbents)
    best, _ = best_feasible_point(box, estimate, streams, incumbents, barred=barred)
    if best.x is None:
        raise CBanditError("the search of a box came to no point")
    return best.x if shown is None else shown.whole(best.x.unsqueeze(1)).squeeze(1)
