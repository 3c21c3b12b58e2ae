"""Leave out actions beyond the set's known linear limits: ``linear=``, ``where=``.

On numbered actions this is a mask. On a box the search itself stays within the limits.
``T`` counts the trials and ``N`` the actions of a set.
"""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor

from cbandit._core import devices
from cbandit.actions import Actions
from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Turn

REASON = "is beyond the known limits"


class WithinLimits:
    """The actions of a set that keep its linear limits.

    Args:
        menu: the policy's set of choices, without contexts.
    """

    def __init__(self, menu: Any) -> None:
        self.menu = menu
        self._mask: Tensor | None = None  # computed when it is needed, never saved

    def __getstate__(self) -> dict[str, Any]:
        return {"menu": self.menu, "_mask": None}

    def mask(self) -> Tensor:
        """Return which actions of the menu keep the limits, ``(1, N)`` bool."""
        if self._mask is None:
            inside: Tensor = self.menu.within_limits()
            self._mask = devices.put(inside.unsqueeze(0), self.menu.axes[0].device)
        return self._mask


class InputLimits(Concern[WithinLimits]):
    """Leave out what lies beyond the linear limits of the policy's set."""

    needs_beliefs = False

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy whose set has linear limits."""
        return None if setup.actions.menu.linear is None else cls(setup)

    def start(self) -> WithinLimits:
        """Return the actions of the policy's set that keep the limits."""
        return WithinLimits(self.setup.actions.menu)

    def grow(self, state: WithinLimits, actions: Actions) -> WithinLimits:
        """Return the same for a set that has grown."""
        return WithinLimits(actions.menu)

    def open_turn(self, state: WithinLimits, turn: Turn) -> tuple[WithinLimits, Turn]:
        """Leave out the actions beyond the limits."""
        on, shown = turn.actions, turn.shown
        if turn.apart:
            points = on.block(0, on.size)
            allowed = state.menu.linear.holds(points).reshape(-1, on.size)
            return state, turn.only(allowed, REASON)
        if on.continuous:
            return state, turn
        mask = state.mask()
        if shown is not None and on is shown.space.domain:  # choices x contexts
            mask = mask.repeat_interleave(on.size // mask.shape[-1], -1)
        return state, turn.only(mask, REASON)
