"""All that is needed to run an experiment again, and its file."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import asdict, dataclass, fields
from typing import Any

from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.experiments.catalogue import find

__all__ = ["Settings", "settings_from_toml"]


@dataclass(frozen=True)
class Settings:
    """All that is needed to run an experiment again."""

    experiment: str
    parameters: dict[str, Any]
    policies: tuple[str, ...]
    horizon: int
    trials: int
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float64"

    @classmethod
    def of(cls, experiment: str, **given: Any) -> Settings:
        """The experiment's defaults, with what is given in their stead, checked."""
        known = find(experiment)
        parameters = {name: each.default for name, each in known.parameters.items()}
        for name, value in (given.pop("parameters", None) or {}).items():
            if name not in parameters:
                has = ", ".join(parameters) or "none"
                raise CBanditError(
                    f"{experiment} has no parameter {name!r}; it has: {has}"
                )
            parameters[name] = known.parameters[name].parse(name, value)
        policies = given.pop("policies", None)
        policies = tuple(known.policies) if policies is None else policies
        if not isinstance(policies, list | tuple) or not policies:
            raise CBanditError(
                f"policies must be a list of at least one name; got {policies!r}"
            )
        policies = tuple(policies)
        for name in policies:
            if not isinstance(name, str) or name not in known.policies:
                raise CBanditError(
                    f"{experiment} has no policy {name!r}; it has: "
                    f"{', '.join(known.policies)}"
                )
        if len(set(policies)) != len(policies):
            raise CBanditError(f"policies must differ; got {', '.join(policies)}")
        numbers = {"horizon": known.horizon, "trials": known.trials, "seed": 0}
        for name, default in numbers.items():
            value = given.pop(name, None)
            value = default if value is None else value
            if name == "seed":
                value = checks.seed(value)
            else:
                value = checks.whole(name, value, 1, "a whole number, at least 1")
            numbers[name] = value
        device, dtype = given.pop("device", None), given.pop("dtype", None)
        if given:
            names = ", ".join(each.name for each in fields(cls))
            raise CBanditError(
                f"unknown settings: {', '.join(given)}; known are {names}"
            )
        if dtype not in (None, "float64", "float32"):
            raise CBanditError(f"dtype must be float64 or float32; got {dtype!r}")
        return cls(
            experiment,
            parameters,
            policies,
            **numbers,
            device=str(checks.device(device)),
            dtype=dtype or "float64",
        )

    def toml(self) -> str:
        """As a settings file."""
        lines = ["# to run it again: cbandit run THIS_FILE"]
        values = asdict(self)
        parameters = values.pop("parameters")
        lines += [f"{name} = {_toml(value)}" for name, value in values.items()]
        if parameters:
            lines += ["", "[parameters]"]
            lines += [f"{name} = {_toml(value)}" for name, value in parameters.items()]
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # JSON's strings and numbers are TOML's
    return json.dumps(value, ensure_ascii=False)


def settings_from_toml(path: str | os.PathLike[str], **over: Any) -> Settings:
    """The settings in a file; what is in ``over`` and not ``None`` wins."""
    try:
        found = tomllib.loads(checks.path("path", path).read_text("utf-8-sig"))
    except OSError as error:
        raise CBanditError(
            f"settings file {path} cannot be read: {error.strerror}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CBanditError(f"settings file {path} is not TOML: {error}") from None
    if not isinstance(found.get("experiment"), str):
        raise CBanditError(f"settings file {path} must name its experiment")
    parameters = found.pop("parameters", {})
    if not isinstance(parameters, dict):
        raise CBanditError(
            f"parameters in {path} must be a table, [parameters]; got {parameters!r}"
        )
    parameters = parameters | (over.pop("parameters", None) or {})
    found.update({name: value for name, value in over.items() if value is not None})
    return Settings.of(found.pop("experiment"), parameters=parameters, **found)
