"""The ledger: a policy's choices that wait for feedback, and their feedback so far.

In shapes, ``T`` counts the trials (1 without a trials axis), ``m`` the costs and ``F``
the functions: the reward, number 0, then the costs. ``d`` is the dimension of an action
and ``n`` counts rows of data.

The ledger has an entry for each choice whose feedback is not complete. Entries are
replaced, never changed: one assignment adds an outcome to an entry, or closes it. Every
outcome has a serial number, and the policy's state says up to which number it has
absorbed them. So an interrupt between the two neither loses an outcome nor absorbs it
twice.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.choice import Choice
from cbandit.errors import ChoiceError
from cbandit.posterior.log import Observation, join

CANNOT_CHANGE_HINT = (
    "; what was told cannot be changed: go on from an earlier save, or build the "
    "policy anew and give it what history() holds, corrected"
)


def private_copy(choice: Choice) -> Choice:
    """Return a copy of a choice that shares no tensor with it."""
    copy = object.__new__(Choice)
    vars(copy).update(vars(choice), x=choice.x.clone())
    if choice.index is not None and choice.keys is None:
        vars(copy)["index"] = choice.index.clone()
    return copy


# -- feedback --------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a choice is: each trial's action and the round.

    Actions are points ``(T, d)``, and keys: numbers, or coordinates on a box.
    """

    keys: list[Any]
    x: Tensor
    t: int


class Outcome(NamedTuple):
    """The values of the reward, or of costs, from one ``tell`` about a choice.

    Args:
        values: ``(T, 1)`` for the reward, ``(T, k)`` for ``k`` costs.
        where: the trials with a value, ``(T,)`` bool on the host; ``None``: all.
        noise: the variance of this observation, ``(T,)``; ``None``: the belief's.
        at: the policy's round when the user called ``tell``.
        serial: the outcome's number among all outcomes, failures and cancellations.
        columns: the numbers of these costs; ``None``: all costs, or the reward.
        time: when the user called ``tell``, in seconds since 1970.
        tries: the number of tries (binary) or the exposure (counts) behind each value,
            in the shape of the values; ``None``: 1 each.
    """

    values: Tensor
    where: Tensor | None
    noise: Tensor | None
    at: int
    serial: int = 0
    columns: Sequence[int] | None = None
    time: float = math.nan
    tries: Tensor | None = None

    @property
    def is_full(self) -> bool:
        """Whether no trial lacks a value, and no cost is left out."""
        return self.where is None and self.columns is None

    @property
    def trials(self) -> Tensor:
        """The trials with a value, ``(T,)`` bool on the host."""
        if self.where is None:
            return torch.ones(len(self.values), dtype=torch.bool)
        return self.where

    def mask(self) -> Tensor:
        """Return the trials with a value, ``(T,)`` bool, on the values' device."""
        if self.where is None:
            shape, device = len(self.values), self.values.device
            return torch.ones(shape, dtype=torch.bool, device=device)
        return devices.put(self.where, self.values.device)

    def in_columns(self, m: int) -> tuple[Tensor, Tensor]:
        """Return a value for each of ``m`` costs, and which were told, ``(T, m)`` each.

        For an outcome of the reward both are ``(T, 1)``.
        """
        came = self.mask().unsqueeze(-1)
        if self.columns is None:
            return self.values, came.expand_as(self.values)
        columns = list(self.columns)
        values = self.values.new_zeros(len(self.values), m)
        there = torch.zeros(m, dtype=torch.bool, device=values.device)
        values[:, columns], there[columns] = self.values, True
        return values, came & there


class Feedback(NamedTuple):
    """The arguments of one ``tell``, read and checked.

    Args:
        functions: the numbers of the functions with a value, 0 the reward.
        mask: the trials with a value, ``(T,)`` on the host; ``None``: all.
        rewards: one outcome if the user told the reward, else none.
        costs: one outcome if the user told costs, one a cost if their variances were
            told by name; else none.
    """

    functions: Sequence[int]
    mask: Tensor | None
    rewards: Sequence[Outcome]
    costs: Sequence[Outcome]


