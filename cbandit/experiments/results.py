"""What an experiment leaves behind: its summary, its curves, its figures."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbandit.errors import CBanditError, MissingExtraError
from cbandit.experiments.catalogue import find
from cbandit.experiments.settings import Settings, settings_from_toml

if TYPE_CHECKING:
    from cbandit.simulation.curves import Curve
    from cbandit.simulation.plots import Curves, Level
    from cbandit.simulation.run import Run

__all__ = [
    "draw",
    "draw_together",
    "read_curves",
    "summarise",
    "versions",
    "write_results",
]

_VIOLATIONS = ("soft_violation", "hard_violation")
POINTS = 1000  # rounds kept of each curve in rounds.parquet: well below a megabyte each


def summarise(
    settings: Settings, runs: Mapping[str, Run], status: Mapping[str, str]
) -> dict[str, Any]:
    """What is in ``summary.json``."""
    policies: dict[str, Any] = {}
    for name, state in status.items():
        policies[name] = {"status": state}
        if name in runs:
            short = runs[name].summary()
            policies[name] = {
                **{metric: dict(each) for metric, each in short.items()},
                "soft_violation_over": _over(runs[name]),
                "seconds_per_round": short.seconds_per_round,
                "status": state,
            }
            changes = find(settings.experiment).changes
            if changes:
                policies[name]["phases"] = _phases(runs[name], changes)
    return {
        "experiment": settings.experiment,
        "parameters": settings.parameters,
        "horizon": settings.horizon,
        "trials": settings.trials,
        "device": settings.device,
        "dtype": settings.dtype,
        "seed": settings.seed,
        "versions": versions(),
        "policies": policies,
    }


def _over(run: Run) -> int | None:
    """The round from which the soft violation is 0 in every trial; ``None``: never."""
    worst = run.soft_violation.reshape(-1, run.rounds).amax(0)
    first = int((worst > 0).nonzero().max()) + 2 if bool((worst > 0).any()) else 1
    return first if first <= run.rounds else None


def _phases(run: Run, changes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Reward, regret and hard violation a round within each phase of the world."""
    edges = [1, *(t for t in changes if t <= run.rounds), run.rounds + 1]
    out = []
    for first, after in itertools.pairwise(edges):
        phase: dict[str, Any] = {"first": first, "last": after - 1}
        for name in ("reward", "regret", "hard_violation"):
            total = run.cumulative(name).reshape(-1, run.rounds)
            gained = total[:, after - 2] - (total[:, first - 2] if first > 1 else 0.0)
            mean = gained / (after - first)
            count = len(mean)
            sem = float(mean.std()) / count**0.5 if count > 1 else 0.0
            phase[name] = {"mean": float(mean.mean()), "sem": sem}
        out.append(phase)
    return out


def versions() -> dict[str, str]:
    """Of the library and of all that its numbers depend on."""
    from importlib.metadata import PackageNotFoundError, version

    out = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in (
        "cbandit",
        "torch",
        "gpytorch",
        "botorch",
        "linear_operator",
        "numpy",
        "scipy",
        "triton",
    ):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out


