"""The concerns of a round: what surrounds a policy's rule, one file each.

A concern is one subject beside the rule, such as outlying readings or budgets. It has a
file in :mod:`cbandit.policies.concerns`, a slot of state, and hooks. These are pure:
they return a new state and change nothing. A policy lists its concerns once, in the
order in which they hear and shape a round. A hook that no concern of a policy defines
costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from cbandit._core.randomness import Position
from cbandit.actions import Actions
from cbandit.policies.choices import Asked, Data, Decision, News

S = TypeVar("S")
Hook = Callable[..., Any]
Past = Callable[[], Mapping[str, Tensor]]


class Concern(Generic[S]):
    """One concern of a round; it defines :meth:`start` and some of the hooks."""

    def start(self) -> S:
        """Return the state before the first round."""
        raise NotImplementedError

    def hear(self, state: S, news: News, beliefs: Any) -> tuple[S, News]:
        """Return the state after feedback, and the feedback that beliefs shall hear.

        Args:
            state: the concern's own.
            news: the feedback of one choice, as earlier concerns left it.
            beliefs: the policy's, without this feedback; ``None``: it has none.
        """
        return state, news

    def limit(self, state: S, limits: Tensor, t: int) -> Tensor:
        """Return the thresholds ``(T, m)`` of round ``t``, which has not been asked."""
        return limits

    def observe(self, state: S, data: Data, beliefs: Any) -> tuple[S, Data]:
        """Return the state after data from before, and what beliefs shall observe."""
        return state, data

    def settle(self, state: S, beliefs: Any, t: int, past: Past) -> S:
        """Return the state after work that is due once all feedback is heard.

        Args:
            state: the concern's own.
            beliefs: the policy's.
            t: the latest round.
            past: returns the table of all rounds, see :meth:`History.table`.
        """
        return state

    def open_epoch(self, state: S, t: int) -> tuple[S, Tensor | None]:
        """Return the state, and the trials ``(T,)`` that start anew in round ``t``."""
        return state, None

    def open_turn(self, state: S, turn: Asked) -> tuple[S, Asked]:
        """Return the state and the round as the rule shall see it."""
        return state, turn

    def choose(self, state: S, turn: Asked) -> Decision | None:
        """Return the choice in the rule's place; ``None``: the rule chooses."""
        return None

    def check_pick(
        self, state: S, turn: Asked, pick: Decision
    ) -> tuple[S, Decision | None]:
        """Return the state and the choice after the rule has chosen.

        ``None``: the choice does not fit, and the round opens again, as ``turn.tight``.
        """
        return state, pick

    def alarm(self, state: S, t: int, together: int) -> dict[str, str]:
        """Return what is wrong, by kind, in words that say what to do.

        Args:
            state: the concern's own.
            t: the latest round.
            together: the largest number of choices that were asked for at once.
        """
        return {}

    def grow(self, state: S, actions: Actions) -> S:
        """Return the state over the policy's set, which has grown."""
        return state

    def lighten(self, state: S, largest: int) -> None:
        """Drop arrays of more than ``largest`` bytes that can be computed again."""


class Hooks(NamedTuple):
    """The slots and methods of the concerns that define a hook, hook by hook."""

    hear: tuple[tuple[int, Hook], ...] = ()
    limit: tuple[tuple[int, Hook], ...] = ()
    observe: tuple[tuple[int, Hook], ...] = ()
    settle: tuple[tuple[int, Hook], ...] = ()
    open_epoch: tuple[tuple[int, Hook], ...] = ()
    open_turn: tuple[tuple[int, Hook], ...] = ()
    choose: tuple[tuple[int, Hook], ...] = ()
    check_pick: tuple[tuple[int, Hook], ...] = ()
    alarm: tuple[tuple[int, Hook], ...] = ()
    grow: tuple[tuple[int, Hook], ...] = ()
    lighten: tuple[tuple[int, Hook], ...] = ()

    @classmethod
    def of(cls, concerns: Iterable[Concern[Any]]) -> Hooks:
        """Return the hooks that these concerns define, in their order."""
        every = list(enumerate(concerns))
        return cls(
            *(
                tuple(
                    (slot, getattr(concern, name))
                    for slot, concern in every
                    if getattr(type(concern), name) is not getattr(Concern, name)
                )
                for name in cls._fields
            )
        )


class Now(NamedTuple):
    """The part of a policy that rounds change, replaced as a whole.

    Args:
        t: the latest round asked for.
        state: what the policy's rule keeps.
        position: where the streams of draws are.
        heard: the serial number of the last item of feedback in ``state``.
        settled: whether the work due by this round is done.
        concerns: the state of each of the policy's concerns, in their order.
    """

    t: int
    state: Any
    position: Position
    heard: int
    settled: bool = False
    concerns: tuple[Any, ...] = ()
