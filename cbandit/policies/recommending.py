"""Recommend the action to deploy, by a policy's beliefs.

In shapes, ``T`` counts the trials, ``m`` the costs, ``n`` actions and ``F`` the
functions that have a belief: the reward, number 0, then costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.errors import CBanditError
from cbandit.policies.concerns.failure_list import blocks_within
from cbandit.policies.turn import Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.units import Units, normal, normal_limits, told
from cbandit.recommend import Recommendation, recommend
from cbandit.search.box import best_feasible_point

MAX_INCUMBENTS = 160  # latest points around which the search of a box starts


def recommend_best(
    beliefs: Beliefs,
    actions: Any,
    turn: Turn,
    confidence: float,
    streams: Streams,
    has_links: bool,
) -> Recommendation:
    """Return the action of greatest mean reward that likely keeps all limits.

    In a trial without data of the reward, value, probability and margin are NaN. A cost
    without data is ignored, and the recommendation is then not called feasible.

    Args:
        beliefs: the policy's, with all feedback.
        actions: the policy's set.
        turn: the round: its set and mask say what may be recommended.
        confidence: the least probability of an action that is called feasible.
        streams: random draws for the search of a box.
        has_links: whether a function is binary or counted.
    """
    limits, units, shown = turn.limits, beliefs.units(), turn.shown
    data = beliefs.has_data().to(limits.device)
    # ignore the limit of a cost without data
    known, count = torch.zeros_like(limits, dtype=torch.bool), beliefs.functions - 1
    known[:, :count] = data[:, 1:]
    limits = torch.where(data[:, 1:], limits[:, :count], torch.inf)
    normals = normal_limits(units, limits)
    if actions.continuous:
        x = _likely_point(beliefs, turn, limits, confidence, streams)
        mean, std = beliefs.anywhere(x.unsqueeze(1))
        moments = _in_user_units(units, mean, std, limits)
        best = recommend([(0, *moments)], normals, confidence)
        best = replace(best, index=None)
    elif shown is not None:
        points, left = shown.space.candidates(shown.values), turn.mask
        if left is not None and turn.actions is actions.domain:
            left = left.gather(1, turn.actions.index(points).expand(len(left), -1))
        mean, std = beliefs.anywhere(points)
        moments = _in_user_units(units, mean, std, limits)
        best = recommend(blocks_within([(0, *moments)], left), normals, confidence)
        x = shown.whole(actions.menu.at(best.index).unsqueeze(1)).squeeze(1)
    else:
        blocks = blocks_within(blocks_in_user_units(beliefs, limits), turn.mask)
        best = recommend(blocks, normals, confidence, turn.ranks)
        x = actions.at(best.index)
    if has_links:  # users do not know the latent functions' units
        points = x if x.dim() > 1 else x.unsqueeze(0)
        mean, _ = told(units, *beliefs.anywhere(points.unsqueeze(1)))
        best = replace(best, margin=limits - mean[:, 1:, 0])
    best = best.known(known).withheld(~data[:, 0])
    if units is not None:  # the scale of a single outcome is unknown
        once = (units.seen[:, 1:] <= 1).any(-1)
        chance = torch.where(once, torch.nan, best.probability)
        best = replace(best, probability=chance)
    return replace(best, x=x, names=actions.names)


def blocks_in_user_units(
    beliefs: Beliefs, limits: Tensor
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield blocks of actions: their first number, means and deviations ``(T, F, n)``.

    They are in the user's units. For binary and counted costs they are those of the
    latent function, as are these costs' limits (:func:`normal_limits`).
    """
    units = beliefs.units()
    return (
        (b.start, *_in_user_units(units, b.mean, b.std, limits))
        for b in beliefs.blocks()
    )


def _in_user_units(
    units: Units | None, mean: Tensor, std: Tensor, limits: Tensor
) -> tuple[Tensor, Tensor]:
    """Return means and deviations in the user's units, latent for costs with a link.

    The deviation of a cost that never varied is 0, as its belief has no unit yet. A
    link maps the latent function of a binary or counted cost to its outcomes.
    """
    mean, std, _ = normal(units, mean, std, limits)
    if units is None:
        return mean, std
    sure = ~units.known.unsqueeze(-1)
    sure[:, 0] = False  # the reward keeps its deviation: it shows where data are
    return mean, std.masked_fill(sure, 0.0)


def _likely_point(
    beliefs: Beliefs,
    turn: Turn,
    limits: Tensor,
    confidence: float,
    streams: Streams,
) -> Tensor:
    """Return a box's point of greatest mean reward that is likely feasible."""
    box, shown, balls = turn.actions, turn.shown, turn.balls
    look, units, fences = beliefs.solver(), beliefs.units(), turn.excess_functions()
    bounds = normal_limits(units, limits)

    def estimate(choices: Tensor) -> Tensor:
        x = choices if shown is None else shown.whole(choices)
        mean, std, _ = normal(units, *look(x), limits)
        tau = bounds.unsqueeze(-1)
        room = torch.where(tau.isinf(), 0.0, tau - mean[:, 1:]) / std[:, 1:]
        # too small a probability counts like one more cost above its limit
        share = torch.where(tau.isinf(), 0.0, torch.special.log_ndtr(room))
        short = math.log(confidence) - share.sum(-2, keepdim=True)
        # asinh, as logarithms of tiny chances are huge
        rows = [mean[:, :1], short.asinh()]
        rows += [excess(choices) for excess in fences]
        return torch.cat(rows, 1)

    incumbents = beliefs.incumbents(MAX_INCUMBENTS)
    if shown is not None:
        incumbents = shown.space.split(incumbents)[0]
    if box is not beliefs.actions:  # some of the box's rows may be retired
        incumbents = box.nearest(incumbents)
    best, _ = best_feasible_point(box, estimate, streams, incumbents, barred=balls)
    if best.x is None:
        raise CBanditError("the search of a box came to no point")
    return best.x if shown is None else shown.whole(best.x.unsqueeze(1)).squeeze(1)
