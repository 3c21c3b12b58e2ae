"""The calls that a policy makes to its beliefs, however they are kept."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol, Self

from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.posterior.ahead import Ahead
from cbandit.posterior.block import Block
from cbandit.posterior.look import Best, Look
from cbandit.posterior.parts import Part
from cbandit.posterior.units import Units

__all__ = ["AnyBeliefs"]


class AnyBeliefs(Protocol):
    """Beliefs of ``F`` functions, the reward's first, in ``T`` trials. A value.

    Changes return other beliefs and leave these as they were. :meth:`choose` alone
    may change arrays behind them; whatever was broken off is computed afresh.
    """

    @property
    def functions(self) -> int:
        """``F``."""
        ...

    def absorb(
        self, keys: Sequence[Hashable], x: Tensor, parts: Sequence[Part], t: int = 0
    ) -> Self:
        """Condition on feedback of one choice ``x (T, d)``, made in round ``t``."""
        ...

    def observe(
        self, rows: Sequence[tuple[Sequence[Hashable], Tensor, list[Part]]]
    ) -> Self:
        """Condition on many choices."""
        ...

    def refit(self, due_only: bool = False) -> Self:
        """Fit hyperparameters, where there are any."""
        ...

    def choose(
        self, look: Look, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Best:
        """Apply what was told and return the best action under ``look``."""
        ...

    def has_data(self) -> Tensor:
        """Which trials have a value of which function, ``(T, F)`` bool, on the host."""
        ...

    @property
    def by_default(self) -> bool:
        """Whether all functions have the beliefs of those who know nothing."""
        ...

    def tolerance(self, costs: bool = False) -> Tensor:
        """Scores, with ``costs`` of these alone, closer than this tie, ``(T,)``."""
        ...

    def units(self) -> Units | None:
        """The units of what follows; ``None``: the user's own, for good."""
        ...

    def blocks(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Iterator[Block]:
        """All actions, block by block; nothing changes, wherever one stops."""
        ...

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Means and deviations of all actions in the user's units, ``(T, F, N)``."""
        ...

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Means and standard deviations at any points, ``(T, F, n)`` each."""
        ...

    def gains(self) -> Tensor:
        """Realised information gain of each function, ``(T, F)``."""
        ...

    def noises(self) -> Tensor:
        """Likelihood variances, ``(T, F)``."""
        ...

    def lighten(self, limit: int) -> None:
        """Before a checkpoint: leave arrays out that take more than ``limit`` bytes."""
        ...

    def engines(self) -> list[str]:
        """The names of the engines that keep the beliefs."""
        ...

    def describe(self) -> str:
        """Which engines keep the beliefs, and why."""
        ...
