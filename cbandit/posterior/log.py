"""The log of observations: what every engine is a cache of.

A :class:`Log` is a value: each version stays as it is. Versions that follow from each
other by a :class:`Step` share a lineage, so that an engine that holds one of them takes
the steps to a later one. :class:`Observation` is a row of it, in the user's units;
:class:`Update` is a row in an engine's units.
"""

from __future__ import annotations

import itertools
import operator
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices

DROPPED = 64  # rows dropped by a log before it frees their memory

# starts at random, so that a process's numbers never equal those read from a file
_numbers = itertools.count(1 + secrets.randbits(62))


class Observation(NamedTuple):
    """One observation of ``f`` functions in ``T`` trials, in the user's units.

    Args:
        functions: which ones, 0 the reward.
        keys: the actions' keys, one a trial: a number of the set, or coordinates.
        x: ``(T, d)``.
        values: ``(T, f)``.
        wanted: for each trial, whether it observed them.
        noise: the observation's own variance ``(T,)``, or ``None`` for the belief's.
        t: its round; 0 for earlier data.
        tries: the tries or the exposure that values are a share or a rate of,
            ``(T, f)``; ``None``: 1 each.
        source: what the values were computed from, see :meth:`Beliefs.retarget`.
        arrived: ``(T, f)``, the values that have come; ``None``: all. The others hold
            stand-ins, or count as average where outcomes are standardised.
        outcome: in the log of a binary or counted function, what was told: the share or
            rate, and the tries or exposure, ``(T, 2)``. Then ``values`` and ``noise``
            are the normal reading of the latent function that stands in for it.
    """

    functions: list[int]
    keys: Sequence[Hashable]
    x: Tensor
    values: Tensor
    wanted: Sequence[bool]
    noise: Tensor | None = None
    t: int = 0
    tries: Tensor | None = None
    source: Tensor | None = None
    arrived: Tensor | None = None
    outcome: Tensor | None = None

    def outcome_flags(self, device: torch.device) -> Tensor:
        """Return the trials in which the first function's outcome came, ``(T, 1)``.

        If outcomes are rescaled, an observation has only one function.
        """
        if self.arrived is None:
            return devices.put(self.wanted, device).unsqueeze(-1)
        return self.arrived[:, :1]

    def of(self, functions: list[int]) -> Observation:
        """Return the observation with only some of its functions."""
        if functions == self.functions:
            return self
        at = [self.functions.index(f) for f in functions]

        def columns(values: Tensor) -> Tensor:
            return torch.stack([values[:, j] for j in at], -1)

        return self._replace(
            functions=functions,
            values=columns(self.values),
            tries=None if self.tries is None else columns(self.tries),
            arrived=None if self.arrived is None else columns(self.arrived),
        )


def join(parts: Sequence[Observation]) -> Sequence[Observation]:
    """Join observations of one choice if all have the same trials and noise.

    Otherwise return them unchanged.
    """
    if len(parts) < 2:
        return parts
    wanted, noise = parts[0].wanted, parts[0].noise
    functions: list[int] = []
    for part in parts:
        if part.wanted is not wanted and list(part.wanted) != list(wanted):
            return parts
        if part.noise is not noise and (
            part.noise is None or noise is None or not bool((part.noise == noise).all())
        ):
            return parts
        functions += part.functions
    values, tries = [part.values for part in parts], None
    if any(part.tries is not None for part in parts):
        of = [torch.ones_like(p.values) if p.tries is None else p.tries for p in parts]
        tries = torch.cat(of, -1)
    whole = torch.cat(values, -1)
    return [parts[0]._replace(functions=functions, values=whole, tries=tries)]


class Update(NamedTuple):
    """An observation of ``F`` functions in ``T`` trials, in an engine's units.

    Args:
        keys: the actions' keys, one a trial (:meth:`cbandit.Actions.keys`): numbers of
            the set, or else anything hashable.
        x: ``(T, d)``.
        values: ``(T, F)``, float64; stored without a copy, so it must not change.
        precision: ``(T,)``, likewise; 0 in trials that are not ``wanted``.
        wanted: for each trial, whether it observed anything.
        usual: whether the precision is the belief's own, the same in all such calls.
        t: its round, from which on it fades if data fade.
    """

    keys: Sequence[Hashable]
    x: Tensor
    values: Tensor
    precision: Tensor
    wanted: Sequence[bool]
    usual: bool = False
    t: int = 0


class Step(NamedTuple):
    """A change of a log by one row, or of all its targets, as an engine takes it.

    Args:
        call: the engine's method: "add", "remove", "aim" or "aim_all".
        given: its arguments.
    """

    call: str
    given: tuple[Any, ...]


