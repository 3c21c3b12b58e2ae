"""Studies: policies on a problem of the user's own, as a TOML file states them.

``[problem]`` is a table of measurements, a BoTorch test function or ``module:object``;
each ``[policies.NAME]`` has a type and its arguments. A list is a sweep: one policy, or
one folder of results, for each of its entries; a list as a value is a list in a list.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cbandit as cb
from cbandit.errors import CBanditError
from cbandit.experiments import worlds
from cbandit.experiments.acquisitions import making
from cbandit.experiments.beliefs import belief
from cbandit.experiments.named import (
    Arguments,
    Home,
    built,
    checked,
    said,
    typed,
)
from cbandit.experiments.settings import Settings
from cbandit.experiments.task import Experiment, Figures, Task
from cbandit.simulation.loop import simulate
from cbandit.simulation.parts import Policy

__all__ = ["expanded", "study", "tried"]

MOST = 10_000  # tables that lists may stand for
TRIED = 3  # rounds that every policy plays before anything is begun
BELIEFS = ("belief", "reward", "costs")


# ----------------------------------------------------------------------------- sweeps


def expanded(
    table: Mapping[str, Any], where: str, whole: Sequence[str] = ()
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return every table that a table with lists stands for, and what was chosen.

    Args:
        table: of a file; tables in it may hold lists too.
        where: the file and the table, for errors.
        whole: keys whose lists are values.
    """
    each: list[list[tuple[dict[str, Any], Any]]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            inside = expanded(value, f"{where} {key}", whole)
            named = [
                ({f"{key}.{k}": v for k, v in chosen.items()}, made)
                for chosen, made in inside
            ]
            each.append(named)
        elif isinstance(value, list) and key not in whole:
            if not value:
                raise CBanditError(f"{where} {key}: an empty list; a list is a sweep")
            several = len(value) > 1
            each.append([({key: v} if several else {}, v) for v in value])
        else:
            each.append([({}, value)])
    count = math.prod(map(len, each))
    if count > MOST:
        raise CBanditError(
            f"{where} has lists of {count} combinations in all: at most {MOST}"
        )
    out = []
    for parts in itertools.product(*each):
        chosen = {k: v for own, _ in parts for k, v in own.items()}
        made = [value for _, value in parts]
        out.append((chosen, dict(zip(table, made, strict=True))))
    return out


def _policies(
    where: str, tables: Mapping[str, Any], shared: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], tuple[tuple[str, ...], ...]]:
    """Return every policy by name, and which of them make up a sweep."""
    out: dict[str, dict[str, Any]] = {}
    sweeps: dict[tuple[Any, ...], list[str]] = {}
    for name, table in tables.items():
        here = f"{where}: [policies.{name}]"
        if not isinstance(table, Mapping):
            raise CBanditError(f"{here} must be a table with a type; got {table!r}")
        if "type" not in table:
            raise CBanditError(f"{here} type is missing: the kind of policy, as 'CKB'")
        for chosen, made in expanded({**shared, **table}, here):
            words = ", ".join(f"{key}={value}" for key, value in chosen.items())
            label = f"{name} {words}" if words else name
            out[label] = made
            for key in chosen:
                rest = tuple((k, str(v)) for k, v in chosen.items() if k != key)
                sweeps.setdefault((name, key, rest), []).append(label)
    return out, tuple(tuple(each) for each in sweeps.values())


# ----------------------------------------------------------------------------- a study


def study(
    where: str,
    name: str,
    given: Mapping[str, Any],
    home: Home,
    places: Sequence[Path] | None = None,
) -> tuple[Experiment, dict[str, Any]]:
    """Return the experiment that a file describes, and its tables without sweeps.

    Nothing is imported.

    Args:
        where: the file, for errors.
        name: of the study.
        given: ``problem``, ``policies`` and perhaps ``belief``. A list is a sweep in
            the latter two, and a value in the problem.
        home: which modules may be imported, once it is built.
        places: folders in which a table of measurements is looked up; ``None``: it is
            not, and the experiment can be drawn but not run.
    """
    world = worlds.stated(f"{where}: [problem]", given["problem"])
    if places is not None:
        world = worlds.located(world, places)
    tables = given.get("policies")
    if not isinstance(tables, Mapping) or not tables:
        raise CBanditError(
            f"{where}: [policies.NAME] is missing: there is none to play"
        )
    shared = {"belief": given["belief"]} if "belief" in given else {}
    policies, sweeps = _policies(where, tables, shared)
    experiment = Experiment(
        name=name,
        about=where,
        horizon=100,
        trials=10,
        problem=partial(worlds.built_world, world, home),
        policies={
            label: partial(_policy, f"{where}: [policies.{label}]", table, home)
            for label, table in policies.items()
        },
        figures=Figures(traded=("regret", "hard_violation"), sweeps=sweeps),
    )
    return experiment, {"problem": world.table, "policies": policies}


