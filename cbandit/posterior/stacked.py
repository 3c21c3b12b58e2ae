"""Posteriors of several functions at any points, in one pass.

A search on a box asks for few points, hundreds of times a round, and nothing is
observed meanwhile. What does not depend on the points is prepared once, and functions
whose kernels are of one kind are computed side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit_kernels import kernel_matrix_ref

if TYPE_CHECKING:
    from cbandit.posterior.group import Group

__all__ = ["Stacked", "stackable"]


def stackable(groups: Sequence[Group]) -> bool:
    """Whether all kernels are one closed form of one kind, over as many slots.

    Of coordinates as they are: :class:`Stacked` scales and shifts them, no more.
    """
    of = [group.covariance for group in groups]
    kinds = {each.kinds if each.forms and not each.bent else () for each in of}
    used = {group.engine.history.system().root.shape for group in groups}
    functions = {len(group.functions) for group in groups}
    alike = len(kinds) == len(used) == len(functions) == 1
    return alike and len(kinds.pop()) == 1 and used.pop()[-1] > 0


class Stacked:
    """Means and standard deviations of ``G`` groups of functions, as of now.

    Args:
        groups: which, see :func:`stackable`.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        order = [f for group in groups for f in group.functions]
        back = [order.index(f) for f in range(len(order))]
        self._back = devices.put(back, groups[0].device)
        self._kind = groups[0].covariance.kinds[0]
        rates, origins, places, halves, amplitudes = [], [], [], [], []
        weights, shifts = [], []
        trials = groups[0].trials
        for group in groups:
            covariance, history = group.covariance, group.engine.history
            system = history.system()
            zero = system.root.new_zeros(1, covariance.dim)
            ends = [covariance.scaled(at)[0] for at in (zero, zero + 1)]
            origins.append(ends[0].expand(trials, 1, -1))
            rates.append((ends[1] - ends[0]).expand(trials, 1, -1))
            points = covariance.scaled(history.places(system))[0]
            places.append(points.expand(trials, -1, -1))
            eye = torch.diag_embed(system.root)
            halves.append(
                torch.linalg.solve_triangular(system.factor, eye, upper=False)
            )
            weight, shift = group.scale.weights(system.alpha)
            weights.append(weight)
            shifts.append(shift)
            ones = torch.ones(trials, 1, 1, dtype=torch.float64, device=zero.device)
            amplitudes.append(covariance.times(ones).squeeze(-1))
        self._rates, self._origins = torch.stack(rates), torch.stack(origins)
        self._places, self._halves = torch.stack(places), torch.stack(halves)
        self._amplitude = torch.stack(amplitudes).unsqueeze(-1)  # G x T x 1 x 1
        self._weights = torch.stack(weights) * self._amplitude
        self._halves = self._halves * self._amplitude
        self._shift = torch.stack(shifts).unsqueeze(-1)  # G x T x f x 1

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both ``(T, F, n)`` in units, of points ``(T, n, d)``."""
        z = self._origins + self._rates * x.double()
        cross = kernel_matrix_ref(z, self._places, self._kind).mT
        mean = self._weights @ cross + self._shift
        half = self._halves @ cross
        prior = self._amplitude.squeeze(-1)
        if self._kind == "linear":
            prior = prior * z.square().sum(-1)
        var = prior - half.square().sum(-2)
        # the floor keeps gradients finite where nothing is uncertain
        std = var.clamp_min(1e-300).sqrt().unsqueeze(-2).expand_as(mean)
        return self._ordered(mean), self._ordered(std)

    def _ordered(self, values: Tensor) -> Tensor:
        return values.transpose(0, 1).flatten(1, 2)[:, self._back]
