"""Policies still written with ``_decide`` and ``_absorb``, which set attributes.

Temporary: gone once every policy is two functions of its state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit.choice import Choice
from cbandit.explore import UCB
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.gp import GPPolicy
from cbandit.policies.ledger import News, Told
from cbandit.policies.policy import Policy
from cbandit.policies.state import GPState
from cbandit.policies.suits import believed_costs
from cbandit.posterior.look import Look, estimated

__all__ = ["Constrained", "Stepwise", "StepwiseGP"]


class Stepwise(Policy):
    """A policy whose state is in its attributes."""

    _multiplier: Tensor | None = None

    @property
    def multiplier(self) -> Tensor:
        """As the next ``ask`` will use it, ``(*trials, m)``; empty: there is none."""
        if self._multiplier is None:
            return super().multiplier
        return self._outside(self._multiplier.clone())

    def _catch_up(self) -> None:
        self._settled()

    _deliver = _catch_up

    def decide(self, state: Any, asked: Asked) -> tuple[Decision, Any]:
        """Call the old rule."""
        before = dict(vars(self))
        try:
            decision = self._decide(
                asked.t, asked.actions, asked.mask, asked.observed_costs
            )
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise
        decision.sure = True
        return decision, state

    def absorb(self, state: Any, news: News) -> Any:
        """Call the old hook."""
        if news.rewards or news.costs:
            self._absorb(news.choice, news.rewards, news.costs)
        return state

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        raise NotImplementedError

    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        raise NotImplementedError


class StepwiseGP(GPPolicy):
    """A GP policy whose further state is in its attributes."""

    splits = False
    _multiplier: Tensor | None = None
    _asked: Asked

    @property
    def multiplier(self) -> Tensor:
        """As the next ``ask`` will use it, ``(*trials, m)``; empty: there is none."""
        if self._multiplier is None:
            shape = (*self.batch_shape, 0)
            return torch.zeros(shape, dtype=torch.float64, device=self.device)
        return self._outside(self._multiplier.clone())

    def _catch_up(self) -> None:
        self._settled()

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Call the old rule."""
        before = dict(vars(self))
        self._asked = asked
        try:
            decision = self._decide(
                asked.t, asked.actions, asked.mask, asked.observed_costs
            )
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise
        decision.sure = True
        return decision, state

    def absorb(self, state: GPState, news: News) -> GPState:
        """Call the old hook, then the new one."""
        if news.rewards or news.costs:
            self._absorb(news.choice, news.rewards, news.costs)
        return super().absorb(state, news)

    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        pass

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        raise NotImplementedError

    def _coefficient(self, t: int) -> Tensor:  # type: ignore[override]
        return super()._coefficient(self._now.state, self._asked)

    def _looks(self, asked: Any) -> Iterator[tuple[int, Tensor, Tensor]]:  # type: ignore[override]
        return super()._looks(self._now.state, self._asked)

    def _estimates(
        self, coefficient: Tensor, limits: Tensor, asked: Any
    ) -> Iterator[tuple[int, Tensor]]:
        look = Look(
            coefficient,
            self._estimating.offset(self, self._asked.t, limits),
            self._estimating.bound,
            "feasible",
        )
        for start, mean, spread in self._looks(asked):
            yield start, estimated(look, mean, spread)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_asked", None)
        return state


class Constrained(StepwiseGP):
    """A policy with costs and confidence bounds, and no multiplier."""

    continuous = False
    explores = (UCB,)

    def __init__(
        self, actions: Any, *, reward: Any, costs: Any, explore: Any, **common: Any
    ) -> None:
        both = {"reward": reward, "costs": believed_costs(costs)}
        super().__init__(actions, **both, explore=explore, **common)
