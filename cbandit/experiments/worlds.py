"""Problems of a study: a table of measurements, a BoTorch test function, or an object.

All are looked up and built alike in the process that was called and in its workers.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cbandit import problems
from cbandit._core import checks
from cbandit._core.randomness import trial_range
from cbandit.errors import CBanditError, MissingExtraError
from cbandit.experiments.named import (
    Home,
    built,
    checked,
    found,
    of_botorch,
    said,
)

__all__ = [
    "KINDS",
    "World",
    "built_world",
    "costs_of",
    "located",
    "read_table",
    "remarks",
    "stated",
]

KINDS = ("table", "botorch", "object")
SHOWN = 12  # rows that are named
GRIDDED = ("points", "noise", "cost_noise", "optimum")  # of from_botorch


@dataclass(frozen=True)
class World:
    """A problem as a file states it.

    Args:
        where: the file and the table, for errors.
        kind: one of :data:`KINDS`.
        table: what the file says, and of a table of measurements its digest too.
        path: where that lies.
    """

    where: str
    kind: str
    table: dict[str, Any]
    path: str = ""


def stated(where: str, given: Any) -> World:
    """Return a problem as a file states it, or raise; nothing is read or imported.

    Args:
        where: the file and the table, for errors.
        given: a table; or a text, which is its ``object``.
    """
    table = {"object": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        raise CBanditError(f"{where} must be a table, or a text; got {given!r}")
    kinds = [kind for kind in KINDS if kind in table]
    if len(kinds) != 1:
        raise CBanditError(
            f"{where} must have one of table = 'data.csv', botorch = 'Function' and "
            f"object = 'module:object'; got {', '.join(table) or 'nothing'}"
        )
    (kind,) = kinds
    if not isinstance(table[kind], str):
        raise CBanditError(f"{where} {kind} must be a text; got {table[kind]!r}")
    return World(where, kind, dict(table))


def located(world: World, places: Sequence[Path]) -> World:
    """Return a problem with the place and the digest of its table.

    Args:
        world: as stated.
        places: folders in which the table is looked up, one after the other.
    """
    if world.kind != "table":
        return world
    name, where = world.table["table"], world.where
    paths = [place.resolve() / name for place in places]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        looked = " nor in ".join(dict.fromkeys(str(each.parent) for each in paths))
        raise CBanditError(f"{where} table: {name} is not in {looked}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if world.table.get("sha256", digest) != digest:
        raise CBanditError(
            f"{where} sha256: {path} is not the table that this file was written for; "
            "leave sha256 out to use it all the same"
        )
    return replace(world, table={**world.table, "sha256": digest}, path=str(path))


def built_world(
    world: World, home: Home, parameters: Mapping[str, Any], trials: range, seed: int
) -> Any:
    """Build a problem: an experiment's ``problem``, given ``world`` and ``home``."""
    own = {k: v for k, v in world.table.items() if k not in (world.kind, "sha256")}
    build = {"table": _measured, "botorch": _borrowed, "object": _found}[world.kind]
    return build(world, home, own, trials, seed)


def _measured(
    world: World, home: Home, own: dict[str, Any], trials: range, seed: int
) -> Any:
    if not own.get("limits"):
        knobs = own.get("knobs") or []
        raise CBanditError(
            f"{world.where} limits are missing: which measured columns are to be kept "
            "under or over what? Write a table [problem.limits] with a line a column, "
            "such as latency = '<= 20'"
            + (f"; not one of the knobs {', '.join(knobs)}" if knobs else "")
        )
    frame = read_table(Path(world.path))
    checked(world.where, "a table", problems.Table.from_frame, own)
    with said(world.where), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        problem = problems.Table.from_frame(frame, **own)
    # the command line says it once, see remarks
    texts = [str(each.message) for each in caught]
    problem.remarks = tuple(
        text for text in texts if " have missing cells " not in text
    )
    return problem


def _borrowed(
    world: World, home: Home, own: dict[str, Any], trials: range, seed: int
) -> Any:
    from botorch import test_functions
    from botorch.test_functions import base, synthetic

    words = world.table["botorch"]
    with said(f"{world.where} botorch"):
        kind = of_botorch((test_functions, synthetic), words, base.BaseTestProblem)
    mine = {key: own.pop(key) for key in GRIDDED if key in own}
    checked(world.where, words, kind, own)
    with said(world.where):
        return problems.from_botorch(kind(**own), **mine)


def _found(
    world: World, home: Home, own: dict[str, Any], trials: range, seed: int
) -> Any:
    words = world.table["object"]
    with said(f"{world.where} object"):
        thing = found(words, home)
    if not callable(thing):
        return thing
    takes = checked(world.where, words, thing, own)
    offered = {"trials": trials, "seed": seed}
    own |= {k: v for k, v in offered.items() if k in takes.named and k not in own}
    return thing(**{k: built(f"{world.where} {k}", v, home) for k, v in own.items()})


def read_table(path: Path) -> Any:
    """Read a CSV file as a pandas frame."""
    try:
        import pandas
    except ImportError:
        raise MissingExtraError(
            "tables need pandas: pip install 'cbandit[experiments]'"
        ) from None
    try:
        # as it is: pandas would inflate data.csv.gz, however large it becomes
        frame = pandas.read_csv(path, compression=None)
    except (OSError, ValueError) as error:
        raise CBanditError(
            f"{path} cannot be read as CSV: {error} (a compressed table is to be "
            "unpacked first)"
        ) from None
    # rows are named as an editor numbers them, the head being line 1
    frame.index = pandas.RangeIndex(2, 2 + len(frame), name="line")
    return frame


def remarks(problem: Any) -> tuple[str, ...]:
    """Say which rows of a table were left out, and how many were put together.

    And what its columns are suspected of, and limits that no row keeps.
    """
    out = list(getattr(problem, "remarks", ()))
    dropped = getattr(problem, "dropped", ())
    if dropped:
        shown = ", ".join(map(str, dropped[:SHOWN])) + ", ..." * (len(dropped) > SHOWN)
        out.append(
            f"rows that miss a value and are left out: {len(dropped)}, at line {shown}"
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
