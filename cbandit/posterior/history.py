"""Observations by action: a history, which belongs to one engine and changes in place.

It merges repeats of an action into a *slot*: the action's coordinates, its
observations' summed precision and their weighted sum, always float64. It also keeps the
small linear system of the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.threads import on_one_thread
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.digits import LIMITS, WIDE
from cbandit.posterior.log import Observation, Update
from cbandit.posterior.pending import Coming, explained
from cbandit.posterior.system import Spot, System

WAITING = 64
SPARE = 32
DROWNED = 1e-4  # an observation is not subtracted if its slot keeps a smaller share

Between = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Posterior covariances of ``n`` with ``o`` actions, ``(T, n, o)``, and the variances
of both, ``(T, n)`` and ``(T, o)``; float64."""


class Slots:
    """The slots of each trial's distinct actions.

    Args:
        trials: ``T``.
    """

    def __init__(self, trials: int) -> None:
        self._slot_of: list[dict[Hashable, int]] = [{} for _ in range(trials)]
        self._free: list[list[int]] = [[] for _ in range(trials)]
        #: the distinct actions of each trial, by slot
        self.keys: list[list[Hashable]] = [[] for _ in range(trials)]

    @property
    def used(self) -> int:
        """``U``: the largest number of slots in use, over the trials."""
        return max(map(len, self.keys))

    def place(
        self, keys: Sequence[Hashable], wanted: Sequence[bool]
    ) -> tuple[list[int], list[int]]:
        """Return the slots of the actions ``keys``, and the trials with a new slot.

        Trials that are not ``wanted`` get slot 0; nothing is added there.
        """
        slots, fresh = [], []
        for trial, (key, want) in enumerate(zip(keys, wanted, strict=True)):
            slot = self._slot_of[trial].get(key) if want else 0
            if slot is None:
                slot = self._open(trial, key)
                fresh.append(trial)
            slots.append(slot)
        return slots, fresh

    def _open(self, trial: int, key: Hashable) -> int:
        keys = self.keys[trial]
        if self._free[trial]:
            slot = self._free[trial].pop()
            keys[slot] = key
        else:
            slot = len(keys)
            keys.append(key)
        self._slot_of[trial][key] = slot
        return slot

    def release(self, trial: int, slot: int) -> None:
        """Free a slot, so that another action may use it."""
        key = self.keys[trial][slot]
        if self._slot_of[trial].pop(key, None) is not None:
            self._free[trial].append(slot)


def add_up(sums: Tensor, slots: Sequence[Sequence[int]], values: Tensor) -> Tensor:
    """Add ``values (n, T)`` or ``(n, T, F)`` to ``sums (T, U)`` or ``(T, U, F)``.

    ``slots`` has a list for each row, with one slot a trial. The sums change in place.
    """
    trial = torch.arange(len(sums), device=sums.device)
    place = trial.expand(len(slots), -1), devices.put(slots, sums.device)
    return sums.index_put_(place, values, accumulate=True)


class ByAction:
    """The rows of a log by action: which slot each is in, and sums over slots.

    Args:
        rows: at least one row.
        like: a tensor ``(T, ...)`` on the device of the sums.
    """

    def __init__(self, rows: Sequence[Observation], like: Tensor) -> None:
        trials, places = len(like), Slots(len(like))
        placed = [places.place(row.keys, row.wanted) for row in rows]
        #: for each row its slot in each trial
        self.slots = [slots for slots, _ in placed]
        self._zeros = torch.zeros(
            trials, places.used, dtype=torch.float64, device=like.device
        )
        #: the actions, ``(T, U, d)``: the first row with each counts
        self.x = self._zeros.new_zeros(trials, places.used, rows[0].x.shape[-1])
        first = [
            (trial, self.slots[number][trial], number)
            for number, (_, fresh) in enumerate(placed)
            for trial in fresh
        ]
        if first:
            who, slot, number = devices.put(list(zip(*first, strict=True)), like.device)
            points = torch.stack([row.x for row in rows])
            self.x[who, slot] = points[number, who].double()

    def sum(self, values: Tensor) -> Tensor:
        """Return sums ``(T, U)`` of the rows' values ``(n, T)`` by action."""
        return add_up(self._zeros.clone(), self.slots, values)


