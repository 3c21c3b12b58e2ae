"""The engines for large sets: means and variances kept in place, passed over in blocks.

The posterior covariance of a tried action ``x`` with all actions is a combination of
kernel rows, ``c = k(x, .) - sum_i w_i k(x_i, .)``; an observation changes the means by
a multiple of ``c`` and the variance by a multiple of ``c^2``. The rows come from
:mod:`cbandit.posterior.rows`; weights, and everything that decides by how much to
change, come from the small float64 system.

Variances are exact to within 1e-10 of the prior's, mostly 1e-13 (in float32 1e-4 and
1e-6): a deviation whose square is less is known no better.

Changes wait until the next pass, which applies them, block by block, just before the
block is handed out: a round reads and writes each number once. On CUDA one kernel does
all of it, score and argmax included.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.actions import Finite, ProductGrid
from cbandit.actions.partition import Block, free_memory, partition
from cbandit.errors import CBanditError
from cbandit.posterior.ahead import Coming, explained
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.draws.features import correction
from cbandit.posterior.engines.protocol import Base, Fused, Plan
from cbandit.posterior.history import History
from cbandit.posterior.look import Best, Look
from cbandit.posterior.rows.protocol import Columns, Rows
from cbandit.posterior.system import Spot
from cbandit_kernels import Change, best_found, native

__all__ = ["Swept"]


class Swept(Base):
    """Means ``(T, F, N)`` and variance ``(T, N)``, from kernel rows.

    With a ``stretch`` of the actions, of these alone: its first, and one past its last.
    """

    keeps_all = False

    BACKEND: str | None = None  # "triton" insists on its kernels, on the CPU too
    PENDING_LIMIT = 32
    FUSED_LIMIT = 4  # changes that one kernel applies in passing
    REFRESH_BYTES = 1 << 30
    REWEIGH_EVERY = 64  # reverse changes, after which the means are computed afresh
    CHECK_EVERY = 512
    CHECK_ACTIONS = 32
    NARROW = 1e-2  # off by more after a refresh: the dtype is too narrow

    def __init__(
        self,
        actions: Finite | ProductGrid,
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
        self.actions, self.covariance, self.rows = actions, covariance, rows
        self.dtype, self.device, self._block = dtype, device, block
        self.plan = plan or Plan(rows.name, "asked for")
        self._trial = torch.arange(trials, device=device)
        self.stretch = stretch or (0, actions.size)
        size = self.stretch[1] - self.stretch[0]
        kept: dict[str, Any] = {"dtype": dtype, "device": device}
        self.mean = torch.zeros(trials, functions, size, **kept)
        self.var = torch.empty(trials, size, **kept)
        self._to_prior()
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
        self._to_prior()
        self._begin_anew(functions)
        self.history.sharp = sharp

    def _begin_anew(self, functions: int) -> None:
        trials, self.functions = len(self._trial), functions
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []
        self._assign = False  # whether the means are of older targets
        self._changes = self._forgotten = 0
        self.drift = 0.0
        self.refreshes = 0
        self._told = False
        self.history = History(self.covariance, trials, functions, self.device)

    def _to_prior(self) -> None:
        for start, stop in self._stretches(self.small):
            self.var[:, self._own(start, stop)] = self._prior(start, stop)

    def _shared(self) -> list[Any]:
        return [self.covariance, self.actions]

    def covers(self, stretch: tuple[int, int] | None) -> bool:
        """Whether it keeps this stretch of the set; ``None``: the whole."""
        return self.stretch == (stretch or (0, self.actions.size))

    @property
    def block(self) -> int | None:
        """Actions that a stretch should hold."""
        return self._block

    @property
    def drifts(self) -> bool:
        """Whether its dtype is so narrow that forgetting leaves errors."""
        return self.dtype != torch.float64

    @property
    def small(self) -> int:
        """Actions in a stretch whose temporaries are large or many."""
        return 1 << 22 if self.device.type == "cuda" else 1 << 16

    def _stretches(self, target: int) -> Iterator[tuple[int, int]]:
        return partition(self.actions, target, *self.stretch)

    def _own(self, start: int, stop: int) -> slice:
        """Where the actions ``start .. stop - 1`` are kept."""
        return slice(start - self.stretch[0], stop - self.stretch[0])

    def _prior(self, start: int, stop: int) -> Tensor:
        return self.covariance.variance(self.actions.block(start, stop))

    # -- changes ---------------------------------------------------------------

    def append(
        self,
        keys: Sequence[Hashable],
        x: Tensor,
        values: Tensor,
        precision: Tensor,
        wanted: Sequence[bool],
        usual: bool = False,
    ) -> None:
        """Condition on ``values (T, F)`` seen with ``precision (T,)`` at ``x``."""
        slots = self._place(keys, x, wanted)
        if slots is None:
            return
        spot = self.history.at_slot(devices.put(slots, self.device))
        self._pending.append(self._change(spot, values, precision))
        self._assign |= self.history.clashes(slots, precision, usual)
        self.history.add(slots, precision, values, spot=spot, usual=usual)
        self.history.count(slots, wanted, 1)
        self._changed()

    def forget(
        self,
        keys: Sequence[Hashable],
        x: Tensor,
        values: Tensor,
        precision: Tensor,
        wanted: Sequence[bool],
        usual: bool = False,
    ) -> None:
        """The reverse of :meth:`append`, from the system without the observation."""
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

    def observe(
        self,
        keys: Sequence[Sequence[Hashable]],
        x: Tensor,
        values: Tensor,
        precision: Tensor,
        wanted: Sequence[Sequence[bool]],
    ) -> None:
        """Condition on many rows at once, then compute everything afresh."""
        for row, row_keys in enumerate(keys):
            slots = self._place(row_keys, x[row], wanted[row])
            if slots is None:
                continue
            self.history.add(slots, precision[row], values[row])
            self.history.count(slots, wanted[row], 1)
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
        if self._changes % self.CHECK_EVERY == 0:
            self.check()

    def revise(self, weighted: Tensor) -> None:
        """Replace all targets: ``weighted (T, F, U)`` sums of precision x target."""
        self.history.revise(weighted)
        self._assign = True

    def correct(
        self, keys: Sequence[Hashable], change: Tensor, wanted: Sequence[bool]
    ) -> None:
        """Change targets at ``keys`` by ``change (T, F)``, times their precision."""
        nowhere = self.history.points.new_zeros(len(keys), self.covariance.dim)
        slots, _ = self.history.place(keys, nowhere, wanted)
        self.history.correct(devices.put(slots, self.device), change)
        self._assign = True

    def refresh(self) -> None:
        """Compute means and variances afresh from the history: no drift is left."""
        number, self.history.stands_for = self.history.stands_for, None
        self._refresh()
        self.history.stands_for = number

    def _refresh(self) -> None:
        self._pending.clear()
        self._assign = False
        self.refreshes += 1
        self.history.release()
        used = self.history.used
        if used == 0:
            self.mean.zero_()
            self._to_prior()
            return
        system = self.history.system(fresh=True)
        inverse = torch.linalg.solve_triangular(
            system.factor, torch.diag_embed(system.root), upper=False
        )
        means = self.rows.multiply(system.alpha)
        each, room = self.rows.bytes_per_column(), self._room()
        if each * used > room:
            self._refresh_by_groups(means, inverse, max(1, room // each))
            return
        # var = k(x, x) - |L^-1 S k_u(x)|^2, a few columns of weights at a time; on CUDA
        # all, for kernel values are made once for each group
        group, step = 64, min(self._block, 1 << 15)
        if self.device.type == "cuda":
            group, step = used, self._step(used)
        halves = [
            self.rows.multiply(inverse[:, i : i + group].mT)
            for i in range(0, used, group)
        ]
        for start, stop in self._stretches(step):
            own = self._own(start, stop)
            self.mean[..., own] = means(start, stop)
            explained = torch.zeros(
                self.var[:, own].shape, dtype=torch.float64, device=self.device
            )
            for half in halves:
                explained += half(start, stop).double().square().sum(-2)
            self.var[:, own] = self._prior(start, stop) - explained

    def _refresh_by_groups(self, means: Columns, inverse: Tensor, group: int) -> None:
        """The same where the columns' own factors do not fit in memory together."""
        step = self._step(group)
        for start, stop in self._stretches(step):
            own = self._own(start, stop)
            self.mean[..., own] = means(start, stop)
            self.var[:, own] = self._prior(start, stop)
        for i in range(0, self.history.used, group):
            half = self.rows.multiply(inverse[:, i : i + group].mT)
            for start, stop in self._stretches(step):
                self.var[:, self._own(start, stop)] -= (
                    half(start, stop).square().sum(-2)
                )

    def _step(self, columns: int) -> int:
        """A stretch of which some columns fit in memory."""
        return max(1 << 12, self._room() // (8 * len(self._trial) * columns))

    def _room(self) -> int:
        """Bytes that a refresh may take in passing."""
        if self.device.type != "cuda":
            return self.REFRESH_BYTES
        return max(self.REFRESH_BYTES, free_memory(self.device) // 16)

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
            for start, stop in self._stretches(self._block):
                own = self._own(start, stop)
                changes(start, stop, self.mean[..., own], self.var[:, own])
        self._settled(number)

    def _settled(self, number: int | None) -> None:
        """Nothing waits any more: the arrays stand for the log of this number."""
        self.history.stands_for = None
        self._pending.clear()
        self._assign = False
        self.history.release()
        self.history.stands_for = number

    def at(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Means ``(T, F, k)`` and variances ``(T, k)`` at ``index (T, k)`` in reach."""
        self.settle()
        index = index - self.stretch[0]
        places = index.unsqueeze(1).expand(-1, self.functions, -1)
        return self.mean.gather(-1, places), self.var.gather(-1, index)

    def check(self) -> None:
        """Compare a few actions with a fresh solve; refresh if they have drifted.

        What is off even then is the dtype's doing: a warning says so, once.
        """
        if self.history.used == 0:
            return
        self.settle()
        self.drift = self._off()
        # what is not a number has drifted too
        if self.drift <= (1e-10 if self.dtype == torch.float64 else 1e-4):
            return
        self.refresh()
        if self.dtype == torch.float64 or self._told:
            return
        left = self._off()
        if left > self.NARROW:
            self._told = True
            warnings.warn(
                f"beliefs in {str(self.dtype).removeprefix('torch.')} are off by "
                f"{left:.2g} of their size: outcomes that differ far more than the "
                "belief's noise= says need dtype='float64'",
                RuntimeWarning,
                stacklevel=2,
            )

    def _off(self) -> float:
        """By how much a few actions differ from a fresh solve, relative to the size."""
        size = self.var.shape[-1]
        count = min(self.CHECK_ACTIONS, size)
        offset = (self._changes * 7919) % size
        index = (
            torch.arange(count, device=self.device) * (size // count) + offset
        ) % size + self.stretch[0]
        places = index.expand(len(self._trial), -1)
        mean, var = self.history.at(self._points(index))
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
    ) -> _Pass:
        """Begin a pass that applies what waits, block by block."""
        number, self.history.stands_for = self.history.stands_for, None
        less = None if ahead is None else self._ahead(ahead)
        changes = self._columns()
        draw = None if streams is None else self._draw(streams)
        if changes is None:
            self.history.stands_for = number
        return _Pass(self, changes, less, draw, number)

    @property
    def fused(self) -> Fused | None:
        """One kernel's pass: on CUDA, by compiled loops, or as a backend insists."""
        known = self.device.type == "cuda" or native(self.mean)
        return self._find if known or self.BACKEND else None

    def _find(self, look: Look, streams: Streams | None = None) -> Best:
        """Apply what was told and find the best action, in one pass over all."""
        if self._assign or len(self._pending) > self.FUSED_LIMIT:
            self.settle()
        number, self.history.stands_for = self.history.stands_for, None
        weights, spread, shift = self._stacked(len(self._pending))
        draw = None if streams is None else self._draw(streams)
        go = self.rows.rounds(weights, Change(spread, shift), look, self.BACKEND)
        whole = self.rows.seamless and draw is None
        found = []
        for start, stop in self._stretches(self.actions.size if whole else self._block):
            drawn = None if draw is None else draw(start, stop).to(self.dtype)
            own = self._own(start, stop)
            mean, var = self.mean[..., own], self.var[:, own]
            found.append(go(start, mean, var, drawn))
        self._settled(number)
        value, index, estimate = best_found(found)
        return Best(value, index, estimate[:, 0], estimate[:, 1:])

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

    def _columns(self) -> _Changes | None:
        if not self._pending and not self._assign:
            return None
        count, means = len(self._pending), self.functions if self._assign else 0
        weights, spread, shift = self._stacked(count + means)
        if means:
            used = self.history.used
            weights[..., count:] = self.history.system().weights(used)
        return _Changes(
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
        if self.name != "factor" or used % 32:
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

    def covariances(self, at: Tensor, to: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Posterior covariances ``(T, n, o)`` and variances, by a dense solve."""
        x, y = (self._points(index).double() for index in (at, to))
        return self.history.covariances(x, y)

    def _points(self, index: Tensor) -> Tensor:
        """Actions ``(n, d)``, or ``(T, n, d)`` of sets of their own, by number."""
        if self.actions.batch_shape:
            index = index.expand(len(self._trial), -1)
        return self.actions.at(index)

    def bytes(self) -> int:
        """Bytes that the arrays take now."""
        own: int = self.mean.nbytes + self.var.nbytes
        return own + self.history.used * self.rows.bytes_per_row()


class _Pass:
    """A pass over the blocks of an engine, with what waits applied on the way."""

    __slots__ = ("_changes", "_draw", "_engine", "_history", "_less", "_number")

    def __init__(
        self,
        engine: Swept,
        changes: _Changes | None,
        less: Columns | None,
        draw: Columns | None,
        number: int | None,
    ) -> None:
        self._engine, self._changes, self._number = engine, changes, number
        self._less, self._draw, self._history = less, draw, engine.history

    def block(self, start: int, stop: int) -> Block:
        """The stretch ``start .. stop - 1``, current."""
        engine, draw = self._engine, self._draw
        self._check()
        own = engine._own(start, stop)
        mean, var = engine.mean[..., own], engine.var[:, own]
        if self._changes is not None:
            self._changes(start, stop, mean, var)
        if self._less is not None:
            var = var - self._less(start, stop).square().sum(-2)
        return Block(
            start,
            stop,
            mean,
            var.clamp_min(0).sqrt_().unsqueeze(1),
            None if draw is None else draw(start, stop),
        )

    def end(self) -> None:
        """Note that nothing waits any more."""
        self._check()
        self._engine._settled(self._number)

    def _check(self) -> None:
        if self._engine.history is not self._history:
            raise CBanditError("beliefs must not be read within a score of theirs")


class _Changes:
    """Pending changes as columns; applied to one stretch at a time, in place."""

    def __init__(
        self, columns: Columns, count: int, spread: Tensor | None, shift: Tensor | None
    ) -> None:
        self._columns, self._count = columns, count
        self._spread, self._shift = spread, shift
        self._single = False
        self._shifts: list[float] = []
        if spread is not None and not spread.is_cuda:
            self._single = spread.numel() == 1
        if shift is not None and not shift.is_cuda:
            self._shifts = shift.flatten().tolist()
        self._value = -float(spread) if self._single and spread is not None else 0.0

    def __call__(self, start: int, stop: int, mean: Tensor, var: Tensor) -> None:
        columns, count = self._columns(start, stop), self._count
        if self._shift is None:
            mean.copy_(columns[:, count:])
        elif self._single and self._shift.device.type == "cpu":
            for row, shift in zip(mean[0], self._shifts, strict=True):
                row.add_(columns[0, 0], alpha=shift)
        else:
            mean.baddbmm_(self._shift, columns)
        if self._spread is None:
            return
        if self._single:
            var.addcmul_(columns[:, 0], columns[:, 0], value=self._value)
            return
        changes = columns[:, :count]
        var -= (self._spread.unsqueeze(1) @ changes.square()).squeeze(1)
