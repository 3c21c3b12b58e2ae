"""Experiments and tasks: parameters, a problem, policies, figures."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import quote

import torch

from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.experiments.settings import Settings
from cbandit.problems.protocol import Problem
from cbandit.simulation.parts import Policy


@dataclass(frozen=True)
class Parameter:
    """A parameter of an experiment.

    Args:
        default: the default value; all values have its type.
        choices: all allowed values, the default first, if there are few.
        meaning: what it sets, in words.
        least: the least allowed number, if ``choices`` is empty. If the default is a
            text, other values must be texts of such numbers.
    """

    default: Any
    choices: tuple[Any, ...] = ()
    meaning: str = ""
    least: float | None = None

    def parse(self, name: str, value: object) -> Any:
        """Return ``value``, possibly typed on a command line, in the default's type."""
        kind = type(self.default)
        wanted = {int: "a whole number", float: "a number"}.get(kind, "a text")
        try:
            out = kind(value)
            whole = kind is not int or not isinstance(value, float) or out == value
            fits = whole and not isinstance(value, bool)
            if fits and self.choices:
                wanted = f"one of {', '.join(map(str, self.choices))}"
                fits = out in self.choices
            elif fits and self.least is not None and out != self.default:
                word = f"{self.default!r} or " if kind is str else ""
                wanted = f"{word}a number, at least {self.least}"
                fits = self.least <= float(out) < math.inf
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise CBanditError(f"parameter {name} must be {wanted}; got {value!r}")
        return out


@dataclass(frozen=True)
class Figures:
    """Which figures of an experiment to draw.

    Args:
        spread, width: the band, see ``cb.plots.overview``.
        averaged: the metrics whose time averages are drawn.
        evolution: the regret in a figure that also shows each round's expected cost and
            reward, and the optimum; ``None``: no such figure.
        boxes: by policy, how many rounds lie between boxplots of the time averages, and
            under ``each`` for all others; ``None``: no boxplots.
        early: the last round of a figure of early time averages; ``None``: no figure.
        traded: two metrics to plot against each other, a point per policy; or ``None``.
        sweeps: groups of policies that differ in one argument only, in its order; the
            figure of ``traded`` joins each group by a line.
    """

    spread: str = "sem"
    width: float = 1.0
    averaged: tuple[str, ...] = ("regret", "soft_violation", "hard_violation")
    evolution: str | None = None
    boxes: Mapping[str, int] | None = None
    early: int | None = None
    traded: tuple[str, str] | None = None
    sweeps: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Experiment:
    """Several policies on one problem; picklable, so that workers can run it.

    Args:
        name: its name on the command line.
        about: a description in one line.
        horizon, trials: the paper's numbers.
        problem: builds the problem; called with ``trials``, ``seed`` and the parameters
            that it takes.
        policies: functions ``(problem, task) -> policy``, by their names in results.
        parameters: the parameters by name.
        changes: the first rounds of the world's later phases; each phase has its own
            account.
        figures: which figures to draw.
        tables: the tables of a study, see :class:`Settings`.
    """

    name: str
    about: str
    horizon: int
    trials: int
    problem: Callable[..., Any]
    policies: Mapping[str, Factory]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    changes: tuple[int, ...] = ()
    figures: Figures = Figures()
    tables: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, **options: Any) -> Settings:
        """Return the default settings, replaced by options that are not ``None``."""
        listed = [known.name for known in fields(Settings) if known.name != "tables"]
        unknown = [name for name in options if name not in listed[1:]]
        if unknown:
            raise CBanditError(
                f"unknown settings: {', '.join(unknown)}; known are {', '.join(listed)}"
            )
        options = {name: value for name, value in options.items() if value is not None}
        wanted = "a whole number, at least 1"
        horizon, trials = (
            checks.whole(name, options.get(name, getattr(self, name)), 1, wanted)
            for name in ("horizon", "trials")
        )
        design = options.get("design")
        if design is not None:
            if not self.tables:
                raise CBanditError(
                    f"design = {design!r}: {self.name} starts as its paper does; only "
                    "studies take a design"
                )
            design = checks.whole("design", design, 0, "a whole number, 0 for none")
        dtype = options.get("dtype", "float64")
        if dtype not in ("float64", "float32"):
            raise CBanditError(f"dtype must be float64 or float32; got {dtype!r}")
        return Settings(
            self.name,
            self._parameters(options.get("parameters", {})),
            self._policies(options.get("policies", list(self.policies))),
            horizon,
            trials,
            checks.seed(options.get("seed", 0)),
            device=str(checks.device(options.get("device"))),
            dtype=dtype,
            tables=self.tables,
            design=design,
        )

    def _parameters(self, options: Mapping[str, Any]) -> dict[str, Any]:
        chosen = {name: known.default for name, known in self.parameters.items()}
        for name, value in options.items():
            if name not in chosen:
                has = ", ".join(chosen) or "none"
                raise CBanditError(
                    f"{self.name} has no parameter {name!r}; it has: {has}"
                )
            chosen[name] = self.parameters[name].parse(name, value)
        return chosen

    def _policies(self, names: object) -> tuple[str, ...]:
        if not isinstance(names, list | tuple) or not names:
            raise CBanditError(
                f"policies must be a list of at least one name; got {names!r}"
            )
        for name in names:
            if not isinstance(name, str) or name not in self.policies:
                raise CBanditError(
                    f"{self.name} has no policy {name!r}; it has: "
                    f"{', '.join(self.policies)}"
                )
        if len(set(names)) != len(names):
            raise CBanditError(f"policies must differ; got {', '.join(names)}")
        return tuple(names)

    def build(self, settings: Settings, trials: range) -> Any:
        """Build the problem for some of the trials."""
        offers = {**settings.parameters, "trials": trials, "seed": settings.seed}
        takes = inspect.signature(self.problem).parameters
        return self.problem(**{k: v for k, v in offers.items() if k in takes})


def file_name(policy: str) -> str:
    """Return a policy's name as that of a file."""
    return quote(policy, safe=" =,()+")


@dataclass(frozen=True)
class Task:
    """One policy of one experiment on some of its trials, run by one worker."""

    experiment: Experiment
    settings: Settings
    policy: str
    trials: range

    @property
    def label(self) -> str:
        """The name of the task's files."""
        name = file_name(self.policy)
        if len(self.trials) == self.settings.trials:
            return name
        return f"{name}-{self.trials[0]}-{self.trials[-1]}"

    @property
    def common(self) -> dict[str, Any]:
        """The keyword arguments that every policy of the task is built with."""
        return {
            "seed": self.settings.seed,
            "trials": self.trials,
            "device": self.settings.device,
            "dtype": getattr(torch, self.settings.dtype),
        }

    def problem(self) -> Any:
        """Build the problem."""
        return self.experiment.build(self.settings, self.trials)

    def make(self, problem: Problem) -> Policy:
        """Build the policy for the problem."""
        return self.experiment.policies[self.policy](problem, self)


Factory = Callable[[Any, Task], Policy]
"""Builds a policy for a problem and a task."""
