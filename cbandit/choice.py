"""A policy's choice of an action, perhaps drawn from a distribution."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.printing import brief, html_table
from cbandit._core.randomness import Streams
from cbandit.errors import CBanditError

__all__ = ["Choice", "Distribution", "params_of"]

SHOWN = 4  # trials whose actions a choice's repr names


class Naming(Protocol):
    """The names of a set's coordinates, as choices use them."""

    def params(self, x: Tensor) -> Any:
        """Return a point ``(d,)`` as a dict, more points as lists of dicts."""

    def table(self, x: Tensor) -> Mapping[str, Any]:
        """Return points ``(n, d)`` as columns ``(n,)`` of the users' values."""


def params_of(names: Naming | None, x: Tensor) -> Any:
    """Return actions by name; raise if the set has no names."""
    if names is None:
        raise CBanditError(
            "params needs a set with names: give the policy a cb.Space(...)"
        )
    return names.params(x)


def rows_of(names: Naming | None, x: Tensor) -> list[dict[str, object]]:
    """Return actions ``(n, d)`` as rows of a table, by name or else ``x1``, ``x2``."""
    if names is None:
        return [
            {f"x{j + 1}": value for j, value in enumerate(row)} for row in x.tolist()
        ]
    columns = {name: values.tolist() for name, values in names.table(x).items()}
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]


@dataclass(frozen=True)
class Distribution:
    """A distribution over a few actions, padded with actions of probability 0.

    Args:
        index: the actions, ``(*trials, k)``, int64.
        probability: their probabilities, ``(*trials, k)``.
        infeasible: ``(*trials,)``, true if no distribution keeps the limits; this one
            then violates them least. ``None``: there were no limits.
    """

    index: Tensor
    probability: Tensor
    infeasible: Tensor | None = None

    __repr__ = brief

    @classmethod
    def point(cls, index: Tensor) -> Distribution:
        """Return all of the probability on the actions ``index (T,)``."""
        column = index.unsqueeze(-1)
        return cls(column, torch.ones_like(column, dtype=torch.float64))

    @classmethod
    def uniform(cls, allowed: Tensor) -> Distribution:
        """Return equal probabilities of the actions allowed, ``(T, N)`` bool."""
        count = allowed.sum(-1, keepdim=True)
        first = (~allowed).to(torch.uint8).argsort(dim=-1, stable=True)
        index = first[:, : int(count.max())]
        there = allowed.gather(-1, index)
        return cls(index * there, there.double() / count)

    def chance(self, index: Tensor) -> Tensor:
        """Return the probabilities of the actions ``index (*trials,)``."""
        at = self.index == index.unsqueeze(-1)
        return (self.probability.double() * at).sum(-1)


def mixed(parts: Sequence[tuple[Tensor, Distribution]]) -> Distribution:
    """Return the mixture of distributions ``(T, k)``, each with its share ``(T,)``.

    Each action appears once, in the order of numbers, before the padding.
    """
    index = torch.cat([pi.index for _, pi in parts], -1)
    chances = [share.unsqueeze(-1) * pi.probability.double() for share, pi in parts]
    chance = torch.cat(chances, -1)
    same = index.unsqueeze(-1) == index.unsqueeze(-2)
    total = (same * chance.unsqueeze(-2)).sum(-1)
    first = same.to(torch.uint8).argmax(-1)
    place = torch.arange(index.shape[-1], device=index.device)
    real = (first == place) & (total > 0)
    order = index.masked_fill(~real, torch.iinfo(index.dtype).max).argsort(-1)
    order = order[:, : int(real.sum(-1).max())]
    real = real.gather(-1, order)
    return Distribution(
        index.gather(-1, order) * real, total.gather(-1, order).where(real, 0.0)
    )


def draw_actions(shares: Distribution, streams: Streams) -> Tensor:
    """Draw an action for each trial from its distribution, ``(T,)``."""
    uniform = streams.uniform().reshape(-1)
    return draw_at(shares, devices.put(uniform, shares.probability.device))


