"""The inbox of a policy: it reads and checks the values that users tell and observe.

Users give costs as an array or by name, and outcomes as numbers, shares or pairs. The
policy gets tensors ``(T, ...)`` on its device, with signs such that the reward is to be
large and costs small. A binary function has successes out of tries, a counted function
events over an exposure, such as hours; the policy gets the share or rate. Shapes: ``T``
trials, ``m`` costs, ``f`` functions told together, ``n`` rows of data, ``d``
coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.actions import Actions
from cbandit.errors import CBanditError
from cbandit.policies.checks import read_points, told_values
from cbandit.policies.choices import Data, DataPart, Entry, Feedback, Outcome
from cbandit.policies.history import STATES, read_rows, row_holds
from cbandit.policies.signs import Objective
from cbandit.policies.tallies import check_events, check_one_try, read_tallies

if TYPE_CHECKING:
    import pandas as pd

NO_COUNTED_NOISE = (
    "cannot be told: with outcome='binary' or 'count' the spread follows from the "
    "probability or the rate. Several tries at once are a pair (successes, tries); "
    "noise={'reward': ...} is of the functions that it names"
)
COUNT_TOLERANCE = 1e-6  # relative; counts this close to a whole number are rounded
GAPS_HINT = (
    ": leave out the rows that have none. Rewards and costs of other rows go into "
    "calls of their own; a history() goes in as it is, gaps and all: observe(history)"
)
ONE_DICT_ERROR = (
    "cost by name must be one dict, cost={'latency': 3.1, 'up': 0.99}, as a choice has "
    "each cost once; got a list of dicts"
)
BY_COLUMN_ERROR = (
    "cost by name must be a dict of columns, cost={'latency': [3.1, 2.8], 'up': "
    "[...]}; got a list of dicts, one a row: {name: [row[name] for row in rows] for "
    "name in rows[0]} makes one of the other"
)


class Inbox(NamedTuple):
    """The reader of the values that users tell and observe; it checks each of them.

    Functions are numbered: 0 is the reward, and the costs follow.

    Args:
        name: the policy's name, for errors.
        t: the latest round.
        batch_shape: ``(T,)`` with a trials axis, else ``()``.
        dtype: the type of the tensors that the policy gets.
        device: the device of these tensors.
        objective: the user's names and signs of the functions.
        labels: the names of the reward and of each cost.
        outcomes: the functions with outcomes ``"binary"`` or ``"count"``.
        ranges: for each function the interval in which its values must lie; ``None``:
            anywhere. Empty: no function has an interval.
        partial_costs: whether costs told one by one count at once; otherwise the inbox
            holds them until all have come.
        noise_error: the error message if a user tells a variance; empty: variances
            are allowed.
        limits: the thresholds ``(T, m)`` of the next round; ``None``: no limit is in
            per cent, so the inbox needs none.
    """

    name: str
    t: int
    batch_shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    objective: Objective
    labels: tuple[str, ...]
    outcomes: Mapping[int, str]
    ranges: Sequence[tuple[float, float] | None]
    partial_costs: bool
    noise_error: str
    limits: Tensor | None

    @property
    def size(self) -> int:
        """The number of trials ``T``, 1 without a trials axis."""
        return self.batch_shape[0] if self.batch_shape else 1

    @property
    def costs(self) -> range:
        """The function numbers of the costs."""
        return range(1, 1 + self.objective.m)

    # -- feedback of one choice ------------------------------------------------------

    def read(
        self,
        reward: Any,
        cost: Any,
        noise: ArrayLike | Mapping[str, ArrayLike] | None,
        mask: Tensor | None,
        exposure: ArrayLike | None,
    ) -> Feedback:
        """Return the feedback that a user tells of a choice, checked.

        Args:
            reward: as in :meth:`Policy.tell`; ``None``: not told.
            cost: all costs, or some by name; ``None``: none told.
            noise: this observation's variance, or one by name; ``None``: the belief's.
            mask: the trials that the feedback is for, ``(T,)`` on the host; ``None``:
                all.
            exposure: what counts were taken over, such as hours; ``None``: 1.
        """
        if noise is not None and self.noise_error:
            raise CBanditError(self.noise_error)
        if reward is None and cost is None:
            raise CBanditError(
                "tell needs reward=, cost= or both; got neither. What came of the "
                "choice? If no answer will come: cancel(choice); if the action cannot "
                "be measured: tell(choice, failed=True); if it comes later, tell it "
                "then"
            )
        if isinstance(reward, Mapping):
            raise CBanditError(
                "reward must be a number; got a dict: costs by name go to "
                f"cost={dict(reward)!r}"
            )
        if cost is not None and self.objective.m == 0:
            raise CBanditError(f"{self.name} has no costs; got cost={cost!r}")
        if _is_list_of_dicts(cost):
            raise CBanditError(ONE_DICT_ERROR)
        columns = self.objective.columns(cost)
        functions = [] if reward is None else [0]
        if cost is not None:
            functions.extend(
                self.costs if columns is None else [1 + j for j in columns]
            )
        if exposure is not None:
            self._check_exposure(exposure, functions)
        noises = self._told_noises(noise, functions)
        clock, rewards, costs = time(), [], []
        if reward is not None:
            values, tries = self._read_values("reward", reward, (0,), mask, exposure)
            own, *noises = noises
            rewards.append(Outcome(values, mask, own, self.t, 0, None, clock, tries))
        if cost is not None:
            values, tries = self._read_costs(cost, columns, mask, exposure)
            some = columns is not None and len(columns) < self.objective.m
            which = columns if some else None
            of = Outcome(values, mask, noises[0], self.t, 0, which, clock, tries)
            costs = _by_noise(of, noises)
        return Feedback(functions, mask, rewards, costs)

    def _told_noises(
        self, noise: ArrayLike | Mapping[str, ArrayLike] | None, functions: list[int]
    ) -> list[Tensor | None]:
        """Return the variance ``(T,)`` of each function; ``None``: the belief's.

        Functions whose variances were told together share one tensor.
        """

        def read(name: str, value: ArrayLike) -> Tensor:
            value = checks.nonnegative(name, value)
            value = checks.per_trial(name, value, self.batch_shape)
            return devices.put(value, self.device).clone()

        stated = self._stated_noises(noise, functions)
        if noise is None or isinstance(noise, Mapping):
            pairs = zip(functions, stated, strict=True)
            return [
                None if each is None else read(f"noise[{self.labels[f]!r}]", each)
                for f, each in pairs
            ]
        return [read("noise", noise)] * len(functions)

    def _stated_noises(self, noise: Any, functions: Sequence[int]) -> list[Any]:
        """Return what the user gave as the variance of each function, maybe ``None``.

        Raise an error for names that are not of the ``functions``, and for binary and
        counted ones.
        """
        if noise is None:
            return [None] * len(functions)
        if self.noise_error:
            raise CBanditError(self.noise_error)
        stated = [noise] * len(functions)
        if isinstance(noise, Mapping):
            here = [self.labels[f] for f in functions]
            odd = [name for name in noise if name not in here]
            if odd:
                raise CBanditError(
                    f"noise by name must be of what is told, {here}; got {odd[0]!r}"
                )
            stated = [noise.get(name) for name in here]
        for f, each in zip(functions, stated, strict=True):
            if each is not None and f in self.outcomes:
                raise CBanditError(f"noise= of {self.labels[f]} {NO_COUNTED_NOISE}")
        return stated

    def add_feedback(
        self, entry: Entry, next_serial: Callable[[], int], feedback: Feedback
    ) -> Entry:
        """Return a choice's entry in the ledger with feedback added.

        Args:
            entry: the entry before.
            next_serial: returns a new serial number.
            feedback: the feedback, from :meth:`read`.
        """
        functions, mask = feedback.functions, feedback.mask
        as_array = all(item.columns is None for item in feedback.costs)
        came, closed = entry.mark_values(functions, mask, self.labels, as_array)
        serial, held = next_serial(), entry.held
        rewards, costs = entry.rewards, entry.costs
        for item in feedback.rewards:
            rewards = (*rewards, item._replace(serial=serial))
        for item in feedback.costs:
            told = item._replace(serial=serial)
            if self.partial_costs or told.columns is None:
                costs = (*costs, told)
            elif told.noise is not None:
                names = [self.labels[1 + j] for j in told.columns]
                raise CBanditError(
                    f"{self.name} takes noise= with all costs at once; got {names}"
                )
            else:  # hold the costs told now until all have come
                wide, told_now = told.in_columns(self.objective.m)
                held = wide if held is None else torch.where(told_now, wide, held)
                whole = came[:, 1:].all(-1) & ~entry.came[:, 1:].all(-1)
                if bool(whole.any()):
                    part = None if bool(whole.all()) else whole
                    told = told._replace(values=held, where=part, columns=None)
                    costs = (*costs, told)
        return entry._replace(
            came=came,
            rewards=rewards,
            costs=costs,
            closed=closed,
            # after a failure nothing more will come
            cancelled=serial if closed and entry.failures else 0,
            held=None if closed else held,
        )

    def is_repeat(
        self,
        row: Mapping[str, Tensor],
        mask: Tensor | None,
        failed: bool,
        reward: Any,
        cost: Any,
        noise: ArrayLike | None,
        exposure: ArrayLike | None,
    ) -> bool:
        """Return whether the same values were told of a choice before.

        Args:
            row: the choice's row of the history.
            mask: see :meth:`read`, also for the arguments below.
            failed: whether the user tells that the action failed.
        """
        states = row["state"]
        plays = states != STATES.index("idle")
        if not bool(plays.all()):
            mask = plays if mask is None else mask & plays
        wanted = ("failed",) if failed else ("open", "told")
        for i in (states if mask is None else states[mask]).tolist():
            if STATES[i] not in wanted:
                return False
        if failed and cost is None:
            return reward is None and noise is None
        try:
            return row_holds(row, self.read(reward, cost, noise, mask, exposure))
        except CBanditError:
            return False

    def add_charge(
        self,
        entry: Entry,
        next_serial: Callable[[], int],
        cost: Any,
        mask: Tensor | None,
    ) -> Entry:
        """Return an entry with costs added that budgets count and beliefs ignore.

        For the arguments see :meth:`add_feedback` and :meth:`read`.
        """
        if cost is None:
            return entry
        columns = self.objective.columns(cost)
        every = self.costs if columns is None else [1 + j for j in columns]
        entry.mark_values(every, mask, self.labels, columns is None)
        values, _ = self._read_costs(cost, columns, mask, None)
        item = Outcome(values, mask, None, self.t, next_serial(), columns, time())
        return entry._replace(charged=(*entry.charged, item))

    def _read_values(
        self,
        name: str,
        value: Any,
        functions: Sequence[int],
        mask: Tensor | None,
        exposure: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the values told of some functions, and their tries or exposures.

        Both are ``(T, f)``; ``None`` for tries: no function is binary or counted.
        """
        if self.outcomes:
            outcomes = [self.outcomes.get(f) for f in functions]
            if any(outcomes):
                return self._read_tallies(
                    name, value, functions, outcomes, mask, exposure
                )
        batch, dtype = self.batch_shape, self.dtype
        values = told_values(name, value, len(functions), mask, batch, dtype)
        values = devices.put(values, self.device)
        if self.limits is not None:
            self.objective.check_shares(values, functions, self.limits)
        if not self.objective.plain:
            values = self.objective.turned(values, functions)
        if self.ranges:
            check_ranges(name, values, functions, self.ranges, mask)
        return values, None

    def _read_tallies(
        self,
        name: str,
        value: Any,
        functions: Sequence[int],
        outcomes: Sequence[str | None],
        mask: Tensor | None,
        exposure: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return the shares or rates told, and tries or exposures, ``(T, f)`` each."""

        def read(label: str, numbers: Tensor, count: int) -> Tensor:
            batch, dtype = self.batch_shape, self.dtype
            read = told_values(label, numbers, count, mask, batch, dtype)
            if mask is None or label == name:
                return read
            return torch.where(devices.put(mask, read.device).unsqueeze(-1), read, 1.0)

        events, tries = read_tallies(name, value, outcomes, exposure, read)
        for f, of in zip(functions, tries.unbind(-1), strict=True):
            if f - 1 in self.objective.budgets:
                check_one_try(self.labels[f], of)
        share = devices.put(self._to_rates(name, events, tries), self.device)
        return self.objective.turned(share, functions), devices.put(tries, self.device)

    def _to_rates(self, name: str, events: Tensor, tries: Tensor) -> Tensor:
        """Return events divided by their tries or exposures, checked."""
        label = f"{name}, over tries or exposure,"
        return checks.measured(label, events / tries, self.dtype)

    def _read_costs(
        self,
        cost: Any,
        columns: Sequence[int] | None,
        mask: Tensor | None,
        exposure: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the costs told, all or some, as :meth:`_read_values` does."""
        if columns is None:
            return self._read_values("cost", cost, self.costs, mask, exposure)
        names, parts = self.objective.names or (), []
        for j in columns:
            name = f"cost[{names[j]!r}]"
            parts.append(
                self._read_values(name, cost[names[j]], (1 + j,), mask, exposure)
            )
        values = torch.cat([value for value, _ in parts], -1)
        if all(tries is None for _, tries in parts):
            return values, None
        of = [torch.ones_like(v) if tries is None else tries for v, tries in parts]
        return values, torch.cat(of, -1)

    def _check_exposure(self, exposure: ArrayLike, functions: Sequence[int]) -> None:
        """Raise an error for an ``exposure`` unless one of the functions is counted."""
        if all(self.outcomes.get(f) != "count" for f in functions):
            raise CBanditError(
                "exposure goes with a reward or cost whose belief has outcome='count'; "
                f"none of these has; got exposure={exposure!r}"
            )

    # -- data from before the first round --------------------------------------------

    def read_data(
        self,
        actions: Actions,
        index: ArrayLike | None,
        x: ArrayLike | None,
        reward: Any,
        cost: Any,
        params: Any,
        exposure: Any,
        noise: Any,
    ) -> Data:
        """Return data from before the first round, checked.

        ``actions`` is the policy's set; for the rest see :meth:`GPPolicy.observe`.
        """
        x = read_points(actions, x, params)
        if not self.outcomes:
            checks.no_flag("reward", reward)
            checks.no_flag("cost", cost)
        if (index is None) == (x is None):
            raise CBanditError("observe takes one of index=, x= and params=")
        if reward is None and cost is None:
            raise CBanditError("observe needs reward=, cost= or both; got neither")
        if not self.partial_costs and (reward is None or cost is None):
            raise CBanditError(
                f"{self.name}'s observe needs reward= and cost= together"
            )
        single = isinstance(params, Mapping)
        numbers, places = self._read_places(actions, index, x, single)
        rows = places.shape[1]
        given = [("reward", reward, [0]), ("cost", cost, [*self.costs])]
        given = [each for each in given if each[1] is not None]
        if exposure is not None:
            self._check_exposure(exposure, [f for _, _, of in given for f in of])
        every = [f for _, _, of in given for f in of]
        noises = dict(zip(every, self._stated_noises(noise, every), strict=True))
        parts = []
        for name, value, functions in given:
            if not functions:
                raise CBanditError(f"{self.name} has no costs; got cost=")
            told, of = self._read_rows(name, value, functions, exposure, rows, single)
            told = self.objective.turned(told, functions)
            if noise is None:
                parts.append(DataPart(functions, told, of))
                continue
            for k, f in enumerate(functions):
                tries = None if of is None else of[..., k : k + 1]
                own = self._read_noise(noises[f], rows)
                parts.append(DataPart([f], told[..., k : k + 1], tries, own))
        return Data(numbers, places, parts)

    def _read_places(
        self,
        actions: Actions,
        index: ArrayLike | None,
        x: ArrayLike | None,
        single: bool,
    ) -> tuple[Tensor | None, Tensor]:
        """Return the numbers ``(1 or T, n)`` and points ``(T, n, d)`` of actions.

        On a box the numbers are ``None``. If ``single``, ``x`` is one point ``(d,)``.
        """
        domain = actions.domain
        if index is None:
            points = checks.tensor("x", x, self.dtype, self.device)
            points = points.unsqueeze(0) if single else points
            points = checks.measured("x", points, self.dtype)
            points = checks.rows("x", points, self.batch_shape, (domain.dim,))
            return self._locate(domain, points)
        if domain is not actions:
            raise CBanditError(
                "observe: an index says nothing of the context: give params=[...], "
                "with the contexts in it, or x="
            )
        if domain.continuous:
            raise CBanditError("a Box has no numbered actions: give x=")
        numbers = checks.tensor("index", index, None)
        numbers = checks.rows("index", numbers, self.batch_shape).to(self.device)
        domain.points(numbers)
        numbers = numbers.long()  # an empty list has no dtype of its own
        return numbers, domain.at(numbers.expand(self.size, -1))

    def _locate(self, domain: Any, points: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return numbers and points as :meth:`_read_places` does, given ``points``."""
        if domain.continuous:
            return None, domain.inside(points).expand(self.size, -1, -1)
        numbers = domain.index(points)
        return numbers, domain.at(numbers.expand(self.size, -1))

    def _read_rows(
        self,
        name: str,
        value: Any,
        functions: Sequence[int],
        exposure: Any,
        rows: int,
        single: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return values observed in ``n = rows`` rows, and their tries or exposures.

        Both are ``(1 or T, n, f)``; ``None`` for tries: no function is binary or
        counted. If ``single``, the value may lack the rows' axis.
        """
        outcomes = [self.outcomes.get(f) for f in functions]

        def read(label: str, numbers: Any, count: int) -> Tensor:
            numbers = checks.tensor(label, numbers)
            several = count > 1 or (label == "cost" and not any(outcomes))
            if single and numbers.shape in ((), (count,) if several else ()):
                numbers = numbers.reshape(1, -1)
            numbers = checks.measured(label, numbers, self.dtype, GAPS_HINT)
            return checks.rows(label, numbers, self.batch_shape, (count,), rows)

        if not any(outcomes):
            value = self.objective.stacked(value)
        if name == "cost" and _is_list_of_dicts(value):
            raise CBanditError(BY_COLUMN_ERROR)
        if not any(outcomes):
            values = read(name, value, len(functions))
            if self.limits is not None:
                self.objective.check_shares(values, functions, self.limits)
            return values, None
        if isinstance(value, Mapping):
            columns = self.objective.columns(value) or []
            if len(columns) < self.objective.m:
                self.objective.stacked(value)  # raises: all must be there
            names = self.objective.names or ()
            each = [
                read_tallies(f"cost[{n!r}]", value[n], [kind], exposure, read)
                for n, kind in zip(names, outcomes, strict=True)
            ]
            parts = torch.broadcast_tensors(*(part for pair in each for part in pair))
            events, tries = torch.cat(parts[::2], -1), torch.cat(parts[1::2], -1)
        else:
            events, tries = read_tallies(name, value, outcomes, exposure, read)
        return self._to_rates(name, events, tries), tries

    def _read_noise(self, noise: Any, rows: int) -> Tensor | None:
        """Return a function's variances, ``(1 or T, n)``; ``None``: none were given."""
        if noise is None:
            return None
        value = checks.nonnegative("noise", checks.tensor("noise", noise))
        return checks.rows("noise", value, self.batch_shape, (), rows)

    def read_history(
        self, actions: Actions, history: pd.DataFrame, trials: range | None
    ) -> Data:
        """Return the data in a frame that :meth:`Policy.history` returned.

        Args:
            actions: the set of the policy that will learn from the data.
            history: the frame, or some of its rows.
            trials: the trial numbers of that policy; ``None``: it has no trials axis.
        """
        kinds, objective = self.outcomes, self.objective
        rows = read_rows(history, objective, actions.names, trials, actions.dim, kinds)
        points = checks.measured("x", rows.x.to(self.device, self.dtype), self.dtype)
        numbers, places = self._locate(actions.domain, points)
        failed = rows.failed.expand(self.size, -1)
        parts = []
        together = [[0], [*self.costs]]
        if self.partial_costs:
            together = [[f] for f in (0, *self.costs)]
        for functions in together if len(history) else []:
            values, tries = rows.values[..., functions], rows.tries[..., functions]
            came, own = ~values.isnan().any(-1), rows.noise[..., functions[0]]
            if not self.partial_costs:  # a row counts once all of it has come
                came = ~rows.values.isnan().any(-1)
            if not (functions and bool(came.any())):
                continue
            values = torch.where(came.unsqueeze(-1), values, 0.0)
            for k, f in enumerate(functions):
                label = self.labels[f]
                checks.measured(label, values[..., k], self.dtype)
                if f in kinds:
                    events = values[..., k] * tries[..., k]
                    whole = events.round()
                    close = (events - whole).abs() <= COUNT_TOLERANCE * whole.clamp_min(
                        1
                    )
                    events = torch.where(close, whole, events)
                    check_events(label, events, tries[..., k], kinds[f])
                    values[..., k] = events / tries[..., k]
            stated = came & ~own.isnan()
            if bool(stated.any()) and self.noise_error:
                raise CBanditError(self.noise_error)
            part = DataPart(
                functions,
                objective.turned(values, functions),
                tries if any(f in kinds for f in functions) else None,
                own.where(stated, torch.nan) if bool(stated.any()) else None,
                came.expand(self.size, -1),
            )
            parts.append(part)
        return Data(numbers, places, parts, failed)


def _by_noise(told: Outcome, noises: Sequence[Tensor | None]) -> list[Outcome]:
    """Return costs told together, or one by one if their variances differ."""
    if all(noise is noises[0] for noise in noises):
        return [told]
    columns = told.columns or range(len(noises))
    out = []
    for k, (j, noise) in enumerate(zip(columns, noises, strict=True)):
        values = told.values[:, k : k + 1]
        tries = None if told.tries is None else told.tries[:, k : k + 1]
        out.append(told._replace(values=values, noise=noise, columns=[j], tries=tries))
    return out


def check_ranges(
    name: str,
    values: Tensor,
    functions: Sequence[int],
    ranges: Sequence[tuple[float, float] | None],
    mask: Tensor | None = None,
) -> None:
    """Raise an error if values ``(T, f)`` are outside the ranges of their functions.

    Only trials in ``mask (T,)``, on the host, are checked; ``None``: all.
    """
    for column, f in zip(values.unbind(-1), functions, strict=True):
        limits = ranges[f]
        if limits is None:
            continue
        if mask is not None:
            column = column[devices.put(mask, column.device)]
        outside = (column < limits[0]) | (column > limits[1])
        if bool(outside.any()):
            raise CBanditError(
                f"{name} must lie in the stated range of {limits[0]:g} to "
                f"{limits[1]:g}; got {column[outside][0].item():g}"
            )


def _is_list_of_dicts(value: Any) -> bool:
    """Return whether a value is a non-empty list or tuple of dicts."""
    listed = isinstance(value, list | tuple) and len(value) > 0
    return listed and all(isinstance(row, Mapping) for row in value)
