"""The history of a policy: what happened in every round, in compact form.

An entry that leaves the ledger comes here. A block of entries is turned into a table: a
dict with a tensor for each column and a row for each round. Tables of equal length are
joined, so that they stay few.

In shapes, ``n`` counts the rows, ``T`` the trials (1 without a trials axis), ``m`` the
costs, and ``F`` the functions: the reward, number 0, then the costs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.actions import Names
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.policies.choices import Entry, Feedback, Outcome
from cbandit.policies.signs import Objective

if TYPE_CHECKING:
    import pandas as pd

ENTRIES_PER_BLOCK = 256
# what a round can be in a trial; the column "state" of tables is an index into these
STATES = ("open", "told", "failed", "cancelled", "idle", "expired")
# by the kind of outcome, the first word of the column that holds its tries
TRIES_WORDS = {"binary": "tries", "count": "exposure"}
RESERVED_COLUMNS = (
    *("id", "round", "trial", "state", "asked", "told", "action", "reward", "score"),
    "propensity",
)
MAX_LAW = 50  # actions with a chance; longer laws are not stored


class History:
    """The rounds whose feedback is complete.

    The ``entries`` that methods take are the ledger's, of rounds that still wait.

    Args:
        size: how many trials there are.
        m: how many costs there are.
        dim: how many coordinates an action has.
    """

    def __init__(self, size: int, m: int, dim: int) -> None:
        self._size, self._m, self._dim = size, m, dim
        self._waiting: list[Entry] = []
        self._columns: list[dict[str, Tensor]] = []
        self._prefixes: list[str] = []

    def put(self, entry: Entry) -> None:
        """Store an entry that leaves the ledger."""
        self._waiting.append(entry)
        if len(self._waiting) == ENTRIES_PER_BLOCK:
            # store the rows first: an interrupt may repeat them, but none is lost
            columns = [*self._columns, self._rows(self._waiting)]
            while len(columns) > 1 and _n_rows(columns[-2]) <= _n_rows(columns[-1]):
                last, before = columns.pop(), columns.pop()
                columns.append({k: _append_column(before[k], last[k]) for k in last})
            self._columns, self._waiting = columns, []

    def table(self, entries: Sequence[Entry]) -> dict[str, Tensor]:
        """Return the table of all stored rounds and ``entries``, sorted by round."""
        parts = [*self._columns, self._rows([*self._waiting, *entries])]
        whole = {
            name: functools.reduce(_append_column, [part[name] for part in parts])
            for name in parts[0]
        }
        order = whole["round"].argsort()
        first = torch.ones(len(order), dtype=torch.bool)
        ordered = whole["round"][order]
        first[1:] = ordered[1:] != ordered[:-1]  # an interrupt may repeat rows
        return {name: column[order[first]] for name, column in whole.items()}

    def row(self, name: str, entries: Sequence[Entry]) -> dict[str, Tensor] | None:
        """Return the row of the choice with the id ``name``; ``None``: unknown id."""
        for entry in entries:
            if entry.choice.id == name:
                return {k: column[0] for k, column in self._rows([entry]).items()}
        table = self.table(entries)
        prefix, _, t = name.rpartition("-")
        if prefix not in self._prefixes or not t.isdecimal() or len(t) > 18:
            return None
        same_prefix = table["prefix"] == self._prefixes.index(prefix)
        matches = same_prefix & (table["round"] == int(t))
        for i in matches.nonzero().flatten().tolist():
            return {k: column[i] for k, column in table.items()}
        return None

    def states(self, name: str, entries: Sequence[Entry]) -> set[str]:
        """Return the states that the choice with the id ``name`` has in its trials."""
        row = self.row(name, entries)
        return set() if row is None else {STATES[i] for i in row["state"].tolist()}

    def frame(
        self,
        entries: Sequence[Entry],
        objective: Objective,
        names: Names | None,
        trials: range | None,
        outcomes: Mapping[int, str],
    ) -> pd.DataFrame:
        """Return a pandas frame with a row for each round and trial.

        Args:
            entries: the ledger's, of rounds whose feedback is not complete.
            objective: the user's names and signs of the functions.
            names: the names of coordinates; ``None``: the policy's set has none.
            trials: the trials' numbers; ``None``: there is no trials axis.
            outcomes: ``"binary"`` or ``"count"`` by the number of a function; Gaussian
                functions are left out.
        """
        import pandas as pd

        table, size = self.table(entries), self._size
        rounds = table["round"].repeat_interleave(size)
        prefixes = table["prefix"].repeat_interleave(size).tolist()
        pairs = zip(prefixes, rounds.tolist(), strict=True)
        columns: dict[str, Any] = {"id": [f"{self._prefixes[i]}-{t}" for i, t in pairs]}
        columns["round"] = rounds.numpy()
        if trials is not None:
            columns["trial"] = list(trials) * len(table["round"])
        labels = cost_columns(objective)
        if names is not None:
            for name, values in names.table(table["x"]).items():
                taken = name in RESERVED_COLUMNS or name in labels
                columns[f"x.{name}" if taken else name] = values.reshape(-1)
        else:
            if bool((table["index"] >= 0).any()):
                columns["action"] = table["index"].flatten().numpy()
            for j, column in enumerate(table["x"].unbind(-1)):
                columns[f"x{j + 1}"] = column.flatten().numpy()
        columns["state"] = [STATES[i] for i in table["state"].flatten().tolist()]
        for name in ("asked", "told"):
            seconds = table[name].repeat_interleave(size).numpy()
            columns[name] = pd.to_datetime(seconds, unit="s", utc=True)
        columns["reward"] = objective.reward(table["reward"]).flatten().numpy()
        for name, column in zip(
            labels, objective.costs(table["costs"]).unbind(-1), strict=True
        ):
            columns[name] = column.flatten().numpy()
        for f, name in enumerate(("reward", *labels)):
            for word in ("tries", "noise"):
                column = _column(table[word], f)
                what = word if word == "noise" else TRIES_WORDS.get(outcomes.get(f, ""))
                plain = column.isnan() | ((column == 1) & (word == "tries"))
                if what is not None and not bool(plain.all()):
                    columns[f"{what}_{name}"] = column.flatten().numpy()
        limits = objective.costs(table["limits"])
        for j, column in enumerate(table["multiplier"].unbind(-1)):
            name = f"{j + 1}" if objective.names is None else f"_{objective.names[j]}"
            columns[f"multiplier{name}"] = column.flatten().numpy()
            limit, bound = limits[..., j], _column(table["promised"], j)
            paced = ~bound.isnan()
            # a limit has a column only if it changes from round to round
            moved = ((limit != limit[:1]) & ~paced) | (paced != paced[:1])
            if bool(moved.any()):
                columns[f"limit{name}"] = limit.flatten().numpy()
            if bool(paced.any()) or j in objective.budgets:
                pace = limit.where(paced, torch.nan)
                columns[f"pace{name}"] = pace.flatten().numpy()
                columns[f"promised{name}"] = bound.flatten().numpy()
        columns["score"] = table["score"].flatten().numpy()
        columns["propensity"] = table["chance"].flatten().numpy()
        return pd.DataFrame(columns)

    def _rows(self, entries: Sequence[Entry]) -> dict[str, Tensor]:
        """Return a table with a row for each entry; missing values are NaN."""
        n, size, m = len(entries), self._size, self._m
        choices, made = [e.choice for e in entries], [e.made for e in entries]
        nan, prefixes = torch.nan, [self._prefix(c.id) for c in choices]
        state = torch.ones(n, size, dtype=torch.uint8)
        for i, entry in enumerate(entries):
            whole = not entry.failures and entry.choice.idle is None
            if not entry.closed or entry.cancelled or not whole:
                state[i] = _state_numbers(entry)
        last = [[told.time for told in (*e.rewards, *e.costs)] for e in entries]
        costs = _outcome_values([(*e.costs, *e.charged) for e in entries], size, m)
        for i, entry in enumerate(entries):
            if entry.held is not None:
                came = entry.came[:, 1:] & (state[i] != STATES.index("failed"))[:, None]
                costs[i] = torch.where(came, entry.held.cpu(), costs[i])
        return {
            "round": torch.tensor([c.t for c in choices], dtype=torch.long),
            "prefix": torch.tensor(prefixes, dtype=torch.long),
            "asked": torch.tensor([each.time for each in made], dtype=torch.float64),
            "told": torch.tensor(
                [max(times, default=nan) for times in last], dtype=torch.float64
            ),
            "state": state,
            "index": _action_numbers(choices, size),
            "apart": torch.tensor([c.actions is not None for c in choices]),
            "x": _stack([c.x for c in choices], (size, self._dim), nan),
            "reward": _outcome_values([e.rewards for e in entries], size, 1)[..., 0],
            "costs": costs,
            "tries": _tries_or_noise(entries, size, m, "tries"),
            "noise": _tries_or_noise(entries, size, m, "noise"),
            "multiplier": _stack([e.multiplier for e in made], (size, m), nan),
            "score": _stack([e.score for e in made], (size,), nan),
            "chance": _stack([e.chance for e in made], (size,), nan),
            **_laws(entries, size),
            "limits": _stack([e.limits for e in made], (size, m), nan),
            "promised": _stack_known([e.promised for e in made], (size, m)),
            "estimate": _stack([e.estimate for e in made], (size, 1 + m), nan),
        }

    def _prefix(self, name: str) -> int:
        """Return the number of the prefix of the id ``name``; store a new prefix."""
        prefix = name.rpartition("-")[0]
        if prefix not in self._prefixes:
            self._prefixes.append(prefix)
        return self._prefixes.index(prefix)


def _laws(entries: Sequence[Entry], size: int) -> dict[str, Tensor]:
    """Return the laws of the choices that have one, ``(n, T, k)``.

    They are the actions with a chance, -1 where there are fewer, and their chances.
    """
    laws = [
        (i, entry.choice.distribution)
        for i, entry in enumerate(entries)
        if entry.made.chance is not None and entry.choice.distribution is not None
    ]
    laws = [(i, pi) for i, pi in laws if pi.index.shape[-1] <= MAX_LAW]
    width = max((pi.index.shape[-1] for _, pi in laws), default=0)
    numbers = torch.full((len(entries), size, width), -1)
    chances = torch.full((len(entries), size, width), torch.nan).double()
    for i, pi in laws:
        index, chance = devices.host(pi.index, pi.probability)
        k = index.shape[-1]
        numbers[i, :, :k] = index.view(size, k).masked_fill(
            chance.view(size, k) == 0, -1
        )
        chances[i, :, :k] = chance.view(size, k)
    return {"law": numbers, "law_chances": chances}


def _state_numbers(entry: Entry) -> Tensor:
    """Return a choice's state in each trial, ``(T,)``, as an index into ``STATES``."""
    unanswered = 3 if entry.cancelled else 5 if entry.expired else 0
    out = torch.where(entry.waits(), unanswered, 1)
    if entry.failed is not None:
        out = torch.where(entry.failed, 2, out)
    if entry.choice.idle is not None:
        out = torch.where(entry.choice.idle.reshape(-1).cpu(), 4, out)
    return out.to(torch.uint8)


