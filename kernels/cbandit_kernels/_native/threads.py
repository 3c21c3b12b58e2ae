"""A round's pieces shared among threads that sleep while they have nothing to do.

As many threads as torch is set to. torch's own wait for each other in busy loops, which
costs twenty times the work itself once another process wants the processor.
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
            # drawing a number is one step of the interpreter: each is drawn once
            for piece in numbers:
                if stopped or piece >= pieces:
                    return
                work(piece)
        except BaseException:
            stopped = True  # what has begun is finished, nothing more is begun
            raise

    others: list[Future[None]] = []
    try:
        for _ in range(helpers):
            others += _submitted(go)
        go()
    finally:
        # one that has not begun has nothing left to do: whoever asks, from however deep
        # in the pool, never waits for a thread to become free
        begun = [other for other in others if not other.cancel()]
        _await(begun)
    for other in begun:
        other.result()


def _await(begun: list[Future[None]]) -> None:
    """Wait until all have ended, whatever happens: they write where the caller will.

    Their pieces take milliseconds. Ctrl-C counts after that.
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
    except RuntimeError:  # the interpreter ends, and starts no threads any more
        return []


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of a process: a fork inherits none."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="cbandit")
