"""A continuous box, alone or times a finite set of rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit._core.hints import hinted
from cbandit.actions.base import Actions, coordinates, tolerance
from cbandit.actions.finite import Finite
from cbandit.actions.grid import ProductGrid
from cbandit.actions.linear import LinearLimits
from cbandit.actions.polytope import Polytope
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
        linear: known limits on the actions, beyond which nothing is chosen: texts such
            as ``"x0 + 2 x1 <= 1"``, where ``x0`` is the first coordinate; or a pair
            ``(A, b)`` of ``(j, d)`` and ``(j,)`` for ``A x <= b``. Data from
            ``observe`` may lie beyond them. ``None``: none.

    Example:
        >>> import cbandit as cb
        >>> cb.Box([0.0, 0.0], [1.0, 5.0], choices=[[1.0], [2.0], [4.0]]).dim
        3
        >>> cb.Box([0.0, 0.0], [1.0, 1.0], linear=["x0 + x1 <= 1"])
        Box([0.0, 0.0], [1.0, 1.0], linear=['x0 + x1 <= 1'])
    """

    linear: LinearLimits | None
    #: what the linear limits leave; ``None``: there are none
    polytope: Polytope | None

    def __init__(
        self,
        lower: ArrayLike,
        upper: ArrayLike,
        choices: Any = None,
        linear: Any = None,
    ) -> None:
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
        self.linear = self.polytope = None
        #: ``(K', k)``, the rows of choices that the linear limits leave
        self.playable = self.choices
        if linear is not None:
            self.limit("linear", linear, [f"x{j}" for j in range(self.dim)])

    def limit(
        self,
        name: str,
        linear: Any,
        variables: Sequence[str],
        refused: Mapping[str, str] | None = None,
    ) -> None:
        """Set the linear limits, see :meth:`LinearLimits.read`."""
        limits = LinearLimits.read(name, linear, variables, self.bounds, refused)
        self.linear = limits
        self.polytope = Polytope(limits, self.lower, self.upper, self.choices)
        if self.choices is not None:
            self.playable = self.choices[self.polytope.allows(self.choices)]

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
        part.choices = part.playable = self.choices[rows]
        if self.polytope is not None:
            part.playable = part.choices[self.polytope.allows(part.choices)]
            if not len(part.playable):
                raise CBanditError(
                    f"linear limits leave nothing of {self!r} with these choices alone"
                )
        return part

    def nearest(self, x: Tensor) -> Tensor:
        """Return a point of the box near each ``x (..., d)``: the nearest one.

        Points beyond the linear limits are moved inside towards the middle.
        """
        held = self._held(x)
        return held if self.polytope is None else self.polytope.fold(held)

    def spread(self, x: Tensor) -> Tensor:
        """Return points of the box for ``x (..., d)``, about as evenly spread as these.

        They are the nearest ones where there are no linear limits.
        """
        held = self._held(x)
        return held if self.polytope is None else self.polytope.squeeze(held)

    def centred(self, x: Tensor) -> Tensor:
        """Return the nearest points of the box to ``x (..., d)``.

        Beyond the linear limits, return the middle of what they leave.
        """
        held = self._held(x)
        return held if self.polytope is None else self.polytope.centred(held)

    def mapping(self) -> Callable[[Tensor], Tensor]:
        """Return the map from the unit cube, ``(..., d)``, to points of the box."""
        unit, polytope = self.unit, self.polytope
        if polytope is None:
            return unit.point
        return lambda z: polytope.fold(unit.point(z))

    def _held(self, x: Tensor) -> Tensor:
        """Return the nearest points between the bounds, linear limits left aside."""
        held = torch.minimum(torch.maximum(x.to(self.lower), self.lower), self.upper)
        if self.playable is None:
            return held
        ends = held[..., self.continuous :]
        row = (ends.unsqueeze(-2) - self.playable).abs().amax(-1).argmin(-1)
        return torch.cat([held[..., : self.continuous], self.playable[row]], -1)

    @property
    def unit(self) -> Unit:
        """The map between the box and the unit cube."""
        return Unit.over(self.bounds, self.names)

    def extent(self) -> Tensor:
        """Return ``lower`` and ``upper``, ``(2, d)``."""
        return self.bounds

    def __repr__(self) -> str:
        where = None if self.linear is None else self.linear.written()
        if self.names is not None:
            return self.names.written(where)
        tail = "" if where is None else f", linear={where}"
        if self.choices is None:
            return f"Box({self.lower.tolist()}, {self.upper.tolist()}{tail})"
        count = self.continuous
        ends = f"{self.lower[:count].tolist()}, {self.upper[:count].tolist()}"
        return f"Box({ends}, {len(self.choices)} choices{tail})"


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
