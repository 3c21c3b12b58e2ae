"""Studies: policies on a user's own problem, as a TOML file describes them.

``[problem]`` is a table of measurements, a BoTorch test function or ``module:object``;
each ``[policies.NAME]`` has a type and its arguments. A list is a sweep: one policy, or
one folder of results, for each entry. Write a list that is a value inside another list.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import cbandit as cb
from cbandit.errors import CBanditError
from cbandit.experiments.experiment import Experiment, Figures, Task, file_name
from cbandit.experiments.named import Arguments, Home, located
from cbandit.experiments.settings import Settings, shortened
from cbandit.experiments.study_acquisition import acquisition
from cbandit.experiments.study_beliefs import belief
from cbandit.experiments.study_problem import StatedProblem, costs_of, remarks
from cbandit.policies.abilities import Abilities
from cbandit.problems.protocol import Problem
from cbandit.simulation.loop import simulate
from cbandit.simulation.parts import Policy

MOST = 10_000  # most tables that lists may expand to
LONGEST = 180  # bytes of a policy's name as a file's, without numbers and an ending
TRIED = 3  # rounds that every policy plays as a trial before the study begins


# ----------------------------------------------------------------------------- sweeps


class Variant(NamedTuple):
    """One entry of a sweep.

    Args:
        chosen: the entry taken from each list, by dotted key.
        value: the value with these entries in place of the lists; a table if made by
            :func:`expanded`.
    """

    chosen: dict[str, Any]
    value: Any


def expanded(
    table: Mapping[str, Any], where: str, whole: Sequence[str] = ()
) -> list[Variant]:
    """Return a table for each combination of the entries of a table's lists.

    Args:
        table: a table of a file; tables in it may hold lists too.
        where: the file and the table, for errors.
        whole: keys whose lists are values, not sweeps.
    """
    options: list[list[Variant]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            inside = expanded(value, f"{where} {key}", whole)
            options.append(
                [
                    Variant({f"{key}.{k}": v for k, v in x.chosen.items()}, x.value)
                    for x in inside
                ]
            )
        elif isinstance(value, list) and key not in whole:
            if not value:
                raise CBanditError(f"{where} {key}: an empty list; a list is a sweep")
            options.append([Variant({key: v} if value[1:] else {}, v) for v in value])
        else:
            options.append([Variant({}, value)])
    count = math.prod(map(len, options))
    if count > MOST:
        raise CBanditError(
            f"{where} has lists of {count} combinations in all: at most {MOST}"
        )
    return [
        Variant(
            {k: v for part in parts for k, v in part.chosen.items()},
            dict(zip(table, (part.value for part in parts), strict=True)),
        )
        for parts in itertools.product(*options)
    ]


def _policies(
    where: str, tables: object, shared: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], tuple[tuple[str, ...], ...]]:
    """Return every policy's table by name, and the names in each sweep."""
    if not isinstance(tables, Mapping) or not tables:
        raise CBanditError(
            f"{where}: [policies.NAME] is missing: there is none to play"
        )
    out: dict[str, dict[str, Any]] = {}
    sweeps: dict[tuple[Any, ...], list[str]] = {}
    for name, table in tables.items():
        place = f"{where}: [policies.{shortened(name)}]"
        if not isinstance(table, Mapping):
            raise CBanditError(f"{place} must be a table with a type; got {table!r}")
        if "type" not in table:
            raise CBanditError(f"{place} type is missing: the kind of policy, as 'CKB'")
        for variant in expanded({**shared, **table}, place):
            chosen = variant.chosen.items()
            words = ", ".join(f"{key}={value}" for key, value in chosen)
            label = f"{name} {words}" if words else name
            _check_label(place, label)
            out[label] = variant.value
            for key in variant.chosen:
                others = tuple((k, str(v)) for k, v in chosen if k != key)
                sweeps.setdefault((name, key, others), []).append(label)
    return out, tuple(map(tuple, sweeps.values()))


def _check_label(place: str, label: str) -> None:
    """Raise unless a policy's name, with its entries of lists, can name a file."""
    size = len(file_name(label))
    if not label.isprintable() or not label.strip():
        raise CBanditError(
            f"{place}: the name must be of printable letters; got {shortened(label)!r}"
        )
    if size > LONGEST:
        raise CBanditError(
            f"{place}: the name, with its entries of lists, must be short enough for a "
            f"file's name, {LONGEST} bytes; {shortened(label)!r} takes {size}"
        )


# ----------------------------------------------------------------------------- a study


