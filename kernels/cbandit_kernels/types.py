"""The arguments and results of a round's pass, the same for all backends.

``T`` trials, ``F`` functions (the reward first), ``n`` actions, ``d`` coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

__all__ = [
    "SCORES",
    "Change",
    "Factors",
    "Found",
    "Frame",
    "Late",
    "Look",
    "OutcomeCounts",
    "Priced",
    "WeightRows",
    "WeightSums",
]

SCORES = ("primal-dual", "rectified", "feasible", "least")
"""``f - sum w g``; ``f - sum w [g]_+``; ``f`` where all ``g <= 0``; ``-max g``."""


class Frame(NamedTuple):
    """The map ``(x - center) * scale`` from coordinates to a kernel's inputs.

    Args:
        center: ``(f, 1 or T, d)``, one row a factor; 0 for ``linear``, which has its
            own origin.
        scale: ``(f, 1 or T, d)``.
        far: whether distances must come from differences of coordinates, because
            squares of scaled coordinates would cancel noticeably, or powers of them
            overflow. Set it if they may exceed 100 (float64: 500).
    """

    center: Tensor
    scale: Tensor
    far: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x``, ``(n, d)`` or ``(T, n, d)``, mapped: ``(f, 1 or T, n, d)``."""
        return (x - self.center.unsqueeze(-2)) * self.scale.unsqueeze(-2)


class Change(NamedTuple):
    """``var -= sum_i spread_i c_i^2`` and ``mean += sum_i shift_i c_i``, ``k`` columns.

    Args:
        spread: ``(T, k)``.
        shift: ``(T, F, k)``.
    """

    spread: Tensor
    shift: Tensor


class Factors(NamedTuple):
    """Values over whole rows of a grid, as the product ``left @ right``.

    Args:
        left: ``(T, k, rows, r)``.
        right: ``(1 or T, r, tails)``; the stretch is ``rows x tails`` actions.
    """

    left: Tensor
    right: Tensor

    def values(self) -> Tensor:
        """Return the product, ``(T, k, rows * tails)``."""
        return (self.left @ self.right.unsqueeze(1)).flatten(2)


class Late(NamedTuple):
    """Changes not yet applied to a covariance: subtract ``sum_p w_p c_p c_p^T``.

    A large matrix is read and written once for several changes; before that, only one
    column is needed for each.

    Args:
        columns: ``(T, W, N)``, room for ``W`` changes.
        weights: ``(T, W)``.
        var: ``(T, N)``, the diagonal after the changes; meaningless if there are none.
        waiting: how many changes there are, fewer than ``W``.
    """

    columns: Tensor
    weights: Tensor
    var: Tensor
    waiting: int

    @staticmethod
    def room(cov: Tensor, changes: int) -> Late:
        """Return room for ``changes`` changes of ``cov (T, N, N)``."""
        trials, size, _ = cov.shape
        columns = cov.new_zeros(trials, changes, size)
        return Late(columns, columns[..., 0].clone(), columns[:, 0].clone(), 0)

    def apply(self, cov: Tensor) -> None:
        """Apply all changes, in place."""
        for p in range(self.waiting):
            column, weight = self.columns[:, p], self.weights[:, p, None]
            scaled = (column * weight).unsqueeze(-2)
            cov.addcmul_(column.unsqueeze(-1), scaled, value=-1)


@dataclass(frozen=True, slots=True)
class Look:
    """A round as a value: the score to maximise, and how estimates are made.

    The estimate is ``mean + coefficient * spread + offset``, clipped to ``bound``. The
    spread is the standard deviation, or a joint draw less the mean.

    Args:
        coefficient: ``(T, F)``.
        offset: ``(T, F)``, or ``None``: nothing is added.
        bound: ``(T, F)``; estimates are clipped to ``[-bound, bound]``. ``None``: they
            are not clipped.
        score: one of :data:`SCORES`, or a function of ``f (T, n)`` and ``g (T, m, n)``
            that returns ``(T, n)``. Backends take only the former.
        weight: ``(T, m)``, the costs' weights in the first two of :data:`SCORES`.
            ``None``: the reward alone counts.
        mask: ``(1 or T, N)`` bool over the whole set, the actions allowed.
        beside: ``(T, k, N)``, known costs of every action; they follow the estimated
            costs in ``g``. Backends do not take them.
        tolerance: ``(T,)``; the first action whose score is this close to the largest
            is chosen. ``None``: only equal scores tie.
        link: maps ``mean + coefficient * spread``, ``(T, F, n)``, before the offset is
            added; ``None``: no map. Backends do not take it.
    """

    coefficient: Tensor
    offset: Tensor | None
    bound: Tensor | None
    score: str | Callable[[Tensor, Tensor], Tensor]
    weight: Tensor | None = None
    mask: Tensor | None = None
    beside: Tensor | None = None
    tolerance: Tensor | None = None
    link: Callable[[Tensor], Tensor] | None = None

    def reach(self, value: Tensor) -> Tensor:
        """Return the least score that ties with the largest, ``value (T,)``."""
        if self.tolerance is None:
            return value
        return value - self.tolerance.to(value)

    def closer(self, value: Tensor, reach: Tensor) -> Look:
        """Return the look in which scores from ``reach (T,)`` on tie with ``value``."""
        return replace(self, tolerance=(value - reach).clamp_min(0))


