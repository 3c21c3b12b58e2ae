"""Workers: processes of this machine, or Ray's, that share the tasks."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

import torch

from cbandit.errors import MissingExtraError
from cbandit.experiments.task import Task

__all__ = ["in_processes", "on_ray", "ray_cluster"]

T = TypeVar("T")
Work = Callable[[Task], T]


def in_processes(
    work: Work[T], tasks: Sequence[Task], workers: int, progress: bool
) -> list[T]:
    """Do the tasks in so many processes of this machine; return all answers.

    After Ctrl-C no task is begun any more, and those at work hear of it.
    """
    threads = max(1, (os.cpu_count() or 1) // workers)
    answers: dict[int, T] = {}
    waiting = list(enumerate(tasks))
    running: dict[Future[T], int] = {}
    # fresh processes: a forked torch may hang in its thread pools
    with (
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
        _bar(len(waiting), progress) as bar,
    ):
        try:
            while waiting or running:
                # none waits in the pool's own queue: after Ctrl-C it would be begun
                with _deaf():
                    while waiting and len(running) < workers:
                        number, task = waiting.pop(0)
                        running[pool.submit(_hearing, work, task, threads)] = number
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    answers[running.pop(future)] = future.result()
                    bar.update(1)
        except KeyboardInterrupt:
            # those at work write their checkpoints
            for child in active_children():
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGINT)
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [answers[number] for number in range(len(tasks))]


def _hearing(work: Work[T], task: Task, threads: int) -> T:
    """Do a task in a worker, which hears of Ctrl-C in here only."""
    torch.set_num_threads(threads)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return work(task)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _deaf() -> Iterator[None]:
    """Let processes that are started in here ignore Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
    """Ray's cluster, or a local one of all CPUs; gives how many CPUs it has."""
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


def on_ray(work: Work[T], tasks: Sequence[Task], progress: bool) -> list[T]:
    """Do the tasks on Ray's cluster, one a CPU; return all answers."""
    ray = _ray()
    remote = ray.remote(num_cpus=1, max_retries=0)(_hearing)
    futures = [remote.remote(work, task, 1) for task in tasks]
    waiting = list(futures)
    try:
        with _bar(len(futures), progress) as bar:
            while waiting:
                _, waiting = ray.wait(waiting)
                bar.update(1)
    except KeyboardInterrupt:
        for each in waiting:
            ray.cancel(each)
        # those at work write their checkpoints
        ray.wait(waiting, num_returns=len(waiting))
        raise
    return list(ray.get(futures))


def _bar(total: int, progress: bool) -> Any:
    from tqdm import tqdm

    shown = progress and sys.stderr.isatty()
    return tqdm(total=total, desc="tasks", delay=1.0, leave=False, disable=not shown)
