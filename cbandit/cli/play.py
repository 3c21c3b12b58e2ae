"""Commands that run or prepare experiments."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cbandit.cli.options import Options, with_options
from cbandit.errors import CBanditError, LostRankError

if TYPE_CHECKING:
    from cbandit.experiments.catalogue import Job


def list_(
    name: Annotated[str | None, typer.Argument(help="An experiment to show.")] = None,
) -> None:
    """List the experiments, or the parameters and policies of one.

    Example: cbandit list zhou-synthetic
    """
    from cbandit.experiments.catalogue import EXPERIMENTS, find

    if name is None:
        width = max(map(len, EXPERIMENTS))
        for experiment in EXPERIMENTS.values():
            print(f"{experiment.name:<{width}}  {experiment.about}")
        return
    experiment = find(name)
    print(f"{experiment.name}: {experiment.about}")
    print(f"  --horizon   {experiment.horizon}")
    print(f"  --trials    {experiment.trials}")
    print(f"  --policies  {','.join(experiment.policies)}")
    for key, parameter in experiment.parameters.items():
        choices = " | ".join(map(str, parameter.choices)) or parameter.default
        print(f"  --set {key}={choices}    {parameter.meaning}")


def init(
    table: Annotated[Path, typer.Argument(metavar="DATA.csv", help="A table.")],
    out: Annotated[
        Path, typer.Option(metavar="STUDY.toml", help="The file to write.")
    ] = Path("study.toml"),
    maximise: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column to maximise.")
    ] = None,
    minimise: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column to minimise.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="'COLUMN <= N'", help="<= or >=; may be repeated."),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Shown, not chosen; may be repeated."),
    ] = None,
    failed: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="True, yes or 1 where a row failed."),
    ] = None,
) -> None:
    """Write a commented study file from a table's columns, for `cbandit run`.

    Say which column is the reward (--maximise or --minimise) and which have a --limit:
    all others are then knobs. If you do not say, the file guesses; check it. A column
    counts as measured if it holds numbers, more than 20 different ones and more than a
    quarter as many as rows, and as a knob otherwise. In tables of few rows, fractions
    that hardly repeat may be measured too. Without --limit, all other measured columns
    are kept below their medians; if there are none, the file asks for a limit. Columns
    that set nothing are left out and named: texts and row numbers with another value in
    every row, identifiers, dates, constants, comments, texts that hardly repeat, copies
    of outcomes, and columns that follow from others or say which rows failed. A limit
    on a column of true and false, such as '<= 0.05', limits the probability of true.

    Example: cbandit init data.csv --maximise throughput --limit 'latency <= 20'
    """
    from cbandit._core.files import atomic
    from cbandit.experiments.init import sketch
    from cbandit.experiments.tables import read_table

    if maximise is not None and minimise is not None:
        raise CBanditError("--maximise and --minimise: give one of them")
    goals = [("maximise", maximise), ("minimise", minimise)]
    goal = next(((k, v) for k, v in goals if v is not None), None)
    if out.exists():
        raise CBanditError(f"{out} is there already; it is kept: choose another --out")
    made = sketch(
        read_table(table),
        str(table),
        str(out),
        out.stem,
        goal,
        limit or (),
        context or (),
        failed,
    )
    with atomic(out) as file:
        file.write(made.text.encode())
    for remark in made.remarks:
        print(remark)
    ready = "\n[problem.limits]" in made.text
    todo = "check it" if ready else "fill in [problem.limits]"
    then = f"cbandit run {quote(str(out))}; cbandit compare results/{quote(out.stem)}"
    print(f"{out}: {todo}, then: {then}")


def data(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    changed: Annotated[
        bool,
        typer.Option("--changed", help="Accept numbers that our results did not use."),
    ] = False,
) -> None:
    """Convert public copies of the papers' data into the files that experiments read.

    The copies are iw_data_all.mat (light sensors) and fin.csv (stocks), from the GitHub
    repository sayakrc/Bayesian-Optimization-under-Heavy-tailed-Payoffs. Shapes and
    digests are checked. The files go to $CBANDIT_DATA, or, if it is not set, to
    ~/.local/share/cbandit.

    Example: cbandit data iw_data_all.mat fin.csv
    """
    from cbandit.problems.data import write_public

    for file in files:
        for path in write_public(file, changed):
            print(f"{file}: {path}")


@with_options
def reproduce(
    name: Annotated[str, typer.Argument(help="The experiment; see `cbandit list`.")],
    options: Options,
) -> None:
    """Run a paper's experiment, by default at the paper's size.

    Writes summary.json, rounds.parquet (a row per policy, trial and round),
    means.parquet, config.toml and figures into --out, by default results/NAME. After
    Ctrl-C, the same command with --resume continues.

    Example: cbandit reproduce pacchiano-cyclic --set d=3 tau=0.2 --trials 10
    """
    from cbandit.experiments.catalogue import jobs_of

    jobs = jobs_of(name, parameters=options.parameters, **options.settings)
    _carry_out(jobs, options)


@with_options
def run(
    config: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The file.")],
    options: Options,
) -> None:
    """Run the study or experiment that a file describes; options override the file.

    A study is policies on a problem of your own: a table of measurements (see `cbandit
    init`), a test function of BoTorch, or module:object, which is looked up in the
    working directory and among installed packages. All of it is checked before
    anything runs. Results go into --out, by default results/NAME. A config.toml in a
    results folder may import only modules that --trust names.

    Example: cbandit run study.toml --trials 5
    """
    from cbandit.experiments.catalogue import jobs_in
    from cbandit.experiments.settings import of_results

    # with --resume the user's own file is trusted as in the first run
    known = options.trust or () if of_results(config) else None
    jobs = jobs_in(config, options.parameters, known, **options.settings)
    _carry_out(jobs, options)


def _carry_out(jobs: Sequence[Job], options: Options) -> None:
    from cbandit._core.distributed import launched

    workers = options.workers
    if workers != "ray" and (not workers.isdecimal() or int(workers) < 1):
        raise CBanditError(
            f"--workers must be a number above 0, or ray; got {workers!r}"
        )
    if options.trust:
        sys.path.append(os.getcwd())
    with launched() as ranks, warnings.catch_warnings():
        if ranks.rank == 0:
            _all_done(jobs, options)
            return
        # only the first rank prints messages; if it is lost, the others say so
        warnings.simplefilter("ignore")
        try:
            _all_done(jobs, options, aloud=False)
        except LostRankError:
            raise
        except CBanditError:
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None


def _all_done(jobs: Sequence[Job], options: Options, aloud: bool = True) -> None:
    """Try every study on a few rounds, then run all jobs."""
    from cbandit.experiments.study import tried

    home = options.out or Path("results") / jobs[0].experiment.name
    remarks: dict[str, None] = {}
    for job in jobs:
        if job.settings.tables:
            remarks |= dict.fromkeys(tried(job.experiment, job.settings))
    if aloud:
        print("".join(f"{remark}\n" for remark in remarks), end="")
    for job in jobs:
        _done(job, home / job.folder, options, aloud)
    if aloud and len(jobs) > 1:
        alike: dict[tuple[int, int], list[str]] = {}  # their trials are pairs
        for job in jobs:
            key = job.settings.horizon, job.settings.seed
            alike.setdefault(key, []).append(quote(str(home / job.folder)))
        for folders in alike.values():
            if len(folders) > 1 or len(jobs[0].settings.policies) > 1:
                print(f"to compare: cbandit compare {' '.join(folders)}")


def _done(job: Job, folder: Path, options: Options, aloud: bool) -> None:
    from cbandit.experiments.runner import carry_out

    again = not options.resume and (folder / "summary.json").exists()
    try:
        summary = carry_out(
            job.experiment,
            job.settings,
            folder,
            resume=options.resume,
            workers="ray" if options.workers == "ray" else int(options.workers),
            every=options.every,
            figures=options.figures,
            trust=tuple(options.trust or ()),
            say=_say if aloud else None,
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
    """Print a line, above the progress bars if on a terminal."""
    from tqdm import tqdm

    tqdm.write(line)
    sys.stdout.flush()


def _tell(summary: dict[str, Any], folder: Path, again: bool) -> None:
    from cbandit.experiments.report import growth, in_words, lines
    from cbandit.experiments.results import read_curves, rounds_in_words

    for line in lines(summary):
        print(line)
    print(growth(read_curves(folder), summary["horizon"]))
    print(rounds_in_words(folder))
    paths = [str(folder / name) for name in summary.get("figures", ())]
    drawn = ", ".join(paths) or f"none; cbandit plot {quote(str(folder))} draws them"
    replaced = " (in place of earlier results of the same settings)" if again else ""
    print(f"figures: {drawn}{replaced}")
    status = {name: row["status"] for name, row in summary["policies"].items()}
    failed = {name: words for name, words in status.items() if words != "complete"}
    if failed:
        raise CBanditError(in_words(failed))