class Writing:
    """A context in which a history's arrays, and its engine's, are not whole.

    An interrupt leaves them so: it is noticed later, and the engine is rebuilt.
    """

    __slots__ = ("_history", "_whole")

    def __init__(self, history: History) -> None:
        self._history = history

    def __enter__(self) -> None:
        self._whole, self._history.whole = self._history.whole, False

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._history.whole = self._whole


class History:
    """Observations of ``F`` functions that share their actions, for ``T`` trials.

    Args:
        covariance: the prior covariance.
        trials: ``T``.
        functions: ``F``.
        table: ``(1 or T, N, N)``, the whole prior covariance of a small set. If given,
            slot ``i`` is action ``i`` and nothing is copied.
        places: ``(N, d)`` or ``(T, N, d)``, the actions of the ``table``.
        device: where the tensors live.
        dtype: the dtype of the engine's arrays.
    """

    def __init__(
        self,
        covariance: Covariance,
        trials: int,
        functions: int,
        device: torch.device,
        table: Tensor | None = None,
        places: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.covariance, self.trials, self.functions = covariance, trials, functions
        self.table, self.device, self.dtype = table, device, dtype
        self._trial = torch.arange(trials, device=device)
        self._capacity = 0 if table is None else table.shape[-1]
        self._slots = Slots(trials)
        self._emptied: list[tuple[int, int]] = []
        self._ahead: AbstractSet[tuple[int, int]] = frozenset()  # slots of open choices
        like: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self._precision = torch.zeros(trials, self._capacity, **like)
        self._weighted = torch.zeros(trials, functions, self._capacity, **like)
        # observations not yet in the sums, added together at the cost of one
        self._waiting: list[tuple[Sequence[int], Tensor, Tensor]] = []
        self._count = [[0] * self._capacity for _ in range(trials)]
        self._distinct = [0] * trials  # slots with observations
        self.points = torch.zeros(trials, 0, covariance.dim, **like)
        if places is not None:
            self.points = places.double().expand(trials, *places.shape[-2:])
        self._gram = torch.zeros(trials, 0, 0, **like)
        self._system: System | None = None
        # observations not yet in the system
        self._news: list[tuple[Sequence[int], Update, Spot | None]] = []
        # prior variance over the belief's own noise; None: not known for these slots
        self.sharpness: float | None = None
        # whether any observation was too sharp for running variances
        self.cancels = False
        # if the prior variance is the same everywhere, new slots do not change that
        self._level = table is None and covariance.level
        self._stale = False  # whether the system has old targets
        self.whole = True
        """Whether no call broke off while it wrote the engine's arrays."""

    @property
    def used(self) -> int:
        """``U``: the largest number of slots in use, over the trials."""
        return self._capacity if self.table is not None else self._slots.used

    @property
    def gram(self) -> Tensor:
        """The prior covariance of the slots, ``(T, U, U)``."""
        if self.table is not None:
            return self.table
        used = self.used
        return self._gram[:, :used, :used]

    def keys(self) -> list[list[Hashable]]:
        """The distinct actions of each trial, by slot."""
        return self._slots.keys

    def distinct(self) -> list[int]:
        """Return how many distinct actions each trial has observed."""
        return list(self._distinct)

    def writing(self) -> Writing:
        """Return a context for writing the arrays."""
        return Writing(self)

    # -- observations --------------------------------------------------------------

    def place(
        self, keys: Sequence[Hashable], x: Tensor | None, wanted: Sequence[bool]
    ) -> tuple[list[int], list[int]]:
        """Return the slots of the actions ``keys``, and the trials with a new slot.

        Trials that are not ``wanted`` get slot 0; nothing is added there. ``x (T, d)``
        may be omitted if all actions have been observed before.
        """
        if self.table is not None:
            return list(cast("Sequence[int]", keys)), []
        slots, fresh = self._slots.place(keys, wanted)
        if not self.used:
            return slots, fresh
        self._grow()
        if fresh and x is not None:
            if not self._level:
                self.sharpness = None
            self._write(fresh, [slots[i] for i in fresh], x)
        return slots, fresh

    def _grow(self) -> None:
        if self.used <= self._capacity:
            return
        room = max(16, 2 * self._capacity)
        grown = room - self._capacity
        pad = torch.nn.functional.pad
        self._precision = pad(self._precision, (0, grown))
        self._weighted = pad(self._weighted, (0, grown))
        for count in self._count:
            count.extend([0] * grown)
        self.points = pad(self.points, (0, 0, 0, grown))
        self._gram = pad(self._gram, (0, grown, 0, grown))
        self._capacity = room

    @on_one_thread
    def _write(self, trials: list[int], slots: list[int], x: Tensor) -> None:
        t, s = devices.put([trials, slots], self.device)
        self.points[t, s] = x[t].double()
        used = self.used
        rows = self.covariance.cross(x.unsqueeze(-2), self.points[:, :used])[:, 0]
        rows = rows.expand(self.trials, used)[t]
        self._gram[t, s, :used] = rows
        self._gram[t, :used, s] = rows
        self._gram[t, s, s] = self.covariance.variance(x.unsqueeze(-2))[..., 0].expand(
            self.trials
        )[t]

    def enter(
        self,
        slots: Sequence[int],
        update: Update,
        sign: int = 1,
        spot: Spot | None = None,
    ) -> None:
        """Add an observation, or with ``sign=-1`` remove it.

        Args:
            slots: one slot a trial.
            update: the observation.
            sign: 1 or -1.
            spot: the result of :meth:`at_slot` at these slots, if known.
        """
        precision = update.precision if sign > 0 else -update.precision
        self._waiting.append((slots, precision, update.values))
        if self._system is not None:
            whole = sign < 0 or len(self._news) >= SPARE or self.table is not None
            if whole or self.clashes(slots, update):
                self._forget_system()
            else:
                self._news.append((slots, update, spot))
        if len(self._waiting) >= WAITING:
            self._sum_up()
        for trial, (slot, want) in enumerate(zip(slots, update.wanted, strict=True)):
            if not want:
                continue
            self._count[trial][slot] += sign
            if sign > 0 and self._count[trial][slot] == 1:
                self._distinct[trial] += 1
            if sign < 0 and self._count[trial][slot] == 0:
                self._distinct[trial] -= 1
                # exactly 0, without rounding errors
                self.precision[trial, slot : slot + 1] = 0.0
                self.weighted[trial, :, slot] = 0.0
                if self.table is None:
                    self._emptied.append((trial, slot))

    def clashes(self, slots: Sequence[int], update: Update) -> bool:
        """Return whether repeats of an action have too little noise to be added singly.

        If their outcomes differ, each one alone changes the posterior far more than
        their average does, and so do rounding errors: merge them first.
        """
        sharpness = self.sharpness if update.usual else None
        if sharpness is None:
            variance = self.gram.diagonal(dim1=-2, dim2=-1).max()
            sharpness = float(update.precision.max() * variance)
            if update.usual:
                self.sharpness = sharpness
        self.cancels |= sharpness > LIMITS[self.dtype].sharp
        if sharpness <= WIDE.sharp:  # the system is float64 whatever the arrays are
            return False
        pairs = zip(self._count, slots, strict=True)
        return any(count[slot] for count, slot in pairs)

    def sure(self) -> bool:
        """Return whether an action is known too well for the arrays' dtype."""
        variance = self.gram.diagonal(dim1=-2, dim2=-1)
        known = self.precision[:, : self.used] * variance
        return bool((known > LIMITS[self.dtype].sure).any())

    def _forget_system(self) -> None:
        self._system = None
        self._news.clear()

    def _sum_up(self) -> None:
        if not self._waiting:
            return
        with self.writing():
            rows, precisions, targets = zip(*self._waiting, strict=True)
            self._waiting.clear()
            precision = torch.stack(precisions)  # k x T
            add_up(self._precision, rows, precision)
            change = precision.unsqueeze(-1) * torch.stack(targets)
            add_up(self._weighted.mT, rows, change)

    @property
    def precision(self) -> Tensor:
        """Summed precisions, ``(T, capacity)``."""
        self._sum_up()
        return self._precision

    @property
    def weighted(self) -> Tensor:
        """Sums of precision times target, ``(T, F, capacity)``."""
        self._sum_up()
        return self._weighted

    def drowns(
        self, slots: Sequence[int], precision: Tensor, wanted: Sequence[bool]
    ) -> bool:
        """Return whether an observation is too precise to be subtracted from its slot.

        Subtracting it would leave mostly rounding errors of the slot's other ones.
        """
        pairs = enumerate(zip(slots, wanted, strict=True))
        others = [
            want and self._count[trial][slot] > 1 for trial, (slot, want) in pairs
        ]
        if not any(others):
            return False
        sums = self.precision[self._trial, devices.put(slots, self.device)]
        lost = sums - precision < DROWNED * precision
        return bool((lost & devices.put(others, self.device)).any())

    def release(self) -> bool:
        """Let emptied slots be used again; return whether there were any.

        Call it when no change still to be applied refers to them.
        """
        freed = False
        for trial, slot in self._emptied:
            if self._count[trial][slot] == 0 and (trial, slot) not in self._ahead:
                self._slots.release(trial, slot)
                freed = True
        self._emptied.clear()
        return freed

    def look_ahead(self, slots: Sequence[Sequence[int]]) -> None:
        """Reserve the slots of outstanding choices, one list for each choice.

        This ends earlier reservations, as those choices have been told or cancelled.
        """
        now = {pair for row in slots for pair in enumerate(row)}
        left = [(i, s) for i, s in self._ahead if (i, s) not in now]
        self._emptied += [(i, s) for i, s in left if self._count[i][s] == 0]
        self._ahead = now

    def revise(self, weighted: Tensor) -> None:
        """Replace the sums of precision times target by ``weighted (T, F, U)``."""
        self.weighted[..., : weighted.shape[-1]] = weighted
        self._stale = True  # targets only affect the mean's weights: the factor stays

    def correct(self, slot: Tensor, change: Tensor) -> None:
        """Add ``change (T, F)`` to sums of precision times target in ``slot (T,)``."""
        places = slot.view(-1, 1, 1).expand(-1, self.functions, 1)
        self.weighted.scatter_add_(-1, places, change.unsqueeze(-1))
        self._stale = True

    # -- the system ----------------------------------------------------------------

    def system(self, fresh: bool = False) -> System:
        """Return the system of all observations; with ``fresh``, factored anew.

        Otherwise new observations border the factor, until repeats of actions have made
        it an eighth larger than necessary.
        """
        system = self._system
        if system is not None:
            spare = system.count + len(self._news) - self.used
            fresh |= self.table is None and spare > max(SPARE, self.used // 8)
        if system is None or fresh:
            self._forget_system()
            self._system = system = self._factored()
            self._stale = False
            return system
        self._system = None  # an interrupt must not leave a half-made change
        for slots, update, spot in self._news:
            if spot is None:
                spot = self._spot(system, devices.put(slots, self.device))
            system.border(spot, update.precision, update.values)
        self._news.clear()
        if self._stale:
            system.aim(self._target(system.slots, system.root))
        self._stale = False
        self._system = system
        return system

    def at_slot(self, slot: Tensor) -> Spot:
        """Return the posterior at ``slot (T,)``."""
        return self._spot(self.system(), slot)

    def _spot(self, system: System, slot: Tensor) -> Spot:
        return system.at(slot, self.gram[self._trial, slot])

    def _factored(self) -> System:
        used = self.used
        gram, precision = self.gram, self.precision[:, :used]
        slots = torch.arange(used, device=self.device).repeat(self.trials, 1)
        if self.table is not None:
            # only observed actions; the others have p = 0 and are exact padding
            active = precision > 0
            # counted on the host, so that no device is waited for
            width = max(self._distinct) if used else 0
            slots = torch.argsort((~active).to(torch.int8), dim=-1, stable=True)
            slots = slots[:, :width]
            precision = precision.gather(-1, slots)
            gram = self.rows(slots).gather(
                -1, slots.unsqueeze(1).expand(-1, slots.shape[-1], -1)
            )
        root = precision.clamp_min(0).sqrt()
        return System(gram, root, self._target(slots, root), slots)

    def _target(self, slots: Tensor, root: Tensor) -> Tensor:
        """Return each entry's average outcome times its ``root``, ``(T, E, F)``."""
        precision = self.precision.gather(-1, slots)
        places = slots.unsqueeze(1).expand(-1, self.functions, -1)
        weighted = self.weighted.gather(-1, places)
        # an empty slot adds nothing
        share = torch.where(precision > 0, root / precision, 0.0)
        return (weighted * share.unsqueeze(1)).mT

    def rows(self, slots: Tensor) -> Tensor:
        """Return rows of the prior covariance at ``slots (T, k)``, ``(T, k, U)``."""
        table = self.gram.expand(self.trials, -1, -1)
        return table.gather(1, slots.unsqueeze(-1).expand(-1, -1, table.shape[-1]))

    # -- looking -------------------------------------------------------------------

    def at(self, x: Tensor, ahead: Coming | None = None) -> tuple[Tensor, Tensor]:
        """Solve for means less prior means ``(T, F, n)`` and variances ``(T, n)``.

        The points ``x`` are ``(n, d)`` or ``(T, n, d)``. The choices ``ahead`` reduce
        the variance as if their outcomes had come.
        """
        prior = self.covariance.variance(x)
        prior = prior.expand(self.trials, x.shape[-2])
        mean, half = self._half(x)
        var = prior - half.square().sum(-2)
        if ahead is not None:
            places = ahead.places()
            _, other = self._half(places)
            inner = self.covariance.cross(places, places) - other.mT @ other
            cross = self.covariance.cross(places, x) - other.mT @ half
            var = var - explained(inner, cross, ahead.precision).square().sum(-2)
        return mean, var

    def covariances(self, y: Tensor) -> Between:
        """Return a function from points to posterior covariances with ``y``."""

        def half(x: Tensor) -> Tensor:
            if not self.used:
                return x.new_zeros(self.trials, 1, x.shape[-2])
            system = self.system()
            return system.half(self.covariance.cross(self.places(system), x))

        hy = half(y)
        there = self.covariance.variance(y) - hy.square().sum(-2)

        def of(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hx = half(x)
            between = self.covariance.cross(x, y) - hx.mT @ hy
            return between, self.covariance.variance(x) - hx.square().sum(-2), there

        return of

    def places(self, system: System) -> Tensor:
        """Return the coordinates of the system's entries, ``(T, E, d)``."""
        return system.entries(self.points)

    def _half(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean at ``x``, and ``L^-1 R k_E(x)``, ``(T, E, n)``."""
        system = self.system()
        points = self.places(system)
        if points.shape[-2] == 0:
            shape = (self.trials, self.functions, x.shape[-2])
            nothing = points.new_zeros(shape)
            return nothing, nothing[:, :0]
        cross = self.covariance.cross(x, points).mT
        cross = cross.expand(self.trials, -1, -1)
        return system.alpha.mT @ cross, system.half(cross)

    def merged(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return points, precisions and weighted sums of all observations, by action.

        They are ``(T, W, d)``, ``(T, W)`` and ``(T, F, W)``, where ``W`` is the largest
        number of distinct actions of a trial; padding has precision 0.
        """
        used = self.used
        precision = self.precision[:, :used]
        width = max(1, int((precision > 0).sum(-1).max())) if used else 0
        order = torch.argsort((precision <= 0).to(torch.int8), dim=-1, stable=True)
        order = order[:, :width]
        at = order.unsqueeze(-1).expand(-1, -1, self.points.shape[-1])
        columns = order.unsqueeze(1).expand(-1, self.functions, -1)
        return (
            self.points.gather(1, at),
            precision.gather(-1, order),
            self.weighted.gather(-1, columns),
        )
