"""The engine: keeps the posterior of functions that share their observations.

An engine is the one thing of the posterior that changes in place. :class:`Engine` keeps
its history alone and solves for every point as it is asked, which is all that a box
needs. Other engines keep arrays over a set beside the history. They derive from it and
replace what their arrays do better: :meth:`Engine.blocks` at least, and ``append``,
``forget``, ``refresh`` and ``clear`` where arrays follow the history.

``history.stands_for`` is the number of the log whose observations the arrays hold, and
``None`` while they are written: whoever uses an engine compares the two and, where they
differ, clears it and has it observe. The caller takes care of it around ``append``,
``forget``, ``observe``, ``correct``, ``revise`` and ``clear``. An engine does so around
arrays that it writes in other calls, by ``with self.history.writing():``.

An engine owes its history, which others read:

* ``append``: ``place`` the keys, ask ``clashes`` before ``enter`` (where it says yes,
  arrays that were changed one by one are to be computed afresh), then ``enter``;
* ``forget``: ``enter`` with ``sign=-1``; what is solved for is asked after that;
  ``release`` once nothing that waits refers to an emptied slot.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Prior
from cbandit.posterior.draws.features import Pathwise
from cbandit.posterior.draws.roots import pivoted_root
from cbandit.posterior.look import Best, Block
from cbandit.posterior.observations import Between, Coming, History, Update
from cbandit.posterior.units import Scale

Path = Callable[[Tensor], Tensor]
"""A joint draw less its mean: a function ``(T, n, d) -> (T, F, n)`` of points."""

Fused = Callable[..., Best]
"""A backend's pass over the set: it applies observations and finds the best action.

It takes the look, streams or ``None`` and, where the engine ``opens``, outstanding
choices or ``None``.
"""


@dataclass(frozen=True)
class Plan:
    """An engine's name and the reason it was chosen."""

    name: str
    why: str


