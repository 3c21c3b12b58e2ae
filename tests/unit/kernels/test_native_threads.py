"""How a compiled round's work is shared: threads, forks, failures, Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
from looks import best_of_a_line

pytest.importorskip("numba", reason="numba is not installed: plain torch is used")

from inside import native_share
from terminal import printed

F64 = torch.float64


def test_each_piece_is_done_once():
    for threads in (1, 2, 5):
        done: list[int] = []
        native_share(done.append, 1_000, threads)
        assert sorted(done) == list(range(1_000))


def test_rounds_in_several_threads_at_once():
    found: list[int] = []

    def go() -> None:
        found.extend(best_of_a_line() for _ in range(20))

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [199_999] * 80


def test_work_within_work_ends():
    """No thread of the pool waits for another that waits for it."""
    done: list[int] = []
    native_share(lambda piece: native_share(done.append, 5, 8), 40, 8)
    assert sorted(done) == sorted([0, 1, 2, 3, 4] * 40)


FORKED = """
import os, sys
from inside import native_share
native_share(lambda piece: None, 10, 4)
child, done = os.fork(), []
native_share(done.append, 100, 4)
whole = sorted(done) == list(range(100))
if child == 0:
    os._exit(0 if whole else 1)
print(whole, os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are Unix's")
def test_a_forked_process_has_threads_of_its_own():
    assert printed(FORKED) == "True 0"


AT_THE_END = """
import atexit, threading, torch
torch.set_num_threads(4)
from looks import best_of_a_line
best_of_a_line(200_000)
atexit.register(lambda: print(best_of_a_line(200_000)))
threading.Thread(target=lambda: [best_of_a_line() for _ in range(20)]).start()
"""


def test_the_interpreter_ends_amid_rounds():
    assert printed(AT_THE_END) == "199999"


def test_a_piece_that_fails_ends_the_others():
    with pytest.raises(ZeroDivisionError):
        native_share(lambda piece: 1 // (piece - 7), 100, 3)
    begun: list[int] = []

    def work(piece: int) -> None:
        begun.append(piece)
        if piece == 3:
            raise KeyboardInterrupt
        time.sleep(1e-3)

    with pytest.raises(KeyboardInterrupt):
        native_share(work, 1_000, 3)
    assert len(begun) < 20


@pytest.mark.skipif(
    not hasattr(signal, "pthread_kill"), reason="signals to threads are Unix's"
)
def test_ctrl_c_waits_for_what_has_begun():
    """When the caller goes on, no thread of the pool writes any more."""
    main, running = threading.main_thread(), threading.Event()
    if threading.current_thread() is not main:
        pytest.skip("Python tells signals to its main thread alone")
    ended: list[int] = []

    def work(piece: int) -> None:
        if threading.current_thread() is main:
            running.wait()
            return
        running.set()
        for _ in range(2):  # the second comes while the first is being waited out
            time.sleep(0.1)
            signal.pthread_kill(main.ident or 0, signal.SIGINT)
        time.sleep(0.1)
        ended.append(piece)

    with pytest.raises(KeyboardInterrupt):
        native_share(work, 2, 2)
    assert len(ended) == 1
