"""Posteriors, data from before and recommendations of a GP policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.randomness import Streams
from cbandit.actions import Box
from cbandit.beliefs.feedback import Delayed
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.policies.failures import remaining
from cbandit.policies.given import named_points
from cbandit.policies.senses import Senses
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.observations import Part
from cbandit.posterior.units import Units, told
from cbandit.recommend import Recommendation, nothing_told, recommend
from cbandit.search.box import best_feasible_point

__all__ = [
    "Data",
    "Marginal",
    "Posterior",
    "data_rows",
    "fresh_beliefs",
    "posterior_at",
    "posterior_of",
    "recommended",
    "told_blocks",
]

INCUMBENTS = 160  # points tried last, which the search starts around too


@dataclass(frozen=True)
class Marginal:
    """Means and standard deviations over the actions, in the user's units."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Posterior:
    """Beliefs about the reward, ``(*trials, N)``, and costs, ``(*trials, m, N)``."""

    reward: Marginal
    costs: Marginal | None


def posterior_of(
    believed: tuple[Tensor, Tensor],
    outside: Callable[[Tensor], Tensor],
    senses: Senses,
) -> Posterior:
    """Return means and deviations ``(T, F, N)`` as users see them."""
    mean, std = senses.functions(believed[0]), believed[1]
    reward = Marginal(outside(mean[:, 0]), outside(std[:, 0]))
    if mean.shape[1] == 1:
        return Posterior(reward, None)
    return Posterior(reward, Marginal(outside(mean[:, 1:]), outside(std[:, 1:])))


def posterior_at(policy: Any, beliefs: Any, x: Any, params: Any) -> Posterior:
    """Return the posterior over the policy's set, or at points ``x``."""
    actions, outside = policy.actions, policy._outside
    x = named_points(actions, x, params)
    if x is not None:
        given = checks.tensor("x", x, policy.dtype, policy.device)
        axes, batch = (actions.dim,), policy.batch_shape
        points = checks.rows("x", checks.finite("x", given), batch, axes)
        believed = told(beliefs.units(), *beliefs.anywhere(points))
        return posterior_of(believed, outside, policy.senses)
    if actions.continuous:
        raise CBanditError(
            "posterior needs points on a Box: posterior(x) with x of shape (n, d)"
        )
    return posterior_of(beliefs.posterior(), outside, policy.senses)


Row = tuple[Sequence[Hashable], Tensor, list[Part]]


@dataclass(frozen=True)
class Data:
    """Checked data from before.

    Args:
        numbers: the actions' numbers ``(1 or T, n)``; ``None``: points of a box.
        places: the actions, ``(T, n, d)``.
        parts: functions, 0 the reward, and their values ``(1 or T, n, f)``.
    """

    numbers: Tensor | None
    places: Tensor
    parts: list[tuple[list[int], Tensor]]

    def rows(self) -> list[Row]:
        """Return one row an observation, as beliefs take them in."""
        out: list[Row] = []
        every = [True] * len(self.places)
        for i in range(self.places.shape[1]):
            told: list[Part] = [
                Part(functions, value[:, i].to(self.places.device), every)
                for functions, value in self.parts
            ]
            keys: list[Hashable] = (
                [tuple(point) for point in self.places[:, i].tolist()]
                if self.numbers is None
                else self.numbers[:, i].tolist()
            )
            out.append((keys, self.places[:, i], told))
        return out


def fresh_beliefs(policy: Any, beliefs: list[GP], engine: str) -> Beliefs:
    """Return a policy's beliefs without data."""
    samples: bool = policy.explore.samples
    out = Beliefs(
        beliefs,
        policy.actions,
        policy.batch_shape,
        policy.dtype,
        policy.device,
        engine=engine,
        samples=samples,
        apart=isinstance(policy.feedback, Delayed) and beliefs[0].standardize,
        ranks=policy._ranks,
    )
    if samples:
        out.check_samples()
    return out


