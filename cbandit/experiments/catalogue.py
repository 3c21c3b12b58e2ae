"""The catalogue: all experiments by name, and those that a file describes.

A file that names its ``experiment`` is of one in the catalogue; one with a
``[problem]`` is a study of the user's own. Lists in both are sweeps.
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
from cbandit.experiments.papers import cbo, guo, pacchiano, shi, zhou
from cbandit.experiments.settings import NUMBERS, VALUES, Settings, read_toml
from cbandit.experiments.study import expanded, study

_LISTED = (
    *zhou.EXPERIMENTS,
    *pacchiano.EXPERIMENTS,
    *shi.EXPERIMENTS,
    *guo.EXPERIMENTS,
    *cbo.EXPERIMENTS,
)
EXPERIMENTS: Mapping[str, Experiment] = {listed.name: listed for listed in _LISTED}
_NAME = re.compile(r"(?!\.+$)[^/\\\0\n]+")
KEYS = ("name", *NUMBERS, "problem", "belief", "policies")  # of a study


@dataclass(frozen=True)
class Job:
    """An experiment to carry out.

    Args:
        experiment: its problem and policies.
        settings: of it.
        folder: its place among those of a sweep; empty where there is none.
    """

    experiment: Experiment
    settings: Settings
    folder: str = ""


def find(name: str) -> Experiment:
    """The experiment of that name, or an error that lists them all."""
    if name not in EXPERIMENTS:
        raise CBanditError(
            f"no experiment is named {name!r}; known are {', '.join(EXPERIMENTS)}"
        )
    return EXPERIMENTS[name]


def jobs_of(name: str, **options: Any) -> list[Job]:
    """An experiment of the catalogue; several where options are lists.

    Args:
        name: of the experiment.
        options: as for ``Experiment.settings``. A parameter may be a text of several
            values with commas.
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
    """The experiment of a file; several where its values are lists.

    Args:
        path: the file.
        changed: parameters, or keys of a study's tables with dots, which win over the
            file's.
        trust: the modules that a study's file may name; ``None``: all.
        over: settings that win over the file's, unless they are ``None``.
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
    """The experiment whose results a folder holds, as far as they are to be shown.

    Of a study no module is imported, and no data are read.
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
    """The studies of a file, ready to be run or only to be shown."""
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
    swept = {k: v for k, v in {**raw, **over}.items() if k in NUMBERS}
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
    """A study's tables with other values, each by its key with dots."""
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
    """A parameter as typed, ``half,quarter``, as a list."""
    if not isinstance(value, str) or "," not in value:
        return value
    return [part.strip() for part in value.split(",")]


def _apart(jobs: Iterable[Job]) -> list[Job]:
    """The jobs of a sweep, or an error where two would share a folder."""
    apart: dict[str, Job] = {}
    for job in jobs:
        if apart.setdefault(job.folder, job) is not job:
            raise CBanditError(
                f"{job.experiment.name}: two entries of a sweep would share the folder "
                f"{job.folder}: give different values"
            )
    return list(apart.values())


def _folder(chosen: Mapping[str, Any], prefix: str) -> str:
    """A folder's name, of letters that need no quotes."""
    signs = {"<=": "le", ">=": "ge", "<": "lt", ">": "gt"}
    words = ",".join(f"{k.removeprefix(prefix)}={v}" for k, v in chosen.items())
    for sign, name in signs.items():
        words = words.replace(sign, name)
    return re.sub(r"[^\w.,=+-]+", "_", words)
