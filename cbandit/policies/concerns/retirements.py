"""Leave out values of categories that were retired: ``policy.retire(name, value)``.

``T`` counts the trials and ``N`` the actions of a set.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from cbandit.actions import Actions, Box, Category, Context, Finite
from cbandit.errors import CBanditError
from cbandit.policies.checks import round_mask
from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Turn

REASON = "is retired"

Values = frozenset[tuple[str, float]]
"""Values of categories: the category's name, and the value's position in it."""


class Retired(NamedTuple):
    """The retired values, and the choices that are left.

    Args:
        menu: the policy's set of choices, without contexts.
        values: the retired values.
        left: a mask over the menu, ``(1, N)``, or the box without retired values;
            ``None``: nothing is retired.
    """

    menu: Any
    values: Values = frozenset()
    left: Any = None


class Retirements(Concern[Retired]):
    """Leave out actions with a retired value."""

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy whose set has categories."""
        if not setup.abilities.categories or not _categories(setup.actions):
            return None
        return cls(setup)

    def start(self) -> Retired:
        """Return the state in which no value is retired."""
        return Retired(self.setup.actions.menu)

    def grow(self, state: Retired, actions: Actions) -> Retired:
        """Return the state over a set that has grown."""
        batch_shape, device = self.setup.batch_shape, self.setup.device
        return without_values(actions.menu, state.values, batch_shape, device)

    def open_turn(self, state: Retired, turn: Turn) -> tuple[Retired, Turn]:
        """Leave out the actions with a retired value."""
        left, on, shown = state.left, turn.actions, turn.shown
        if left is None:
            return state, turn
        if turn.apart:
            return state, turn.only(_kept_actions(state, on), REASON)
        if isinstance(left, Box):
            return state, turn._replace(actions=left)
        turn = turn._replace(offered=left)
        if shown is not None and on is shown.space.domain:  # choices x contexts
            left = left.repeat_interleave(on.size // left.shape[-1], -1)
        return state, turn.only(left, REASON)


def without_values(
    menu: Any, values: Values, batch_shape: tuple[int, ...], device: torch.device
) -> Retired:
    """Return the state over the set ``menu`` in which exactly ``values`` are retired.

    ``batch_shape`` is that of the trials; masks live on ``device``.
    """
    if not values:
        return Retired(menu)
    names = menu.names
    among: dict[str, list[Any]] = {}
    for name in {name for name, _ in values}:
        options = names.parameters[name].options
        places = enumerate(options)
        among[name] = [v for j, v in places if (name, float(j)) not in values]
        if not among[name]:
            raise CBanditError(f"retire: {name} must keep a value; none would be left")
    if not isinstance(menu, Box) or menu.choices is None:
        left = round_mask(among, menu, batch_shape, device)
        return Retired(menu, values, left)
    rows = torch.ones_like(menu.choices[:, 0], dtype=torch.bool)
    for name, position in values:
        column = names.columns.index(name) - menu.continuous
        rows &= menu.choices[:, column] != position
    return Retired(menu, values, menu.only(rows))


def category_of(actions: Actions, call: str, name: str) -> Category:
    """Return the category ``name`` of a space; else raise an error about ``call``."""
    every = _categories(actions)
    if not every and (actions.names is None or isinstance(actions, Finite)):
        raise CBanditError(f"{call} needs a cb.Space with a cb.Category; got {actions}")
    found = every.get(name) if isinstance(name, str) else None
    if found is None:
        has = f"one of {[*every]}" if every else "and this space has none"
        raise CBanditError(f"{call}: name must be of a category, {has}; got {name!r}")
    return found


def _kept_actions(state: Retired, on: Actions) -> Tensor:
    """Return the actions of the set ``on`` without a retired value, ``(T or 1, N)``."""
    points, columns = on.block(0, on.size), state.menu.names.columns
    gone = torch.zeros(points.shape[:-1], dtype=torch.bool, device=points.device)
    for name, position in state.values:
        gone |= points[..., columns.index(name)] == position
    return ~gone.reshape(-1, on.size)


def _categories(actions: Actions) -> dict[str, Category]:
    """Return the categories of a space by name, including those of contexts."""
    names = actions.names
    if names is None or isinstance(actions, Finite):
        return {}
    inner = {
        name: each.parameter if isinstance(each, Context) else each
        for name, each in names.parameters.items()
    }
    return {k: each for k, each in inner.items() if isinstance(each, Category)}
