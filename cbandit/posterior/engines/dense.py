"""The *dense* engine: nothing is kept over a set; points are solved for as asked.

For continuous boxes. Only the history and its small system live here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.actions import Actions
from cbandit.errors import CBanditError
from cbandit.posterior.ahead import Coming
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.engines.protocol import Base, Pass, Plan, Seen
from cbandit.posterior.history import Between, History

__all__ = ["Dense"]

PLAN = Plan("dense", "a continuous box: points are solved for as asked")


class Dense(Base):
    """The history alone; its ``at`` answers for any point."""

    by_features = True

    def __init__(
        self,
        actions: Actions,
        covariance: Covariance,
        trials: int,
        functions: int,
        device: torch.device,
        plan: Plan = PLAN,
    ) -> None:
        self.actions, self.plan = actions, plan
        self._kept = covariance, trials, device
        self.clear(functions)

    def clear(self, functions: int) -> None:
        """Forget everything, and keep as many functions from now on."""
        covariance, trials, device = self._kept
        self.functions = functions
        # an empty set's means, for the functions to be split like those of others
        nothing = torch.zeros(trials, functions, 0, dtype=torch.float64, device=device)
        self.mean = nothing
        self.history = History(covariance, trials, functions, device)

    def append(self, seen: Seen) -> None:
        """Condition on one more observation."""
        slots, _ = self.history.place(seen.keys, seen.x, seen.wanted)
        if self.history.used:
            self.history.add(slots, seen.precision, seen.values, usual=seen.usual)
            self.history.count(slots, seen.wanted, 1)

    def forget(self, seen: Seen) -> None:
        """The reverse of :meth:`append`."""
        slots, _ = self.history.place(seen.keys, seen.x, seen.wanted)
        if self.history.used:
            self.history.add(slots, seen.precision, seen.values, sign=-1)
            self.history.count(slots, seen.wanted, -1)
            self.history.release()

    def observe(self, rows: Sequence[Seen]) -> None:
        """Condition on many observations."""
        for seen in rows:
            self.append(seen._replace(usual=False))

    def correct(
        self, keys: Sequence[Hashable], change: Tensor, wanted: Sequence[bool]
    ) -> None:
        """Add ``change (T, F)``, of precision x target, at ``keys``."""
        nowhere = self.history.points.new_zeros(len(keys), self.actions.dim)
        slots, _ = self.history.place(keys, nowhere, wanted)
        self.history.correct(devices.put(slots, change.device), change)

    def revise(self, weighted: Tensor) -> None:
        """Replace all targets: ``weighted (T, F, U)`` sums of precision x target."""
        self.history.revise(weighted)

    def refresh(self) -> None:
        """Nothing drifts here."""

    def begin(
        self, streams: Streams | None = None, ahead: Coming | None = None
    ) -> Pass:
        """An error: a box has no actions to pass over."""
        raise CBanditError(f"{self.actions!r} has no numbered actions")

    def covariances(self, to: Tensor) -> Between:
        """An error: a box has no numbered actions."""
        raise CBanditError(f"{self.actions!r} has no numbered actions")

    def gain(self) -> Tensor:
        """The realised information gain, ``(T,)``."""
        return self.history.system().gain()

    def bytes(self) -> int:
        """Bytes that the system takes."""
        return 8 * self.history.used**2 * self.history.trials