def _outcome_values(by_entry: Sequence[Sequence[Outcome]], size: int, m: int) -> Tensor:
    """Return the values of ``n`` entries' outcomes, ``(n, T, m)``, NaN if missing."""
    out = torch.full((len(by_entry), size, m), torch.nan, dtype=torch.float64)
    single = [
        i for i, items in enumerate(by_entry) if len(items) == 1 and items[0].is_full
    ]
    if single:
        together = torch.cat([by_entry[i][0].values for i in single])
        whole = devices.host(together)[0].view(len(single), size, m)
        if len(single) == len(by_entry):
            return whole
        out[single] = whole
    for i in set(range(len(by_entry))) - set(single):
        for item in by_entry[i]:
            columns = list(range(m) if item.columns is None else item.columns)
            values, row = item.values.cpu(), out[i, :, columns]
            if item.where is not None:
                values = torch.where(item.where.unsqueeze(-1), values, row)
            out[i, :, columns] = values
    return out


def _tries_or_noise(
    entries: Sequence[Entry | Feedback], size: int, m: int, field: str
) -> Tensor:
    """Return the ``"tries"`` or ``"noise"`` told with each value, ``(n, T, 1 + m)``.

    NaN where the user told none; ``(n, T, 0)`` if the user never told any.
    """
    items = [
        (i, f, item)
        for i, entry in enumerate(entries)
        for f, told in ((0, entry.rewards), (1, entry.costs))
        for item in told
        if getattr(item, field) is not None
    ]
    out = torch.full((len(entries), size, (1 + m) * bool(items)), torch.nan)
    out = out.double()
    for i, first, item in items:
        at = [0] if first == 0 else [1 + j for j in item.columns or range(m)]
        value = getattr(item, field).cpu().double()
        value = value.unsqueeze(-1) if value.dim() == 1 else value
        value = value.expand(size, len(at))
        if item.where is not None:
            value = torch.where(item.where.unsqueeze(-1), value, out[i, :, at])
        out[i, :, at] = value
    return out


