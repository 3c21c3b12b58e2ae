"""The *dense* engine: nothing is kept over a set; points are solved for as asked.

For continuous boxes. Only the history and its small system live here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.actions import Box
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.draws.paths import Features, correction
from cbandit.posterior.history import History

__all__ = ["Dense"]


class Dense:
    """What was observed; ``history.at`` answers for any point."""

    name = "dense"

    def __init__(
        self,
        actions: Box,
        covariance: Covariance,
        trials: int,
        functions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.actions, self.functions = actions, functions
        self.history = History(covariance, trials, functions, device)
        # nothing over a set: an empty one, which splitting may cut
        self.mean = torch.zeros(
            trials, functions, 0, dtype=torch.float64, device=device
        )

    def append(
        self,
        keys: Sequence[Hashable],
        x: Tensor,
        values: Tensor,
        precision: Tensor,
        wanted: Sequence[bool],
    ) -> None:
        """Condition on ``values (T, F)`` seen with ``precision (T,)`` at ``x``."""
        slots, _ = self.history.place(keys, x, wanted)
        if self.history.used:
            self.history.add(slots, precision, values)
            self.history.count(slots, wanted, 1)

    def forget(
        self,
        keys: Sequence[Hashable],
        x: Tensor,
        values: Tensor,
        precision: Tensor,
        wanted: Sequence[bool],
    ) -> None:
        """The reverse of :meth:`append`."""
        slots, _ = self.history.place(keys, x, wanted)
        if self.history.used:
            self.history.add(slots, precision, values, sign=-1)
            self.history.count(slots, wanted, -1)
            self.history.release()

    def observe(
        self,
        keys: Sequence[Sequence[Hashable]],
        x: Tensor,
        values: Tensor,
        precision: Tensor,
        wanted: Sequence[Sequence[bool]],
    ) -> None:
        """Condition on many rows."""
        for row, names in enumerate(keys):
            self.append(names, x[row], values[row], precision[row], wanted[row])

    def correct(
        self, keys: Sequence[Hashable], change: Tensor, wanted: Sequence[bool]
    ) -> None:
        """Change targets at ``keys`` by ``change (T, F)``, times their precision."""
        nowhere = self.history.points.new_zeros(len(keys), self.actions.dim)
        slots, _ = self.history.place(keys, nowhere, wanted)
        self.history.correct(devices.put(slots, change.device), change)

    def revise(self, weighted: Tensor) -> None:
        """Replace all targets: ``weighted (T, F, U)`` sums of precision x target."""
        self.history.revise(weighted)

    def refresh(self) -> None:
        """Nothing drifts here."""

    def settle(self) -> None:
        """Nothing waits here."""

    def gain(self) -> Tensor:
        """The realised information gain, ``(T,)``."""
        return self.history.system().gain()

    def draw(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """A posterior draw less its mean: a function of ``x (T, n, d)``,
        differentiable.

        The prior is approximated by random features, the update is exact.
        """
        history = self.history
        points = history.points[:, : history.used]
        features = Features(history.covariance, streams, self.functions)
        weights = correction(history, features(points), streams)

        def path(x: Tensor) -> Tensor:
            cross = history.covariance.cross(x, points)
            return features(x) - (cross @ weights).mT

        return path

    def bytes(self) -> int:
        """What the arrays take."""
        return 8 * self.history.used**2 * self.history.trials