class News(NamedTuple):
    """The feedback of one choice that the policy's state has not absorbed yet.

    Args:
        choice: the choice, as ``ask`` gave it out.
        rewards: the outcomes of its reward.
        costs: the outcomes of its costs.
        cancelled: whether the user has cancelled the choice.
        charged: costs of a choice that was cancelled or has failed; only budgets use
            them.
        came: which functions have a value by now, ``(T, 1 + m)`` bool on the host; none
            in trials in which the action has failed.
        limits: the thresholds of the choice's round, ``(T, m)``.
        place: where the choice is, and its round.
        now: the policy's latest round.
        failed: the trials whose failure is new, ``(T,)`` bool on the host; ``None``: in
            none.
        expected: what was expected of the costs when the choice was made.
        ever_failed: the trials in which the action has failed by now, ``(T,)``;
            ``None``: in none.
        incomplete: whether costs were told that were to wait for the others.
        as_told: the news before a concern changed values in them; ``None``: no value
            was changed.
    """

    choice: Choice
    rewards: Sequence[Outcome]
    costs: Sequence[Outcome]
    cancelled: bool
    charged: Sequence[Outcome]
    came: Tensor
    limits: Tensor
    place: Place
    now: int
    failed: Tensor | None = None
    expected: Any = None
    ever_failed: Tensor | None = None
    incomplete: bool = False
    as_told: News | None = None

    @property
    def raw(self) -> News:
        """The news with the values that the user told."""
        return self if self.as_told is None else self.as_told

    def outcomes_by_function(self) -> list[tuple[Outcome, list[int]]]:
        """Return each outcome with the numbers of its functions.

        The reward has number 0, and cost ``j`` has number ``1 + j``.
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
        """Return the values, which of them exist, and their noise variances in units.

        All are ``(T, F)``; the values are in the user's units.

        Args:
            noise: the variances of the beliefs, in units, ``(T, F)``, for values whose
                variance the user did not tell.
            size: the size of each function's unit, ``(T, F)``.
        """
        values, came = torch.zeros_like(noise), torch.zeros_like(noise).bool()
        noise = noise.clone()
        for told, f in self.outcomes_by_function():
            mask = told.mask().unsqueeze(-1)
            values[:, f] = torch.where(mask, told.values.to(noise), values[:, f])
            came[:, f] |= mask
            if told.noise is not None:
                own = told.noise.to(noise).unsqueeze(-1) / size[:, f].square()
                noise[:, f] = torch.where(mask, own, noise[:, f])
        return values, came, noise

    def observations(self) -> Sequence[Observation]:
        """Return the news as beliefs absorb it: as one observation, if that can be."""
        out: list[Observation] = []
        every, news = [True] * len(self.came), self
        keys, x, t = self.place
        if len(self.rewards) > 1 or len(self.costs) > 1:
            news = self._replace(
                rewards=_merge_items(self.rewards), costs=_merge_items(self.costs)
            )
        for told, functions in news.outcomes_by_function():
            wanted = every if told.where is None else told.where.tolist()
            of = told.values, wanted, told.noise, t, told.tries
            out.append(Observation(functions, keys, x, *of))
        return join(out)


def _merge_items(items: Sequence[Outcome]) -> Sequence[Outcome]:
    """Merge outcomes of different trials into one; return any others unchanged."""
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


class DataPart(NamedTuple):
    """The values of some functions in earlier data, ``n`` rows a trial.

    Args:
        functions: the numbers of ``f`` functions, 0 the reward.
        values: ``(1 or T, n, f)``.
        tries: the tries or exposure of the values, in their shape; ``None``: 1 each.
        noise: the variances of the observations, ``(1 or T, n)``, NaN where the
            belief's holds; ``None``: the belief's holds everywhere.
        came: where there is a value, ``(T, n)`` bool on the host; ``None``: everywhere.
    """

    functions: list[int]
    values: Tensor
    tries: Tensor | None = None
    noise: Tensor | None = None
    came: Tensor | None = None


@dataclass(frozen=True)
class Data:
    """Earlier data that the user gave to ``observe``, checked: ``n`` rows a trial.

    Args:
        numbers: the actions' numbers ``(1 or T, n)``; ``None``: points of a box.
        places: the actions, ``(T, n, d)``.
        parts: the values.
        failed: where the action could not be measured, ``(T, n)`` bool on the host;
            ``None``: nowhere.
        as_told: the data before a concern changed values in them; ``None``: no value
            was changed.
    """

    numbers: Tensor | None
    places: Tensor
    parts: list[DataPart]
    failed: Tensor | None = None
    as_told: Data | None = None

    def keys(self, i: int) -> list[Hashable]:
        """Return each trial's action in row ``i``, as its number or coordinates."""
        if self.numbers is None:
            return [tuple(point) for point in self.places[:, i].tolist()]
        keys: list[Hashable] = self.numbers[:, i].tolist()
        return keys * len(self.places) if len(keys) < len(self.places) else keys

    @property
    def raw(self) -> Data:
        """The data with the values that the user gave."""
        return self if self.as_told is None else self.as_told

    def rows(self) -> list[list[Observation]]:
        """Return the observations of each row."""
        out: list[list[Observation]] = []
        every, device = [True] * len(self.places), self.places.device
        for i in range(self.places.shape[1]):
            told: list[Observation] = []
            keys, x = self.keys(i), self.places[:, i]
            for functions, value, tries, noise, came in self.parts:
                wanted = every if came is None else came[:, i].tolist()
                if not any(wanted):
                    continue
                of = None
                if tries is not None:
                    of = tries[:, i].to(device).expand(len(every), -1)
                row = value[:, i].to(device)
                for where, own in _split_by_noise(wanted, noise, i):
                    own = None if own is None else own.to(device)
                    told.append(
                        Observation(functions, keys, x, row, where, own, tries=of)
                    )
            if told:
                out.append(told)
        return out


