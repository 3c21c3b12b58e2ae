"""Play a space-filling design in the first rounds: the keyword ``design=``.

Its points are drawn from seed and trial alone, so that policies with one seed start
alike. On numbered actions a round plays the action nearest to its point, of those that
no earlier point took. On a box it plays the point; where that has failed, the next
point of the sequence that belongs to no other round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.actions import (
    Actions,
    design_points,
    designed_number,
    designed_point,
)
from cbandit.errors import CBanditError
from cbandit.policies.round import Concern
from cbandit.policies.turn import Decision, Turn

if TYPE_CHECKING:
    from cbandit.policies.setup import Setup

POINTS_PER_ROUND = 8  # on a box; the first is played unless it has failed


class Design(Concern[Any]):
    """Choose in the rule's place while the design lasts. Its state is the policy's set.

    Args:
        actions: the policy's set.
        count: how many rounds the design has.
        seed: the policy's.
        trials: the trials' numbers; ``None``: there is no trials axis.
        dtype: of the points of a box.
    """

    needs_beliefs = False

    def __init__(
        self,
        actions: Any,
        count: int,
        seed: int,
        trials: range | None,
        dtype: torch.dtype,
    ) -> None:
        self._actions, self._count = actions, count
        self._seed, self._trials, self._dtype = seed, trials, dtype

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the design of a policy that begins with one."""
        count, actions = setup.keywords["design"], setup.actions
        if not count:
            return None
        if "design" in setup.abilities.refuses:
            raise CBanditError(
                f"{setup.name} takes no design= ({count}): "
                f"{setup.abilities.refuses['design']}"
            )
        if not (actions.finite or actions.continuous):
            raise CBanditError(
                f"design= ({count}) needs numbered actions or a Box; got {actions!r}"
            )
        return cls(actions, count, setup.seed, setup.trials, setup.dtype)

    def start(self) -> Any:
        """Return the set that the design fills."""
        return self._actions

    def choose(self, state: Any, turn: Turn) -> Decision | None:
        """Return the action of the design; ``None``: it is the rule's turn."""
        if turn.purpose != "design":
            return None
        streams = Streams(self._seed, self._trials, "design")
        z = design_points(state.menu, POINTS_PER_ROUND * self._count, streams)
        if not turn.actions.continuous:
            return Decision(_design_number(state, z[:, : turn.t], turn), sure=True)
        points = z[:, turn.t - 1 :: self._count]
        x = designed_point(turn.actions, points).to(self._dtype)
        return Decision(None, x=_first_allowed(x, turn), sure=True)

    def grow(self, state: Any, actions: Actions) -> Any:
        """Return the set that has grown."""
        return actions


def _design_number(actions: Any, z: Tensor, turn: Turn) -> Tensor:
    """Return the number of the action for the last point of ``z (T, n, d)``, ``(T,)``.

    ``actions`` are the policy's set.
    """
    menu, on, mask, shown = actions.menu, turn.actions, turn.mask, turn.shown
    if shown is None:
        return designed_number(menu, z, on, mask)
    if on is not actions.domain:
        return designed_number(menu, z, menu, mask)
    # the choices' numbers on the grid of choices and contexts
    numbers = on.index(shown.space.candidates(shown.values)).expand(len(z), -1)
    if mask is not None:
        mask = mask.expand(len(z), -1).gather(1, numbers)
    number = designed_number(menu, z, menu, mask).unsqueeze(-1)
    out: Tensor = numbers.gather(1, number).squeeze(-1)
    return out


def _first_allowed(x: Tensor, turn: Turn) -> Tensor:
    """Return the first of the points ``x (T, n, d)`` that has not failed, ``(T, d)``.

    If all have failed, it is the first one.
    """
    allowed = turn.allows(x)
    if allowed is None:
        return x[:, 0]
    first = allowed.to(torch.uint8).argmax(1).view(-1, 1, 1)
    return x.gather(1, first.expand(-1, 1, x.shape[-1]))[:, 0]
