"""Uniformly random actions: what every comparison should beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.ledger import News
from cbandit.policies.policy import Policy
from cbandit.policies.senses import names_of

__all__ = ["Random", "drawn"]


class Random(Policy):
    """Every allowed action with the same probability, whatever came of others.

    On a star these are the tips.

    Args:
        actions: what can be chosen.
        costs: how many costs it is told, or their names; it learns nothing of them.
        common: see below.

    Example:
        >>> import cbandit as cb
        >>> policy = cb.baselines.Random(cb.Finite([[0.0], [1.0]]), costs=1)
        >>> policy.tell(policy.ask(), reward=1.0, cost=0.2)
    """

    name = "Random"

    def __init__(
        self, actions: Any, *, costs: int | Sequence[str] = 0, **common: Any
    ) -> None:
        self.settings = stated(self, locals())
        m: Any = names_of(costs)
        if m is None:
            m = checks.whole("costs", costs, 0, "how many costs there are")
        super().__init__(actions, m, **common)
        self._begin(None)

    def decide(self, state: None, asked: Asked) -> tuple[Decision, None]:
        """Return one draw a trial."""
        on, mask = asked.actions, asked.mask
        count = on.dim if on.continuous else 1
        shares = asked.streams.uniform(count).reshape(self._size, -1)
        found = torch.stack(
            [
                drawn(on, None if mask is None else mask[k % len(mask)], share)
                for k, share in enumerate(shares.to(self.device))
            ]
        )
        if on.continuous:
            return Decision(None, x=found.to(self.dtype), sure=True), state
        return Decision(found, sure=True), state

    def absorb(self, state: None, news: News) -> None:
        """Learn nothing."""


def drawn(asked: Any, allowed: Tensor | None, share: Tensor) -> Tensor:
    """Return a uniform action, from uniform draws ``share``."""
    if asked.continuous:
        x: Tensor = asked.unit.point(share.to(asked.lower))
        if asked.choices is not None:
            row = asked.choices[(share[-1] * len(asked.choices)).long()]
            x[~asked.free] = row
        return x
    if allowed is None:
        return (share[0] * int(asked.size)).long()
    numbers = allowed.nonzero().squeeze(-1)
    return numbers[(share[0] * len(numbers)).long()]
