"""The receipt: sums for the certificate of each limit, and the watch over it.

It hears what users told, before outlying readings are bounded. Rounds are held and
added many at a time; a look at the certificate adds what is held. Data given to
``observe`` are no rounds. A choice that was cancelled was not played; one that failed
was, and its costs stay outstanding. ``T`` counts the trials and ``m`` the costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from cbandit.errors import CBanditError
from cbandit.policies.choices import News, Outcome
from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup
from cbandit.policies.signs import Objective
from cbandit.policies.turn import Decision, Turn
from cbandit.receipt.alarm import Alarm, Watch
from cbandit.receipt.bets import Array
from cbandit.receipt.certificate import Bands, Certificate, can_be_worst, certify
from cbandit.receipt.sums import Centre, Costs, Flags, Plays, Sums, Told

HELD = 8, 128  # the least and the most items that are held before they are added
STARTS = 10  # starts of windows in the length of one


class Expected(NamedTuple):
    """The costs that were expected of a round when its action was chosen.

    Args:
        centre: where they were expected, without the belief's part.
        estimate: the belief's estimates of reward and costs, less the limits and in
            units, ``(T, 1 + m)``; ``None``: unknown.
        size: the size of each unit, ``(T, 1 + m)``; ``None``: 1.
    """

    centre: Centre
    estimate: Tensor | None = None
    size: Tensor | None = None


class Item(NamedTuple):
    """A round that was played or cancelled, or costs told, not added to the sums yet.

    Args:
        t: the round.
        limits: its thresholds, ``(T, m)``.
        expected: the costs that were expected.
        outcome: the costs told; ``None``: the round was played or cancelled.
        sign: 1 if it was played, -1 if it was cancelled.
        which: the trials and costs that this is about, ``(T, m)``; ``None``: all.
    """

    t: int
    limits: Tensor
    expected: Expected
    outcome: Outcome | None = None
    sign: float = 1.0
    which: Flags | None = None


class Start(NamedTuple):
    """The start of a window, or of the rounds since an alarm.

    Args:
        t: its round, ``(T, m)``.
        sums: over the rounds up to it, with what was told of them since.
        largest: the largest square of the rounds since, ``(T, m)``.
    """

    t: Array
    sums: Sums
    largest: Array

    def where(self, which: Flags, other: Start) -> Start:
        """Return this start, or ``other`` in the trials and costs of ``which``."""
        pairs = zip(other.sums, self.sums, strict=True)
        sums = Sums(*(np.where(which, new, old) for new, old in pairs))
        return Start(
            np.where(which, other.t, self.t),
            sums,
            np.where(which, other.largest, self.largest),
        )


class ReceiptState(NamedTuple):
    """The rounds so far.

    Args:
        sums: over the rounds that were added.
        centre: where the costs of the next round are expected.
        held: what was not added yet.
        t: the latest round played.
        starts: the starts of windows, oldest first.
        watch: the evidence that limits are broken; ``None``: nobody watches.
        credit: by how many spreads a window may exceed its limit.
        alpha: the chance of a false alarm.
        alarms: all alarms so far.
        fresh: each cost's last alarm, for the certificate since; ``None``: none.
    """

    sums: Sums
    centre: Centre
    held: tuple[Item, ...] = ()
    t: int = 0
    starts: tuple[Start, ...] = ()
    watch: Watch | None = None
    credit: float = 0.0
    alpha: float = 0.05
    alarms: tuple[Alarm, ...] = ()
    fresh: Start | None = None


class Receipt(Concern[ReceiptState]):
    """Keep the sums behind :meth:`cbandit.Policy.certificate`.

    Args:
        setup: the policy as it is when the concern is made.
        window: the number of rounds of a certificate of the last ones; ``None``: none.
        reward_range: what rewards cannot leave; ``None``: not said.
    """

    keywords: ClassVar = {
        "ranges": """what outcomes cannot leave, ``{"latency": (0, 200)}``, or
            ``(0, 200)`` where there is one cost; ``None`` for an end that is not known.
            It makes certificates exact, and evaluation from logs possible, which needs
            the reward's too, ``{"reward": (0, 1)}``. A cost outside withdraws the
            range, with a warning.""",
        "certificate_window": """a number of rounds: ``certificate(window=)`` is then of
            about so many last ones too.""",
    }
    needs_beliefs = False

    def __init__(
        self,
        setup: Setup,
        costs: Costs,
        window: int | None,
        reward_range: tuple[float, float] | None,
    ) -> None:
        super().__init__(setup)
        self.costs, self.window, self.reward_range = costs, window, reward_range
        # costs charged to a budget without being told otherwise; not of tallies
        self._charges = all(kind == "number" for kind in costs.kinds)

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern; a policy without told costs has none."""
        ranges = setup.keywords.get("ranges")
        window = setup.keywords.get("certificate_window")
        if setup.objective.m == 0 or setup.sees_costs:
            if ranges is not None or window is not None:
                raise CBanditError(
                    f"{setup.name} is told no costs, so it takes neither ranges= nor "
                    "certificate_window="
                )
            return None
        if window is not None and (
            isinstance(window, bool) or not isinstance(window, int) or window < 2
        ):
            raise CBanditError(
                f"certificate_window must be None or a whole number from 2; got "
                f"{window!r}"
            )
        first = setup.first_limits.expand(setup.size, setup.objective.m)
        costs = costs_of(setup.objective, ranges, first, setup.outcomes)
        reward_range = _read_ranges(setup.objective, ranges).get(0)
        return cls(setup, costs, window, reward_range)

    def ranges(self) -> dict[int, tuple[float, float]]:
        """Return what functions cannot leave, by number, where both ends are known."""
        out = {} if self.reward_range is None else {0: self.reward_range}
        for j, kind in enumerate(self.costs.kinds):
            low, high = float(self.costs.low[j]), float(self.costs.high[j])
            out[1 + j] = (0.0, 1.0) if kind == "binary" else (low, high)
        return {f: ends for f, ends in out.items() if not any(map(math.isnan, ends))}

    def start(self) -> ReceiptState:
        """Return the state before the first round."""
        sums = Sums.none(self.costs.first.shape)
        return ReceiptState(sums, sums.next_centre(self.costs))

    # -- rounds ----------------------------------------------------------------------

    def check_pick(
        self, state: ReceiptState, turn: Turn, pick: Decision
    ) -> tuple[ReceiptState, Decision]:
        """Note the round, and what is expected of its costs."""
        expected, functions = Expected(state.centre), 1 + len(self.costs.names)
        estimate = pick.estimate
        known = estimate is not None and estimate.shape[-1] == functions
        if known and turn.beliefs is not None:
            units = turn.beliefs.units()
            size = None if units is None else units.size
            expected = Expected(state.centre, estimate, size)
        which = None
        if pick.idle is not None:
            which = self._everywhere() & ~flags_of(pick.idle).reshape(-1, 1)
        item = Item(turn.t, turn.limits, expected, which=which)
        state = state._replace(held=(*state.held, item), t=turn.t)
        return self._added_if_many(state), replace(pick, expected=expected)

    def hear(
        self, state: ReceiptState, news: News, beliefs: object
    ) -> tuple[ReceiptState, News]:
        """Hold the costs told, and watch them."""
        raw = news.raw
        outcomes = (*raw.costs, *(raw.charged if self._charges else ()))
        if not (outcomes or raw.cancelled) or raw.expected is None:
            return state, news
        about = raw.place.t, raw.limits, raw.expected
        items = [Item(*about, outcome) for outcome in outcomes]
        if raw.cancelled:
            items.append(Item(*about, None, -1.0, self._not_played(raw)))
        state = state._replace(held=(*state.held, *items))
        if state.watch is not None:
            for item in items:
                if item.outcome is not None:
                    state = self._watched(state, self._told([item]), item.t)
        return self._added_if_many(state), news

    def _not_played(self, news: News) -> Flags:
        """Return the trials and costs that a cancelled choice did not play."""
        which = ~news.came[:, 1:].numpy()
        if news.incomplete:  # what was told of it alone was never heard
            which = self._everywhere()
        if news.choice.idle is not None:
            which = which & ~flags_of(news.choice.idle).reshape(-1, 1)
        if news.ever_failed is not None:  # those were played
            which = which & ~flags_of(news.ever_failed).reshape(-1, 1)
        if self._charges:  # and so were those that cost something all the same
            for outcome in news.charged:
                _, there = outcome.in_columns(len(self.costs.names))
                which = which & ~flags_of(there)
        return which

    def _added_if_many(self, state: ReceiptState) -> ReceiptState:
        least, most = HELD  # early centres move fast, and many items at once are cheap
        if self.setup.device.type != "cpu":
            least = most  # adding waits for the device
        if self.window is not None:
            most = max(2, min(most, self.window // STARTS))
        enough = min(most, max(least, state.t))
        return self.added(state) if len(state.held) >= enough else state

    def added(self, state: ReceiptState) -> ReceiptState:
        """Return the state with all that is held added to the sums."""
        if not state.held:
            return state
        plays = [item for item in state.held if item.outcome is None]
        rows = [item for item in state.held if item.outcome is not None]
        sums, told = state.sums, None
        if plays:
            sums = sums.after_plays(self.costs, self._plays(plays))
        if rows:
            told = self._told(rows)
            sums = sums.after(self.costs, told)
        starts = tuple(self._later(start, plays, rows) for start in state.starts)
        fresh = state.fresh
        if fresh is not None:
            fresh = self._later(fresh, plays, rows)
        if self.window is not None:
            starts = self._moved(starts, state.t, sums)
        centre = sums.next_centre(self.costs)
        state = state._replace(
            sums=sums, centre=centre, held=(), starts=starts, fresh=fresh
        )
        return self._rearmed(state)

    def _later(
        self, start: Start, plays: Sequence[Item], rows: Sequence[Item]
    ) -> Start:
        """Return a start after rounds were added, some of them of rounds before it."""
        sums, largest = start.sums, start.largest
        latest = start.t.max()
        if old := [item for item in plays if item.t <= latest]:
            gone = self._plays(old)
            before = np.array([item.t for item in old]).reshape(-1, 1, 1) <= start.t
            sums = sums.after_plays(self.costs, gone._replace(add=gone.add * before))
        if rows:
            told = self._told(rows)
            before = np.array([item.t for item in rows]).reshape(-1, 1, 1) <= start.t
            since = told._replace(came=told.came & ~before)
            none = Sums.none(largest.shape)
            largest = np.maximum(largest, none.after(self.costs, since).largest)
            if before.any():
                sums = sums.after(self.costs, told._replace(came=told.came & before))
        return Start(start.t, sums, largest)

    def _moved(
        self, starts: tuple[Start, ...], t: int, sums: Sums
    ) -> tuple[Start, ...]:
        """Return the starts of windows after rounds up to ``t`` were added."""
        window, kept = self.window or 0, list(starts)
        if not kept or t - kept[-1].t.max() >= window / STARTS:
            kept.append(Start(np.full(sums.rounds.shape, t), sums, 0 * sums.largest))
        while len(kept) > 1 and kept[1].t.max() <= t - window:
            kept.pop(0)
        return tuple(kept)

    # -- as arrays, in the user's sense ------------------------------------------------

    def _plays(self, items: Sequence[Item]) -> Plays:
        every = self._everywhere()
        which = [every if item.which is None else item.which for item in items]
        signs = np.array([item.sign for item in items]).reshape(-1, 1, 1)
        limits = self._limits(items)
        return Plays(signs * np.stack(which), limits, self._centre(items, limits))

    def _told(self, items: Sequence[Item]) -> Told:
        outcomes = [item.outcome for item in items if item.outcome is not None]
        m, tries = len(self.costs.names), None
        if all(outcome.is_full for outcome in outcomes):
            values = _numpy(torch.stack([outcome.values for outcome in outcomes]))
            came = np.ones(values.shape, dtype=bool)
        else:
            parts = [outcome.in_columns(m) for outcome in outcomes]
            values = _numpy(torch.stack([value for value, _ in parts]))
            came = flags_of(torch.stack([there for _, there in parts]))
        if any(outcome.tries is not None for outcome in outcomes):
            of = [
                torch.ones_like(o.values) if o.tries is None else o.tries
                for o in outcomes
            ]
            wide = [
                outcome._replace(values=each).in_columns(m)[0]
                for outcome, each in zip(outcomes, of, strict=True)
            ]
            tries = _numpy(torch.stack(wide))
        limits = self._limits(items)
        centre = self._centre(items, limits)
        return Told(self._signed(values), came, tries, limits, centre)

    def _limits(self, items: Sequence[Item]) -> Array:
        shape = len(items), *self.costs.first.shape
        limits = _numpy(torch.stack([item.limits for item in items]))
        return np.broadcast_to(self._signed(limits), shape)

    def _centre(self, items: Sequence[Item], limits: Array) -> Centre:
        every = [item.expected for item in items]
        mean = np.stack([expected.centre.mean for expected in every])
        trust = np.stack([expected.centre.trust for expected in every])
        informed = np.stack([expected.centre.informed for expected in every])
        if all(expected.estimate is None for expected in every):
            return Centre(mean, trust, informed)
        (like,) = [e.estimate for e in every if e.estimate is not None][:1]
        unknown = torch.full_like(like, torch.nan)
        excess = torch.stack([_or(e.estimate, unknown) for e in every])[..., 1:]
        if any(expected.size is not None for expected in every):
            ones = torch.ones_like(unknown)
            sizes = torch.stack([_or(e.size, ones) for e in every])[..., 1:]
            excess = excess * sizes
        return Centre(mean, trust, informed, self._signed(_numpy(excess)) + limits)

    def _everywhere(self) -> Flags:
        return np.ones(self.costs.first.shape, dtype=bool)

    def _signed(self, values: Array) -> Array:
        """Return costs, or limits, in the user's sense."""
        return values if self.costs.all_small else values * self.costs.signs

    # -- certificates ----------------------------------------------------------------

    def certificate(
        self,
        state: ReceiptState,
        alpha: float,
        window: int | None,
        outstanding: str | None,
    ) -> Certificate:
        """Return the certificate of all rounds, or of the last ones."""
        state = self.added(state)
        sums = state.sums
        if window is not None:
            if window != self.window:
                raise CBanditError(
                    f"certificate: window must be certificate_window={self.window!r}, "
                    f"as given when the policy was built; got {window!r}"
                )
            at = [start for start in state.starts if start.t.max() <= state.t - window]
            sums = sums.since(at[-1].sums, at[-1].largest) if at else sums
        if outstanding == "worst":
            self._check_worst(sums)
        of = sums, self.costs, alpha, outstanding, window, self.setup.trials
        return certify(*of)

    def _check_worst(self, sums: Sums) -> None:
        """Raise an error if the worst of an outstanding round is not known."""
        known = can_be_worst(sums, self.costs)
        unknown = (sums.out > 0).any(0) & ~known
        names = [n for n, no in zip(self.costs.names, unknown, strict=True) if no]
        if names:
            raise CBanditError(
                f"certificate: the worst of an outstanding round of {', '.join(names)} "
                "is not known, so outstanding='worst' says nothing: numbers need both "
                "ends of ranges=, and yes or no one try a round"
            )

    # -- the alarm -------------------------------------------------------------------

    def watching(
        self, state: ReceiptState, credit: float, alpha: float
    ) -> ReceiptState:
        """Return the state with a watch that begins now."""
        state = self.added(state)
        watch = Watch.start(self.costs, state.t)
        return state._replace(watch=watch, credit=credit, alpha=alpha, fresh=None)

    def _watched(self, state: ReceiptState, told: Told, t: int) -> ReceiptState:
        if state.watch is None:
            return state
        given = self.costs, told, t, state.credit, state.alpha
        watch, sounds = state.watch.after(*given)
        state = state._replace(watch=watch)
        if not sounds.any():
            return state
        began, trials = watch.began(state.credit), self.setup.trials
        new = tuple(
            Alarm(
                self.costs.names[j],
                int(began[i, j]),
                t,
                None if trials is None else trials[i],
            )
            for i, j in zip(*np.nonzero(sounds), strict=True)
        )
        state = self.added(state._replace(watch=None))._replace(watch=watch)
        fresh = Start(
            np.full(sounds.shape, state.t), state.sums, 0 * state.sums.largest
        )
        if state.fresh is not None:
            fresh = state.fresh.where(sounds, fresh)
        return state._replace(alarms=(*state.alarms, *new), fresh=fresh)

    def _rearmed(self, state: ReceiptState) -> ReceiptState:
        """Arm the watch again where a certificate since its alarm says kept."""
        if state.watch is None or state.fresh is None or not state.watch.sounded.any():
            return state
        since = state.sums.since(state.fresh.sums, state.fresh.largest)
        worst = can_be_worst(since, self.costs)
        kept, _ = Bands(since, self.costs, state.alpha, worst).verdicts()
        where = kept & state.watch.sounded
        if not where.any():
            return state
        return state._replace(watch=state.watch.armed(self.costs, state.t, where))

    def alarm(self, state: ReceiptState, t: int, together: int) -> dict[str, str]:
        """Return a warning for the first alarm, and for a range that was left."""
        out = {}
        if state.alarms:
            first = state.alarms[0]
            more = (
                f", and {len(state.alarms) - 1} more" if len(state.alarms) > 1 else ""
            )
            out["alarm"] = (
                f"{first}{more}; certificate() says how sure that is, and "
                "policy.alarms lists all"
            )
        left = [bool(column.any()) for column in state.sums.outside.T]
        if any(left):
            pairs = zip(self.costs.names, left, strict=True)
            names = ", ".join(n for n, gone in pairs if gone)
            out["range"] = (
                f"outcomes of {names} were outside ranges=: its certificate is no "
                "longer exact"
            )
        return out

    def take_over(self, state: ReceiptState, before: Self, j: int) -> ReceiptState:
        """Go on with the same sums: each round is compared with its own limit."""
        self.costs = before.costs
        return state


def _or(value: Tensor | None, other: Tensor) -> Tensor:
    return other if value is None else value


def _numpy(values: Tensor) -> Array:
    array: Array = values.detach().cpu().double().numpy()
    return array


def costs_of(
    objective: Objective, ranges: Any, first: Tensor, outcomes: Mapping[int, str]
) -> Costs:
    """Return the costs as known before the first round.

    Args:
        objective: their names and signs.
        ranges: the user's argument.
        first: the thresholds of the first round as policies use them, ``(T, m)``.
        outcomes: the functions with binary or counted outcomes, by number.
    """
    m = objective.m
    kinds = tuple(outcomes.get(1 + j, "number") for j in range(m))
    low, high = np.full(m, np.nan), np.full(m, np.nan)
    for f, (least, most) in _read_ranges(objective, ranges).items():
        j = f - 1
        if j < 0:
            continue
        if kinds[j] != "number":
            raise CBanditError(
                f"ranges[{objective.label(j)!r}]: the range of a {kinds[j]} outcome is "
                "known; leave it out"
            )
        low[j], high[j] = least, most
    senses = tuple(">=" if objective.above(j) else "<=" for j in range(m))
    labels = tuple(map(objective.label, range(m)))
    return Costs(labels, senses, kinds, low, high, _numpy(objective.costs(first)))


def _read_ranges(objective: Objective, ranges: Any) -> dict[int, tuple[float, float]]:
    """Return the ranges by number of the function; NaN: an end is not known.

    The reward has the number 0.
    """
    given: dict[int, Any] = {}
    names = ["reward", *map(objective.label, range(objective.m))]
    if isinstance(ranges, Mapping):
        for name, pair in ranges.items():
            of_reward = name == "reward" and "reward" not in names[1:]
            given[0 if of_reward else 1 + objective.number(name)] = pair
    elif _is_pair(ranges):
        given = dict.fromkeys(range(1, 1 + objective.m), ranges)
    elif isinstance(ranges, Sequence) and len(ranges) == objective.m:
        given = {1 + j: pair for j, pair in enumerate(ranges) if pair is not None}
    elif ranges is not None:
        raise CBanditError(
            "ranges must be (low, high), one such pair for each cost in a list, or by "
            f"name, {{'latency': (0, 200)}}; got {ranges!r}"
        )
    out = {}
    for f, pair in given.items():
        name = f"ranges[{names[f]!r}]"
        if not _is_pair(pair):
            raise CBanditError(
                f"{name} must be (low, high), None for an end that is not known; got "
                f"{pair!r}"
            )
        low, high = (math.nan if end is None else float(end) for end in pair)
        if low >= high or math.isinf(low) or math.isinf(high):
            raise CBanditError(
                f"{name} must have a finite low below a finite high; got {pair!r}"
            )
        out[f] = low, high
    return out


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and all(
            end is None or (isinstance(end, int | float) and not isinstance(end, bool))
            for end in value
        )
    )


def flags_of(values: Tensor) -> Flags:
    """Return a tensor of flags as an array on the host."""
    flags: Flags = values.cpu().numpy().astype(bool)
    return flags
