"""A round's pieces shared among threads that sleep while they have nothing to do.

As many threads as torch is set to. torch's own wait for each other in busy loops, which
costs twenty times the work itself once another process wants the processor.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

__all__ = ["share"]

_pool: ThreadPoolExecutor | None = None
_owner = 0  # the process whose threads they are: a fork inherits none


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

    others = [_submit(go) for _ in range(helpers)]
    try:
        go()
    finally:
        for other in others:
            # one that has not begun has nothing left to do: whoever asks, from however
            # deep in the pool, never waits for a thread to become free
            if other is not None and not other.cancel():
                other.result()


def _submit(go: Callable[[], None]) -> Future[None] | None:
    try:
        return _threads().submit(go)
    except RuntimeError:  # the interpreter ends, and starts no threads any more
        return None


def _threads() -> ThreadPoolExecutor:
    global _pool, _owner
    if _pool is None or _owner != os.getpid():
        count = os.cpu_count() or 1
        _pool = ThreadPoolExecutor(count, thread_name_prefix="cbandit")
        _owner = os.getpid()
    return _pool
