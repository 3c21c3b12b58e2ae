"""The catalogue: all experiments by name, and those that a file describes.

A file with the key ``experiment`` runs that experiment of the catalogue; a file with a
table ``[problem]`` is a user's study. In both, lists are sweeps.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbandit.errors import CBanditError
from cbandit.experiments.experiment import Experiment
from cbandit.experiments.named import Home, located
from cbandit.experiments.papers import (
    cbo,
    classifiers,
    guo,
    pacchiano,
    routing,
    shi,
    zhou,
)
from cbandit.experiments.settings import NUMBERS, VALUES, Settings, read_toml
from cbandit.experiments.study import expanded, study

_LISTED = (
    *zhou.EXPERIMENTS,
    *pacchiano.EXPERIMENTS,
    *shi.EXPERIMENTS,
    *guo.EXPERIMENTS,
    *cbo.EXPERIMENTS,
    *routing.EXPERIMENTS,
    *classifiers.EXPERIMENTS,
)
EXPERIMENTS: Mapping[str, Experiment] = {listed.name: listed for listed in _LISTED}
_NAME = re.compile(r"(?!\.+$)[^/\\\0\n]+")
STATED = (*NUMBERS, "design")  # settings that a study's file may have
KEYS = ("name", *STATED, "problem", "belief", "policies")


@dataclass(frozen=True)
class Job:
    """An experiment to run.

    Args:
        experiment: its problem and policies.
        settings: the parameters, policies and numbers to run it with.
        folder: its subfolder in a sweep; empty without a sweep.
    """

    experiment: Experiment
    settings: Settings
    folder: str = ""


def find(name: str) -> Experiment:
    """Return the experiment with this name, or raise an error that lists all names."""
    if name not in EXPERIMENTS:
        raise CBanditError(
            f"no experiment is named {name!r}; known are {', '.join(EXPERIMENTS)}"
        )
    return EXPERIMENTS[name]


def jobs_of(name: str, **options: Any) -> list[Job]:
    """Return the jobs of an experiment in the catalogue, several for a sweep.

    Args:
        name: the experiment's name.
        options: as for ``Experiment.settings``; lists are sweeps. A parameter may also
            be a text of several values, separated by commas.
    """
    experiment = find(name)
    parameters = options.get("parameters") or {}
    options["parameters"] = {k: _several(v) for k, v in parameters.items()}
    return _apart(
        Job(
            experiment,
            experiment.settings(**variant.value),
            _folder(variant.chosen, "parameters."),
        )
        for variant in expanded(options, name, ("policies",))
    )


def jobs_in(
    path: str | os.PathLike[str],
    changed: Mapping[str, str] | None = None,
    trust: Sequence[str] | None = None,
    **over: Any,
) -> list[Job]:
    """Return the jobs of the experiment in a file, several for a sweep.

    Args:
        path: the file.
        changed: values that replace the file's, by parameter or, in a study, by the
            dotted key of a table's entry.
        trust: the modules that a study's file may name; ``None``: all.
        over: settings that replace the file's, except those that are ``None``.
    """
    raw, changed = read_toml(path), changed or {}
    over = {key: value for key, value in over.items() if value is not None}
    if "problem" in raw:
        return _studies(Path(path), _with(raw, changed, path), trust, over, run=True)
    name, parameters = raw.pop("experiment"), raw.pop("parameters", {})
    if not isinstance(parameters, dict):
        raise CBanditError(
            f"parameters in {path} must be a table, [parameters]; got {parameters!r}"
        )
    return jobs_of(name, **{**raw, **over, "parameters": {**parameters, **changed}})


def kept_in(folder: str | os.PathLike[str]) -> Job:
    """Return the job whose results are in a folder, in order to show them.

    For a study, no module is imported and no data are read.
    """
    path = Path(folder) / "config.toml"
    if not path.is_file():
        raise CBanditError(f"{folder} holds no results: {path} is missing")
    raw = read_toml(path, ours=True)
    jobs = _studies(path, raw, (), {}) if "problem" in raw else jobs_in(path)
    if len(jobs) != 1:
        raise CBanditError(f"{path} holds lists: it is not of one folder's results")
    return jobs[0]


def _studies(
    path: Path,
    raw: Mapping[str, Any],
    trust: Sequence[str] | None,
    over: Mapping[str, Any],
    run: bool = False,
) -> list[Job]:
    """Return the jobs of a study file; with ``run``, ready to be run."""
    where, folder = str(path), os.getcwd()
    home = Home(folder, None if trust is None else tuple(trust))
    for key in raw:
        if key not in KEYS:
            raise CBanditError(
                f"{where}: unknown key {key}; known are {', '.join(KEYS)}"
            )
    tables = {key: raw[key] for key in ("belief", "policies") if key in raw}
    if "policies" in over:
        tables["policies"] = _some(where, tables.get("policies", {}), over["policies"])
    name = raw.get("name", path.stem)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CBanditError(
            f"{where}: name must be a text that can name a folder, without / and not "
            f"of dots alone; got {name!r}"
        )
    places = (Path(folder), path.parent) if run else None
    swept = {k: v for k, v in {**raw, **over}.items() if k in STATED}
    swept["problem"] = raw["problem"]
    jobs = []
    for variant in expanded(swept, f"{where}:", VALUES):
        options = variant.value
        problem = {"problem": options.pop("problem")}
        experiment = study(where, name, tables | problem, home, places)
        with located(where):
            settings = experiment.settings(**options)
        jobs.append(Job(experiment, settings, _folder(variant.chosen, "problem.")))
    return _apart(jobs)


def _some(
    where: str, tables: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    for name in names:
        if name not in tables:
            raise CBanditError(
                f"{where} has no [policies.{name}]; it has: {', '.join(tables)}"
            )
    return {name: tables[name] for name in names}


def _with(
    raw: Mapping[str, Any], changed: Mapping[str, str], path: str | os.PathLike[str]
) -> dict[str, Any]:
    """Return a study's tables with some values replaced, each by its dotted key."""
    out = dict(raw)
    for key, text in changed.items():
        *above, last = key.split(".")
        table = out
        for part in above:
            inner = table.get(part)
            if not isinstance(inner, Mapping):
                raise CBanditError(f"--set {key}: {path} has no table [{part}]")
            table[part] = table = dict(inner)
        try:
            table[last] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            table[last] = text
    return out


def _several(value: object) -> Any:
    """Return a parameter typed as ``half,quarter`` as a list, others unchanged."""
    if not isinstance(value, str) or "," not in value:
        return value
    return [part.strip() for part in value.split(",")]


def _apart(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs of a sweep; raise an error if two would share a folder."""
    by_folder: dict[str, Job] = {}
    for job in jobs:
        if by_folder.setdefault(job.folder, job) is not job:
            raise CBanditError(
                f"{job.experiment.name}: two entries of a sweep would share the folder "
                f"{job.folder}: give different values"
            )
    return list(by_folder.values())


def _folder(chosen: Mapping[str, Any], prefix: str) -> str:
    """Return the name of a sweep's folder, in characters that need no quotes."""
    signs = {"<=": "le", ">=": "ge", "<": "lt", ">": "gt"}
    words = ",".join(f"{k.removeprefix(prefix)}={v}" for k, v in chosen.items())
    for sign, name in signs.items():
        words = words.replace(sign, name)
    return re.sub(r"[^\w.,=+-]+", "_", words)
