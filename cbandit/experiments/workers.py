"""Workers: processes of this machine, or Ray's, that share the tasks."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import (
    active_children,
    get_context,
    parent_process,
    resource_tracker,
)
from multiprocessing.connection import wait as ready
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, TypeVar

import torch

from cbandit.errors import CBanditError, MissingExtraError
from cbandit.experiments.experiment import Task
from cbandit.simulation.process import bar, stop, until_interrupted

T = TypeVar("T")
Work = Callable[[Task], T]
Done = Callable[[Task], None]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 0.2  # seconds between two checks for a signal


def in_processes(
    work: Work[T], tasks: Sequence[Task], workers: int, progress: bool, done: Done
) -> list[T]:
    """Do the tasks in ``workers`` processes of this machine; return their results.

    ``done`` is called with each task that is finished.

    After Ctrl-C or SIGTERM no further task begins, and the running ones write their
    checkpoints and end. If this process is killed, its workers end too.
    """
    threads = max(1, (os.cpu_count() or 1) // workers)
    returned: dict[int, T] = {}
    waiting = list(enumerate(tasks))
    running: dict[Future[T], int] = {}
    others = set(active_children())
    # fresh processes: a forked torch may hang in its thread pools
    context = get_context("spawn")
    with (
        ProcessPoolExecutor(workers, context, _begun, (threads,)) as pool,
        until_interrupted(True) as heard,
        bar(progress, "tasks", 0, len(tasks)) as shown,
    ):
        try:
            while (waiting or running) and not heard:
                # the pool's own queue stays empty: no task can be taken back from it
                with _held():
                    while waiting and len(running) < workers:
                        number, task = waiting.pop(0)
                        running[pool.submit(_ending, work, task)] = number
                for future in wait(running, PATIENCE, FIRST_COMPLETED).done:
                    number = running.pop(future)
                    returned[number] = future.result()
                    shown.update(1)
                    done(tasks[number])
        except BrokenProcessPool:
            if not heard:
                raise CBanditError(
                    "a worker was killed (for lack of memory, perhaps); the same with "
                    "--resume goes on, and needs less memory with fewer --workers"
                ) from None
        finally:
            if waiting or running:
                _end(set(active_children()) - others, pool)
    if heard:
        stop(heard[0])
    return [returned[number] for number in range(len(tasks))]


def _end(children: set[BaseProcess], pool: ProcessPoolExecutor) -> None:
    """Tell workers to end, and wait for them; kill them if interrupted meanwhile."""
    try:
        for child in children:
            child.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
    except BaseException:
        for child in children:
            child.kill()
        raise


def _begun(threads: int) -> None:
    """Set up a worker: between tasks it ignores Ctrl-C, and SIGTERM ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process as soon as its parent has ended."""
    parent = parent_process()
    if parent is not None:
        ready([parent.sentinel])
        os._exit(1)


def _ending(work: Work[T], task: Task) -> T:
    """Do a task in a worker process, which exits if it is interrupted."""
    try:
        with _handling(signal.SIGINT, signal.default_int_handler):
            signal.signal(signal.SIGTERM, _told)
            out = work(task)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return out
    except KeyboardInterrupt:
        os._exit(1)  # or the pool would wait for it to take another task


def _told(number: int, frame: FrameType | None) -> None:
    """Treat SIGTERM as Ctrl-C, once: the pool repeats it when the first worker ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)


@contextmanager
def _handling(
    number: int, handler: Callable[[int, FrameType | None], Any]
) -> Iterator[None]:
    """Let ``handler`` handle a signal inside the context, on the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def _held() -> Iterator[None]:
    """Block signals inside the context, and in workers started there, until set up."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # its start would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            "workers='ray' needs Ray: pip install 'cbandit[ray]'"
        ) from None
    return ray


@contextmanager
def ray_cluster() -> Iterator[int]:
    """Connect to Ray's cluster, or start a local one; yield its number of CPUs."""
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        ray.init(
            include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        if ours:
            ray.shutdown()


def on_ray(work: Work[T], tasks: Sequence[Task], progress: bool, done: Done) -> list[T]:
    """Do the tasks on Ray's cluster, one per CPU; return their results.

    ``done`` is called with each task that is finished.
    """
    ray = _ray()
    remote = ray.remote(num_cpus=1, max_retries=0)(_on_one)
    futures = [remote.remote(work, task) for task in tasks]
    waiting = list(futures)
    # Ray's own handler aborts
    with _handling(signal.SIGTERM, lambda number, frame: stop(number)):
        try:
            with bar(progress, "tasks", 0, len(tasks)) as shown:
                while waiting:
                    ended, waiting = ray.wait(waiting)
                    shown.update(1)
                    done(tasks[futures.index(ended[0])])
        except (KeyboardInterrupt, SystemExit) as stopped:
            for future in waiting:
                ray.cancel(future)
            # running tasks write their checkpoints
            ray.wait(waiting, num_returns=len(waiting))
            if isinstance(stopped, SystemExit):
                stop(signal.SIGTERM)  # Ray has changed the code
            raise
        return list(ray.get(futures))


def _on_one(work: Work[T], task: Task) -> T:
    """Do a task in a worker of Ray's, which Ray ends by SIGINT."""
    torch.set_num_threads(1)
    with _handling(signal.SIGINT, signal.default_int_handler):
        return work(task)
