"""Keep what happened in every round, in little room: ``policy.history()``.

An entry that leaves the ledger is put here. Every so often the entries that wait become
columns of numbers, and columns of one length are joined, so that there are few of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.choice import Choice
from cbandit.errors import MissingExtraError
from cbandit.policies.ledger import Entry, Made, Told

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Record", "history"]

BLOCK = 256
STATES = ("open", "told", "failed", "cancelled")
OWN = ("id", "round", "trial", "state", "asked", "told", "action", "reward", "score")


class Record:
    """The rounds that are over.

    Args:
        size: how many trials.
        m: how many costs.
        dim: how many coordinates an action has.
        costs: whether a choice waits for its costs.
    """

    def __init__(self, size: int, m: int, dim: int, costs: bool) -> None:
        self._size, self._m, self._dim = size, m, dim
        self.costly = costs
        self._waiting: list[Entry] = []
        self._columns: list[dict[str, Tensor]] = []
        self._prefixes: list[str] = []

    def put(self, entry: Entry) -> None:
        """Keep an entry that leaves the ledger."""
        self._waiting.append(entry)
        if len(self._waiting) == BLOCK:
            # rows come first: an interrupt may repeat them, and loses none
            columns = [*self._columns, self._rows(self._waiting)]
            while len(columns) > 1 and _length(columns[-2]) <= _length(columns[-1]):
                last, before = columns.pop(), columns.pop()
                columns.append({k: torch.cat([before[k], last[k]]) for k in last})
            self._columns, self._waiting = columns, []

    def table(self, entries: Sequence[Entry]) -> dict[str, Tensor]:
        """Return all rows in the order of rounds, those of ``entries`` with them."""
        parts = [*self._columns, self._rows([*self._waiting, *entries])]
        whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        order = whole["round"].argsort()
        kept = torch.ones(len(order), dtype=torch.bool)
        ordered = whole["round"][order]
        kept[1:] = ordered[1:] != ordered[:-1]  # what an interrupt repeated
        return {name: column[order[kept]] for name, column in whole.items()}

    def one(self, entry: Entry) -> dict[str, Tensor]:
        """Return the row of one entry."""
        return self._rows([entry])

    def became(self, entries: Sequence[Entry], name: str) -> set[str]:
        """Return what became of a choice, by its id, in some trial or other."""
        table = self.table(entries)
        for prefix, t, state in zip(
            table["prefix"].tolist(),
            table["round"].tolist(),
            table["state"],
            strict=True,
        ):
            if self.id_of(prefix, t) == name:
                return {STATES[i] for i in state.tolist()}
        return set()

    def id_of(self, prefix: int, t: int) -> str:
        """Return a choice's id, which the record has in two numbers."""
        return f"{self._prefixes[prefix]}-{t}"

    def _rows(self, entries: Sequence[Entry]) -> dict[str, Tensor]:
        """Return entries as columns, a row an entry; NaN is what is not known."""
        n, size, m = len(entries), self._size, self._m
        choices = [entry.choice for entry in entries]
        made = [entry.made or Made(torch.nan) for entry in entries]
        nan, times = torch.nan, [each.time for each in made]
        state = torch.ones(n, size, dtype=torch.uint8)
        for i, entry in enumerate(entries):
            if not entry.closed or entry.cancelled or entry.failed is not None:
                state[i] = self._states(entry)
        last = [[one.time for one in (*e.rewards, *e.costs)] for e in entries]
        told = [max(each, default=nan) for each in last]
        return {
            "round": torch.tensor([c.t for c in choices], dtype=torch.long),
            "prefix": torch.tensor(
                [self._prefix(c.id) for c in choices], dtype=torch.long
            ),
            "asked": torch.tensor(times, dtype=torch.float64),
            "told": torch.tensor(told, dtype=torch.float64),
            "state": state,
            "index": _numbers(choices, size),
            "x": _joined([c.x for c in choices], (size, self._dim), nan),
            "reward": _told([e.rewards for e in entries], size, 1)[..., 0],
            "costs": _told([e.costs for e in entries], size, m),
            "multiplier": _joined([e.multiplier for e in made], (size, m), nan),
            "score": _joined([e.score for e in made], (size,), nan),
            "estimate": _joined([e.estimate for e in made], (size, 1 + m), nan),
        }

    def _states(self, entry: Entry) -> Tensor:
        """Return what became of a choice in each trial, a place in ``STATES``."""
        reward, cost = (torch.tensor(waits) for waits in entry.missing())
        waits = reward | cost if self.costly else reward
        out = torch.where(waits, 3 if entry.cancelled else 0, 1)
        if entry.failed is not None:
            out = torch.where(entry.failed, 2, out)
        return out.to(torch.uint8)

    def _prefix(self, name: str) -> int:
        prefix = name.rpartition("-")[0]
        if prefix not in self._prefixes:
            self._prefixes.append(prefix)
        return self._prefixes.index(prefix)