class Engine:
    """An engine that stores its history alone and solves for every point on request.

    Args:
        prior: the set and the prior over it.
        functions: ``F``, how many functions share their observations.
        plan: the engine's name, and why it was chosen.
    """

    history: History
    functions: int
    first = 0
    """The number of the first function, 0 the reward; it tells apart whose draws."""
    step: int | None = None
    """How many actions a stretch should hold; ``None``: all, because they are few."""
    keeps_all = True
    """Whether every rank stores the whole set, however many share it."""
    keeps_rows = False
    """Whether its bytes are mostly kernel rows, faster to compute than to read."""
    by_features = True
    """Whether joint draws are by random features, which not all kernels have."""
    by_slots = True
    """Whether the history keeps observations by action, in a small system."""
    drifts = False
    """Whether its dtype is so narrow that forgetting leaves errors."""
    light = False
    """Whether a checkpoint leaves its arrays out."""
    opens = False
    """Whether its pass that updates and scores at once takes outstanding choices."""
    stale = False
    """Whether the means in its arrays are of older targets."""

    def __init__(self, prior: Prior, functions: int, plan: Plan) -> None:
        self.prior, self.plan = prior, plan
        self.clear(functions)

    @property
    def fused(self) -> Fused | None:
        """A pass that updates and scores at once; ``None`` if there is none."""
        return None

    def turn(self, t: int) -> None:
        """Look at the beliefs as of round ``t``, where they fade."""

    def noises(self, scale: Scale) -> Tensor:
        """Return the noise variances ``(T, f)`` that were learned, in units."""
        raise CBanditError(
            f"engine={self.plan.name!r} does not learn a noise: take engine='auto'"
        )

    def reframed(self, wanted: Sequence[bool], later: Sequence[Sequence[bool]]) -> bool:
        """Return whether an action of an earlier round changes how all are seen.

        See :meth:`Moments.reframed`.
        """
        return False

    def takes(self, keys: Sequence[Hashable]) -> bool:
        """Return whether it can condition on actions of these names.

        They are numbers in all trials, or in none.
        """
        return True

    def covers(self, stretch: tuple[int, int] | None) -> bool:
        """Return whether it stores this stretch of the set; ``None``: all of it."""
        return True

    def describe(self) -> str:
        """Say which engine it is, and why."""
        return f"{self.plan.name} ({self.plan.why})"

    # -- changes ---------------------------------------------------------------------

    def clear(self, functions: int) -> None:
        """Forget everything; from now on there are ``functions`` functions."""
        prior, self.functions, self.stale = self.prior, functions, False
        self.history = History(prior.covariance, prior.trials, functions, prior.device)

    def place(self, update: Update) -> list[int] | None:
        """Return an observation's slots; ``None`` while no trial has any slot."""
        slots, _ = self.history.place(update.keys, update.x, update.wanted)
        return slots if self.history.used else None

    def append(self, update: Update) -> None:
        """Condition on one more observation."""
        slots = self.place(update)
        if slots is not None:
            self.history.enter(slots, update)

    def forget(self, update: Update) -> None:
        """Remove an observation, by a solve without it."""
        slots = self.place(update)
        if slots is not None:
            self.history.enter(slots, update, -1)
            self.history.release()

    def observe(self, updates: Iterable[Update]) -> None:
        """Condition on many observations, then compute everything afresh."""
        for update in updates:
            slots = self.place(update)
            if slots is not None:
                self.history.enter(slots, update._replace(usual=False))
        self.refresh()

    def correct(self, before: Update, after: Update) -> None:
        """Change the targets of an observation, which differ in nothing else."""
        slots, _ = self.history.place(before.keys, None, before.wanted)
        change = (after.values - before.values) * before.precision.unsqueeze(-1)
        self.history.correct(devices.put(slots, change.device), change)
        self.stale = True

    def revise(self, weighted: Tensor) -> None:
        """Replace all sums of precision times target by ``weighted (T, F, U)``."""
        self.history.revise(weighted)
        self.stale = True

    def split(self, rest: Tensor, apart: Tensor) -> Engine:
        """Keep the functions ``rest``; return an engine of the functions ``apart``."""
        self.settle()
        self.history.stands_for = None
        other = copy.deepcopy(self, {id(part): part for part in self._shared()})
        self._keep(rest)
        other._keep(apart)
        return other

    def _shared(self) -> list[object]:
        """Return the parts that never change, which two engines may share."""
        return [self.prior, self.prior.covariance, self.prior.actions]

    def _keep(self, functions: Tensor) -> None:
        self.functions = len(functions)
        self.history.keep(functions)

    # -- arrays ----------------------------------------------------------------------

    def refresh(self) -> None:
        """Compute all arrays afresh from the history, free of rounding drift."""

    def settle(self) -> None:
        """Apply all waiting observations to the arrays."""

    def make_room(self) -> None:
        """Switch to kernel rows that take less memory, if memory runs short."""

    def bytes(self) -> int:
        """Return the bytes that the arrays take."""
        return 8 * self.history.used**2 * self.prior.trials

    # -- looking ---------------------------------------------------------------------

    def blocks(
        self,
        stretches: Iterable[tuple[int, int]],
        streams: Streams | None = None,
        ahead: Coming | None = None,
    ) -> Iterator[Block]:
        """Yield the stored set block by block; ``stretches`` must cover all of it.

        Waiting observations are applied to a stretch just before it is yielded, so that
        a round reads and writes each number once. A block is valid until the engine
        changes.

        Args:
            stretches: the first action of each and one past its last.
            streams: the random source; with it each block carries a joint draw less its
                mean.
            ahead: outstanding choices; deviations are as if their outcomes had come.
                They may take slots of the history, in which nothing is observed.
        """
        path = None if streams is None else self.path(streams)
        for start, stop in stretches:
            x = self.prior.actions.block(start, stop).double()
            mean, var = self.history.at(x, ahead)
            std = var.clamp_min(0).sqrt_().unsqueeze(1)
            draw = None if path is None else path(x)
            yield Block(start, stop, mean, std, draw)

    def recent(
        self, contexts: Tensor, point: Path, ahead: Coming | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return moments of all blocks of weights, see :meth:`Moments.recent`."""
        raise CBanditError(
            f"engine={self.plan.name!r} has no weights: take engine='weights'"
        )

    def drawn(self, x: Tensor, streams: Streams, functions: int) -> Tensor:
        """Return a joint draw less its mean, ``(T, f, n)``, at points ``(T, n, d)``.

        It is exact, by a root of the posterior covariance of these points.
        """
        x = x.double()
        between, _, _ = self.history.covariances(x)(x)
        root = pivoted_root(between)
        normals = streams.normal(functions, x.shape[-2])
        normals = devices.put(normals, x.device).reshape(-1, functions, x.shape[-2])
        # roots of different ranks use the same last columns, whatever the batch
        return normals[..., -root.shape[-1] :] @ root.mT

    def path(self, streams: Streams) -> Path:
        """Draw from the posterior less its mean, as a function of points."""
        return Pathwise.drawn(self.history, streams, self.functions)

    def points_of(self, index: Tensor) -> Tensor:
        """Return actions by number, ``(n, d)``, or ``(T, n, d)`` if trials differ."""
        actions = self.prior.actions
        if actions.batch_shape:
            index = index.expand(self.prior.trials, -1)
        return actions.at(index)

    def covariances(self, to: Tensor) -> Between:
        """Return posterior covariances with ``to`` as a function of action numbers."""
        of = self.history.covariances(self.points_of(to).double())
        return lambda at: of(self.points_of(at).double())

    def gain(self) -> Tensor:
        """Return the realised information gain, ``(T,)``."""
        return self.history.system().gain()
