"""What was observed, merged by action, and the small linear system it makes.

A *slot* holds one distinct action: its coordinates, the summed precision of its
observations and their weighted sum. Always float64.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.system import Spot, System

__all__ = ["History"]

WAITING = 64
SPARE = 32
SHARP = 1e5  # prior variance over noise: above it outcomes that differ cost over 1e-10
DROWNED = 1e-4  # of a sum, too little to be found again by taking the rest away


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

    _ahead: AbstractSet[tuple[int, int]] = frozenset()  # slots of choices to come

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
        self._slot_of: list[dict[Hashable, int]] = [{} for _ in range(trials)]
        self._key_of: list[list[Hashable]] = [[] for _ in range(trials)]
        self._free: list[list[int]] = [[] for _ in range(trials)]
        self._emptied: list[tuple[int, int]] = []
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
        # the precision last judged: mostly one tensor, round after round
        self.judged: tuple[Tensor, bool] | None = None
        # one prior variance everywhere: the verdict does not rest on the slots
        self._level = table is None and bool(covariance.kernel.is_stationary)
        self._stale = False  # whether the system is of older targets

    @property
    def used(self) -> int:
        """``U``: the slots in use in the trial that uses most."""
        if self.table is not None:
            return self._capacity
        return max(len(keys) for keys in self._key_of)

    @property
    def gram(self) -> Tensor:
        """Prior covariance of the slots, ``(T, U, U)``."""
        if self.table is not None:
            return self.table
        used = self.used
        return self._gram[:, :used, :used]

    def keys(self) -> list[list[Hashable]]:
        """The distinct actions of each trial, by slot."""
        return self._key_of

    def distinct(self) -> list[int]:
        """How many distinct actions each trial has observed."""
        return list(self._distinct)

    def place(
        self, keys: Sequence[Hashable], x: Tensor, wanted: Sequence[bool]
    ) -> tuple[list[int], list[int]]:
        """Slots of the actions ``keys`` at ``x (T, d)``, and the trials with a new one.

        Trials that want no slot get slot 0 as a place to add nothing to.
        """
        if self.table is not None:
            return [int(str(key)) for key in keys], []
        slots, fresh = [], []
        for trial, (key, want) in enumerate(zip(keys, wanted, strict=True)):
            slot = self._slot_of[trial].get(key) if want else 0
            if slot is None:
                slot = self._open(trial, key)
                fresh.append(trial)
            slots.append(slot)
        if not any(self._key_of):
            return slots, fresh
        self._grow()
        if fresh:
            if not self._level:
                self.judged = None
            self._write(fresh, [slots[i] for i in fresh], x)
        return slots, fresh

    def _open(self, trial: int, key: Hashable) -> int:
        keys = self._key_of[trial]
        if self._free[trial]:
            slot = self._free[trial].pop()
            keys[slot] = key
        else:
            slot = len(keys)
            keys.append(key)
        self._slot_of[trial][key] = slot
        return slot

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
    ) -> None:
        """Add (or with ``sign=-1`` take away) an observation.

        Args:
            slots: one a trial.
            precision: ``(T,)``, zero where nothing was seen; kept, not copied.
            values: ``(T, F)``, less the prior mean; kept, not copied.
            spot: what :meth:`at_slot` just said of the slots, where it was asked.
        """
        self._waiting.append((slots, precision if sign > 0 else -precision, values))
        if self._system is not None:
            whole = sign < 0 or len(self._news) >= SPARE or self.table is not None
            if whole or self.clashes(slots, precision):
                self._forget_system()
            else:
                self._news.append((slots, precision, values, spot))
        if len(self._waiting) >= WAITING:
            self._sum_up()

    def clashes(self, slots: Sequence[int], precision: Tensor) -> bool:
        """Whether other observations of these places exist, of too little noise.

        Where outcomes differ, what each of them does alone is larger than their sum by
        about the precision, and so are rounding errors: they are to be merged first.
        """
        if self.judged is None or precision is not self.judged[0]:
            own = self.gram.diagonal(dim1=-2, dim2=-1).max()
            self.judged = precision, bool(precision.max() * own > SHARP)
        pairs = zip(self._seen, slots, strict=True)
        return self.judged[1] and any(seen[slot] for seen, slot in pairs)

    def _forget_system(self) -> None:
        self._system = None
        self._news.clear()

    def _sum_up(self) -> None:
        if not self._waiting:
            return
        rows, precisions, targets = zip(*self._waiting, strict=True)
        self._waiting.clear()
        place = (
            self._trial.expand(len(rows), -1),
            devices.put(rows, self.device),
        )
        precision = torch.stack(precisions)  # k x T
        self._precision.index_put_(place, precision, accumulate=True)
        change = precision.unsqueeze(-1) * torch.stack(targets)
        self._weighted.mT.index_put_(place, change, accumulate=True)

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
                key = self._key_of[trial][slot]
                if self._slot_of[trial].pop(key, None) is not None:
                    self._free[trial].append(slot)
        self._emptied.clear()

    def look_ahead(self, slots: Sequence[Sequence[int]]) -> None:
        """Slots of choices to come, one list a choice; others without data are empty.

        What was waited for then has been cancelled.
        """
        now = {pair for row in slots for pair in enumerate(row)}
        left = [(i, s) for i, s in self._ahead if (i, s) not in now]
        self._emptied += [(i, s) for i, s in left if self._seen[i][s] == 0]
        self._ahead = now

    def revise(self, weighted: Tensor) -> None:
        """Replace the weighted sums, ``(T, F, U)``: the targets changed."""
        self.weighted[..., : weighted.shape[-1]] = weighted
        self._reweigh()

    def correct(self, slot: Tensor, change: Tensor) -> None:
        """Change the targets in ``slot (T,)`` by ``change (T, F)``, times precision."""
        places = slot.view(-1, 1, 1).expand(-1, self.functions, 1)
        self.weighted.scatter_add_(-1, places, change.unsqueeze(-1))
        self._reweigh()

    def _reweigh(self) -> None:
        # targets enter the mean's weights alone: the factor stays
        self._stale = True

    def system(self, fresh: bool = False) -> System:
        """The system of all there is; with ``fresh``, factored from nothing.

        Otherwise what is new borders the factor there was, until places seen again
        have made it an eighth larger than it need be.
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
        self._system = None  # until it knows of all of them
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
            gram = self.rows(slots, slots)
        root = precision.clamp_min(0).sqrt()
        return System(gram, root, self._target(slots, root), slots)

    def _target(self, slots: Tensor, root: Tensor) -> Tensor:
        """What was seen at each entry on average, times its ``root``, ``(T, E, F)``."""
        precision = self.precision.gather(-1, slots)
        places = slots.unsqueeze(1).expand(-1, self.functions, -1)
        weighted = self.weighted.gather(-1, places)
        # an empty slot adds nothing
        share = torch.where(precision > 0, root / precision, 0.0)
        return (weighted * share.unsqueeze(1)).mT

    def rows(self, slots: Tensor, columns: Tensor | None = None) -> Tensor:
        """Rows of the table, ``(T, U, N or len)``, at ``slots (T, U)``."""
        assert self.table is not None
        table = self.table.expand(self.trials, -1, -1)
        rows = table.gather(1, slots.unsqueeze(-1).expand(-1, -1, table.shape[-1]))
        if columns is None:
            return rows
        return rows.gather(-1, columns.unsqueeze(1).expand(-1, slots.shape[-1], -1))

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
            root = precision.sqrt().unsqueeze(-1)
            _, other = self._half(places)
            inner = self.covariance.cross(places, places) - other.mT @ other
            inner = inner * root * root.mT
            inner.diagonal(dim1=-2, dim2=-1).add_(1)
            cross = self.covariance.cross(places, x) - other.mT @ half
            z = torch.linalg.solve_triangular(
                devices.cholesky(inner), cross * root, upper=False
            )
            var = var - z.square().sum(-2)
        return mean, var

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
