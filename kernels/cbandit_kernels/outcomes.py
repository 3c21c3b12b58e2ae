"""Count outcomes into their running average and spread."""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit_kernels.backends import native
from cbandit_kernels.types import OutcomeCounts

__all__ = ["count_outcomes", "count_outcomes_ref", "with_spreads"]

ALIKE = 1e-12  # a spread below this share of the values' size is rounding


def count_outcomes_ref(
    before: OutcomeCounts,
    values: Tensor,
    came: Tensor,
    sign: int = 1,
    *,
    backend: str | None = None,
) -> OutcomeCounts:
    """Return the statistics with an outcome added, or with ``sign=-1`` removed.

    Args:
        before: the statistics before.
        values: ``(T, f)``.
        came: the trials in which there is an outcome, ``(T, 1)`` bool.
        sign: 1 or -1.
        backend: ``None``, ``"native"`` to require compiled loops, or ``"torch"``.
    """
    seen, average, squares, most, origin, *_ = before
    if sign > 0:
        origin = torch.where(came & (seen == 0), values, origin)
    count = seen + sign * came
    gap = torch.where(came, values - average, 0.0)
    average = average + sign * gap / (count + (count == 0))
    squares = squares + sign * gap * (values - average) * came
    if sign < 0:
        # with nothing left, the statistics are those of no outcome
        left = count > 0
        average, squares = average * left, squares * left
    return with_spreads(count, average, squares, torch.maximum(most, squares), origin)


def with_spreads(
    seen: Tensor, average: Tensor, squares: Tensor, most: Tensor, origin: Tensor
) -> OutcomeCounts:
    """Return the statistics with the spreads that follow from them."""
    spread = (squares / (seen - 1).clamp_min(1)).clamp_min(0).sqrt()
    known = (seen >= 2) & (spread > ALIKE * average.abs())
    size = torch.where(known, spread, 1.0)
    return OutcomeCounts(seen, average, squares, most, origin, known, size)


def count_outcomes(
    before: OutcomeCounts,
    values: Tensor,
    came: Tensor,
    sign: int = 1,
    *,
    backend: str | None = None,
) -> OutcomeCounts:
    """Do as :func:`count_outcomes_ref`, bit for bit, by compiled loops if possible."""
    if backend == "native" or (backend is None and native(before.average)):
        from cbandit_kernels._native.outcomes import count

        return count(before, values, came, sign, ALIKE)
    return count_outcomes_ref(before, values, came, sign)
