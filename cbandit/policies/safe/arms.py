"""The model of stage-wise policies that know their arms by their numbers alone.

Averages and counts of every arm, and the bounds of arms that were never pulled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbandit.beliefs.counts import Counts
from cbandit.errors import CBanditError
from cbandit.policies.decision import Asked
from cbandit.policies.safe.action import numbered
from cbandit.policies.safe.draws import must_hold
from cbandit.policies.safe.known import Known
from cbandit.policies.safe.model import Block, Part, Stage
from cbandit.posterior.tally import Tally

__all__ = ["Arms", "Unpulled", "own_arms"]


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

    def has_data(self, seen: Tally) -> Tensor:
        """Return which arms were pulled, their outcomes all told, ``(T, N)``."""
        return (seen.count > 0).all(1)

    def believed(self, seen: Tally) -> Iterator[Block]:
        """Yield averages, and the spreads of averages."""
        yield 0, seen.mean, seen.spread * self._r.to(seen.mean).unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class Unpulled:
    """Bounds by what is stated of means, where an arm has no pull to say more.

    Args:
        least: bounds of arms never pulled are at least that, ``(T, F, 1)``: ``r_max``,
            and the largest mean cost that is stated.
        most: no bound of a cost is above this, ``(F, 1)``; ``None``: none is stated.
        unknown: the costs of which nothing is stated, ``(F, 1)``; ``None``: there is
            no such cost.
    """

    least: Tensor
    most: Tensor | None
    unknown: Tensor | None

    @classmethod
    def of(cls, beliefs: Sequence[Counts], largest: Tensor, like: Tensor) -> Unpulled:
        """Return the bounds that beliefs about reward and costs state.

        Args:
            beliefs: the reward's first.
            largest: ``r_max``, ``(T,)``.
            like: a tensor ``(T, F)``.
        """
        tops = [-math.inf if one.means is None else one.means[1] for one in beliefs]
        top = like.new_tensor(tops).unsqueeze(-1)
        unknown = top.isinf()
        unknown[0] = False
        most = top.masked_fill(unknown, math.inf)
        most[0] = math.inf
        least = top.expand(len(like), -1, -1).clone()
        least[:, 0, 0] = largest
        return cls(
            least,
            most if bool(most.isfinite().any()) else None,
            unknown if bool(unknown.any()) else None,
        )

    def bound(self, u: Tensor, count: Tensor, at: Tensor) -> None:
        """Write them into fresh bounds ``u`` of reward and costs, ``(T, F, K)``.

        An arm with a cost of which nothing is known gets no chance to be played.

        Args:
            u: the reward's first.
            count: pulls of every arm, ``(T, F, K)``.
            at: the safe arm, which is played whatever is known of it, ``(T,)``.
        """
        unseen = count == 0
        floor = torch.where(unseen, self.least.to(u), -torch.inf)
        torch.maximum(u, floor, out=u)
        if self.most is not None:
            torch.minimum(u, self.most.to(u), out=u)
        if self.unknown is not None:
            hidden = (unseen & self.unknown).any(1)
            hidden = hidden.scatter(-1, at.unsqueeze(-1), False)
            u[:, 0].masked_fill_(hidden, -torch.inf)


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