def tried(experiment: Experiment, settings: Settings) -> tuple[str, ...]:
    """Raise unless the problem and every policy can be built and play some rounds.

    Returns what the problem remarks on its data.
    """
    problem = experiment.problem(settings.parameters, range(1), settings.seed)
    for name in settings.policies:
        policy = experiment.policies[name](
            problem, Task(experiment, settings, name, range(1))
        )
        with said(f"{experiment.about}: [policies.{name}]"):
            simulate(policy, problem, min(TRIED, settings.horizon), progress=False)
    return worlds.remarks(problem)


def _policy(
    where: str, table: Mapping[str, Any], home: Home, problem: Any, task: Task
) -> Policy:
    """Build a policy for a problem: a factory once ``where`` to ``home`` are given."""
    call = typed(where, table, home)
    own = {key: each for key, each in table.items() if key not in ("type", *BELIEFS)}
    hidden = {"acquisition"} if call is cb.baselines.BoTorchPolicy else set()
    visible = {key: each for key, each in own.items() if key not in hidden}
    takes = checked(where, str(table["type"]), call, visible)
    offered: dict[str, Any] = {
        "thresholds": getattr(problem, "thresholds", 0.0),
        "minimise": getattr(problem, "minimise", False),
        "horizon": task.settings.horizon,
        **task.common,
    }
    arguments = {key: each for key, each in offered.items() if key in takes}
    arguments |= _beliefs(where, table, problem, takes, home)
    for key, each in own.items():
        if key in hidden:
            making_one = making(f"{where} {key}", each, home)
            arguments["make_acquisition"] = making_one
        else:
            arguments[key] = built(f"{where} {key}", each, home)
    known = {"self", "actions", *arguments}
    missing = sorted(takes.needed - known)
    if missing:
        name = "acquisition" if missing[0] == "make_acquisition" else missing[0]
        raise CBanditError(f"{where} {name} is missing: {table['type']} needs it")
    policy: Any = None
    if takes.named or takes.open:
        with said(where):
            policy = call(problem.actions, **arguments)
    if not callable(getattr(policy, "ask", None)):
        raise CBanditError(
            f"{where} type: {table['type']} makes no policy of a set of actions"
        )
    found: Policy = policy
    return found


def _beliefs(
    where: str, table: Mapping[str, Any], problem: Any, takes: Arguments, home: Home
) -> dict[str, Any]:
    """Return the beliefs, or the number of costs, that a policy takes."""
    out: dict[str, Any] = {}
    limits = table.get("thresholds", getattr(problem, "thresholds", 0.0))
    names = list(limits) if isinstance(limits, Mapping) else None
    m = worlds.costs_of(problem)
    for name in ("reward", "costs"):
        if name not in takes:
            if name in table:
                raise CBanditError(f"{where} {name}: {table['type']} takes no such key")
            continue
        if name == "costs" and str(takes.named.get(name)).startswith("int"):
            out[name] = names or m
            continue
        spec = table.get(name, table.get("belief", {}))
        if not isinstance(spec, Mapping):
            raise CBanditError(
                f"{where} {name if name in table else 'belief'} must be a table, such "
                f"as {{ kernel = 'rbf' }}; got {spec!r}"
            )
        key = name if name in table else "belief"
        one = belief(f"{where} {key}", spec, problem.actions, home)
        if name == "costs":
            out[name] = [one] * m if names is None else dict.fromkeys(names, one)
        else:
            out[name] = one
    if "m" in takes.needed and "m" not in table:  # of a cb.Policy
        out["m"] = names or m
    return out
