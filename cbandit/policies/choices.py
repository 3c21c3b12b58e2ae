"""Choices that were made, and the feedback told of them.

The ledger has an entry for each choice whose feedback has not all come. An entry is
replaced and never changed: one assignment adds what was told, or closes it. Every item
told has a serial number, and the policy's state says up to which number it has
absorbed them. So an interrupt between the policy's state and the ledger neither loses
an item nor absorbs it twice.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.choice import Choice
from cbandit.errors import ChoiceError
from cbandit.posterior.log import Part

STAYS = (
    "; what was told cannot be changed: go on from an earlier save, or build the "
    "policy anew and give it what history() holds, corrected"
)


def private_copy(choice: Choice) -> Choice:
    """Return a copy of a choice whose tensors nobody else can change."""
    copy = object.__new__(Choice)
    vars(copy).update(vars(choice), x=choice.x.clone())
    if choice.index is not None and choice.keys is None:
        vars(copy)["index"] = choice.index.clone()
    return copy


# -- feedback --------------------------------------------------------------------------


class Place(NamedTuple):
    """The place of a choice: its actions' keys and points ``(T, d)``, and its round."""

    keys: list[Any]
    x: Tensor
    t: int


class Told(NamedTuple):
    """Feedback of one ``tell``, of the reward or of costs.

    Args:
        values: ``(T, 1)`` for the reward, ``(T, m)`` for costs.
        where: ``(T,)`` bool, on the host, or ``None``: all trials.
        noise: this observation's variance, ``(T,)``, or ``None``.
        at: the round in which it was told.
        serial: its number among all items told.
        columns: which costs these are; ``None``: all of them, or the reward.
        time: when it was told, in seconds since 1970.
        tries: the tries or the exposure that values are a share or a rate of, in the
            shape of the values; ``None``: 1 each.
    """

    values: Tensor
    where: Tensor | None
    noise: Tensor | None
    at: int
    serial: int = 0
    columns: Sequence[int] | None = None
    time: float = math.nan
    tries: Tensor | None = None

    def mask(self) -> Tensor:
        """Return ``where`` on the device of the values; all true if it is ``None``."""
        if self.where is None:
            shape, device = len(self.values), self.values.device
            return torch.ones(shape, dtype=torch.bool, device=device)
        return devices.put(self.where, self.values.device)

    def wide(self, m: int) -> tuple[Tensor, Tensor]:
        """Return the values and which of them came, ``(T, 1)`` or ``(T, m)`` each."""
        came = self.mask().unsqueeze(-1)
        if self.columns is None:
            return self.values, came.expand_as(self.values)
        columns = list(self.columns)
        values = self.values.new_zeros(len(self.values), m)
        there = torch.zeros(m, dtype=torch.bool, device=values.device)
        values[:, columns], there[columns] = self.values, True
        return values, came & there


class Feedback(NamedTuple):
    """The feedback of a choice that one ``tell`` brings, read and checked.

    Args:
        functions: the functions it is about, 0 the reward.
        mask: the trials in which it has come, ``(T,)`` on the host; ``None``: all.
        rewards: one item if the reward was told, else none.
        costs: one item if costs were told, else none.
    """

    functions: Sequence[int]
    mask: Tensor | None
    rewards: Sequence[Told]
    costs: Sequence[Told]


