"""A pass over a large set, block by block, with what waits applied on the way."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cbandit.errors import CBanditError
from cbandit.posterior.block import Block
from cbandit.posterior.engines.arrays import Arrays
from cbandit.posterior.rows.protocol import Columns

__all__ = ["BlockPass", "Changes"]


class BlockPass:
    """A pass over the blocks of an engine, with what waits applied on the way.

    Args:
        engine: whose arrays they are.
        changes: the changes that wait.
        less: columns whose squares are to come off the variances that are handed out.
        draw: joint draws.
        done: called at the end.
    """

    __slots__ = ("_changes", "_done", "_draw", "_engine", "_history", "_less")

    def __init__(
        self,
        engine: Arrays,
        changes: Changes | None,
        less: Columns | None,
        draw: Columns | None,
        done: Callable[[], None],
    ) -> None:
        self._engine, self._changes, self._done = engine, changes, done
        self._less, self._draw, self._history = less, draw, engine.history

    def block(self, start: int, stop: int) -> Block:
        """The stretch ``start .. stop - 1``, current."""
        engine, draw = self._engine, self._draw
        self._check()
        own = engine.own(start, stop)
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
        self._done()

    def _check(self) -> None:
        if self._engine.history is not self._history:
            raise CBanditError("beliefs must not be read within a score of theirs")


class Changes:
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
        """Apply them to means ``(T, F, n)`` and variances ``(T, n)`` of a stretch."""
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
