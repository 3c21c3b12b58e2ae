"""The engines for large sets: means and variances kept in place, passed over in blocks.

The posterior covariance of a tried action ``x`` with all actions is a combination of
kernel rows, ``c = k(x, .) - sum_i w_i k(x_i, .)``; an observation changes the means by
a multiple of ``c`` and the variance by a multiple of ``c^2``. The rows come from
:mod:`cbandit.posterior.rows`; weights, and everything that decides by how much to
change, come from the small float64 system.

Each change leaves a rounding error in the variance, which stays when the variance falls
and would hide small deviations under noise below 1e-5 of the prior variance. There, a
variance that has fallen to a tenth is solved for from the small system before the set
is looked at: each action a few times in a life. Deviations are within 1e-8 of the
prior's down to noise of 1e-12 (in float32 within 1e-3), unless actions lie so close
that rounded kernel values no longer tell them apart.

Changes wait until the next pass, which applies them, block by block, just before the
block is handed out: a round reads and writes each number once. On CUDA one kernel does
all of it, score and argmax included.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.devices import free_memory
from cbandit._core.log import warn
from cbandit._core.randomness import Streams
from cbandit.actions import Actions
from cbandit.errors import CBanditError
from cbandit.posterior.ahead import Coming, explained
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.draws.features import correction
from cbandit.posterior.engines.afresh import compute_afresh
from cbandit.posterior.engines.arrays import Arrays
from cbandit.posterior.engines.blocks import BlockPass, Changes
from cbandit.posterior.engines.protocol import Fused, Plan, Seen
from cbandit.posterior.history import Between, History
from cbandit.posterior.look import Best, Look
from cbandit.posterior.rows.protocol import Columns, Rows
from cbandit.posterior.system import Spot
from cbandit_kernels import Change, Found, native

__all__ = ["Swept"]


class Swept(Arrays):
    """Means ``(T, F, N)`` and variance ``(T, N)``, from kernel rows.

    With a ``stretch`` of the actions, of these alone: its first, and one past its last.
    """

    BACKEND: str | None = None  # "triton" insists on its kernels, on the CPU too
    PENDING_LIMIT = 32
    FUSED_LIMIT = 4  # changes that one kernel applies in passing
    REWEIGH_EVERY = 64  # reverse changes, after which the means are computed afresh
    CHECK_EVERY = 512
    CHECK_EARLY = (16, 64, 256)  # in a narrow dtype, whose errors may show at once
    CHECK_ACTIONS = 32
    FALLEN = 0.1  # of a variance: below this share it is solved for again
    SOLVED_TOGETHER = 1 << 12
    NARROW = 1e-2  # off by more after a refresh: the dtype is too narrow

    def __init__(
        self,
        actions: Actions,
        covariance: Covariance,
        trials: int,
        functions: int,
        dtype: torch.dtype,
        device: torch.device,
        rows: Rows,
        block: int,
        stretch: tuple[int, int] | None = None,
        plan: Plan | None = None,
    ) -> None:
        super().__init__(
            actions, covariance, trials, functions, dtype, device, rows, block, stretch
        )
        self.plan = plan or Plan(rows.name, "asked for")
        self._trial = torch.arange(trials, device=device)
        self._scale = float(self.var[:, :1024].double().mean().clamp_min(1e-300)) ** 0.5
        self._begin_anew(functions)

    def clear(self, functions: int) -> None:
        """Forget everything, and keep as many functions from now on."""
        sharp, trials = self.history.sharp, len(self._trial)
        self.rows.clear()
        if functions == self.functions:
            self.mean.zero_()
        else:
            self.mean = self.mean.new_zeros(trials, functions, self.var.shape[-1])
        self.to_prior()
        self._begin_anew(functions)
        self.history.sharp = sharp

    def _begin_anew(self, functions: int) -> None:
        trials, self.functions = len(self._trial), functions
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []
        self._assign = False  # whether the means are of older targets
        self._floor: Tensor | None = None  # below it a variance is solved for
        self._changes = self._forgotten = 0
        self.drift = 0.0
        self.refreshes = 0
        self._told = False
        self.history = History(self.covariance, trials, functions, self.device)

    def _shared(self) -> list[Any]:
        return [self.covariance, self.actions]

    # -- changes ---------------------------------------------------------------

    def append(self, seen: Seen) -> None:
        """Condition on one more observation."""
        keys, x, values, precision, wanted, usual = seen
        slots = self._place(keys, x, wanted)
        if slots is None:
            return
        spot = self.history.at_slot(devices.put(slots, self.device))
        self._pending.append(self._change(spot, values, precision))
        self._assign |= self.history.clashes(slots, precision, usual)
        self.history.add(slots, precision, values, spot=spot, usual=usual)
        self.history.count(slots, wanted, 1)
        self._changed()

    def forget(self, seen: Seen) -> None:
        """The reverse of :meth:`append`, from the system without the observation."""
        keys, x, values, precision, wanted, usual = seen
        slots = self._place(keys, x, wanted)
        if slots is None:
            return
        self.history.add(slots, precision, values, sign=-1)
        self.history.count(slots, wanted, -1)
        spot = self.history.at_slot(devices.put(slots, self.device))
        weights, spread, shift = self._change(spot, values, precision)
        self._pending.append((weights, -spread, -shift))
        self._forgotten += 1
        # changes come and go, their rounding errors only come
        self._assign |= self._forgotten % self.REWEIGH_EVERY == 0
        self._assign |= self.history.clashes(slots, precision, usual)
        self._changed()

    def observe(self, rows: Sequence[Seen]) -> None:
        """Condition on many observations, then compute everything afresh."""
        for seen in rows:
            slots = self._place(seen.keys, seen.x, seen.wanted)
            if slots is not None:
                self.history.add(slots, seen.precision, seen.values)
                self.history.count(slots, seen.wanted, 1)
        self.refresh()

    def _place(
        self, keys: Sequence[Hashable], x: Tensor, wanted: Sequence[bool]
    ) -> list[int] | None:
        slots, fresh = self.history.place(keys, x, wanted)
        if fresh:
            new, names = [slots[i] for i in fresh], [keys[i] for i in fresh]
            here = x if len(fresh) == len(x) else x[devices.put(fresh, self.device)]
            self.rows.write(fresh, new, here, names)
        return slots if self.history.used else None

    def _change(
        self, spot: Spot, values: Tensor, precision: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Row weights ``(T, U)``, and what ``c^2`` and ``c`` are multiplied by."""
        weights = self.history.system().column(spot, self.history.used)
        spread = precision / (1 + precision * spot.var)
        return weights, spread, (values - spot.mean) * spread.unsqueeze(-1)

    def _changed(self) -> None:
        self._changes += 1
        if len(self._pending) >= self.PENDING_LIMIT:
            self.settle()
        early = self.drifts and self._changes in self.CHECK_EARLY
        if early or self._changes % self.CHECK_EVERY == 0:
            self.check()

    def revise(self, weighted: Tensor) -> None:
        """Replace all targets: ``weighted (T, F, U)`` sums of precision x target."""
        self.history.revise(weighted)
        self._assign = True

    def correct(
        self, keys: Sequence[Hashable], change: Tensor, wanted: Sequence[bool]
    ) -> None:
        """Add ``change (T, F)``, of precision x target, at ``keys``."""
        nowhere = self.history.points.new_zeros(len(keys), self.covariance.dim)
        slots, _ = self.history.place(keys, nowhere, wanted)
        self.history.correct(devices.put(slots, self.device), change)
        self._assign = True

    def refresh(self) -> None:
        """Compute means and variances afresh from the history: no drift is left."""
        number, self.history.stands_for = self.history.stands_for, None
        self._pending.clear()
        self._assign = False
        self.refreshes += 1
        self.history.release()
        compute_afresh(self)
        self._floor = None
        if self.history.sharp_together():
            self._solve_for_fallen()
        self.history.stands_for = number

    # -- looking ---------------------------------------------------------------

    def gain(self) -> Tensor:
        """The realised information gain, ``(T,)``."""
        if self.history.used == 0:
            return torch.zeros(
                len(self._trial), dtype=torch.float64, device=self.device
            )
        return self.history.system().gain()

    def settle(self) -> None:
        """Apply what waits."""
        if not self._pending and not self._assign:
            return
        number, self.history.stands_for = self.history.stands_for, None
        changes = self._columns()
        if changes is not None:
            for start, stop in self.stretches(self.step):
                own = self.own(start, stop)
                changes(start, stop, self.mean[..., own], self.var[:, own])
        if self.history.cancels:
            self._solve_for_fallen()
        self.settled(number)

    def settled(self, number: int | None) -> None:
        """Nothing waits any more: the arrays stand for the log of this number."""
        self.history.stands_for = None
        self._pending.clear()
        self._assign = False
        self.history.release()
        self.history.stands_for = number

    def _solve_for_fallen(self) -> None:
        """Solve for the variances that have fallen far since that was last done.

        By then the rounding errors of what was taken off may be large beside them.
        """
        if self._floor is None:
            self._floor = torch.full_like(self.var, self.FALLEN * self._scale**2)
        if self._forgotten:  # variances may have risen
            torch.maximum(self._floor, self.FALLEN * self.var, out=self._floor)
        fallen = (self.var < self._floor).any(0).nonzero()[:, 0]
        for some in fallen.split(self.SOLVED_TOGETHER):
            _, var = self.history.at(self.points_of(some + self.stretch[0]))
            self.var[:, some] = var.clamp_min(0).to(self.dtype)
            self._floor[:, some] = self.FALLEN * self.var[:, some]

    def at(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Means ``(T, F, k)`` and variances ``(T, k)`` at ``index (T, k)`` in reach."""
        self.settle()
        index = index - self.stretch[0]
        places = index.unsqueeze(1).expand(-1, self.functions, -1)
        return self.mean.gather(-1, places), self.var.gather(-1, index)

    def check(self) -> None:
        """Compare a few actions with a fresh solve; refresh if they have drifted.

        An error that stays is the dtype's: a warning says so, once.
        """
        if self.history.used == 0:
            return
        self.settle()
        self.drift = self._off()
        # NaN counts as drift
        if self.drift <= (1e-10 if self.dtype == torch.float64 else 1e-4):
            return
        self.refresh()
        if self.dtype == torch.float64 or self._told:
            return
        left = self._off()
        if left > self.NARROW:
            self._told = True
            warn(
                f"beliefs in {str(self.dtype).removeprefix('torch.')} are off by "
                f"{left:.2g} of their size: outcomes that differ far more than the "
                "belief's noise= says need dtype='float64'",
                RuntimeWarning,
            )

    def _off(self) -> float:
        """The largest relative error of a few actions against a fresh solve."""
        size = self.var.shape[-1]
        count = min(self.CHECK_ACTIONS, size)
        offset = (self._changes * 7919) % size
        index = (
            torch.arange(count, device=self.device) * (size // count) + offset
        ) % size + self.stretch[0]
        places = index.expand(len(self._trial), -1)
        mean, var = self.history.at(self.points_of(index))
        seen_mean, seen_var = self.at(places)
        scale = self._scale + float(mean.abs().max())
        off = torch.stack(
            [
                (seen_mean.double() - mean).abs().max() / scale,
                (seen_var.double() - var).abs().max() / self._scale**2,
            ]
        )
        return float(off.max())

    def begin(
        self, streams: Streams | None = None, ahead: Coming | None = None
    ) -> BlockPass:
        """Begin a pass that applies what waits, block by block."""
        if self.history.cancels:
            self.settle()
        number, self.history.stands_for = self.history.stands_for, None
        less = None if ahead is None else self._ahead(ahead)
        changes = self._columns()
        draw = None if streams is None else self._draw(streams)
        if changes is None:
            self.history.stands_for = number
        return BlockPass(self, changes, less, draw, lambda: self.settled(number))

    @property
    def fused(self) -> Fused | None:
        """One kernel's pass: on CUDA, by compiled loops, or as a backend insists."""
        known = self.device.type == "cuda" or native(self.mean)
        return self._find if known or self.BACKEND else None

    def _find(self, look: Look, streams: Streams | None = None) -> Best:
        """Apply what was told and find the best action, in one pass over all."""
        many = len(self._pending) > self.FUSED_LIMIT
        if self._assign or many or self.history.cancels:
            self.settle()
        number, self.history.stands_for = self.history.stands_for, None
        weights, spread, shift = self._stacked(len(self._pending))
        draw = None if streams is None else self._draw(streams)
        change = Change(spread, shift)
        go = self.rows.rounds(weights, change, look, draw, self.BACKEND)
        step = self.actions.size if self.rows.seamless(draw) else self.step
        cuts = [(start, self.own(start, stop)) for start, stop in self.stretches(step)]
        found = [go(start, self.mean[..., at], self.var[:, at]) for start, at in cuts]
        self.settled(number)
        if len(found) == 1:
            return Best(found[0].value, found[0].index, found[0].estimate)
        return self._first(look, draw, cuts, found)

    def _first(
        self,
        look: Look,
        draw: Columns | None,
        cuts: list[tuple[int, slice]],
        found: list[Found],
    ) -> Best:
        """The first action that comes close enough to the greatest score of all.

        Each stretch has told what comes close to its own greatest score. Where that is
        less, it is looked at once more.
        """
        value = torch.stack([each.value for each in found])
        top = value.amax(0)
        chosen = (value >= look.reach(top)).to(torch.uint8).argmax(0)
        own = value[chosen, self._trial]
        if bool((own < top).any()):
            closer = look.closer(own, look.reach(top))
            weights, spread, shift = self._stacked(0)
            change = Change(spread, shift)
            go = self.rows.rounds(weights, change, closer, draw, self.BACKEND)
            for k in set(chosen.tolist()):
                start, at = cuts[k]
                found[k] = go(start, self.mean[..., at], self.var[:, at])
        index = torch.stack([each.index for each in found])
        estimate = torch.stack([each.estimate for each in found])
        return Best(top, index[chosen, self._trial], estimate[chosen, self._trial])

    def _stacked(self, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pending changes: weights ``(T, U, columns)``, zeros after them, and what
        squares ``(T, k)`` and columns ``(T, F, k)`` are multiplied by.
        """
        trials, count = len(self._trial), len(self._pending)
        kept: dict[str, Any] = {"dtype": torch.float64, "device": self.device}
        weights = torch.zeros(trials, self.history.used, columns, **kept)
        spread = torch.zeros(trials, count, **kept)
        shift = torch.zeros(trials, self.functions, count, **kept)
        for j, (w, s, m) in enumerate(self._pending):
            weights[:, : w.shape[-1], j] = w
            spread[:, j], shift[..., j] = s, m
        return weights, spread, shift

    def _ahead(self, ahead: Coming) -> Columns:
        """Columns whose squares are the share of the variance that choices take off.

        They are combinations of kernel rows: the choices get slots of their own, in
        which nothing has been seen.
        """
        places = []
        for names, x in zip(ahead.keys, ahead.x, strict=True):
            slots = self._place(names, x, [True] * len(self._trial))
            if slots is None:
                raise CBanditError("an outstanding choice has no place")
            places.append(slots)
        self.history.look_ahead(places)
        slot = devices.put(places, self.device).mT  # T x b
        gram, system = self.history.gram, self.history.system()
        k = gram.gather(-1, slot.unsqueeze(1).expand(-1, gram.shape[1], -1))
        w = system.solve(k)
        at = slot.unsqueeze(-1).expand(-1, -1, slot.shape[-1])
        inner = (k - gram @ w).gather(1, at)
        ones = torch.ones_like(slot, dtype=w.dtype).unsqueeze(1)
        weights = (-w).scatter_add_(1, slot.unsqueeze(1), ones)
        z = explained(inner, weights.mT, ahead.precision)
        return self.rows.multiply(z.mT)

    def _columns(self) -> Changes | None:
        if not self._pending and not self._assign:
            return None
        count, means = len(self._pending), self.functions if self._assign else 0
        weights, spread, shift = self._stacked(count + means)
        if means:
            used = self.history.used
            weights[..., count:] = self.history.system().weights(used)
        return Changes(
            self.rows.multiply(weights),
            count,
            spread.to(self.dtype) if count else None,
            None if means else shift.to(self.dtype),
        )

    def _draw(self, streams: Streams) -> Columns:
        """A posterior draw less its mean: a prior draw, corrected at what was tried."""
        used, functions = self.history.used, self.functions
        points = self.history.points[:, :used]
        path = self.rows.path(streams, functions, points)
        return path.corrected(correction(self.history, path.tried, streams))

    # -- memory ------------------------------------------------------------------

    def make_room(self) -> None:
        """Keep no rows any more, where they no longer fit in memory."""
        used = self.history.used
        if not self.keeps_rows or used % 32:
            return
        if 2 * 32 * self.rows.bytes_per_row() <= free_memory(self.device):
            return
        rows = self.rows.roomier()
        if rows is None:
            return
        every = list(range(len(self._trial)))
        for slot in range(used):
            points = self.history.points[:, slot]
            rows.write(every, [slot] * len(every), points, ())
        self.rows = rows
        self.plan = Plan(rows.name, "kernel rows no longer fit in memory")

    def covariances(self, to: Tensor) -> Between:
        """Posterior covariances ``(T, n, o)`` and variances, by a dense solve."""
        of = self.history.covariances(self.points_of(to).double())
        return lambda at: of(self.points_of(at).double())

    def bytes(self) -> int:
        """Bytes that the arrays take now."""
        own: int = self.mean.nbytes + self.var.nbytes
        if self._floor is not None:
            own += self._floor.nbytes
        return own + self.history.used * self.rows.bytes_per_row()
