"""Carrying out an experiment: its settings, its tasks, its folder."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbandit.errors import CBanditError, LostRankError, MissingExtraError
from cbandit.experiments.catalogue import Task, find
from cbandit.experiments.results import summarise, write_results
from cbandit.experiments.settings import Settings, settings_from_toml

if TYPE_CHECKING:
    from cbandit.simulation.run import Run

__all__ = ["carry_out", "in_words"]

POINTS = 1000  # rounds kept of each curve in rounds.parquet: well below a megabyte each


def _play(task: Task, folder: str, progress: bool) -> str:
    """Runs a task, from its checkpoint if there is one; returns where its run lies."""
    from cbandit._core.distributed import current
    from cbandit.simulation.loop import simulate
    from cbandit.simulation.run import Run

    settings, ranks = task.settings, current()
    done = Path(folder) / "runs" / task.label
    if ranks.first(lambda: done.exists() and Run.load(done).rounds == settings.horizon):
        return str(done)
    experiment = find(settings.experiment)
    problem = experiment.problem(settings.parameters, task.trials, settings.seed)
    policy = experiment.policies[task.policy](problem, task)
    checkpoint = Path(folder) / "checkpoints" / f"{task.label}.ckpt"
    ranks.first(lambda: checkpoint.parent.mkdir(exist_ok=True))
    run = simulate(policy, problem, settings.horizon, checkpoint, progress)

    def keep() -> None:
        replace(run, policy=task.policy).save(done)
        checkpoint.unlink()

    ranks.first(keep)
    return str(done)


Answer = str | CBanditError
"""Where the run of a task lies, or what went wrong."""


def _tasks(settings: Settings, workers: int) -> dict[str, list[Task]]:
    """Each policy's tasks; its trials are shared out among the workers."""
    parts = min(workers, settings.trials)
    edges = [settings.trials * k // parts for k in range(parts + 1)]
    splits = [range(a, b) for a, b in itertools.pairwise(edges)]
    return {
        name: [Task(settings, name, part) for part in splits]
        for name in settings.policies
    }


def carry_out(
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    workers: int | str = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Runs an experiment and writes its results; returns what is in ``summary.json``.

    ``folder`` gets ``config.toml``, ``summary.json``, PNG figures and
    ``rounds.parquet``: mean, standard deviation and standard error over the trials of
    every metric's curve, on about 1000 rounds, half of them evenly and half of them
    logarithmically spaced. Until all of it is written the folder also holds finished
    runs and checkpoints, from which ``resume`` goes on. Results of the same settings
    are computed and written again; those of others are an error.

    ``workers``: how many processes share the trials, or ``"ray"``: as many as Ray's
    cluster has CPUs (``folder`` must be the same on all of its machines). Each trial's
    draws are its own, so that results do not depend on it. Where ranks share an action
    set, all of them come here, and the first one alone reads and writes.
    """
    from cbandit._core.distributed import current

    out, ranks = Path(folder), current()
    if ranks.size > 1 and workers != 1:
        raise CBanditError(
            f"workers={workers} cannot go with {ranks.size} ranks that share the work "
            "already: leave it out"
        )
    finished = ranks.first(lambda: _prepare(settings, out, resume))
    if finished is not None:
        return finished
    answers = _played(settings, out, workers, progress)
    return ranks.first(lambda: _conclude(settings, out, answers))


def _conclude(
    settings: Settings, out: Path, played: Mapping[str, list[Answer]]
) -> dict[str, Any]:
    """Writes the results of all runs that are there; the summary."""
    from cbandit.simulation.run import Run, join

    runs: dict[str, Run] = {}
    status: dict[str, str] = {}
    for name, answers in played.items():
        parts = [each for each in answers if not isinstance(each, CBanditError)]
        errors = [each for each in answers if isinstance(each, CBanditError)]
        if errors:
            status[name] = f"failed: {errors[0]}"
            continue
        loaded = [Run.load(path) for path in parts]
        runs[name] = loaded[0] if len(loaded) == 1 else join(loaded)
        status[name] = "complete"
    if not runs:
        raise CBanditError(in_words(status))
    summary = summarise(settings, runs, status)
    write_results(settings, out, runs, summary)
    if all(value == "complete" for value in status.values()):
        shutil.rmtree(out / "runs", ignore_errors=True)
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return summary


def in_words(status: Mapping[str, str]) -> str:
    """What became of the policies; of those alike once."""
    alike: dict[str, list[str]] = {}
    for name, said in status.items():
        alike.setdefault(said, []).append(name)
    return "; ".join(f"{', '.join(names)} {said}" for said, names in alike.items())


def _other(before: Settings, now: Settings) -> str:
    """What differs, in words."""
    pairs = [
        (f.name, getattr(before, f.name), getattr(now, f.name)) for f in fields(now)
    ]
    return ", ".join(f"{name} = {a!r}, not {b!r}" for name, a, b in pairs if a != b)


def _prepare(settings: Settings, out: Path, resume: bool) -> dict[str, Any] | None:
    """Makes the folder ready; the summary if everything is there already."""
    from cbandit._core.files import atomic, writable

    config, summary = out / "config.toml", out / "summary.json"
    under_way = any((out / name).exists() for name in ("runs", "checkpoints"))
    if resume and config.exists():
        before = settings_from_toml(config)
        if before != settings:
            raise CBanditError(
                f"{out} holds an experiment with other settings: "
                f"{_other(before, settings)}; give those, or another folder"
            )
        if summary.exists() and (out / "rounds.parquet").exists() and not under_way:
            return _read_summary(summary)
    elif under_way:
        raise CBanditError(
            f"{out} holds an unfinished experiment: go on with --resume, or choose "
            "another folder"
        )
    elif summary.exists() and not _same_settings(config, settings):
        which = f"the results of other settings, see {config}"
        if not config.exists():
            which = "results, and no config.toml that tells their settings"
        raise CBanditError(
            f"{out} holds {which}; they are kept: choose another folder with --out, or "
            "remove this one"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if out.is_file() else error.strerror
        raise CBanditError(f"the results need a folder, not {out}: {why}") from None
    writable(config)
    for old in (summary, out / "rounds.parquet", out / "boxes.parquet"):
        old.unlink(missing_ok=True)
    with atomic(config) as file:
        file.write(settings.toml().encode())
    return None


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CBanditError(
            f"{path} cannot be read ({error}); without that file --resume computes it "
            "all again"
        ) from None
    names = {"experiment", "horizon", "trials", "policies"}
    whole = isinstance(found, dict) and names <= found.keys()
    policies = found["policies"] if whole else None
    if not isinstance(policies, dict) or not all(
        isinstance(each, dict) and "status" in each for each in policies.values()
    ):
        raise CBanditError(
            f"{path} is not the summary of an experiment; without that file --resume "
            "computes it all again"
        )
    summary: dict[str, Any] = found
    return summary


def _same_settings(config: Path, settings: Settings) -> bool:
    try:
        return settings_from_toml(config) == settings
    except CBanditError:
        return False


def _played(
    settings: Settings, out: Path, workers: int | str, progress: bool
) -> dict[str, list[Answer]]:
    """By policy, where the runs of its tasks lie, or what went wrong."""
    if workers == 1:
        alone = _tasks(settings, 1)
        return {
            name: [_answer(task, str(out), progress)] for name, (task,) in alone.items()
        }
    if workers == "ray":
        tasks, answers = _by_ray(settings, out, progress)
    else:
        tasks, answers = _by_processes(settings, out, int(workers), progress)
    return {name: [answers[t.label] for t in each] for name, each in tasks.items()}


def _answer(task: Task, folder: str, progress: bool = False) -> Answer:
    try:
        return _play(task, folder, progress)
    except LostRankError:
        raise
    except CBanditError as error:
        return error


def _answer_in_worker(task: Task, folder: str, threads: int) -> Answer:
    """As :func:`_answer`, in a process that hears of Ctrl-C in here only."""
    import torch

    torch.set_num_threads(threads)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _answer(task, folder)
    finally:
        signal.signal(signal.SIGINT, before)


def _by_processes(
    settings: Settings, out: Path, workers: int, progress: bool
) -> tuple[dict[str, list[Task]], dict[str, Answer]]:
    """Every policy's tasks, and answers by label, from processes of this machine."""
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from multiprocessing import active_children, get_context

    tasks = _tasks(settings, workers)
    threads = max(1, (os.cpu_count() or 1) // workers)
    answers: dict[str, Answer] = {}
    waiting = [task for each in tasks.values() for task in each]
    running: dict[Future[Answer], Task] = {}
    # fresh processes: a forked torch may hang in its thread pools
    with (
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
        _bar(len(waiting), progress) as bar,
    ):
        try:
            while waiting or running:
                # none in the pool's own queue: after Ctrl-C nothing new is begun
                with _deaf():
                    while waiting and len(running) < workers:
                        task = waiting.pop(0)
                        given = (task, str(out), threads)
                        running[pool.submit(_answer_in_worker, *given)] = task
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    answers[running.pop(future).label] = future.result()
                    bar.update(1)
        except KeyboardInterrupt:
            # those at work write their checkpoints
            for child in active_children():
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGINT)
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return tasks, answers


@contextmanager
def _deaf() -> Iterator[None]:
    """What is started in here does not hear Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _by_ray(
    settings: Settings, out: Path, progress: bool
) -> tuple[dict[str, list[Task]], dict[str, Answer]]:
    """As :func:`_by_processes`, on Ray's cluster, or a local one of all CPUs."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            "workers='ray' needs Ray: pip install 'cbandit[ray]'"
        ) from None
    import logging

    ours = not ray.is_initialized()
    if ours:
        ray.init(
            include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    try:
        resources: Any = ray.cluster_resources  # untyped
        tasks = _tasks(settings, max(1, int(resources().get("CPU", 1))))
        remote = ray.remote(num_cpus=1, max_retries=0)(_answer_in_worker)
        futures = {
            remote.remote(task, str(out.absolute()), 1): task
            for each in tasks.values()
            for task in each
        }
        answers: dict[str, Answer] = {}
        waiting = list(futures)
        try:
            with _bar(len(futures), progress) as bar:
                while waiting:
                    (done,), waiting = ray.wait(waiting)
                    answers[futures[done].label] = ray.get(done)
                    bar.update(1)
        except KeyboardInterrupt:
            for each in waiting:
                ray.cancel(each)
            # those at work write their checkpoints
            ray.wait(waiting, num_returns=len(waiting))
            raise
    finally:
        if ours:
            ray.shutdown()
    return tasks, answers


def _bar(total: int, progress: bool) -> Any:
    from tqdm import tqdm

    shown = progress and sys.stderr.isatty()
    return tqdm(total=total, desc="tasks", delay=1.0, leave=False, disable=not shown)
