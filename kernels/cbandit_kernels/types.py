"""The arguments and answers of a round's pass, whichever backend makes it.

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
    "Priced",
    "WeightSums",
]

SCORES = ("primal-dual", "rectified", "feasible", "least")
"""``f - sum w g``; ``f - sum w [g]_+``; ``f`` where all ``g <= 0``; ``-max g``."""


class Frame(NamedTuple):
    """Kernels see coordinates as ``(x - center) * scale``.

    Args:
        center: ``(f, 1 or T, d)``, one a factor; 0 for ``linear``'s own origin.
        scale: likewise.
        far: whether distances must come from differences of coordinates, because
            squares of scaled coordinates would cancel noticeably, or powers of them
            overflow. Set it where they may exceed 100 (float64: 500).
    """

    center: Tensor
    scale: Tensor
    far: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """``(f, 1 or T, n, d)`` of ``x``, ``(n, d)`` or ``(T, n, d)``."""
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
    """Values over whole rows of a grid, as a product: ``left @ right``.

    Args:
        left: ``(T, k, rows, r)``.
        right: ``(1 or T, r, tails)``; the stretch is ``rows x tails`` actions.
    """

    left: Tensor
    right: Tensor

    def values(self) -> Tensor:
        """``(T, k, rows * tails)``."""
        return (self.left @ self.right.unsqueeze(1)).flatten(2)


class Late(NamedTuple):
    """Changes of a covariance that are yet to be applied: less ``sum_p w_p c_p c_p^T``.

    A large matrix is read and written once for several changes; of each only the column
    is needed before.

    Args:
        columns: ``(T, W, N)``, room for ``W`` changes.
        weights: ``(T, W)``.
        var: ``(T, N)``, the diagonal after them; of no meaning where nothing waits.
        waiting: how many there are, fewer than ``W``.
    """

    columns: Tensor
    weights: Tensor
    var: Tensor
    waiting: int

    @staticmethod
    def room(cov: Tensor, changes: int) -> Late:
        """Room for so many changes of ``cov (T, N, N)``."""
        trials, size, _ = cov.shape
        columns = cov.new_zeros(trials, changes, size)
        return Late(columns, columns[..., 0].clone(), columns[:, 0].clone(), 0)

    def apply(self, cov: Tensor) -> None:
        """Apply what waits, in place."""
        for p in range(self.waiting):
            column, weight = self.columns[:, p], self.weights[:, p, None]
            scaled = (column * weight).unsqueeze(-2)
            cov.addcmul_(column.unsqueeze(-1), scaled, value=-1)


@dataclass(frozen=True, slots=True)
class Look:
    """A round as a value: which score of which estimates is wanted of every action.

    The estimate is ``mean + coefficient * spread + offset``, kept within ``bound``.
    The spread is the standard deviation, or a joint draw less the mean.

    Args:
        coefficient: ``(T, F)``.
        offset: ``(T, F)``, or ``None``: nothing is added.
        bound: ``(T, F)``; estimates are kept within ``[-bound, bound]``. ``None``: they
            are not.
        score: one of :data:`SCORES`, or a function of ``f (T, n)`` and ``g (T, m, n)``
            that returns ``(T, n)``. Backends take only the former.
        weight: ``(T, m)``, the costs' weights in the first two of :data:`SCORES`.
            ``None``: the reward alone counts.
        mask: ``(1 or T, N)`` bool over the whole set, the actions allowed.
        beside: ``(T, k, N)``, costs that are known of every action; they follow the
            estimated ones in ``g``. Backends do not take them.
        tolerance: ``(T,)``; the first action whose score comes so close to the largest
            is chosen. ``None``: only equal scores are equals.
        link: turns ``mean + coefficient * spread``, ``(T, F, n)``, into what the offset
            is added to; ``None``: that itself is. Backends do not take it.
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
        """The least score that is as good as the largest, ``value (T,)``."""
        if self.tolerance is None:
            return value
        return value - self.tolerance.to(value)

    def closer(self, value: Tensor, reach: Tensor) -> Look:
        """The same where the largest is ``value`` and ``reach (T,)`` is needed."""
        return replace(self, tolerance=(value - reach).clamp_min(0))


@dataclass(frozen=True)
class Found:
    """The best action of a stretch: the first one whose score is within the tolerance.

    Args:
        value: the largest score, ``(T,)``; minus infinity where nothing is allowed,
            plus infinity where a score is not a number.
        index: ``(T,)``, int64, counted from the whole set's first action.
        estimate: at that action, ``(T, F)``.
    """

    value: Tensor
    index: Tensor
    estimate: Tensor


class Priced(NamedTuple):
    """The price of a window in each trial, and what the last row plays at it.

    Args:
        price: ``(T,)``.
        arms: of the last row, ``(T, 2)``, by number; an unused one is last and 0.
        shares: their probabilities, ``(T, 2)``.
        near: prices at which the plans that are mixed are best, ``(T, 2)``.
        infeasible: trials in which no plan reaches the target, ``(T,)``; what is said
            of these is of the cheapest plan.
    """

    price: Tensor
    arms: Tensor
    shares: Tensor
    near: Tensor
    infeasible: Tensor


class WeightSums(NamedTuple):
    """The sums of a regression on ``D`` features, in ``K`` blocks, float64.

    A block has ``A = sum p h h'``, ``b = sum p y h'`` and a root of ``(I + A)^-1``.

    Args:
        sums: ``A``, ``(T, K, D, D)``.
        weighted: ``b``, ``(T, K, F, D)``.
        root: ``W``, ``(T, K, D, D)``, of any dtype.
        rotated: ``b W``, ``(T, K, F, D)``.
        fitted: ``b W W' b'``, ``(T, K, F, F)``.
        log_det: of ``I + A``, ``(T, K)``.
    """

    sums: Tensor
    weighted: Tensor
    root: Tensor
    rotated: Tensor
    fitted: Tensor
    log_det: Tensor