def _split_by_noise(
    wanted: list[bool], noise: Tensor | None, i: int
) -> list[tuple[list[bool], Tensor | None]]:
    """Split the trials ``wanted`` of row ``i`` by whether their variance was stated.

    Return the trials and variances of each group; ``None``: not stated. ``noise`` is
    as in :class:`DataPart`.
    """
    if noise is None:
        return [(wanted, None)]
    row = noise[:, i].expand(len(wanted))
    stated = (~row.isnan()).tolist()
    plain = [w and not s for w, s in zip(wanted, stated, strict=True)]
    own = [w and s for w, s in zip(wanted, stated, strict=True)]
    parts = [(plain, None), (own, row.nan_to_num(1.0))]
    return [(where, value) for where, value in parts if any(where)]


# -- choices that wait for feedback ----------------------------------------------------


class DecisionRecord(NamedTuple):
    """The facts that the policy knew when it made a choice.

    Args:
        time: when the user called ``ask``, in seconds since 1970.
        limits: the thresholds of the round, ``(T, m)``: the choice's costs are compared
            with these, however late they come.
        multiplier: the costs' multiplier, ``(T, m)``; ``None``: the rule has none.
        estimate: the reward and costs estimated at the choice, ``(T, 1 + m)``;
            ``None``: unknown.
        score: the choice's score, ``(T,)``; ``None``: unknown.
        promised: upper bounds of the choice's costs, ``(T, m)``; ``None``: no cost has
            a budget.
        expected: what was expected of its costs, for the certificate.
        chance: its propensity, ``(T,)``, NaN where it was certain; ``None``: it was
            certain, or is not known.
    """

    time: float
    limits: Tensor
    multiplier: Tensor | None = None
    estimate: Tensor | None = None
    score: Tensor | None = None
    promised: Tensor | None = None
    expected: Any = None
    chance: Tensor | None = None


class Failure(NamedTuple):
    """The trials ``where (T,)`` in which an action failed, and a serial number."""

    where: Tensor
    serial: int


@cache
def everything(size: int, functions: int) -> Tensor:
    """Return ``came`` of an entry with all values, which must not be changed."""
    return torch.ones(size, functions, dtype=torch.bool)


def failed_in(failures: Sequence[Failure]) -> Tensor | None:
    """Return the trials ``(T,)`` with a failure; ``None``: there is no failure."""
    if not failures:
        return None
    return torch.stack([failure.where for failure in failures]).any(0)