def data_rows(
    policy: Any, index: Any, x: Any, reward: Any, cost: Any, params: Any
) -> Data:
    """Check what ``observe`` is given."""
    x = named_points(policy.actions, x, params)
    checks.no_flag("reward", reward)
    checks.no_flag("cost", cost)
    alone = isinstance(params, Mapping)
    if (index is None) == (x is None):
        raise CBanditError("observe takes one of index=, x= and params=")
    if reward is None and cost is None:
        raise CBanditError("observe needs reward=, cost= or both; got neither")
    if not policy.piecemeal and (reward is None or cost is None):
        raise CBanditError(f"{policy.name}'s observe needs reward= and cost= together")
    actions, batch, numbers = policy.actions, policy.batch_shape, None
    size = batch[0] if batch else 1
    if index is not None:
        if actions.continuous:
            raise CBanditError("a Box has no numbered actions: give x=")
        numbers = checks.rows("index", checks.tensor("index", index, None), batch)
        numbers = numbers.to(policy.device)
        actions.points(numbers)
        numbers = numbers.long()  # an empty list has no dtype of its own
    else:
        given = checks.tensor("x", x, policy.dtype, policy.device)
        given = given.unsqueeze(0) if alone else given
        given = checks.rows("x", checks.finite("x", given), batch, (actions.dim,))
        if actions.continuous:
            places = actions.inside(given)
        else:
            numbers = actions.index(given)
    if numbers is not None:
        places = actions.at(numbers.expand(size, -1))
    n, parts = places.shape[1], []
    if reward is not None:
        told = checks.tensor("reward", reward)
        told = told.unsqueeze(-1) if alone and told.dim() == 0 else told
        value = checks.measured("reward", told, policy.dtype)
        rows = checks.rows("reward", value, batch, (1,), n)
        parts.append(([0], policy.senses.reward(rows)))
    if cost is not None:
        m = policy.m
        if m == 0:
            raise CBanditError(f"{policy.name} has no costs; got cost=")
        cost = policy.senses.stacked(cost)
        told = checks.tensor("cost", cost)
        if alone and told.shape in ((), (m,)):
            told = told.reshape(1, -1)
        value = checks.measured("cost", told, policy.dtype)
        value = policy.senses.costs(checks.rows("cost", value, batch, (m,), n))
        parts.append((list(range(1, m + 1)), value))
    return Data(numbers, places, parts)


def told_blocks(beliefs: Any) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield ``(start, mean, std)`` over the set, ``(T, F, n)``, in the user's units."""
    units = beliefs.units()
    return ((b.start, *_spread(units, b.mean, b.std)) for b in beliefs.blocks())


def _spread(units: Units | None, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and deviations in the user's units; of equal costs there is none.

    Without two outcomes that differ a belief has no unit.
    """
    mean, std = told(units, mean, std)
    if units is None:
        return mean, std
    sure = ~units.known.unsqueeze(-1)
    sure[:, 0] = False  # the reward's says where it was tried
    return mean, std.masked_fill(sure, 0.0)


def recommended(policy: Any, beliefs: Any, confidence: float) -> Recommendation:
    """Return the best action believed feasible with ``confidence``.

    An error if no trial was told a reward. Costs without a belief, or without data,
    have unknown chances, and nowhere is feasible.
    """
    confidence = checks.share("confidence", confidence)
    limits, actions = policy._limits(max(policy.t, 1)), policy.actions
    data, units = beliefs.has_data().to(limits.device), beliefs.units()
    if not bool(data[:, 0].any()):
        raise nothing_told()
    known = torch.zeros_like(limits, dtype=torch.bool)
    known[:, : beliefs.functions - 1] = data[:, 1:]
    # a limit on what nothing is known of is no limit
    limits = torch.where(data[:, 1:], limits[:, : beliefs.functions - 1], torch.inf)
    streams = Streams(policy.seed, policy.trials, "recommend")
    if actions.continuous:
        gone = policy._failed and policy._failed.restricted(policy, actions, None)[1]
        x = _likely(beliefs, actions, limits, confidence, streams, gone)
        here = _spread(units, *beliefs.anywhere(x.unsqueeze(1)))
        found = recommend([(0, *here)], limits, confidence)
        found = replace(found, index=None)
    else:
        blocks = remaining(told_blocks(beliefs), policy._left_over())
        found = recommend(blocks, limits, confidence, policy._ranks)
        x = actions.at(found.index)
    found = found.known(known).withheld(~data[:, 0])
    if units is not None:  # of one outcome there is no spread, and so no chance
        once = (units.seen[:, 1:] <= 1).any(-1)
        chance = torch.where(once, torch.nan, found.probability)
        found = replace(found, probability=chance)
    return replace(found, x=x, names=actions.names)


def _likely(
    beliefs: Any,
    box: Box,
    limits: Tensor,
    confidence: float,
    streams: Streams,
    barred: Any,
) -> Tensor:
    """Return the point of greatest mean reward among those likely feasible."""
    look, units = beliefs.solver(), beliefs.units()

    def estimate(x: Tensor) -> Tensor:
        mean, std = told(units, *look(x))
        tau = limits.unsqueeze(-1)
        room = torch.where(tau.isinf(), 0.0, tau - mean[:, 1:]) / std[:, 1:]
        # a chance below confidence is one cost over its limit
        share = torch.where(tau.isinf(), 0.0, torch.special.log_ndtr(room))
        short = math.log(confidence) - share.sum(-2, keepdim=True)
        # chances far below one are astronomical, and all alike too low
        return torch.cat([mean[:, :1], short.asinh()], 1)

    incumbents = beliefs.incumbents(INCUMBENTS)
    best, _ = best_feasible_point(box, estimate, streams, incumbents, barred=barred)
    if best.x is None:
        raise CBanditError("the search of a box came to no point")
    return best.x
