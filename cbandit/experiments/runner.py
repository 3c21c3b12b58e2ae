"""The runner: carries an experiment out in a folder, and goes on where it stopped.

While an experiment is under way its folder also holds ``runs``, of the tasks that are
finished, and ``checkpoints``, of those that are not.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tomllib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

from cbandit._core import files
from cbandit._core.distributed import current
from cbandit.errors import CBanditError, LostRankError
from cbandit.experiments import results
from cbandit.experiments.figures import draw
from cbandit.experiments.report import in_words
from cbandit.experiments.rounds import write_rounds
from cbandit.experiments.settings import SEAL, Settings, flat, read_toml
from cbandit.experiments.task import Experiment, Task
from cbandit.experiments.workers import in_processes, on_ray, ray_cluster
from cbandit.simulation import plots
from cbandit.simulation.loop import simulate
from cbandit.simulation.run import FILE, Run, join

__all__ = ["carry_out"]

Answer = str | CBanditError
"""Where the run of a task lies, or what went wrong."""


def carry_out(
    experiment: Experiment,
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    workers: int | str = 1,
    progress: bool = True,
    every: int = 1,
    trust: tuple[str, ...] = (),
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run an experiment and write its results; return what is in ``summary.json``.

    Where ranks share an action set, all of them call this, and the first one alone
    reads and writes.

    Args:
        experiment: its problem and policies; picklable where there are workers.
        settings: made by ``experiment.settings(...)``.
        folder: gets ``config.toml``, ``summary.json``, PNG figures, ``rounds.parquet``
            and ``means.parquet``. The former holds a row a policy, trial and round; the
            latter mean, standard deviation and standard error over the trials of every
            metric's curve, on about 1000 rounds, half of them evenly and half of them
            logarithmically spaced. Results of the same settings are computed and
            written again; those of others are an error.
        resume: go on from the finished runs and checkpoints in the folder.
        workers: how many processes share the trials, or ``"ray"``: as many as Ray's
            cluster has CPUs (``folder`` must be the same on all of its machines).
            Results depend on it by rounding alone: each trial's draws are its own, and
            systems of several trials are solved together.
        progress: show progress bars on a terminal.
        every: write every so many rounds, and the last, into ``rounds.parquet``.
        trust: the names of modules that checkpoints in the folder may name, beside what
            the experiment's policies are made of; they are imported.
        say: gets a line of text for each policy that has been played.
    """
    out, ranks = Path(folder), current()
    if ranks.size > 1 and workers != 1:
        raise CBanditError(
            f"workers={workers} cannot go with {ranks.size} ranks that share the work "
            "already: leave it out"
        )
    with ExitStack() as held:

        def begin() -> dict[str, Any] | None:
            held.enter_context(files.locked(files.folder(out), 0.0, _busy(out)))
            return _prepare(experiment, settings, out, resume)

        finished = ranks.first(begin)
        if finished is not None:
            return finished
        _imported(trust)  # an error now rather than from each task
        done = _Finished(settings, say)
        played = _played(experiment, settings, out, workers, progress, trust, done)
        return ranks.first(lambda: _conclude(experiment, settings, out, played, every))


# ------------------------------------------------------------------------- the folder


def _busy(out: Path) -> str:
    return (
        f"{out}: another process is at work on this experiment; wait until it has "
        "ended, or choose another folder"
    )


def _prepare(
    experiment: Experiment, settings: Settings, out: Path, resume: bool
) -> dict[str, Any] | None:
    """Make the folder ready; return the summary if everything is there already."""
    config, summary = out / "config.toml", out / "summary.json"
    under_way = any((out / name).exists() for name in ("runs", "checkpoints"))
    if resume and config.exists():
        other = _difference(experiment, settings, config)
        if other:
            raise CBanditError(
                f"{out} holds an experiment with other settings: {other}; give those, "
                "or another folder"
            )
        parts = (summary, out / "rounds.parquet", out / "means.parquet")
        if all(part.exists() for part in parts) and not under_way:
            return results.read_summary(out)
    elif under_way:
        raise CBanditError(
            f"{out} holds an unfinished experiment: go on with --resume, or choose "
            "another folder"
        )
    elif summary.exists() and not _is_of(experiment, settings, config):
        which = f"the results of other settings, see {config}"
        if not config.exists():
            which = "results, and no config.toml that tells their settings"
        raise CBanditError(
            f"{out} holds {which}; they are kept: choose another folder with --out, or "
            "remove this one"
        )
    files.writable(config)
    for old in ("summary.json", "rounds.parquet", "means.parquet", "boxes.parquet"):
        (out / old).unlink(missing_ok=True)
    with files.atomic(config) as file:
        file.write(files.sealed(settings.toml(), *SEAL))
    return None


def _difference(experiment: Experiment, now: Settings, config: Path) -> str:
    """The settings in which a folder's file differs, in words."""
    raw = read_toml(config, ours=True)
    if now.tables or "problem" in raw:
        ours, theirs = flat(tomllib.loads(now.toml())), flat(raw)
        keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        said = (f"{k} = {theirs.get(k)!r}, not {ours.get(k)!r}" for k in keys)
        return ", ".join(said)
    name = raw.pop("experiment")
    if name != now.experiment:
        return f"experiment = {name!r}, not {now.experiment!r}"
    before = experiment.settings(**raw)
    pairs = [
        (f.name, getattr(before, f.name), getattr(now, f.name)) for f in fields(now)
    ]
    return ", ".join(f"{name} = {a!r}, not {b!r}" for name, a, b in pairs if a != b)


