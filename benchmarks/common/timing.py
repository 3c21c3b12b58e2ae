"""Medians of interleaved runs, so that all contenders see the same machine."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

__all__ = ["clocked", "in_a_row", "medians"]

K = TypeVar("K", bound=Hashable)


def medians(
    contenders: Mapping[K, Callable[[], float]], count: int, warm: int = 0
) -> dict[K, float]:
    """Median seconds of each contender, which take turns.

    Args:
        contenders: calls that return their own seconds; see :func:`clocked`.
        count: how often each is run.
        warm: how often before that, not counted.
    """
    gc.collect()
    seconds: dict[K, list[float]] = {name: [] for name in contenders}
    for _ in range(warm + count):
        for name, play in contenders.items():
            seconds[name].append(play())
    return {name: statistics.median(each[warm:]) for name, each in seconds.items()}


def clocked(call: Callable[[], Any]) -> Callable[[], float]:
    """``call`` as one that returns its seconds."""

    def play() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return play


def in_a_row(play: Callable[[], float], count: int) -> Callable[[], float]:
    """The median of ``count`` plays in a row, with caches as warm as when alone."""
    return lambda: statistics.median(play() for _ in range(count))
