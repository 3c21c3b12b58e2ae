"""The calls that every engine answers, wherever it keeps its numbers.

An engine is the one thing here that changes in place. ``history.stands_for`` is the
number of the log whose observations its arrays hold, ``None`` during a change: whoever
uses it compares the two and, where they differ, clears the engine and has it observe.
The caller sets it around ``append``, ``forget``, ``observe``, ``correct``, ``revise``
and ``clear``; the engine does around arrays that it writes in other calls (``settle``,
``refresh``, passes), and puts the number back when they are whole again.

An engine owes its history, which others read (``at``, ``distinct``, ``covariances``):

* ``append``: ``place`` the keys; ask ``clashes`` before ``add`` (where it says yes,
  arrays that were changed one by one are to be computed afresh); ``add``; ``count``;
* ``forget``: the same with ``sign=-1`` and ``count(-1)``, and what is solved for is
  asked after that; ``release`` once nothing that waits refers to an emptied slot;
* ``observe``: ``place``, ``add`` and ``count`` for each, then ``refresh``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.posterior.ahead import Coming
from cbandit.posterior.block import Block
from cbandit.posterior.history import Between, History
from cbandit.posterior.look import Best, Look

__all__ = ["Base", "Engine", "Fused", "Pass", "Plan", "Seen"]


@dataclass(frozen=True)
class Plan:
    """An engine's name and the reason it was chosen."""

    name: str
    why: str


class Seen(NamedTuple):
    """An observation of ``F`` functions in ``T`` trials, in the engine's units.

    Args:
        keys: the actions' names, one a trial: a number where the action is one of the
            set's, else anything hashable (:meth:`cbandit.Actions.keys`).
        x: ``(T, d)``.
        values: ``(T, F)``, float64; kept as it is, so nobody writes to it.
        precision: ``(T,)``, likewise; 0 in trials that are not ``wanted``.
        wanted: trials that saw something.
        usual: whether the precision is the belief's own, the same in all such calls.
    """

    keys: Sequence[Hashable]
    x: Tensor
    values: Tensor
    precision: Tensor
    wanted: Sequence[bool]
    usual: bool = False


Fused = Callable[[Look, Streams | None], Best]
"""One pass of a backend over the set: what was told is applied, the best one found."""


class Pass(Protocol):
    """One pass over the set, stretch by stretch; the stretches make up all of it.

    What was told is applied to a stretch just before it is handed out, so that a round
    reads and writes each number once.
    """

    def block(self, start: int, stop: int) -> Block:
        """The stretch ``start .. stop - 1``, valid until the engine changes."""
        ...

    def end(self) -> None:
        """Say that every stretch has been handed out."""
        ...


class Engine(Protocol):
    """The posterior of ``F`` functions that share their observations, ``T`` trials.

    :mod:`cbandit.posterior.engines.choice` names the engines and makes them.
    """

    plan: Plan
    history: History
    functions: int
    light: bool
    """Whether a checkpoint leaves its arrays out."""

    @property
    def block(self) -> int | None:
        """Actions that a stretch should hold; ``None``: all, for they are few."""
        ...

    @property
    def keeps_all(self) -> bool:
        """Whether every rank keeps the whole set, however many share it."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """Whether its bytes are mostly kernel rows.

        These are sooner computed than read: a checkpoint leaves them out earlier.
        """
        ...

    @property
    def by_features(self) -> bool:
        """Whether joint draws are by random features, which not all kernels have."""
        ...

    @property
    def drifts(self) -> bool:
        """Whether its dtype is so narrow that forgetting leaves errors."""
        ...

    @property
    def fused(self) -> Fused | None:
        """A round's one pass, where a backend has it."""
        ...

    def takes(self, keys: Sequence[Hashable]) -> bool:
        """Whether it can condition on actions of these names.

        They are of one kind: numbers in all trials, or in none.
        """
        ...

    def covers(self, stretch: tuple[int, int] | None) -> bool:
        """Whether it keeps this stretch of the set; ``None``: the whole."""
        ...

    def append(self, seen: Seen) -> None:
        """Condition on one more observation."""
        ...

    def forget(self, seen: Seen) -> None:
        """The reverse of :meth:`append`, from a solve without the observation."""
        ...

    def observe(self, rows: Sequence[Seen]) -> None:
        """Condition on many observations, then compute everything afresh."""
        ...

    def correct(
        self, keys: Sequence[Hashable], change: Tensor, wanted: Sequence[bool]
    ) -> None:
        """Change targets at ``keys``, which have been observed.

        Args:
            keys: one a trial.
            change: what is added to the sums of precision x target, ``(T, F)``: the
                caller has multiplied it by the precision.
            wanted: trials in which it is not 0.
        """
        ...

    def revise(self, weighted: Tensor) -> None:
        """Replace all targets: ``weighted (T, F, U)`` sums of precision x target."""
        ...

    def clear(self, functions: int) -> None:
        """Forget everything, and keep as many functions from now on."""
        ...

    def refresh(self) -> None:
        """Compute all arrays afresh from the history: no drift is left."""
        ...

    def settle(self) -> None:
        """Bring the arrays up to date with what was told."""
        ...

    def make_room(self) -> None:
        """Change to rows that keep less, where memory runs short and there are any."""
        ...

    def split(self, kept: Tensor, apart: Tensor) -> Engine:
        """Keep some functions; return an engine of the others, with the same data."""
        ...

    def begin(
        self, streams: Streams | None = None, ahead: Coming | None = None
    ) -> Pass:
        """Begin a pass over the set.

        With ``streams``, each block carries a joint draw less its mean; with ``ahead``,
        deviations are those after the choices to come, which may get slots of the
        history in which nothing is observed.
        """
        ...

    def covariances(self, to: Tensor) -> Between:
        """Posterior covariances with ``to``, as a function of actions; by numbers."""
        ...

    def gain(self) -> Tensor:
        """The realised information gain, ``(T,)``."""
        ...

    def bytes(self) -> int:
        """Bytes that the arrays take."""
        ...


class Base:
    """The parts that engines have in common."""

    plan: Plan
    history: History
    functions: int
    mean: Tensor
    light = False
    keeps_all = True

    @property
    def keeps_rows(self) -> bool:
        """There are none."""
        return False

    @property
    def by_features(self) -> bool:
        """Draws are exact in law."""
        return False

    @property
    def block(self) -> int | None:
        """All actions at once."""
        return None

    @property
    def drifts(self) -> bool:
        """Float64 does not."""
        return False

    @property
    def fused(self) -> Fused | None:
        """There is none."""
        return None

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.plan.name

    def takes(self, keys: Sequence[Hashable]) -> bool:
        """Any action can be conditioned on."""
        return True

    def covers(self, stretch: tuple[int, int] | None) -> bool:
        """Always: every rank keeps all of the set, or there is none."""
        return True

    def settle(self) -> None:
        """Nothing waits."""

    def make_room(self) -> None:
        """There is no smaller form."""

    def split(self, kept: Tensor, apart: Tensor) -> Self:
        """Keep some functions; return an engine of the others, with the same data."""
        self.settle()
        self.history.stands_for = None
        shared = {id(each): each for each in self._shared()}
        other = copy.deepcopy(self, shared)
        self._keep(kept)
        other._keep(apart)
        return other

    def _shared(self) -> list[Any]:
        """Parts that never change, which two engines may have in common."""
        return [self.history.covariance]

    def _keep(self, functions: Tensor) -> None:
        self.mean = self.mean[:, functions].contiguous()
        self.functions = len(functions)
        self.history.keep(functions)
