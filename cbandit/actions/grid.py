"""All combinations of the values on some axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.actions.base import Actions, checked_index, coordinates, tolerance
from cbandit.actions.linear import LinearLimits
from cbandit.errors import CBanditError

BLOCK = 1 << 20  # actions whose linear limits are computed at a time


@hinted
class ProductGrid(Actions):
    """All combinations of the values on some axes; never materialised as a whole.

    Args:
        axes: one 1-d tensor of values per coordinate. Actions are numbered as in
            ``torch.cartesian_prod``: the last axis runs fastest.

    Example:
        >>> import cbandit as cb, torch
        >>> cb.ProductGrid([torch.linspace(0, 1, 1000)] * 3).size
        1000000000
    """

    finite = True

    def __init__(self, axes: Sequence[Any]) -> None:
        # only sequences: rows of an array are more often points, and iterating over a
        # gpytorch kernel never ends
        if not isinstance(axes, Sequence):
            shape = getattr(axes, "shape", None)
            raise CBanditError(
                "axes must be a list of 1-d tensors, one per coordinate (points go "
                f"into cb.Finite); got {checks.kind(axes)}"
                + ("" if shape is None else f" of shape {tuple(shape)}")
            )
        values = [checks.tensor(f"axes[{j}]", x, None) for j, x in enumerate(axes)]
        if not values:
            raise CBanditError("axes must hold at least one axis; got none")
        for j, axis in enumerate(values):
            if axis.dim() != 1 or axis.numel() == 0:
                raise CBanditError(
                    f"axes[{j}] must be a 1-d tensor with at least one value; got "
                    f"shape {tuple(axis.shape)}"
                )
            checks.finite(f"axes[{j}]", axis)
        real = [axis.dtype for axis in values if axis.is_floating_point()]
        dtype = functools.reduce(torch.promote_types, real) if real else torch.float64
        self.axes = [axis.to(dtype) for axis in values]
        self.batch_shape = ()
        self.sizes = [axis.numel() for axis in self.axes]
        self.size, self.dim = math.prod(self.sizes), len(self.sizes)
        if self.size > torch.iinfo(torch.long).max:
            raise CBanditError(
                "axes must span fewer than 2^63 actions, for they are numbered in "
                f"int64; got {' x '.join(map(str, self.sizes))}"
            )
        #: the axes before ``cut`` and those from it on are two groups of similar size
        self.cut = _cut(self.sizes)
        #: the size of the second group: action ``i row + j`` is ``(i, j)`` of the two
        self.row = math.prod(self.sizes[self.cut :])

    def points(self, index: ArrayLike) -> Tensor:
        """Return the coordinates ``(*index.shape, d)`` of the numbered actions."""
        return self.at(checked_index(index, self.size, self.axes[0].device))

    def at(self, numbers: Tensor) -> Tensor:
        """Return :meth:`points` without checking the numbers."""
        remaining, columns = numbers, []
        for axis in reversed(self.axes):
            columns.append(axis.take(remaining % axis.numel()))
            remaining = remaining // axis.numel()
        return torch.stack(columns[::-1], -1)

    def block(self, start: int, stop: int) -> Tensor:
        """Return the actions ``start .. stop - 1``, ``(n, d)``."""
        return self.at(torch.arange(start, stop, device=self.axes[0].device))

    def rows(self, numbers: Tensor) -> Tensor:
        """Return the actions ``numbers (k,)``, as ``(k, d)``."""
        return self.at(numbers)

    def index(self, x: ArrayLike) -> Tensor:
        """Return the numbers of the actions at the points ``x`` ``(..., d)``."""
        x = coordinates("x", x, self.dim, self.axes[0])
        number = torch.zeros(x.shape[:-1], dtype=torch.long, device=x.device)
        for j, axis in enumerate(self.axes):
            gap, place = (x[..., j, None] - axis).abs().min(-1)
            if bool((gap > tolerance(x) * (1 + axis.abs().max())).any()):
                raise CBanditError(
                    f"x must be a point of the grid; coordinate {j} is "
                    f"{gap.max().item():.3g} off the nearest value of its axis; round "
                    "x to the grid, or choose on a cb.Box"
                )
            number = number * axis.numel() + place
        return number

    def extent(self) -> Tensor:
        """Return the least and the greatest value of every axis, ``(2, d)``."""
        ends = [torch.stack([axis.min(), axis.max()]) for axis in self.axes]
        return torch.stack(ends, -1)

    def limit(
        self,
        name: str,
        linear: Any,
        variables: Sequence[str],
        refused: Mapping[str, str] | None = None,
    ) -> None:
        """Set the linear limits, see :meth:`LinearLimits.read`."""
        limits = LinearLimits.read(name, linear, variables, self.extent(), refused)
        self.linear = limits
        if not any(bool(part.any()) for part in self._kept()):
            raise CBanditError(
                f"{name} leaves nothing of the grid: no action keeps {limits.written()}"
            )

    def within_limits(self) -> Tensor | None:
        """Return which actions keep the linear limits, ``(N,)`` bool; ``None``: all."""
        return None if self.linear is None else torch.cat(list(self._kept()))

    def _kept(self) -> Iterator[Tensor]:
        """Yield which actions keep the linear limits, block by block, ``(n,)`` bool."""
        limits, columns = self.linear, self.linear.matrix.unbind(-1)
        parts = [a.outer(x.double()) for a, x in zip(columns, self.axes, strict=True)]
        bound = (limits.bound + limits.excess).unsqueeze(-1)
        nothing = torch.zeros_like(limits.bound).unsqueeze(-1)
        first, second = (
            _sums([nothing, *some]) for some in (parts[: self.cut], parts[self.cut :])
        )
        rows = max(1, BLOCK // self.row)
        for some in first.split(rows, -1):
            whole = some.unsqueeze(-1) + second.unsqueeze(1)  # k x n x row
            yield (whole.flatten(1) <= bound).all(0)

    def __repr__(self) -> str:
        where = None if self.linear is None else self.linear.written()
        if self.names is not None:
            return self.names.written(where)
        return f"ProductGrid({' x '.join(map(str, self.sizes))}, size={self.size})"


def _sums(parts: Sequence[Tensor]) -> Tensor:
    """Return the sums ``(k, N)`` of one column of each of the ``parts (k, n_j)``."""
    whole = parts[0]
    for part in parts[1:]:
        whole = (whole.unsqueeze(-1) + part.unsqueeze(1)).flatten(1)
    return whole


def _cut(sizes: list[int]) -> int:
    """Return where to cut the axes so that both groups have about equal size."""
    tails = [math.prod(sizes[cut:]) for cut in range(len(sizes))]
    costs = [tails[0] // tail + tail for tail in tails]
    least = min(costs)
    return max(cut for cut, cost in enumerate(costs) if cost == least)
