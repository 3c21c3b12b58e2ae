"""The distribution over a policy's own set that is to be deployed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from cbandit.policies.failures import without
from cbandit.policies.safe.known import Known
from cbandit.policies.safe.model import Block
from cbandit.recommend import Recommendation, recommend_policy

__all__ = ["best_likely"]


def best_likely(
    policy: Any,
    safe: Known,
    believed: Callable[[], Iterator[Block]],
    limits: Tensor,
    confidence: float,
) -> Recommendation:
    """Return the best distribution believed feasible with ``confidence``.

    Args:
        policy: whose set it is over; actions that have failed are left out.
        safe: what is known of its safe action, which is surer than any estimate.
        believed: yields estimates and spreads over the set, once a call.
        limits: the thresholds, ``(T, m)``.
        confidence: that its expected costs are feasible.
    """
    actions = policy.actions

    def blocks() -> Iterator[Block]:
        return without(policy, safe.among(believed()))

    found = recommend_policy(blocks, int(actions.size), limits, confidence)
    return replace(found, x=actions.at(found.index), names=actions.names)
