"""The calls of a policy since its checkpoint, so that a save only adds the latest ones.

Between two whole checkpoints a policy notes each call that may change it or that makes
its engines compute (asks, tells, and reads too) in order, with arguments and time. A
load repeats the calls. They give the same bits, as a policy draws from its own streams
and reads the time that was noted. The actions chosen are noted and compared, so that a
machine that computes differently raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from cbandit._core import graph
from cbandit._core.names import Names
from cbandit.choice import Choice
from cbandit.errors import CheckpointError

LONG = 200  # calls, beyond which reading a whole checkpoint is faster


class Call(NamedTuple):
    """A call of a policy's method, or a read of a property.

    Args:
        name: the method's name.
        arguments: the positional ones, without a choice.
        keywords: the keyword arguments.
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
        """Return the record of a call."""
        if arguments and isinstance(arguments[0], Choice):
            return cls(name, arguments[1:], keywords, time, arguments[0].id)
        choice = keywords.get("choice")
        if isinstance(choice, Choice):
            keywords = {k: v for k, v in keywords.items() if k != "choice"}
            return cls(name, arguments, keywords, time, choice.id)
        return cls(name, arguments, keywords, time)

    def chose(self, answer: object) -> Call:
        """Return the call with the actions that it chose, if it was an ``ask``."""
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
        #: whether it holds, with the file, every call since the checkpoint
        self.whole = True
        #: the encoded calls
        self.bodies: list[bytes] = []

    def note(self, call: Call) -> None:
        """Add a call; if it cannot be encoded, stop noting."""
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
        """Stop noting: the next save has to write the whole checkpoint."""
        self.whole = False
        self.bodies.clear()


def calls_in(bodies: Sequence[bytes], trust: Mapping[str, Any]) -> list[Call]:
    """Return the calls encoded in a journal."""
    calls = []
    for body in bodies:
        try:
            calls.append(Call(*graph.parsed(body, Names(dict(trust)))))
        except CheckpointError:
            raise
        except Exception as error:  # a forged body fails in many ways
            raise CheckpointError(f"a call cannot be read: {error}") from error
    return calls