def _without_nan(value: Any) -> Any:
    """NaN is no JSON: ``null`` instead, where a number is not known."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_results(
    settings: Settings, out: Path, runs: Mapping[str, Run], summary: dict[str, Any]
) -> None:
    """Summary, curves, boxes and figures, each file whole or not at all.

    The summary is told which figures there are.
    """
    from cbandit._core.files import atomic
    from cbandit.simulation import plots

    table = plots.curves(list(runs.values()), points=POINTS)
    with atomic(out / "rounds.parquet") as file:
        _frame(table).to_parquet(file, index=False)
    every = find(settings.experiment).boxes
    if every is not None:
        with atomic(out / "boxes.parquet") as file:
            metrics = find(settings.experiment).averaged
            _boxes(runs, every, metrics).to_parquet(file, index=False)
    summary["figures"] = [path.name for path in draw(table, out, settings)]
    # last: its presence says that all the rest is there
    with atomic(out / "summary.json") as file:
        file.write(json.dumps(_without_nan(summary), indent=1).encode())


def draw(table: Curves, out: Path, settings: Settings) -> list[Path]:
    """The figures of an experiment: the account, its time averages, and its own."""
    from cbandit.simulation import plots

    experiment = find(settings.experiment)
    title = _title(settings, settings.parameters)
    style: dict[str, Any] = {"spread": experiment.spread, "width": experiment.width}
    metrics = ("regret", "soft_violation", "hard_violation", "rounds_in_violation")
    account = plots.overview(
        table, metrics, title=title, marks=experiment.changes, **style
    )
    averages = plots.overview(
        table,
        experiment.averaged,
        title=title,
        average=True,
        log=False if experiment.changes else None,
        marks=experiment.changes,
        **style,
    )
    drawn = {"account.png": account, "averages.png": averages}
    if experiment.evolution is not None:
        drawn["evolution.png"] = plots.evolution(
            [("", *_levelled(table, settings))],
            (experiment.evolution, "stage_cost", "expected_reward"),
            title=title,
            **style,
        )
    chosen = _words(settings.parameters)
    name = settings.experiment + (f" ({chosen})" if chosen else "")
    words = f"{name}: {settings.trials} trials"
    if (out / "boxes.parquet").is_file():
        frame = _pandas().read_parquet(out / "boxes.parquet")
        drawn["boxes.png"] = plots.boxes(frame, title=words, table=table)
    if experiment.early is not None:
        drawn["early.png"] = plots.overview(
            table,
            experiment.averaged,
            title=title,
            average=True,
            log=False,
            until=experiment.early,
            **style,
        )
    if experiment.traded is not None:
        drawn["trade-off.png"] = plots.trade_off(table, experiment.traded, title=words)
    paths = [out / name for name in drawn]
    for figure, path in zip(drawn.values(), paths, strict=True):
        plots.save(figure, path)
    return paths


def _title(settings: Settings, parameters: Mapping[str, Any]) -> str:
    """The experiment, these of its parameters, and what its bands are."""
    title = settings.experiment + (f" ({_words(parameters)})" if parameters else "")
    if settings.trials == 1:
        return title
    experiment = find(settings.experiment)
    band = "standard error" if experiment.spread == "sem" else "standard deviation"
    share = "" if experiment.width == 1 else f"{experiment.width:g} "
    return title + f": mean and {share}{band} of {settings.trials} trials"


def _words(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in parameters.items())


def _levelled(
    table: Curves, settings: Settings
) -> tuple[Curves, dict[str, list[Level]]]:
    """Curves with costs in the problem's units, and what is optimal and allowed.

    Where thresholds differ from trial to trial, or there are several costs, what is
    left is the largest cost less its threshold.
    """
    problem = find(settings.experiment).problem(
        settings.parameters, range(settings.trials), settings.seed
    )
    tau = problem.thresholds.reshape(-1)
    best = float(problem.stochastic_optimum(1).mean())
    spent = problem.optimal_costs() - problem.thresholds
    shift = float(tau[0]) if problem.m == 1 and bool((tau == tau[0]).all()) else 0.0
    moved: dict[str, dict[str, Curve]] = {}
    for policy, each in table.items():
        moved[policy] = dict(each)
        if "stage_cost" in each:
            cost = each["stage_cost"]
            moved[policy]["stage_cost"] = replace(cost, mean=cost.mean + shift)
    optimal = float(spent.amax(-1).mean()) + shift
    return moved, {
        "stage_cost": [
            ("threshold", shift, "#000000"),
            ("optimum", optimal, "#C00000"),
        ],
        "expected_reward": [("optimum", best, "#C00000")],
    }


def draw_together(
    folders: Sequence[Path], path: Path, panels: str | None = None
) -> None:
    """One figure of several folders, each with other parameters of one experiment.

    Args:
        folders: of results.
        path: of the figure.
        panels: a parameter: regret alone, a panel for each of its values, a curve for
            each of the others'. Left out: a row for each folder, with costs and
            rewards, or with violations where there are no expected ones.
    """
    from cbandit.simulation import plots

    every = [settings_from_toml(folder / "config.toml") for folder in folders]
    first = every[0]
    experiment = find(first.experiment)
    if any(each.experiment != first.experiment for each in every):
        names = ", ".join(sorted({each.experiment for each in every}))
        raise CBanditError(f"folders must hold one experiment; got {names}")
    if panels is not None and panels not in first.parameters:
        raise CBanditError(
            f"panels must be a parameter of {first.experiment}, one of "
            f"{', '.join(first.parameters)}; got {panels!r}"
        )
    differing = [
        name
        for name in first.parameters
        if len({each.parameters[name] for each in every}) > 1
    ]
    alike = {k: v for k, v in first.parameters.items() if k not in differing}
    title = _title(first, alike)
    style: dict[str, Any] = {"spread": experiment.spread, "width": experiment.width}

    def named(settings: Settings, without: str | None = None) -> str:
        mine = settings.parameters
        return _words({k: mine[k] for k in differing if k != without})

    tables = [read_curves(folder) for folder in folders]
    staged = experiment.evolution is not None
    regret = experiment.evolution or "regret"
    if panels is None:
        pairs = zip(every, folders, strict=True)
        heads = [named(each) or folder.name for each, folder in pairs]
        rows = [
            (head, *(_levelled(table, each) if staged else (table, {})))
            for head, each, table in zip(heads, every, tables, strict=True)
        ]
        others = ("stage_cost", "expected_reward") if staged else _VIOLATIONS
        metrics = (regret, *others)
        plots.save(plots.evolution(rows, metrics, title=title, **style), path)
        return
    grouped: dict[str, dict[str, Mapping[str, Curve]]] = {}
    for each, table in zip(every, tables, strict=True):
        panel = grouped.setdefault(_words({panels: each.parameters[panels]}), {})
        for policy, curves in table.items():
            words = [policy] if len(table) > 1 else []
            label = ", ".join([*words, *filter(None, [named(each, panels)])])
            panel[label or policy] = curves
    plots.save(plots.comparison(grouped, regret, title=title, **style), path)


def _pandas() -> Any:
    try:
        import pandas
        import pyarrow  # noqa: F401  pandas' parquet
    except ImportError:
        raise MissingExtraError(
            "experiments need pandas, pyarrow and matplotlib: pip install "
            "'cbandit[experiments]'"
        ) from None
    return pandas


def _frame(table: Curves) -> Any:
    pandas = _pandas()
    parts = [
        pandas.DataFrame(
            {
                "policy": policy,
                "metric": metric,
                "t": curve.t.numpy(),
                "mean": curve.mean.numpy(),
                "std": curve.std.numpy(),
                "sem": curve.sem.numpy(),
            }
        )
        for policy, each in table.items()
        for metric, curve in each.items()
    ]
    return pandas.concat(parts, ignore_index=True)


def _boxes(
    runs: Mapping[str, Run], every: Mapping[str, int], metrics: tuple[str, ...]
) -> Any:
    """Every trial's time averages now and then: policy, metric, t, trial, value."""
    import torch

    from cbandit import account

    pandas = _pandas()
    parts = []
    for policy, run in runs.items():
        step = every.get(policy, every["each"])
        t = torch.arange(step, run.rounds + 1, step)
        for metric in metrics:
            total = account.time_average(run.cumulative(metric))
            values = total.reshape(-1, run.rounds)[:, t - 1]
            trials = torch.arange(len(values)).unsqueeze(-1).expand_as(values)
            parts.append(
                pandas.DataFrame(
                    {
                        "policy": policy,
                        "metric": metric,
                        "t": t.expand_as(values).reshape(-1).numpy(),
                        "trial": trials.reshape(-1).numpy(),
                        "value": values.reshape(-1).numpy(),
                    }
                )
            )
    return pandas.concat(parts, ignore_index=True)


def read_curves(folder: str | os.PathLike[str]) -> Curves:
    """The curves in a folder that :func:`carry_out` has written."""
    import torch

    from cbandit.simulation.curves import Curve

    path = Path(folder) / "rounds.parquet"
    if not path.is_file():
        advice = ""
        if (Path(folder) / "config.toml").is_file():
            advice = "; if it was interrupted, --resume goes on with it"
        raise CBanditError(f"{folder} holds no results: {path} is missing{advice}")
    try:
        frame = _pandas().read_parquet(path)
        out: dict[str, dict[str, Curve]] = {}
        for (policy, metric), part in frame.groupby(["policy", "metric"], sort=False):
            numbers = (
                torch.tensor(part[name].to_numpy())
                for name in ("t", "mean", "std", "sem")
            )
            out.setdefault(policy, {})[metric] = Curve(*numbers)
    except (OSError, KeyError, ValueError) as error:
        raise CBanditError(
            f"{path} is not one of ours, or broken: {error}; without that file "
            "--resume computes it all again"
        ) from None
    return out