class News(NamedTuple):
    """The feedback of one choice that has not been absorbed yet.

    Args:
        choice: the choice, as ``ask`` gave it out.
        rewards: the items told of its reward.
        costs: the items told of its costs.
        cancelled: whether the rest will never come.
        charged: costs of a choice that was cancelled or has failed, which only budgets
            are charged for.
        came: which functions have been told by now, ``(T, 1 + m)`` bool on the host;
            none in trials in which the action has failed.
        limits: the thresholds of the choice's round, ``(T, m)``.
        place: where the choice is, and its round.
        now: the latest round, in which the news are heard.
        failed: the trials in which the action has failed since, ``(T,)`` bool on the
            host; ``None``: in none.
        as_told: the news before any of it was changed on its way to the beliefs;
            ``None``: these are as they were told.
    """

    choice: Choice
    rewards: Sequence[Told]
    costs: Sequence[Told]
    cancelled: bool
    charged: Sequence[Told]
    came: Tensor
    limits: Tensor
    place: Place
    now: int
    failed: Tensor | None = None
    as_told: News | None = None

    @property
    def raw(self) -> News:
        """The news as they were told."""
        return self if self.as_told is None else self.as_told

    def by_functions(self) -> list[tuple[Told, list[int]]]:
        """Return each item told, with the numbers of the functions that it is about.

        Number 0 is the reward; cost ``j`` has the number ``1 + j``.
        """
        out = []
        for told in self.rewards:
            out.append((told, [0]))
        for told in self.costs:
            columns = told.columns or range(told.values.shape[-1])
            functions = []
            for j in columns:
                functions.append(1 + j)
            out.append((told, functions))
        return out

    def readings(self, noise: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return values, where they came, and their noise in units, ``(T, F)`` each.

        Args:
            noise: the variances, in units, of observations without one of their own.
            size: the units.
        """
        values, came = torch.zeros_like(noise), torch.zeros_like(noise).bool()
        noise = noise.clone()
        for told, f in self.by_functions():
            mask = told.mask().unsqueeze(-1)
            values[:, f] = torch.where(mask, told.values.to(noise), values[:, f])
            came[:, f] |= mask
            if told.noise is not None:
                own = told.noise.to(noise).unsqueeze(-1) / size[:, f].square()
                noise[:, f] = torch.where(mask, own, noise[:, f])
        return values, came, noise

    def parts(self) -> list[Part]:
        """Return the news in the form that beliefs absorb."""
        out: list[Part] = []
        every, news = [True] * len(self.came), self
        if len(self.rewards) > 1 or len(self.costs) > 1:
            news = self._replace(rewards=_merge(self.rewards), costs=_merge(self.costs))
        for told, functions in news.by_functions():
            wanted = every if told.where is None else told.where.tolist()
            out.append(Part(functions, told.values, wanted, told.noise, told.tries))
        return out


def _merge(items: Sequence[Told]) -> Sequence[Told]:
    """Merge items of different trials into one; return others unchanged."""
    if len(items) < 2 or any(
        told.where is None
        or (told.noise, told.columns, told.tries) != (None, None, None)
        for told in items
    ):
        return items
    values, where = items[0].values, items[0].where
    for told in items[1:]:
        values = torch.where(told.mask().unsqueeze(-1), told.values, values)
        if where is not None and told.where is not None:
            where = where | told.where
    return [items[0]._replace(values=values, where=where)]


@dataclass(frozen=True)
class Data:
    """Checked data from before the first round.

    Args:
        numbers: the actions' numbers ``(1 or T, n)``; ``None``: points of a box.
        places: the actions, ``(T, n, d)``.
        parts: pairs of function numbers, 0 the reward, and values ``(1 or T, n, f)``.
        tries: for each part the tries or exposure of its values, in their shape;
            ``None``: 1 each.
        noise: for each part its observations' own variances, ``(1 or T, n)``, NaN for
            the belief's; ``None``: the belief's.
        came: for each part where there is a value, ``(T, n)`` bool on the host;
            ``None``: everywhere.
        failed: where the action could not be measured, ``(T, n)`` bool on the host;
            ``None``: nowhere.
        as_told: the data before any of them was changed; ``None``: these are as told.
    """

    numbers: Tensor | None
    places: Tensor
    parts: list[tuple[list[int], Tensor]]
    tries: list[Tensor | None]
    noise: list[Tensor | None]
    came: list[Tensor | None]
    failed: Tensor | None = None
    as_told: Data | None = None

    def keys(self, i: int) -> list[Hashable]:
        """Return the keys of row ``i``, one a trial."""
        if self.numbers is None:
            return [tuple(point) for point in self.places[:, i].tolist()]
        keys: list[Hashable] = self.numbers[:, i].tolist()
        return keys * len(self.places) if len(keys) < len(self.places) else keys

    @property
    def raw(self) -> Data:
        """The data as they were told."""
        return self if self.as_told is None else self.as_told

    def rows(self) -> list[tuple[Sequence[Hashable], Tensor, list[Part]]]:
        """Return a row for each observation, in the form that beliefs absorb."""
        out: list[tuple[Sequence[Hashable], Tensor, list[Part]]] = []
        every, device = [True] * len(self.places), self.places.device
        for i in range(self.places.shape[1]):
            told: list[Part] = []
            for (functions, value), tries, noise, came in zip(
                self.parts, self.tries, self.noise, self.came, strict=True
            ):
                wanted = every if came is None else came[:, i].tolist()
                if not any(wanted):
                    continue
                of = None
                if tries is not None:
                    of = tries[:, i].to(device).expand(len(every), -1)
                row = value[:, i].to(device)
                for where, own in _by_noise(wanted, noise, i):
                    own = None if own is None else own.to(device)
                    told.append(Part(functions, row, where, own, of))
            if told:
                out.append((self.keys(i), self.places[:, i], told))
        return out


def _by_noise(
    wanted: list[bool], noise: Tensor | None, i: int
) -> list[tuple[list[bool], Tensor | None]]:
    """Return the trials of row ``i`` without a variance of its own, and those with."""
    if noise is None:
        return [(wanted, None)]
    row = noise[:, i].expand(len(wanted))
    stated = (~row.isnan()).tolist()
    plain = [w and not s for w, s in zip(wanted, stated, strict=True)]
    own = [w and s for w, s in zip(wanted, stated, strict=True)]
    parts = [(plain, None), (own, row.nan_to_num(1.0))]
    return [(where, value) for where, value in parts if any(where)]


# -- choices that wait for feedback ----------------------------------------------------


class Made(NamedTuple):
    """The facts known when a decision is made.

    Args:
        time: when the round was asked, in seconds since 1970.
        limits: the thresholds of the round, ``(T, m)``: by these its costs are judged,
            whenever they come.
        multiplier: the one used, ``(T, m)``, if there is one.
        estimate: of reward and costs at the choice, ``(T, 1 + m)``, where it is known.
        score: the choice's score, ``(T,)``, where it is known.
        promised: the bounds of what the choice may cost, ``(T, m)``, where there are
            budgets.
    """

    time: float
    limits: Tensor
    multiplier: Tensor | None = None
    estimate: Tensor | None = None
    score: Tensor | None = None
    promised: Tensor | None = None


class Failure(NamedTuple):
    """Trials ``where (T,)`` in which an action failed, and a serial number."""

    where: Tensor
    serial: int


def failed_in(failures: Sequence[Failure]) -> Tensor | None:
    """Return the trials ``(T,)`` in which any failure was; ``None``: no failures."""
    if not failures:
        return None
    return torch.stack([failure.where for failure in failures]).any(0)


class Entry(NamedTuple):
    """A choice in the ledger, with its feedback so far.

    Args:
        choice: the policy's own copy.
        given: the choice object that the user was given, and may have changed.
        place: where the choice is.
        made: what was known when the decision was made.
        came: which functions have been told, ``(T, 1 + m)`` bool on the host.
        awaits: how many functions it waits for, the reward first.
        rewards: the items told of the reward, absorbed or not.
        costs: the items told of the costs, absorbed or not.
        closed: whether nothing more can be told.
        cancelled: the serial number of its cancellation, 0: it was not cancelled.
        held: costs ``(T, m)`` told so far, kept until all costs have come.
        failures: the trials in which the action has failed, absorbed or not.
        charged: costs that only budgets are charged for, absorbed or not.
    """

    choice: Choice
    given: Choice
    place: Place
    made: Made
    came: Tensor
    awaits: int
    rewards: tuple[Told, ...] = ()
    costs: tuple[Told, ...] = ()
    closed: bool = False
    cancelled: int = 0
    held: Tensor | None = None
    failures: tuple[Failure, ...] = ()
    charged: tuple[Told, ...] = ()

    @property
    def failed(self) -> Tensor | None:
        """The trials in which the action has failed, ``(T,)``; ``None``: in none."""
        return failed_in(self.failures)

    def playing(self, mask: Tensor | None) -> Tensor | None:
        """Return which trials of a mask ``(T,)`` play; ``None`` stands for all."""
        idle = self.choice.idle
        if idle is None:
            return mask
        plays = ~idle.reshape(-1).cpu()
        return plays if mask is None else mask & plays

    def waits(self) -> Tensor:
        """Return the trials that still wait for feedback, ``(T,)``."""
        return ~self.came[:, : self.awaits].all(-1)

    def told(
        self,
        functions: Sequence[int],
        mask: Tensor | None,
        labels: Sequence[str],
        at_once: bool,
    ) -> tuple[Tensor, bool]:
        """Return what has come by now, ``(T, 1 + m)``, and whether all has.

        It raises an error if some of the feedback had come before.

        Args:
            functions: those told now, 0 the reward.
            mask: the trials in which they are told, ``(T,)``; ``None``: all.
            labels: the names of the reward and the costs.
            at_once: whether all costs were told as one array, not by name.
        """
        if mask is None and len(functions) == self.came.shape[1] and not self.rewards:
            whole = not self.failures and self.choice.idle is None
            if not self.costs and whole and self.held is None:
                return torch.ones_like(self.came), True
        now = torch.zeros_like(self.came)
        now[:, list(functions)] = True if mask is None else mask.unsqueeze(-1)
        twice = (now & self.came).any(0).nonzero().flatten().tolist()
        if twice:
            f = twice[0]
            before, name = self.came[:, :1], "reward"
            if f:
                before = self.came[:, 1:]
                name = "cost" if at_once else f"cost {labels[f]!r}"
            some = "" if bool(before.all()) else " in some of these trials"
            raise ChoiceError(
                f"choice of round {self.choice.t} was told its {name} already{some}"
                + STAYS
            )
        came = now | self.came
        return came, bool(came[:, : self.awaits].all())

    def having_failed(self, mask: Tensor | None, serial: int) -> Entry:
        """Return the entry after its action has failed in the trials ``mask (T,)``.

        These trials wait for nothing more. It raises an error if they were not waiting
        for anything.
        """
        now = torch.ones_like(self.came[:, 0]) if mask is None else mask
        if bool((now & ~self.waits()).any()):
            raise ChoiceError(
                f"choice of round {self.choice.t} was told in full, or has failed, "
                f"already in some of these trials{STAYS}"
            )
        came = self.came | now.unsqueeze(-1)
        closed = bool(came[:, : self.awaits].all())
        return self._replace(
            came=came,
            failures=(*self.failures, Failure(now, serial)),
            closed=closed,
            cancelled=serial if closed else 0,
        )


class Outstanding(list[Choice]):
    """A list of outstanding choices; it prints what each one waits for.

    Args:
        entries: the entries of the choices.
        labels: the names of the functions, the reward's first.
    """

    def __init__(self, entries: Sequence[Entry], labels: Sequence[str]) -> None:
        super().__init__(entry.given for entry in entries)
        self._missing = {
            entry.choice.id: [
                label
                for label, came in zip(labels, entry.came.all(0).tolist(), strict=False)
                if not came
            ]
            for entry in entries
        }

    def __repr__(self) -> str:
        words = (f"{c!r} waits for {', '.join(self._missing[c.id])}" for c in self)
        return f"[{', '.join(words)}]"


class Ledger:
    """The choices whose feedback has not all come, by round.

    Rounds after the policy's latest come from an ``ask`` that was interrupted.

    Args:
        size: how many trials there are.
        m: how many costs there are.
        costs: whether a choice waits for its costs.
    """

    def __init__(self, size: int, m: int, costs: bool) -> None:
        self._nothing = torch.zeros(size, 1 + m, dtype=torch.bool)
        self.awaits = 1 + m if costs else 1
        self._entries: dict[int, Entry] = {}  # in the order of rounds
        self._touched: dict[int, None] = {}  # rounds that may have new feedback
        self._rounds: dict[str, int] = {}  # of the choices, by id
        #: the latest serial number
        self.last = 0
        # prefixes of the ids given out: before the policy was copied, and now
        self._prefixes: tuple[str, ...] = (secrets.token_hex(6),)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prefixes = (*self._prefixes, secrets.token_hex(6))

    def __len__(self) -> int:
        return len(self._entries)

    def id(self, t: int) -> str:
        """Return the id of a round's choice, unique among all policies and copies."""
        return f"{self._prefixes[-1]}-{t}"

    def open(self, choice: Choice, given: Choice, place: Place, made: Made) -> None:
        """Add an entry for a new choice, just before the policy commits to it."""
        self._rounds[choice.id] = choice.t
        came = self._nothing
        if choice.idle is not None:  # idle trials wait for nothing
            came = came | choice.idle.reshape(-1, 1).cpu()
        entry = Entry(choice, given, place, made, came, self.awaits)
        self._entries[choice.t] = entry

    def rename(
        self, change: Callable[[Choice], Choice], place_of: Callable[[Choice], Place]
    ) -> None:
        """Replace the policy's own copy of every choice by ``change`` of it."""
        entries = {}
        for t, entry in self._entries.items():
            choice = change(entry.choice)
            entries[t] = entry._replace(choice=choice, place=place_of(choice))
        self._entries = entries

    def latest(self, t: int) -> Entry:
        """Return the entry of the latest round ``t``."""
        return self._entries[t]

    def all(self, t: int) -> list[Entry]:
        """Return the entries up to round ``t``."""
        return [each for each in self._entries.values() if each.choice.t <= t]

    def waiting(self, t: int) -> list[Entry]:
        """Return the entries that wait for feedback, up to round ``t``."""
        out = []
        for entry in self._entries.values():
            if not entry.closed and entry.choice.t <= t:
                out.append(entry)
        return out

    def find(self, choice: Choice | str, t: int) -> Entry | None:
        """Return the waiting entry of a choice or an id; ``None``: there is none.

        Args:
            choice: what a user handed in.
            t: the policy's round.
        """
        if isinstance(choice, str):
            name, number = choice, self._rounds.get(choice, 0)
        elif isinstance(choice, Choice):
            name, number = choice.id, choice.t
        else:
            return None
        entry = self._entries.get(number)
        if entry is None or entry.closed or number > t or entry.choice.id != name:
            return None
        return entry

    def finished(self, choice: Choice | str, t: int) -> bool:
        """Return whether a choice of this policy is told in full or cancelled."""
        if not isinstance(choice, Choice) or choice.t > t or not self._gave_out(choice):
            return False
        entry = self._entries.get(choice.t)
        return entry is None or entry.closed

    def refusal(
        self, choice: object, t: int, states: Callable[[str], set[str]]
    ) -> ChoiceError:
        """Return the error for feedback of a choice that does not wait for it.

        Args:
            choice: what a user handed in.
            t: the policy's round.
            states: returns the states that the choice with an id has in its trials.
        """
        if isinstance(choice, str):
            if over := states(choice):
                return ChoiceError(f"the choice with id {choice!r} {_over(over)}")
            return ChoiceError(
                f"no choice with id {choice!r} waits for feedback here: another policy "
                "gave it out, or a copy of this one"
            )
        if not isinstance(choice, Choice):
            return ChoiceError(
                "choice must come from ask(), or be its id; got "
                f"{checks.kind(choice)}. What ask() did not give out goes to "
                "observe(index=, x= or params=)"
            )
        if not self._gave_out(choice):
            return ChoiceError(
                "choice belongs to another policy; tell the one that asked (of two "
                "copies of a checkpoint each knows its own choices only)"
            )
        if choice.t > t:
            return ChoiceError(
                f"choice of round {choice.t} is unknown: this policy is in round {t}"
            )
        if not self.finished(choice, t):
            return ChoiceError(
                f"choice of round {choice.t} was given out by another copy of this "
                "policy; tell that one"
            )
        over = states(choice.id)
        return ChoiceError(f"choice of round {choice.t} is finished: it {_over(over)}")

    def _gave_out(self, choice: Choice) -> bool:
        """Return whether this policy gave out a choice's id."""
        return choice.id.rpartition("-")[0] in self._prefixes

    def number(self) -> int:
        """Return a new serial number, larger than all before it."""
        self.last += 1
        return self.last

    def put(self, entry: Entry) -> None:
        """Replace an entry by one that holds more feedback."""
        # the mark first, as feedback without a mark would be overlooked
        self._touched[entry.choice.t] = None
        self._entries[entry.choice.t] = entry

    def news(self, heard: int, now: int, sees_costs: bool) -> list[News]:
        """Return the feedback after item number ``heard``, in the order of rounds.

        Args:
            heard: the number of the last item that was heard before.
            now: the latest round.
            sees_costs: whether costs were seen before the choice, so that those told
                are no news.
        """
        out = []
        for t in sorted(self._touched):
            entry = self._entries.get(t)
            if entry is None:
                continue
            rewards, costs = entry.rewards, entry.costs
            if rewards and rewards[0].serial <= heard:
                rewards = tuple(told for told in rewards if told.serial > heard)
            if costs and costs[0].serial <= heard:
                costs = tuple(told for told in costs if told.serial > heard)
            if sees_costs:
                costs = ()
            charged = entry.charged
            if charged:
                charged = tuple(told for told in charged if told.serial > heard)
            cancelled, came, failed = entry.cancelled > heard, entry.came, None
            for failure in entry.failures:
                came = came & ~failure.where.unsqueeze(-1)
                failed = failed_in([f for f in entry.failures if f.serial > heard])
            if rewards or costs or cancelled or charged or failed is not None:
                told = rewards, costs, cancelled, charged
                place, limits = entry.place, entry.made.limits
                out.append(News(entry.choice, *told, came, limits, place, now, failed))
        return out

    def reminder(self, name: str) -> str:
        """Return a warning that many choices wait for feedback."""
        costs = ", cost=..." if self.awaits > 1 else ""
        return (
            f"{name}: {len(self)} choices wait for their feedback; hand each to "
            f"tell(choice, reward=...{costs}), or to cancel(choice) if it will never "
            "come"
        )

    def tidy(self, heard: int, keep: Callable[[Entry], None]) -> None:
        """Pass closed entries to ``keep`` and drop them, once all news is absorbed.

        After an interrupt ``keep`` may get an entry twice.
        """
        if heard != self.last:
            return  # more was told meanwhile: next time
        for t in list(self._touched):
            entry = self._entries.get(t)
            if entry is not None and entry.closed:
                keep(entry)
                self._rounds.pop(entry.choice.id, None)
                del self._entries[t]
            del self._touched[t]


def _over(states: set[str]) -> str:
    """Return in words what became of a choice that waits for nothing."""
    if "failed" in states:
        return f"was told as failed{STAYS}"
    if "cancelled" in states:
        return (
            "was cancelled; what has come of it after all goes to observe(...), where "
            "the policy has it"
        )
    return f"was told in full{STAYS}"
