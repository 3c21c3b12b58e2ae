"""Settings: all that is needed to repeat an experiment, and their file."""

from __future__ import annotations

import json
import math
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any

from cbandit._core import checks
from cbandit._core.files import unsealed, whole
from cbandit._core.version import __version__
from cbandit.errors import CBanditError

NUMBERS = ("horizon", "trials", "seed", "device", "dtype")
VALUES = ("knobs", "contexts")  # keys of a problem whose lists are not sweeps
SEAL = ("# digest: ", "\n")  # the last line of a results folder's config.toml
PACKAGES = (
    *("torch", "gpytorch", "botorch", "linear_operator", "numpy", "scipy", "triton"),
)
LARGEST, DEEPEST = 1 << 20, 100  # most bytes of a file, most parts of one key


@dataclass(frozen=True)
class Settings:
    """All that is needed to repeat an experiment; ``Experiment.settings`` makes it.

    Args:
        experiment: the experiment's name.
        parameters: the parameters by name.
        policies: the names of the policies to play.
        horizon: how many rounds.
        trials: how many trials.
        seed: the seed of all draws.
        device: where to compute.
        dtype: ``"float64"`` or ``"float32"``.
        tables: a study's ``problem`` and ``policies`` as in its file, without sweeps;
            empty for an experiment of the catalogue.
        design: how many rounds at the start of a study play a design common to all
            policies; ``None``: 2 d + 2 in d dimensions.
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
    design: int | None = None

    def design_in(self, d: int) -> int:
        """Return how many rounds a study's policies play their common design."""
        return 2 * d + 2 if self.design is None else self.design

    @property
    def world(self) -> dict[str, Any]:
        """The parameters, or the entries of a study's ``[problem]``, by name."""
        facts = flat(self.tables.get("problem", {}))
        facts.pop("sha256", None)
        return self.parameters or facts

    @property
    def reward(self) -> str:
        """The name of the reward, for titles."""
        return str(self.world.get("maximise", self.world.get("minimise", "reward")))

    @property
    def goal(self) -> str:
        """The aim with its limits, for titles; empty if these have no names."""
        named = [k.partition(".") for k in self.world]
        limits = [
            f"{cost} {value if isinstance(value, str) else f'<= {value:g}'}"
            for (table, _, cost), value in zip(named, self.world.values(), strict=True)
            if table == "limits" and cost
        ]
        aim = "minimise" if "minimise" in self.world else "maximise"
        return f"; {aim} {self.reward}, {', '.join(limits)}" if limits else ""

    def toml(self) -> str:
        """Return the text of a settings file."""
        head: dict[str, Any] = {
            "name" if self.tables else "experiment": self.experiment
        }
        head |= {name: getattr(self, name) for name in NUMBERS}
        head |= {} if self.design is None else {"design": self.design}
        sections = dict(self.tables)
        if self.tables:
            policies = sections.pop("policies")
            sections |= {
                f"policies.{toml_key(name)}": policies[name] for name in self.policies
            }
        else:
            head["policies"] = self.policies
            sections = {"parameters": self.parameters} if self.parameters else {}
        lines = ["# to run it again: cbandit run THIS_FILE"]
        lines += [f"{name} = {toml_value(value)}" for name, value in head.items()]
        for name, section in sections.items():
            lines += _section(name, section)
        return "\n".join(lines) + "\n"


def _section(name: str, table: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table; lists are wrapped in a list, so are not sweeps."""
    lines = ["", f"[{name}]"]
    inner = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner += _section(f"{name}.{toml_key(key)}", value)
        else:
            several = isinstance(value, list) and key not in VALUES
            lines.append(
                f"{toml_key(key)} = {toml_value([value] if several else value)}"
            )
    return lines + inner


def toml_key(name: str) -> str:
    """Return a key in TOML, with quotes if necessary."""
    plain = name.isascii() and name.replace("-", "_").replace("_", "a").isalnum()
    return name if plain else toml_value(name)


def toml_value(value: object) -> str:
    """Return a value in TOML."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Mapping):
        pairs = (f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # JSON's strings, numbers and truth values are TOML's
    return printable(json.dumps(value, ensure_ascii=False))


def printable(text: str) -> str:
    """Return a text in one line, with unprintable characters escaped as in TOML."""
    if text.isprintable():
        return text
    codes = ((letter, ord(letter)) for letter in text)
    return "".join(
        letter
        if letter.isprintable()
        else f"\\u{code:04x}"
        if code < 1 << 16
        else f"\\U{code:08x}"
        for letter, code in codes
    )


def shortened(text: str, most: int = 60) -> str:
    """Return a text for an error: printable, and not longer than ``most`` letters."""
    return printable(text if len(text) <= most else f"{text[:most]}...")


def of_results(path: Path) -> bool:
    """Return whether a settings file is from a results folder, even if renamed."""
    if path.name == "config.toml" or not path.is_file():
        return True
    return _ends_sealed(whole(path))


def _ends_sealed(raw: bytes) -> bool:
    """Return whether the last line of a file holds a digest."""
    return raw.rstrip().rpartition(b"\n")[2].startswith(SEAL[0].encode())


def _is_deep(line: str) -> bool:
    """Return whether a line begins with a key of too many dotted parts."""
    key = line.partition("=")[0].partition("#")[0]
    return "," not in key and key.count(".") >= DEEPEST


def read_toml(path: str | os.PathLike[str], ours: bool = False) -> dict[str, Any]:
    """Read the tables and keys of a settings file.

    Args:
        path: the file. If it ends with a digest, this must match.
        ours: whether the file must end with a digest, as in a results folder's.
    """
    try:
        raw = whole(checks.path("path", path))
        if (ours or _ends_sealed(raw)) and not unsealed(raw, *SEAL):
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
        tables = tomllib.loads(text)
    except RecursionError:
        raise CBanditError(
            f"settings file {path} has lists or tables nested too deep to be read: "
            "write them flat"
        ) from None
    except OSError as error:
        raise CBanditError(
            f"settings file {path} cannot be read: {error.strerror}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        table = f": cbandit init {quote(str(path))} writes a study of a table"
        hint = table if Path(path).suffix.lower() == ".csv" else ""
        raise CBanditError(f"settings file {path} is not TOML: {error}{hint}") from None
    if "problem" not in tables and not isinstance(tables.get("experiment"), str):
        raise CBanditError(
            f"settings file {path} must name its experiment, or have a [problem] of "
            "its own"
        )
    return tables


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table and its subtables, by dotted keys."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            out |= {f"{key}.{name}": inner for name, inner in flat(value).items()}
        else:
            out[key] = value
    return out


def versions() -> dict[str, str]:
    """Return the versions of the library and of all that its results depend on."""
    python = ".".join(map(str, sys.version_info[:3]))
    out = {"python": python, "cbandit": __version__}
    for name in PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out
