"""Play other actions than the rule's at stated chances, and keep the law of the result.

A *rule* is a function of a turn that returns a decision and the state after it; it
changes nothing but the random streams. A rule that draws without saying from which
distribution, as Thompson sampling does, is asked several times in a round, and one of
its answers is drawn. The answers are then the law: their shares are the propensities,
and the action played has the rule's own distribution. Shapes: ``T`` trials, ``N``
actions of a set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit.choice import Distribution, mixed
from cbandit.policies.turn import Decision, Turn

ANSWERS = 32  # of a rule that draws

Rule = Callable[[Turn], tuple[Decision, Any]]
"""A function of a turn that returns a decision, and the rule's state after it."""


class Answer(NamedTuple):
    """A rule's answer in a round.

    Args:
        decision: its decision, with its law and its chance.
        state: its state after it.
        draws: whether it draws from a distribution of its own.
    """

    decision: Decision
    state: Any
    draws: bool


def with_law(rule: Rule, turn: Turn, share: Tensor) -> Answer:
    """Return a rule's answer in a round.

    Args:
        rule: the rule.
        turn: the round.
        share: uniform draws ``(T,)`` by which one of several answers is played.
    """
    before = turn.streams.position()
    decision, state = rule(turn)
    draws = decision.distribution is not None
    if decision.chance is not None:
        return Answer(decision, state, draws)
    if not draws and not turn.streams.drew_since(before):
        law = Distribution.point(numbers(decision))
        decision = replace(decision, distribution=law, chance=law.probability[:, 0])
        return Answer(decision, state, draws)
    answers = [(decision, state), *(rule(turn) for _ in range(ANSWERS - 1))]
    decisions, states = zip(*answers, strict=True)
    equal = torch.full_like(share, 1 / ANSWERS)
    law = mixed([(equal, law_of(each)) for each in decisions])
    number = (share * ANSWERS).long()
    played: Decision = chosen(decisions, number)
    chance = law.chance(numbers(played))
    played = replace(played, distribution=law, chance=chance)
    return Answer(played, chosen(states, number), draws)


def play_instead(
    rule: Rule, turn: Turn, answer: Answer, where: Tensor, index: Tensor, by_score: bool
) -> tuple[Decision, Any]:
    """Return the decision, and the state, with other actions in some trials.

    Args:
        rule: the rule.
        turn: the round.
        answer: the rule's answer in it.
        where: the trials that play another action, ``(T,)`` bool.
        index: these actions, ``(T,)``.
        by_score: whether the rule plays the action of greatest score, whose estimates
            its state keeps. Then it is asked once more, with nothing else allowed.
    """
    decision, state, draws = answer
    if not bool(where.any()):
        return decision, state
    if draws or not by_score:
        score, estimate = decision.score, decision.estimate
        if score is not None:
            score = score.masked_fill(where, torch.nan)
        if estimate is not None:
            estimate = estimate.masked_fill(where.unsqueeze(-1), torch.nan)
        number = torch.where(where, index, numbers(decision))
        out = replace(decision, index=number, x=None, keys=None)
        return replace(out, score=score, estimate=estimate), state
    only = torch.arange(int(turn.actions.size), device=index.device) == index[:, None]
    mask = torch.ones_like(only) if turn.mask is None else turn.mask
    mask = torch.where(where.unsqueeze(-1), only, mask)
    # the round's own draws of a trial do not depend on what other trials play
    streams = turn.streams.apart(f"other action {turn.t}")
    other = rule(turn._replace(mask=mask, streams=streams))
    both, number = (decision, other[0]), where.long()
    merged: Decision = chosen(both, number)
    after = chosen((state, other[1]), number)
    return replace(merged, infeasible=decision.infeasible), after


def numbers(decision: Decision) -> Tensor:
    """Return the numbers ``(T,)`` of a decision on a set."""
    if decision.index is None:
        raise TypeError("a decision on a set must have numbers")
    return decision.index


def law_of(decision: Decision) -> Distribution:
    """Return the distribution of a decision; without one, all on its action."""
    if decision.distribution is None:
        return Distribution.point(numbers(decision))
    return decision.distribution


def chosen(values: Sequence[Any], number: Tensor) -> Any:
    """Return, in each trial, the part of ``values[number]``, ``number (T,)``.

    Tensors that lead with the trials are chosen from by trial; decisions and named
    tuples field by field. What some of them lack is ``None``; anything else must be
    alike in all of them.
    """
    first = values[0]
    if all(value is first for value in values):
        return first
    if any(value is None for value in values):
        return None
    if isinstance(first, Decision):
        parts = {
            field.name: chosen([getattr(value, field.name) for value in values], number)
            for field in fields(first)
            if field.name not in ("distribution", "keys")
        }
        return Decision(**parts)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(chosen(v, number) for v in zip(*values, strict=True)))
    if not isinstance(first, Tensor) or first.shape[:1] != number.shape:
        return first
    at = number.view(1, -1, *[1] * (first.dim() - 1)).to(first.device)
    rows = torch.stack(list(values))
    return rows.gather(0, at.expand(1, *first.shape)).squeeze(0)
