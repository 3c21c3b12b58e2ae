"""The engine, which keeps the posterior of functions observed together.

An engine is a cache of a log of observations. Only engines change in place.
:class:`Engine` keeps its history alone and solves for points on request, which is all
that a box needs. Other engines also keep arrays over a set. They derive from it and
replace what their arrays do better: :meth:`Engine.blocks` at least, and ``add``,
``remove``, ``refresh`` and ``clear`` if arrays follow the history. An engine that
approximates says so by ``solves``.

:meth:`Engine.catch_up` is the one place that knows whether arrays are current. It is
called before a look, and takes the steps that the log has made since: rows that were
added or removed, and targets that changed. All else is a rebuild from the rows, also
what comes after an interrupt: if an engine writes arrays in other calls, it does so
inside ``with self.history.writing():``.

An engine must keep its history up to date, as others read it:

* ``add``: ``place`` the keys, ask ``clashes`` before ``enter`` (if it is true,
  compute arrays that are changed one by one afresh), then ``enter``;
* ``remove``: ``enter`` with ``sign=-1``, then solve; ``release`` once no change that
  is still to be applied refers to an emptied slot;
* ``aim`` and ``aim_all`` set ``stale``: the next look computes the means anew.

An engine that computes its arrays at each look from :meth:`History.merged`, the
observations by action, inherits all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.log import warn
from cbandit._core.randomness import Streams
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Prior
from cbandit.posterior.digits import LIMITS, Error, Kept, Limits, compare
from cbandit.posterior.draws.features import Pathwise
from cbandit.posterior.draws.roots import pivoted_root
from cbandit.posterior.history import Between, History, add_up
from cbandit.posterior.log import Log, Observation, Step, Update
from cbandit.posterior.look import Best, Block
from cbandit.posterior.pending import Coming
from cbandit.posterior.units import Scale

Path = Callable[[Tensor], Tensor]
"""A joint draw less its mean: a function ``(T, n, d) -> (T, F, n)`` of points."""

Fused = Callable[..., Best]
"""A backend's pass over the set: it applies observations and finds the best action.

