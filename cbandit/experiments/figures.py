"""The figures of experiments: of one folder's results, of several, of comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbandit.errors import CBanditError
from cbandit.experiments.experiment import Experiment
from cbandit.experiments.intervals import FEWEST, LEVEL
from cbandit.experiments.paired import Comparison, in_common, tested
from cbandit.experiments.settings import Settings
from cbandit.simulation import plots
from cbandit.simulation.curves import Curve, Curves

if TYPE_CHECKING:
    import pandas

VIOLATIONS = ("soft_violation", "hard_violation")


@dataclass(frozen=True)
class Outcome:
    """The results in one folder that figures are drawn from.

    Args:
        experiment: the experiment that was run.
        settings: the settings it was run with.
        curves: the curves of its metrics, by policy.
        name: the folder's name, which tells it from others.
        design: how many rounds at the start play the common design.
    """

    experiment: Experiment
    settings: Settings
    curves: Curves
    name: str = ""
    design: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """The parameters and numbers in which two outcomes may differ, by name."""
        names = ("horizon", "trials", "seed", "dtype")
        numbers = {name: getattr(self.settings, name) for name in names}
        return {**self.settings.world, **numbers}

    def in_words(self, names: Sequence[str]) -> str:
        """Return some of the facts in words."""
        return _words({name: self.facts[name] for name in names if name in self.facts})

    def title(self, parameters: Mapping[str, Any], trials: int | None) -> str:
        """Return the experiment's name, its parameters, and what its bands show.

        ``trials`` is ``None`` if folders differ in their numbers of trials.
        """
        title = self.experiment.name
        title += f" ({_words(parameters)})" if parameters else ""
        if trials == 1:
            return title
        figures = self.experiment.figures
        band = "standard error" if figures.spread == "sem" else "standard deviation"
        share = "" if figures.width == 1 else f"{figures.width:g} "
        count = "the" if trials is None else str(trials)
        return f"{title}: mean and {share}{band} of {count} trials"

    def draw(
        self,
        boxes: pandas.DataFrame | None,
        out: Path,
        kinds: Sequence[str] = ("png",),
    ) -> list[Path]:
        """Draw the figures into a folder; return their paths.

        They are the account, its time averages, and those that the experiment asks for.
        ``boxes`` is the folder's table of boxplots, ``None`` if it has none. ``kinds``
        are the file formats.
        """
        experiment, settings, curves = self.experiment, self.settings, self.curves
        figures, marks = experiment.figures, experiment.changes
        style: dict[str, Any] = {
            "title": self.title(settings.parameters, settings.trials) + settings.goal,
            "spread": figures.spread,
            "width": figures.width,
        }
        named = {**style, "reward": settings.reward, "design": self.design}
        averages = {**named, "average": True}
        every = ("regret", *VIOLATIONS, "rounds_in_violation", "best_feasible")
        metrics = plots.in_their_units(curves, every)
        averaged = plots.in_their_units(curves, figures.averaged)
        log = False if marks else None
        drawn = {
            "account": plots.overview(curves, metrics, marks=marks, **named),
            "averages": plots.overview(
                curves, averaged, log=log, marks=marks, **averages
            ),
        }
        if any(k.startswith("cost ") for metrics in curves.values() for k in metrics):
            drawn["costs"] = plots.costs(curves, **named)
        if figures.evolution is not None:
            shown = (figures.evolution, "stage_cost", "expected_reward")
            drawn["evolution"] = plots.evolution([("", *self.levels())], shown, **style)
        chosen = _words(settings.parameters)
        name = settings.experiment + (f" ({chosen})" if chosen else "")
        trials = "1 trial" if settings.trials == 1 else f"{settings.trials} trials"
        words = f"{name}: {trials}{settings.goal}"
        if boxes is not None:
            drawn["boxes"] = plots.boxes(boxes, title=words, table=curves)
        if figures.early is not None:
            drawn["early"] = plots.overview(
                curves, averaged, log=False, until=figures.early, **averages
            )
        if figures.traded is not None:
            first, second = plots.in_their_units(curves, figures.traded)
            drawn["trade-off"] = plots.trade_off(
                curves,
                (first, second),
                title=words,
                sweeps=figures.sweeps,
                reward=settings.reward,
            )
        paths = []
        for name, figure in drawn.items():
            for kind in kinds:
                paths.append(out / f"{name}.{kind}")
                plots.save(figure, paths[-1])
        return paths

    def levels(self) -> tuple[Curves, dict[str, list[plots.Level]]]:
        """Return curves in the problem's units, and levels: optimum and threshold.

        If thresholds differ by trial, or there are several costs, the cost shown is
        still the largest cost less its threshold.
        """
        problem = self.experiment.build(self.settings, range(self.settings.trials))
        tau = problem.thresholds.reshape(-1)
        best = float(problem.stochastic_optimum(1).mean())
        spent = problem.optimal_costs() - problem.thresholds
        shift = float(tau[0]) if problem.m == 1 and bool((tau == tau[0]).all()) else 0.0
        shifted: dict[str, dict[str, Curve]] = {}
        for policy, metrics in self.curves.items():
            shifted[policy] = dict(metrics)
            if "stage_cost" in metrics:
                cost = metrics["stage_cost"]
                shifted[policy]["stage_cost"] = replace(cost, mean=cost.mean + shift)
        optimal = float(spent.amax(-1).mean()) + shift
        return shifted, {
            "stage_cost": [
                ("threshold", shift, "#000000"),
                ("optimum", optimal, "#C00000"),
            ],
            "expected_reward": [("optimum", best, "#C00000")],
        }


def _words(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in parameters.items())


def draw_together(
    outcomes: Sequence[Outcome], path: Path, panels: str | None = None
) -> None:
    """Draw one figure of several folders with results of one experiment.

    Args:
        outcomes: the folders' results.
        path: the file to write.
        panels: a parameter. If given, only regret is drawn, with a panel for each of
            its values. Otherwise each folder has a row of panels, with costs and
            rewards, or with violations if there are no expected costs.
    """
    first = outcomes[0]
    experiments = sorted({outcome.settings.experiment for outcome in outcomes})
    if len(experiments) > 1:
        raise CBanditError(
            f"folders must hold one experiment; got {', '.join(experiments)}"
        )
    for outcome in outcomes:
        if panels is not None and panels not in outcome.settings.world:
            has = ", ".join(outcome.settings.world) or "none"
            raise CBanditError(
                f"panels must be a parameter of every folder; {outcome.name} has no "
                f"{panels!r}, it has: {has}"
            )
    facts = [outcome.facts for outcome in outcomes]
    names = dict.fromkeys(name for fact in facts for name in fact)
    differing = [k for k in names if any(f.get(k) != facts[0].get(k) for f in facts)]
    alike = {k: v for k, v in first.settings.parameters.items() if k not in differing}
    trials = None if "trials" in differing else first.settings.trials
    figures = first.experiment.figures
    style: dict[str, Any] = {
        "title": first.title(alike, trials)
        + shared_goal([outcome.settings for outcome in outcomes]),
        "spread": figures.spread,
        "width": figures.width,
    }
    regret, staged = figures.evolution or "regret", figures.evolution is not None
    if panels is None:
        rows = []
        for outcome in outcomes:
            shown = outcome.levels() if staged else (outcome.curves, {})
            rows.append((outcome.in_words(differing) or outcome.name, *shown))
        others = ("stage_cost", "expected_reward") if staged else VIOLATIONS
        metrics = plots.in_their_units(first.curves, (regret, *others))
        figure = plots.evolution(rows, metrics, reward=first.settings.reward, **style)
    else:
        grouped = _panels(outcomes, panels, [k for k in differing if k != panels])
        figure = plots.comparison(grouped, regret, **style)
    plots.save(figure, path)


def _panels(
    outcomes: Sequence[Outcome], panels: str, others: Sequence[str]
) -> dict[str, dict[str, Mapping[str, Curve]]]:
    """Return each panel's curves, by the value of ``panels`` and then by name.

    A curve's name has its policy and the values of ``others``; if these are equal in
    two folders, the folders' names are added.
    """
    keys = [(x.in_words([panels]), x.in_words(others)) for x in outcomes]
    grouped: dict[str, dict[str, Mapping[str, Curve]]] = {}
    for outcome, (value, named) in zip(outcomes, keys, strict=True):
        panel = grouped.setdefault(value, {})
        if keys.count((value, named)) > 1:
            named = ", ".join(filter(None, [named, outcome.name]))
        for policy, curves in outcome.curves.items():
            words = [policy] if len(outcome.curves) > 1 or not named else []
            panel[", ".join(filter(None, [*words, named]))] = curves
    return grouped


def draw_comparison(
    compared: Sequence[Comparison], settings: Sequence[Settings], path: Path
) -> None:
    """Draw all differences and their intervals into a file."""
    gaps = tested(compared)
    shown = {
        metric: {
            ", ".join(filter(None, [table.words, " \N{MINUS SIGN} ".join(pair)])): (
                gaps[place, *pair, metric][:3]
            )
            for place, table in enumerate(compared)
            for pair in table.pairs
        }
        for metric in in_common(compared)
    }
    order = {
        label: table.names.index(pair[0])
        for label, (table, pair) in zip(
            next(iter(shown.values())),
            ((table, pair) for table in compared for pair in table.pairs),
            strict=True,
        )
    }
    figure = plots.differences(
        shown,
        title=comparison_title(compared, settings),
        order=order,
        heads=in_common(compared),
    )
    plots.save(figure, path)


def comparison_title(
    compared: Sequence[Comparison], settings: Sequence[Settings]
) -> str:
    """Return a title: what is compared, and the limits if all folders share them."""
    first = settings[0]
    counts = sorted({len(table.values) for table in compared})
    drawn = (
        f"{LEVEL:.0%} intervals over" if counts and counts[-1] >= FEWEST else "means of"
    )
    return (
        f"{first.experiment}: differences after {first.horizon} rounds, {drawn} "
        f"{' or '.join(map(str, counts))} paired trials{shared_goal(settings)}"
    )


def shared_goal(settings: Sequence[Settings]) -> str:
    """Return the aim with its limits if all folders share it; else an empty text."""
    goals = {folder.goal for folder in settings}
    return goals.pop() if len(goals) == 1 else ""
