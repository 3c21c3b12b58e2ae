"""Commands that run experiments: ``list``, ``reproduce``, ``run``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cbandit.cli.options import (
    Device,
    Dtype,
    Every,
    Horizon,
    Out,
    Policies,
    Resume,
    Seed,
    Set,
    Trials,
    Workers,
    options,
    pairs,
)
from cbandit.errors import CBanditError, LostRankError

__all__ = ["list_", "reproduce", "run"]


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


def reproduce(
    name: Annotated[str, typer.Argument(help="Of the experiment; see `cbandit list`.")],
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
) -> None:
    """Run a paper's experiment, at the paper's size unless told otherwise.

    Writes summary.json, rounds.parquet (a row a policy, trial and round),
    means.parquet, config.toml and figures into --out, which is results/NAME unless
    given. Ctrl-C leaves a folder that --resume goes on with.

    Example: cbandit reproduce zhou-synthetic --set cost=quarter --trials 10
    """
    from cbandit.experiments.catalogue import find

    given = options(trials, horizon, policies, seed, device, dtype)
    settings = find(name).settings(parameters=pairs(set_), **given)
    _carry_out(settings, out, resume, workers, every)


def run(
    config: Annotated[Path, typer.Argument(help="A settings file.")],
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
) -> None:
    """Run the experiment of a settings file; options given here win over the file's.

    Results go into --out, results/EXPERIMENT unless given.

    Example: cbandit run benchmarks/zhou-synthetic.toml --trials 5
    """
    from cbandit.experiments.catalogue import settings_from_toml

    given = options(trials, horizon, policies, seed, device, dtype)
    settings = settings_from_toml(config, parameters=pairs(set_), **given)
    _carry_out(settings, out, resume, workers, every)


def _carry_out(
    settings: Any, out: Path | None, resume: bool, workers: str, every: int
) -> None:
    from functools import partial

    from cbandit._core.distributed import launched
    from cbandit.experiments.catalogue import find
    from cbandit.experiments.runner import carry_out

    if workers != "ray" and (not workers.isdecimal() or int(workers) < 1):
        raise CBanditError(
            f"--workers must be a number above 0, or ray; got {workers!r}"
        )
    folder = out or Path("results") / settings.experiment
    work = partial(
        carry_out,
        find(settings.experiment),
        settings,
        folder,
        resume=resume,
        workers=workers if workers == "ray" else int(workers),
        every=every,
    )
    with launched() as ranks, warnings.catch_warnings():
        if ranks.rank == 0:
            again = not resume and (folder / "summary.json").exists()
            _tell(_summary(work, folder), folder, again)
            return
        # the first rank says all, except that it was lost
        warnings.simplefilter("ignore")
        try:
            work()
        except LostRankError:
            raise
        except CBanditError:
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None


def _summary(work: Callable[[], dict[str, Any]], folder: Path) -> dict[str, Any]:
    try:
        return work()
    except (KeyboardInterrupt, SystemExit) as stop:
        print(
            f"\ninterrupted; the same with --resume goes on from {folder}",
            file=sys.stderr,
        )
        code = stop.code if isinstance(stop, SystemExit) else 130
        raise SystemExit(code) from None


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
