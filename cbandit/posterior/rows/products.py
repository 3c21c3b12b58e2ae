"""Numbers over a product grid as products of two factors, stretch by stretch."""

from __future__ import annotations

from torch import Tensor

from cbandit_kernels import FUSED_RANK, Factors, native

__all__ = ["Products"]


class Products:
    """``left @ right`` over a stretch of the grid: columns, or a joint draw.

    Args:
        left: ``(T, k, rows, r)``.
        right: ``(1 or T, r, tails)``.
        skipped: rows of the grid before the first of ``left``.
    """

    def __init__(self, left: Tensor, right: Tensor, skipped: int) -> None:
        self._left, self._right, self._skipped = left, right, skipped

    @property
    def fused(self) -> bool:
        """Whether a compiled round takes the factors themselves."""
        return self._left.shape[-1] < FUSED_RANK and native(self._left)

    def whole(self, start: int, stop: int) -> bool:
        """Whether the stretch is rows of the grid, from end to end."""
        tails = self._right.shape[-1]
        return start % tails == 0 == stop % tails

    def factors(self, start: int, stop: int) -> Factors:
        """The factors of a stretch that is :meth:`whole`."""
        tails, skipped = self._right.shape[-1], self._skipped
        rows = slice(start // tails - skipped, stop // tails - skipped)
        return Factors(self._left[:, :, rows], self._right)

    def __call__(self, start: int, stop: int) -> Tensor:
        """``(T, k, stop - start)``."""
        left, right, skipped = self._left, self._right, self._skipped
        trials, k, tails = len(left), left.shape[1], right.shape[-1]
        first, last = start // tails, (stop - 1) // tails
        part = left[:, :, first - skipped : last + 1 - skipped]
        if stop - start < tails:
            low = start - first * tails
            out = part @ right.unsqueeze(1)[..., low : low + stop - start]
        elif trials == 1:
            flat = part[0].flatten(0, 1)
            out = flat @ right[0]
        else:
            out = part @ right.unsqueeze(1)
        return out.reshape(trials, k, stop - start)
