"""What can be chosen: finite sets, product grids, boxes and stars.

Geometry only. An action is a point of ``d`` coordinates; actions of a finite set are
also numbered from 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.errors import CBanditError

MOST_ROWS = 10**6  # of a box' choices

__all__ = ["Actions", "Box", "Finite", "ProductGrid", "Star"]


def checked_index(index: Any, size: int, device: torch.device) -> Tensor:
    """Action numbers, an error unless they are of a set of that ``size``."""
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


def _coordinates(name: str, value: Any, dim: int, like: Tensor) -> Tensor:
    x = checks.finite(name, checks.tensor(name, value, like.dtype, like.device))
    if x.dim() == 0 or x.shape[-1] != dim:
        raise CBanditError(
            f"{name} must have shape (..., d) with d = {dim}; got {tuple(x.shape)}"
        )
    return x


def _moved(
    values: Tensor, device: Any = None, dtype: torch.dtype | None = None
) -> Tensor:
    where = values.device if device is None else torch.device(device)
    return devices.put(values, where, dtype)


def _tolerance(like: Tensor) -> float:
    # coordinates that passed through float32 on their way are still meant
    return 1e-7 if like.dtype == torch.float64 else 1e-5


class Finite:
    """Finitely many actions, given by coordinates or by a prior covariance alone.

    Args:
        points: ``(N, d)``, or ``(*trials, N, d)`` for a set of its own per trial;
            copied.
        covariance: ``(N, N)`` or ``(*trials, N, N)``, symmetric and positive
            semi-definite. Arms known only by how they correlate; there ``x`` is the
            arm's number and ``d = 1``.

    Example:
        >>> import cbandit as cb, torch
        >>> cb.Finite(torch.linspace(0, 1, 100).unsqueeze(-1)).size
        100
    """

    def __init__(self, points: Any = None, *, covariance: Any = None) -> None:
        if (points is None) == (covariance is None):
            given = "neither" if points is None else "both"
            raise CBanditError(
                f"Finite takes one of points and covariance=; got {given}"
            )
        self.covariance: Tensor | None = None
        if covariance is not None:
            self.covariance = _checked_covariance(covariance)
            arms = torch.arange(self.covariance.shape[-1], dtype=torch.float64)
            self.all = arms.unsqueeze(-1)
        else:
            kept = checks.tensor("points", points, None)
            if not kept.is_floating_point():
                kept = kept.double()
            self.all = checks.finite("points", kept)
            if kept.dim() not in (2, 3) or 0 in kept.shape:
                raise CBanditError(
                    "points must have shape (N, d), so (N, 1) on a line, or "
                    f"(trials, N, d), none of them 0; got {tuple(kept.shape)}"
                )
        base = self.all if self.covariance is None else self.covariance
        self.batch_shape = tuple(base.shape[:-2])
        self.size, self.dim = int(self.all.shape[-2]), int(self.all.shape[-1])

    def points(self, index: Any) -> Tensor:
        """Coordinates ``(*index.shape, d)`` of the actions numbered ``index``.

        Where each trial has a set of its own, ``index`` leads with the trials.
        """
        return self.at(checked_index(index, self.size, self.all.device))

    def at(self, numbers: Tensor) -> Tensor:
        """:meth:`points`, of numbers known to be right."""
        if self.all.dim() == 2:
            # a copy, also of one alone: a view would give the set to who changes it
            return torch.embedding(self.all, numbers)
        trials = self.all.shape[0]
        if numbers.dim() == 0 or numbers.shape[0] != trials:
            raise CBanditError(
                f"index must lead with the {trials} trials; got {tuple(numbers.shape)}"
            )
        flat = numbers.reshape(trials, -1, 1).expand(-1, -1, self.dim)
        return self.all.gather(1, flat).view(*numbers.shape, self.dim)

    def block(self, start: int, stop: int) -> Tensor:
        """Coordinates of the actions ``start .. stop - 1``, ``(*trials, n, d)``."""
        return self.all[..., start:stop, :]

    def index(self, x: Any) -> Tensor:
        """Numbers of the actions at the points ``x`` of shape ``(..., d)``."""
        x = _coordinates("x", x, self.dim, self.all)
        if self.all.dim() == 3 and (x.dim() < 2 or x.shape[0] != self.all.shape[0]):
            raise CBanditError(
                f"x must lead with the {self.all.shape[0]} trials; got {tuple(x.shape)}"
            )
        flat = x.reshape(*self.all.shape[:-2], -1, self.dim)
        if x.numel() == 0:
            return torch.zeros(x.shape[:-1], dtype=torch.long, device=x.device)
        # one point against all actions at a time: memory stays at that of the set
        gaps, numbers = zip(
            *[
                (self.all - one.unsqueeze(-2)).abs().amax(-1).min(-1)
                for one in flat.unbind(-2)
            ],
            strict=True,
        )
        gap = torch.stack(gaps, -1)
        if bool((gap > _tolerance(x) * (1 + self.all.abs().max())).any()):
            raise CBanditError(
                f"x must be a point of the set of {self.size} actions; the nearest is "
                f"{gap.max().item():.3g} away"
            )
        return torch.stack(numbers, -1).view(x.shape[:-1])

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> Finite:
        """The same set on another device, its coordinates in another dtype."""
        out = object.__new__(Finite)
        out.__dict__.update(self.__dict__)
        out.all = _moved(self.all, device, dtype)
        if self.covariance is not None:
            out.all = _moved(self.all, device)
            out.covariance = _moved(self.covariance, device)
        return out

    def __repr__(self) -> str:
        kind = "points" if self.covariance is None else "covariance"
        return f"Finite({kind}, size={self.size}, dim={self.dim})"


def _checked_covariance(value: Any) -> Tensor:
    name = "covariance"
    given = checks.finite(name, checks.tensor(name, value))
    shape = tuple(given.shape)
    if given.dim() not in (2, 3) or shape[-1] != shape[-2] or 0 in shape:
        raise CBanditError(
            f"{name} must have shape (N, N) or (trials, N, N); got {shape}"
        )
    scale = float(given.diagonal(dim1=-2, dim2=-1).abs().max().clamp_min(1e-300))
    gap = float((given - given.mT).abs().max())
    if gap > 1e-8 * scale:
        raise CBanditError(f"{name} must be symmetric; it is {gap:.3g} off")
    given = 0.5 * (given + given.mT)
    least = float(torch.linalg.eigvalsh(given).min())
    if least < -1e-8 * scale * shape[-1]:
        raise CBanditError(
            f"{name} must be positive semi-definite; its least eigenvalue is "
            f"{least:.3g}"
        )
    return given


class ProductGrid:
    """All combinations of the values on some axes; never materialised as a whole.

    Args:
        axes: one 1-d tensor of values per coordinate. Numbered like
            ``torch.cartesian_prod``: the last axis runs fastest.

    Example:
        >>> import cbandit as cb, torch
        >>> cb.ProductGrid([torch.linspace(0, 1, 1000)] * 3).size
        1000000000
    """

    def __init__(self, axes: Sequence[Any]) -> None:
        # no other iterables: rows of an array are more often points, and a gpytorch
        # kernel can be gone through without an end
        if not isinstance(axes, Sequence):
            shape = getattr(axes, "shape", None)
            raise CBanditError(
                "axes must be a list of 1-d tensors, one per coordinate (points go "
                f"into cb.Finite); got {checks.kind(axes)}"
                + ("" if shape is None else f" of shape {tuple(shape)}")
            )
        kept = [checks.tensor(f"axes[{j}]", x, None) for j, x in enumerate(axes)]
        if not kept:
            raise CBanditError("axes must hold at least one axis; got none")
        for j, axis in enumerate(kept):
            if axis.dim() != 1 or axis.numel() == 0:
                raise CBanditError(
                    f"axes[{j}] must be a 1-d tensor with at least one value; got "
                    f"shape {tuple(axis.shape)}"
                )
            checks.finite(f"axes[{j}]", axis)
        real = [axis.dtype for axis in kept if axis.is_floating_point()]
        dtype = functools.reduce(torch.promote_types, real) if real else torch.float64
        self.axes = [axis.to(dtype) for axis in kept]
        self.batch_shape: tuple[int, ...] = ()
        self.sizes = [axis.numel() for axis in self.axes]
        self.size, self.dim = math.prod(self.sizes), len(self.sizes)
        if self.size > torch.iinfo(torch.long).max:
            raise CBanditError(
                "axes must span fewer than 2^63 actions, for they are numbered in "
                f"int64; got {' x '.join(map(str, self.sizes))}"
            )

    def points(self, index: Any) -> Tensor:
        """Coordinates ``(*index.shape, d)`` of the actions numbered ``index``."""
        return self.at(checked_index(index, self.size, self.axes[0].device))

    def at(self, numbers: Tensor) -> Tensor:
        """:meth:`points`, of numbers known to be right."""
        rest, columns = numbers, []
        for axis in reversed(self.axes):
            columns.append(axis.take(rest % axis.numel()))
            rest = rest // axis.numel()
        return torch.stack(columns[::-1], -1)

    def block(self, start: int, stop: int) -> Tensor:
        """Coordinates of the actions ``start .. stop - 1``, ``(n, d)``."""
        return self.at(torch.arange(start, stop, device=self.axes[0].device))

    def index(self, x: Any) -> Tensor:
        """Numbers of the actions at the points ``x`` of shape ``(..., d)``."""
        x = _coordinates("x", x, self.dim, self.axes[0])
        number = torch.zeros(x.shape[:-1], dtype=torch.long, device=x.device)
        for j, axis in enumerate(self.axes):
            gap, place = (x[..., j, None] - axis).abs().min(-1)
            if bool((gap > _tolerance(x) * (1 + axis.abs().max())).any()):
                raise CBanditError(
                    f"x must be a point of the grid; coordinate {j} is "
                    f"{gap.max().item():.3g} off the nearest value of its axis; round "
                    "x to the grid, or choose on a cb.Box"
                )
            number = number * axis.numel() + place
        return number

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> ProductGrid:
        """The same grid on another device or in another dtype."""
        out = object.__new__(ProductGrid)
        out.__dict__.update(self.__dict__)
        out.axes = [_moved(axis, device, dtype) for axis in self.axes]
        return out

    def __repr__(self) -> str:
        return f"ProductGrid({' x '.join(map(str, self.sizes))}, size={self.size})"


class Box:
    """A continuous box ``{x : lower <= x <= upper}``, or one times a finite set.

    Args:
        lower: ``(c,)``.
        upper: ``(c,)``, above ``lower`` in every coordinate.
        choices: ``(K, k)``, a :class:`Finite` or a :class:`ProductGrid`: ``k`` more
            coordinates that together take one of ``K`` rows (whole numbers, codes of
            categories). They follow the continuous ones, so that ``d = c + k``.

    Example:
        >>> import cbandit as cb
        >>> cb.Box([0.0, 0.0], [1.0, 5.0], choices=[[1.0], [2.0], [4.0]]).dim
        3
    """

    def __init__(self, lower: Any, upper: Any, choices: Any = None) -> None:
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
        #: ``(K, k)``, what the last coordinates may be
        self.choices = None if choices is None else _rows(choices)
        #: ``(d,)``, which coordinates are continuous
        self.free = torch.ones(low.numel(), dtype=torch.bool)
        if self.choices is not None:
            least, most = self.choices.amin(0), self.choices.amax(0)
            low = torch.cat([low, least])
            high = torch.cat([high, torch.where(most > least, most, least + 1)])
            self.free = torch.arange(low.numel()) < self.free.numel()
        self.lower, self.upper = low, high
        self.batch_shape: tuple[int, ...] = ()
        self.size, self.dim = math.inf, low.numel()
        #: ``c``, how many coordinates are continuous
        self.continuous = int(self.free.sum())

    @property
    def bounds(self) -> Tensor:
        """``(2, d)``, as BoTorch's optimisers take it."""
        return torch.stack([self.lower, self.upper])

    def points(self, index: Any) -> Tensor:
        """A box has no numbered actions: always an error that says so."""
        raise CBanditError("a Box is continuous: its actions are points, not numbers")

    def inside(self, x: Any, name: str = "x") -> Tensor:
        """``x`` of shape ``(..., d)``, or an error if it leaves the box."""
        x = _coordinates(name, x, self.dim, self.lower)
        slack = _tolerance(x) * (self.upper - self.lower)
        outside = ((x < self.lower - slack) | (x > self.upper + slack)).any(-1)
        if bool(outside.any()):
            raise CBanditError(
                f"{name} must lie between lower = {self.lower.tolist()} and upper = "
                f"{self.upper.tolist()}; got {x[outside][0].tolist()}"
            )
        held = torch.minimum(torch.maximum(x, self.lower), self.upper)
        if self.choices is None:
            return held
        count = self.continuous
        ends = held[..., count:].contiguous()
        try:
            rows = Finite(self.choices).index(ends)
        except CBanditError:
            raise CBanditError(
                f"{name} must end with one of the {len(self.choices)} rows of choices; "
                f"got {ends.reshape(-1, ends.shape[-1])[0].tolist()}"
            ) from None
        return torch.cat([held[..., :count], self.choices[rows]], -1)

    def nearest(self, x: Tensor) -> Tensor:
        """The point of the box nearest to each of ``x (..., d)``, coordinate-wise."""
        held = torch.minimum(torch.maximum(x.to(self.lower), self.lower), self.upper)
        if self.choices is None:
            return held
        ends = held[..., self.continuous :]
        row = (ends.unsqueeze(-2) - self.choices).abs().amax(-1).argmin(-1)
        return torch.cat([held[..., : self.continuous], self.choices[row]], -1)

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> Box:
        """The same box on another device or in another dtype."""
        out = object.__new__(Box)
        out.__dict__.update(self.__dict__)
        out.lower = _moved(self.lower, device, dtype)
        out.upper = _moved(self.upper, device, dtype)
        out.free = _moved(self.free, device)
        if self.choices is not None:
            out.choices = _moved(self.choices, device, dtype)
        return out

    def __repr__(self) -> str:
        if self.choices is None:
            return f"Box({self.lower.tolist()}, {self.upper.tolist()})"
        count = int(self.free.sum())
        ends = f"{self.lower[:count].tolist()}, {self.upper[:count].tolist()}"
        return f"Box({ends}, {len(self.choices)} choices)"


