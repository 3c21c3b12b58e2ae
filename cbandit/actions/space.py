"""A set of actions with named parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.actions.base import Actions
from cbandit.actions.box import MOST_ROWS, Box
from cbandit.actions.contextual import Contextual
from cbandit.actions.grid import ProductGrid
from cbandit.actions.names import Category, Context, Int, Names, Parameter
from cbandit.errors import CBanditError


@hinted
def Space(
    *given: object,
    where: str | Sequence[str] | Parameter | Context | None = None,
    **parameters: Parameter | Context,
) -> ProductGrid | Box | Contextual:
    """Return a set whose coordinates have names: a grid, or a box with choices.

    If all parameters are whole numbers, numbers with a ``step`` or categories, it is
    the :class:`ProductGrid` of all combinations. With a number that may take any value
    it is a :class:`Box`, whose choices are the combinations of the others. It works
    like any other set; choices, recommendations and frames show actions by name.
    ``x`` holds the user's numbers, and positions in categories.

    A :class:`~cbandit.Context` is not chosen but shown before each choice, to
    ``ask(context=...)``. Then ``size`` and ``index`` count choices only, while ``x``
    and ``params`` hold the context too. Beliefs are over both.

    Args:
        given: nothing; arguments without a name are refused.
        where: known linear limits on whole numbers and numbers, as texts in the user's
            numbers: ``["2 cores <= memory", "readers + writers <= 64"]``. Nothing
            beyond them is ever chosen; data from ``observe`` may lie there. Numbers of
            actions stay the same. ``None``: none. A parameter may be named ``where``.
        parameters: by name, each a :class:`~cbandit.Int`, a :class:`~cbandit.Float`, a
            :class:`~cbandit.Category` or a :class:`~cbandit.Context`. For names that
            Python does not allow as keywords, write a dict: ``Space(**{"block size":
            cb.Int(1, 4)})``.

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
        >>> tight = cb.Space(
        ...     cores=cb.Int(1, 4), memory=cb.Int(1, 8), where=["2 cores <= memory"]
        ... )
    """
    if isinstance(where, Parameter | Context):
        parameters, where = {**parameters, "where": where}, None
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
        if not isinstance(parameter, Parameter | Context):
            raise CBanditError(
                f"Space: {name} must be a cb.Int, a cb.Float, a cb.Category or a "
                f"cb.Context; got {_written(parameter)}{_meant(parameter)}"
            )
    contexts = {n: p for n, p in parameters.items() if isinstance(p, Context)}
    chosen = {n: p for n, p in parameters.items() if not isinstance(p, Context)}
    if not contexts:
        return _limited(_set(chosen), where)
    if not chosen:
        raise CBanditError(
            "Space must have a parameter to choose beside its contexts; got "
            f"{', '.join(contexts)} alone"
        )
    names = Names(contexts, [n for n in _columns(parameters) if n in contexts])
    ordered: dict[str, Parameter | Context] = {**chosen, **contexts}
    menu = _limited(_set(chosen), where, contexts)
    return Contextual(menu, _set(ordered, parameters), names)


def with_value(actions: Actions, name: str, value: object) -> Actions:
    """Return a space in which ``value`` is the new last value of category ``name``."""
    if actions.names is None:
        raise CBanditError(f"values are added to a cb.Space; got {actions!r}")
    parameters = dict(actions.names.parameters)
    parameter = parameters[name]
    inner = parameter.parameter if isinstance(parameter, Context) else parameter
    if not isinstance(inner, Category):
        raise CBanditError(f"values are added to a category; {name} is {parameter!r}")
    longer = Category(*inner.options, value)
    shown = isinstance(parameter, Context)
    parameters[name] = Context(longer) if shown else longer
    linear = actions.menu.linear
    return Space(where=None if linear is None else linear.texts, **parameters)


def _limited(
    actions: ProductGrid | Box,
    where: Any,
    contexts: Mapping[str, Context] | None = None,
) -> ProductGrid | Box:
    """Set the linear limits of a set with names; ``contexts`` cannot be in them."""
    if where is None or actions.names is None:
        return actions
    refused = {
        name: f"{name} is a category, and limits are on numbers"
        for name, parameter in actions.names.parameters.items()
        if isinstance(parameter, Category)
    }
    for name in contexts or {}:
        refused[name] = (
            f"{name} is shown and not chosen: use ask(among=) for its limits"
        )
    if isinstance(where, tuple):
        where = list(where)  # a pair of texts is no pair (A, b)
    actions.limit("where", where, actions.names.columns, refused)
    return actions


def _columns(parameters: Mapping[str, Parameter | Context]) -> list[str]:
    """Return the names of the coordinates: free numbers first, then the others."""
    free = [n for n, p in parameters.items() if p.values is None]
    others = [n for n in parameters if n not in free]
    shown = [(n, parameters[n]) for n in [*free, *others]]
    return [n for n, p in shown for _ in range(p.width if _several(p) else 1)]


def _several(parameter: Parameter | Context) -> TypeGuard[Context]:
    """Return whether it is a context of numbers without bounds."""
    return isinstance(parameter, Context) and parameter.parameter is None


def _set(
    parameters: Mapping[str, Parameter | Context],
    named: Mapping[str, Parameter | Context] | None = None,
) -> ProductGrid | Box:
    """Return the grid or box of ``parameters``; ``named`` has the user's order."""
    axes = {n: p.values for n, p in parameters.items() if p.values is not None}
    free = [n for n, p in parameters.items() if p.values is None]
    names = Names(named or parameters, _columns(parameters))
    if not free:
        grid = ProductGrid(list(axes.values()))
        grid.names = names
        return grid
    ends = [end for n in free for end in _ends(parameters[n])]
    bounds = torch.tensor(ends, dtype=torch.float64)
    rows = None
    if axes:
        rows = ProductGrid(list(axes.values()))
        if rows.size > MOST_ROWS:
            raise CBanditError(
                f"Space: beside a continuous parameter, the others ({', '.join(axes)}) "
                f"must have at most {MOST_ROWS} combinations; got {rows.size}: make "
                f"some of them continuous, or give {free[0]} a step"
            )
    box = Box(bounds[:, 0], bounds[:, 1], rows)
    box.names = names
    box.loose = torch.tensor([_several(names.parameters[n]) for n in names.columns])
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


def _ends(parameter: Parameter | Context) -> list[tuple[float, float]]:
    """Return the least and the greatest value of each coordinate."""
    if _several(parameter):
        return [(-1.0, 1.0)] * parameter.width
    inner = parameter.parameter if isinstance(parameter, Context) else parameter
    if inner is None or isinstance(inner, Category):
        raise CBanditError("a category has no ends")
    return [(float(inner.lo), float(inner.hi))]
