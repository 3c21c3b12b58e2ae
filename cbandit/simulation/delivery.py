"""Late feedback, as letters that wait for the round in which they arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cbandit.choice import Choice

if TYPE_CHECKING:
    from cbandit.simulation.parts import Policy


@dataclass(frozen=True, eq=False)
class Letter:
    """The feedback of one choice that arrives in one round.

    Args:
        choice: the policy's choice.
        reward: the reward, ``(*trials,)``.
        cost: the costs, ``(*trials, m)``.
        arrives: which trials' rewards, and which trials' costs, are in this letter,
            bool ``(2, *trials)``.
    """

    choice: Choice
    reward: Tensor
    cost: Tensor
    arrives: Tensor

    def read(self, policy: Policy) -> None:
        """Tell the policy the feedback in this letter."""
        rewarded, charged = self.arrives
        charged = charged & bool(policy.m)
        complete = rewarded & charged
        tell(policy, self.choice, complete, reward=self.reward, cost=self.cost)
        tell(policy, self.choice, rewarded & ~complete, reward=self.reward)
        tell(policy, self.choice, charged & ~complete, cost=self.cost)


class Post:
    """Feedback on its way; each trial's reward and cost may arrive in another round."""

    def __init__(self) -> None:
        self.calendar: dict[int, list[Letter]] = {}  # by the round of arrival

    def __bool__(self) -> bool:
        return bool(self.calendar)

    def send(
        self,
        t: int,
        choice: Choice,
        reward: Tensor,
        cost: Tensor,
        delays: Tensor,
        failed: Tensor | None = None,
    ) -> None:
        """Send the feedback of a choice on its way.

        Args:
            t: the round that is being played.
            choice: the choice made in it.
            reward: the reward, ``(*trials,)``.
            cost: the costs, ``(*trials, m)``.
            delays: rounds until the reward and the cost arrive, ``(2, *trials)``;
                infinite: never.
            failed: trials ``(*trials,)`` whose feedback never arrives; ``None``: none.
        """
        if choice.idle is not None:
            delays = delays.masked_fill(choice.idle.cpu(), math.inf)
        if failed is not None:
            delays = delays.masked_fill(failed, math.inf)
        for delay in delays[delays.isfinite()].unique().tolist():
            letter = Letter(choice, reward, cost, delays == delay)
            self.calendar.setdefault(t + int(delay), []).append(letter)

    def deliver(self, t: int, policy: Policy) -> None:
        """Tell the policy all feedback that arrives at the end of round ``t``."""
        for letter in self.calendar.pop(t, ()):
            letter.read(policy)


def tell(policy: Policy, choice: Choice, where: Tensor | None, **feedback: Any) -> None:
    """Tell the policy the feedback of trials ``where (*trials,)``; ``None``: of all."""
    if where is None or bool(where.all()):
        policy.tell(choice, **feedback)
    elif bool(where.any()):
        policy.tell(choice, **feedback, where=where)
