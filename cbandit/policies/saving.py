"""A policy's lock, the files that it is saved in, and what copies and files hold."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from cbandit._core import checkpoint, distributed, graph
from cbandit._core.hints import check_arguments
from cbandit.actions import Actions
from cbandit.errors import CBanditError
from cbandit.policies.round import Now

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

#: attributes of a policy that copies and files do not hold: they are computed again
COMPUTED = ("_latest", "_ready")


# -- the lock --------------------------------------------------------------------------


class Lock:
    """A policy's lock, and the process that used it first.

    Copies and loaded policies get a new lock.
    """

    __slots__ = ("process", "thread")

    thread: threading.RLock
    process: int | None

    def __new__(cls) -> Lock:
        """Make an open lock. Copying and loading call only this method."""
        lock = super().__new__(cls)
        lock.thread, lock.process = threading.RLock(), None
        return lock

    def __getstate__(self) -> None:
        return None


def locked(
    method: Callable[Concatenate[Any, Given], Answer],
) -> Callable[Concatenate[Any, Given], Answer]:
    """Make a policy's method wait until no other thread is inside that policy."""

    @functools.wraps(method)
    def called(self: Any, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        lock, process = self._lock, os.getpid()
        # after a fork, two processes would make the same draws
        if lock.process != process:
            if lock.process is not None:
                raise CBanditError(
                    f"{self.name} was used before this process was forked off, and a "
                    "fork cannot go on with it: save() it before the fork, and "
                    "cb.load() it in a process of multiprocessing.get_context("
                    "'spawn'); or here, after torch.set_num_threads(1), without which "
                    "torch may wait for ever for threads that a fork does not have"
                )
            lock.process = process
        with lock.thread:
            try:
                return method(self, *args, **kwargs)
            except TypeError:
                check_arguments(method, (self, *args), kwargs)
                raise

    return called


# -- files -----------------------------------------------------------------------------


class Files:
    """The files that a policy was loaded from or saved to, as it left them.

    ``digests`` are the digests of these files. A file that has changed since is not
    replaced.
    """

    def __init__(self) -> None:
        self.digests: checkpoint.Digests = {}
        #: the set and its label, once it was asked for
        self._labelled: tuple[Actions, tuple[str, str, str]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"digests": self.digests, "_labelled": None}

    def label(
        self, actions: Actions, device: torch.device, dtype: torch.dtype
    ) -> tuple[str, str, str]:
        """Return the digest of a policy's set, and the policy's device and dtype."""
        if self._labelled is None or self._labelled[0] is not actions:
            label = graph.mark_of(actions), str(device), str(dtype)
            self._labelled = actions, label
        return self._labelled[1]

    def write(
        self,
        path: str | os.PathLike[str],
        policy: object,
        rounds: int,
        apart: graph.Apart | None,
        overwrite: bool,
    ) -> None:
        """Write a policy to a file, atomically.

        Args:
            path: the file.
            policy: the policy, whose files these are.
            rounds: the number of its rounds.
            apart: its set, if the file shall not hold it.
            overwrite: whether to replace a file that others may have saved.
        """
        digests, self.digests = self.digests, {}  # the file does not say where it lies
        try:
            distributed.current().first(
                lambda: checkpoint.write(
                    path, "policy", policy, digests, overwrite, rounds, apart
                )
            )
        finally:
            self.digests = digests


# -- what copies and files hold --------------------------------------------------------


def lasting(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what copies and files hold of a policy's attributes."""
    now = attributes["_now"]
    # the streams themselves say where they are
    attributes["_streams"].go(now.position)
    plain = tuple(now._replace(position=None))
    return {**attributes, "_now": plain, **dict.fromkeys(COMPUTED)}


def restored(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's attributes from what a copy or a file holds."""
    position = state["_streams"].position()
    now = Now(*state["_now"])._replace(position=position)
    return {**state, **dict.fromkeys(COMPUTED), "_now": now}
