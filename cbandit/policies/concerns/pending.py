"""Count outstanding choices as told at their means: ``pending="hallucinate"``.

Beliefs then have the variance after these outcomes, and the mean before (GP-BUCB). So
several choices in a row are at different places.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple, Self

from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.choices import Entry
from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Turn
from cbandit.posterior.pending import Ahead, join_alike


class Unanswered(NamedTuple):
    """The outstanding choices of the latest round.

    Args:
        choices: by round, the choice's entry in the ledger, and the observation that
            beliefs anticipate.
    """

    choices: dict[int, tuple[Entry, Ahead]]


class Pending(Concern[Unanswered]):
    """Put the outstanding choices into each round, for its beliefs to count."""

    keywords: ClassVar = {
        "pending": """``"ignore"`` outstanding choices, or ``"hallucinate"``: count
        their variance and keep their mean, so that several in a row are several places.
        ``None``: the latter for GPUCB, CKB, RPOL and CONFIG with UCB and without
        ``Delayed``, the former elsewhere."""
    }

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy with ``pending="hallucinate"``."""
        pending, abilities = setup.keywords.get("pending"), setup.abilities
        bounds, delayed = isinstance(setup.explore, UCB), setup.timing.adds_pending
        if pending is None:
            able = abilities.hallucinates and bounds and not delayed
            pending = "hallucinate" if able else "ignore"
        checks.one_of("pending", pending, "ignore", "hallucinate", other="None")
        if pending == "ignore":
            return None
        if not bounds:
            raise CBanditError(
                "pending='hallucinate' goes with explore=cb.UCB(...): draws already "
                f"spread choices apart; got cb.{setup.explore.name}"
            )
        if delayed:
            raise CBanditError(
                "feedback=cb.Delayed(...) counts outstanding rounds itself: it goes "
                "with pending='ignore'; got pending='hallucinate'"
            )
        if "hallucinate" in abilities.refuses:
            reason = abilities.refuses["hallucinate"]
            raise CBanditError(f"{setup.name} takes no {pending=}: {reason}")
        return cls(setup)

    def start(self) -> Unanswered:
        """Return the state without outstanding choices."""
        return Unanswered({})

    def open_turn(self, state: Unanswered, turn: Turn) -> tuple[Unanswered, Turn]:
        """Put the outstanding choices into the round."""
        waiting = turn.waiting
        if not waiting:
            return state if not state.choices else Unanswered({}), turn
        window = self.setup.timing.memory
        first = -math.inf if window is None else turn.t - window
        now: dict[int, tuple[Entry, Ahead]] = {}
        for entry in waiting:
            if (t := entry.choice.t) >= first:
                known = state.choices.get(t)
                if known is None or known[0] is not entry:
                    place, waits = entry.place, ~entry.came
                    known = entry, Ahead(place.keys, place.x, waits.mT.tolist())
                now[t] = known
        ahead = [each for _, each in now.values()]
        return Unanswered(now), turn._replace(
            pending=join_alike(ahead) if ahead else []
        )
