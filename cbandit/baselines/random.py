"""Uniformly random actions: what every comparison should beat."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.errors import CBanditError
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.ledger import News
from cbandit.policies.policy import Policy
from cbandit.policies.senses import names_of

__all__ = ["Random", "drawn"]

TRIES, GOLDEN = 1000, 0.5 * (5**0.5 - 1)  # draws around what has failed, and their step


class Random(Policy):
    """Every allowed action with the same probability, whatever came of others.

    On a star these are the tips.

    Args:
        actions: what can be chosen.
        costs: how many costs it is told, or their names; it learns nothing from them.
        common: see below.

    Example:
        >>> import cbandit as cb
        >>> policy = cb.baselines.Random(cb.Finite([[0.0], [1.0]]), costs=1)
        >>> policy.tell(policy.ask(), reward=1.0, cost=0.2)
    """

    name = "Random"

    def __init__(self, actions: Any, *, costs: Any = 0, **common: Any) -> None:
        self.settings = stated(self, locals())
        m: Any = names_of(costs)
        if m is None:
            m = checks.whole("costs", costs, 0, "how many costs there are")
        super().__init__(actions, m, **common)
        self._begin(None)

    def decide(self, state: None, asked: Asked) -> tuple[Decision, None]:
        """Return one draw a trial."""
        on = asked.actions
        count = on.dim if on.continuous else 1
        shares = asked.streams.uniform(count).reshape(self._size, -1)
        found = torch.stack(
            [drawn(asked, k, share) for k, share in enumerate(shares.to(self.device))]
        )
        if on.continuous:
            return Decision(None, x=found.to(self.dtype), sure=True), state
        return Decision(found, sure=True), state

    def absorb(self, state: None, news: News) -> None:
        """Learn nothing."""


def drawn(asked: Asked, trial: int, share: Tensor) -> Tensor:
    """Return a uniform action of one trial, from uniform draws ``share``."""
    on, mask, barred = asked.actions, asked.mask, asked.barred
    if on.continuous:
        for _ in range(TRIES):
            x: Tensor = on.unit.point(share.to(on.lower))
            if on.choices is not None:
                row = on.choices[(share[-1] * len(on.choices)).long()]
                x[~on.free] = row
            if barred is None or not bool(barred.of(trial).holds(x.unsqueeze(0))):
                return x
            share = (share + GOLDEN) % 1
        raise CBanditError("nothing is left to ask for: all that was drawn has failed")
    if mask is None:
        return (share[0] * int(on.size)).long()
    numbers = mask[trial % len(mask)].nonzero().squeeze(-1)
    return numbers[(share[0] * len(numbers)).long()]
