"""The runner: runs an experiment in a folder, and resumes it where it stopped.

While an experiment runs, its folder also holds ``runs`` of finished tasks and
``checkpoints`` of unfinished ones.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
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
from cbandit.experiments.experiment import Experiment, Task
from cbandit.experiments.figures import Outcome
from cbandit.experiments.report import in_words
from cbandit.experiments.settings import SEAL, Settings, flat, read_toml
from cbandit.experiments.workers import in_processes, on_ray, ray_cluster
from cbandit.simulation import plots
from cbandit.simulation.loop import simulate
from cbandit.simulation.run import FILE, Run, join

Ending = str | CBanditError
"""The folder of a task's run, or the error that stopped it."""


def carry_out(
    experiment: Experiment,
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    workers: int | str = 1,
    progress: bool = True,
    every: int = 1,
    figures: bool = True,
    trust: tuple[str, ...] = (),
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run an experiment and write its results; return the contents of ``summary.json``.

    If ranks share an action set, all of them call this, and only the first one reads
    and writes.

    Args:
        experiment: its problem and policies; picklable if there are workers.
        settings: the result of ``experiment.settings(...)``.
        folder: gets ``config.toml``, ``summary.json``, PNG figures, ``rounds.parquet``
            and ``means.parquet``. ``rounds.parquet`` has a row for each policy, trial
            and round; ``means.parquet`` has the mean, standard deviation and standard
            error over the trials of every metric, on about 1000 rounds, half of them
            evenly and half logarithmically spaced. Results of the same settings are
            computed and written again; results of other settings are an error.
        resume: continue from the finished runs and checkpoints in the folder.
        workers: how many processes share the trials, or ``"ray"``: as many as Ray's
            cluster has CPUs (``folder`` must be the same on all of its machines).
            Results depend on this number only by rounding, since each trial has its own
            draws but several trials are solved together.
        progress: show progress bars on a terminal.
        every: write one round in ``every``, and the last, to ``rounds.parquet``.
        figures: draw figures.
        trust: names of modules that checkpoints in the folder may name, besides those
            of the experiment's policies; they are imported.
        say: called with a line of text for each policy that has been played.
    """
    ranks = current()
    if ranks.size > 1 and workers != 1:
        raise CBanditError(
            f"workers={workers} cannot go with {ranks.size} ranks that share the work "
            "already: leave it out"
        )
    place = _Place(experiment, settings, Path(folder))
    with ExitStack() as held:

        def begin() -> dict[str, Any] | None:
            held.enter_context(place.locked())
            return place.prepare(resume)

        finished = ranks.first(begin)
        if finished is not None:
            return finished
        _imported(trust)  # raise here, not in each task
        played = place.play(workers, progress, trust, say)
        return ranks.first(lambda: place.conclude(played, every, figures))


@dataclass(frozen=True)
class _Place:
    """The folder in which an experiment is run."""

    experiment: Experiment
    settings: Settings
    out: Path

    def locked(self) -> AbstractContextManager[None]:
        """Make the folder if necessary, and keep other processes out of it."""
        busy = (
            f"{self.out}: another process is at work on this experiment; wait until it "
            "has ended, or choose another folder"
        )
        return files.locked(files.folder(self.out), 0.0, busy)

    def prepare(self, resume: bool) -> dict[str, Any] | None:
        """Make the folder ready; return the summary if all results are there."""
        out, config = self.out, self.out / "config.toml"
        summary, rounds, means = (
            out / name for name in ("summary.json", results.ROUNDS, results.MEANS)
        )
        under_way = any((out / name).exists() for name in ("runs", "checkpoints"))
        if resume and config.exists():
            other = self._difference(config)
            if other:
                raise CBanditError(
                    f"{out} holds an experiment with other settings: {other}; give "
                    "those, or another folder"
                )
            whole = all(path.exists() for path in (summary, rounds, means))
            if whole and not under_way:
                return results.read_summary(out)
        elif under_way:
            way = "put back its config.toml, which is missing," if resume else ""
            raise CBanditError(
                f"{out} holds an unfinished experiment: "
                f"{way or 'go on with --resume,'} or choose another folder"
            )
        elif summary.exists() and not self._is_of(config):
            which = f"the results of other settings, see {config}"
            if not config.exists():
                which = "results, and no config.toml that tells their settings"
            raise CBanditError(
                f"{out} holds {which}; they are kept: choose another folder with "
                "--out, or remove this one"
            )
        files.writable(config)
        for old in (summary.name, *results.TABLES):
            (out / old).unlink(missing_ok=True)
        with files.atomic(config) as file:
            file.write(files.sealed(self.settings.toml(), *SEAL))
        return None

    def _difference(self, config: Path) -> str:
        """Return in which settings a folder's file differs, in words; or empty."""
        raw, now = read_toml(config, ours=True), self.settings
        if raw.get("experiment") == now.experiment and not now.tables:
            # parameters that were added later have their defaults
            options = {key: raw[key] for key in raw if key != "experiment"}
            raw = tomllib.loads(self.experiment.settings(**options).toml())
        ours, theirs = flat(tomllib.loads(now.toml())), flat(raw)
        keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        # the others follow from these
        keys = [key for key in ("experiment", "name") if key in keys] or keys
        return ", ".join(f"{k} = {theirs.get(k)!r}, not {ours.get(k)!r}" for k in keys)

    def _is_of(self, config: Path) -> bool:
        try:
            return not self._difference(config)
        except CBanditError:
            return False

    def play(
        self,
        workers: int | str,
        progress: bool,
        trust: tuple[str, ...],
        say: Callable[[str], None] | None,
    ) -> dict[str, list[Ending]]:
        """Run all tasks; return how each policy's tasks ended."""
        begun, trials = monotonic(), dict.fromkeys(self.settings.policies, 0)

        def done(task: Task) -> None:
            """Announce the policy once the last of its trials is finished."""
            trials[task.policy] += len(task.trials)
            over = [count == self.settings.trials for count in trials.values()]
            if say is not None and trials[task.policy] == self.settings.trials:
                spent = monotonic() - begun
                done_trials = sum(trials.values())
                left = spent * (len(over) * self.settings.trials / done_trials - 1)
                say(
                    f"{task.policy}: played, {sum(over)} of {len(over)} policies, "
                    f"{spent:.0f} s" + (f", about {left:.0f} s left" if left else "")
                )

        work = partial(_attempt, folder=str(self.out), trust=trust)
        if workers == 1:
            tasks, endings = self._tasks(1), []
            for task in tasks:
                endings.append(work(task, progress=progress))
                done(task)
        elif workers == "ray":
            with ray_cluster() as cpus:
                tasks = self._tasks(cpus)
                # workers have working directories of their own
                work = partial(work, folder=str(self.out.absolute()))
                endings = on_ray(work, tasks, progress, done)
        else:
            tasks = self._tasks(int(workers))
            endings = in_processes(work, tasks, int(workers), progress, done)
        played: dict[str, list[Ending]] = {name: [] for name in self.settings.policies}
        for task, ending in zip(tasks, endings, strict=True):
            played[task.policy].append(ending)
        return played

    def _tasks(self, workers: int) -> list[Task]:
        """Return every policy's tasks, with its trials divided among the workers."""
        trials = self.settings.trials
        parts = min(workers, trials)
        edges = [trials * k // parts for k in range(parts + 1)]
        return [
            Task(self.experiment, self.settings, name, range(a, b))
            for name in self.settings.policies
            for a, b in itertools.pairwise(edges)
        ]

    def conclude(
        self, played: Mapping[str, list[Ending]], every: int, draws: bool
    ) -> dict[str, Any]:
        """Write the results of all finished runs; return the summary."""
        experiment, settings, out = self.experiment, self.settings, self.out
        runs: dict[str, Run] = {}
        status: dict[str, str] = {}
        for name, endings in played.items():
            errors = [ending for ending in endings if isinstance(ending, CBanditError)]
            status[name] = f"failed: {errors[0]}" if errors else "complete"
            if not errors:
                parts = [Run.load(str(ending)) for ending in endings]
                runs[name] = parts[0] if len(parts) == 1 else join(parts)
        if not runs:
            raise CBanditError(in_words(status))
        summary = results.summarise(settings, runs, status, experiment.changes)
        curves = plots.curves(list(runs.values()), points=results.POINTS)
        results.write_curves(curves, out)
        results.write_rounds(list(runs.values()), out, every)
        figures, boxes = experiment.figures, None
        if figures.boxes is not None:
            boxes = results.write_boxes(runs, figures.boxes, figures.averaged, out)
        design = summary.get("design", 0)
        outcome = Outcome(experiment, settings, curves, design=design)
        drawn = outcome.draw(boxes, out) if draws else []
        summary["figures"] = [path.name for path in drawn]
        # last, since this file says that all others are there
        results.write_summary(summary, out)
        if len(runs) == len(status):
            shutil.rmtree(out / "runs", ignore_errors=True)
            shutil.rmtree(out / "checkpoints", ignore_errors=True)
        return summary


# -------------------------------------------------------------------------- a task


def _imported(names: tuple[str, ...]) -> tuple[ModuleType, ...]:
    try:
        return tuple(import_module(name) for name in names)
    except (ImportError, TypeError, ValueError) as error:
        raise CBanditError(f"trust: {', '.join(names)}: {error}") from None


def _attempt(
    task: Task, folder: str, trust: tuple[str, ...], progress: bool = False
) -> Ending:
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
    """Return whether a run has all rounds and trials of a task."""
    wanted = task.policy, task.settings.seed, task.trials, task.settings.horizon
    return (run.policy, run.seed, run.trials, run.rounds) == wanted