def _is_of(experiment: Experiment, settings: Settings, config: Path) -> bool:
    try:
        return not _difference(experiment, settings, config)
    except CBanditError:
        return False


# -------------------------------------------------------------------------- the tasks


def _played(
    experiment: Experiment,
    settings: Settings,
    out: Path,
    workers: int | str,
    progress: bool,
    trust: tuple[str, ...],
    done: _Finished,
) -> dict[str, list[Answer]]:
    """Do all tasks; each policy's answers."""
    split = partial(_tasks, experiment, settings)
    work = partial(_answer, folder=str(out), trust=trust)
    if workers == 1:
        tasks, answers = split(1), []
        for task in tasks:
            answers.append(work(task, progress=progress))
            done(task)
    elif workers == "ray":
        with ray_cluster() as cpus:
            tasks = split(cpus)
            # workers have working directories of their own
            work = partial(work, folder=str(out.absolute()))
            answers = on_ray(work, tasks, progress, done)
    else:
        tasks = split(int(workers))
        answers = in_processes(work, tasks, int(workers), progress, done)
    played: dict[str, list[Answer]] = {name: [] for name in settings.policies}
    for task, answer in zip(tasks, answers, strict=True):
        played[task.policy].append(answer)
    return played


class _Finished:
    """Says of each policy when the last of its trials is finished.

    Args:
        settings: of the experiment.
        say: gets the line; ``None``: nothing is said.
    """

    def __init__(
        self, settings: Settings, say: Callable[[str], None] | None = None
    ) -> None:
        self._settings, self._say, self._begun = settings, say, monotonic()
        self._left = dict.fromkeys(settings.policies, settings.trials)

    def __call__(self, task: Task) -> None:
        self._left[task.policy] -= len(task.trials)
        if self._say is None or self._left[task.policy]:
            return
        over = [left == 0 for left in self._left.values()]
        seconds = monotonic() - self._begun
        self._say(
            f"{task.policy}: played, {sum(over)} of {len(over)} policies, "
            f"{seconds:.0f} s"
        )


def _tasks(experiment: Experiment, settings: Settings, workers: int) -> list[Task]:
    """Every policy's tasks; its trials are shared out among the workers."""
    parts = min(workers, settings.trials)
    edges = [settings.trials * k // parts for k in range(parts + 1)]
    return [
        Task(experiment, settings, name, range(a, b))
        for name in settings.policies
        for a, b in itertools.pairwise(edges)
    ]


def _imported(names: tuple[str, ...]) -> tuple[ModuleType, ...]:
    try:
        return tuple(import_module(name) for name in names)
    except (ImportError, TypeError, ValueError) as error:
        raise CBanditError(f"trust: {', '.join(names)}: {error}") from None


def _answer(
    task: Task, folder: str, trust: tuple[str, ...], progress: bool = False
) -> Answer:
    try:
        return _play(task, Path(folder), _imported(trust), progress)
    except LostRankError:
        raise
    except CBanditError as error:
        return error


def _play(
    task: Task, folder: Path, trust: tuple[ModuleType, ...], progress: bool
) -> str:
    """Run a task, from its checkpoint if there is one; return where its run lies."""
    ranks, horizon = current(), task.settings.horizon
    done = folder / "runs" / task.label
    if ranks.first(lambda: (done / FILE).exists() and _is_whole(Run.load(done), task)):
        return str(done)
    problem = task.problem()
    policy = task.make(problem)
    checkpoint = folder / "checkpoints" / f"{task.label}.ckpt"
    ranks.first(lambda: files.folder(checkpoint.parent))
    run = simulate(policy, problem, horizon, checkpoint, progress, trust=trust)

    def keep() -> None:
        replace(run, policy=task.policy).save(done)
        checkpoint.unlink()

    ranks.first(keep)
    return str(done)


def _is_whole(run: Run, task: Task) -> bool:
    """Return whether a run is the whole of a task."""
    wanted = task.policy, task.settings.seed, task.trials, task.settings.horizon
    return (run.policy, run.seed, run.trials, run.rounds) == wanted


def _conclude(
    experiment: Experiment,
    settings: Settings,
    out: Path,
    played: Mapping[str, list[Answer]],
    every: int,
) -> dict[str, Any]:
    """Write the results of all runs that are there; return the summary."""
    runs: dict[str, Run] = {}
    status: dict[str, str] = {}
    for name, answers in played.items():
        errors = [each for each in answers if isinstance(each, CBanditError)]
        if errors:
            status[name] = f"failed: {errors[0]}"
            continue
        loaded = [Run.load(str(each)) for each in answers]
        runs[name] = loaded[0] if len(loaded) == 1 else join(loaded)
        status[name] = "complete"
    if not runs:
        raise CBanditError(in_words(status))
    summary = results.summarise(settings, runs, status, experiment.changes)
    table = plots.curves(list(runs.values()), points=results.POINTS)
    results.write_curves(table, out)
    write_rounds(list(runs.values()), out, every)
    figures, boxes = experiment.figures, None
    if figures.boxes is not None:
        boxes = results.write_boxes(runs, figures.boxes, figures.averaged, out)
    drawn = draw(experiment, settings, table, boxes, out)
    summary["figures"] = [path.name for path in drawn]
    # last: its presence says that all the rest is there
    results.write_summary(summary, out)
    if all(value == "complete" for value in status.values()):
        shutil.rmtree(out / "runs", ignore_errors=True)
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return summary
