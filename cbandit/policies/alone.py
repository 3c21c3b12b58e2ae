"""One thread at a time in a policy, and one process."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from cbandit.errors import CBanditError

__all__ = ["Door", "alone"]

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Door:
    """The lock of a policy, and the process that came through it first.

    Neither can be copied: a copy of a policy, or one that is loaded, has its own.
    """

    __slots__ = ("lock", "process")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.process: int | None = None

    def __reduce__(self) -> tuple[type[Door], tuple[()]]:
        return Door, ()


def alone(
    method: Callable[Concatenate[Any, Given], Answer],
) -> Callable[Concatenate[Any, Given], Answer]:
    """Let ``method`` of a policy wait until no other thread is inside of it."""

    @functools.wraps(method)
    def entered(policy: Any, /, *given: Given.args, **named: Given.kwargs) -> Answer:
        door, process = policy._door, os.getpid()
        # a fork copies a lock as it stands, and draws that both would make
        if door.process != process:
            if door.process is not None:
                raise CBanditError(
                    f"{policy.name} was used before this process was forked off, and "
                    "a fork cannot go on with it: save() it before, and cb.load() it "
                    "here, or start processes by 'spawn'"
                )
            door.process = process
        with door.lock:
            return method(policy, *given, **named)

    return entered
