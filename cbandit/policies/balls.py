"""Balls around points of a box, such as failed actions, which searches leave out.

Shapes: ``T`` trials, ``n`` points, ``k`` balls, ``d`` coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.actions import Box

RADIUS = 1e-3  # of a ball, with the box scaled to the unit cube
SEARCH_RADIUS_FACTOR = (
    1.0001  # on the radius: rounding moves no found point into a ball
)


class Balls:
    """Balls around points of a box, which searches leave out.

    Args:
        box: the box.
        points: the balls' centres, ``(k, d)`` for each trial.
    """

    def __init__(self, box: Box, points: tuple[Tensor, ...]) -> None:
        most = max(len(each) for each in points)
        centres = torch.full((len(points), most, box.dim), torch.inf).double()
        for row, each in zip(centres, points, strict=True):
            row[: len(each)] = box.unit.of(each.to(box.lower)).double().cpu()
        self.centres = devices.put(centres, box.lower.device)
        self._box, self.points = box, points

    def __call__(self, z: Tensor) -> Tensor:
        """Return which points ``z (T, n, d)`` of the unit cube lie in a ball.

        The answer is ``(T, n)``. Searches call this; for them balls are larger.
        """
        return self._within(z, RADIUS * SEARCH_RADIUS_FACTOR)

    def holds(self, x: Tensor) -> Tensor:
        """Return which points ``x (T, d)`` of the box lie in a ball, ``(T,)``."""
        return self._within(self._box.unit.of(x).unsqueeze(1), RADIUS).squeeze(1)

    def joined(self, other: Balls) -> Balls:
        """Return these balls together with others of the same box."""
        pairs = zip(self.points, other.points, strict=True)
        return Balls(self._box, tuple(map(torch.cat, pairs)))

    def of_trial(self, trial: int) -> Balls:
        """Return the balls of one trial."""
        one = object.__new__(Balls)
        one.centres, one._box = self.centres[trial : trial + 1], self._box
        one.points = self.points[trial : trial + 1]
        return one

    def _within(self, z: Tensor, radius: float) -> Tensor:
        """Return which points ``z (T, n, d)`` are within ``radius`` of a centre."""
        gap = z.double().unsqueeze(-2) - self.centres.unsqueeze(1)  # T x n x k x d
        return within_radius(gap, self._box.free, radius).any(-1)


def within_radius(gap: Tensor, free: Tensor, radius: float) -> Tensor:
    """Return which differences ``gap (..., d)`` of two points are within ``radius``.

    The coordinates ``free (d,)`` are continuous, in the unit cube. All others take
    values from a list and must be equal.
    """
    close = gap[..., free].square().sum(-1) <= radius**2
    return close & (gap[..., ~free].abs() < 1e-9).all(-1)
