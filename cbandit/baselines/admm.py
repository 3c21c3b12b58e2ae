"""The augmented Lagrangian that ADMMBO splits between ``x`` and a copy for each cost.

Pure functions of tensors: the improvements of both steps, and how copies, multipliers
and penalty move from one iteration to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["Split", "feasible_improvement", "improvement"]


def improvement(mean: Tensor, std: Tensor, best: Tensor) -> Tensor:
    """Return the expected improvement of ``N(mean, std^2)`` over ``best``."""
    std = std.clamp_min(1e-12)
    u = (mean - best) / std
    density = torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
    gain: Tensor = std * (density + u * torch.special.ndtr(u))
    return gain


def feasible_improvement(
    mean: Tensor, std: Tensor, distance: Tensor, best: Tensor
) -> Tensor:
    """Return the expected fall of ``1[g > 0] + distance`` below ``best``.

    ``g`` is Gaussian with this mean and deviation.
    """
    share = torch.special.ndtr(mean / std.clamp_min(1e-12))
    room = best - distance
    gain: Tensor = (1 - share) * room.clamp_min(0) + share * (room - 1).clamp_min(0)
    return gain


@dataclass(frozen=True, eq=False)
class Split:
    """Where the alternating directions are, in ``T`` trials.

    Steps are numbered: 0 is the reward's, ``j`` that of cost ``j``.

    Args:
        x: the action of the reward's step, ``(T, d)``.
        z: its copies, one a cost, ``(T, m, d)``.
        before: the copies of the iteration before.
        y: multipliers of ``x = z_j``, ``(T, m, d)``.
        rho: penalty, ``(T,)``.
        weight: ``M``, ``(T,)``.
    """

    x: Tensor
    z: Tensor
    before: Tensor
    y: Tensor
    rho: Tensor
    weight: Tensor

    @classmethod
    def start(cls, corner: Tensor, m: int, rho: Tensor, weight: Tensor) -> Split:
        """Return the start: all at the ``corner`` ``(d,)``, multipliers 0."""
        shape = (len(rho), m, len(corner))
        z = corner.expand(shape).clone()
        x = corner.expand(len(rho), -1).clone()
        return cls(x, z, z, torch.zeros_like(z), rho, weight)

    def of(self, trial: int) -> Split:
        """Return one trial alone."""
        one = slice(trial, trial + 1)
        x, z, before, y = self.x, self.z, self.before, self.y
        rho, weight = self.rho[one], self.weight[one]
        return Split(x[one], z[one], before[one], y[one], rho, weight)

    def value(self, step: int, mean: Tensor, x: Tensor, limit: Tensor | None) -> Tensor:
        """Return what a step maximises, at known means ``(T, n)``.

        Args:
            step: which one.
            mean: of the step's function.
            x: the points, ``(n, d)`` or ``(T, n, d)``.
            limit: the cost's threshold, ``(T, 1)``.
        """
        if limit is None:
            return mean - self._penalty(x)
        return -((mean > limit).double() + self._distance(step, x))

    def gain(
        self,
        step: int,
        mean: Tensor,
        std: Tensor,
        x: Tensor,
        limit: Tensor | None,
        best: Tensor,
    ) -> Tensor:
        """Return the expected improvement of a step over ``best`` ``(T, 1)``."""
        if limit is None:
            return improvement(mean - self._penalty(x), std, best)
        return feasible_improvement(mean - limit, std, self._distance(step, x), -best)

    def _penalty(self, x: Tensor) -> Tensor:
        """Return ``sum_j (rho/2) |x - z_j + y_j/rho|^2``, ``(T, n)``."""
        rho = self.rho.view(-1, 1, 1)
        squares = _squares(self.z - self.y / rho, x)  # T x m x n
        total: Tensor = (rho / 2 * squares).sum(1)
        return total

    def _distance(self, step: int, x: Tensor) -> Tensor:
        """Return ``(rho/2M) |x_hat - z + y_j/rho|^2`` at ``z = x``, ``(T, n)``."""
        rho = self.rho.view(-1, 1)
        target = self.x + self.y[:, step - 1] / rho
        scaled: Tensor = _squares(target.unsqueeze(1), x).squeeze(1)
        scaled *= rho / (2 * self.weight.view(-1, 1))
        return scaled

    def stepped(self, step: int, found: Tensor, going: Tensor) -> Split:
        """Return this after a step that found ``(T, d)``, in trials ``going (T,)``."""
        where = going.unsqueeze(-1)
        if step == 0:
            return replace(self, x=torch.where(where, found, self.x))
        z = self.z.clone()
        z[:, step - 1] = torch.where(where, found, z[:, step - 1])
        return replace(self, z=z)

    def residuals(self) -> tuple[Tensor, Tensor]:
        """Return ``|x - z|`` and ``rho |z - z_before|``, ``(T,)`` each."""
        primal = (self.x.unsqueeze(1) - self.z).flatten(1).norm(dim=-1)
        dual = self.rho * (self.z - self.before).flatten(1).norm(dim=-1)
        return primal, dual

    def iterated(self, going: Tensor) -> Split:
        """Return this after an iteration, in trials ``going (T,)``.

        ``y_j += rho (x - z_j)``; ``rho`` is doubled or halved where the residuals
        differ tenfold.
        """
        gap, (primal, dual) = self.x.unsqueeze(1) - self.z, self.residuals()
        y = self.y + self.rho.view(-1, 1, 1) * gap
        factor = torch.where(primal > 10 * dual, 2.0, 1.0)
        factor = torch.where(dual > 10 * primal, 0.5, factor)
        return replace(
            self,
            before=self.z,
            y=torch.where(going.view(-1, 1, 1), y, self.y),
            rho=torch.where(going, self.rho * factor, self.rho),
        )


def _squares(a: Tensor, x: Tensor) -> Tensor:
    """Return ``|a - x|^2``, ``(T, k, n)``, of ``a (T, k, d)``; ``x`` as above."""
    mode = "donot_use_mm_for_euclid_dist"  # exact where points coincide
    if x.dim() == 3:
        own: Tensor = torch.cdist(a, x, compute_mode=mode).square()
        return own
    flat: Tensor = torch.cdist(a.flatten(0, 1), x, compute_mode=mode).square()
    return flat.view(*a.shape[:2], -1)
