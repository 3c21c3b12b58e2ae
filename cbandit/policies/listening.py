"""Listeners: the user's functions that hear what happens to a policy."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cbandit._core import checks
from cbandit._core.log import warn
from cbandit.errors import CBanditError


class Event(NamedTuple):
    """Something that happened to a policy.

    Args:
        event: ``"ask"``, ``"tell"``, ``"cancel"``, ``"fit"``, ``"alarm"`` or
            ``"warning"``.
        round: the policy's latest round.
        values: what happened, by name: of an ``ask`` the choice, of a ``tell`` the
            choice's id and what was told, of a warning its text, of an alarm the
            :class:`~cbandit.receipt.alarm.Alarm`.
    """

    event: str
    round: int
    values: Mapping[str, Any]


Listener = Callable[[Event], object]


class Listeners:
    """A policy's listeners, and the events that they have not heard yet.

    Copies and loaded policies have none.
    """

    functions: list[Listener]
    waiting: deque[Event]

    def __new__(cls) -> Listeners:
        """Make it empty. Copying and loading call only this method."""
        new = super().__new__(cls)
        new.functions, new.waiting = [], deque()
        new._turn, new._failed = threading.RLock(), False
        return new

    def __getstate__(self) -> None:
        return None

    def add(self, function: Any) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""
        if not callable(function):
            raise CBanditError(
                f"listen takes a function of one event; got {checks.kind(function)}"
            )
        self.functions.append(function)

        def remove() -> None:
            if function in self.functions:
                self.functions.remove(function)

        return remove

    def note(self, event: str, t: int, **values: Any) -> None:
        """Keep an event until :meth:`deliver`; without listeners do nothing."""
        if self.functions:
            self.waiting.append(Event(event, t, values))

    def deliver(self) -> None:
        """Call the listeners with the events that wait, in their order.

        An exception of a listener is a warning, once, and disturbs nothing.
        """
        with self._turn:
            while self.waiting:
                event = self.waiting.popleft()
                for function in list(self.functions):
                    try:
                        function(event)
                    except Exception as error:  # it is the user's
                        self._report(error)

    def _report(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            warn(f"a listener failed, and is not reported again: {error!r}")

    _turn: threading.RLock
    _failed: bool
