"""Choices, and contexts that the world shows before each of them.

An action's coordinates are those of the choice and those of the context. Beliefs cover
all of them, the *domain*; a round shows one context and chooses from the *menu*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit.actions.base import Actions, coordinates
from cbandit.actions.box import Box
from cbandit.actions.finite import Finite
from cbandit.actions.grid import ProductGrid
from cbandit.actions.names import Context, Names, plain
from cbandit.errors import CBanditError


class Contextual(Actions):
    """A set of choices in contexts; :func:`~cbandit.Space` makes it.

    Numbers count choices only. ``dim``, ``names`` and :meth:`extent` cover choice and
    context together.

    Args:
        menu: the choices, with names.
        domain: the choices in all contexts: a grid whose last axes are those of the
            contexts, or a box.
        contexts: the names of the contexts.
    """

    def __init__(
        self, menu: ProductGrid | Box, domain: ProductGrid | Box, contexts: Names
    ) -> None:
        if menu.names is None or domain.names is None:
            raise CBanditError("a set with contexts must have names")
        self._menu, self._domain, self.contexts = menu, domain, contexts
        self.names: Names = domain.names
        self.finite, self.continuous = menu.finite, menu.continuous
        self.size, self.dim, self.batch_shape = menu.size, domain.dim, ()
        columns = domain.names.columns
        chosen = [j for j, n in enumerate(columns) if n not in contexts.parameters]
        shown = [j for j, n in enumerate(columns) if n in contexts.parameters]
        self._chosen, self._shown = torch.tensor(chosen), torch.tensor(shown)
        self._order = torch.argsort(torch.tensor([*chosen, *shown]))

    @property
    def menu(self) -> ProductGrid | Box:
        """The set that a round chooses from, without contexts."""
        return self._menu

    @property
    def domain(self) -> ProductGrid | Box:
        """The set that beliefs cover: every choice in every context."""
        return self._domain

    @property
    def levelled(self) -> bool:
        """Whether choices and contexts together form a grid."""
        return self._domain.finite

    def points(self, index: ArrayLike) -> Tensor:
        """Return the coordinates of numbered choices, without those of a context."""
        return self._menu.points(index)

    def at(self, numbers: Tensor) -> Tensor:
        """Return :meth:`points` without checking the numbers."""
        return self._menu.at(numbers)

    def extent(self) -> Tensor:
        """Return the least and the greatest coordinates, ``(2, d)``.

        A context of unbounded numbers has infinite ends.
        """
        ends, domain = self._domain.extent(), self._domain
        if not isinstance(domain, Box):
            return ends
        endless = torch.tensor([[-torch.inf], [torch.inf]]).to(ends)
        return torch.where(domain.loose, endless, ends)

    def index(self, x: ArrayLike) -> Tensor:
        """Return the numbers of the choices at the points ``x`` ``(..., d)``."""
        points = coordinates("x", x, self.dim, self._domain.extent())
        return self._menu.index(self.split(points)[0])

    def joined(self, x: Tensor, values: Tensor) -> Tensor:
        """Return choices ``(*b, c)`` in contexts ``(*b, k)`` as points ``(*b, d)``."""
        return torch.cat([x, values.to(x)], -1)[..., self._order]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return points ``(..., d)`` as choices and contexts."""
        return x[..., self._chosen], x[..., self._shown]

    def candidates(self, values: Tensor) -> Tensor:
        """Return all choices in contexts ``(*b, k)``, as points ``(*b, N, d)``."""
        rows = self._rows.expand(*values.shape[:-1], -1, -1).clone()
        rows[..., self._places] = values.to(rows).unsqueeze(-2)
        return rows

    def of_first(self, values: Tensor) -> Tensor:
        """Return the first choice in contexts ``(*b, k)``, as points ``(*b, d)``."""
        rows = self._rows[0].expand(*values.shape[:-1], -1).clone()
        rows[..., self._places] = values.to(rows)
        return rows

    @cached_property
    def categorical(self) -> bool:
        """Whether choices are combinations of categories, and contexts numbers."""
        flags = self._domain.names.flags()[1] if self._domain.names else None
        if flags is None or not self.finite:
            return False
        chosen, shown = self.split(flags.to(self._chosen.device))
        return bool(chosen.all()) and not bool(shown.any())

    @cached_property
    def _rows(self) -> Tensor:
        """All choices, ``(N, d)``, with 0 for the contexts."""
        every = self._menu.block(0, self._menu.size)
        return self.joined(every, every.new_zeros(len(every), len(self._shown)))

    @cached_property
    def _places(self) -> slice | Tensor:
        """The coordinates of the contexts; as a slice they are written to faster."""
        first, count = int(self._shown[0]), len(self._shown)
        if self._shown.tolist() == list(range(first, first + count)):
            return slice(first, first + count)
        return self._shown

    def __getstate__(self) -> dict[str, Any]:
        computed = {"_rows", "_places", "categorical"}
        return {name: v for name, v in vars(self).items() if name not in computed}

    def read(self, context: Any, batch_shape: tuple[int, ...]) -> Tensor:
        """Return a user's context as coordinates, ``(T, k)``.

        Args:
            context: a dict of values, each ``()`` or ``(k,)``, or ``(*trials,)`` or
                ``(*trials, k)``; or a list of such dicts, one per trial. If the space
                has a single context, its value alone will do.
            batch_shape: ``()`` or ``(trials,)``.
        """
        trials = batch_shape[0] if batch_shape else 1
        first = context[0] if isinstance(context, list | tuple) and context else None
        if batch_shape and isinstance(first, Mapping):
            rows = self.contexts.points(context, "context")
            if tuple(rows.shape) != (trials, len(self.contexts.columns)):
                raise CBanditError(
                    f"context must be a dict, or one for each of the {trials} trials; "
                    f"got {len(context)}"
                )
            return rows
        if not isinstance(context, Mapping):
            if len(self.contexts.parameters) > 1:
                raise CBanditError(
                    "context must be a dict of "
                    f"{', '.join(self.contexts.parameters)}; got {checks.kind(context)}"
                )
            context = dict.fromkeys(self.contexts.parameters, context)
        self.contexts.check(context, "context")
        columns = [
            self._column(name, context[name], trials, bool(batch_shape))
            for name in dict.fromkeys(self.contexts.columns)
        ]
        return columns[0] if len(columns) == 1 else torch.cat(columns, -1)

    def each(self, context: Any, n: int, batch_shape: tuple[int, ...]) -> list[Any]:
        """Return the contexts of ``n`` choices, each as :meth:`read` takes it.

        Args:
            context: one context for all choices; or ``n`` of them, as a list of dicts
                or as values with an extra first axis.
            n: how many choices.
            batch_shape: ``()`` or ``(trials,)``.
        """
        parameters = self.contexts.parameters
        if isinstance(context, list | tuple):
            if any(isinstance(one, Mapping) for one in context):
                return _rows(context, n)
        if not isinstance(context, Mapping):
            if context is None or len(parameters) > 1:
                return [context] * n
            context = dict.fromkeys(parameters, context)
        columns: list[list[Any]] = []
        for name, value in context.items():
            width = getattr(parameters.get(name), "width", 1)
            tails = [(width,), ()] if width == 1 else [(width,)]
            one, shape = [*tails, *((*batch_shape, *t) for t in tails)], _shape(value)
            several = shape not in one and shape[1:] in one
            columns.append(_rows(value, n) if several else [value] * n)
        rows = zip(*columns, strict=True)
        return [dict(zip(context, row, strict=True)) for row in rows] or [context] * n

    def _column(self, name: str, value: Any, trials: int, batched: bool) -> Tensor:
        """Return one context's coordinates, ``(T, k)``."""
        parameter = self.contexts.parameters[name]
        if isinstance(parameter, Context) and parameter.parameter is None:
            shown = checks.tensor(f"context: {name}", value)
            width = parameter.width
            shape = tuple(shown.shape)
            single = shape == (width,) or (width == 1 and shape == ())
            if not single and not (batched and shape == (trials, width)):
                wanted = f"({width},)" + f" or {(trials, width)}" * batched
                raise CBanditError(
                    f"context: {name} must be {width} numbers, of shape {wanted}; got "
                    f"{shape}"
                )
            finite = checks.finite(f"context: {name}", shown)
            return finite.reshape(-1, width).expand(trials, width)
        if isinstance(value, np.ndarray | Tensor):
            value = value.tolist()
        if _shape(value) in ((1,), (trials, 1)):
            value = [v[0] for v in value] if _shape(value)[1:] else value[0]
        if not isinstance(value, Sequence) or isinstance(value, str):
            value = [value] * trials
        elif len(value) != trials or not batched:
            wanted = f"one value, or one for each of the {trials} trials"
            raise CBanditError(
                f"context: {name} must be {wanted if batched else 'one value'}; got "
                f"{len(value)} values"
            )
        numbers = [self.contexts.number(name, plain(v), "context") for v in value]
        return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)

    def to(
        self,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Return the same set on another device, with coordinates in another dtype."""
        menu, domain = self._menu.to(device, dtype), self._domain.to(device, dtype)
        out = type(self)(menu, domain, self.contexts)
        where = domain.extent().device
        for name in ("_chosen", "_shown", "_order"):
            setattr(out, name, getattr(self, name).to(where))
        return out

    def __repr__(self) -> str:
        linear = self._menu.linear
        return self.names.written(None if linear is None else linear.written())


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a user's value; ``()`` if it has none."""
    try:
        return tuple(np.shape(value))
    except (TypeError, ValueError):
        return ()


def _rows(context: Any, n: int) -> list[Any]:
    """Split ``context`` along its first axis into the contexts of ``n`` choices."""
    if len(context) != n:
        raise CBanditError(
            f"context must be one for all n = {n} choices, or {n} of them; got "
            f"{len(context)}"
        )
    return list(context if isinstance(context, list | Tensor) else np.asarray(context))


@dataclass(frozen=True)
class Shown:
    """The context of one round.

    Args:
        space: the choices and the contexts.
        values: the coordinates of the context, ``(T, k)``.
    """

    space: Contextual
    values: Tensor

    def round(
        self, menu: Actions, mask: Tensor | None, batched: bool
    ) -> tuple[Actions, Tensor | None]:
        """Return the set of this round, and a mask of the allowed actions.

        If the domain is a grid, it is the whole grid, with this context alone allowed;
        for other finite choices, their points in this context; else the box ``menu``.

        Args:
            menu: the choices; a box may lack some of its rows.
            mask: ``(1 or T, N)``, the choices that are allowed; ``None``: all.
            batched: whether there is a trials axis.
        """
        space, values = self.space, self.values
        if space.continuous:
            return menu, mask
        if not space.levelled:
            points = space.candidates(values)
            return Finite.of_row(points if batched else points[0]), mask
        count = space.domain.size // space.size  # of contexts
        here = self._number().unsqueeze(-1) == torch.arange(count, device=values.device)
        whole = here.unsqueeze(1).expand(-1, space.size, -1)
        if mask is not None:
            whole = whole & mask.unsqueeze(-1)
        return space.domain, whole.flatten(1)

    def _number(self) -> Tensor:
        """Return the number of the context on a grid, ``(T,)``."""
        space = self.space
        first = space.menu.at(self.values.new_zeros(len(self.values)).long())
        return space.domain.index(space.joined(first, self.values))

    def choices(self, index: Tensor) -> Tensor:
        """Return the choices' numbers, given their numbers ``index`` in the round."""
        space = self.space
        return index // (space.domain.size // space.size) if space.levelled else index

    def whole(self, x: Tensor) -> Tensor:
        """Return choices ``(T, n, c)`` in this context, as points ``(T, n, d)``."""
        values = self.values.unsqueeze(1).expand(-1, x.shape[1], -1)
        return self.space.joined(x.expand(len(values), -1, -1), values)


def in_context_of(actions: Any, index: Tensor, x: Tensor) -> Tensor:
    """Return the points ``(*b, k, d)`` of the actions numbered ``index (*b, k)``.

    In a set with contexts, these are the choices in the context of ``x (*b, d)``.
    """
    points: Tensor = actions.points(index)
    if not isinstance(actions, Contextual):
        return points
    values = actions.split(x)[1].unsqueeze(-2)
    return actions.joined(points, values.expand(*points.shape[:-1], -1))