@dataclass(frozen=True)
class Found:
    """The best action of a stretch: the first one within tolerance of the best score.

    Args:
        value: the largest score, ``(T,)``; minus infinity if nothing is allowed, plus
            infinity if a score is not a number.
        index: ``(T,)``, int64, counted from the whole set's first action.
        estimate: the estimates there, ``(T, F)``.
    """

    value: Tensor
    index: Tensor
    estimate: Tensor


class OutcomeCounts(NamedTuple):
    """Running statistics of the outcomes of ``f`` functions, float64.

    Args:
        seen: how many outcomes, ``(T, 1)``.
        average: ``(T, f)``.
        squares: squared distances from the average, summed, ``(T, f)``.
        most: the largest value that this sum has had, ``(T, f)``.
        origin: the first outcome, ``(T, f)``.
        known: whether two outcomes differ by more than rounding, ``(T, f)`` bool.
        size: the spread, ``(T, f)``; 1 if it is not known.
    """

    seen: Tensor
    average: Tensor
    squares: Tensor
    most: Tensor
    origin: Tensor
    known: Tensor
    size: Tensor


class Priced(NamedTuple):
    """The prices of a window in each trial, and what the last row plays at them.

    Args:
        price: ``(T, m)``.
        arms: the last row's choices by number, ``(T, m + 1)``; unused ones are last and
            0.
        shares: their probabilities, ``(T, m + 1)``.
        near: prices at which the mixed plans are best, ``(T, m + 1, m)``.
        infeasible: trials in which no plan reaches the targets, ``(T,)``; their values
            are those of the least relative excess.
    """

    price: Tensor
    arms: Tensor
    shares: Tensor
    near: Tensor
    infeasible: Tensor


class WeightSums(NamedTuple):
    """The sums of a regression on ``D`` features, in ``K`` blocks, float64.

    A block has ``A = sum p h h'``, ``b = sum p y h'`` and the upper triangular root of
    ``(I + A)^-1``.

    Args:
        sums: ``A``, ``(T, K, D, D)``.
        weighted: ``b``, ``(T, K, F, D)``.
        root: ``W``, ``(T, K, D, D)``, of any dtype.
        rotated: ``b W``, ``(T, K, F, D)``.
        fitted: ``b W W' b'``, ``(T, K, F, F)``.
        log_det: ``log det (I + A)``, ``(T, K)``.
    """

    sums: Tensor
    weighted: Tensor
    root: Tensor
    rotated: Tensor
    fitted: Tensor
    log_det: Tensor


class WeightRows(NamedTuple):
    """Moments of a regression on features at the rows ``start .. stop - 1``.

    A row is a point without its categories: it has a value in each block. The arrays
    are float64 and have room for ``R`` rows, so that few of them are copied.

    Args:
        h: the features, ``(T, D, R)``.
        mean: ``(T, F, R, K)``.
        var: ``(T, R, K)``.
        start: the first row.
        stop: the row after the last.
    """

    h: Tensor
    mean: Tensor
    var: Tensor
    start: int = 0
    stop: int = 0

    @classmethod
    def none(cls, sums: WeightSums, room: int = 0) -> WeightRows:
        """Return no rows, with room for some."""
        trials, blocks, functions, width = sums.weighted.shape
        return cls(
            sums.weighted.new_zeros(trials, width, room),
            sums.weighted.new_zeros(trials, functions, room, blocks),
            sums.weighted.new_zeros(trials, room, blocks),
        )
