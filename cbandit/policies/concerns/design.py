"""Play a space-filling design in the first rounds: the keyword ``design=``.

The design's points depend on seed and trial alone, so that policies with the same seed
start alike. On numbered actions a round plays the action nearest to its point that no
earlier point took. On a box it plays the point, or if that has failed, a spare point of
the sequence. ``T`` counts the trials, ``d`` the coordinates of an action, ``n`` points.
"""

from __future__ import annotations

from typing import Any, Self

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
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Decision, Turn

POINTS_PER_ROUND = 8  # on a box; the first is played unless it has failed


class Design(Concern[Any]):
    """Choose actions in the rule's place during the design; the state is the set."""

    needs_beliefs = False
    in_studies = False

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy with ``design=``; ``None``: it has none."""
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
        return cls(setup)

    def start(self) -> Any:
        """Return the set that the design fills."""
        return self.setup.actions

    def choose(self, state: Any, turn: Turn) -> Decision | None:
        """Return the design's choice; ``None``: the design is over."""
        if turn.purpose != "design":
            return None
        setup, count = self.setup, self.setup.keywords["design"]
        streams = Streams(setup.seed, setup.trials, "design")
        z = design_points(state.menu, POINTS_PER_ROUND * count, streams)
        if not turn.actions.continuous:
            return Decision(_design_number(state, z[:, : turn.t], turn), sure=True)
        points = z[:, turn.t - 1 :: count]
        x = designed_point(turn.actions, points).to(setup.dtype)
        return Decision(None, x=_first_allowed(x, turn), sure=True)

    def grow(self, state: Any, actions: Actions) -> Any:
        """Return the policy's set, which has grown, as the new state."""
        return actions


def _design_number(actions: Any, points: Tensor, turn: Turn) -> Tensor:
    """Return the number ``(T,)`` of the action for the round's point of the design.

    ``actions`` is the policy's set; ``points (T, n, d)`` are all rounds' so far.
    """
    menu, on, mask, shown = actions.menu, turn.actions, turn.mask, turn.shown
    if shown is None:
        return designed_number(menu, points, on, mask)
    if on is not actions.domain:
        return designed_number(menu, points, menu, mask)
    # the numbers of this context's choices on the grid of choices and contexts
    numbers = on.index(shown.space.candidates(shown.values)).expand(len(points), -1)
    if mask is not None:
        mask = mask.expand(len(points), -1).gather(1, numbers)
    number = designed_number(menu, points, menu, mask).unsqueeze(-1)
    out: Tensor = numbers.gather(1, number).squeeze(-1)
    return out


def _first_allowed(x: Tensor, turn: Turn) -> Tensor:
    """Return the first of the points ``x (T, n, d)`` that has not failed, ``(T, d)``.

    If all have failed, return the first one.
    """
    allowed = turn.allows(x)
    if allowed is None:
        return x[:, 0]
    first = allowed.to(torch.uint8).argmax(1).view(-1, 1, 1)
    return x.gather(1, first.expand(-1, 1, x.shape[-1]))[:, 0]
