"""The catalogue: a list of all experiments, found by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cbandit.errors import CBanditError
from cbandit.experiments.papers import cbo, guo, pacchiano, shi, zhou
from cbandit.experiments.settings import Settings, read_toml
from cbandit.experiments.task import Experiment

__all__ = ["EXPERIMENTS", "find", "settings_from_toml"]

_LISTED = (
    *zhou.EXPERIMENTS,
    *pacchiano.EXPERIMENTS,
    *shi.EXPERIMENTS,
    *guo.EXPERIMENTS,
    *cbo.EXPERIMENTS,
)
EXPERIMENTS: Mapping[str, Experiment] = {each.name: each for each in _LISTED}


def find(name: str) -> Experiment:
    """The experiment of that name, or an error that lists them all."""
    if name not in EXPERIMENTS:
        raise CBanditError(
            f"no experiment is named {name!r}; known are {', '.join(EXPERIMENTS)}"
        )
    return EXPERIMENTS[name]


def settings_from_toml(path: str | os.PathLike[str], **over: Any) -> Settings:
    """The settings in a file; settings in ``over`` win unless they are ``None``."""
    name, given = read_toml(path, over)
    return find(name).settings(**given)
