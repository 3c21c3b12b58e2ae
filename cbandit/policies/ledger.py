"""Who waits for what: the choices of a policy whose feedback has not all come.

An entry a choice, which is replaced and never changed: one assignment puts what was
told into it and closes it. Every item told has a serial number; a policy that has taken
in the items up to one number remembers that number, so that an interrupt between its
state and the ledger neither loses an item nor takes it in twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.choice import Choice
from cbandit.errors import ChoiceError

__all__ = [
    "STAYS",
    "Entry",
    "Ledger",
    "Made",
    "News",
    "Outstanding",
    "Told",
    "also_seen",
    "unseen",
]

STAYS = (
    "; what was told cannot be changed: go on from an earlier save, or build the "
    "policy anew and give it what history() holds, corrected"
)


class Told(NamedTuple):
    """Feedback of one choice that waits to be absorbed.

    Args:
        values: ``(T, 1)`` for the reward, ``(T, m)`` for costs.
        where: ``(T,)`` bool, on the host, or ``None``: all trials.
        noise: this observation's variance, ``(T,)``, or ``None``.
        at: the round in which it was told.
        serial: its number among all that was told.
        columns: which costs these are; ``None``: all of them, or the reward.
        time: when it was told, in seconds since 1970.
    """

    values: Tensor
    where: Tensor | None
    noise: Tensor | None
    at: int
    serial: int = 0
    columns: tuple[int, ...] | None = None
    time: float = math.nan

    def mask(self) -> Tensor:
        """Return ``where`` beside the values, all true if it is ``None``."""
        if self.where is None:
            shape, device = len(self.values), self.values.device
            return torch.ones(shape, dtype=torch.bool, device=device)
        return devices.put(self.where, self.values.device)

    def wide(self, m: int) -> tuple[Tensor, Tensor]:
        """Return values and whether they came, ``(T, 1)`` or of all ``m`` costs."""
        came = self.mask().unsqueeze(-1)
        if self.columns is None:
            return self.values, came.expand_as(self.values)
        there = torch.zeros(m, dtype=torch.bool, device=self.values.device)
        there[list(self.columns)] = True
        return self.excess(None, m), came & there

    def excess(self, limits: Tensor | None, m: int) -> Tensor:
        """Return costs less thresholds ``(T, m)``; 0 of those that are not here."""
        if self.columns is None:
            return self.values if limits is None else self.values - limits
        columns = list(self.columns)
        out = self.values.new_zeros(len(self.values), m)
        out[:, columns] = self.values
        if limits is not None:
            out[:, columns] -= limits[:, columns]
        return out


class News(NamedTuple):
    """Feedback of one choice that has not been absorbed.

    Args:
        choice: the choice, as ``ask`` gave it out.
        rewards: what was told of its reward.
        costs: what was told of its costs.
        cancelled: whether the rest will never come.
    """

    choice: Choice
    rewards: Sequence[Told]
    costs: Sequence[Told]
    cancelled: bool = False


class Made(NamedTuple):
    """The numbers that a round was decided by.

    Args:
        time: when it was asked, in seconds since 1970.
        multiplier: that it used, ``(T, m)``, where there is one.
        estimate: of reward and costs at the choice, ``(T, 1 + m)``, where it is known.
        score: of the choice, ``(T,)``, where it is known.
    """

    time: float
    multiplier: Tensor | None = None
    estimate: Tensor | None = None
    score: Tensor | None = None


class Entry(NamedTuple):
    """A choice, in which trials its feedback has come, and what is not absorbed yet.

    Args:
        choice: the policy's own copy.
        given: the choice that the user was given, who may change it in place.
        reward_seen: ``(T,)`` bool on the host, or one for all trials.
        cost_seen: likewise; ``(T, m)`` where some costs have come and others not.
        rewards: what was told, absorbed or not.
        costs: likewise.
        closed: whether nothing more can be told.
        cancelled: the serial number of its cancellation, 0: it was not cancelled.
        held: costs ``(T, m)`` that wait for the others, where all count together.
        failed: trials in which the action has failed, ``(T,)``; ``None``: in none.
        made: what the round was decided by.
    """

    choice: Choice
    given: Choice
    reward_seen: Tensor | bool = False
    cost_seen: Tensor | bool = False
    rewards: tuple[Told, ...] = ()
    costs: tuple[Told, ...] = ()
    closed: bool = False
    cancelled: int = 0
    held: Tensor | None = None
    failed: Tensor | None = None
    made: Made | None = None

    def missing(self) -> tuple[list[bool], list[bool]]:
        """Return the trials that wait for the reward, and those that wait for costs."""
        size = self.choice.x[..., 0].numel()
        both = []
        for seen in (self.reward_seen, self.cost_seen):
            if isinstance(seen, bool):
                both.append([not seen] * size)
            else:
                whole = seen.all(-1) if seen.dim() == 2 else seen
                both.append((~whole).tolist())
        return both[0], both[1]

    def waits(self, m: int) -> list[list[bool]]:
        """Return the trials that wait for each function, the reward first."""
        reward, cost = self.missing()
        seen = self.cost_seen
        if isinstance(seen, Tensor) and seen.dim() == 2:
            return [reward, *(~seen).mT.tolist()]
        return [reward, *[cost] * m]


class Outstanding(list[Choice]):
    """Choices that wait for feedback; it prints as what each of them waits for.

    Args:
        entries: of the choices.
        labels: of the functions that they wait for, the reward's first.
    """

    def __init__(self, entries: Sequence[Entry], labels: Sequence[str]) -> None:
        super().__init__(entry.given for entry in entries)
        self._missing = {
            entry.choice.id: [
                label
                for label, trials in zip(
                    labels, entry.waits(len(labels) - 1), strict=True
                )
                if any(trials)
            ]
            for entry in entries
        }

    def __repr__(self) -> str:
        words = (f"{c!r} waits for {', '.join(self._missing[c.id])}" for c in self)
        return f"[{', '.join(words)}]"


class Ledger:
    """The entries by round. Rounds above a policy's own are of an ``ask`` cut short."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}  # in the order of rounds
        self._touched: dict[int, None] = {}  # rounds that may hold news
        self._rounds: dict[str, int] = {}  # of the choices, by id
        self._serial = 0

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, choice: Choice, given: Choice, made: Made) -> None:
        """Enter a choice that is about to stand."""
        self._rounds[choice.id] = choice.t
        self._entries[choice.t] = Entry(choice, given, made=made)

    def latest(self, t: int) -> Entry:
        """Return the entry of round ``t``, of which nothing has been dropped yet."""
        return self._entries[t]

    def all(self, t: int) -> list[Entry]:
        """Return the entries up to round ``t``."""
        return [each for each in self._entries.values() if each.choice.t <= t]

    def entry(self, t: int) -> Entry | None:
        """Return the entry of a round, if its choice waits for feedback."""
        entry = self._entries.get(t)
        return None if entry is None or entry.closed else entry

    def named(self, name: str) -> Entry | None:
        """Return the entry of the choice with an id, if it waits for feedback."""
        entry = self.entry(self._rounds.get(name, 0))
        return entry if entry is not None and entry.choice.id == name else None

    def waiting(self, t: int) -> list[Entry]:
        """Return the entries that wait for feedback, up to round ``t``."""
        every = self._entries.values()
        return [each for each in every if not each.closed and each.choice.t <= t]

    def number(self) -> int:
        """Return a new serial number, above all before it."""
        self._serial += 1
        return self._serial

    def put(self, entry: Entry) -> None:
        """Replace an entry by one with news."""
        # the mark first: a mark without news is harmless, news without one are lost
        self._touched[entry.choice.t] = None
        self._entries[entry.choice.t] = entry

    def news(self, heard: int) -> list[News]:
        """Return what was told after the item ``heard``, in the order of rounds."""
        out = []
        for t in sorted(self._touched):
            entry = self._entries.get(t)
            if entry is None:
                continue
            rewards, costs = _after(entry.rewards, heard), _after(entry.costs, heard)
            cancelled = entry.cancelled > heard
            if rewards or costs or cancelled:
                out.append(News(entry.choice, rewards, costs, cancelled))
        return out

    def reminder(self, name: str, costs: bool) -> str:
        """Return a warning that many choices wait, for their costs too if ``costs``."""
        return (
            f"{name}: {len(self)} choices wait for their feedback; hand each to "
            f"tell(choice, reward=...{', cost=...' if costs else ''}), or to "
            "cancel(choice) if it will never come"
        )

    @property
    def last(self) -> int:
        """The serial number given out last."""
        return self._serial

    def tidy(self, heard: int, keep: Callable[[Entry], None]) -> None:
        """Drop entries that are closed, all of them being taken in; ``keep`` gets them.

        An interrupt may hand it an entry twice.
        """
        if heard != self._serial:
            return  # more was told meanwhile: another time
        for t in list(self._touched):
            entry = self._entries.get(t)
            if entry is not None and entry.closed:
                keep(entry)
                self._rounds.pop(entry.choice.id, None)
                del self._entries[t]
            del self._touched[t]


def _after(every: tuple[Told, ...], heard: int) -> tuple[Told, ...]:
    """Return what was told after the item ``heard``."""
    if not every or every[0].serial > heard:
        return every
    return tuple(told for told in every if told.serial > heard)


def unseen(kind: str, seen: Tensor | bool, mask: Tensor | None, choice: Choice) -> None:
    """Raise an error if this feedback was told before."""
    if seen is False:
        return
    if isinstance(seen, Tensor) and seen.dim() == 2:
        seen = seen.any(-1)
    if mask is None or bool((mask & seen).any()):
        raise ChoiceError(
            f"choice of round {choice.t} was told its {kind} already"
            + ("" if seen is True else " in some of these trials")
            + STAYS
        )


def also_seen(seen: Tensor | bool, mask: Tensor | None) -> Tensor | bool:
    """Return where feedback has come, with what comes in the trials of ``mask``."""
    if mask is None:
        return True
    if isinstance(seen, Tensor) and seen.dim() == 2:
        both = mask.unsqueeze(-1) | seen
    else:
        both = mask.clone() if seen is False else mask | seen
    if bool(both.all()):
        return True
    return both if bool(both.any()) else False
