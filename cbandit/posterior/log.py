"""The log of observations, as a value: every version stays as it is.

Versions share their rows. A row more costs O(1); a row put in late, or replaced, costs
a copy of the chunks behind it, or of its own.
"""

from __future__ import annotations

import itertools
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Log", "Observation"]

CHUNK = 64

# starts anywhere, so that numbers of a process never meet those read from a file
_numbers = itertools.count(1 + secrets.randbits(62))


class Observation(NamedTuple):
    """One observation of some functions in ``T`` trials.

    Args:
        keys: the actions' names, one a trial: a number of the set, or coordinates.
        x: ``(T, d)``.
        values: ``(T, f)``, in the user's units.
        wanted: trials that saw something.
        noise: its own variance ``(T,)``, or ``None`` for the belief's.
        t: the round it belongs to; 0 for data from before.
        arrived: ``(T, f)``, the values that have come. The others hold what stands for
            them; where outcomes are standardised that is their average. ``None``: all.
    """

    keys: Sequence[Hashable]
    x: Tensor
    values: Tensor
    wanted: Sequence[bool]
    noise: Tensor | None = None
    t: int = 0
    arrived: Tensor | None = None

    def columns(self, kept: Tensor) -> Observation:
        """The same of some functions alone."""
        arrived = None if self.arrived is None else self.arrived[:, kept]
        return self._replace(values=self.values[:, kept], arrived=arrived)


class Log:
    """Observations in the order of their rounds; ``number`` is this version's alone."""

    __slots__ = ("_chunks", "_latest", "_start", "_tail", "_used", "number")

    number: int

    def __init__(
        self,
        chunks: tuple[list[Observation], ...] = (),
        tail: list[Observation] | None = None,
        used: int = 0,
        start: int = 0,
        latest: int = 0,
    ) -> None:
        # full chunks; a tail that later versions append to, and how much of it is ours;
        # how many rows of the first chunk are gone
        self._chunks, self._tail = chunks, [] if tail is None else tail
        self._used, self._start = used, start
        self._latest = latest  # the round of the last row
        self.number = next(_numbers)

    @classmethod
    def of(cls, rows: Iterable[Observation]) -> Log:
        """A log of these rows, which are in order."""
        every = list(rows)
        full = len(every) // CHUNK * CHUNK
        chunks = tuple(every[i : i + CHUNK] for i in range(0, full, CHUNK))
        latest = every[-1].t if every else 0
        return cls(chunks, every[full:], len(every) - full, 0, latest)

    def __len__(self) -> int:
        return CHUNK * len(self._chunks) + self._used - self._start

    def __iter__(self) -> Iterator[Observation]:
        tail = itertools.islice(self._tail, self._used)
        every = itertools.chain(*self._chunks, tail)
        return itertools.islice(every, self._start, None)

    def __getitem__(self, place: int) -> Observation:
        if not 0 <= place < len(self):
            raise IndexError(place)
        chunk, at = divmod(place + self._start, CHUNK)
        return (self._tail if chunk == len(self._chunks) else self._chunks[chunk])[at]

    def has_data(self, trials: int, functions: int) -> Tensor:
        """Which trials have a value of which function, ``(T, f)`` bool, on the host."""
        found = torch.zeros(trials, functions, dtype=torch.bool)
        for row in self:
            if bool(found.all()):
                break
            wanted = torch.tensor(row.wanted).unsqueeze(-1)
            found |= wanted if row.arrived is None else wanted & row.arrived.cpu()
        return found

    def append(self, row: Observation) -> Log:
        """This and a row more, which is of no earlier round than any."""
        tail, used, latest = self._tail, self._used, row.t
        if len(tail) != used:  # another version has gone on from here
            tail = tail[:used]
        tail.append(row)
        if used + 1 == CHUNK:
            return Log((*self._chunks, tail), None, 0, self._start, latest)
        return Log(self._chunks, tail, used + 1, self._start, latest)

    def enter(self, row: Observation) -> Log:
        """This and a row more, behind those of its round and before later ones."""
        if row.t >= self._latest:
            return self.append(row)
        place = bisect_right(self, row.t, key=_round)
        if place == len(self):  # the latest row is gone
            return self.append(row)
        kept = (place + self._start) // CHUNK
        back = [each for chunk in self._chunks[kept:] for each in chunk]
        back += self._tail[: self._used]
        back.insert(place + self._start - CHUNK * kept, row)
        rest = Log.of(back)
        chunks = self._chunks[:kept] + rest._chunks
        return Log(chunks, rest._tail, rest._used, self._start, rest._latest)

    def merged(self, rows: Iterable[Observation]) -> Log:
        """This and many rows more, in the order of rounds."""
        return Log.of(sorted([*self, *rows], key=_round))

    def without_first(self) -> Log:
        """All but the oldest row."""
        start, chunks = self._start + 1, self._chunks
        if start == CHUNK and chunks:
            chunks, start = chunks[1:], 0
        return Log(chunks, self._tail, self._used, start, self._latest)

    def replaced(self, place: int, row: Observation) -> Log:
        """This with another row at ``place``."""
        chunk, at = divmod(place + self._start, CHUNK)
        if chunk == len(self._chunks):
            tail = self._tail[: self._used]
            tail[at] = row
            return Log(self._chunks, tail, self._used, self._start, self._latest)
        other = list(self._chunks[chunk])
        other[at] = row
        chunks = (*self._chunks[:chunk], other, *self._chunks[chunk + 1 :])
        return Log(chunks, self._tail, self._used, self._start, self._latest)

    def first_of(self, t: int) -> int:
        """The place of the first row of round ``t``, or of a later one."""
        return bisect_left(self, t, key=_round)

    def last(self, count: int) -> list[Observation]:
        """The rows entered last, at most ``count``, oldest first."""
        size = len(self)
        return [self[place] for place in range(max(0, size - count), size)]


def _round(row: Observation) -> int:
    return row.t
