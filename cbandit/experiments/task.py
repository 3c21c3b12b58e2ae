"""Experiments and tasks: parameters, a problem, policies, figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any
from urllib.parse import quote

import torch

from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.experiments.settings import Settings
from cbandit.simulation.parts import Policy

__all__ = ["Experiment", "Factory", "Figures", "Parameter", "Task", "problem_of"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of an experiment.

    Args:
        default: its value unless another is given; of the kind that all values have.
        choices: all of its values, the default first, if they are few.
        meaning: in words.
        least: of a number that is not one of a few, the least one allowed. With a text
            as default, other values must be texts of such numbers.
    """

    default: Any
    choices: tuple[Any, ...] = ()
    meaning: str = ""
    least: float | None = None

    def parse(self, name: str, value: Any) -> Any:
        """``value``, perhaps as typed on a command line, in the default's kind."""
        kind = type(self.default)
        try:
            out = kind(value)
        except (TypeError, ValueError, OverflowError):
            out = None
        cut = kind is int and isinstance(value, float) and out != value
        if out is None or cut or isinstance(value, bool):
            word = {int: "a whole number", float: "a number"}.get(kind, "a text")
            raise CBanditError(f"parameter {name} must be {word}; got {value!r}")
        if self.choices and out not in self.choices:
            known = ", ".join(map(str, self.choices))
            raise CBanditError(f"parameter {name} must be one of {known}; got {out!r}")
        if self.least is not None and out != self.default:
            try:
                fits = self.least <= float(out) < math.inf
            except ValueError:
                fits = False
            if not fits:
                word = f"{self.default!r} or " if kind is str else ""
                raise CBanditError(
                    f"parameter {name} must be {word}a number, at least {self.least}; "
                    f"got {out!r}"
                )
        return out


@dataclass(frozen=True)
class Figures:
    """The figures of an experiment.

    Args:
        spread, width: the band, see ``cb.plots.overview``.
        averaged: metrics whose time averages are drawn.
        evolution: the regret of a figure that shows it beside each round's expected
            cost and reward, and what is optimal; ``None``: no such figure.
        boxes: rounds between boxplots of the time averages: ``each``, and by policy
            where one has its own; ``None``: no boxplots.
        early: a figure of the time averages up to this round, if given.
        traded: two metrics to draw against each other, a point a policy, if given.
        sweeps: policies that differ in one argument alone, in its order; there, a line
            joins those of each sweep.
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
    """Several policies on one problem. It can be pickled, for workers to run it.

    Args:
        name: as the command line knows it.
        about: one line.
        horizon, trials: of the paper.
        problem: ``(parameters, trials, seed) -> problem``; see :func:`problem_of`.
        policies: ``(problem, task) -> policy``, by their names in results.
        parameters: by name.
        changes: the first rounds of the world's later phases; the account of each phase
            is kept apart.
        figures: how results are drawn.
    """

    name: str
    about: str
    horizon: int
    trials: int
    problem: Callable[[Mapping[str, Any], range, int], Any]
    policies: Mapping[str, Factory]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    changes: tuple[int, ...] = ()
    figures: Figures = Figures()

    def settings(self, **given: Any) -> Settings:
        """The experiment's defaults, replaced by what is given and not ``None``."""
        listed = [each.name for each in fields(Settings) if each.name != "tables"]
        known = {*listed} - {"experiment"}
        if not given.keys() <= known:
            names = ", ".join(listed)
            unknown = ", ".join(name for name in given if name not in known)
            raise CBanditError(f"unknown settings: {unknown}; known are {names}")
        parameters = self._parameters(given.get("parameters") or {})
        policies = self._policies(given.get("policies"))
        numbers: dict[str, int] = {
            "horizon": self.horizon,
            "trials": self.trials,
            "seed": 0,
        }
        for name, default in numbers.items():
            value = default if given.get(name) is None else given[name]
            if name == "seed":
                numbers[name] = checks.seed(value)
            else:
                words = "a whole number, at least 1"
                numbers[name] = checks.whole(name, value, 1, words)
        dtype = given.get("dtype")
        if dtype not in (None, "float64", "float32"):
            raise CBanditError(f"dtype must be float64 or float32; got {dtype!r}")
        return Settings(
            self.name,
            parameters,
            policies,
            numbers["horizon"],
            numbers["trials"],
            numbers["seed"],
            device=str(checks.device(given.get("device"))),
            dtype=dtype or "float64",
        )

    def _parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        chosen = {name: each.default for name, each in self.parameters.items()}
        for name, value in given.items():
            if name not in chosen:
                has = ", ".join(chosen) or "none"
                raise CBanditError(
                    f"{self.name} has no parameter {name!r}; it has: {has}"
                )
            chosen[name] = self.parameters[name].parse(name, value)
        return chosen

    def _policies(self, given: Any) -> tuple[str, ...]:
        names = tuple(self.policies) if given is None else given
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


def problem_of(build: Callable[..., Any], *names: str, seeded: bool = True) -> Any:
    """An experiment's ``problem``: one that ``build`` makes of these parameters.

    Args:
        build: at a module's top level; takes ``trials=`` beside the parameters.
        names: the parameters that are the problem's.
        seeded: whether it takes ``seed=`` too.
    """
    return partial(_built, build, names, seeded)


def _built(
    build: Callable[..., Any],
    names: tuple[str, ...],
    seeded: bool,
    parameters: Mapping[str, Any],
    trials: range,
    seed: int,
) -> Any:
    given = {name: parameters[name] for name in names}
    if seeded:
        given["seed"] = seed
    return build(trials=trials, **given)


@dataclass(frozen=True)
class Task:
    """One policy of one experiment on some of its trials: the share of a worker."""

    experiment: Experiment
    settings: Settings
    policy: str
    trials: range

    @property
    def label(self) -> str:
        """A name for its files."""
        name = quote(self.policy, safe=" =,()+")
        if len(self.trials) == self.settings.trials:
            return name
        return f"{name}-{self.trials[0]}-{self.trials[-1]}"

    @property
    def common(self) -> dict[str, Any]:
        """The keywords that all policies of a task share."""
        return {
            "seed": self.settings.seed,
            "trials": self.trials,
            "device": self.settings.device,
            "dtype": getattr(torch, self.settings.dtype),
        }

    def problem(self) -> Any:
        """Build the problem."""
        settings = self.settings
        return self.experiment.problem(settings.parameters, self.trials, settings.seed)

    def make(self, problem: Any) -> Policy:
        """Build the policy for the problem."""
        return self.experiment.policies[self.policy](problem, self)


Factory = Callable[[Any, Task], Policy]
"""Builds a policy for a problem, as a task asks for it."""
