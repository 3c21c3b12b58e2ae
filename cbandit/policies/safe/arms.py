"""Policies that count how often each arm was played, and average what came of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit.beliefs.counts import Tally
from cbandit.errors import CBanditError
from cbandit.policies.safe.stagewise import Stagewise, must_hold

__all__ = ["ArmPolicy"]


class ArmPolicy(Stagewise):
    """Averages and counts of every arm; arms are known by their numbers alone.

    Args:
        arguments: see :class:`~cbandit.policies.safe.stagewise.Stagewise`.
    """

    def __init__(self, *arguments: Any, **common: Any) -> None:
        super().__init__(*arguments, **common)
        shape = (self._size, 1 + self.m, int(self.actions.size))
        self._tally = Tally(shape, self.dtype, self.device)

    def _safe_round(self, t: int, asked: Any, mask: Tensor | None) -> Tensor:
        """Trials whose safe arm is seen not to be safe; an error if it is left out."""
        if asked is not self.actions:
            raise CBanditError(
                f"ask(actions=...) needs coordinates that tell something; {self.name} "
                "knows its arms by their numbers alone and takes ask(among=...)"
            )
        infeasible = self._safe.check(self._limits(t))
        must_hold(mask, self._safe.index)
        return infeasible

    def _learn(
        self,
        functions: slice,
        x: Tensor,
        arm: Tensor | None,
        y: Tensor,
        weight: Tensor | None,
    ) -> None:
        assert arm is not None
        weight = torch.ones_like(y) if weight is None else weight
        self._tally.add(functions, arm, y, weight)
