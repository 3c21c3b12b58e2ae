"""Settings: all that is needed to run an experiment again, and their file."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import asdict, dataclass
from typing import Any

from cbandit._core import checks
from cbandit.errors import CBanditError

__all__ = ["Settings", "read_toml"]


@dataclass(frozen=True)
class Settings:
    """All that is needed to run an experiment again; ``Experiment.settings`` makes it.

    Args:
        experiment: its name.
        parameters: by name.
        policies: the names of those to play.
        horizon: rounds.
        trials: how many.
        seed: of every draw.
        device: where to compute.
        dtype: ``"float64"`` or ``"float32"``.
    """

    experiment: str
    parameters: dict[str, Any]
    policies: tuple[str, ...]
    horizon: int
    trials: int
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float64"

    def toml(self) -> str:
        """The text of a settings file."""
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


def read_toml(
    path: str | os.PathLike[str], over: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The experiment's name and its settings in a file.

    Settings in ``over`` win unless they are ``None``; its parameters one by one.
    """
    try:
        found = tomllib.loads(checks.path("path", path).read_text("utf-8-sig"))
    except OSError as error:
        raise CBanditError(
            f"settings file {path} cannot be read: {error.strerror}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CBanditError(f"settings file {path} is not TOML: {error}") from None
    name = found.pop("experiment", None)
    if not isinstance(name, str):
        raise CBanditError(f"settings file {path} must name its experiment")
    parameters = found.pop("parameters", {})
    if not isinstance(parameters, dict):
        raise CBanditError(
            f"parameters in {path} must be a table, [parameters]; got {parameters!r}"
        )
    more = {key: value for key, value in over.items() if value is not None}
    parameters = parameters | more.pop("parameters", {})
    return name, {**found, **more, "parameters": parameters}
