"""Run what is small on one thread, and what is large on all of them.

Threads of OpenBLAS and OpenMP wait for more work in busy loops. Two of them that share
a Cholesky factorisation of 15 by 15 numbers gain nothing, and where other programs want
the processors too, they wait for each other: fits took twenty times as long.

Some pools of threads have one number for each Python thread that uses them: OpenMP's,
and the MKL inside torch. That of OpenBLAS is the process's: it is 1 from when the first
Python thread enters until the last one leaves.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from threadpoolctl import ThreadpoolController

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LARGE = 100_000  # numbers; a pass over so many gains from more threads
LOST = 1.0  # seconds; what is done under the lock takes a millisecond


class Pool(NamedTuple):
    """The threads of one library: how many it may use, and the call that says so."""

    threads: Callable[[], int | None]
    limit: Callable[[int], object]


Limited = list[tuple[Pool, int]]  # pools, and what they were limited to before


class Entry:
    """Held by who is inside: a limit whose entry is gone was not left, and is void."""


class _Mine(threading.local):
    """The limits that one Python thread has set for itself."""

    entry: weakref.ref[Entry] | None = None
    before: Limited = []  # noqa: RUF012  # replaced, never changed
    mkl: int | None = None


class Limit:
    """One thread in every pool, counted over the Python threads that are inside.

    Both methods may be interrupted anywhere. Whoever enters next then goes on from what
    is known, and never takes a limit of its own for the user's. An interrupt just
    before the lock is released leaves it locked; others replace it after a second.
    """

    def __init__(self) -> None:
        self._mine = _Mine()
        self._modules = 0  # that were imported when libraries were last looked for
        self._own: list[Pool] = []  # with a number for each Python thread
        self._shared: list[Pool] = []
        self._before: Limited = []  # of shared pools
        self._start()

    def _start(self) -> None:
        """Begin with nobody inside: of a process's threads, its fork has only one."""
        self._lock, self._inside = threading.RLock(), set[int]()
        self._restore()

    @property
    def holds(self) -> bool:
        """Whether this Python thread is inside."""
        entry = self._mine.entry
        return entry is not None and entry() is not None

    def enter(self, entry: Entry | None = None) -> Entry:
        """Limit every pool to one thread for this Python thread, until :meth:`leave`.

        It holds while somebody keeps the answer; ``entry`` is that of an earlier call.
        """
        mine, entry = self._mine, entry or Entry()
        mine.entry = weakref.ref(entry)
        torch.get_num_threads()  # a new Python thread gets torch's number by this
        lock = self._locked()
        try:
            if not self._inside:
                self._find()
            self._inside.add(threading.get_ident())
            if not self._before:
                self._before = _several(self._shared)
            for pool, _ in self._before:
                pool.limit(1)
        finally:
            lock.release()
        mine.before = mine.before or _several(self._own)
        for pool, _ in mine.before:
            pool.limit(1)
        limit = _mkl()
        if limit is not None and mine.mkl is None:
            mine.mkl = limit(1)
        return entry

    def leave(self) -> Entry | None:
        """Undo :meth:`enter`, and return its answer.

        Shared pools keep one thread while others are inside.
        """
        mine = self._mine
        entry = None if mine.entry is None else mine.entry()
        mine.entry = None
        lock = self._locked()
        try:
            self._inside.discard(threading.get_ident())
            if not self._inside:
                self._restore()
        finally:
            lock.release()
        for pool, threads in mine.before:
            pool.limit(threads)
        limit = _mkl()
        if limit is not None and mine.mkl is not None:
            limit(mine.mkl)
        mine.before, mine.mkl = [], None
        return entry

    def _locked(self) -> Any:
        """Lock, and return the lock; a new one if nobody releases the old one."""
        lock = self._lock
        while not lock.acquire(timeout=LOST):
            if lock is self._lock:
                self._lock = threading.RLock()
            lock = self._lock
        return lock

    def _restore(self) -> None:
        for pool, threads in self._before:
            pool.limit(threads)
        self._before = []

    def _find(self) -> None:
        """Look for libraries, which takes a millisecond, if modules were imported."""
        if self._modules == len(sys.modules):
            return
        if not self._modules and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._start)
        self._own, self._shared = [], []
        for library in ThreadpoolController().lib_controllers:
            if library.internal_api == "openblas":
                self._shared += _openblas(library)
            else:
                pool = Pool(library.get_num_threads, library.set_num_threads)
                self._own.append(pool)
        self._modules = len(sys.modules)


def _several(pools: Sequence[Pool]) -> Limited:
    """Return the pools that use several threads, and how many each."""
    limited = []
    for pool in pools:
        threads = pool.threads()
        if threads is not None and threads > 1:
            limited.append((pool, threads))
    return limited


def _openblas(library: Any) -> Iterator[Pool]:
    """Yield the pool of an OpenBLAS, unless it uses OpenMP's.

    threadpoolctl would let one Python thread alone limit it, but the last that leaves
    may be another than the first that entered.
    """
    if library.threading_layer == "openmp":
        return
    for before, after in itertools.product(("", "scipy_"), ("", "64_", "_64")):
        names = (f"{before}openblas_{do}_num_threads{after}" for do in ("get", "set"))
        calls: list[Any] = [getattr(library.dynlib, name, None) for name in names]
        if None not in calls:
            yield Pool(*calls)
            return


@functools.cache
def _mkl() -> Callable[[int], int] | None:
    """Return MKL's call for this Python thread's number; it returns the one before.

    The MKL inside torch is hidden from threadpoolctl. It follows OpenMP, except in
    Python threads that have called ``torch.set_num_threads``.
    """
    if not torch.backends.mkl.is_available():
        return None
    library = ctypes.CDLL(torch._C.__file__)
    return getattr(library, "MKL_Set_Num_Threads_Local", None)


LIMIT = Limit()


@contextmanager
def threads_for(size: float, large: int = LARGE) -> Iterator[None]:
    """Use one thread for what is smaller than ``large``, else all.

    What has no size, such as a box, is ``math.inf``: it changes nothing.
    """
    inside = LIMIT.holds
    if inside == (size < large) or size == math.inf:
        yield
        return
    entry = None
    try:
        entry = LIMIT.leave() if inside else LIMIT.enter()
        yield
    finally:
        LIMIT.enter(entry) if inside else LIMIT.leave()


def on_one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return ``function`` made to run on one thread."""

    @functools.wraps(function)
    def go(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if LIMIT.holds:
            return function(*args, **kwargs)
        entry = None  # the limit holds while this function has it
        try:
            entry = LIMIT.enter()
            return function(*args, **kwargs)
        finally:
            LIMIT.leave()
            del entry

    return go
