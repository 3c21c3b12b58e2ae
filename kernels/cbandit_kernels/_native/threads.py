"""Divide a round's pieces among threads that sleep when idle.

There are as many threads as torch is set to. torch's own threads wait in busy loops,
which costs twenty times the work itself when another process needs the processor.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache

import torch

__all__ = ["share"]


def share(work: Callable[[int], None], pieces: int, threads: int | None = None) -> None:
    """Call ``work(0) .. work(pieces - 1)``, each once, on several threads at a time."""
    helpers = min(torch.get_num_threads() if threads is None else threads, pieces) - 1
    numbers = itertools.count()
    stopped = False

    def go() -> None:
        nonlocal stopped
        try:
            # drawing a number is one step of the interpreter, so each is drawn once
            for piece in numbers:
                if stopped or piece >= pieces:
                    return
                work(piece)
        except BaseException:
            stopped = True  # begun pieces are finished, no other is begun
            raise

    others: list[Future[None]] = []
    try:
        for _ in range(helpers):
            others += _submitted(go)
        go()
    finally:
        # a thread that has not begun has nothing left to do, so this never waits for
        # the pool, even when called from inside it
        begun = [other for other in others if not other.cancel()]
        _await(begun)
    for other in begun:
        other.result()


def _await(begun: list[Future[None]]) -> None:
    """Wait until all have ended, whatever happens: they write the caller's arrays.

    Their pieces take milliseconds. Ctrl-C takes effect after that.
    """
    late: BaseException | None = None
    while not all(other.done() for other in begun):
        try:
            wait(begun)
        except KeyboardInterrupt as error:
            late = error
    if late is not None:
        raise late


def _submitted(go: Callable[[], None]) -> list[Future[None]]:
    try:
        return [_pool(os.getpid()).submit(go)]
    except RuntimeError:  # the interpreter is ending and starts no threads
        return []


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process, as a fork inherits none."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="cbandit")
