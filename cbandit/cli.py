"""The command line: ``cbandit --help``. Heavy imports wait until they are needed."""

from __future__ import annotations

import json
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from cbandit.errors import CBanditError, LostRankError

__all__ = ["app", "main"]

BENCHMARKS = ("round", "trials", "peers", "lp", "box", "feedback", "linear", "gpu")

app = typer.Typer(
    name="cbandit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Constrained bandits: run the papers' experiments, and measure the library.",
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
    from cbandit.experiments.settings import Settings

    find(name)
    settings = Settings.of(
        name,
        parameters=_pairs(set_),
        **_options(trials, horizon, policies, seed, device, dtype),
    )
    _carry_out(settings, out or Path("results") / name, resume, workers)


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
    from cbandit.experiments.settings import settings_from_toml

    settings = settings_from_toml(
        config,
        parameters=_pairs(set_),
        **_options(trials, horizon, policies, seed, device, dtype),
    )
    home = Path("results") / settings.experiment
    _carry_out(settings, out or home, resume, workers)


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
    from cbandit.experiments.results import draw, draw_together, read_curves
    from cbandit.experiments.settings import settings_from_toml

    if panels is not None and figure is None:
        raise CBanditError("--panels goes with --figure FILE")
    if figure is not None:
        draw_together(folders, figure, panels)
        print(figure)
        return
    for folder in folders:
        table = read_curves(folder)
        for path in draw(table, folder, settings_from_toml(folder / "config.toml")):
            print(path)


@app.command()
def bench(
    what: Annotated[str, typer.Argument(metavar="|".join(BENCHMARKS))],
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes.")] = False,
    json_: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write it there too.")
    ] = None,
) -> None:
    """Measure the library against plain ways to do the same, on this machine.

    Example: cbandit bench round --quick
    """
    if what not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise CBanditError(f"no benchmark is named {what!r}; known: {known}")
    if json_ is not None:
        from cbandit._core.files import atomic, writable

        writable(json_)
    home = import_module(f"cbandit.bench.{what}")
    result = getattr(home, f"bench_{what}")(quick)
    print(home.table(result))
    if json_ is not None:
        with atomic(json_) as file:
            file.write(json.dumps(result, indent=1).encode())
    if not result["ok"]:
        raise typer.Exit(1)


@app.command()
def info() -> None:
    """Versions, devices, data files, and which engine would be used for what.

    Example: cbandit info
    """
    import platform

    import torch

    from cbandit.experiments.results import versions
    from cbandit.problems.data import folders

    _print_tree(versions())
    print(f"cpu: {platform.processor() or platform.machine()}, ", end="")
    print(f"{torch.get_num_threads()} threads")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(k) for k in range(count)]
    print("cuda: " + (", ".join(names) or "none"))
    for folder in folders():
        print(f"data: {folder}" + ("" if folder.is_dir() else " (not there)"))
    describe = getattr(import_module("cbandit.posterior"), "describe_engines", None)
    if describe is not None:
        print(describe())


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


def _carry_out(settings: Any, out: Path, resume: bool, workers: str) -> None:
    from cbandit._core.distributed import launched

    if workers != "ray" and (not workers.isdecimal() or int(workers) < 1):
        raise CBanditError(
            f"--workers must be a number above 0, or ray; got {workers!r}"
        )
    with launched() as ranks, warnings.catch_warnings():
        if ranks.rank == 0:
            _carry_out_and_tell(settings, out, resume, workers)
            return
        # the first rank says it all, but what it may not live to say
        warnings.simplefilter("ignore")
        try:
            _summary(settings, out, resume, workers)
        except LostRankError:
            raise
        except CBanditError:
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None


def _summary(settings: Any, out: Path, resume: bool, workers: str) -> dict[str, Any]:
    from cbandit.experiments.runner import carry_out

    number = workers if workers == "ray" else int(workers)
    return carry_out(settings, out, resume=resume, workers=number)


def _carry_out_and_tell(settings: Any, out: Path, resume: bool, workers: str) -> None:
    from cbandit.experiments.runner import in_words

    before = not resume and (out / "summary.json").exists()
    try:
        summary = _summary(settings, out, resume, workers)
    except (KeyboardInterrupt, SystemExit) as stop:
        print(
            f"\ninterrupted; the same with --resume goes on from {out}", file=sys.stderr
        )
        code = stop.code if isinstance(stop, SystemExit) else 130
        raise SystemExit(code) from None
    print(_table(summary))
    for line in [*_stages(summary), *_phases(summary), _settled(summary)]:
        print(line)
    print(_growth(out, settings.horizon))
    replaced = " (in place of earlier results of the same settings)" if before else ""
    print(
        f"figures: {', '.join(str(out / name) for name in summary.get('figures', ()))}"
        f"{replaced}"
    )
    status = {name: each["status"] for name, each in summary["policies"].items()}
    failed = {name: said for name, said in status.items() if said != "complete"}
    if failed:
        raise CBanditError(in_words(failed))


