"""A policy's lock, its files, and the attributes that copies and files hold."""

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
from cbandit.policies.round import PolicyState

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: attributes of a policy that are computed again after copying and loading
RECOMPUTED = ("_latest", "_ready")


# -- the lock --------------------------------------------------------------------------


class Lock:
    """A policy's thread lock, with the id of the process that used it first.

    Copies and loaded policies get a new lock.
    """

    __slots__ = ("depth", "process", "thread")

    thread: threading.RLock
    process: int | None
    depth: int  # how many calls of the thread that holds it are not over

    def __new__(cls) -> Lock:
        """Make an unused lock. Copying and loading call only this method."""
        lock = super().__new__(cls)
        lock.thread, lock.process, lock.depth = threading.RLock(), None, 0
        return lock

    def __getstate__(self) -> None:
        return None


def locked(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """Make a policy's method hold the policy's lock while it runs.

    A call in a process that was forked off is an error. Listeners hear what happened
    once the lock is free again.
    """

    @functools.wraps(method)
    def call(self: Any, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
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
        try:
            with lock.thread:
                lock.depth += 1
                try:
                    return method(self, *args, **kwargs)
                except TypeError:
                    check_arguments(method, (self, *args), kwargs)
                    raise
                finally:
                    lock.depth -= 1
        finally:
            if self._listeners.waiting and not lock.depth:
                self._listeners.deliver()

    return call


# -- files -----------------------------------------------------------------------------


class Files:
    """The files that a policy was loaded from or saved to.

    ``digests`` holds each file's digest at that time. A file that others have changed
    since is not replaced.
    """

    def __init__(self) -> None:
        self.digests: checkpoint.Digests = {}
        #: the set and its label, computed at the first call of :meth:`label`
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
            policy: the policy that these files belong to.
            rounds: the number of the policy's rounds.
            apart: the policy's set, to be left out; ``None``: the file holds the set.
            overwrite: whether to replace a file that others have changed.
        """
        digests, self.digests = self.digests, {}  # the file must not list other files
        try:
            distributed.current().first(
                lambda: checkpoint.write(
                    path, "policy", policy, digests, overwrite, rounds, apart
                )
            )
        finally:
            self.digests = digests


# -- what copies and files hold --------------------------------------------------------


def pack(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes to copy or save, from all attributes of a policy."""
    now = attributes["_now"]
    # the streams hold their own position, so the state need not
    attributes["_streams"].go(now.position)
    plain = tuple(now._replace(position=None))
    return {**attributes, "_now": plain, **dict.fromkeys(RECOMPUTED)}


def unpack(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return all attributes of a policy, from what :func:`pack` returned."""
    position = state["_streams"].position()
    now = PolicyState(*state["_now"])._replace(position=position)
    return {**state, **dict.fromkeys(RECOMPUTED), "_now": now}