class Entry(NamedTuple):
    """A choice in the ledger, with its feedback so far.

    Args:
        choice: the policy's own copy of the choice.
        given: the object that ``ask`` returned; the user may have changed it.
        place: where the choice is, and its round.
        made: what the policy knew when it made the choice.
        came: which functions have a value, ``(T, 1 + m)`` bool on the host.
        awaits: how many functions the choice waits for, the reward first.
        rewards: the outcomes of the reward, absorbed or not.
        costs: the outcomes of the costs, absorbed or not.
        closed: whether the entry takes no more feedback.
        cancelled: the serial number of the cancellation; 0: it was not cancelled.
        held: costs ``(T, m)`` that wait until all costs have come; ``None``: none.
        failures: the failures of the action, absorbed or not.
        charged: costs that only budgets use, absorbed or not.
        expired: whether it still waits, but the policy no longer counts on feedback;
            :meth:`Ledger.all` sets it.
    """

    choice: Choice
    given: Choice
    place: Place
    made: DecisionRecord
    came: Tensor
    awaits: int
    rewards: tuple[Outcome, ...] = ()
    costs: tuple[Outcome, ...] = ()
    closed: bool = False
    cancelled: int = 0
    held: Tensor | None = None
    failures: tuple[Failure, ...] = ()
    charged: tuple[Outcome, ...] = ()
    expired: bool = False

    @property
    def failed(self) -> Tensor | None:
        """The trials in which the action has failed, ``(T,)``; ``None``: in none."""
        return failed_in(self.failures)

    def playing(self, mask: Tensor | None) -> Tensor | None:
        """Return ``mask (T,)`` without trials that play nothing; ``None``: all."""
        idle = self.choice.idle
        if idle is None:
            return mask
        plays = ~idle.reshape(-1).cpu()
        return plays if mask is None else mask & plays

    def waits(self) -> Tensor:
        """Return the trials that still wait for feedback, ``(T,)``."""
        return ~self.came[:, : self.awaits].all(-1)

    def mark_values(
        self,
        functions: Sequence[int],
        mask: Tensor | None,
        labels: Sequence[str],
        as_array: bool,
    ) -> tuple[Tensor, bool]:
        """Return which functions have a value now, ``(T, 1 + m)``, and if all do.

        Raises an error if one of the new values had come before.

        Args:
            functions: the numbers of the functions with a new value, 0 the reward.
            mask: the trials with a new value, ``(T,)``; ``None``: all.
            labels: the names of the reward and the costs.
            as_array: whether the user told all costs as one array, not by name.
        """
        if mask is None and len(functions) == self.came.shape[1] and not self.rewards:
            whole = not self.failures and self.choice.idle is None
            if not self.costs and whole and self.held is None:
                return everything(*self.came.shape), True
        now = torch.zeros_like(self.came)
        now[:, list(functions)] = True if mask is None else mask.unsqueeze(-1)
        twice = (now & self.came).any(0).nonzero().flatten().tolist()
        if twice:
            f = twice[0]
            before, name = self.came[:, :1], "reward"
            if f:
                before = self.came[:, 1:]
                name = "cost" if as_array else f"cost {labels[f]!r}"
            some = "" if bool(before.all()) else " in some of these trials"
            raise ChoiceError(
                f"choice of round {self.choice.t} was told its {name} already{some}"
                + CANNOT_CHANGE_HINT
            )
        came = now | self.came
        return came, bool(came[:, : self.awaits].all())

    def with_failure(self, mask: Tensor | None, serial: int) -> Entry:
        """Return the entry after its action has failed in the trials ``mask (T,)``.

        Raises an error if one of these trials waits for no feedback.
        """
        now = torch.ones_like(self.came[:, 0]) if mask is None else mask
        if bool((now & ~self.waits()).any()):
            raise ChoiceError(
                f"choice of round {self.choice.t} was told in full, or has failed, "
                f"already in some of these trials{CANNOT_CHANGE_HINT}"
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
    """A list of choices that prints which feedback each of them waits for.

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
    """The entries of the choices whose feedback is not complete, by round.

    Entries of rounds after the policy's latest were left by an interrupted ``ask``.

    Args:
        size: how many trials there are.
        m: how many costs there are.
        awaits_costs: whether a choice waits for its costs.
        expire: choices older than so many rounds are not waited for; their feedback is
            taken all the same. ``None``: every choice is waited for.
    """

    def __init__(
        self, size: int, m: int, awaits_costs: bool, expire: int | None = None
    ) -> None:
        self._expire = expire
        self._nothing = torch.zeros(size, 1 + m, dtype=torch.bool)
        self.awaits = 1 + m if awaits_costs else 1
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
        """Return the id of round ``t``'s choice, unique among policies and copies."""
        return f"{self._prefixes[-1]}-{t}"

    def open(
        self, choice: Choice, given: Choice, place: Place, made: DecisionRecord
    ) -> None:
        """Add an entry for a new choice; the arguments are those of :class:`Entry`.

        The policy calls this just before it stores the state after the round.
        """
        self._rounds[choice.id] = choice.t
        came = self._nothing
        if choice.idle is not None:  # idle trials wait for nothing
            came = came | choice.idle.reshape(-1, 1).cpu()
        entry = Entry(choice, given, place, made, came, self.awaits)
        self._entries[choice.t] = entry

    def replace_choices(
        self, change: Callable[[Choice], Choice], place_of: Callable[[Choice], Place]
    ) -> None:
        """Replace each entry's choice by ``change(choice)``, and its place to match."""
        entries = {}
        for t, entry in self._entries.items():
            choice = change(entry.choice)
            entries[t] = entry._replace(choice=choice, place=place_of(choice))
        self._entries = entries

    def latest(self, t: int) -> Entry:
        """Return the entry of round ``t``, which must be the last one asked for."""
        return self._entries[t]

    def _first_waiting(self, t: int) -> float:
        """Return the first round whose choice is still waited for in round ``t``."""
        return -math.inf if self._expire is None else t - self._expire

    def all(self, t: int) -> list[Entry]:
        """Return the entries of rounds up to ``t``, the latest."""
        first, out = self._first_waiting(t), []
        for s, entry in self._entries.items():
            if s <= t:
                old = s < first and not entry.closed
                out.append(entry._replace(expired=True) if old else entry)
        return out

    def waiting(self, t: int, now: int | None = None) -> list[Entry]:
        """Return the entries of rounds up to ``t`` that are waited for, oldest first.

        ``now`` is the round in which they are; ``None``: round ``t``.
        """
        first, out = self._first_waiting(t if now is None else now), []
        for s, entry in reversed(self._entries.items()):
            if s < first:
                break
            if not entry.closed and s <= t:
                out.append(entry)
        out.reverse()
        return out

    def find(self, choice: Choice | str, t: int) -> Entry | None:
        """Return the waiting entry of a choice or an id; ``None``: none waits.

        Args:
            choice: the user's argument.
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
        """Return whether a choice is this policy's and takes no more feedback."""
        if not isinstance(choice, Choice) or choice.t > t or not self._gave_out(choice):
            return False
        entry = self._entries.get(choice.t)
        return entry is None or entry.closed

    def refusal(
        self, choice: object, t: int, states: Callable[[str], set[str]]
    ) -> ChoiceError:
        """Return the error for feedback about a choice that does not wait for it.

        Args:
            choice: the user's argument.
            t: the policy's round.
            states: takes an id and returns the states of that choice in its trials.
        """
        if isinstance(choice, str):
            if over := states(choice):
                return ChoiceError(f"the choice with id {choice!r} {_end_text(over)}")
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
        return ChoiceError(
            f"choice of round {choice.t} is finished: it {_end_text(over)}"
        )

    def _gave_out(self, choice: Choice) -> bool:
        """Return whether this policy gave the choice its id."""
        return choice.id.rpartition("-")[0] in self._prefixes

    def next_serial(self) -> int:
        """Return a new serial number, larger than all before it."""
        self.last += 1
        return self.last

    def put(self, entry: Entry) -> None:
        """Replace the entry of a round by one with more feedback."""
        # mark the round first: feedback in an unmarked round would be overlooked
        self._touched[entry.choice.t] = None
        self._entries[entry.choice.t] = entry

    def news(self, heard: int, now: int, sees_costs: bool) -> list[News]:
        """Return the feedback with serial numbers above ``heard``, by round.

        Args:
            heard: the largest serial number that the policy's state has absorbed.
            now: the policy's latest round.
            sees_costs: whether ``ask`` is given the costs, so that costs in ``tell``
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
            cancelled, came = entry.cancelled > heard, entry.came
            failed = failed_in([f for f in entry.failures if f.serial > heard])
            for failure in entry.failures:
                came = came & ~failure.where.unsqueeze(-1)
            if rewards or costs or cancelled or charged or failed is not None:
                told = entry.choice, rewards, costs, cancelled, charged, came
                made = entry.made
                known = *told, made.limits, entry.place, now, failed, made.expected
                out.append(News(*known, entry.failed, entry.held is not None))
        return out

    def reminder(self, name: str, count: int) -> str:
        """Return the text of a warning that ``count`` choices wait for feedback."""
        costs = ", cost=..." if self.awaits > 1 else ""
        return (
            f"{name}: {count} choices wait for their feedback; hand each to "
            f"tell(choice, reward=...{costs}), or to cancel(choice) if it will never "
            "come; expire=n lets go of those older than n rounds"
        )

    def tidy(self, heard: int, keep: Callable[[Entry], None]) -> None:
        """Pass closed entries to ``keep`` and drop them, if all feedback is absorbed.

        ``heard`` is the largest serial number that the state has absorbed. After an
        interrupt ``keep`` may get an entry twice.
        """
        if heard != self.last:
            return  # new feedback came meanwhile: wait for the next call
        for t in list(self._touched):
            entry = self._entries.get(t)
            if entry is not None and entry.closed:
                keep(entry)
                self._rounds.pop(entry.choice.id, None)
                del self._entries[t]
            del self._touched[t]


def _end_text(states: set[str]) -> str:
    """Return the words for how a choice ended, given its states in its trials."""
    if "failed" in states:
        return f"was told as failed{CANNOT_CHANGE_HINT}"
    if "cancelled" in states:
        return (
            "was cancelled; what has come of it after all goes to observe(...), where "
            "the policy has it"
        )
    return f"was told in full{CANNOT_CHANGE_HINT}"
