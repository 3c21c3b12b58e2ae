"""The small linear system behind a posterior, kept factored as observations come.

An *entry* is an action that was tried, with the precision ``p`` of its outcome. For the
entries, with ``R = diag(sqrt p)`` and their prior covariance ``K``, everything follows
from one Cholesky factor of

    B = I + R K R        since   (K + P^-1)^-1 = R B^-1 R,

which stays exact with empty entries (``p = 0``): they pad trials that saw less, and
leave room to grow. A new observation adds an entry, even at an action tried before: it
borders the factor by a row in ``O(E^2)``, where a new factor takes ``O(E^3)``, with the
same arithmetic. Weights of entries at one action add up. Always float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices

ROOM = 16
LEAST = 1e-15  # share of a prior variance, times the entries, that rounding may cost


class Spot(NamedTuple):
    """The posterior at one slot for each trial, with the system's half solve.

    Args:
        slot: ``(T,)``.
        half: ``L^-1 R k``, ``(T, E, 1)``.
        var: the variance, ``(T,)``, never negative.
        mean: the mean less the prior's, ``(T, F)``.
    """

    slot: Tensor
    half: Tensor
    var: Tensor
    mean: Tensor


class System:
    """The factored system of ``T`` trials, ``E`` entries and ``F`` functions.

    Args:
        gram: the prior covariance of the entries, ``(T, E, E)``.
        root: the square roots of their precisions, ``(T, E)``.
        target: outcomes less the prior mean, times ``root``, ``(T, E, F)``.
        slots: the slot of each entry, ``(T, E)``.
    """

    def __init__(
        self, gram: Tensor, root: Tensor, target: Tensor, slots: Tensor
    ) -> None:
        self.factor, self.root = _factored(gram, root)
        self.slots, self.count = slots, root.shape[-1]
        if self.root is not root:
            less = torch.where(root > 0, self.root / root, 0.0)
            target = target * less.unsqueeze(-1)
        self.aim(target)

    def aim(self, target: Tensor) -> None:
        """Replace the targets (already times ``root``) but keep the factor."""
        self._half = torch.linalg.solve_triangular(self.factor, target, upper=False)
        self._alpha: Tensor | None = None

    @property
    def alpha(self) -> Tensor:
        """The weights of the entries in the posterior mean, ``(T, E, F)``."""
        if self._alpha is None:
            self._alpha = self._back(self._half)
        return self._alpha

    def gain(self) -> Tensor:
        """Return ``1/2 log det B``, the realised information gain, ``(T,)``."""
        gain: Tensor = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return gain

    def entries(self, values: Tensor) -> Tensor:
        """Return ``values (T, U, k)`` of slots for each entry, ``(T, E, k)``."""
        return values.gather(1, self._at(values.shape[-1]))

    def by_slot(self, values: Tensor, used: int) -> Tensor:
        """Sum ``values (T, E, k)`` of entries by slot, ``(T, U, k)``."""
        sums = values.new_zeros(len(values), used, values.shape[-1])
        return sums.scatter_add_(1, self._at(values.shape[-1]), values)

    def _at(self, columns: int) -> Tensor:
        return self.slots.unsqueeze(-1).expand(-1, -1, columns)

    def weights(self, used: int) -> Tensor:
        """Return weights ``(T, U, F)``; the posterior mean is ``k_U(x)^T weights``."""
        return self.by_slot(self.alpha, used)

    def half(self, right: Tensor) -> Tensor:
        """Return ``L^-1 R right`` of values by entry, ``(T, E, k)``."""
        scaled = right * self.root.unsqueeze(-1)
        half: Tensor = torch.linalg.solve_triangular(self.factor, scaled, upper=False)
        return half

    def solve(self, right: Tensor) -> Tensor:
        """Return ``(K + P^-1)^-1 right``, from and to values by slot, ``(T, U, k)``."""
        return self.by_slot(self.weigh(right), right.shape[1])

    def weigh(self, right: Tensor) -> Tensor:
        """Return ``(K + P^-1)^-1 right`` by entry ``(T, E, k)``, of values by slot."""
        return self._back(self.half(self.entries(right)))

    def _back(self, half: Tensor) -> Tensor:
        solved: Tensor = torch.linalg.solve_triangular(self.factor.mT, half, upper=True)
        return solved.mul_(self.root.unsqueeze(-1))

    def at(self, slot: Tensor, row: Tensor) -> Spot:
        """Return the posterior at ``slot (T,)``; ``row`` has its prior covariances."""
        half = self.half(self.entries(row.unsqueeze(-1)))
        prior = row.gather(-1, slot.unsqueeze(-1))[:, 0]
        var = (prior - half.square().sum((-2, -1))).clamp_min(0)
        return Spot(slot, half, var, (half * self._half).sum(1))

    def column(self, spot: Spot, used: int) -> Tensor:
        """Return ``column (T, U)``; ``k_U^T column`` is the covariance with a spot."""
        column = self.by_slot(self._back(spot.half), used)[..., 0].neg_()
        one = torch.ones_like(spot.var).unsqueeze(-1)
        return column.scatter_add_(1, spot.slot.unsqueeze(-1), one)

    def border(self, spot: Spot, precision: Tensor, values: Tensor) -> None:
        """Add an entry with outcomes ``values (T, F)`` of ``precision (T,)``.

        ``spot`` must come from this system in its current state.
        """
        root = precision.clamp_min(0).sqrt()
        corner = (1 + root.square() * spot.var).sqrt()
        gap = (values - spot.mean) * (root / corner).unsqueeze(-1)
        if self.count == self.root.shape[-1]:
            self._grow()
        at = self.count
        self.factor[:, at, :at] = spot.half[:, :at, 0] * root.unsqueeze(-1)
        self.factor[:, at, at] = corner
        self.root[:, at] = root
        self.slots[:, at] = spot.slot
        self._half[:, at] = gap
        self.count, self._alpha = at + 1, None

    def _grow(self) -> None:
        """Add empty entries, to be filled by later observations."""
        more = max(ROOM, self.count // 16)
        pad = torch.nn.functional.pad
        self.factor = pad(self.factor, (0, more, 0, more))
        self.factor.diagonal(dim1=-2, dim2=-1)[:, self.count :] = 1
        self.root, self.slots = pad(self.root, (0, more)), pad(self.slots, (0, more))
        self._half = pad(self._half, (0, 0, 0, more))


def _factored(gram: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor of ``B``, and ``root``, reduced if rounding requires it.

    ``B`` is at least ``I`` up to the rounding of ``gram``. If the noise is less than
    that rounding, the factorisation may fail. On CUDA, where detecting a failure would
    mean waiting, the noise is always raised that far.
    """
    if not gram.is_cuda:
        factor, failed = torch.linalg.cholesky_ex(_unit_plus(gram, root))
        if not bool(failed.any()):
            return factor, root
    least = LEAST * max(1, root.shape[-1]) * gram.diagonal(dim1=-2, dim2=-1)
    root = torch.minimum(root, least.rsqrt())
    return devices.cholesky(_unit_plus(gram, root)), root


def _unit_plus(gram: Tensor, root: Tensor) -> Tensor:
    b = gram * root.unsqueeze(-1) * root.unsqueeze(-2)
    b.diagonal(dim1=-2, dim2=-1).add_(1)
    return b
