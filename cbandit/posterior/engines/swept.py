"""The engines for large sets: means and variances kept in place, updated in blocks.

The posterior covariance of a tried action ``x`` with all actions is a combination of
kernel rows, ``c = k(x, .) - sum_i w_i k(x_i, .)``. An observation changes the means by
a multiple of ``c`` and the variances by a multiple of ``c^2``. The rows come from
:mod:`cbandit.posterior.rows`; the weights and multiples come from the small float64
system.

Each change leaves a rounding error in the variance. The error stays when the variance
falls, and would hide small deviations if the noise is below 1e-5 of the prior variance.
So with such noise, a variance that has fallen to a tenth is solved for from the small
system before the set is looked at, a few times for each action in all. Just after a
refresh in float64, only variances below a millionth of the prior's need this.
Deviations are within 1e-8 of the prior's down to noise of 1e-12 (in float32 within
1e-3), unless actions are so close that rounded kernel values no longer differ.

Outstanding choices have a second array of variances, given the data and these choices
together. It is kept from look to look: a choice changes it once when it opens, and once
if it is cancelled. When a choice is told, data and open choices together stay the same,
and so does the array.

Changes are collected until the next pass, which applies them block by block, just
before a block is yielded: a round reads and writes each number once. On CUDA one kernel
does all of it, score and argmax included.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.devices import free_memory
from cbandit._core.randomness import Streams
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Prior
from cbandit.posterior.digits import Kept
from cbandit.posterior.draws.features import correction
from cbandit.posterior.engines.protocol import Engine, Fused, Plan
from cbandit.posterior.log import Update
from cbandit.posterior.look import Best, Block, first_of
from cbandit.posterior.pending import Coming, explained
from cbandit.posterior.rows.protocol import Columns, Rows
from cbandit.posterior.system import Spot, System
from cbandit_kernels import Change, Found, Look, native

SAME = 1e-12  # share of a precision by which two orders of summing may differ


class Swept(Engine):
    """An engine of means and variances over ``n`` actions, updated by kernel rows.

    Args:
        prior: the set, and its stretch that is stored here.
        functions: ``F``.
        plan: the engine's name and the reason for it.
        rows: where kernel rows come from.
        step: how many actions are computed together.
    """

    keeps_all = False
    opens = True
    BACKEND: str | None = None  # "triton" requires its kernels, on the CPU too
    REFRESH_BYTES = 1 << 30
    PENDING_LIMIT = 32
    FUSED_LIMIT = 4  # changes that one kernel applies on the way
    REWEIGH_EVERY = 64  # removals after which the means are computed afresh
    FALLEN = 0.1  # a variance below this share of its last solve is solved for again
    LOST = 1e-6  # share of the prior's; a refresh loses smaller variances in rounding
    SOLVED_TOGETHER = 1 << 12

    step: int
    _opened: _Opened | None = None

    def __init__(
        self, prior: Prior, functions: int, plan: Plan, rows: Rows, step: int
    ) -> None:
        self.dtype, self.device, self._ends = prior.dtype, prior.device, prior.ends
        self.rows, self.keeps_rows, self.step = rows, rows.kept, step
        self.by_features = rows.by_features
        shape = prior.trials, self._ends[1] - self._ends[0]
        self.var = torch.empty(shape, dtype=self.dtype, device=self.device)
        self.mean = self.var.new_zeros(shape[0], functions, shape[1])
        self._trial = torch.arange(shape[0], device=self.device)
        super().__init__(prior, functions, plan)
        self._scale = float(self.var[:, :1024].double().mean().clamp_min(1e-300)) ** 0.5

    def clear(self, functions: int) -> None:
        """Forget everything; from now on there are ``functions`` functions."""
        super().clear(functions)
        self.rows.clear()
        trials, old, size = self.mean.shape
        if functions != old:
            self.mean = self.mean.new_zeros(trials, functions, size)
        self._to_prior()
        self._pending: list[_Pending] = []
        self._floor: Tensor | None = None  # smaller variances are solved for
        self._opened = None
        self._forgotten = self.refreshes = 0
        self._room_for = 32  # actions tried, at which memory is looked at next

    def describe(self) -> str:
        """Return the engine's name, the reason for it, and how rows are stored."""
        words = filter(None, (self.plan.why, self.rows.remark))
        return f"{self.plan.name} ({'; '.join(words)})"

    def covers(self, stretch: tuple[int, int] | None) -> bool:
        """Return whether it stores this stretch of the set; ``None``: all of it."""
        return self._ends == (stretch or (0, self.prior.actions.size))

    # -- arrays ----------------------------------------------------------------------

    def stretches(self, target: int) -> Iterator[tuple[int, int]]:
        """Cut the stored actions into stretches of about ``target`` actions."""
        return self.prior.actions.stretches(target, *self._ends)

    def arrays(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return views of a stretch's means ``(T, F, n)`` and variances ``(T, n)``."""
        at = slice(start - self._ends[0], stop - self._ends[0])
        return self.mean[..., at], self.var[:, at]

    def _prior(self, start: int, stop: int) -> Tensor:
        """Return the prior variances of a stretch, ``(1 or T, n)``."""
        covariance, actions = self.prior.covariance, self.prior.actions
        if not covariance.level:
            return covariance.variance(actions.block(start, stop))
        # computing a grid's points takes longer than all that follows
        one = covariance.variance(actions.block(start, start + 1))
        return one.expand(*one.shape[:-1], stop - start)

    def _to_prior(self) -> None:
        # temporaries are large or many
        step = 1 << 22 if self.device.type == "cuda" else 1 << 16
        for start, stop in self.stretches(step):
            mean, var = self.arrays(start, stop)
            mean.zero_()
            self._raise(start, stop, mean)
            var.copy_(self._prior(start, stop))

    def _raise(self, start: int, stop: int, mean: Tensor) -> None:
        """Add what varies in the prior means to a stretch's means, in place."""
        if self.prior.mean is not None:
            mean.copy_(self.raised(mean, self.prior.actions.block(start, stop)))

    # -- changes ---------------------------------------------------------------

    def add(self, update: Update) -> None:
        """Condition on one more observation."""
        slots = self.place(update)
        if slots is None:
            return
        spot = self.history.at_slot(devices.put(slots, self.device))
        self._pending.append(self._change(spot, update))
        self.stale |= self.history.clashes(slots, update)
        self.history.enter(slots, update, spot=spot)
        self._changed()

    def remove(self, update: Update) -> None:
        """Remove an observation, using the system without it."""
        slots = self.place(update)
        if slots is None:
            return
        self.history.enter(slots, update, -1)
        spot = self.history.at_slot(devices.put(slots, self.device))
        change = self._change(spot, update)
        self._pending.append(_Pending(change.weights, -change.spread, -change.shift))
        self._forgotten += 1
        # rounding errors of changes add up, even if the changes cancel
        self.stale |= self._forgotten % self.REWEIGH_EVERY == 0
        self.stale |= self.history.clashes(slots, update)
        self._changed()

    def place(self, update: Update) -> list[int] | None:
        """Return an observation's slots; write the kernel rows of new ones."""
        return self._placed(update.keys, update.x, update.wanted)

    def _placed(
        self, keys: Sequence[Hashable], x: Tensor, wanted: Sequence[bool]
    ) -> list[int] | None:
        slots, fresh = self.history.place(keys, x, wanted)
        if fresh:
            new, names = [slots[i] for i in fresh], [keys[i] for i in fresh]
            points = x if len(fresh) == len(x) else x[devices.put(fresh, self.device)]
            self.rows.write(fresh, new, points, names)
        return slots if self.history.used else None

    def _change(self, spot: Spot, update: Update) -> _Pending:
        weights = self.history.system().column(spot, self.history.used)
        spread = update.precision / (1 + update.precision * spot.var)
        shift = (update.values - spot.mean) * spread.unsqueeze(-1)
        return _Pending(weights, spread, shift)

    def _changed(self) -> None:
        if len(self._pending) >= self.PENDING_LIMIT:
            self.settle()
        super()._changed()

    def refresh(self) -> None:
        """Compute means and variances afresh from the history, without drift."""
        with self.history.writing():
            self._pending.clear()
            self.stale = False
            self.refreshes += 1
            self.history.release()
            self._compute_afresh()
            self._floor = self._opened = None
            if self.history.sure():
                share = self.LOST if self.dtype == torch.float64 else self.FALLEN
                lost = torch.full_like(self.var, share * self._scale**2)
                self._solve_for_fallen(self.var, lost)
                self._floor = self.FALLEN * self.var

    def _compute_afresh(self) -> None:
        used = self.history.used
        if used == 0:
            self._to_prior()
            return
        system = self.history.system(fresh=True)
        inverse = torch.linalg.solve_triangular(
            system.factor, torch.diag_embed(system.root), upper=False
        )
        means = self.rows.multiply(system.alpha)
        # var = k(x, x) - |L^-1 S k_u(x)|^2, a few columns of weights at a time; on CUDA
        # all at once, as kernel values are computed once for each group
        column, room = self.rows.bytes_per_column(), self._room()
        group, step = 64, min(self.step, 1 << 15)
        if self.device.type == "cuda":
            group, step = used, self._stretch_of(used)
        together = used
        if column * used > room:  # the columns' own factors do not fit together
            group = together = max(1, room // column)
            step = self._stretch_of(group)
        for first in range(0, used, together):
            last = min(first + together, used)
            halves = [
                self.rows.multiply(inverse[:, i : min(i + group, last)].mT)
                for i in range(first, last, group)
            ]
            for start, stop in self.stretches(step):
                mean, var = self.arrays(start, stop)
                if first == 0:
                    mean.copy_(means(start, stop))
                    self._raise(start, stop, mean)
                taken = torch.zeros(var.shape, dtype=torch.float64, device=self.device)
                for half in halves:
                    taken += half(start, stop).double().square_().sum(-2)
                var.copy_((self._prior(start, stop) if first == 0 else var) - taken)

    def _stretch_of(self, columns: int) -> int:
        """Return the length of a stretch so that ``columns`` columns fit in memory."""
        return max(1 << 12, self._room() // (8 * len(self._trial) * columns))

    def _room(self) -> int:
        """Return the bytes that temporaries of a refresh may take."""
        if self.device.type != "cuda":
            return self.REFRESH_BYTES
        return max(self.REFRESH_BYTES, free_memory(self.device) // 16)

    def settle(self) -> None:
        """Apply all waiting changes."""
        if not self._pending and not self.stale:
            return
        with self.history.writing():
            changes = self._columns()
            if changes is not None:
                for start, stop in self.stretches(self.step):
                    changes(start, stop, *self.arrays(start, stop))
            if self.history.cancels:
                self._floor = self._solve_for_fallen(self.var, self._floor)
            self._settled()

    def _settled(self) -> None:
        """Mark all waiting changes as applied."""
        self._pending.clear()
        self.stale = False
        if self.history.release():
            self._opened = None  # it may include an action whose slot is free now

    def _solve_for_fallen(
        self, var: Tensor, floor: Tensor | None, ahead: Coming | None = None
    ) -> Tensor:
        """Solve again for variances that have fallen far since their last solve.

        What remains of them may be mostly rounding error. Return the floor ``(T, n)``
        below which they are to be solved for next.
        """
        if floor is None:
            floor = torch.full_like(var, self.FALLEN * self._scale**2)
        if self._forgotten or ahead is not None:  # variances may have risen
            torch.maximum(floor, self.FALLEN * var, out=floor)
        fallen = (var < floor).any(0).nonzero()[:, 0]
        for some in fallen.split(self.SOLVED_TOGETHER):
            _, solved = self.history.at(self.points_of(some + self._ends[0]), ahead)
            var[:, some] = solved.clamp_min(0).to(self.dtype)
            floor[:, some] = self.FALLEN * var[:, some]
        return floor

    def at_numbers(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``(T, F, k)`` and variances ``(T, k)`` at stored actions."""
        self.settle()
        index = index - self._ends[0]
        places = index.unsqueeze(1).expand(-1, self.functions, -1)
        return self.mean.gather(-1, places), self.var.gather(-1, index)

    # -- digits ----------------------------------------------------------------------

    def _checked(self) -> tuple[Tensor, Kept] | None:
        (first, last), used = self._ends, self.history.used
        if not used:
            return None
        numbers = torch.full((len(self._trial), used), first)
        for row, keys in zip(numbers, self.history.keys(), strict=True):
            for slot, key in enumerate(keys):
                if isinstance(key, int) and first <= key < last:
                    row[slot] = key
        precision = self.history.precision[:, :used].cpu()
        surest = precision.topk(min(self.SUREST, used)).indices
        index, points = self._with_others(numbers.gather(1, surest))
        return points, Kept(*self.at_numbers(index))

    def _mends(self) -> Iterable[Callable[[], None]]:
        if not self.drifts:
            return [self.refresh]
        return [self._mend_sure, self.refresh, self._solve_everywhere]

    def _mend_sure(self) -> None:
        """Solve again for the variances that have fallen far."""
        if self.history.sure():
            with self.history.writing():
                self._floor = self._solve_for_fallen(self.var, self._floor)
                self._opened = None

    def _solve_everywhere(self) -> None:
        """Solve for all means and variances in float64.

        It takes longer than a refresh, whose sums of kernel rows have the arrays' dtype
        and lose digits where their weights are large.
        """
        with self.history.writing():
            for start, stop in self.stretches(self.SOLVED_TOGETHER):
                mean, var = self.arrays(start, stop)
                solved, left = self.at(self.prior.actions.block(start, stop).double())
                mean.copy_(solved)
                var.copy_(left.clamp_min(0))

    # -- looking ---------------------------------------------------------------------

    def blocks(
        self,
        stretches: Iterable[tuple[int, int]],
        streams: Streams | None = None,
        ahead: Coming | None = None,
    ) -> Iterator[Block]:
        """Yield the stored set in blocks, and apply collected changes on the way."""
        if self.history.cancels:
            self.settle()
        history, whole = self.history, self.history.whole
        history.whole = False
        opened = None if ahead is None else self._open(ahead)
        changes = self._columns()
        path = None if streams is None else self._draw(streams)
        if changes is None:  # nothing is written, so the caller may stop anywhere
            history.whole = whole
        for start, stop in stretches:
            mean, var = self.arrays(start, stop)
            if changes is not None:
                changes(start, stop, mean, var)
            if opened is not None:
                var = opened.var[:, start - self._ends[0] : stop - self._ends[0]]
            std = var.clamp_min(0).sqrt_().unsqueeze(1)
            draw = None if path is None else path(start, stop)
            yield Block(start, stop, mean, std, draw)
            if self.history is not history:
                raise CBanditError("beliefs must not be read within a score of theirs")
        if changes is not None:
            self._settled()
            history.whole = whole
        if opened is not None:
            history.release()  # it counts what it should: no slot that comes free
            self._opened = opened

    @property
    def fused(self) -> Fused | None:
        """The kernel that updates and scores in one pass, if there is one."""
        known = self.device.type == "cuda" or native(self.mean)
        return self._find if known or self.BACKEND else None

    def _find(
        self, look: Look, streams: Streams | None = None, ahead: Coming | None = None
    ) -> Best:
        """Apply collected changes and find the best action, in one pass."""
        many = len(self._pending) > self.FUSED_LIMIT
        if self.stale or many or self.history.cancels or ahead is not None:
            self.settle()
        opened = None if ahead is None else self._open(ahead)
        variances = self.var if opened is None else opened.var

        def arrays(start: int, stop: int) -> tuple[Tensor, Tensor]:
            at = slice(start - self._ends[0], stop - self._ends[0])
            return self.mean[..., at], variances[:, at]

        with self.history.writing():
            weights, change = self._stacked(len(self._pending))
            draw = None if streams is None else self._draw(streams)
            go = self.rows.rounds(weights, change, look, draw, self.BACKEND)
            whole = self.rows.seamless(draw)
            step = self.prior.actions.size if whole else self.step
            cuts = list(self.stretches(step))
            bests = [go(start, *arrays(start, stop)) for start, stop in cuts]
            self._settled()
        if opened is not None:
            self._opened = opened
        if len(bests) == 1:
            return Best(bests[0].value, bests[0].index, bests[0].estimate)
        value = torch.stack([best.value for best in bests])

        def candidates() -> Found:
            index = torch.stack([best.index for best in bests])
            return Found(value, index, torch.stack([b.estimate for b in bests]))

        def closer(chosen: Tensor, reach: Tensor) -> Found:
            again = look.closer(value[chosen, self._trial], reach)
            weights, change = self._stacked(0)
            go = self.rows.rounds(weights, change, again, draw, self.BACKEND)
            for k in set(chosen.tolist()):
                bests[k] = go(cuts[k][0], *arrays(*cuts[k]))
            return candidates()

        return first_of(candidates(), look.reach, closer)

    def _stacked(self, columns: int) -> tuple[Tensor, Change]:
        """Return collected changes as weights ``(T, U, columns)``, padded by zeros.

        The second value has the factors of the columns' squares and of the columns.
        """
        trials, count = len(self._trial), len(self._pending)
        double: dict[str, Any] = {"dtype": torch.float64, "device": self.device}
        weights = torch.zeros(trials, self.history.used, columns, **double)
        spread = torch.zeros(trials, count, **double)
        shift = torch.zeros(trials, self.functions, count, **double)
        for j, change in enumerate(self._pending):
            weights[:, : change.weights.shape[-1], j] = change.weights
            spread[:, j], shift[..., j] = change.spread, change.shift
        return weights, Change(spread, shift)

    def _open(self, ahead: Coming) -> _Opened:
        """Return the variances that count the choices ``ahead`` as told.

        The array of the last look is changed in place where data and choices together
        differ now. It is taken out of :attr:`_opened` until the caller is done.
        """
        places = []
        for names, x in zip(ahead.keys, ahead.x, strict=True):
            slots = self._placed(names, x, [True] * len(self._trial))
            if slots is None:
                raise CBanditError("an outstanding choice has no place")
            places.append(slots)
        self.history.look_ahead(places)
        slot = devices.put(places, self.device).mT  # T x b
        told = self.history.precision[:, : self.history.used]
        wanted = told.scatter_add(1, slot, ahead.precision)
        opened, self._opened = self._opened, None
        if opened is None:
            self.settle()
            floor = None if self._floor is None else self._floor.clone()
            opened = _Opened(self.var.clone(), told.clone(), floor)
        grown = wanted.shape[1] - opened.precision.shape[1]
        held = torch.nn.functional.pad(opened.precision, (0, grown))
        gap = wanted - held
        same = gap.abs() <= SAME * wanted.maximum(held)  # the order of sums may differ
        gap = gap.masked_fill(same, 0.0)
        # first take out what is gone, which is exact by the system without it
        system = self._precise(held + gap.clamp_max(0))
        for change, sign in ((-gap, 1.0), (gap, -1.0)):
            self._count(opened.var, system, change.clamp_min(0), sign)
        floor = opened.floor
        if self.history.cancels:
            floor = self._solve_for_fallen(opened.var, floor, ahead)
        return _Opened(opened.var, torch.where(same, held, wanted), floor)

    def _precise(self, precision: Tensor) -> System:
        """Return a system of the slots with ``precision (T, U)``, without outcomes."""
        root, slots = precision.sqrt(), torch.arange(precision.shape[1])
        slots = devices.put(slots, self.device).expand(len(root), -1)
        return System(self.history.gram, root, root.new_zeros(*root.shape, 0), slots)

    def _count(
        self, var: Tensor, system: System, precision: Tensor, sign: float
    ) -> None:
        """Add to ``var (T, n)`` what observations subtract from it, times ``sign``.

        Args:
            var: the variances, changed in place.
            system: the system of the slots without these observations.
            precision: the observations' precision at each slot, ``(T, U)``.
            sign: 1 or -1.
        """
        count = int((precision > 0).sum(-1).max())
        if count == 0:
            return
        precision, slot = precision.topk(count)  # T x b
        gram = self.history.gram
        k = gram.gather(-1, slot.unsqueeze(1).expand(-1, gram.shape[1], -1))
        w = system.solve(k)
        at = slot.unsqueeze(-1).expand(-1, -1, count)
        inner = (k - gram @ w).gather(1, at)
        ones = torch.ones_like(slot, dtype=w.dtype).unsqueeze(1)
        weights = (-w).scatter_add_(1, slot.unsqueeze(1), ones)
        z = explained(inner, weights.mT, precision)
        room = max(1, self._room() // max(1, self.rows.bytes_per_column()))
        for some in z.mT.split(room, -1):
            columns = self.rows.multiply(some)
            for start, stop in self.stretches(self.step):
                part = var[:, start - self._ends[0] : stop - self._ends[0]]
                part.add_(columns(start, stop).square_().sum(-2), alpha=sign)

    def _columns(self) -> _Changes | None:
        if not self._pending and not self.stale:
            return None
        count, means = len(self._pending), self.functions if self.stale else 0
        weights, change = self._stacked(count + means)
        if means:
            used = self.history.used
            weights[..., count:] = self.history.system().weights(used)
        return _Changes(
            self.rows.multiply(weights),
            count,
            change.spread.to(self.dtype) if count else None,
            None if means else change.shift.to(self.dtype),
            self._raise,
        )

    def _draw(self, streams: Streams) -> Columns:
        """Draw from the posterior less its mean, by correcting a prior draw."""
        history, name = self.history, str(self.first)
        points = history.points[:, : history.used]
        path = self.rows.path(streams, self.functions, points, name)
        weights = correction(history, path.tried, streams)
        if history.used:
            weights = history.system().by_slot(weights, history.used)
        return path.corrected(weights)

    def gain(self) -> Tensor:
        """Return the realised information gain, ``(T,)``."""
        if self.history.used == 0:  # leave the first system to be factored whole
            return self.history.points.new_zeros(len(self._trial))
        return super().gain()

    # -- memory ------------------------------------------------------------------

    def make_room(self) -> None:
        """Switch to rows that take less memory, if these no longer fit."""
        used = self.history.used
        if not self.keeps_rows or used < self._room_for:
            return
        self._room_for = used + 32
        if 2 * 32 * self.rows.bytes_per_row() <= free_memory(self.device):
            return
        rows = self.rows.roomier()
        if rows is None:
            return
        every = list(range(len(self._trial)))
        for slot in range(used):
            points = self.history.points[:, slot]
            rows.write(every, [slot] * len(every), points, ())
        self.rows, self.keeps_rows = rows, rows.kept
        self.by_features = rows.by_features
        self.plan = Plan(rows.name, "kernel rows no longer fit in memory")

    def bytes(self) -> int:
        """Return the bytes that the arrays take now."""
        arrays = [self.mean, self.var, self._floor]
        if self._opened is not None:
            arrays += self._opened
        rows = self.history.used * self.rows.bytes_per_row()
        return rows + sum(array.nbytes for array in arrays if array is not None)


class _Opened(NamedTuple):
    """Variances that count outstanding choices as told.

    Args:
        var: the variances of the stored actions, ``(T, n)``.
        precision: of data and choices together, by slot, ``(T, U)``.
        floor: variances below it are solved for again, ``(T, n)``; ``None``: none.
    """

    var: Tensor
    precision: Tensor
    floor: Tensor | None = None


class _Pending(NamedTuple):
    """A change of means and variances that has not been applied yet.

    Args:
        weights: of the kernel rows, ``(T, U)``; the weighted sum is the change's
            column.
        spread: the factor of the column's square in the variances, ``(T,)``.
        shift: the factor of the column in the means, ``(T, F)``.
    """

    weights: Tensor
    spread: Tensor
    shift: Tensor


class _Changes:
    """Collected changes as columns, applied in place to one stretch at a time."""

    def __init__(
        self,
        columns: Columns,
        count: int,
        spread: Tensor | None,
        shift: Tensor | None,
        raise_to_prior: Callable[[int, int, Tensor], None],
    ) -> None:
        self._columns, self._count = columns, count
        self._raise_to_prior = raise_to_prior
        self._spread, self._shift = spread, shift
        self._single = False
        self._shifts: list[float] = []
        if spread is not None and not spread.is_cuda:
            self._single = spread.numel() == 1
        if shift is not None and not shift.is_cuda:
            self._shifts = shift.flatten().tolist()
        self._value = -float(spread) if self._single and spread is not None else 0.0

    def __call__(self, start: int, stop: int, mean: Tensor, var: Tensor) -> None:
        """Apply the changes to means ``(T, F, n)`` and variances of a stretch."""
        columns, count = self._columns(start, stop), self._count
        if self._shift is None:
            mean.copy_(columns[:, count:])
            self._raise_to_prior(start, stop, mean)
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
