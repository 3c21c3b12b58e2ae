"""Observations merged by action, and the small linear system they make.

A *slot* holds one distinct action: its coordinates, the summed precision of its
observations and their weighted sum. Always float64. A history changes in place: it
belongs to one engine, which says which log it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.threads import on_one_thread
from cbandit.posterior.ahead import explained
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.merge import Slots, add_up
from cbandit.posterior.system import Spot, System

__all__ = ["BLANK", "Between", "History"]

BLANK = 0  # the number of no log: nothing has been observed
WAITING = 64
SPARE = 32
SHARP = 1e5  # prior variance over noise; above it, repeats one by one cost over 1e-10
DROWNED = 1e-4  # an observation whose slot keeps less than this share is not taken away


Between = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Posterior covariances of actions with others, ``(T, n, o)``, and the variances of
both, ``(T, n)`` and ``(T, o)``; float64."""


class History:
    """Observations of ``F`` functions that share their actions, for ``T`` trials.

    Args:
        covariance: the prior covariance.
        trials: ``T``.
        functions: ``F``.
        table: ``(1 or T, N, N)``: the prior covariance of a small set as a whole. Then
            slot ``i`` is action ``i`` and nothing is copied.
        places: ``(N, d)`` or ``(T, N, d)``, the actions of the ``table``.
        device: where the tensors live.
    """

    def __init__(
        self,
        covariance: Covariance,
        trials: int,
        functions: int,
        device: torch.device,
        table: Tensor | None = None,
        places: Tensor | None = None,
    ) -> None:
        self.covariance, self.trials, self.functions = covariance, trials, functions
        self.table, self.device = table, device
        self._trial = torch.arange(trials, device=device)
        self._capacity = 0 if table is None else table.shape[-1]
        self._slots = Slots(trials)
        self._emptied: list[tuple[int, int]] = []
        self._ahead: AbstractSet[tuple[int, int]] = frozenset()  # of choices to come
        kept: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self._precision = torch.zeros(trials, self._capacity, **kept)
        self._weighted = torch.zeros(trials, functions, self._capacity, **kept)
        # observations not yet in these sums: many go in at the price of one
        self._waiting: list[tuple[Sequence[int], Tensor, Tensor]] = []
        self._seen = [[0] * self._capacity for _ in range(trials)]
        self._distinct = [0] * trials  # slots with any
        self.points = torch.zeros(trials, 0, covariance.dim, **kept)
        if places is not None:
            self.points = places.double().expand(trials, *places.shape[-2:])
        self._gram = torch.zeros(trials, 0, 0, **kept)
        self._system: System | None = None
        # observations the system does not know of yet
        self._news: list[tuple[Sequence[int], Tensor, Tensor, Spot | None]] = []
        # whether the belief's own noise is sharp; None: not known of these slots
        self.sharp: bool | None = None
        # whether an observation was: running variances lose too much then
        self.cancels = False
        # one prior variance everywhere: the verdict does not rest on the slots
        self._level = table is None and bool(covariance.kernel.is_stationary)
        self._stale = False  # whether the system is of older targets
        # the number of the log that the engine stands for; None while it is written
        self.stands_for: int | None = BLANK

    @property
    def used(self) -> int:
        """``U``: the slots in use in the trial that uses most."""
        return self._capacity if self.table is not None else self._slots.used

    @property
    def gram(self) -> Tensor:
        """Prior covariance of the slots, ``(T, U, U)``."""
        if self.table is not None:
            return self.table
        used = self.used
        return self._gram[:, :used, :used]

    def keys(self) -> list[list[Hashable]]:
        """The distinct actions of each trial, by slot."""
        return self._slots.keys

    def distinct(self) -> list[int]:
        """How many distinct actions each trial has observed."""
        return list(self._distinct)

    # -- observations --------------------------------------------------------------

    def place(
        self, keys: Sequence[Hashable], x: Tensor, wanted: Sequence[bool]
    ) -> tuple[list[int], list[int]]:
        """Slots of the actions ``keys`` at ``x (T, d)``, and the trials with a new one.

        Trials that want no slot get slot 0 as a place to add nothing to.
        """
        if self.table is not None:
            return list(cast("Sequence[int]", keys)), []
        slots, fresh = self._slots.place(keys, wanted)
        if not self.used:
            return slots, fresh
        self._grow()
        if fresh:
            if not self._level:
                self.sharp = None
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
        for seen in self._seen:
            seen.extend([0] * grown)
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

    def add(
        self,
        slots: Sequence[int],
        precision: Tensor,
        values: Tensor,
        sign: int = 1,
        spot: Spot | None = None,
        usual: bool = False,
    ) -> None:
        """Add (or with ``sign=-1`` take away) an observation.

        Args:
            slots: one a trial.
            precision: ``(T,)``, zero where nothing was seen; kept, not copied.
            values: ``(T, F)``, less the prior mean; kept, not copied.
            sign: 1 or -1.
            spot: what :meth:`at_slot` just said of the slots, where it was asked.
            usual: whether the precision is the belief's own.
        """
        self._waiting.append((slots, precision if sign > 0 else -precision, values))
        if self._system is not None:
            whole = sign < 0 or len(self._news) >= SPARE or self.table is not None
            if whole or self.clashes(slots, precision, usual):
                self._forget_system()
            else:
                self._news.append((slots, precision, values, spot))
        if len(self._waiting) >= WAITING:
            self._sum_up()

    def clashes(self, slots: Sequence[int], precision: Tensor, usual: bool) -> bool:
        """Whether other observations of these places exist, of too little noise.

        Where outcomes differ, each of them alone changes more than their sum does, by
        about the precision, and so do rounding errors: they must be merged first.
        """
        sharp = self.sharp if usual else None
        if sharp is None:
            own = self.gram.diagonal(dim1=-2, dim2=-1).max()
            sharp = bool(precision.max() * own > SHARP)
            if usual:
                self.sharp = sharp
        self.cancels |= sharp
        pairs = zip(self._seen, slots, strict=True)
        return sharp and any(seen[slot] for seen, slot in pairs)

    def sharp_together(self) -> bool:
        """Whether the observations of one place, taken together, are sharp."""
        own = self.gram.diagonal(dim1=-2, dim2=-1)
        return bool((self.precision[:, : self.used] * own > SHARP).any())

    def _forget_system(self) -> None:
        self._system = None
        self._news.clear()

    def _sum_up(self) -> None:
        if not self._waiting:
            return
        number, self.stands_for = self.stands_for, None
        rows, precisions, targets = zip(*self._waiting, strict=True)
        self._waiting.clear()
        precision = torch.stack(precisions)  # k x T
        add_up(self._precision, rows, precision)
        change = precision.unsqueeze(-1) * torch.stack(targets)
        add_up(self._weighted.mT, rows, change)
        self.stands_for = number

    @property
    def precision(self) -> Tensor:
        """Summed precisions, ``(T, capacity)``."""
        self._sum_up()
        return self._precision

    @property
    def weighted(self) -> Tensor:
        """Sums of precision x target, ``(T, F, capacity)``."""
        self._sum_up()
        return self._weighted

    def keep(self, functions: Tensor) -> None:
        """Drop all functions but these."""
        self._weighted = self.weighted[:, functions].contiguous()
        self.functions = len(functions)
        self._forget_system()

    def count(self, slots: Sequence[int], wanted: Sequence[bool], sign: int) -> None:
        """Keep the number of observations in each slot; an emptied one is exactly 0."""
        for trial, (slot, want) in enumerate(zip(slots, wanted, strict=True)):
            if not want:
                continue
            self._seen[trial][slot] += sign
            if sign > 0 and self._seen[trial][slot] == 1:
                self._distinct[trial] += 1
            if sign < 0 and self._seen[trial][slot] == 0:
                self._distinct[trial] -= 1
                # exactly, whatever rounding left behind
                self.precision[trial, slot : slot + 1] = 0.0
                self.weighted[trial, :, slot] = 0.0
                if self.table is None:
                    self._emptied.append((trial, slot))

    def drowns(
        self, slots: Sequence[int], precision: Tensor, wanted: Sequence[bool]
    ) -> bool:
        """Whether an observation is so precise that others of its slot are lost in it.

        Taken away from the sums, it would leave mostly rounding errors.
        """
        pairs = enumerate(zip(slots, wanted, strict=True))
        others = [want and self._seen[trial][slot] > 1 for trial, (slot, want) in pairs]
        if not any(others):
            return False
        sums = self.precision[self._trial, devices.put(slots, self.device)]
        lost = sums - precision < DROWNED * precision
        return bool((lost & devices.put(others, self.device)).any())

    def release(self) -> None:
        """Let emptied slots be used again: nothing pending refers to them any more."""
        for trial, slot in self._emptied:
            if self._seen[trial][slot] == 0 and (trial, slot) not in self._ahead:
                self._slots.release(trial, slot)
        self._emptied.clear()

    def look_ahead(self, slots: Sequence[Sequence[int]]) -> None:
        """Keep the slots of choices to come, one list a choice, though they are empty.

        Those kept before, whose choices are told or cancelled, are let go.
        """
        now = {pair for row in slots for pair in enumerate(row)}
        left = [(i, s) for i, s in self._ahead if (i, s) not in now]
        self._emptied += [(i, s) for i, s in left if self._seen[i][s] == 0]
        self._ahead = now

    def revise(self, weighted: Tensor) -> None:
        """Replace the weighted sums, ``(T, F, U)``: the targets changed."""
        self.weighted[..., : weighted.shape[-1]] = weighted
        self._stale = True  # targets enter the mean's weights alone: the factor stays

    def correct(self, slot: Tensor, change: Tensor) -> None:
        """Change the targets in ``slot (T,)`` by ``change (T, F)``, times precision."""
        places = slot.view(-1, 1, 1).expand(-1, self.functions, 1)
        self.weighted.scatter_add_(-1, places, change.unsqueeze(-1))
        self._stale = True

    # -- the system ----------------------------------------------------------------

    def system(self, fresh: bool = False) -> System:
        """The system of all there is; with ``fresh``, factored from nothing.

        Otherwise news border the factor, until places seen again have made it an
        eighth larger than it need be.
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
        self._system = None  # an interrupt must not leave half of a change
        for slots, precision, values, spot in self._news:
            if spot is None:
                spot = self._spot(system, devices.put(slots, self.device))
            system.border(spot, precision, values)
        self._news.clear()
        if self._stale:
            system.aim(self._target(system.slots, system.root))
        self._stale = False
        self._system = system
        return system

    def at_slot(self, slot: Tensor) -> Spot:
        """The posterior at ``slot (T,)``."""
        return self._spot(self.system(), slot)

    def _spot(self, system: System, slot: Tensor) -> Spot:
        return system.at(slot, self.gram[self._trial, slot])

    def _factored(self) -> System:
        used = self.used
        gram, precision = self.gram, self.precision[:, :used]
        slots = torch.arange(used, device=self.device).repeat(self.trials, 1)
        if self.table is not None:
            # only the actions observed; the others have p = 0 and pad exactly
            active = precision > 0
            # counted on the host: no device has to be waited for
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
        """The average seen at each entry, times its ``root``, ``(T, E, F)``."""
        precision = self.precision.gather(-1, slots)
        places = slots.unsqueeze(1).expand(-1, self.functions, -1)
        weighted = self.weighted.gather(-1, places)
        # an empty slot adds nothing
        share = torch.where(precision > 0, root / precision, 0.0)
        return (weighted * share.unsqueeze(1)).mT

    def rows(self, slots: Tensor) -> Tensor:
        """Rows of the prior covariance at ``slots (T, k)``, ``(T, k, U)``."""
        table = self.gram.expand(self.trials, -1, -1)
        return table.gather(1, slots.unsqueeze(-1).expand(-1, -1, table.shape[-1]))

    # -- looking -------------------------------------------------------------------

    def at(
        self, x: Tensor, ahead: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean, less the prior's ``(T, F, n)``, and variance ``(T, n)`` anywhere.

        A dense solve at the points ``x``, ``(n, d)`` or ``(T, n, d)``. With ``ahead``
        (places ``(T, b, d)`` and precisions ``(T, b)`` of choices to come) the variance
        is that after them.
        """
        prior = self.covariance.variance(x)
        prior = prior.expand(self.trials, x.shape[-2])
        mean, half = self._half(x)
        var = prior - half.square().sum(-2)
        if ahead is not None:
            places, precision = ahead
            _, other = self._half(places)
            inner = self.covariance.cross(places, places) - other.mT @ other
            cross = self.covariance.cross(places, x) - other.mT @ half
            var = var - explained(inner, cross, precision).square().sum(-2)
        return mean, var

    def covariances(self, y: Tensor) -> Between:
        """Return posterior covariances with ``y``, as a function of points ``x``."""

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
        """Where the system's entries are, ``(T, E, d)``."""
        return system.entries(self.points)

    def _half(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mean at ``x``, and ``L^-1 R k_E(x)``, ``(T, E, n)``."""
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
        """All observations by action: places, precisions, sums of precision x target.

        ``(T, W, d)``, ``(T, W)`` and ``(T, F, W)``, ``W`` the distinct actions of the
        trial with most; others are padded by places of precision 0.
        """
        used = self.used
        precision = self.precision[:, :used]
        width = max(1, int((precision > 0).sum(-1).max())) if used else 0
        order = torch.argsort((precision <= 0).to(torch.int8), dim=-1, stable=True)
        order = order[:, :width]
        at = order.unsqueeze(-1).expand(-1, -1, self.points.shape[-1])
        each = order.unsqueeze(1).expand(-1, self.functions, -1)
        return (
            self.points.gather(1, at),
            precision.gather(-1, order),
            self.weighted.gather(-1, each),
        )
