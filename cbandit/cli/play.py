"""Commands that run experiments: ``list``, ``init``, ``reproduce``, ``run``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cbandit.cli.options import (
    Device,
    Dtype,
    Every,
    Horizon,
    More,
    Out,
    Policies,
    Resume,
    Seed,
    Set,
    Trials,
    Trust,
    Workers,
    options,
    pairs,
)
from cbandit.errors import CBanditError, LostRankError

if TYPE_CHECKING:
    from cbandit.experiments.catalogue import Job

__all__ = ["init", "list_", "reproduce", "run"]


def list_(
    name: Annotated[str | None, typer.Argument(help="One experiment, in full.")] = None,
) -> None:
    """List the experiments, or the parameters and policies of one.

    Example: cbandit list zhou-synthetic
    """
    from cbandit.experiments.catalogue import EXPERIMENTS, find

    if name is None:
        width = max(map(len, EXPERIMENTS))
        for each in EXPERIMENTS.values():
            print(f"{each.name:<{width}}  {each.about}")
        return
    one = find(name)
    print(f"{one.name}: {one.about}")
    print(f"  --horizon   {one.horizon}")
    print(f"  --trials    {one.trials}")
    print(f"  --policies  {','.join(one.policies)}")
    for key, parameter in one.parameters.items():
        choices = " | ".join(map(str, parameter.choices)) or parameter.default
        print(f"  --set {key}={choices}    {parameter.meaning}")


def init(
    table: Annotated[Path, typer.Argument(metavar="DATA.csv", help="A table.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="STUDY.toml", help="The file to write.")
    ] = Path("study.toml"),
    maximise: Annotated[
        str | None, typer.Option("--maximise", metavar="COLUMN", help="The reward.")
    ] = None,
    minimise: Annotated[
        str | None, typer.Option("--minimise", metavar="COLUMN", help="Or this.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit", metavar="'COLUMN <= N'", help="Or >=; may be repeated."
        ),
    ] = None,
) -> None:
    """Write a commented study file from a table's columns, for `cbandit run`.

    A column counts as measured if it holds numbers, more than 20 different ones and
    more than a quarter as many as rows, and as a knob otherwise; --maximise (or
    --minimise) and --limit say it better. Texts and row numbers with another value in
    every row are left out. Without --limit the other measured columns are kept below
    their medians, and where there are none the file asks for a limit. In tables of few
    rows, fractions that hardly repeat may be measured too; the file marks guesses.
    Check it.

    Example: cbandit init data.csv --maximise throughput --limit 'latency <= 20'
    """
    from cbandit._core.files import atomic
    from cbandit.experiments.init import study_text
    from cbandit.experiments.worlds import read_table

    if maximise is not None and minimise is not None:
        raise CBanditError("--maximise and --minimise: give one of them")
    goals = [("maximise", maximise), ("minimise", minimise)]
    goal = next(((k, v) for k, v in goals if v is not None), None)
    if out.exists():
        raise CBanditError(f"{out} is there already; it is kept: choose another --out")
    text = study_text(
        read_table(table), str(table), str(out), out.stem, goal, limit or ()
    )
    with atomic(out) as file:
        file.write(text.encode())
    todo = "check it" if "\n[problem.limits]" in text else "fill in [problem.limits]"
    print(f"{out}: {todo}, then: cbandit run {out}")


def reproduce(
    name: Annotated[str, typer.Argument(help="Of the experiment; see `cbandit list`.")],
    more: More = None,
    set_: Set = None,
    trials: Trials = None,
    horizon: Horizon = None,
    policies: Policies = None,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    resume: Resume = False,
    workers: Workers = "1",
    every: Every = 1,
    trust: Trust = None,
) -> None:
    """Run a paper's experiment, at the paper's size unless told otherwise.

    Writes summary.json, rounds.parquet (a row a policy, trial and round),
    means.parquet, config.toml and figures into --out, which is results/NAME unless
    given. Ctrl-C leaves a folder that --resume goes on with.

    Example: cbandit reproduce pacchiano-cyclic --set d=3 tau=0.2 --trials 10
    """
    from cbandit.experiments.catalogue import jobs_of

    given = options(trials, horizon, policies, seed, device, dtype)
    jobs = jobs_of(name, parameters=pairs(set_, more), **given)
    _carry_out(jobs, out, resume, workers, every, trust)


def run(
    config: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The file.")],
    more: More = None,
    set_: Set = None,
    trials: Trials = None,
    horizon: Horizon = None,
    policies: Policies = None,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    resume: Resume = False,
    workers: Workers = "1",
    every: Every = 1,
    trust: Trust = None,
) -> None:
    """Run the study, or the experiment, of a file; options given here win over it.

    A study is policies on a problem of your own: a table of measurements (see `cbandit
    init`), a test function of BoTorch, or module:object, which is looked up in the
    working directory and among installed packages. All of it is checked before
    anything runs. Results go into --out, results/NAME unless given. With --resume, and
    from the config.toml in a folder of results, only modules that --trust names are
    imported.

    Example: cbandit run study.toml --trials 5
    """
    from cbandit.experiments.catalogue import jobs_in
    from cbandit.experiments.settings import of_results

    given = options(trials, horizon, policies, seed, device, dtype)
    known = trust or () if resume or of_results(config) else None
    jobs = jobs_in(config, pairs(set_, more), known, **given)
    _carry_out(jobs, out, resume, workers, every, trust)


def _carry_out(
    jobs: Sequence[Job],
    out: Path | None,
    resume: bool,
    workers: str,
    every: int,
    trust: list[str] | None,
) -> None:
    from cbandit._core.distributed import launched

    if workers != "ray" and (not workers.isdecimal() or int(workers) < 1):
        raise CBanditError(
            f"--workers must be a number above 0, or ray; got {workers!r}"
        )
    if trust:
        sys.path.append(os.getcwd())
    home = out or Path("results") / jobs[0].experiment.name
    work = partial(
        _done,
        resume=resume,
        workers=workers if workers == "ray" else int(workers),
        every=every,
        trust=tuple(trust or ()),
    )
    with launched() as ranks, warnings.catch_warnings():
        if ranks.rank == 0:
            _all_done(jobs, home, work)
            return
        # the first rank says all, except that it was lost
        warnings.simplefilter("ignore")
        try:
            _all_done(jobs, home, work, aloud=False)
        except LostRankError:
            raise
        except CBanditError:
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None


def _all_done(
    jobs: Sequence[Job], home: Path, work: Callable[..., Any], aloud: bool = True
) -> None:
    """Try out every study, then carry all jobs out."""
    from cbandit.experiments.study import tried

    remarks: dict[str, None] = {}
    for job in jobs:
        if job.settings.tables:
            remarks |= dict.fromkeys(tried(job.experiment, job.settings))
    if aloud:
        print("".join(f"{each}\n" for each in remarks), end="")
    for job in jobs:
        work(job, home / job.folder, aloud=aloud)
    if aloud and len(jobs) > 1:
        folders = " ".join(str(home / job.folder) for job in jobs)
        print(f"to compare them: cbandit compare {folders}")


def _done(job: Job, folder: Path, aloud: bool, resume: bool, **options: Any) -> None:
    from cbandit.experiments.runner import carry_out

    again = not resume and (folder / "summary.json").exists()
    try:
        summary = carry_out(
            job.experiment,
            job.settings,
            folder,
            resume=resume,
            say=_say if aloud else None,
            **options,
        )
    except (KeyboardInterrupt, SystemExit) as stop:
        if not aloud:
            raise
        print(
            f"\ninterrupted; the same with --resume goes on from {folder}",
            file=sys.stderr,
        )
        code = stop.code if isinstance(stop, SystemExit) else 130
        raise SystemExit(code) from None
    if aloud:
        _tell(summary, folder, again)


def _say(line: str) -> None:
    """Print a line, on a terminal above the progress bars."""
    from tqdm import tqdm

    tqdm.write(line)
    sys.stdout.flush()


def _tell(summary: dict[str, Any], folder: Path, again: bool) -> None:
    from cbandit.experiments.report import growth, in_words, lines
    from cbandit.experiments.results import read_curves
    from cbandit.experiments.rounds import rounds_in_words

    for line in lines(summary):
        print(line)
    print(growth(read_curves(folder), summary["horizon"]))
    print(rounds_in_words(folder))
    paths = ", ".join(str(folder / name) for name in summary.get("figures", ()))
    replaced = " (in place of earlier results of the same settings)" if again else ""
    print(f"figures: {paths}{replaced}")
    status = {name: each["status"] for name, each in summary["policies"].items()}
    failed = {name: said for name, said in status.items() if said != "complete"}
    if failed:
        raise CBanditError(in_words(failed))
