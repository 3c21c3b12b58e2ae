"""The model of stage-wise policies that know their arms by their numbers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit.errors import CBanditError
from cbandit.policies.decision import Asked
from cbandit.policies.safe.action import numbered
from cbandit.policies.safe.draws import must_hold
from cbandit.policies.safe.known import Known
from cbandit.policies.safe.model import Block, Part, Stage
from cbandit.posterior.tally import Tally

__all__ = ["Arms", "own_arms"]


class Arms:
    """Averages and counts of every arm.

    Args:
        actions: the arms.
        subgaussian: ``R`` of reward and costs, ``(T, F)``.
        dtype: of the averages.
    """

    def __init__(self, actions: Any, subgaussian: Tensor, dtype: torch.dtype) -> None:
        self._actions, self._dtype = actions, dtype
        self._r = subgaussian

    def begun(self, safe: Known, alpha: Tensor | None, multiplier: Tensor) -> Stage:
        """Return the state before any pull; see ``Model``."""
        shape = (*self._r.shape, int(self._actions.size))
        tally = Tally.start(shape, self._dtype, self._r.device)
        return Stage(tally, safe, alpha, multiplier)

    def added(
        self, seen: Tally, x: Tensor, arm: Tensor | None, parts: Sequence[Part]
    ) -> Tally:
        """Return the tally after one more pull; see ``Model``."""
        for functions, y, weight in parts:
            seen = seen.added(numbered(arm), y, weight, functions)
        return seen

    def numbers(self, points: Tensor) -> Tensor:
        """Return the numbers of the arms at ``(T, n, d)``."""
        found: Tensor = self._actions.index(points)
        return found

    def believed(self, seen: Tally) -> Iterator[Block]:
        """Yield averages, and the spreads of averages."""
        yield 0, seen.mean, seen.spread * self._r.to(seen.mean).unsqueeze(-1)


def own_arms(name: str, safe: Known, asked: Asked, actions: Any, tau: Tensor) -> Any:
    """Return the trials whose safe arm is seen not to be safe, ``(T,)`` or ``None``.

    An error if the round's set is another one, or leaves the safe arm out.
    """
    if asked.actions is not actions:
        raise CBanditError(
            f"ask(actions=...) needs coordinates that tell something; {name} knows its "
            "arms by their numbers alone and takes ask(among=...)"
        )
    infeasible = safe.unsafe(tau)
    must_hold(asked.mask, safe.action.index)
    return infeasible
