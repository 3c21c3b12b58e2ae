"""Recommendations of policies with a safe action, over their own set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit.policies.failures import remaining
from cbandit.policies.safe.known import Known
from cbandit.policies.safe.model import Block
from cbandit.recommend import Recommendation, nothing_told, recommend_policy

__all__ = ["best_likely", "best_of_known"]


def best_of_known(
    data: Tensor,
    left: Tensor | None,
    safe: Known,
    best: Callable[[Tensor | None], Recommendation],
) -> Recommendation:
    """Return the best recommendation that rests on something, for ``T`` trials.

    Actions without data are left out, but for the safe one where its cost is given. A
    trial in which nothing remains claims nothing; an error if that is so in all.

    Args:
        data: actions of which all functions are known, ``(T, N)``.
        left: those that have not failed, ``(T, N)``; ``None``: all.
        safe: what is known of the safe action.
        best: returns the recommendation among some actions, ``(T, N)``; ``None``: all.
    """
    action, bare = safe.action, ~data.any(-1)
    unknown = torch.zeros_like(bare) if action.cost is not None else bare
    if bool(unknown.all()):
        raise nothing_told()
    if action.cost is not None and action.index is not None:
        data = data.scatter(1, action.index.unsqueeze(-1), True)
    among = data | unknown.unsqueeze(-1)
    if left is not None:
        among = among & left
    found = best(None if bool(among.all()) else among).withheld(unknown)
    if action.reward is not None:
        return found
    return replace(found, value=torch.where(bare, torch.nan, found.value))


def best_likely(
    actions: Any,
    safe: Known,
    believed: Callable[[], Iterator[Block]],
    limits: Tensor,
    confidence: float,
    left: Tensor | None,
) -> Recommendation:
    """Return the best distribution believed feasible with ``confidence``.

    Args:
        actions: the set.
        safe: what is known of its safe action, which is surer than any estimate.
        believed: yields estimates and spreads over the set, once a call.
        limits: the thresholds, ``(T, m)``.
        confidence: that its expected costs are feasible.
        left: the actions to choose from, ``(T, N)``; ``None``: all.
    """

    def blocks() -> Iterator[Block]:
        return remaining(safe.among(believed()), left)

    found = recommend_policy(blocks, int(actions.size), limits, confidence)
    return replace(found, x=actions.at(found.index), names=actions.names)
