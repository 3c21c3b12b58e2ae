"""The interface of timings, which say when feedback enters the beliefs.

A policy has one timing. It absorbs feedback, does the work that is due before the next
round, and says how wide bounds are. ``T`` counts the trials, ``m`` the costs, ``d`` the
coordinates of an action, and ``F`` the functions that have a belief.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from torch import Tensor

from cbandit.confidence.bound import BoundWidths, Widths
from cbandit.policies.choices import News, Place
from cbandit.posterior.log import Observation


class Held(NamedTuple):
    """The feedback that a timing keeps beside the beliefs.

    Args:
        too_late: how many values came too late to count, ``(T,)``.
        partial: feedback for some trials only, not yet in the beliefs.
        recent_points: the last choices ``(T, d)``; empty if the timing needs none.
    """

    too_late: Tensor
    partial: tuple[Observation, ...] = ()
    recent_points: tuple[Tensor, ...] = ()


class Timing(ABC):
    """A rule for when feedback counts. Its methods do not change their arguments.

    ``beliefs`` are the policy's, and ``held`` is what the timing keeps beside them.
    """

    #: how many rounds the beliefs remember; ``None``: all
    memory: int | None = None
    #: whether a choice enters the beliefs when it is made
    adds_pending = False
    #: the error for ``tell(noise=)`` and ``observe(noise=)``; empty: they are allowed
    no_noise = ""
    #: the error for beliefs with ``outcome=``; empty: they are allowed
    no_outcome = ""

    @abstractmethod
    def absorb(self, beliefs: Any, held: Held, news: News) -> tuple[Any, Held]:
        """Return ``beliefs`` and ``held`` after new feedback of one choice."""

    def due(self, beliefs: Any, held: Held, t: int) -> tuple[Any, Held]:
        """Return ``beliefs`` and ``held`` after the work due before round ``t + 1``."""
        return beliefs, held

    def add_pending(
        self, beliefs: Any, held: Held, place: Place, limits: Tensor
    ) -> tuple[Any, Held]:
        """Return ``beliefs`` and ``held`` after a choice, before its feedback.

        Args:
            beliefs: the policy's.
            held: what the timing keeps beside them.
            place: where the choice is, and its round.
            limits: the thresholds of the choice's round, ``(T, m)``.
        """
        return beliefs, held

    def adapt(self, widths: Widths) -> Widths:
        """Return a user's widths, changed to be valid under this timing."""
        return widths

    def bound_count(self, functions: int) -> int:
        """Return how many bounds must hold together: the ``c`` in RKHS widths."""
        return functions

    def width(
        self, t: int, widths: BoundWidths, bound_count: int, beliefs: Any, held: Held
    ) -> Tensor:
        """Return the widths of the bounds of round ``t``, ``(T, F)``.

        Args:
            t: the round.
            widths: the user's, as :meth:`adapt` returns them.
            bound_count: how many bounds must hold together.
            beliefs: the policy's.
            held: what the timing keeps beside them.
        """
        return widths.around(beliefs, t, bound_count)

    def allowance(self, t: int) -> Tensor | None:
        """Return what a drift adds to the bounds' widths in round ``t``, ``(T, F)``.

        ``None``: nothing drifts. A drift that never changes is the same tensor always.
        """
        return None
