"""Values of categories that are not chosen any more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit.actions import Actions, Box, Category, Context, Finite, is_category
from cbandit.errors import CBanditError
from cbandit.policies.checks import round_mask

Retired = frozenset[tuple[str, float]]
"""Names of categories and positions in them."""


def offered(
    menu: Actions, retired: Retired, batch: tuple[int, ...], device: torch.device
) -> tuple[Actions, Tensor | None] | None:
    """Return the choices that are left of a space; ``None``: all of them.

    They are a set and a mask of it, ``(1, N)``, or a box with fewer rows.
    """
    names = menu.names
    if not retired or names is None:
        return None
    among: dict[str, list[Any]] = {}
    for name in {name for name, _ in retired}:
        parameter = names.parameters[name]
        options = parameter.options if isinstance(parameter, Category) else ()
        among[name] = [
            value for j, value in enumerate(options) if (name, float(j)) not in retired
        ]
        if not among[name]:
            raise CBanditError(f"retire: {name} must keep a value; none would be left")
    if not isinstance(menu, Box) or menu.choices is None:
        return menu, round_mask(among, menu, batch, device)
    left = torch.ones_like(menu.choices[:, 0], dtype=torch.bool)
    for name, position in retired:
        left &= menu.choices[:, names.columns.index(name) - menu.continuous] != position
    return menu.only(left), None


def category_of(actions: Actions, call: str, name: str) -> Category:
    """Return a category of a space, or raise an error that names the call."""
    names = actions.names
    if names is None or isinstance(actions, Finite):
        raise CBanditError(f"{call} needs a cb.Space with a cb.Category; got {actions}")
    parameter = names.parameters.get(name) if isinstance(name, str) else None
    if isinstance(parameter, Context):
        parameter = parameter.parameter
    if not isinstance(parameter, Category):
        every = [n for n, p in names.parameters.items() if is_category(p)]
        has = f"one of {every}" if every else "and this space has none"
        raise CBanditError(f"{call}: name must be of a category, {has}; got {name!r}")
    return parameter
