"""The command line, ``cbandit``. Commands import what they need when they run."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from cbandit.errors import CBanditError, LostRankError

__all__ = ["app", "main"]

app = typer.Typer(
    name="cbandit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Constrained bandits: run the papers' experiments.",
)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PARAM=VALUE", help="A parameter; may be repeated."),
]
Trials = Annotated[
    int | None, typer.Option("--trials", min=1, help="Independent replications.")
]
Horizon = Annotated[int | None, typer.Option("--horizon", min=1, help="Rounds.")]
Policies = Annotated[
    str | None,
    typer.Option("--policies", metavar="A,B", help="Some of the policies, by name."),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Of every draw.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="cpu|cuda", help="Where to compute.")
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", metavar="float64|float32", help="Precision.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder of the results."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with what is in the folder.")
]
Workers = Annotated[
    str,
    typer.Option(
        "--workers", metavar="N|ray", help="Processes to share the trials, or Ray's."
    ),
]


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"cbandit {version('cbandit')}")
        except PackageNotFoundError:
            print("cbandit, run from its source: not installed")
        raise typer.Exit


@app.callback()
def _before_all(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print it."),
    ] = False,
) -> None: ...


@app.command("list")
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


@app.command()
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
) -> None:
    """Run a paper's experiment, at the paper's size unless told otherwise.

    Writes summary.json, rounds.parquet, config.toml and figures into --out, which is
    results/NAME unless given. Ctrl-C leaves a folder that --resume goes on with.

    Example: cbandit reproduce zhou-synthetic --set cost=quarter --trials 10
    """
    from cbandit.experiments.catalogue import find

    options = _options(trials, horizon, policies, seed, device, dtype)
    settings = find(name).settings(parameters=_pairs(set_), **options)
    _carry_out(settings, out, resume, workers)


@app.command()
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
) -> None:
    """Run the experiment of a settings file; options given here win over the file's.

    Results go into --out, results/EXPERIMENT unless given.

    Example: cbandit run benchmarks/zhou-synthetic.toml --trials 5
    """
    from cbandit.experiments.catalogue import settings_from_toml

    options = _options(trials, horizon, policies, seed, device, dtype)
    settings = settings_from_toml(config, parameters=_pairs(set_), **options)
    _carry_out(settings, out, resume, workers)


@app.command()
def plot(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...")],
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure", metavar="FILE", help="One figure of all, a row for each folder."
        ),
    ] = None,
    panels: Annotated[
        str | None,
        typer.Option(
            "--panels",
            metavar="PARAM",
            help="With --figure: regret alone, a panel for each value of this.",
        ),
    ] = None,
) -> None:
    """Draw the figures again from the results in one or several folders.

    Example: cbandit plot results/four-0.8 results/four-0.2 --figure four.png
    """
    from cbandit.experiments.catalogue import find, settings_from_toml
    from cbandit.experiments.figures import Drawn, draw, draw_together
    from cbandit.experiments.results import read_curves

    if panels is not None and figure is None:
        raise CBanditError("--panels goes with --figure FILE")
    drawn = []
    for folder in folders:
        table = read_curves(folder)
        settings = settings_from_toml(folder / "config.toml")
        experiment = find(settings.experiment)
        if figure is None:
            for path in draw(experiment, settings, table, folder):
                print(path)
        drawn.append(Drawn(folder.name, experiment, settings, table))
    if figure is not None:
        draw_together(drawn, figure, panels)
        print(figure)


@app.command()
def info() -> None:
    """Versions, devices, data files, and which engine would be used for what.

    Example: cbandit info
    """
    import platform

    import torch

    from cbandit.experiments.results import versions
    from cbandit.posterior import describe_engines
    from cbandit.problems.data import folders

    _print_tree(versions())
    print(f"cpu: {platform.processor() or platform.machine()}, ", end="")
    print(f"{torch.get_num_threads()} threads")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(k) for k in range(count)]
    print("cuda: " + (", ".join(names) or "none"))
    for folder in folders():
        print(f"data: {folder}" + ("" if folder.is_dir() else " (not there)"))
    print(describe_engines())


def _pairs(given: list[str] | None) -> dict[str, str]:
    out = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CBanditError(f"--set takes PARAM=VALUE; got {pair!r}")
        if name.strip() in out:
            raise CBanditError(f"--set {name.strip()} is there twice; give it once")
        out[name.strip()] = value.strip()
    return out


def _options(
    trials: int | None,
    horizon: int | None,
    policies: str | None,
    seed: int | None,
    device: str | None,
    dtype: str | None,
) -> dict[str, Any]:
    names = None
    if policies is not None:
        names = [name.strip() for name in policies.split(",") if name.strip()]
    return {
        "trials": trials,
        "horizon": horizon,
        "policies": names,
        "seed": seed,
        "device": device,
        "dtype": dtype,
    }


def _carry_out(settings: Any, out: Path | None, resume: bool, workers: str) -> None:
    from cbandit._core.distributed import launched

    if workers != "ray" and (not workers.isdecimal() or int(workers) < 1):
        raise CBanditError(
            f"--workers must be a number above 0, or ray; got {workers!r}"
        )
    folder = out or Path("results") / settings.experiment
    with launched() as ranks, warnings.catch_warnings():
        if ranks.rank == 0:
            _carry_out_and_tell(settings, folder, resume, workers)
            return
        # the first rank says all, except that it was lost
        warnings.simplefilter("ignore")
        try:
            _summary(settings, folder, resume, workers)
        except LostRankError:
            raise
        except CBanditError:
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None


def _summary(settings: Any, out: Path, resume: bool, workers: str) -> dict[str, Any]:
    from cbandit.experiments.catalogue import find
    from cbandit.experiments.runner import carry_out

    experiment = find(settings.experiment)
    number = workers if workers == "ray" else int(workers)
    return carry_out(experiment, settings, out, resume=resume, workers=number)


def _carry_out_and_tell(settings: Any, out: Path, resume: bool, workers: str) -> None:
    from cbandit.experiments.report import growth, in_words, lines
    from cbandit.experiments.results import read_curves

    before = not resume and (out / "summary.json").exists()
    try:
        summary = _summary(settings, out, resume, workers)
    except (KeyboardInterrupt, SystemExit) as stop:
        print(
            f"\ninterrupted; the same with --resume goes on from {out}", file=sys.stderr
        )
        code = stop.code if isinstance(stop, SystemExit) else 130
        raise SystemExit(code) from None
    for line in lines(summary):
        print(line)
    print(growth(read_curves(out), settings.horizon))
    replaced = " (in place of earlier results of the same settings)" if before else ""
    print(
        f"figures: {', '.join(str(out / name) for name in summary.get('figures', ()))}"
        f"{replaced}"
    )
    status = {name: each["status"] for name, each in summary["policies"].items()}
    failed = {name: said for name, said in status.items() if said != "complete"}
    if failed:
        raise CBanditError(in_words(failed))


def _print_tree(tree: Any, indent: str = "") -> None:
    for key, value in tree.items():
        if isinstance(value, dict):
            print(f"{indent}{key}:")
            _print_tree(value, indent + "  ")
        else:
            print(f"{indent}{key}: {value}")


def main(arguments: list[str] | None = None) -> None:
    """The entry point; a user's error is one line and exit code 2."""
    try:
        app(args=arguments)
    except CBanditError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except ImportError as error:
        if error.name is None or error.name.startswith("cbandit"):
            raise
        print(
            f"Error: {error.name} is not installed: pip install 'cbandit[experiments]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