def _growth(out: Path, horizon: int) -> str:
    """Exponents fitted to the mean curves over the last nine tenths of the rounds."""
    from cbandit.experiments.results import read_curves
    from cbandit.simulation.curves import exponent

    first = max(1, horizon // 10)
    parts = []
    for policy, table in read_curves(out).items():
        fitted = []
        for name in ("stochastic_regret", "hard_violation"):
            power = round(exponent(table[name], first), 2) + 0.0  # never -0.0
            known = "none (not positive)" if power != power else f"{power:.2f}"
            fitted.append(f"{_COLUMNS[name]} {known}")
        parts.append(f"{policy} {', '.join(fitted)}")
    head = f"growth from round {first} to {horizon}, fitted exponents: "
    return head + "; ".join(parts)


_COLUMNS = {
    "regret": "regret",
    "stochastic_regret": "stoch. regret",
    "soft_violation": "soft viol.",
    "hard_violation": "hard viol.",
    "rounds_in_violation": "rounds in viol.",
}


def _stages(summary: dict[str, Any]) -> list[str]:
    """Of every policy that randomises: policy regret and stage costs, in words."""
    trials = summary["trials"]
    lines = []
    for name, each in summary["policies"].items():
        if "policy_regret" not in each:
            continue
        regret = _number(**each["policy_regret"], trials=trials)
        rounds, runs, worst = (
            each[key]["mean"]
            for key in ("stage_rounds_kept", "stage_runs_kept", "worst_stage_cost")
        )
        lines.append(
            f"{name}: policy regret {regret}; expected cost at most its threshold in "
            f"{rounds:.4%} of the rounds, in every round of {runs:.4%} of the runs "
            f"(cost less threshold at most {worst:.3g})"
        )
    return lines


def _table(summary: dict[str, Any]) -> str:
    """The final values, mean +- standard error over the trials."""
    trials = summary["trials"]
    rows = [["policy", *_COLUMNS.values(), "ms/round"]]
    for name, each in summary["policies"].items():
        if "regret" not in each:
            rows.append([name, *["-"] * (len(_COLUMNS) + 1)])
            continue
        values = [
            _number(each[key]["mean"], each[key]["sem"], trials) for key in _COLUMNS
        ]
        rows.append([name, *values, f"{1e3 * each['seconds_per_round']:.3g}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head = f"{summary['experiment']}: {summary['horizon']} rounds, {trials} " + (
        "trials, mean +- standard error" if trials > 1 else "trial"
    )
    lines = [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]
    rule = "-" * len(lines[0])
    return "\n".join([head, rule, lines[0], rule, *lines[1:], rule])


def _phases(summary: dict[str, Any]) -> list[str]:
    """Of a world that changes: what a round brought in each of its phases."""
    out, trials = [], summary["trials"]
    for name, each in summary["policies"].items():
        for phase in each.get("phases", ()):
            found = [
                f"{word} {_number(phase[key]['mean'], phase[key]['sem'], trials)}"
                for key, word in (
                    ("reward", "reward"),
                    ("hard_violation", "hard viol."),
                )
            ]
            rounds = f"rounds {phase['first']}-{phase['last']}"
            out.append(
                (phase["first"], f"{rounds}, {name}: {', '.join(found)} a round")
            )
    return [line for _, line in sorted(out, key=lambda pair: pair[0])]


def _settled(summary: dict[str, Any]) -> str:
    """From which round on no trial has a soft violation."""
    parts = []
    for name, each in summary["policies"].items():
        first = each.get("soft_violation_over")
        parts.append(f"{name} {'-' if first is None else first}")
    return f"soft violation 0 in every trial from round: {', '.join(parts)}"


def _number(mean: float | None, sem: float | None, trials: int) -> str:
    if mean is None or sem is None or mean != mean:
        return "unknown"
    short = f"{sem:.2g}"
    spread = f"{sem:.4g}" if "e+" in short else short  # 138.2, rather than 1.4e+02
    return f"{mean:.4g}" + (f" +- {spread}" if trials > 1 else "")


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
