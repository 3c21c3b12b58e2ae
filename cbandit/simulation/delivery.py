"""Late feedback: letters that wait for the round in which they arrive."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit.choice import Choice

if TYPE_CHECKING:
    from cbandit.simulation.parts import Policy

__all__ = ["Post", "tell"]


class Post:
    """Feedback on its way. Each trial's reward and cost may arrive in its own round."""

    def __init__(self) -> None:
        # arrival -> round sent -> trials whose reward, and whose cost, arrive
        self.calendar: dict[int, dict[int, dict[str, Tensor]]] = {}
        self.letters: dict[int, tuple[Choice, Tensor, Tensor]] = {}
        self.last: dict[int, int] = {}  # round sent -> its last arrival

    def __bool__(self) -> bool:
        return bool(self.calendar)

    def send(
        self,
        t: int,
        choice: Choice,
        reward: Tensor,
        cost: Tensor,
        delays: tuple[Tensor, Tensor],
        failed: Tensor | None = None,
    ) -> None:
        """Post the feedback of a choice.

        Args:
            t: the round that is being played.
            choice: made in it.
            reward: ``(*trials,)``.
            cost: ``(*trials, m)``.
            delays: rounds until the reward and the cost arrive, ``(*trials,)`` each;
                infinite: never.
            failed: trials ``(*trials,)`` of which nothing arrives; ``None``: none.
        """
        arrivals = []
        for kind, delay in zip(("reward", "cost"), delays, strict=True):
            if failed is not None:
                delay = delay.masked_fill(failed, math.inf)
            for wait in sorted(set(delay.flatten().tolist())):
                if wait == math.inf:
                    continue
                due = t + int(wait)
                arrivals.append(due)
                today = self.calendar.setdefault(due, {})
                today.setdefault(t, {})[kind] = delay == wait
        if arrivals:
            self.letters[t] = (choice, reward, cost)
            self.last[t] = max(arrivals)

    def deliver(self, t: int, policy: Policy) -> None:
        """Tell the policy all that arrives at the end of round ``t``."""
        for sent, due in sorted(self.calendar.pop(t, {}).items()):
            choice, reward, cost = self.letters[sent]
            nobody = torch.zeros(tuple(reward.shape), dtype=torch.bool)
            rewarded = due.get("reward", nobody)
            charged = due.get("cost", nobody) if policy.m else nobody
            both = rewarded & charged
            tell(policy, choice, both, reward=reward, cost=cost)
            tell(policy, choice, rewarded & ~both, reward=reward)
            tell(policy, choice, charged & ~both, cost=cost)
            if self.last[sent] == t:
                del self.letters[sent], self.last[sent]


def tell(policy: Policy, choice: Choice, where: Tensor | None, **feedback: Any) -> None:
    """Tell the feedback of the trials ``where (*trials,)``; ``None``: of all."""
    if where is None or bool(where.all()):
        policy.tell(choice, **feedback)
    elif bool(where.any()):
        policy.tell(choice, **feedback, where=where)
