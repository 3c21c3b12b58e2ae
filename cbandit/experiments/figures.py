"""The figures of an experiment's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cbandit.errors import CBanditError
from cbandit.experiments.settings import Settings
from cbandit.experiments.task import Experiment
from cbandit.simulation import plots
from cbandit.simulation.curves import Curve, Curves

__all__ = ["Drawn", "draw", "draw_together", "goal_of"]

VIOLATIONS = ("soft_violation", "hard_violation")


def draw(
    experiment: Experiment, settings: Settings, table: Curves, boxes: Any, out: Path
) -> list[Path]:
    """Draw an experiment's figures into its folder; return where they lie.

    These are the account, its time averages, and those that the experiment asks for;
    ``boxes`` are those of its table, if it has one.
    """
    figures, marks = experiment.figures, experiment.changes
    title = _title(experiment, settings.parameters, settings.trials)
    reward, goal = goal_of(settings)
    title += goal
    style: dict[str, Any] = {"spread": figures.spread, "width": figures.width}
    metrics = ("regret", *VIOLATIONS, "rounds_in_violation", "best_feasible")
    drawn = {
        "account.png": plots.overview(
            table, metrics, title=title, marks=marks, reward=reward, **style
        )
    }
    averages: dict[str, Any] = {
        "title": title,
        "average": True,
        "reward": reward,
        **style,
    }
    drawn["averages.png"] = plots.overview(
        table,
        figures.averaged,
        log=False if marks else None,
        marks=marks,
        **averages,
    )
    if any(name.startswith("cost ") for each in table.values() for name in each):
        drawn["costs.png"] = plots.costs(table, title=title, reward=reward, **style)
    if figures.evolution is not None:
        drawn["evolution.png"] = plots.evolution(
            [("", *_levelled(experiment, settings, table))],
            (figures.evolution, "stage_cost", "expected_reward"),
            title=title,
            **style,
        )
    chosen = _words(settings.parameters)
    name = settings.experiment + (f" ({chosen})" if chosen else "")
    words = f"{name}: {settings.trials} trials{goal}"
    if boxes is not None:
        drawn["boxes.png"] = plots.boxes(boxes, title=words, table=table)
    if figures.early is not None:
        drawn["early.png"] = plots.overview(
            table, figures.averaged, log=False, until=figures.early, **averages
        )
    if figures.traded is not None:
        drawn["trade-off.png"] = plots.trade_off(
            table, figures.traded, title=words, sweeps=figures.sweeps
        )
    paths = [out / name for name in drawn]
    for figure, path in zip(drawn.values(), paths, strict=True):
        plots.save(figure, path)
    return paths


def goal_of(settings: Settings) -> tuple[str, str]:
    """Return what the reward is called, and the aim with its limits, for titles.

    The latter is empty where the problem is no table with names.
    """
    world = settings.world
    reward = str(world.get("maximise", world.get("minimise", "reward")))
    pairs = [(key.partition("."), value) for key, value in world.items()]
    limits = [f"{k[2]} {_limit(v)}" for k, v in pairs if k[0] == "limits" and k[2]]
    if not limits:
        return reward, ""
    aim = "minimise" if "minimise" in world else "maximise"
    return reward, f"; {aim} {reward}, {', '.join(limits)}"


def _limit(given: Any) -> str:
    return given if isinstance(given, str) else f"<= {given:g}"


def _title(
    experiment: Experiment, parameters: Mapping[str, Any], trials: int | None
) -> str:
    """The experiment's name, some parameters, and what its bands are of.

    ``trials`` is ``None`` where folders differ in it.
    """
    title = experiment.name + (f" ({_words(parameters)})" if parameters else "")
    if trials == 1:
        return title
    figures = experiment.figures
    band = "standard error" if figures.spread == "sem" else "standard deviation"
    share = "" if figures.width == 1 else f"{figures.width:g} "
    number = "the" if trials is None else str(trials)
    return title + f": mean and {share}{band} of {number} trials"


def _words(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in parameters.items())


def _levelled(
    experiment: Experiment, settings: Settings, table: Curves
) -> tuple[Curves, dict[str, list[plots.Level]]]:
    """Curves with costs in the problem's units, and what is optimal and allowed.

    Where thresholds differ from trial to trial, or there are several costs, the cost
    shown stays the largest one less its threshold.
    """
    trials = range(settings.trials)
    problem = experiment.problem(settings.parameters, trials, settings.seed)
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


@dataclass(frozen=True)
class Drawn:
    """One folder's results, for a figure of several.

    Args:
        name: the folder's.
        experiment: what it holds.
        settings: of the experiment.
        table: its curves.
    """

    name: str
    experiment: Experiment
    settings: Settings
    table: Curves

    @property
    def facts(self) -> dict[str, Any]:
        """All in which it may differ from another: parameters, then the rest."""
        rest = ("horizon", "trials", "seed", "dtype")
        numbers = {name: getattr(self.settings, name) for name in rest}
        return {**self.settings.world, **numbers}


def draw_together(
    folders: Sequence[Drawn], path: Path, panels: str | None = None
) -> None:
    """Draw one figure of several folders, each with other parameters of one experiment.

    Args:
        folders: their results.
        path: of the figure.
        panels: a parameter: regret alone, a panel for each of its values, a curve for
            each of the others'. Left out: a row for each folder, with costs and
            rewards, or with violations where there are no expected ones.
    """
    experiment, first = folders[0].experiment, folders[0].settings
    names = sorted({each.settings.experiment for each in folders})
    if len(names) > 1:
        raise CBanditError(f"folders must hold one experiment; got {', '.join(names)}")
    for each in folders:
        if panels is not None and panels not in each.settings.world:
            has = ", ".join(each.settings.world) or "none"
            raise CBanditError(
                f"panels must be a parameter of every folder; {each.name} has no "
                f"{panels!r}, it has: {has}"
            )
    facts = [each.facts for each in folders]
    names = list(dict.fromkeys(name for each in facts for name in each))
    differing = [k for k in names if any(f.get(k) != facts[0].get(k) for f in facts)]
    alike = {k: v for k, v in first.parameters.items() if k not in differing}
    trials = None if "trials" in differing else first.trials
    style: dict[str, Any] = {
        "title": _title(experiment, alike, trials),
        "spread": experiment.figures.spread,
        "width": experiment.figures.width,
    }
    regret = experiment.figures.evolution or "regret"
    if panels is None:
        rows = [_row(each, differing) for each in folders]
        staged = experiment.figures.evolution is not None
        others = ("stage_cost", "expected_reward") if staged else VIOLATIONS
        figure = plots.evolution(rows, (regret, *others), **style)
    else:
        grouped = _panels(folders, panels, [k for k in differing if k != panels])
        figure = plots.comparison(grouped, regret, **style)
    plots.save(figure, path)


def _row(
    each: Drawn, differing: Sequence[str]
) -> tuple[str, Curves, Mapping[str, list[plots.Level]]]:
    """A folder's row: its name and that in which it differs, its curves and levels."""
    head = _words(_chosen(each, differing)) or each.name
    if each.experiment.figures.evolution is None:
        return head, each.table, {}
    return head, *_levelled(each.experiment, each.settings, each.table)


def _chosen(each: Drawn, names: Sequence[str]) -> dict[str, Any]:
    return {name: each.facts[name] for name in names if name in each.facts}


def _panels(
    folders: Sequence[Drawn], panels: str, others: Sequence[str]
) -> dict[str, dict[str, Mapping[str, Curve]]]:
    """The curves of a panel for each value of a parameter, by policy and the rest.

    Folders that are alike in all of it are told apart by their names.
    """
    keys = [(each.facts[panels], _words(_chosen(each, others))) for each in folders]
    grouped: dict[str, dict[str, Mapping[str, Curve]]] = {}
    for each, (value, named) in zip(folders, keys, strict=True):
        panel = grouped.setdefault(_words({panels: value}), {})
        if keys.count((value, named)) > 1:
            named = ", ".join(filter(None, [named, each.name]))
        for policy, curves in each.table.items():
            words = [policy] if len(each.table) > 1 else []
            panel[", ".join([*words, *filter(None, [named])]) or policy] = curves
    return grouped
