"""Problems of a study: a table of measurements, a BoTorch test function, or an object.

The main process and its workers find and build each in the same way.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cbandit import problems
from cbandit._core import checks
from cbandit._core.files import whole
from cbandit._core.randomness import trial_range
from cbandit.errors import CBanditError
from cbandit.experiments.named import Arguments, Home, located, of_botorch
from cbandit.experiments.tables import listed, read_table

KINDS = ("table", "botorch", "object")
GRIDDED = ("points", "noise", "cost_noise", "optimum")  # arguments of from_botorch


@dataclass(frozen=True)
class StatedProblem:
    """A problem as a file describes it.

    Args:
        where: the file and the table, for errors.
        kind: one of :data:`KINDS`.
        table: the file's table; for a table of measurements, with its digest.
        home: which modules may be imported.
        path: the path of a table of measurements.
    """

    where: str
    kind: str
    table: dict[str, Any]
    home: Home
    path: str = ""

    @classmethod
    def read(cls, where: str, section: object, home: Home) -> StatedProblem:
        """Return the problem that a file describes, checked; read no data.

        Args:
            where: the file and the table, for errors.
            section: a table; or a text, which stands for its ``object``.
            home: which modules may be imported when it is built.
        """
        table = {"object": section} if isinstance(section, str) else section
        if not isinstance(table, Mapping):
            raise CBanditError(f"{where} must be a table, or a text; got {table!r}")
        kinds = [kind for kind in KINDS if kind in table]
        if len(kinds) != 1:
            raise CBanditError(
                f"{where} must have one of table = 'data.csv', botorch = 'Function' "
                f"and object = 'module:object'; got {', '.join(table) or 'nothing'}"
            )
        (kind,) = kinds
        if not isinstance(table[kind], str):
            raise CBanditError(f"{where} {kind} must be a text; got {table[kind]!r}")
        return cls(where, kind, dict(table), home)

    def located(self, places: Sequence[Path]) -> StatedProblem:
        """Return the problem with its table's path and digest.

        Args:
            places: the folders to search for the table, in order.
        """
        if self.kind != "table":
            return self
        name, where = self.table["table"], self.where
        paths = [place.resolve() / name for place in places]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            looked = " nor in ".join(dict.fromkeys(str(p.parent) for p in paths))
            raise CBanditError(f"{where} table: {name} is not in {looked}")
        digest = hashlib.sha256(whole(path)).hexdigest()
        if self.table.get("sha256", digest) != digest:
            raise CBanditError(
                f"{where} sha256: {path} is not the table that this file was written "
                "for; leave sha256 out to use it all the same"
            )
        return replace(self, table={**self.table, "sha256": digest}, path=str(path))

    def build(self, trials: range, seed: int) -> Any:
        """Build the problem for some trials."""
        table = {k: v for k, v in self.table.items() if k not in (self.kind, "sha256")}
        if self.kind == "table":
            return self._measured(table, trials, seed)
        words, where = self.table[self.kind], f"{self.where} {self.kind}"
        if self.kind == "botorch":
            return self._from_botorch(words, where, table)
        with located(where):
            thing = self.home.find(words)
        if not callable(thing):
            return thing
        offers = {"trials": trials, "seed": seed}
        named = Arguments(thing).named
        offers = {key: value for key, value in offers.items() if key in named}
        # errors in the user's own code are shown with their traceback
        return thing(**self.home.arguments(self.where, words, thing, table, offers))

    def _measured(self, table: dict[str, Any], trials: range, seed: int) -> Any:
        if not table.get("limits"):
            knobs = table.get("knobs") or []
            raise CBanditError(
                f"{self.where} limits are missing: which measured columns are to be "
                "kept under or over what? Write a table [problem.limits] with a line a "
                "column, such as latency = '<= 20'"
                + (f"; not one of the knobs {', '.join(knobs)}" if knobs else "")
            )
        frame, converted = read_table(Path(self.path))
        kind = problems.Contexts if "contexts" in table else problems.Table
        read: Callable[..., Any] = kind.from_frame
        Arguments(read).check(self.where, "a table", table)
        for key in ("trials", "seed"):
            if key in table:
                raise CBanditError(
                    f"{self.where} {key} stands at the top of the file, for all of it"
                )
        for key in ("maximise", "minimise"):
            if not isinstance(table.get(key, ""), str):
                raise CBanditError(
                    f"{self.where} {key} must be the name of a column; got "
                    f"{table[key]!r}"
                )
        if table.get("repeats") == "resample":  # each trial has its own rows
            table = {**table, "trials": trials, "seed": seed}
        with located(self.where), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            problem = read(frame, **table)
        # the command line prints these warnings once, see remarks
        texts = [str(warning.message) for warning in caught]
        said = (t for t in texts if " have missing cells " not in t)
        problem.remarks = (*converted, *said)
        return problem

    def _from_botorch(self, words: str, where: str, table: dict[str, Any]) -> Any:
        from botorch import test_functions
        from botorch.test_functions import base, synthetic

        with located(where):
            kind = of_botorch((test_functions, synthetic), words, base.BaseTestProblem)
        options = {key: table.pop(key) for key in GRIDDED if key in table}
        function = self.home.call(self.where, words, kind, table)
        with located(self.where):
            return problems.from_botorch(function, **options)


def remarks(problem: object) -> tuple[str, ...]:
    """Return remarks on a table's data, in words.

    They are its warnings about columns and limits, the rows that were left out, and how
    many rows repeat a configuration.
    """
    out = list(getattr(problem, "remarks", ()))
    dropped = getattr(problem, "dropped", ())
    if dropped:
        out.append(
            f"rows that miss a value and are left out: {len(dropped)}, at line "
            f"{listed(dropped)}"
        )
    again = getattr(problem, "repeats", 0)
    if again:
        out.append(
            f"rows that repeat a configuration, of which means are taken: {again}"
        )
    return tuple(out)


def costs_of(problem: Any) -> int:
    """Return how many costs a problem has."""
    m = getattr(problem, "m", None)
    if isinstance(m, int) and not isinstance(m, bool):
        return m
    actions, trials = problem.actions, trial_range(problem.trials)
    x = actions.at(torch.tensor(0)) if actions.size < math.inf else actions.lower
    batch = () if trials is None else (len(trials),)
    costs = checks.tensor("problem.costs", problem.costs(x.expand(*batch, -1), 1))
    return 1 if costs.shape == batch else int(costs.shape[-1])
