"""The part of a box that linear limits leave, and maps of the box into it.

With choices, each row of them leaves its own slice of the continuous coordinates: a
polytope. A slice is star-shaped around each of its points. So a point of the box is
moved into its slice along the line to the slice's centre, which is that of its largest
ball. Two maps do this. :meth:`Polytope.fold` moves only what lies outside, to the
boundary. :meth:`Polytope.squeeze` shrinks whole lines, so that evenly spread points
stay spread.

Shapes: ``K`` rows of choices, ``U`` slices, ``k`` limits, ``c`` continuous coordinates,
``d`` coordinates.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from cbandit.actions.base import moved
from cbandit.actions.linear import TOLERANCE, LinearLimits
from cbandit.errors import CBanditError

MOST_SLICES = 1000  # each takes a linear programme
GOLDEN = (5**0.5 - 1) / 2  # its multiples tell slices apart
NEAR = 1e-6  # share of the way from the centre to a limit that counts as being there
FLAT = 1e100  # lines that are longer than what is inside by this lie outside whole
TINY = 1e-200  # replaces a slack of 0 in divisions


class Polytope:
    """The points of a box that keep linear limits.

    Args:
        limits: the limits.
        lower: the least coordinates, ``(d,)``.
        upper: the greatest, ``(d,)``.
        choices: the rows of the last coordinates, ``(K, d - c)``; ``None``: none.

    Attributes:
        limits: the limits.
    """

    def __init__(
        self,
        limits: LinearLimits,
        lower: Tensor,
        upper: Tensor,
        choices: Tensor | None,
    ) -> None:
        self.limits = limits
        low, high = lower.double(), upper.double()
        count = len(low) - (0 if choices is None else choices.shape[1])
        self._matrix = limits.matrix[:, :count]
        self._low, self._high = low[:count], high[:count]
        size = limits.matrix.abs() @ torch.maximum(low.abs(), high.abs())
        self._size = size + limits.bound.abs()
        self._eps = 0.0
        # what a row of choices adds to each limit, and the number that tells it apart
        offsets = torch.zeros(1, len(limits.bound), dtype=torch.float64)
        if choices is not None:
            offsets = self._offsets(choices.double()).unique(dim=0)
        if len(offsets) > MOST_SLICES:
            raise CBanditError(
                f"linear limits: the rows of choices must lead to at most {MOST_SLICES}"
                f" different limits on the continuous knobs; got {len(offsets)}: give "
                "all knobs of these limits a step, or none"
            )
        keys, order = self._keys(offsets).sort()
        slices = [self._slice(offset) for offset in offsets[order]]
        self._known = keys
        self._centre = torch.stack([centre for centre, _, _ in slices])  # U x c
        self._slack = torch.stack([slack for _, slack, _ in slices])  # U x k
        self._radius = torch.tensor([radius for _, _, radius in slices])
        self._raise_if_empty()

    def _offsets(self, rows: Tensor) -> Tensor:
        """Return what rows ``(..., d - c)`` of choices add to limits, ``(..., k)``."""
        part = self.limits.matrix[:, self._matrix.shape[1] :]
        out: Tensor = (rows.unsqueeze(-2) * part).sum(-1)
        return out

    def _keys(self, offsets: Tensor) -> Tensor:
        """Return one number per row of offsets ``(..., k)`` that tells it apart."""
        weight = torch.arange(1, 1 + offsets.shape[-1]).to(offsets) * GOLDEN % 1 + 0.5
        out: Tensor = offsets @ (weight / self._size.clamp_min(TINY))
        return out

    def _slice(self, offset: Tensor) -> tuple[Tensor, Tensor, float]:
        """Return a slice's centre ``(c,)``, slack there ``(k,)``, and radius.

        The radius is that of the largest ball inside, with the box scaled to the unit
        cube. It is negative for an empty slice: then no point is that close to keeping
        all limits.
        """
        bound = self.limits.bound - offset
        span = self._high - self._low
        matrix, room = self._matrix * span, bound - self._matrix @ self._low
        norm = matrix.norm(dim=-1)
        flat = norm == 0  # a limit on choices alone
        if bool((flat & (room < -self.limits.excess)).any()):
            return self._low, torch.ones_like(room), -1.0
        rows = [torch.cat([matrix, norm.unsqueeze(-1)], -1)[~flat] / norm[~flat, None]]
        eye, ones = torch.eye(len(span)).double(), torch.ones(len(span), 1).double()
        rows += [torch.cat([-eye, ones], -1), torch.cat([eye, ones], -1)]
        ends = [
            room[~flat] / norm[~flat],
            torch.zeros_like(span),
            torch.ones_like(span),
        ]
        goal = np.zeros(len(span) + 1)
        goal[-1] = -1.0
        found = linprog(
            goal,
            torch.cat(rows).numpy(),
            torch.cat(ends).numpy(),
            bounds=[(0.0, 1.0)] * len(span) + [(None, None)],
            options={
                "primal_feasibility_tolerance": 1e-10,
                "dual_feasibility_tolerance": 1e-10,
            },
        )
        if found.x is None:
            raise CBanditError(f"linear limits: scipy's linprog says {found.message}")
        z = torch.from_numpy(found.x[:-1]).clamp(0, 1)
        centre = self._low + span * z
        slack = torch.where(flat, 1.0, bound - self._matrix @ centre)
        return centre, slack, float(found.x[-1])

    def _raise_if_empty(self) -> None:
        limits, most = self.limits, float(self._radius.max())
        what = limits.written()
        if most < -TOLERANCE:
            raise CBanditError(
                f"linear limits leave nothing of the box: no point keeps {what}"
            )
        if most <= TOLERANCE and len(self._radius) == 1:
            raise CBanditError(
                f"linear limits leave the box no room: what keeps {what} is flat. "
                "Leave out one of the coordinates that are tied, and compute it from "
                "the others"
            )

    def allows(self, choices: Tensor) -> Tensor:
        """Return which rows ``(K, d - c)`` of choices leave a point, ``(K,)`` bool."""
        numbers = self._numbers(self._offsets(choices.double()))
        return self._radius[numbers] >= -TOLERANCE

    def have_room(self, choices: Tensor) -> Tensor:
        """Return which rows ``(K, d - c)`` of choices leave more than a flat slice."""
        numbers = self._numbers(self._offsets(choices.double()))
        return self._radius[numbers] > TOLERANCE

    def in_botorch_form(self) -> list[tuple[Tensor, Tensor, float]]:
        """Return the limits as BoTorch's optimisers take them: ``c x >= b``."""
        rows = zip(self.limits.matrix, self.limits.bound, strict=True)
        return [
            (row.nonzero().squeeze(-1), -row[row != 0], -float(bound))
            for row, bound in rows
        ]

    def _numbers(self, offsets: Tensor) -> Tensor:
        """Return the numbers of the slices with offsets ``(..., k)``, ``(...)``."""
        if len(self._known) == 1:
            return torch.zeros(offsets.shape[:-1], dtype=torch.long).to(offsets.device)
        keys, last = self._keys(offsets), len(self._known) - 1
        after = torch.searchsorted(self._known, keys.contiguous()).clamp(1, last)
        nearer = keys - self._known[after - 1] < self._known[after] - keys
        return after - nearer.long()

    def _at(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the free coordinates of ``x (..., d)``, the centre, and the slack.

        They are ``(..., c)``, ``(..., c)`` and ``(..., k)``. The slack is at the
        centre, less what rounding needs.
        """
        count = self._matrix.shape[1]
        free, rows = x[..., :count].double(), x[..., count:].detach()
        numbers = self._numbers(self._offsets(rows.double()))
        slack = self._slack[numbers] - self._margin()
        return free, self._centre[numbers], slack.clamp_min(TINY)

    def _margin(self) -> Tensor:
        """Return by how much points stay below the limits, for rounding, ``(k,)``."""
        return (self._eps + 8 * torch.finfo(torch.float64).eps) * self._size

    def fold(self, x: Tensor) -> Tensor:
        """Return points ``x (..., d)`` of the box, moved inside where they are not.

        They move along the line to the centre of their slice. The map is continuous,
        and differentiable almost everywhere.
        """
        free, centre, slack = self._at(x)
        beyond = (((free - centre) @ self._matrix.mT) / slack).amax(-1, keepdim=True)
        inside = centre + (free - centre) * _share(beyond)
        # keep the bits of what need not move
        inside = torch.where(beyond <= 1.0, free, inside)
        return torch.cat([inside.to(x.dtype), x[..., free.shape[-1] :]], -1)

    def near(self, x: Tensor) -> Tensor:
        """Return which points ``x (..., d)`` lie at a limit or beyond, ``(...)``."""
        free, centre, slack = self._at(x)
        beyond = (((free - centre) @ self._matrix.mT) / slack).amax(-1)
        return beyond >= 1 - NEAR

    def squeeze(self, x: Tensor) -> Tensor:
        """Return points ``x (..., d)`` of the box, moved inside with their lines.

        A point that lies a third of the way from its slice's centre to the edge of the
        box comes to lie a third of the way to the nearer of this edge and the limits.
        """
        free, centre, slack = self._at(x)
        away = free - centre
        beyond = ((away @ self._matrix.mT) / slack).amax(-1, keepdim=True)
        up = away / (self._high - centre).clamp_min(TINY)
        down = -away / (centre - self._low).clamp_min(TINY)
        share = torch.maximum(up, down).amax(-1, keepdim=True).clamp(TINY, 1.0)
        inside = centre + away * _share(beyond / share)
        return torch.cat([inside.to(x.dtype), x[..., free.shape[-1] :]], -1)

    def centred(self, x: Tensor) -> Tensor:
        """Return points ``x (..., d)``, those outside replaced by slices' centres."""
        free, centre, _ = self._at(x)
        outside = ~self.limits.holds(x).unsqueeze(-1)
        inside = torch.where(outside, centre, free).to(x.dtype)
        return self.fold(torch.cat([inside, x[..., free.shape[-1] :]], -1))

    def rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the limits ``A u <= b`` on free coordinates ``u`` of a point's slice.

        They are ``(k, c)`` and ``(k,)``, for the slice of ``x (d,)``, and a little
        inside of where :meth:`fold` begins to move points.
        """
        _, centre, slack = self._at(x)
        bound = self._matrix @ centre + slack - 1e-12 * self._size
        return self._matrix, bound

    def to(
        self, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> Polytope:
        """Return the same part of the box on another device.

        Args:
            device: the device; ``None``: as now.
            dtype: the type that points are rounded to; ``None``: as now.
        """
        out = object.__new__(Polytope)
        for name, value in vars(self).items():
            setattr(
                out, name, moved(value, device) if isinstance(value, Tensor) else value
            )
        out.limits = self.limits.to(device)
        if dtype is not None:
            out._eps = torch.finfo(dtype).eps
        return out


def _share(beyond: Tensor) -> Tensor:
    """Return the share of a line from the centre that is inside, at most 1.

    ``beyond`` is the reciprocal, below 1 where a line's end is inside.
    """
    share = 1 / beyond.clamp_min(1.0)
    return torch.where(beyond > FLAT, 0.0, share)