def row_holds(row: Mapping[str, Tensor], told: Feedback) -> bool:
    """Return whether a table's row already holds all that is in ``told``."""
    size, m = row["costs"].shape
    values = [
        _outcome_values([told.rewards], size, 1),
        _outcome_values([told.costs], size, m),
    ]
    now = torch.cat(values, -1)[0]
    same = now == torch.cat([row["reward"].unsqueeze(-1), row["costs"]], -1)
    for field in ("tries", "noise"):
        mine = _tries_or_noise([told], size, m, field)[0]
        before = row[field]
        if mine.shape[-1] or before.shape[-1]:
            mine, before = (_with_width(part, 1 + m) for part in (mine, before))
            same &= (mine == before) | (mine.isnan() & before.isnan())
    return bool((same | now.isnan()).all())


def _with_width(column: Tensor, width: int) -> Tensor:
    """Return a column ``(T, width)`` unchanged; fill a column ``(T, 0)`` with NaN."""
    if column.shape[-1]:
        return column
    return column.new_full((len(column), width), torch.nan)


def _stack_known(values: Sequence[Tensor | None], shape: tuple[int, int]) -> Tensor:
    """Stack ``n`` values of shape ``(T, m)`` to ``(n, T, m)``; ``None`` becomes NaN.

    If every value is ``None``, the result is ``(n, T, 0)``.
    """
    width = shape[1] if any(value is not None for value in values) else 0
    return _stack(values, (shape[0], width), torch.nan)