def study(
    where: str,
    name: str,
    tables: Mapping[str, Any],
    home: Home,
    places: Sequence[Path] | None = None,
) -> Experiment:
    """Return the experiment that a file describes, without importing anything.

    Args:
        where: the file, for errors.
        name: the study's name.
        tables: ``problem``, ``policies`` and perhaps ``belief``. A list is a sweep in
            the latter two, and a value in the problem.
        home: which modules may be imported when it is built.
        places: folders in which a table of measurements is looked up; ``None``: it is
            not, and the experiment's figures can be drawn but it cannot run.
    """
    problem = StatedProblem.read(f"{where}: [problem]", tables["problem"], home)
    if places is not None:
        problem = problem.located(places)
    shared = {key: tables[key] for key in ("belief",) if key in tables}
    policies, sweeps = _policies(where, tables.get("policies"), shared)
    return Experiment(
        name=name,
        about=where,
        horizon=100,
        trials=10,
        problem=problem.build,
        policies={
            label: StatedPolicy(f"{where}: [policies.{label}]", table, home).build
            for label, table in policies.items()
        },
        figures=Figures(traded=("regret", "hard_violation"), sweeps=sweeps),
        tables={"problem": problem.table, "policies": policies},
    )


def tried(experiment: Experiment, settings: Settings) -> tuple[str, ...]:
    """Build the problem and every policy, and play a few rounds; raise if that fails.

    Return the remarks on the problem's data.
    """
    problem = experiment.build(settings, range(1))
    undesigned = replace(settings, design=0)
    for name in settings.policies:
        Task(experiment, settings, name, range(1)).make(problem)
        # without the design, which would take up all these rounds
        policy = Task(experiment, undesigned, name, range(1)).make(problem)
        with located(f"{experiment.about}: [policies.{name}]"):
            simulate(policy, problem, min(TRIED, settings.horizon), progress=False)
    return remarks(problem)


def abilities_of(kind: object) -> Abilities:
    """Return what a policy's class can do; none is known of a foreign one."""
    stated: Abilities = getattr(kind, "abilities", Abilities())
    return stated


@dataclass(frozen=True)
class StatedPolicy:
    """A policy as a file describes it.

    Args:
        where: the file and the table, for errors.
        table: the file's table, without sweeps.
        home: which modules may be imported.
    """

    where: str
    table: Mapping[str, Any]
    home: Home

    def build(self, problem: Problem, task: Task) -> Policy:
        """Build the policy for a problem."""
        words, kind = self.table["type"], self.home.find_type(self.where, self.table)
        beliefs = self._beliefs(problem, kind)
        apart = ("type", "belief", *beliefs)
        table = {k: v for k, v in self.table.items() if k not in apart}
        offers = {
            "actions": problem.actions,
            "thresholds": getattr(problem, "thresholds", 0.0),
            "minimise": getattr(problem, "minimise", False),
            "horizon": task.settings.horizon,
            **task.common,
            **beliefs,
        }
        limits = offers["thresholds"]
        if isinstance(limits, Mapping) and not {"costs", "m"} & beliefs.keys():
            del offers["thresholds"]  # no cost has these names
        if "design" not in abilities_of(kind).refuses:  # as safe policies do
            offers["design"] = task.settings.design_in(int(problem.actions.dim))
        if kind is cb.baselines.BoTorchPolicy and "make_acquisition" not in table:
            if "acquisition" not in table:
                raise CBanditError(
                    f"{self.where} acquisition is missing: {words} needs it"
                )
            offers["make_acquisition"] = acquisition(
                f"{self.where} acquisition", table.pop("acquisition"), self.home
            )
        policy: Any = self.home.call(self.where, words, kind, table, offers)
        if not callable(getattr(policy, "ask", None)):
            raise CBanditError(
                f"{self.where} type: {words} makes no policy of a set of actions"
            )
        made: Policy = policy
        return made

    def _beliefs(self, problem: Problem, kind: Any) -> dict[str, Any]:
        """Return the beliefs, or the number of costs, that the policy takes."""
        out: dict[str, Any] = {}
        takes = Arguments(kind)
        limits = self.table.get("thresholds", getattr(problem, "thresholds", 0.0))
        names = list(limits) if isinstance(limits, Mapping) else None
        m = costs_of(problem)
        outcomes: Sequence[str | None] = (None,) * (1 + m)
        if abilities_of(kind).outcomes:
            outcomes = getattr(problem, "outcomes", outcomes)
        if "reward" in takes:
            out["reward"] = self._belief("reward", problem, outcomes[0])
        if "costs" in takes:
            if str(takes.named.get("costs")).startswith("int"):
                out["costs"] = names or m
            else:
                one = {o: self._belief("costs", problem, o) for o in outcomes[1:]}
                each = [one[o] for o in outcomes[1:]]
                out["costs"] = each
                if names is not None:
                    out["costs"] = dict(zip(names, each, strict=True))
        if "m" in takes.needed and "m" not in self.table:  # a cb.Policy of the user's
            out["m"] = names or m
        return out

    def _belief(self, name: str, problem: Problem, outcome: str | None) -> Any:
        key = name if name in self.table else "belief"
        table = self.table.get(key, {})
        where = f"{self.where} {key}"
        if not isinstance(table, Mapping):
            raise CBanditError(
                f"{where} must be a table, such as {{ kernel = 'rbf' }}; got {table!r}"
            )
        return belief(where, table, problem.actions, self.home, outcome)
