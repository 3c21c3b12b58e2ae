"""Run small algebra on one thread, as torch's other threads keep processors busy.

Once woken, these threads wait for more work in a busy loop, for milliseconds. A
compiled pass just after a product of 300 by 20 numbers shares its processors with them,
and takes half as long again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def on_one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return ``function`` made to run with one torch thread.

    This works in the main thread only: the number of threads belongs to the process,
    and a Python thread that starts meanwhile would keep it.
    """

    @functools.wraps(function)
    def go(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        threads = torch.get_num_threads()
        if threads == 1 or threading.current_thread() is not threading.main_thread():
            return function(*args, **kwargs)
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return go
