"""The calls of a policy since its checkpoint, so that a save need only add the latest.

Between two whole checkpoints a policy notes each call that may change it or that lets
its engines compute: asks, tells, readers too, in their order, with their arguments and
the time. To load it, the calls are made again. They give the same bits: a policy draws
from its own streams, and reads the time that was noted. What was chosen is noted and
compared, so that a machine that computes otherwise says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from cbandit._core import graph
from cbandit._core.names import Names
from cbandit.choice import Choice
from cbandit.errors import CheckpointError

LONG = 200  # calls, after which a whole checkpoint is read sooner than they are made


class Call(NamedTuple):
    """A call of a policy's method, or a look at a property.

    Args:
        name: the method's.
        arguments: by place, without a choice.
        keywords: by name, likewise.
        time: when it was made, in seconds since 1970.
        choice: the id of the choice that was its first argument, if one was.
        chosen: the actions that it chose, ``(*trials, d)`` each.
    """

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    time: float
    choice: str | None = None
    chosen: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        time: float,
    ) -> Call:
        """Return a call as it is noted."""
        if arguments and isinstance(arguments[0], Choice):
            return cls(name, arguments[1:], keywords, time, arguments[0].id)
        choice = keywords.get("choice")
        if isinstance(choice, Choice):
            keywords = {k: v for k, v in keywords.items() if k != "choice"}
            return cls(name, arguments, keywords, time, choice.id)
        return cls(name, arguments, keywords, time)

    def chose(self, answer: object) -> Call:
        """Return the call with what it chose, if it asked."""
        answers = answer if isinstance(answer, list) else [answer]
        chosen = tuple(each.x for each in answers if isinstance(each, Choice))
        return self._replace(chosen=chosen if self.name == "ask" else ())

    def same(self, answer: object) -> bool:
        """Return whether another answer holds the very same actions."""
        others = self.chose(answer).chosen
        alike = len(self.chosen) == len(others)
        return alike and all(map(torch.equal, self.chosen, others))


class Journal:
    """The calls since a checkpoint that are still to be appended to it.

    Args:
        path: of the checkpoint.
        actions: whether the checkpoint holds the set.
    """

    def __init__(self, path: str, actions: bool = True) -> None:
        self.path, self.actions, self._count = path, actions, 0
        #: whether every call since the checkpoint is here, or in the file
        self.whole = True
        #: one a call
        self.bodies: list[bytes] = []

    def note(self, call: Call) -> None:
        """Add a call; if that is not possible, no more are noted."""
        self._count += 1
        if not self.whole or self._count > LONG:
            self.stop()
            return
        try:
            parts = graph.written(tuple(call))
            body = b"".join(bytes(part) for part in parts)
            calls_in([body], {})
        except Exception:  # a function without a name, or a class that load refuses
            self.stop()
            return
        self.bodies.append(body)

    def stop(self) -> None:
        """Note no more: the next save has to write all."""
        self.whole = False
        self.bodies.clear()


def calls_in(bodies: Sequence[bytes], trust: Mapping[str, Any]) -> list[Call]:
    """Return the calls that were noted."""
    calls = []
    for body in bodies:
        try:
            calls.append(Call(*graph.parsed(body, Names(dict(trust)))))
        except CheckpointError:
            raise
        except Exception as error:  # a forged body fails in many ways
            raise CheckpointError(f"a call cannot be read: {error}") from error
    return calls