def _append_column(before: Tensor, newest: Tensor) -> Tensor:
    """Join the rows of two columns; fill the narrower one with NaN, or with -1."""
    if before.dim() == 3 and before.shape[-1] != newest.shape[-1]:
        width = max(before.shape[-1], newest.shape[-1])
        before, newest = (
            torch.nn.functional.pad(
                part,
                (0, width - part.shape[-1]),
                value=torch.nan if part.is_floating_point() else -1,
            )
            for part in (before, newest)
        )
    return torch.cat([before, newest])


def _column(values: Tensor, f: int) -> Tensor:
    """Return ``values[..., f]``, ``(n, T)``; NaN if ``values`` is ``(n, T, 0)``."""
    if values.shape[-1]:
        return values[..., f]
    return values.new_full(values.shape[:2], torch.nan)


def cost_columns(objective: Objective) -> list[str]:
    """Return the names of the costs' columns; ``cost.`` sets a reserved name apart."""
    labels = [objective.label(j) for j in range(objective.m)]
    return [f"cost.{label}" if label in RESERVED_COLUMNS else label for label in labels]


class Rows(NamedTuple):
    """Rows of a history, read back from a frame.

    Args:
        x: the actions, ``(1 or T, n, d)``.
        values: the reward and the costs, ``(1 or T, n, 1 + m)``, NaN where missing.
        tries: the tries or exposures, in the same shape, 1 where missing.
        noise: the observations' stated variances, in the same shape, NaN where missing.
        failed: where the action failed, ``(1 or T, n)`` bool.
    """

    x: Tensor
    values: Tensor
    tries: Tensor
    noise: Tensor
    failed: Tensor


