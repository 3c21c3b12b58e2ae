"""The base class of all sets of actions, and checks of coordinates and numbers.

An action is a point of ``d`` coordinates. The actions of a finite set are also numbered
from 0.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.log import warn
from cbandit.actions.names import Names
from cbandit.errors import CBanditError

# tensors whose rows nobody chooses from: one point each, and rows that choices hold too
NOT_CHOSEN_FROM = ("lower", "upper", "center", "playable")


class Actions:
    """A set that can be chosen from.

    Attributes:
        size: how many numbered actions the set has; infinite on a box.
        dim: how many coordinates ``d`` an action has.
        batch_shape: ``(trials,)`` if each trial has a set of its own, else ``()``.
        finite: whether every action has a number.
        continuous: how many coordinates may take any value within bounds.
        covariance: the prior covariance of arms that have no coordinates.
        row: how many consecutive numbers :meth:`stretches` keeps together.
        names: the named parameters that the coordinates stand for; ``None``: no names.
        linear: known linear limits on the actions; ``None``: there are none.
    """

    finite: bool = False
    continuous: int = 0
    covariance: Tensor | None = None
    row: int = 1
    names: Names | None = None
    linear: Any = None  # a LinearLimits
    size: Any  # an int, or infinity
    dim: int
    batch_shape: tuple[int, ...]

    __copy__ = copy.deepcopy  # a shallow copy would share the tensors

    @property
    def menu(self) -> Actions:
        """The set that a round chooses from: this one without its contexts."""
        return self

    @property
    def domain(self) -> Actions:
        """The set that beliefs cover: every choice in every context."""
        return self

    def points(self, index: ArrayLike) -> Tensor:
        """Return the coordinates ``(*index.shape, d)`` of numbered actions."""
        raise self._unnumbered()

    def at(self, numbers: Tensor) -> Tensor:
        """Return :meth:`points` without checking the numbers."""
        raise self._unnumbered()

    def block(self, start: int, stop: int) -> Tensor:
        """Return the actions ``start .. stop - 1``, ``(*trials, n, d)``."""
        raise self._unnumbered()

    def rows(self, numbers: Tensor) -> Tensor:
        """Return the actions ``numbers (k,)`` of every trial, ``(*trials, k, d)``."""
        raise self._unnumbered()

    def index(self, x: ArrayLike) -> Tensor:
        """Return the numbers of the actions at the points ``x`` ``(..., d)``."""
        raise self._unnumbered()

    def _unnumbered(self) -> CBanditError:
        return CBanditError(
            f"a {type(self).__name__} is continuous: its actions are points, not "
            "numbers"
        )

    @property
    def searched(self) -> bool:
        """Whether some coordinate may take any value within bounds."""
        return False

    def extent(self) -> Tensor:
        """Return the least and the greatest coordinates, ``(*trials, 2, d)``."""
        raise NotImplementedError

    def keys(self, x: Tensor) -> list[Hashable]:
        """Return a key for each of the actions ``x (T, d)``: its number in the set.

        If an action has no number there, all keys are coordinates instead.
        """
        if self.finite:
            try:
                numbers: list[Hashable] = self.index(x).tolist()
                return numbers
            except CBanditError:
                pass
        return [tuple(row) for row in x.tolist()]

    def stretches(
        self, target: int, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield stretches ``(start, stop)`` of about ``target`` consecutive actions.

        They cover ``first .. last - 1``. On a grid each consists of whole rows, or lies
        within one row.
        """
        row, end = self.row, self.size if last is None else last
        rows = row * (target // row)
        start = first
        while start < end:
            begun = start - start % row
            if rows and start == begun and begun + row <= end:
                stop = min(start + rows, end - end % row)
            else:
                stop = min(start + target, begun + row, end)
            yield start, stop
            start = stop

    def shares(self, target: int, ranks: int) -> list[tuple[int, int]]:
        """Return the share ``(start, stop)`` of the actions that each rank computes.

        Shares end where :meth:`stretches` end, so that ranks compute the same blocks as
        a single process would. If there are fewer stretches than ranks, the set is cut
        finer.
        """
        if self.size < ranks:
            raise CBanditError(
                f"actions must be at least as many as the {ranks} ranks that share "
                f"them; got {self.size}"
            )
        starts = [start for start, _ in self.stretches(target)]
        if len(starts) < ranks:
            finer = max(1, self.size // (8 * ranks))
            starts = [start for start, _ in self.stretches(finer)]
        edges = [starts[len(starts) * rank // ranks] for rank in range(ranks)]
        return list(pairwise([*edges, self.size]))

    def to(
        self,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Return the same set on another device, with coordinates in another dtype.

        A covariance and the numbers of its arms stay float64.
        """
        dtype = dtype if self.covariance is None else None
        out = object.__new__(type(self))
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                label = "points" if name == "all" else name
                value = _moved(label, value, device, dtype)
            elif name in ("linear", "polytope") and value is not None:
                value = value.to(device, dtype)
            elif name == "axes":
                axes = enumerate(value)
                value = [_moved(f"axes[{j}]", a, device, dtype) for j, a in axes]
            setattr(out, name, value)
        return out


def checked_actions(actions: object) -> Actions:
    """Return ``actions``; raise, with a hint what to write, unless it is a set."""
    if isinstance(actions, Actions):
        return actions
    hint = ": write cb.Finite(...) around it"
    if isinstance(actions, Mapping):
        hint = ": write cb.Space(...) with parameters by name"
    elif isinstance(actions, type) or not isinstance(actions, Iterable):
        hint = ""
    raise CBanditError(
        "actions must be a cb.Finite (which takes points as rows), cb.ProductGrid, "
        f"cb.Box, cb.Star or cb.Space; got {checks.kind(actions)}{hint}"
    )


def checked_index(index: object, size: int, device: torch.device) -> Tensor:
    """Return action numbers as int64; raise unless all lie in ``0 .. size - 1``."""
    numbers = checks.tensor("index", index, None, device)
    if not numbers.numel():
        return numbers.long()
    if numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise CBanditError(f"index must hold whole numbers; got {numbers.dtype}")
    if int(numbers.min()) < 0 or int(numbers.max()) >= size:
        raise CBanditError(
            f"index must lie in 0 .. {size - 1}; got {int(numbers.min())} .. "
            f"{int(numbers.max())}"
        )
    return numbers.long()


def coordinates(name: str, value: object, dim: int, like: Tensor) -> Tensor:
    """Return the points ``value`` as a tensor ``(..., dim)`` like ``like``.

    Raise an error about ``name`` unless they are finite numbers of this shape.
    """
    x = checks.finite(name, checks.tensor(name, value, like.dtype, like.device))
    if x.dim() == 0 or x.shape[-1] != dim:
        raise CBanditError(
            f"{name} must have shape (..., d) with d = {dim}; got {tuple(x.shape)}"
        )
    return x


def moved(
    values: Tensor,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return ``values`` on a device and in a dtype; ``None`` keeps what they have."""
    where = values.device if device is None else torch.device(device)
    return devices.put(values, where, dtype)


def _moved(
    name: str,
    values: Tensor,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Tensor:
    """Move values of a set; warn if rows that differed become equal by rounding."""
    if not values.is_floating_point():
        return moved(values, device)
    out = moved(values, device, dtype)
    rounded = torch.finfo(out.dtype).eps > torch.finfo(values.dtype).eps
    if not rounded or name in NOT_CHOSEN_FROM:
        return out
    flat = [x.unsqueeze(-1) if x.dim() == 1 else x for x in (values, out)]
    before, after = (x.reshape(-1, *x.shape[-2:]) for x in flat)
    for rows, narrow in zip(before, after, strict=True):
        first, second = _coinciding(rows, narrow.to(rows.device))
        if first.numel():
            i, j = int(first[0]), int(second[0])
            kind = str(dtype).removeprefix("torch.")
            warn(
                f"{name}: {first.numel()} of {len(rows)} are the same as another in "
                f"{kind} and cannot be told apart, such as {name}[{i}] and {name}[{j}],"
                f" {rows[i].tolist()} and {rows[j].tolist()}: shift or scale the "
                "coordinates to be near 0, or use dtype=torch.float64",
                RuntimeWarning,
            )
            break
    return out


def _coinciding(rows: Tensor, narrow: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers of pairs of ``rows (n, d)`` that only ``narrow`` makes equal."""
    # a sort of hashes brings equal rows together; + 0.0 turns -0.0 into 0.0
    number = torch.zeros_like(narrow[:, 0], dtype=torch.long)
    for column in narrow.unbind(-1):
        number.mul_(0x9E3779B97F4A7C1).add_((column + 0.0).view(torch.int32))
    number, order = number.sort(stable=True)
    near = (number[1:] == number[:-1]).nonzero()[:, 0]
    first, second = order[near], order[near + 1]
    same = (narrow[first] == narrow[second]).all(-1)
    lost = same & (rows[first] != rows[second]).any(-1)
    return first[lost], second[lost]


def tolerance(like: Tensor) -> float:
    """Return the largest relative error at which a point counts as one of the set.

    Coordinates may have passed through float32 on their way.
    """
    return 1e-7 if like.dtype == torch.float64 else 1e-5
