"""A set of actions with named parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.actions.box import MOST_ROWS, Box
from cbandit.actions.grid import ProductGrid
from cbandit.actions.names import Category, Int, Names, Parameter
from cbandit.errors import CBanditError


@hinted
def Space(*given: object, **parameters: Parameter) -> ProductGrid | Box:
    """Return a set whose coordinates have names: a grid, or a box with choices.

    If all parameters are whole numbers, numbers with a ``step`` or categories, it is
    the :class:`ProductGrid` of all combinations. With a number that may take any value
    it is a :class:`Box`, whose choices are the combinations of the others. It may be
    used like any other set. Choices, recommendations and frames then name actions.
    ``x`` holds the user's numbers, and positions in categories.

    Args:
        given: nothing; arguments without a name are refused.
        parameters: by name, each a :class:`~cbandit.Int`, a :class:`~cbandit.Float` or
            a :class:`~cbandit.Category`. Names that are no words of Python, with a
            space say, come in a dict, ``Space(**{"block size": cb.Int(1, 4)})``.

    Example:
        >>> import cbandit as cb
        >>> space = cb.Space(
        ...     threads=cb.Int(1, 64, log=True), codec=cb.Category("lz4", "zstd")
        ... )
        >>> space.size
        128
        >>> policy = cb.GPUCB(space, reward=cb.GP.default(space), explore=cb.UCB(2.0))
        >>> policy.observe(params=[{"threads": 8, "codec": "zstd"}], reward=[1.0])
        >>> sorted(policy.ask().params)
        ['codec', 'threads']
    """
    if given:
        whole = given[0] if isinstance(given[0], Mapping) else {"block size": Int(1, 4)}
        every = ", ".join(f"{name!r}: {_written(p)}" for name, p in whole.items())
        raise CBanditError(
            "Space takes its parameters by name, Space(memory=cb.Float(0, 1)), or a "
            f"dict of them with two stars, Space(**{{{every}}}); got "
            f"{checks.kind(given[0])}"
        )
    if not parameters:
        raise CBanditError("Space must have at least one parameter; got none")
    for name, parameter in parameters.items():
        if not isinstance(parameter, Parameter):
            raise CBanditError(
                f"Space: {name} must be a cb.Int, a cb.Float or a cb.Category; got "
                f"{_written(parameter)}{_meant(parameter)}"
            )
    axes = {n: p.values for n, p in parameters.items() if p.values is not None}
    free = [n for n, p in parameters.items() if p.values is None]
    names = Names(parameters, [*free, *axes])
    if not free:
        grid = ProductGrid(list(axes.values()))
        grid.names = names
        return grid
    ends = torch.tensor([_ends(parameters[n]) for n in free], dtype=torch.float64)
    rows = None
    if axes:
        rows = ProductGrid(list(axes.values()))
        if rows.size > MOST_ROWS:
            raise CBanditError(
                f"Space: beside a continuous parameter, the others ({', '.join(axes)}) "
                f"must have at most {MOST_ROWS} combinations; got {rows.size}: make "
                f"some of them continuous, or give {free[0]} a step"
            )
    box = Box(ends[:, 0], ends[:, 1], rows)
    box.names = names
    return box


def _written(value: object) -> str:
    """Return a value as it is written in a program."""
    if isinstance(value, Parameter):
        return f"cb.{value!r}"
    return checks.kind(value) if isinstance(value, type) else repr(value)


def _meant(value: object) -> str:
    """Return a hint what to write for a parameter that is a list or a tuple."""
    if not isinstance(value, list | tuple) or not value:
        return ""
    inside = ", ".join(map(repr, value))
    if len(value) > 2 or not all(isinstance(v, int | float) for v in value):
        return f": write cb.Category({inside})"
    kind = "Int" if all(isinstance(v, int) for v in value) else "Float"
    return f": write cb.{kind}({inside})"


def _ends(parameter: Parameter) -> tuple[float, float]:
    if isinstance(parameter, Category):
        raise CBanditError("a category has no ends")
    return float(parameter.lo), float(parameter.hi)
