"""The state of a stage-wise policy, and how its model learns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from cbandit.policies.safe.known import Known

__all__ = ["COSTS", "EVERY", "REWARD", "Block", "Model", "Part", "Stage"]

Block = tuple[int, Tensor, Tensor]  # first action, means (T, F, n), spreads (T, F, n)

REWARD, COSTS, EVERY = slice(0, 1), slice(1, None), slice(None)


class Part(NamedTuple):
    """Outcomes of some functions.

    Args:
        functions: which ones, 0 the reward.
        y: ``(T, f)``.
        weight: how much each counts, ``(T, f)``; ``None``: all count once.
    """

    functions: slice
    y: Tensor
    weight: Tensor | None = None


class Model(Protocol):
    """How a stage-wise policy learns: linear functions, or arms apart."""

    def begun(self, safe: Known, ratio: Tensor | None, multiplier: Tensor) -> Stage:
        """Return the state before the first round; see :class:`Stage`."""

    def added(
        self, seen: Any, x: Tensor, arm: Tensor | None, parts: Sequence[Part]
    ) -> Any:
        """Return ``seen`` after one more observation.

        Args:
            seen: what was observed so far.
            x: the action, ``(T, d)``.
            arm: its number in the policy's set, ``(T,)``, if it is of that.
            parts: what came of it.
        """

    def numbers(self, points: Tensor) -> Tensor | None:
        """Return the numbers of the actions at ``(T, n, d)``, if they are needed."""

    def has_data(self, seen: Any) -> Tensor:
        """Return of which actions all functions are known, ``(T, 1 or N)`` bool."""

    def believed(self, seen: Any) -> Iterator[Block]:
        """Yield estimates and spreads over the policy's own set."""


class Stage(NamedTuple):
    """The state of a stage-wise policy between two rounds.

    Args:
        seen: the observations, as the model keeps them.
        safe: the safe action's reward and costs as far as known.
        ratio: ``2 (r_max - r0) / (tau_j - c0_j)``, ``(T, m)``, once it stays the same.
        multiplier: the dual solution of the last programme, ``(T, m)``; 0 without one.
        longest: of linear policies, the greatest length of an action so far,
            ``(1 or T,)``.
        warned: of linear policies, whether it has said that it may never leave the safe
            action.
    """

    seen: Any
    safe: Known
    ratio: Tensor | None
    multiplier: Tensor
    longest: Any = None
    warned: bool = False
