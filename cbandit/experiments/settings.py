"""Settings: all that is needed to run an experiment again, and their file."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cbandit._core import checks
from cbandit._core.files import unsealed
from cbandit.errors import CBanditError

__all__ = [
    "NUMBERS",
    "SEAL",
    "VALUES",
    "Settings",
    "flat",
    "of_results",
    "read_toml",
    "toml_key",
    "toml_value",
]

NUMBERS = ("horizon", "trials", "seed", "device", "dtype")
VALUES = ("knobs",)  # keys of a problem whose lists are no sweeps
SEAL = ("# digest: ", "\n")  # the last line of a results folder's config.toml
_SEALED = SEAL[0].encode()
LARGEST, DEEPEST = 1 << 20, 100  # bytes of a file, parts of one key


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
        tables: of a study, ``problem`` and ``policies`` as its file has them, without
            sweeps; empty for an experiment of the catalogue.
    """

    experiment: str
    parameters: dict[str, Any]
    policies: tuple[str, ...]
    horizon: int
    trials: int
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float64"
    tables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world(self) -> dict[str, Any]:
        """The facts about the problem in which folders may differ."""
        own = flat(self.tables.get("problem", {}))
        return self.parameters or {k: v for k, v in own.items() if k != "sha256"}

    def toml(self) -> str:
        """The text of a settings file."""
        lines = ["# to run it again: cbandit run THIS_FILE"]
        named = "name" if self.tables else "experiment"
        values: dict[str, Any] = {named: self.experiment}
        values |= {name: getattr(self, name) for name in NUMBERS}
        if not self.tables:
            values["policies"] = self.policies
        lines += [f"{name} = {toml_value(value)}" for name, value in values.items()]
        if self.tables:
            lines += _tables("problem", self.tables["problem"])
            for name in self.policies:
                own = self.tables["policies"][name]
                lines += _tables(f"policies.{toml_key(name)}", own)
        elif self.parameters:
            lines += ["", "[parameters]"]
            lines += [
                f"{name} = {toml_value(value)}"
                for name, value in self.parameters.items()
            ]
        return "\n".join(lines) + "\n"


def _tables(name: str, table: Mapping[str, Any]) -> list[str]:
    """A table of a study; a list in it is a value, which a list around it says."""
    inner = {k: v for k, v in table.items() if isinstance(v, Mapping)}
    lines = ["", f"[{name}]"]
    for key, value in table.items():
        if key not in inner:
            several = isinstance(value, list) and key not in VALUES
            lines.append(
                f"{toml_key(key)} = {toml_value([value] if several else value)}"
            )
    for key, each in inner.items():
        lines += _tables(f"{name}.{toml_key(key)}", each)
    return lines


def toml_key(name: str) -> str:
    """Return a key as TOML has it, with quotes where it needs them."""
    plain = name.isascii() and name.replace("-", "_").replace("_", "a").isalnum()
    return name if plain else toml_value(name)


def toml_value(value: Any) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Mapping):
        pairs = (f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # JSON's strings and numbers are TOML's
    return json.dumps(value, ensure_ascii=False)


def of_results(path: Path) -> bool:
    """Return whether a settings file is of a results folder, under whatever name."""
    if path.name == "config.toml" or not path.is_file():
        return True
    return path.read_bytes().rstrip().rpartition(b"\n")[2].startswith(_SEALED)


def _is_deep(line: str) -> bool:
    """Return whether a line begins with a key of very many parts."""
    key = line.partition("=")[0].partition("#")[0]
    return "," not in key and key.count(".") >= DEEPEST


def read_toml(path: str | os.PathLike[str], ours: bool = False) -> dict[str, Any]:
    """The tables and keys of a settings file.

    Args:
        path: of the file. Where it ends with a digest, that must fit.
        ours: the file is that of a results folder and ends with a digest.
    """
    try:
        raw = checks.path("path", path).read_bytes()
        last = raw.rstrip().rpartition(b"\n")[2]
        if (ours or last.startswith(_SEALED)) and not unsealed(raw, *SEAL):
            raise CBanditError(
                f"settings file {path} has changed since it was written (its checksum "
                "fails); to use it as it is, begin anew with a copy without its last "
                "line"
            )
        text = raw.decode("utf-8-sig")
        if len(raw) > LARGEST or any(map(_is_deep, text.splitlines())):
            raise CBanditError(
                f"settings file {path} is none that a person writes: it must have at "
                f"most {LARGEST} bytes, and keys of at most {DEEPEST} parts"
            )
        found = tomllib.loads(text)
    except OSError as error:
        raise CBanditError(
            f"settings file {path} cannot be read: {error.strerror}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CBanditError(f"settings file {path} is not TOML: {error}") from None
    if "problem" not in found and not isinstance(found.get("experiment"), str):
        raise CBanditError(
            f"settings file {path} must name its experiment, or have a [problem] of "
            "its own"
        )
    return found


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table and of the tables in it, by dotted keys."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            out |= {f"{key}.{name}": each for name, each in flat(value).items()}
        else:
            out[key] = value
    return out
