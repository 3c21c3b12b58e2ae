"""Observations merged by action: the one place where repeats become sums.

A *slot* holds one distinct action of a trial. :class:`Slots` says which, and
:func:`add_up` puts what was seen into sums over slots.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.posterior.log import Log

__all__ = ["Merged", "Slots", "add_up", "merged"]


class Slots:
    """Which slot each trial's distinct actions have.

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
        """``U``: the slots in use in the trial that uses most."""
        return max(map(len, self.keys))

    def place(
        self, keys: Sequence[Hashable], wanted: Sequence[bool]
    ) -> tuple[list[int], list[int]]:
        """Slots of the actions ``keys``, and the trials with a new one.

        Trials that want no slot get slot 0, as a place to add nothing to.
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
        """Let a slot be used again."""
        key = self.keys[trial][slot]
        if self._slot_of[trial].pop(key, None) is not None:
            self._free[trial].append(slot)


def add_up(sums: Tensor, slots: Sequence[Sequence[int]], values: Tensor) -> Tensor:
    """Add ``values (n, T)`` or ``(n, T, F)`` to ``sums (T, U)`` or ``(T, U, F)``.

    ``slots`` are one list a row, one number a trial. The sums change in place.
    """
    trial = torch.arange(len(sums), device=sums.device)
    place = trial.expand(len(slots), -1), devices.put(slots, sums.device)
    return sums.index_put_(place, values, accumulate=True)


@dataclass(frozen=True)
class Merged:
    """Observations of one function, merged by action, for ``T`` trials.

    Args:
        x: ``(T, U, d)``.
        count: ``(T, U)``, observations at the model's noise.
        total: ``(T, U)``, their sum.
        within: ``(T,)``, their squared distances from their slot's mean, summed.
        own_precision: ``(T, U)``, precision of observations with their own noise.
        own_weighted: ``(T, U)``, those observations weighted by it.
    """

    x: Tensor
    count: Tensor
    total: Tensor
    within: Tensor
    own_precision: Tensor
    own_weighted: Tensor

    def trial(self, i: int) -> Merged:
        """Trial ``i`` alone, without padding."""
        seen = (self.count[i] > 0) | (self.own_precision[i] > 0)
        return Merged(
            self.x[i : i + 1, seen],
            self.count[i : i + 1, seen],
            self.total[i : i + 1, seen],
            self.within[i : i + 1],
            self.own_precision[i : i + 1, seen],
            self.own_weighted[i : i + 1, seen],
        )


def merged(log: Log, shift: Tensor, scale: Tensor, least: Tensor) -> Merged:
    """A log of one function as a marginal likelihood takes it, in standardised units.

    ``shift`` and ``scale`` are ``(T, 1)``; noise less than ``least``, ``()`` or
    ``(T,)``, counts as this.
    """
    rows, device, trials = list(log), shift.device, len(shift)
    slots_of = Slots(trials)
    placed = [slots_of.place(row.keys, row.wanted) for row in rows]
    slots = [each for each, _ in placed]
    used = slots_of.used
    zeros = torch.zeros(trials, used, dtype=torch.float64, device=device)
    y = torch.stack([((row.values - shift) / scale)[:, 0] for row in rows])
    here = devices.put([list(row.wanted) for row in rows], device)
    if any(row.arrived is not None for row in rows):
        every = torch.ones_like(here[0])
        came = [every if r.arrived is None else r.arrived[:, 0] for r in rows]
        here = here & torch.stack(came)
    usual = [row.noise is None for row in rows]
    ours = here & devices.put(usual, device).unsqueeze(-1)
    theirs = torch.zeros_like(y)
    if not all(usual):
        noises = [scale[:, 0] if r.noise is None else r.noise for r in rows]
        noise = (torch.stack(noises) / scale[:, 0].square()).maximum(least)
        theirs = torch.where(here & ~ours, noise.reciprocal(), 0.0)

    def summed(values: Tensor) -> Tensor:
        return add_up(zeros.clone(), slots, values)

    count, own = summed(ours.double()), summed(theirs)
    total = summed(torch.where(ours, y, 0.0))
    squares = summed(torch.where(ours, y.square(), 0.0))
    own_weighted = summed(theirs * y)
    # where each slot's action was first seen
    x = zeros.new_zeros(trials, used, rows[0].x.shape[-1])
    first = [
        (trial, slots[number][trial], number)
        for number, (_, fresh) in enumerate(placed)
        for trial in fresh
    ]
    if first:
        who, slot, seen = devices.put(list(zip(*first, strict=True)), device)
        x[who, slot] = torch.stack([row.x for row in rows])[seen, who].double()
    within = (squares - total.square() / count.clamp_min(1)).clamp_min(0).sum(-1)
    return Merged(x, count, total, within, own, own_weighted)
