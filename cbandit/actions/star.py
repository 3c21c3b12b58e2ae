"""Segments that lead from one centre to some tips."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit.actions.base import Actions, checked_index
from cbandit.actions.finite import rows_of
from cbandit.errors import CBanditError


class Star(Actions):
    """The union of the segments from a centre to some tips.

    Only the tips are numbered; ``points`` and ``along`` take these numbers.

    A star with tips on its edge approximates a ball, or another convex set, from
    inside. Maximising LC-LUCB's convex objective over the set itself is hard; its paper
    uses rays too. The best of 100 uniform rays to the edge of the unit ball reaches 99,
    96, 88 and 70 % of the ball's optimum in 2, 3, 5 and 10 dimensions, the best of
    1 000 rays 100, 100, 96 and 83 % (means over linear rewards and costs of norm 1 and
    limits uniform on [0, 1]). ``ask(actions=)`` takes new rays in every round.

    Args:
        center: the centre, ``(d,)``.
        tips: ``(K, d)`` or ``(*trials, K, d)``; segment ``i`` is
            ``{center + a (tips[i] - center) : 0 <= a <= 1}``.
    """

    def __init__(self, center: ArrayLike, tips: ArrayLike) -> None:
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

    @property
    def ends(self) -> Tensor:
        """The centre and then the tips, ``(*trials, 1 + K, d)``."""
        return torch.cat([self.center.expand_as(self.tips[..., :1, :]), self.tips], -2)

    def points(self, index: ArrayLike) -> Tensor:
        """Return the tips numbered ``index``, ``(*index.shape, d)``."""
        return rows_of(self.tips, checked_index(index, self.size, self.tips.device))

    def at(self, numbers: Tensor) -> Tensor:
        """Return :meth:`points` without checking the numbers."""
        return rows_of(self.tips, numbers)

    def along(self, index: ArrayLike, a: ArrayLike) -> Tensor:
        """Return the points a share ``a`` of the way to the tips numbered ``index``."""
        share = checks.tensor("a", a, self.tips.dtype, self.tips.device)
        checks.finite("a", share)
        outside = (share < 0) | (share > 1)
        if bool(outside.any()):
            first = share[outside][0].item()
            raise CBanditError(f"a must lie between 0 and 1; got {first:g}")
        return self.center + share.unsqueeze(-1) * (self.points(index) - self.center)

    def extent(self) -> Tensor:
        """Return the least and the greatest coordinates, ``(*trials, 2, d)``."""
        ends = self.ends
        return torch.stack([ends.amin(-2), ends.amax(-2)], -2)

    def __repr__(self) -> str:
        return f"Star(size={self.size}, dim={self.dim})"
