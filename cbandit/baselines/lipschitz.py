"""Safe sets that grow by Lipschitz constants.

In the safety values ``q_j = threshold_j - cost_j``, with nested bounds ``l <= q <= u``:

* the next safe set: the seed set, and for each cost, intersected,
  ``{x' : l(x) - Lip_j d(x, x') >= 0 for some safe x}``;
* expanders: for each cost, intersected, safe ``x`` with ``u(x) - Lip_j d(x, x') >= 0``
  for some ``x'`` not yet safe.

``d`` is the Euclidean distance, for arms without coordinates the kernel's. Both are
quadratic in the number of actions, and made in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cbandit.baselines.safe_set import SafeSet
from cbandit.errors import CBanditError

__all__ = ["ByLipschitz"]

CHUNK = 1 << 22  # numbers in one temporary
KEPT = 1 << 24  # distances kept rather than computed again


class ByLipschitz:
    """Growth by Lipschitz constants.

    Args:
        actions: the set, finite.
        seed: the seed set, ``(1 or T, N)``.
        lipschitz: a constant for each cost, ``(T, m)``.
        fixed: whether thresholds stay as they are.
        dtype: of bounds.
    """

    def __init__(
        self,
        actions: Any,
        seed: Tensor,
        lipschitz: Tensor,
        fixed: bool,
        dtype: torch.dtype,
    ) -> None:
        self._actions, self._seed, self._fixed = actions, seed, fixed
        self._lipschitz = lipschitz.to(dtype).unsqueeze(-1)
        self._table: Tensor | None = None  # all distances, if they are few

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def grown(self, sets: SafeSet, tau: Tensor) -> SafeSet:
        """Return the sets with all that safe actions vouch for.

        Args:
            sets: bounds and the safe set before.
            tau: thresholds, ``(T, m)``.
        """
        reach = self._reach(sets.slack(tau))  # T x m x N
        reach = reach.masked_fill_(~sets.safe.unsqueeze(1), -math.inf)
        if sets.nearest is None or not self._fixed:
            rows = torch.arange(len(reach), device=reach.device)
        else:
            # what is safe stays safe, and there is nothing new where no safe action
            # reaches the nearest one that is not
            hope = (reach >= sets.nearest.unsqueeze(1)).any(-1).all(-1)
            rows = hope.nonzero().squeeze(-1)
        nearest = sets.nearest
        if nearest is None:
            nearest = torch.empty_like(reach[:, 0])
        elif not len(rows):
            return sets
        seed = self._seed if len(self._seed) == 1 else self._seed[rows]
        grown = torch.empty_like(sets.safe[rows])
        for start, stop, gap in self._distances(rows, reach):
            left = [gap - reach[rows, j].unsqueeze(1) for j in range(reach.shape[1])]
            reached = torch.stack([x.amin(-1) <= 0 for x in left]).all(0)
            grown[:, start:stop] = reached | seed[:, start:stop]
        safe, nearest = sets.safe.clone(), nearest.clone()
        safe[rows] = grown
        for start, stop, gap in self._distances(rows, reach):
            unsafe = gap.masked_fill(grown.unsqueeze(1), math.inf)
            nearest[rows, start:stop] = unsafe.amin(-1)
        return sets._replace(safe=safe, nearest=nearest)

    def expanders(
        self, sets: SafeSet, tau: Tensor, beliefs: Any, mean: Tensor, beta: Tensor
    ) -> Tensor:
        """Return the safe actions whose upper bounds reach a new one, ``(T, N)``.

        Args:
            sets: bounds and the safe set.
            tau: thresholds, ``(T, m)``.
            beliefs: not needed, nor is the rest.
            mean: likewise.
            beta: likewise.
        """
        if sets.nearest is None:
            raise CBanditError("the safe set must have grown before it has expanders")
        reach = self._reach(tau.to(sets.lower).unsqueeze(-1) - sets.lower[:, 1:])
        near = (reach >= sets.nearest.unsqueeze(1)).all(1) & sets.nearest.isfinite()
        return near & sets.safe

    def _reach(self, slack: Tensor) -> Tensor:
        """Return how far an action of this safety vouches for others, ``(T, m, N)``."""
        far = torch.where(slack >= 0, math.inf, -math.inf)
        return torch.where(self._lipschitz > 0, slack / self._lipschitz, far)

    def _distances(
        self, rows: Tensor, like: Tensor
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Yield ``(start, stop, (1 or R, n, N))``: distances of a stretch to all."""
        size, batched = self._actions.size, bool(self._actions.batch_shape)
        count = len(like) if batched else 1
        if self._table is None and count * size * size <= KEPT:
            self._table = self._distance(0, size, like)
        step = max(1, CHUNK // (len(rows) * size))
        for start in range(0, size, step):
            stop = min(start + step, size)
            if self._table is None:
                gap = self._distance(start, stop, like)
            else:
                gap = self._table[:, start:stop]
            yield start, stop, gap[rows] if batched else gap

    def _distance(self, start: int, stop: int, like: Tensor) -> Tensor:
        table = self._actions.covariance
        if table is not None:
            own = table.diagonal(dim1=-2, dim2=-1)
            gap = own[..., start:stop, None] + own.unsqueeze(-2)
            gap = (gap - 2 * table[..., start:stop, :]).clamp_min(0).sqrt()
        else:
            exact = "donot_use_mm_for_euclid_dist"
            every = self._actions.block(0, self._actions.size)
            gap = torch.cdist(every[..., start:stop, :], every, compute_mode=exact)
        found: Tensor = gap.to(like)
        return found if found.dim() == 3 else found.unsqueeze(0)
