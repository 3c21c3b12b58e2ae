"""Observations in weight space: sums of features, however many there were.

A function is ``<w, h(x)>`` with ``w ~ N(0, I)`` and the ``D`` features ``h`` of its
kernel. Points of different categories have different weights, each in its own *block*.
A block keeps ``A = sum p h h'`` and ``b = sum p y h``, with precisions ``p``, and a
root ``W`` of the posterior covariance:

    (I + A)^-1 = W diag(e) W',   mean = b' (I + A)^-1 h(x),   variance = |W' h(x)|^2_e.

Without fading ``e`` is 1. An observation changes ``W`` by one rank, and after some of
them ``W`` is factored anew. With fading every sum shrinks by a factor each round, but
the prior does not; then ``W`` holds the eigenvectors of ``A``, and without observations
only their eigenvalues shrink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit._core.threads import on_one_thread
from cbandit.beliefs.features import Frame
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.history import Between
from cbandit.posterior.log import Update
from cbandit.posterior.pending import Coming, explained
from cbandit.posterior.units import no_outcomes
from cbandit_kernels import (
    OutcomeCounts,
    WeightRows,
    WeightSums,
    count_outcomes,
    enter_weights,
    look_weights,
    with_spreads,
)

FRESH = 256  # changes of a block after which it is factored anew
FRAMED = 4  # inputs after which their mean and spread are used, then at each doubling;
# before that the first input is the origin
LATE = 1024  # with more inputs, one of an earlier round does not change the frame
FEW = 4  # with at most so many points a block, multiply blocks together
MANY = 64  # with so many blocks or more, leave out those without observations
HELD = 1 << 23  # most numbers of kept rows where sums fade
SPARE = 16  # rows for which there is room at first
TOGETHER = 1 << 23  # most numbers of blocks copied at once for that


class Spots(NamedTuple):
    """The blocks of some points.

    Args:
        block: the blocks' numbers, ``(n,)`` or ``(T, n)``; ``None``: there is one
            block.
        ordered: whether these are all blocks in order, each once.
    """

    block: Tensor | None
    ordered: bool


class Recent:
    """Moments of all blocks at the rows that were read last.

    A row is a point without its categories, so it has a value in each block. The rows
    ``start .. stop - 1`` of the arrays are in use; rows are added behind them.

    Args:
        contexts: what identifies the rows, ``(T, n, k)``.
        h: the rows' features, ``(T, n, D)``.
        half: ``W' h`` in each block, ``(T, K, n, D)``, if sums fade; else ``None``.
        mean: ``(T, F, n, K)``.
        var: ``(T, n, K)``.
    """

    def __init__(
        self,
        contexts: Tensor,
        h: Tensor,
        half: Tensor | None,
        mean: Tensor,
        var: Tensor,
    ) -> None:
        self.start, self.stop = 0, contexts.shape[1]
        #: the arrays, each with the axis along which rows lie
        self.arrays = [(contexts, 1), (h.mT, 2), (mean, 2), (var, 1)]
        if half is not None:
            self.arrays.append((half, 2))
        self._make_room()

    def __getstate__(self) -> dict[str, Any]:
        arrays = [(part.clone(), axis) for part, axis in self._used()]
        return {"start": 0, "stop": self.stop - self.start, "arrays": arrays}

    def _used(self) -> Iterator[tuple[Tensor, int]]:
        """Yield the part of each array that is in use, and its axis."""
        for array, axis in self.arrays:
            yield array.narrow(axis, self.start, self.stop - self.start), axis

    def _make_room(self) -> None:
        """Move the rows to the beginning of arrays with as much room again."""
        count, arrays = self.stop - self.start, []
        for part, axis in self._used():
            shape = list(part.shape)
            shape[axis] = 2 * count + SPARE
            array = part.new_zeros(shape)
            array.narrow(axis, 0, count).copy_(part)
            arrays.append((array, axis))
        self.arrays, self.start, self.stop = arrays, 0, count

    @property
    def places(self) -> slice:
        """The rows in use."""
        return slice(self.start, self.stop)

    @property
    def h(self) -> Tensor:
        """The rows' features, ``(T, n, D)``."""
        return self.arrays[1][0][..., self.places].mT

    @property
    def mean(self) -> Tensor:
        """The means, ``(T, F, n, K)``."""
        return self.arrays[2][0][:, :, self.places]

    @property
    def var(self) -> Tensor:
        """The variances, ``(T, n, K)``."""
        return self.arrays[3][0][:, self.places]

    @property
    def half(self) -> Tensor | None:
        """``W' h``, ``(T, K, n, D)``; ``None`` if sums do not fade."""
        return self.arrays[4][0][:, :, self.places] if self.arrays[4:] else None

    @property
    def rows(self) -> WeightRows:
        """The arrays that follow an observation."""
        _, (h, _), (mean, _), (var, _), *_ = self.arrays
        return WeightRows(h, mean, var, self.start, self.stop)

    def advance(self, contexts: Tensor) -> bool:
        """Keep the rows that serve ``(T, n, k)``, all but its last; make room for that.

        They do if the rows are equal, or the last one differs, or one was added at the
        end and the first perhaps dropped. ``False``: the rows are others.
        """
        count, held = contexts.shape[1] - 1, self.stop - self.start
        if count == 0 or not held - 1 <= count <= held:
            return False
        known = self.arrays[0][0]
        for start in dict.fromkeys((self.stop - count, self.start)):
            if torch.equal(contexts[:, :-1], known[:, start : start + count]):
                self.start, self.stop = start, start + count
                if self.stop == known.shape[1]:
                    self._make_room()
                self.arrays[0][0][:, self.stop] = contexts[:, -1]
                return True
        return False