def draw_at(shares: Distribution, uniform: Tensor) -> Tensor:
    """Return the actions that uniform draws ``(T,)`` take from a distribution."""
    share = shares.probability
    last = (share > 0).sum(-1) - 1  # rounding must not lead into the zero padding
    place = (uniform.unsqueeze(-1) >= share.cumsum(-1)).sum(-1)
    place = torch.minimum(place, last)
    return shares.index.gather(-1, place.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True, eq=False)
class Choice:
    """The action of one round; pass it to ``tell`` with the feedback.

    Args:
        t: the round, counted from 1.
        index: the action's number in the set, ``(*trials,)``; ``None`` on a
            :class:`~cbandit.Box`.
        x: the action itself, ``(*trials, d)``.
        infeasible: ``(*trials,)``, whether the policy believed that no action is
            feasible. It is never true for policies that weigh costs (CKB except with
            ``dual="resolved"``, RPOL); for them see ``recommend()``.
        distribution: the law of the action, given the past and what exploration drew
            this round; ``None`` for policies without one. With ``explore_share=``, and
            with UCB, it is the chance of each action, and the column ``propensity`` of
            ``history()`` that of the one played. With TS and Rand alone it is the law
            given the draw, mostly one action with probability 1, and no propensity: do
            not weigh logged rounds by its inverse. In a design and in first rounds it
            is the action played.
        id: a unique name of the choice; ``tell`` takes it instead of the choice.
        actions: the set given to ``ask`` for this round alone, if any.
        keys: each trial's action on the host, by number or, on a box, by coordinates;
            ``None`` if the policy has none there.
        names: the names of the coordinates, if the policy's set has any.
        idle: ``(*trials,)``, trials that play nothing, because no action fits what is
            left of a :class:`~cbandit.Budget`; they need no feedback. ``None``: none.
    """

    t: int
    index: Tensor | None
    x: Tensor
    infeasible: Tensor
    distribution: Distribution | None = None
    id: str = field(default="", repr=False)
    actions: object = field(default=None, repr=False)
    keys: list[Hashable] | None = field(default=None, repr=False)
    names: Naming | None = field(default=None, repr=False)
    idle: Tensor | None = field(default=None, repr=False)

    __copy__ = copy.deepcopy  # a shallow copy would share the tensors

    @property
    def params(self) -> Any:
        """The action by name, a dict; with trials a list of dicts."""
        return params_of(self.names, self.x)

    def __repr__(self) -> str:
        said = f"Choice({self.id!r}, round {self.t}" if self.id else f"Choice({self.t}"
        trials = len(self.x) if self.x.dim() == 2 else None
        index = [] if self.index is None else self.numbers().reshape(-1).tolist()
        if trials is not None:
            said += f", {trials} trials"
        if index:
            said += f", action{'s' * (len(index) > 1)} {_few(index)}"
        if trials is None and self.names is not None:
            said += f": {self.params}"
        elif trials is None:
            said += f": ({', '.join(f'{v:.4g}' for v in self.x.tolist())})"
        return f"{said}, infeasible)" if bool(self.infeasible.all()) else f"{said})"

    def _repr_html_(self) -> str:
        x = self.x.reshape(-1, self.x.shape[-1])
        rows = rows_of(self.names, x)
        if self.index is not None:
            numbers = self.numbers().reshape(-1).tolist()
            rows = [{"action": k, **row} for k, row in zip(numbers, rows, strict=True)]
        if self.x.dim() == 2:
            rows = [{"trial": i, **row} for i, row in enumerate(rows)]
        if bool(self.infeasible.any()):
            for row, odd in zip(
                rows, self.infeasible.reshape(-1).tolist(), strict=True
            ):
                row["infeasible"] = odd
        return html_table(rows, f"choice {self.id} of round {self.t}")

    def numbers(self) -> Tensor:
        """Return ``index`` on the host, usually without waiting for the device."""
        if self.index is None:
            raise CBanditError("choice has no numbers: it was made on a Box")
        if self.keys is None or not self.index.is_cuda:
            return self.index.cpu()
        return torch.tensor(self.keys).view(self.index.shape)


def _few(numbers: list[int]) -> str:
    """Return some numbers in words."""
    more = ", ..." if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more
