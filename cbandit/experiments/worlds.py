"""Problems of a study: a table of measurements, a BoTorch test function, or an object.

All are looked up and built alike in the process that was called and in its workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cbandit import problems
from cbandit._core import checks
from cbandit._core.randomness import trial_range
from cbandit.errors import CBanditError
from cbandit.experiments.named import built, checked, found, found_in, said

__all__ = [
    "KINDS",
    "World",
    "built_world",
    "costs_of",
    "stated",
]

KINDS = ("botorch", "object")
FUNCTIONS = ("botorch.test_functions", "botorch.test_functions.synthetic")
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
            f"{where} must have one of botorch = 'Function' and "
            f"object = 'module:object'; got {', '.join(table) or 'nothing'}"
        )
    (kind,) = kinds
    if not isinstance(table[kind], str):
        raise CBanditError(f"{where} {kind} must be a text; got {table[kind]!r}")
    return World(where, kind, dict(table))


def built_world(
    world: World, home: str, parameters: Mapping[str, Any], trials: range, seed: int
) -> Any:
    """Build a problem: an experiment's ``problem``, given ``world`` and ``home``."""
    own = {k: v for k, v in world.table.items() if k not in (world.kind, "sha256")}
    build = {"botorch": _borrowed, "object": _found}[world.kind]
    return build(world, home, own, trials, seed)


def _borrowed(
    world: World, home: str, own: dict[str, Any], trials: range, seed: int
) -> Any:
    words = world.table["botorch"]
    with said(f"{world.where} botorch"):
        kind = found_in(FUNCTIONS, words, home)
    mine = {key: own.pop(key) for key in GRIDDED if key in own}
    checked(world.where, words, kind, own)
    with said(world.where):
        return problems.from_botorch(kind(**own), **mine)


def _found(
    world: World, home: str, own: dict[str, Any], trials: range, seed: int
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
