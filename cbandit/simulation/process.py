"""The process around the loop: its signals and its progress bar."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from types import FrameType
from typing import Any


@contextmanager
def until_interrupted(active: bool) -> Iterator[list[int]]:
    """Catch Ctrl-C and SIGTERM, so that the round can be finished.

    Yield a list that receives the number of the signal. A second signal stops at once.
    (One within a second of the first counts as the same: launchers repeat the signal
    that the terminal sends to all their processes.) Handlers other than Python's own
    stay as they are.
    """
    heard: list[int] = []
    first = math.inf  # when the first signal came
    before: dict[int, Any] = {}
    if active and threading.current_thread() is threading.main_thread():
        usual: dict[int, Any] = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGTERM: signal.SIG_DFL,
        }
        before = {n: h for n, h in usual.items() if signal.getsignal(n) is h}

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if not heard:
            heard.append(number)
            first = monotonic()
        elif monotonic() > first + 1:
            stop(number)

    for number in before:
        signal.signal(number, hear)
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop(number: int) -> None:
    """End the process as the caught signal would have ended it."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def bar(shown: bool, name: str, done: int, total: int) -> Any:
    """Return a progress bar; it is shown after a second, and on a terminal only."""
    if not (shown and sys.stderr.isatty()):
        return _Unseen()
    from tqdm import tqdm

    return tqdm(
        total=total, initial=done, desc=name, delay=1.0, leave=False, mininterval=0.2
    )


class _Unseen(AbstractContextManager["_Unseen"]):
    """A bar that is not shown; a hidden one of tqdm would hold a lock of processes."""

    def __exit__(self, *raised: object) -> None: ...

    def update(self, n: int) -> None: ...