def _told(every: Sequence[Sequence[Told]], size: int, m: int) -> Tensor:
    """Return what was told, ``(n, T, m)``, NaN where nothing was."""
    out = torch.full((len(every), size, m), torch.nan, dtype=torch.float64)
    plain = [i for i, items in enumerate(every) if len(items) == 1 and _whole(items[0])]
    if plain:
        together = torch.cat([every[i][0].values for i in plain])
        whole = devices.host(together)[0].view(len(plain), size, m)
        if len(plain) == len(every):
            return whole
        out[plain] = whole
    for i in set(range(len(every))) - set(plain):
        for one in every[i]:
            columns = list(range(m) if one.columns is None else one.columns)
            values, row = one.values.cpu(), out[i, :, columns]
            if one.where is not None:
                values = torch.where(one.where.unsqueeze(-1), values, row)
            out[i, :, columns] = values
    return out


def _whole(one: Told) -> bool:
    return one.where is None and one.columns is None


def _joined(
    values: Sequence[Tensor | None], shape: tuple[int, ...], missing: float
) -> Tensor:
    """Return ``(n, *shape)`` float64 on the host; ``missing`` where there is none."""
    n, known = len(values), [value for value in values if value is not None]
    if not known or known[0].numel() != math.prod(shape) or not known[0].numel():
        return torch.full((n, *shape), missing, dtype=torch.float64)
    if len(known) < n:
        nothing = torch.full_like(known[0], missing)
        known = [nothing if value is None else value for value in values]
    # on the whole several times faster than stack
    join = torch.cat if known[0].dim() else torch.stack
    return devices.host(join(known))[0].double().view(n, *shape)


def _numbers(choices: Sequence[Choice], size: int) -> Tensor:
    """Return the actions' numbers, ``(n, T)``, -1 where they have none."""
    if all(c.keys is not None and c.index is not None for c in choices):
        return torch.tensor([c.keys for c in choices]).view(len(choices), size)
    return _joined([c.index for c in choices], (size,), -1).long()


def _length(columns: dict[str, Tensor]) -> int:
    return len(columns["round"])


def history(self: Any) -> pd.DataFrame:
    """Return what happened: a pandas frame with a row for each round and trial.

    Columns: ``id``, ``round``, the action by name (else ``action`` and ``x1``..),
    ``state`` (open, told, failed or cancelled), times of ``asked`` and last ``told``,
    ``reward``, costs, multipliers and ``score``, where the policy maximises one.

    What ``observe`` was given is not in it: that is data from before, of which no round
    was asked.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError(
            "policy.history() needs pandas: pip install 'cbandit[experiments]'"
        ) from None
    record, senses, names = self._record, self.senses, self.actions.names
    table = record.table(self._ledger.all(self._now.t))
    size, batched = self._size, bool(self.batch_shape)
    rounds = table["round"].repeat_interleave(size)
    prefixes = table["prefix"].repeat_interleave(size).tolist()

    def flat(value: Tensor) -> Any:
        return value.reshape(-1).numpy()

    def moments(name: str) -> Any:
        seconds = table[name].repeat_interleave(size).numpy()
        return pd.to_datetime(seconds, unit="s", utc=True)

    ids = map(record.id_of, prefixes, rounds.tolist())
    columns: dict[str, Any] = {"id": list(ids), "round": flat(rounds)}
    if batched:
        columns["trial"] = list(self.trials) * len(table["round"])
    taken = [*OWN, *(_cost(senses, j) for j in range(self.m))]
    if names is not None:
        for name, values in names.read(table["x"]).items():
            columns[f"x.{name}" if name in taken else name] = values.reshape(-1)
    else:
        if bool((table["index"] >= 0).any()):
            columns["action"] = flat(table["index"])
        for j, column in enumerate(table["x"].unbind(-1)):
            columns[f"x{j + 1}"] = flat(column)
    columns["state"] = [STATES[i] for i in flat(table["state"])]
    columns["asked"], columns["told"] = moments("asked"), moments("told")
    columns["reward"] = flat(senses.reward(table["reward"]))
    several: list[tuple[str, Tensor, Callable[[int], str]]] = [
        ("", senses.costs(table["costs"]), lambda j: _cost(senses, j)),
        ("multiplier", table["multiplier"], lambda j: _price(senses, j)),
    ]
    for _, values, label in several:
        for j, column in enumerate(values.unbind(-1)):
            columns[label(j)] = flat(column)
    columns["score"] = flat(table["score"])
    return pd.DataFrame(columns)


def _cost(senses: Any, j: int) -> str:
    """Return the name of a cost's column, with a prefix where it means another."""
    name: str = senses.label(j)
    return f"cost.{name}" if name in OWN else name


def _price(senses: Any, j: int) -> str:
    own = senses.names
    return f"multiplier{j + 1}" if own is None else f"multiplier_{own[j]}"
