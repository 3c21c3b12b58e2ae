"""One thread at a time in a policy, and one process."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from cbandit._core.hints import check_arguments
from cbandit.errors import CBanditError

__all__ = ["Door", "alone"]

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Door:
    """The lock of a policy, and the process that came through it first.

    Neither can be copied: a copy of a policy, or one that is loaded, has its own.
    """

    __slots__ = ("lock", "process")

    lock: threading.RLock
    process: int | None

    def __new__(cls) -> Door:
        """A copy is made by this alone."""
        door = super().__new__(cls)
        door.lock, door.process = threading.RLock(), None
        return door

    def __getstate__(self) -> None:
        return None


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
                    "a fork cannot go on with it: save() it before the fork, and "
                    "cb.load() it in a process of multiprocessing.get_context('spawn')"
                    "; or here, after torch.set_num_threads(1), without which torch "
                    "may wait for ever for threads that a fork does not have"
                )
            door.process = process
        try:
            with door.lock:
                return method(policy, *given, **named)
        except TypeError:
            check_arguments(method, (policy, *given), named)
            raise

    return entered