It takes the look, then streams or ``None``, and if the engine ``opens``, outstanding
choices or ``None``.
"""


class Dictionary(NamedTuple):
    """How the sketch engine draws its dictionary.

    Args:
        oversampling: ``q``: an observation enters it with the chance ``q var / lam``.
        seed: the policy's seed.
        trials: the numbers of the policy's trials; ``None``: no trials axis.
        noise: ``lam``, ``(T,)``; a group sets it.
    """

    oversampling: float
    seed: int
    trials: range | None
    noise: Tensor


@dataclass(frozen=True)
class Plan:
    """An engine's name, the reason it was chosen, and a sketch's dictionary."""

    name: str
    why: str
    dictionary: Dictionary | None = None


class Engine:
    """An engine that stores only its history and solves for points on request.

    Args:
        prior: the set and the prior over it.
        functions: ``F``, how many functions share their observations.
        plan: the engine's name and the reason for it.
    """

    history: History
    functions: int
    first = 0
    """The number of the first function, 0 the reward; it separates engines' draws."""
    step: int | None = None
    """How many actions a stretch should hold; ``None``: all, as there are few."""
    keeps_all = True
    """Whether every rank stores the whole set, even if ranks share it."""
    keeps_rows = False
    """Whether most of its bytes are kernel rows, faster to compute than to read."""
    by_features = True
    """Whether joint draws use random features, which not all kernels have."""
    solves = True
    """Whether answers are the history's, exactly. An engine whose are not replaces
    ``at``, ``covariances``, ``path``, ``drawn`` and ``gain`` together."""
    by_slots = True
    """Whether the history keeps observations by action, in a small system."""
    dtype = torch.float64
    """The dtype in which arrays change, if it keeps arrays."""
    SUREST = 64  # tried actions at which arrays are checked
    OTHERS = 32  # and others, spread over the set
    _changes = 0  # of the arrays
    _due = 0  # the change after which arrays are checked next
    LASTING = 4  # checks in a row that need the last means, before a warning
    FAR = 1.0  # true deviations by which arrays may be off at the first after a rebuild
    _strained = 0  # such checks
    _unlikely = False  # whether the last check was of a rebuild, which needed them too
    _warned = False
    light = False
    """Whether a checkpoint leaves its arrays out; :meth:`Beliefs.lighten` sets it."""
    opens = False
    """Whether its pass that updates and scores takes outstanding choices."""
    stale = False
    """Whether the means in its arrays belong to earlier targets."""
    version: tuple[int, int] | None = None
    """The version of the log that its arrays hold; ``None``: of none for certain."""
    rebuilds = 0
    """How often it was computed from a log with data."""
    _blank = True  # whether it has never held data
    _removals = 0  # in a narrow dtype each leaves a rounding error

    def __init__(self, prior: Prior, functions: int, plan: Plan) -> None:
        self.prior, self.plan = prior, plan
        self.clear(functions)

    @property
    def fused(self) -> Fused | None:
        """A pass that updates and scores; ``None`` if there is none."""
        return None

    def turn(self, t: int) -> None:
        """Set the round for which beliefs are read, if data fade."""

    def noises(self, scale: Scale) -> Tensor:
        """Return the learned noise variances ``(T, f)``, in units."""
        raise CBanditError(
            f"engine={self.plan.name!r} does not learn a noise: take engine='auto'"
        )

    def reframed(self, wanted: Sequence[bool], later: Sequence[Sequence[bool]]) -> bool:
        """Return whether an action of an earlier round changes how inputs are scaled.

        See :meth:`Moments.reframed`.
        """
        return False

    def takes(self, keys: Sequence[Hashable]) -> bool:
        """Return whether it can condition on actions with these keys.

        The keys are numbers in all trials, or in none. If it cannot, the group goes on
        with engine "factor". Outstanding choices may have keys of either kind.
        """
        return True

    def covers(self, stretch: tuple[int, int] | None) -> bool:
        """Return whether it stores this stretch of the set; ``None``: all of it."""
        return True

    @property
    def limits(self) -> Limits:
        """The limits of the arrays' dtype."""
        return LIMITS[self.dtype]

    @property
    def drifts(self) -> bool:
        """Whether its dtype is so narrow that forgetting leaves rounding errors."""
        return self.dtype != torch.float64

    def describe(self) -> str:
        """Return the engine's name and the reason for it, in words."""
        return f"{self.plan.name} ({self.plan.why})"

    # -- the log ---------------------------------------------------------------------

    def catch_up(
        self,
        log: Log,
        functions: int,
        update: Callable[[Observation], Update],
        mixed: bool,
    ) -> None:
        """Bring the arrays in line with a log.

        Args:
            log: the observations.
            functions: how many functions they are of.
            update: returns a row of the log as an engine takes it.
            mixed: whether some of them have a noise of their own.
        """
        held, wanted = self.version, log.version
        if held == wanted and self.history.whole:
            return
        self.version = None  # an interrupt leads to a rebuild
        steps = log.since(held) if self.history.whole else None
        if steps is None or functions != self.functions or not self._take(steps, mixed):
            self._rebuild(log, functions, update)
        elif self.drifts and self._removals > len(log):
            self.refresh()
            self._removals = 0
        self.version = wanted
        log.taken()

    def _take(self, steps: Sequence[Step], mixed: bool) -> bool:
        """Take steps of the log; return whether that was possible without a loss."""
        self._blank = self._blank and not steps
        for call, given in steps:
            if mixed and call == "remove" and self.drowns(*given):
                return False
            getattr(self, call)(*given)
            self._removals += call == "remove"
        return True

    def _rebuild(
        self, log: Log, functions: int, update: Callable[[Observation], Update]
    ) -> None:
        """Compute everything from a log."""
        blank = self._blank and self.history.whole and functions == self.functions
        self._blank, self._removals = False, 0
        if not blank:
            sharpness = self.history.sharpness
            self.clear(functions)
            self.history.sharpness = sharpness  # saves waiting for the device again
        if len(log):
            self.rebuilds += 1
            self.add_all([update(row) for row in log])
        self._blank = not len(log)

    def drowns(self, update: Update) -> bool:
        """Return whether an observation is too precise to be subtracted.

        That would leave mostly rounding errors of the others of its action.
        """
        slots, _ = self.history.place(update.keys, update.x, update.wanted)
        return self.history.drowns(slots, update.precision, update.wanted)

    # -- changes ---------------------------------------------------------------------

    def clear(self, functions: int) -> None:
        """Forget everything; from now on there are ``functions`` functions."""
        prior, self.functions, self.stale = self.prior, functions, False
        of = prior.covariance, prior.trials, functions, prior.device
        self.history = History(*of, dtype=self.dtype)

    def place(self, update: Update) -> list[int] | None:
        """Return an observation's slots; ``None`` while no trial has any slot."""
        slots, _ = self.history.place(update.keys, update.x, update.wanted)
        return slots if self.history.used else None

    def add(self, update: Update) -> None:
        """Condition on one more observation."""
        slots = self.place(update)
        if slots is not None:
            self.history.enter(slots, update)

    def remove(self, update: Update) -> None:
        """Remove an observation by solving without it."""
        slots = self.place(update)
        if slots is not None:
            self.history.enter(slots, update, -1)
            self.history.release()

    def add_all(self, updates: Sequence[Update]) -> None:
        """Condition on many observations, then compute everything afresh."""
        for update in updates:
            slots = self.place(update)
            if slots is not None:
                self.history.enter(slots, update._replace(usual=False))
        self._refresh_checked()

    def aim(self, before: Update, after: Update) -> None:
        """Change the targets of an observation; all else must be equal."""
        slots, _ = self.history.place(before.keys, None, before.wanted)
        change = (after.values - before.values) * before.precision.unsqueeze(-1)
        self.history.correct(devices.put(slots, change.device), change)
        self.stale = True

    def aim_all(self, updates: Sequence[Update]) -> None:
        """Change the targets of all observations; all else must be equal."""
        history, slots, changes = self.history, [], []
        for update in updates:
            slots.append(history.place(update.keys, update.x, update.wanted)[0])
            changes.append(update.values * update.precision.unsqueeze(-1))
        weighted = torch.zeros_like(history.weighted)
        add_up(weighted.mT, slots, torch.stack(changes))
        history.revise(weighted[..., : history.used])
        self.stale = True

    # -- arrays ----------------------------------------------------------------------

    def refresh(self) -> None:
        """Compute all arrays afresh from the history, free of rounding drift."""

    def settle(self) -> None:
        """Apply all observations that were collected to the arrays."""

    # -- digits ----------------------------------------------------------------------

    def check(self, fresh: bool = False) -> None:
        """Compare arrays with a float64 solve; mend them if they are off.

        In a narrow dtype a warning says once what would help: if they stay off, if they
        need the last means again and again, or if a rebuild needed them and the rounds
        since have led off by a whole deviation, so that choices were not the belief's.

        Args:
            fresh: whether the arrays have just been computed afresh.
        """
        found = error = self.error()
        left = list(self._mends())
        if fresh:
            left = left[-1:]
        while error.excess > 1 and left:
            left.pop(0)()
            error = self.error()
        strained = self.drifts and found.excess > 1 and not left
        far = self._unlikely and strained and found.deviations > self.FAR
        self._unlikely = fresh and strained
        self._strained = self._strained + 1 if strained and not fresh else 0
        lasting = error.excess > 1 or self._strained >= self.LASTING
        if self._warned or not (self.drifts and (lasting or far)):
            return
        self._warned = True
        warn(
            f"beliefs in {str(self.dtype).removeprefix('torch.')} are off by "
            f"{found.deviations:.2g} standard deviations where an action was tried: "
            "outcomes that differ far more than the belief's noise= says need "
            "dtype='float64', or a larger noise=",
            RuntimeWarning,
        )

    def error(self) -> Error:
        """Return how far arrays are off at the surest actions and at some others."""
        points = self._checked()
        if points is None:
            return Error(0.0, 0.0)
        (x, kept), true = points, Kept(*self._exact(points[0]))
        prior = self.prior.covariance.variance(x).expand(true.var.shape)
        return compare(kept, true, prior, self.limits)

    def _mends(self) -> Iterable[Callable[[], None]]:
        """Return what may help if arrays are off, the cheapest first."""
        return [self.refresh]

    def _refresh_checked(self) -> None:
        """Compute all arrays afresh, and check them if their dtype is narrow."""
        self.refresh()
        if self.drifts:
            self.check(fresh=True)

    def _changed(self) -> None:
        """Count a change of the arrays; check them if it is time."""
        self._changes += 1
        if self._changes < max(self._due, self.limits.first):
            return
        self.check()
        wait = min(self._changes, self.limits.every)
        if self._strained and not self._warned:
            wait = self.limits.first  # see soon whether it lasts
        elif self._strained:
            wait += self._changes  # the last means may cost as much as many rounds
        self._due = self._changes + wait

    def _checked(self) -> tuple[Tensor, Kept] | None:
        """Return points ``(T, k, d)`` to check, float64, and the arrays' moments there.

        ``None``: nothing is kept, or nothing was told.
        """
        return None

    def _with_others(self, tried: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of ``tried (T, k)`` and of other actions, and points."""
        first, last = self.prior.ends
        count = min(self.OTHERS, last - first)
        others = torch.arange(count) * ((last - first) // count) + 7919 * self._changes
        others = (others % (last - first) + first).expand(len(tried), -1)
        index = devices.put(torch.cat([tried, others], 1), self.prior.device)
        return index, self.prior.actions.at(index).double()

    def _exact(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same at points ``(T, k, d)``, by a float64 solve."""
        mean, var = self.history.at(points)
        return self.raised(mean, points), var

    # -- memory ----------------------------------------------------------------------

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

        Collected observations are applied to a stretch just before it is yielded, so
        that a round reads and writes each number once. A block is valid until the
        engine changes.

        Args:
            stretches: the first action of each, and one past its last.
            streams: the random source; if given, each block has a joint draw less its
                mean.
            ahead: outstanding choices, which reduce deviations as if their outcomes had
                come. They may take slots of the history, without an observation.
        """
        path = None if streams is None else self.path(streams)
        for start, stop in stretches:
            x = self.prior.actions.block(start, stop).double()
            mean, var = self.at(x, ahead)
            std = var.clamp_min(0).sqrt_().unsqueeze(1)
            draw = None if path is None else path(x)
            yield Block(start, stop, mean, std, draw)

    def at(self, x: Tensor, ahead: Coming | None = None) -> tuple[Tensor, Tensor]:
        """Return means less their level ``(T, F, n)`` and variances ``(T, n)``.

        The points ``x`` are ``(n, d)`` or ``(T, n, d)``. The choices ``ahead`` reduce
        the variance as if their outcomes had come.
        """
        mean, var = self.history.at(x, ahead)
        return self.raised(mean, x), var

    def raised(self, mean: Tensor, x: Tensor) -> Tensor:
        """Return means ``(T, F, n)`` at points with what varies in their prior added.

        ``mean`` is what the data say: the posterior mean less the prior mean.
        """
        prior = self.prior.mean
        return mean if prior is None else mean + prior.above(x).to(mean)

    def recent(
        self, contexts: Tensor, point: Path, ahead: Coming | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return moments of all blocks of weights, see :meth:`Moments.recent`."""
        raise CBanditError(
            f"engine={self.plan.name!r} has no weights: take engine='weights'"
        )

    def drawn(self, x: Tensor, streams: Streams, functions: int) -> Tensor:
        """Return a joint draw less its mean, ``(T, f, n)``, at points ``(T, n, d)``.

        The draw is exact, by a root of the posterior covariance of these points.
        """
        x = x.double()
        root = pivoted_root(self.between(x))
        normals = streams.normal(functions, x.shape[-2])
        normals = devices.put(normals, x.device).reshape(-1, functions, x.shape[-2])
        # roots of different ranks use the same last columns, so batches do not matter
        return normals[..., -root.shape[-1] :] @ root.mT

    def between(self, x: Tensor) -> Tensor:
        """Return posterior covariances ``(T, n, n)`` of points, ``(*trials, n, d)``."""
        return self.history.covariances(x)(x)[0]

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
        """Return a function from numbers to posterior covariances with ``to``."""
        of = self.history.covariances(self.points_of(to).double())
        return lambda at: of(self.points_of(at).double())

    def gain(self) -> Tensor:
        """Return the realised information gain, ``(T,)``."""
        return self.history.system().gain()