def _given_rows(choices: Any) -> Finite:
    given = checks.finite("choices", checks.tensor("choices", choices))
    if given.dim() != 2 or given.numel() == 0:
        raise CBanditError(
            "choices must have rows, of shape (K, k), such as [[1], [2]] for one "
            f"coordinate; got {tuple(given.shape)}"
        )
    return Finite(given)


def _rows(choices: Any) -> Tensor:
    """The rows of a box' choices, ``(K, k)``, float64."""
    if isinstance(choices, ProductGrid):
        if choices.size > MOST_ROWS:
            raise CBanditError(
                f"choices must have at most {MOST_ROWS} rows; got {choices.size}"
            )
        rows = choices.block(0, choices.size)
    else:
        kept = choices if isinstance(choices, Finite) else _given_rows(choices)
        if kept.covariance is not None or kept.all.dim() != 2:
            raise CBanditError(
                f"choices must have coordinates, the same for every trial; got {kept!r}"
            )
        rows = kept.all
    out: Tensor = rows.double()
    return out


class Star:
    """The union of the segments from a centre to some tips.

    Args:
        center: ``(d,)``.
        tips: ``(K, d)`` or ``(*trials, K, d)``; segment ``i`` is
            ``{center + a (tips[i] - center) : 0 <= a <= 1}``.
    """

    def __init__(self, center: Any, tips: Any) -> None:
        self.center = checks.finite("center", checks.tensor("center", center))
        self.tips = checks.finite("tips", checks.tensor("tips", tips))
        if self.center.dim() != 1 or self.center.numel() == 0:
            raise CBanditError(
                f"center must have shape (d,); got {tuple(self.center.shape)}"
            )
        shape = tuple(self.tips.shape)
        if len(shape) not in (2, 3) or 0 in shape or shape[-1] != self.center.numel():
            raise CBanditError(
                "tips must have shape (K, d) or (trials, K, d) with d = "
                f"{self.center.numel()}; got {shape}"
            )
        self.batch_shape = shape[:-2]
        self.size, self.dim = shape[-2], shape[-1]

    def points(self, index: Any) -> Tensor:
        """The tips numbered ``index``, ``(*index.shape, d)``."""
        numbers = checked_index(index, self.size, self.tips.device)
        return Finite(self.tips).points(numbers)

    def along(self, index: Any, a: Any) -> Tensor:
        """The points a share ``a`` of the way to the tips numbered ``index``."""
        share = checks.tensor("a", a, self.tips.dtype, self.tips.device)
        checks.finite("a", share)
        outside = (share < 0) | (share > 1)
        if bool(outside.any()):
            first = share[outside][0].item()
            raise CBanditError(f"a must lie between 0 and 1; got {first:g}")
        return self.center + share.unsqueeze(-1) * (self.points(index) - self.center)

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> Star:
        """The same star on another device or in another dtype."""
        out = object.__new__(Star)
        out.__dict__.update(self.__dict__)
        out.center = _moved(self.center, device, dtype)
        out.tips = _moved(self.tips, device, dtype)
        return out

    def __repr__(self) -> str:
        return f"Star(size={self.size}, dim={self.dim})"


Actions = Finite | ProductGrid | Box | Star