class Lineage:
    """Versions of a log that each follow from the one before by a step."""

    __slots__ = ("kept", "number")

    def __init__(self) -> None:
        self.number = next(_numbers)
        #: the version from which steps are kept, and the steps since
        self.kept: tuple[int, list[Step]] = 0, []


class Log:
    """Observations in the order of rounds: a value.

    All versions of a log share one list of rows, to which the newest one appends.
    Inserting or replacing a row elsewhere costs a copy of the list. An engine that
    holds an earlier version takes the steps since then; where a version came about
    otherwise, it has a lineage of its own, and the engine is rebuilt from the rows.
    """

    __slots__ = ("_lineage", "_rows", "_start", "_stop", "_version")

    def __init__(self, rows: list[Observation] | None = None) -> None:
        self._rows: list[Observation] = [] if rows is None else rows
        # its rows are those from start to stop: later versions append to the same list
        self._start, self._stop = 0, len(self._rows)
        self._lineage, self._version = Lineage(), 0

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Observation]:
        return itertools.islice(self._rows, self._start, self._stop)

    def __getitem__(self, place: int) -> Observation:
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._rows[self._start + place]

    @property
    def version(self) -> tuple[int, int]:
        """The version's identity: its lineage's number, and its own number in that."""
        return self._lineage.number, self._version

    def _next(self, rows: list[Observation], start: int, step: Step | None) -> Log:
        """Return the version that has these rows, one step from this one."""
        log = Log(rows)
        log._start = start
        first, steps = self._lineage.kept
        if step is not None and first + len(steps) == self._version:  # the newest
            steps.append(step)
            log._lineage, log._version = self._lineage, self._version + 1
        return log

    def since(self, version: tuple[int, int] | None) -> list[Step] | None:
        """Return the steps from an earlier version to this one, oldest first.

        ``None``: none lead here.
        """
        first, steps = self._lineage.kept
        if version is None or version[0] != self._lineage.number:
            return None
        if not first <= version[1] <= self._version:
            return None
        return steps[version[1] - first : self._version - first]

    def taken(self) -> None:
        """Drop the steps to this version, as an engine has taken them."""
        first, steps = self._lineage.kept
        if self._version > first:
            self._lineage.kept = self._version, steps[self._version - first :]

    def anew(self) -> Log:
        """Return a version with the same rows to which no steps lead."""
        return Log(self._rows[self._start : self._stop])

    def has_data(self, trials: int, functions: int) -> Tensor:
        """Return which trials have observed each function, ``(T, f)``, on the host."""
        known = torch.zeros(trials, functions, dtype=torch.bool)
        for row in self:
            if bool(known.all()):
                break
            wanted = torch.tensor(row.wanted).unsqueeze(-1)
            known |= wanted if row.arrived is None else wanted & row.arrived.cpu()
        return known

    def enter(self, row: Observation, step: Step | None = None) -> Log:
        """Return the log with one more row, placed after all rows of its round."""
        rows, start, stop = self._rows, self._start, self._stop
        late = stop > start and rows[stop - 1].t > row.t
        if late or len(rows) > stop:  # another version has appended already
            rows, start = rows[start:stop], 0
        if late:
            rows.insert(bisect_right(rows, row.t, key=_round), row)
        else:
            rows.append(row)
        return self._next(rows, start, step)

    def merged(self, rows: Iterable[Observation]) -> Log:
        """Return the log with more rows, in the order of rounds."""
        return Log(sorted([*self, *rows], key=_round))

    def without_first(self, step: Step | None = None) -> Log:
        """Return the log without its oldest row."""
        rows, start = self._rows, self._start + 1
        if len(rows) > self._stop or start > max(DROPPED, len(self)):
            rows, start = rows[start : self._stop], 0
        return self._next(rows, start, step)

    def replaced(self, place: int, row: Observation, step: Step | None = None) -> Log:
        """Return the log with another row at ``place``."""
        rows = self._rows[self._start : self._stop]
        rows[place] = row
        return self._next(rows, 0, step)

    def with_targets(self, rows: list[Observation], step: Step) -> Log:
        """Return the log with other targets: ``rows`` are equal in all else."""
        return self._next(rows, 0, step)

    def first_of(self, t: int) -> int:
        """Return the place of the first row of round ``t`` or later."""
        return bisect_left(self._rows, t, self._start, self._stop, key=_round) - (
            self._start
        )

    def last(self, count: int) -> list[Observation]:
        """Return the last rows, at most ``count``, oldest first."""
        return self._rows[max(self._start, self._stop - count) : self._stop]


_round = operator.attrgetter("t")
