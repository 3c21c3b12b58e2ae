"""The distribution over a policy's own set that is to be deployed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from cbandit.policies.failures import without
from cbandit.policies.safe.model import Block
from cbandit.recommend import Recommendation, recommend_policy

__all__ = ["best_likely"]


def best_likely(
    policy: Any,
    blocks: Callable[[], Iterator[Block]],
    limits: Tensor,
    confidence: float,
) -> Recommendation:
    """Return the best distribution believed feasible with ``confidence``.

    Args:
        policy: whose set it is over; actions that have failed are left out.
        blocks: yields estimates and spreads over the set, once a call.
        limits: the thresholds, ``(T, m)``.
        confidence: that its expected costs are feasible.
    """
    actions = policy.actions
    size = int(actions.size)
    found = recommend_policy(
        lambda: without(policy, blocks()), size, limits, confidence
    )
    return replace(found, x=actions.at(found.index), names=actions.names)