def read_rows(
    frame: pd.DataFrame,
    objective: Objective,
    names: Names | None,
    trials: range | None,
    dim: int,
    outcomes: Mapping[int, str],
) -> Rows:
    """Return the rows of a frame from :meth:`History.frame`, or of a part of it.

    ``objective``, ``names``, ``trials`` and ``outcomes`` are those of the policy that
    reads it, as in :meth:`History.frame`; its actions have ``dim`` coordinates.
    """
    if not hasattr(frame, "columns") or "state" not in frame.columns:
        raise CBanditError(
            "observe takes history(), a pandas frame with a column 'state', as its "
            f"first argument; got {checks.kind(frame)}. Other data go to index=, x= or "
            "params=, reward= and cost="
        )
    labels = cost_columns(objective)
    wanted = ["reward", *labels]
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        raise CBanditError(
            f"the history has no column {missing[0]!r}; this policy's reward and costs "
            f"are {wanted}"
        )
    groups = [frame]
    if "trial" in frame.columns:
        numbers = sorted(set(frame["trial"].tolist()))
        if trials is None and len(numbers) > 1:
            raise CBanditError(
                f"the history has trials {numbers[:5]}; this policy has none: give it "
                "one of them, frame[frame.trial == 0]"
            )
        odd = [k for k in numbers if trials is not None and k not in trials]
        if odd:
            raise CBanditError(
                f"the history has trial {odd[0]}; this policy has trials {trials}"
            )
        if trials is not None:
            groups = [frame[frame["trial"] == k] for k in trials]
    n = max(len(group) for group in groups)
    parts = [_read_trial(group, n, objective, names, dim, outcomes) for group in groups]
    return Rows(*map(torch.stack, zip(*parts, strict=True)))


def _read_trial(
    frame: pd.DataFrame,
    n: int,
    objective: Objective,
    names: Names | None,
    dim: int,
    outcomes: Mapping[int, str],
) -> Rows:
    """Return one trial's rows of a frame, filled up to ``n`` with empty rows."""
    labels, count = ["reward", *cost_columns(objective)], len(frame)

    def numbers(columns: list[str]) -> Tensor:
        out = torch.full((n, len(columns)), math.nan, dtype=torch.float64)
        # a column that the frame lacks is NaN
        out[:count] = torch.tensor(frame.reindex(columns=columns).to_numpy(float))
        return out

    if names is None:
        coordinates = [f"x{j + 1}" for j in range(dim)]
        absent = [name for name in coordinates if name not in frame.columns]
        if absent:
            raise CBanditError(f"the history has no column {absent[0]!r}")
        x = numbers(coordinates)
    else:
        columns = {
            name: frame[other].tolist()
            for name in names.labels()
            for other in (f"x.{name}", name)
            if other in frame.columns and (other != name or f"x.{name}" not in frame)
        }
        absent = [name for name in names.labels() if name not in columns]
        if absent:
            raise CBanditError(f"the history has no column {absent[0]!r}")
        x = torch.zeros(n, dim, dtype=torch.float64)
        if count:
            x[:count] = names.points(names.rows(columns))
    x[count:] = x[:1] if count else 0.0
    words = [TRIES_WORDS.get(outcomes.get(f, ""), "tries") for f in range(len(labels))]
    pairs = zip(words, labels, strict=True)
    tries = numbers([f"{word}_{label}" for word, label in pairs])
    tries = torch.where(tries.isnan(), 1.0, tries)
    noise = numbers([f"noise_{label}" for label in labels])
    state = [*frame["state"], *["open"] * (n - count)]
    failed = torch.tensor([each == "failed" for each in state])
    values = numbers(labels).masked_fill(failed.unsqueeze(-1), math.nan)
    return Rows(x, values, tries, noise, failed)


def _stack(
    values: Sequence[Tensor | None], shape: tuple[int, ...], missing: float
) -> Tensor:
    """Stack values to ``(n, *shape)`` on the host; ``None`` becomes ``missing``."""
    n, known = len(values), [value for value in values if value is not None]
    if not known or known[0].numel() != math.prod(shape) or not known[0].numel():
        return torch.full((n, *shape), missing, dtype=torch.float64)
    if len(known) < n:
        nothing = torch.full_like(known[0], missing)
        known = [nothing if value is None else value for value in values]
    # torch.cat is several times faster than torch.stack
    join = torch.cat if known[0].dim() else torch.stack
    return devices.host(join(known))[0].double().view(n, *shape)


def _action_numbers(choices: Sequence[Choice], size: int) -> Tensor:
    """Return the choices' action numbers, ``(n, T)``, -1 for points of a box."""
    if all(c.keys is not None and c.index is not None for c in choices):
        return torch.tensor([c.keys for c in choices]).view(len(choices), size)
    return _stack([c.index for c in choices], (size,), -1).long()


def _n_rows(columns: dict[str, Tensor]) -> int:
    return len(columns["round"])