class Moments:
    """Sums of the observed features of ``F`` functions, in ``T`` trials.

    It changes in place and belongs to one engine.

    Args:
        covariance: the prior covariance, of finitely many features.
        trials: ``T``.
        functions: ``F``.
        dtype: the dtype of the roots; sums are always float64.
        device: where the tensors live.
        fade: the factor ``(T,)`` by which sums shrink each round; ``None``: they do
            not.
    """

    sharpness: float | None = None
    """Unused here; a rebuilt engine copies it."""

    def __init__(
        self,
        covariance: Covariance,
        trials: int,
        functions: int,
        dtype: torch.dtype,
        device: torch.device,
        fade: Tensor | None = None,
    ) -> None:
        self.covariance, self.trials, self.functions = covariance, trials, functions
        self.device, self.fade, self.blocks = device, fade, covariance.blocks
        #: the round for which it is read
        self.now = 0
        zeros = torch.zeros(1, covariance.dim, dtype=torch.float64, device=device)
        self.width = width = covariance.features(zeros).shape[-1]
        shape = trials, self.blocks
        double: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self._trial = torch.arange(trials, device=device)
        self._sums = torch.zeros(*shape, width, width, **double)
        self._weighted = torch.zeros(*shape, functions, width, **double)
        self._squares = torch.zeros(trials, functions, functions, **double)
        self._count = torch.zeros(trials, **double)
        eye = torch.eye(width, dtype=dtype, device=device)
        self._root = eye.expand(*shape, -1, -1).clone()
        self._values = torch.zeros(*shape, width, **double)  # eigenvalues, if sums fade
        self._rotated = torch.zeros(*shape, functions, width, **double)  # b' W
        self._fitted = torch.zeros(*shape, functions, functions, **double)  # b' W W' b
        self._log_det = torch.zeros(shape, **double)
        self._clock = torch.zeros(shape, **double)  # the round a block has faded to
        self._counted = 0  # the round to which squares and counts have faded
        self._changes: dict[tuple[int, int], int] = {}  # since last factored
        self._times: list[dict[Hashable, int]] = [{} for _ in range(trials)]
        places = covariance.open
        self._inputs = no_outcomes(torch.zeros(trials, places, **double))
        self._seen = [0] * trials  # inputs, on the host
        self._frame: Frame | None = None
        if places:
            self._frame = Frame(self._inputs.average, self._inputs.size)
        self._faded: tuple[int, Tensor | None, Tensor] | None = None
        self._recent: Recent | None = None
        self._told: set[int] = set()  # blocks that have changed since
        #: how often the sums have changed
        self.version = 0
        self.whole = True
        """Whether no call broke off while it wrote the sums."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Mark the sums as not whole while they are written."""
        whole, self.whole = self.whole, False
        yield
        self.whole = whole

    def distinct(self) -> list[int]:
        """Return how many distinct actions each trial has observed."""
        return list(map(len, self._times))

    def surest(self, count: int) -> list[list[Hashable]]:
        """Return the keys of each trial's actions that were told most often.

        They are numbers of the set, or else all coordinates.
        """
        kept = []
        for times in self._times:
            keys = [key for key, _ in Counter(times).most_common(count)]
            numbers: list[Hashable] = [key for key in keys if isinstance(key, int)]
            kept.append(numbers or keys)
        return kept

    def _changed(self, blocks: Iterable[int] | None) -> None:
        """Note which blocks have changed; ``None``: all may have."""
        self.version += 1
        self._faded = None
        if blocks is None:
            self._recent = None
        elif self._recent is not None:
            self._told.update(blocks)

    # -- features --------------------------------------------------------------------

    def features(self, x: Tensor) -> Tensor:
        """Return the features ``(*b, n, D)`` of points ``(*b, n, d)``."""
        return self.covariance.features(x, self._frame)

    def _spots(self, x: Tensor) -> Spots:
        """Return the blocks of points ``(*b, n, d)``."""
        block = self.covariance.block(x)
        if block is None or block.shape[-1] != self.blocks:
            return Spots(block, False)
        order = torch.arange(self.blocks, device=block.device)
        return Spots(block, torch.equal(block, order.expand_as(block)))

    def _at(self, x: Tensor) -> tuple[tuple[Tensor, Tensor], list[int], Tensor]:
        """Return trials and blocks of points ``(T, d)``, the blocks, and features."""
        x = x.double().unsqueeze(-2)
        block, h = self.covariance.block(x), self.features(x)[:, 0]
        if block is None:
            zeros = torch.zeros_like(self._trial)
            return (self._trial, zeros), [0] * self.trials, h
        number = block[..., 0].expand(self.trials)
        return (self._trial, number), number.tolist(), h

    # -- observations ----------------------------------------------------------------

    @on_one_thread
    def enter(self, update: Update, sign: int = 1) -> Tensor:
        """Add an observation, or with ``sign=-1`` remove it; return its features."""
        if sign > 0 and self._frame is not None:
            self._watch(update)
        place, numbers, h = self._at(update.x)
        precision, values = self._worth(update), update.values
        if sign < 0:
            precision = -precision
        self._count_in(values, precision)
        for times, key, want in zip(
            self._times, update.keys, update.wanted, strict=True
        ):
            if want:
                times[key] = times.get(key, 0) + sign
                if times[key] == 0:
                    del times[key]
        keys = list(enumerate(numbers))
        changes = [self._changes.get(key, 0) + 1 for key in keys]
        stays = sign > 0 and self.fade is None
        if stays:
            held, recent = self._held(), self._recent
            rows = WeightRows.none(held) if recent is None else recent.rows
            enter_weights(held, rows, place[1], h, precision, values)
        else:
            self._add(place, h, precision, values)
        fresh = not stays or max(changes) >= FRESH
        if fresh:
            self._factor(place)
            self._rotate(place)
            changes = [0] * len(keys)
        self._changes.update(zip(keys, changes, strict=True))
        self._changed(numbers if fresh else [])
        return h

    def correct(self, before: Update, after: Update) -> Tensor:
        """Replace an observation's targets; return its features."""
        place, numbers, h = self._at(before.x)
        precision = share = self._worth(before)
        if self.fade is not None:  # bring the block to the current round first
            share = precision / self._age(self._clock[place])
        change = (after.values - before.values) * share.unsqueeze(-1)
        self._weighted[place] += change.unsqueeze(-1) * h.unsqueeze(-2)
        self._count_in(before.values, -precision)
        self._count_in(after.values, precision)
        self._rotate(place)
        self._changed(numbers)
        return h

    def observe(self, updates: Sequence[Update]) -> None:
        """Add many observations, all at once if there were none before."""
        if any(self._times):
            for update in updates:
                self.enter(update)
            return
        if not updates:
            return
        x = torch.stack([update.x.double() for update in updates], 1)  # T x n x d
        values = torch.stack([update.values for update in updates], 1)
        precision = torch.stack([self._worth(update) for update in updates], 1)
        if self._frame is not None:
            self._watch_all(x, [update.wanted for update in updates])
        place, h = self.covariance.block(x), self.features(x)
        weighted = h * precision.unsqueeze(-1)
        for block in range(self.blocks):
            part, right = weighted, h
            if place is not None:
                mine = (place == block).unsqueeze(-1)
                if not bool(mine.any()):
                    continue
                columns = mine.any(0)[:, 0]
                part = (weighted * mine)[:, columns]
                right, targets = h[:, columns], values[:, columns]
            else:
                targets = values
            self._sums[:, block] = part.mT @ right
            self._weighted[:, block] = targets.mT @ part
        self._squares = (values * precision.unsqueeze(-1)).mT @ values
        self._count = precision.sum(-1)
        self._clock.fill_(float(self.now))
        self._counted = self.now
        for update in updates:
            for times, key, want in zip(
                self._times, update.keys, update.wanted, strict=True
            ):
                if want:
                    times[key] = times.get(key, 0) + 1
        self.refresh()

    def refresh(self) -> None:
        """Factor all blocks anew."""
        for block in range(self.blocks):
            number = torch.full_like(self._trial, block)
            if bool(self._sums[:, block].any()):
                self._factor((self._trial, number))
                self._rotate((self._trial, number))
        self._changes.clear()
        self._changed(None)

    def _worth(self, update: Update) -> Tensor:
        """Return an observation's precision after fading to this round, ``(T,)``."""
        if self.fade is None:
            return update.precision
        return update.precision * self.fade ** (self.now - update.t)

    def _age(self, clock: Tensor) -> Tensor:
        """Return the share left of sums ``(T, ...)`` last faded at ``clock``."""
        if self.fade is None:
            return torch.ones_like(clock)
        fade = self.fade.view(-1, *[1] * (clock.dim() - 1))
        return fade ** (self.now - clock)

    def _tally(self) -> tuple[Tensor, Tensor]:
        """Return the count ``(T,)`` and squares ``(T, F, F)``, faded to this round."""
        if self.fade is None or self._counted == self.now:
            return self._count, self._squares
        kept = self.fade ** (self.now - self._counted)
        return self._count * kept, self._squares * kept[:, None, None]

    def _count_in(self, values: Tensor, precision: Tensor) -> None:
        """Add outcomes ``(T, F)`` to the squares and the count."""
        count, squares = self._tally()
        column = (values * precision.unsqueeze(-1)).unsqueeze(-1)
        self._count = count + precision
        self._squares = torch.baddbmm(squares, column, values.unsqueeze(-2))
        self._counted = self.now

    # -- roots -----------------------------------------------------------------------

    def _held(self) -> WeightSums:
        """Return the arrays that an observation changes."""
        return WeightSums(
            self._sums,
            self._weighted,
            self._root,
            self._rotated,
            self._fitted,
            self._log_det,
        )

    def _add(
        self,
        place: tuple[Tensor, Tensor],
        h: Tensor,
        precision: Tensor,
        values: Tensor,
    ) -> None:
        """Add an observation to the sums of its blocks, faded to this round first.

        A negative precision removes it. The roots are not changed.
        """
        sums, weighted = self._sums[place], self._weighted[place]
        if self.fade is not None:
            kept = self._age(self._clock[place])[:, None, None]
            sums, weighted = sums * kept, weighted * kept
            self._clock[place] = float(self.now)
        row = (h * precision.unsqueeze(-1)).unsqueeze(-2)
        self._sums[place] = sums.baddbmm_(h.unsqueeze(-1), row)
        self._weighted[place] = weighted.baddbmm_(values.unsqueeze(-1), row)

    def _factor(self, place: tuple[Tensor, Tensor]) -> None:
        """Compute the roots of some blocks afresh, one block a trial."""
        sums = self._sums[place]
        if self.fade is not None:
            values, root = torch.linalg.eigh(sums)
            self._values[place] = values.clamp_min(0)
        else:
            eye = torch.eye(self.width, dtype=sums.dtype, device=sums.device)
            factor = devices.cholesky(sums + eye)
            root = torch.linalg.solve_triangular(factor, eye, upper=False).mT
            diagonal = factor.diagonal(dim1=-2, dim2=-1)
            self._log_det[place] = 2 * diagonal.log().sum(-1)
        self._root[place] = root.to(self._root.dtype)

    def _rotate(self, place: tuple[Tensor, Tensor]) -> None:
        rotated = self._weighted[place] @ self._root[place].double()
        self._rotated[place] = rotated
        if self.fade is None:
            self._fitted[place] = rotated @ rotated.mT

    # -- inputs without bounds -------------------------------------------------------

    def reframed(self, wanted: Sequence[bool], later: Sequence[Sequence[bool]]) -> bool:
        """Return whether one more point, of an earlier round, changes the frame.

        The frame comes from the first points in the order of rounds. ``later`` has the
        flags of observed points from later rounds.
        """
        if self._frame is None or not later:
            return False
        for trial, (want, seen) in enumerate(zip(wanted, self._seen, strict=True)):
            count = seen + 1
            place = count - sum(flags[trial] for flags in later)
            if want and place < count <= LATE and place <= _framed(count) < count:
                return True
        return False

    def _watch(self, update: Update) -> None:
        """Count one more input; standardise anew when there are twice as many.

        The first one is the origin, as sums of inputs far from 0 would cancel later.
        """
        raw = self.covariance.raw(update.x.double())
        came = devices.put(update.wanted, raw.device).unsqueeze(-1)
        self._inputs = count_outcomes(self._inputs, raw, came)
        pairs = zip(self._seen, update.wanted, strict=True)
        self._seen = [n + want for n, want in pairs]
        due = [
            want and n == _framed(n)
            for n, want in zip(self._seen, update.wanted, strict=True)
        ]
        if any(due):
            self._standardise(Frame(self._inputs.average, self._inputs.size), due)

    def _watch_all(self, x: Tensor, wanted: list[Sequence[bool]]) -> None:
        """Count inputs ``(T, n, d)``; standardise as if they had come one by one."""
        raw = self.covariance.raw(x)
        real = devices.put(list(map(list, wanted)), x.device).mT  # T x n
        count = real.long().cumsum(-1)
        total = count[:, -1].tolist()
        last = devices.put(list(map(_framed, total)), x.device).unsqueeze(-1)
        first = _statistics(raw, real & (count <= last))
        self._inputs, self._seen = _statistics(raw, real), total
        self._standardise(Frame(first.average, first.size), [n > 0 for n in total])

    def _standardise(self, new: Frame, due: list[bool]) -> None:
        """Change to another frame in the trials that are ``due``."""
        if self._frame is None:
            return
        where = devices.put(due, self.device).unsqueeze(-1)
        frame = Frame(
            torch.where(where, new.center, self._frame.center),
            torch.where(where, new.size, self._frame.size),
        )
        change = self.covariance.change(self._frame, frame).unsqueeze(1)
        self._frame = frame
        self._sums = change @ self._sums @ change.mT
        self._weighted = self._weighted @ change.mT
        self.refresh()

    # -- looking ---------------------------------------------------------------------

    def exact(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Solve for what :meth:`at` returns, in float64 from the sums.

        The points ``x`` are ``(T, n, d)``.
        """
        h, block = self.features(x.double()), self._spots(x.double()).block
        h = h.expand(self.trials, *h.shape[-2:])
        if block is None:
            block = torch.zeros_like(h[..., 0], dtype=torch.long)
        eye = torch.eye(self.width, dtype=h.dtype, device=h.device)
        mean = h.new_zeros(self.trials, self.functions, h.shape[-2])
        var = h.new_zeros(self.trials, h.shape[-2])
        for number in block.unique().tolist():
            age = self._age(self._clock[:, number])[:, None, None]
            factor = devices.cholesky(age * self._sums[:, number] + eye)
            weighted = age * self._weighted[:, number]
            half, fitted = (
                torch.linalg.solve_triangular(factor, right.mT, upper=False)
                for right in (h, weighted)
            )
            here = block == number
            mean = torch.where(here.unsqueeze(1), fitted.mT @ half, mean)
            var = torch.where(here, half.square().sum(1), var)
        return mean, var

    def _now(self) -> tuple[Tensor | None, Tensor]:
        """Return ``e (T, K, D)`` (``None`` if it is 1), and ``e b' W``, both faded.

        The second, ``(T, K, F, D)``, times ``W' h`` gives means.
        """
        if self._faded is not None and self._faded[0] == self.now:
            return self._faded[1:]
        e, means = None, self._rotated
        if self.fade is not None:
            age = self._age(self._clock).unsqueeze(-1)
            e = (1 + self._values * age).reciprocal_()
            means = self._rotated * (e * age).unsqueeze(-2)
            e = e.to(self._root.dtype)
        self._faded = self.now, e, means.to(self._root.dtype)
        return self._faded[1:]

    def _through(self, spots: Spots, h: Tensor, matrix: Tensor) -> Tensor:
        """Return ``h' matrix`` at points, with their block's matrix, ``(T, n, J)``.

        Args:
            spots: the blocks.
            h: ``(n, D)`` or ``(T, n, D)``.
            matrix: ``(T, K, D, J)``.
        """
        h, (block, ordered) = h.to(matrix.dtype), spots
        if block is None:
            return h @ matrix[:, 0]
        if ordered:  # nothing is copied
            rows: Tensor = (h.unsqueeze(-2) @ matrix).squeeze(-2)
            return rows
        count = block.shape[-1]
        if count == 1:  # as for every choice told
            place = self._trial, block[..., 0].expand(self.trials)
            return h.expand(self.trials, -1, -1) @ matrix[place]
        h = h.expand(self.trials, count, -1).flatten(0, 1)
        flat = (block + self.blocks * self._trial.unsqueeze(-1)).flatten()
        matrices = matrix.flatten(0, 1)
        order = flat.argsort(stable=True)
        numbers, counts = flat[order].unique_consecutive(return_counts=True)
        parts: list[Tensor] = []
        if len(numbers) * FEW >= len(flat):
            together = max(1, TOGETHER // matrix[0, 0].numel())
            for some in order.split(together):
                made = h[some].unsqueeze(-2) @ matrices[flat[some]]
                parts.append(made.squeeze(-2))
        else:
            points = h[order].split(counts.tolist())
            pairs = zip(numbers.tolist(), points, strict=True)
            parts = [some @ matrices[number] for number, some in pairs]
        whole: Tensor = torch.cat(parts)[order.argsort()]
        return whole.view(self.trials, count, matrix.shape[-1])

    def _of(self, spots: Spots, values: Tensor) -> Tensor:
        """Return each point's block's value: ``(T, K, ...)`` as ``(T, n, ...)``."""
        if spots.block is None or spots.ordered:
            return values
        return values[self._trial.unsqueeze(-1), spots.block.expand(self.trials, -1)]

    def _looked(self, x: Tensor) -> tuple[Spots, Tensor, Tensor]:
        """Return the points' blocks, ``W' h`` and ``e W' h``, ``(T, n, D)`` both."""
        spots = self._spots(x)
        half = self._through(spots, self.features(x), self._root)
        e, _ = self._now()
        return spots, half, half if e is None else half * self._of(spots, e)

    def at(self, x: Tensor, ahead: Coming | None = None) -> tuple[Tensor, Tensor]:
        """Return means less prior means ``(T, F, n)`` and variances ``(T, n)``.

        The points ``x`` are ``(n, d)`` or ``(T, n, d)``. The choices ``ahead`` reduce
        the variance as if their outcomes had come.
        """
        spots, half, shrunk = self._looked(x.double())
        means = self._now()[1]
        if spots.block is None:
            mean = means[:, 0] @ half.mT
        else:
            mean = (self._of(spots, means) @ half.unsqueeze(-1)).squeeze(-1).mT
        var = torch.linalg.vecdot(half, shrunk)
        if ahead is not None:
            var = self._foreseen(ahead, spots, x)
        return mean.double(), var.double()

    def _foreseen(self, ahead: Coming, spots: Spots, x: Tensor) -> Tensor:
        """Return the variances ``(T, n)`` at points once choices ``ahead`` are told."""
        if ahead.precision.shape[-1] > self.width:
            root = self.weights()[1].clone()
            blocks, after = self.roots_after(ahead)
            root[:, blocks] = after
            return self._through(spots, self.features(x), root).square().sum(-1)
        _, half, shrunk = self._looked(x)
        to, other, reached = self._looked(ahead.places())
        inner = _within(to, to, reached @ other.mT)
        cross = _within(to, spots, reached @ half.mT)
        z = explained(inner.double(), cross.double(), ahead.precision)
        now: Tensor = torch.linalg.vecdot(half, shrunk)
        return now - z.square().sum(-2)

    def roots_after(self, ahead: Coming) -> tuple[Tensor, Tensor]:
        """Return the blocks ``(c,)`` of outstanding choices, and the roots once told.

        The roots ``(T, c, D, D)`` are of the weights' covariance. With ``V`` the root
        before, it is ``V (I + V' M V)^-1 V'`` afterwards, where ``M`` sums ``p h h'``
        over the block's choices: the cost depends on the features, not on how many
        choices are open.
        """
        x = ahead.places()
        block = self._spots(x).block
        if block is None:
            block = torch.zeros_like(ahead.precision, dtype=torch.long)
        block = block.expand(self.trials, -1)
        blocks = block.unique()
        root = self.weights()[1][:, blocks].double()
        weighted = ahead.precision.sqrt().unsqueeze(-1) * self.features(x)
        here = (block.unsqueeze(1) == blocks[:, None]).unsqueeze(-1)  # T x c x b x 1
        half = (weighted.unsqueeze(1) * here) @ root
        inner = half.mT @ half
        inner.diagonal(dim1=-2, dim2=-1).add_(1)
        factor = devices.cholesky(inner)
        after = torch.linalg.solve_triangular(factor, root.mT, upper=False).mT
        return blocks, after.to(self._root.dtype)

    def recent(
        self,
        contexts: Tensor,
        point: Callable[[Tensor], Tensor],
        ahead: Coming | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return moments of all blocks at rows, reused where these were read before.

        Like :meth:`at`: means ``(T, F, n, K)`` and variances ``(T, n, K)``.

        Args:
            contexts: what identifies the rows, ``(T, n, k)``; the last row is new.
            point: turns contexts into points, ``(T, n, d)``; categories are ignored.
            ahead: see :meth:`at`.
        """
        recent = self._recent
        if recent is not None and recent.advance(contexts):
            self._append(recent, self.features(point(contexts[:, -1:]).double())[:, 0])
        else:
            recent = self._rows(contexts, self.features(point(contexts).double()))
        self._recent = recent if self._keeps(contexts.shape[1]) else None
        self._told.clear()
        if ahead is not None:
            return recent.mean, self._after(recent, ahead)
        return recent.mean, recent.var

    def _rows(self, contexts: Tensor, h: Tensor) -> Recent:
        """Return the moments of rows with features ``(T, n, D)``."""
        root, wide = self._root, h.to(self._root).unsqueeze(1)
        met = self._met()
        if met is None:
            half = wide @ root
            fades = half if self.fade is not None else None
            return Recent(contexts, h, fades, *self._moments(half, slice(None)))
        mean, var = self._moments(wide @ root[:, met], met)
        prior = torch.linalg.vecdot(wide, wide).mT.double()  # T x n x 1
        shape = *prior.shape[:-1], self.blocks
        zeros = mean.new_zeros(self.trials, self.functions, *shape[1:])
        means = zeros.index_copy_(-1, met, mean)
        return Recent(
            contexts, h, None, means, prior.expand(shape).index_copy(-1, met, var)
        )

    def _met(self) -> Tensor | None:
        """Return the blocks with observations if there are few of them; else ``None``.

        On a device always ``None``, as reading which would wait for it.
        """
        if self.blocks < MANY or self.fade is not None or self._log_det.is_cuda:
            return None
        met = self._log_det.any(0).nonzero().flatten()
        return met if 2 * len(met) < self.blocks else None

    def _keeps(self, rows: int) -> bool:
        """Return whether this many rows of all blocks are kept from look to look."""
        count = self.trials * self.blocks * rows * self.width
        return self.fade is None or count <= HELD

    def _moments(self, half: Tensor, blocks: Any) -> tuple[Tensor, Tensor]:
        """Return means and variances of some blocks, given ``W' h (T, c, n, D)``."""
        e, means = self._now()
        mean = means[:, blocks] @ half.mT  # T x c x F x n
        reached = half if e is None else half * e[:, blocks].unsqueeze(-2)
        var = torch.linalg.vecdot(half, reached)
        return mean.permute(0, 2, 3, 1).double(), var.mT.double()

    def _append(self, recent: Recent, h: Tensor) -> None:
        """Add a row of features ``h (T, D)``; make the moments of all rows current."""
        look_weights(self._held(), recent.rows, h)
        recent.stop += 1
        half = recent.half
        if not self._told and half is None:
            return
        at, wide = self._since(), recent.h.to(self._root).unsqueeze(1)
        changed = wide @ self._root[:, at]
        if half is None:
            recent.mean[..., at], recent.var[..., at] = self._moments(changed, at)
            return
        half[:, :, -1:] = wide[:, :, -1:] @ self._root
        half[:, at] = changed
        recent.mean[:], recent.var[:] = self._moments(half, slice(None))

    def _since(self) -> Any:
        """Return an index of the blocks changed since, a slice if they are in a row."""
        told = sorted(self._told)
        if told and told[-1] - told[0] >= len(told):
            return torch.tensor(told, device=self.device)
        return slice(told[0], told[-1] + 1) if told else slice(0)

    def _after(self, recent: Recent, ahead: Coming) -> Tensor:
        """Return variances ``(T, n, K)`` of rows once choices ``ahead`` are told."""
        if ahead.precision.shape[-1] > self.width:
            blocks, root = self.roots_after(ahead)
            half = recent.h.to(root).unsqueeze(1) @ root
            var = half.square().sum(-1).mT.double()
            return recent.var.index_copy(-1, blocks, var)
        to, other, reached = self._looked(ahead.places())
        if to.block is None:
            places = torch.zeros_like(ahead.precision, dtype=torch.long)
        else:
            places = to.block.expand(self.trials, -1)
        blocks, size = places.unique(), recent.var.shape[1]
        half = recent.h.to(self._root).unsqueeze(1) @ self._root[:, blocks]
        cross = reached.unsqueeze(1) @ half.mT  # T x c x b x n
        cross = cross * (places.unsqueeze(1) == blocks[:, None])[..., None]
        inner = _within(to, to, reached @ other.mT).double()
        flat = cross.transpose(1, 2).flatten(2).double()
        z = explained(inner, flat, ahead.precision).square().sum(-2)
        return recent.var.index_add(
            -1, blocks, z.unflatten(-1, (-1, size)).mT, alpha=-1
        )

    def covariances(self, y: Tensor) -> Between:
        """Return a function from points to posterior covariances with ``y``."""
        to, other, reached = self._looked(y.double())
        there = torch.linalg.vecdot(other, reached).double()

        def of(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            spots, half, shrunk = self._looked(x.double())
            between = _within(spots, to, shrunk @ other.mT)
            here = torch.linalg.vecdot(half, shrunk)
            return between.double(), here.double(), there

        return of

    def weights(self) -> tuple[Tensor, Tensor]:
        """Return mean weights ``(T, K, F, D)`` and a root ``(T, K, D, D)``.

        The weights' covariance is ``root root'``.
        """
        e, means = self._now()
        root = self._root if e is None else self._root * e.sqrt().unsqueeze(-2)
        return means @ self._root.mT, root

    def path(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """Draw a path less its mean: a function ``(T, n, d) -> (T, F, n)``."""
        drawn = self.draw(streams)

        def path(x: Tensor) -> Tensor:
            x = x.double()
            return self._through(self._spots(x), self.features(x), drawn).mT.double()

        return path

    def draw(self, streams: Streams) -> Tensor:
        """Draw weights less their means, ``(T, K, D, F)``."""
        size = self.blocks * self.width
        z = streams.normal(self.functions, size).view(-1, self.functions, size)
        z = devices.put(z, self.device).to(self._root.dtype)
        z = z.unflatten(-1, (self.blocks, self.width)).transpose(1, 2)  # T x K x F x D
        e, _ = self._now()
        if e is not None:  # the symmetric root: eigenvectors' signs differ by processor
            z = (z @ self._root) * e.sqrt().unsqueeze(-2)
        drawn: Tensor = self._root @ z.mT
        return drawn

    def gain(self) -> Tensor:
        """Return the realised information gain, ``(T,)``."""
        if self.fade is None:
            return 0.5 * self._log_det.sum(-1)
        age = self._age(self._clock).unsqueeze(-1)
        return 0.5 * (self._values * age).log1p().sum((-2, -1))

    def residuals(self) -> tuple[Tensor, Tensor]:
        """Return faded counts ``(T,)`` and ``sum p y y' - b' (I + A)^-1 b (T, F, F)``.

        The latter is the squares that the best weights leave, plus the weights' own.
        """
        fitted = self._fitted
        if self.fade is not None:
            age = self._age(self._clock).unsqueeze(-1)
            e = (1 + self._values * age).reciprocal_()
            left = self._rotated * (e * age.square()).unsqueeze(-2)
            fitted = left @ self._rotated.mT
        count, squares = self._tally()
        return count, squares - fitted.sum(1)

    def bytes(self) -> int:
        """Return the bytes that sums, roots and recent rows take."""
        arrays = [self._sums, self._root, self._weighted]
        if self._recent is not None:
            arrays += [array for array, _ in self._recent.arrays]
        return sum(part.nbytes for part in arrays)


def _framed(count: int) -> int:
    """Return how many first inputs the frame uses once there are ``count``."""
    return 1 << count.bit_length() - 1 if count >= FRAMED else 1


def _statistics(raw: Tensor, real: Tensor) -> OutcomeCounts:
    """Return the statistics of the inputs ``(T, n, k)`` that are ``real``."""
    some = real.unsqueeze(-1)
    seen = real.double().sum(-1, keepdim=True)
    mean = (raw * some).sum(1) / seen.clamp_min(1)
    squares = ((raw - mean.unsqueeze(1)).square() * some).sum(1)
    return with_spreads(seen, mean, squares, squares, mean)


def _within(one: Spots, other: Spots, values: Tensor) -> Tensor:
    """Return covariances ``(T, n, o)`` with 0 between points of different blocks."""
    if one.block is None or other.block is None:
        return values
    within: Tensor = values * (one.block.unsqueeze(-1) == other.block.unsqueeze(-2))
    return within


def check_width(width: int, blocks: int, trials: int, free: int) -> None:
    """Raise unless blocks of ``width`` features fit in memory."""
    least = 3 * 8 * trials * blocks * width**2
    if least > free:
        raise CBanditError(
            f"weights of {width} features in each of {blocks} combinations of "
            f"categories take {least / 1e9:,.3g} GB, and {free / 1e9:.3g} GB are free: "
            "leave categories out of the space, or give features=n"
        )
