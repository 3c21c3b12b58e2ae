"""Keep a margin from the limits: ``explore=cb.UCB(..., margin=)``.

A round adds to the costs' estimates ``margin`` times their deviations at the latest
choice: the less was known there, the farther from the limits the next choice stays.
``T`` counts the trials and ``m`` the costs.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor

from cbandit.errors import CBanditError
from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.units import deviations


class Margin(Concern[Tensor | None]):
    """Add a margin to the costs. The state is their deviations at the last choice.

    Args:
        margin: how many deviations to add, ``(T, m)``.
        forget: whether beliefs drop their data when an epoch begins.
    """

    def __init__(self, margin: Tensor, forget: bool) -> None:
        self._margin, self._forget = margin, forget

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy whose exploration has a margin."""
        margin, m = setup.explore.margin, setup.objective.m
        if not (margin.dim() or bool(margin)):
            return None
        if not m or setup.functions != 1 + m:
            raise CBanditError(
                "margin of explore= goes with beliefs about all costs; "
                f"{setup.name} has beliefs about {setup.functions - 1} of {m}"
            )
        return cls(setup.per_cost("margin", margin), setup.forget)

    def start(self) -> None:
        """Return ``None``: there is no choice yet."""

    def open_turn(self, state: Tensor | None, turn: Turn) -> tuple[Tensor | None, Turn]:
        """Set the round's margin from the deviations at the last choice."""
        if state is None or not turn.by_rule:
            return state, turn
        if self._forget and turn.restarted is not None:  # new beliefs: no margin
            state = state * ~turn.restarted.unsqueeze(-1)
        return None, turn._replace(margin=self._margin * state)

    def check_pick(
        self, state: Tensor | None, turn: Turn, pick: Decision
    ) -> tuple[Tensor | None, Decision]:
        """Keep the costs' deviations at the choice as the state."""
        if not turn.by_rule:
            return state, pick
        moments = turn.beliefs.anywhere(turn.point(pick), turn.pending)
        spread = deviations(turn.beliefs.units(), *moments)
        return spread[:, 1:, 0].double(), pick
