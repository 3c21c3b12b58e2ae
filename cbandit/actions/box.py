"""A continuous box, alone or times a finite set of rows."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.actions.base import Actions, coordinates, tolerance
from cbandit.actions.finite import Finite
from cbandit.actions.grid import ProductGrid
from cbandit.actions.unit import Unit
from cbandit.errors import CBanditError

MOST_ROWS = 10**6  # of choices


@hinted
class Box(Actions):
    """A continuous box ``{x : lower <= x <= upper}``, or its product with a finite set.

    Args:
        lower: the least value of each continuous coordinate, ``(c,)``.
        upper: the greatest, ``(c,)``, above ``lower`` in every coordinate.
        choices: rows ``(K, k)``, a :class:`Finite` or a :class:`ProductGrid`: ``k``
            more coordinates (whole numbers, codes of categories) that together take one
            of ``K`` rows. They come last, so that ``d = c + k``. ``None``: none.

    Example:
        >>> import cbandit as cb
        >>> cb.Box([0.0, 0.0], [1.0, 5.0], choices=[[1.0], [2.0], [4.0]]).dim
        3
    """

    def __init__(self, lower: ArrayLike, upper: ArrayLike, choices: Any = None) -> None:
        low = checks.finite("lower", checks.tensor("lower", lower))
        high = checks.finite("upper", checks.tensor("upper", upper))
        low, high = (x.unsqueeze(0) if x.dim() == 0 else x for x in (low, high))
        if low.shape != high.shape or low.dim() != 1 or low.numel() == 0:
            raise CBanditError(
                "lower and upper must have the same shape (d,), d at least 1; got "
                f"{tuple(low.shape)} and {tuple(high.shape)}"
            )
        if bool((low >= high).any()):
            j = int((low >= high).nonzero()[0])
            raise CBanditError(
                f"lower must be below upper; coordinate {j} has lower = "
                f"{low[j].item():g}, upper = {high[j].item():g}"
            )
        #: ``(K, k)``, the rows that the last coordinates are chosen from
        self.choices = None if choices is None else _rows(choices)
        #: ``(d,)``, which coordinates are continuous
        self.free = torch.ones(low.numel(), dtype=torch.bool)
        if self.choices is not None:
            least, most = self.choices.amin(0), self.choices.amax(0)
            low = torch.cat([low, least])
            high = torch.cat([high, torch.where(most > least, most, least + 1)])
            self.free = torch.arange(low.numel()) < self.free.numel()
        self.lower, self.upper = low, high
        #: ``(d,)``, which coordinates may leave the bounds: contexts that are numbers
        self.loose = torch.zeros_like(self.free)
        self.batch_shape = ()
        self.size, self.dim = math.inf, low.numel()
        #: ``c``, how many coordinates are continuous
        self.continuous = int(self.free.sum())

    @property
    def searched(self) -> bool:
        """Whether some coordinate may take any value within bounds."""
        return bool((self.free & ~self.loose).any())

    @property
    def bounds(self) -> Tensor:
        """``lower`` and ``upper`` as ``(2, d)``, the form of BoTorch's optimisers."""
        return torch.stack([self.lower, self.upper])

    def inside(self, x: ArrayLike, name: str = "x") -> Tensor:
        """Return points ``x (..., d)``, clipped to the box; raise if one is outside."""
        x = coordinates(name, x, self.dim, self.lower)
        slack = tolerance(x) * (self.upper - self.lower)
        beyond = (x < self.lower - slack) | (x > self.upper + slack)
        outside = (beyond & ~self.loose).any(-1)
        if bool(outside.any()):
            raise CBanditError(
                f"{name} must lie between lower = {self.lower.tolist()} and upper = "
                f"{self.upper.tolist()}; got {x[outside][0].tolist()}"
            )
        clipped = torch.minimum(torch.maximum(x, self.lower), self.upper)
        clipped = torch.where(self.loose, x, clipped)
        if self.choices is None:
            return clipped
        count = self.continuous
        ends = clipped[..., count:].contiguous()
        try:
            rows = Finite(self.choices).index(ends)
        except CBanditError:
            raise CBanditError(
                f"{name} must end with one of the {len(self.choices)} rows of choices; "
                f"got {ends.reshape(-1, ends.shape[-1])[0].tolist()}"
            ) from None
        return torch.cat([clipped[..., :count], self.choices[rows]], -1)

    def only(self, rows: Tensor) -> Box:
        """Return the box with only the choices that ``rows``, ``(K,)`` bool, marks."""
        if self.choices is None:
            raise CBanditError("this box has no rows of choices")
        part = copy.deepcopy(self)
        part.choices = self.choices[rows]
        return part

    def nearest(self, x: Tensor) -> Tensor:
        """Return the point of the box nearest to each ``x (..., d)``."""
        held = torch.minimum(torch.maximum(x.to(self.lower), self.lower), self.upper)
        if self.choices is None:
            return held
        ends = held[..., self.continuous :]
        row = (ends.unsqueeze(-2) - self.choices).abs().amax(-1).argmin(-1)
        return torch.cat([held[..., : self.continuous], self.choices[row]], -1)

    @property
    def unit(self) -> Unit:
        """The map between the box and the unit cube."""
        return Unit.over(self.bounds, self.names)

    def extent(self) -> Tensor:
        """Return ``lower`` and ``upper``, ``(2, d)``."""
        return self.bounds

    def __repr__(self) -> str:
        if self.names is not None:
            return repr(self.names)
        if self.choices is None:
            return f"Box({self.lower.tolist()}, {self.upper.tolist()})"
        count = self.continuous
        ends = f"{self.lower[:count].tolist()}, {self.upper[:count].tolist()}"
        return f"Box({ends}, {len(self.choices)} choices)"


def _rows(choices: object) -> Tensor:
    """Return the rows of a box's choices, ``(K, k)``, float64."""
    if not isinstance(choices, Finite | ProductGrid):
        rows = checks.finite("choices", checks.tensor("choices", choices))
        if rows.dim() != 2 or rows.numel() == 0:
            raise CBanditError(
                "choices must have rows, of shape (K, k), such as [[1], [2]] for one "
                f"coordinate; got {tuple(rows.shape)}"
            )
        return rows
    if choices.covariance is not None or choices.batch_shape:
        raise CBanditError(
            f"choices must have coordinates, the same for every trial; got {choices!r}"
        )
    if isinstance(choices, ProductGrid) and choices.size > MOST_ROWS:
        raise CBanditError(
            f"choices must have at most {MOST_ROWS} rows; got {choices.size}"
        )
    return choices.block(0, choices.size).double()
