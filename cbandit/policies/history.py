"""The history of a policy: what happened in every round, in compact form.

An entry that leaves the ledger is put here. Entries are collected and now and then made
into columns of numbers; columns of equal length are joined, so that they stay few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.actions import Names
from cbandit.choice import Choice
from cbandit.errors import MissingExtraError
from cbandit.policies.choices import Entry, Told
from cbandit.policies.words import Senses

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 256
STATES = ("open", "told", "failed", "cancelled", "idle")
OWN = ("id", "round", "trial", "state", "asked", "told", "action", "reward", "score")


class History:
    """The rounds whose feedback is complete.

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
        if len(self._waiting) == BLOCK:
            # rows first: after an interrupt they may be there twice, but none is lost
            columns = [*self._columns, self._rows(self._waiting)]
            while len(columns) > 1 and _length(columns[-2]) <= _length(columns[-1]):
                last, before = columns.pop(), columns.pop()
                columns.append({k: torch.cat([before[k], last[k]]) for k in last})
            self._columns, self._waiting = columns, []

    def table(self, entries: Sequence[Entry]) -> dict[str, Tensor]:
        """Return all rounds and those of ``entries``, in the order of rounds."""
        parts = [*self._columns, self._rows([*self._waiting, *entries])]
        whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        order = whole["round"].argsort()
        first = torch.ones(len(order), dtype=torch.bool)
        ordered = whole["round"][order]
        first[1:] = ordered[1:] != ordered[:-1]  # an interrupt may repeat rows
        return {name: column[order[first]] for name, column in whole.items()}

    def row(self, name: str, entries: Sequence[Entry]) -> dict[str, Tensor] | None:
        """Return the row of a choice by its id; ``None``: there is none."""
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
        """Return the states that a choice, given by its id, has in its trials."""
        row = self.row(name, entries)
        return set() if row is None else {STATES[i] for i in row["state"].tolist()}

    def frame(
        self,
        entries: Sequence[Entry],
        senses: Senses,
        names: Names | None,
        trials: range | None,
    ) -> pd.DataFrame:
        """Return all rounds, a row for each round and trial.

        Args:
            entries: those of rounds whose feedback is not complete.
            senses: the user's names and signs of the functions.
            names: names of the coordinates, if the policy's set has any.
            trials: the trials' numbers; ``None``: there is no trials axis.
        """
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError(
                "policy.history() needs pandas: pip install 'cbandit[experiments]'"
            ) from None
        table, size = self.table(entries), self._size
        rounds = table["round"].repeat_interleave(size)
        prefixes = table["prefix"].repeat_interleave(size).tolist()
        pairs = zip(prefixes, rounds.tolist(), strict=True)
        columns: dict[str, Any] = {"id": [f"{self._prefixes[i]}-{t}" for i, t in pairs]}
        columns["round"] = rounds.numpy()
        if trials is not None:
            columns["trial"] = list(trials) * len(table["round"])
        labels = [senses.label(j) for j in range(self._m)]
        # a prefix where another column has that name
        labels = [f"cost.{label}" if label in OWN else label for label in labels]
        if names is not None:
            for name, values in names.table(table["x"]).items():
                taken = name in OWN or name in labels
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
        columns["reward"] = senses.reward(table["reward"]).flatten().numpy()
        for name, column in zip(
            labels, senses.costs(table["costs"]).unbind(-1), strict=True
        ):
            columns[name] = column.flatten().numpy()
        limits, promised = senses.costs(table["limits"]), table["promised"]
        for j, column in enumerate(table["multiplier"].unbind(-1)):
            name = f"{j + 1}" if senses.names is None else f"_{senses.names[j]}"
            columns[f"multiplier{name}"] = column.flatten().numpy()
            limit, bound = limits[..., j], promised[..., j]
            paced = ~bound.isnan()
            # said only where it is not one number for all rounds
            moved = ((limit != limit[:1]) & ~paced) | (paced != paced[:1])
            if bool(moved.any()):
                columns[f"limit{name}"] = limit.flatten().numpy()
            if bool(paced.any()) or j in senses.budgets:
                pace = limit.where(paced, torch.nan)
                columns[f"pace{name}"] = pace.flatten().numpy()
                columns[f"promised{name}"] = bound.flatten().numpy()
        columns["score"] = table["score"].flatten().numpy()
        return pd.DataFrame(columns)

    def _rows(self, entries: Sequence[Entry]) -> dict[str, Tensor]:
        """Return entries as columns, a row for each entry; NaN is a missing value."""
        n, size, m = len(entries), self._size, self._m
        choices, made = [e.choice for e in entries], [e.made for e in entries]
        nan, prefixes = torch.nan, [self._prefix(c.id) for c in choices]
        state = torch.ones(n, size, dtype=torch.uint8)
        for i, entry in enumerate(entries):
            whole = not entry.failures and entry.choice.idle is None
            if not entry.closed or entry.cancelled or not whole:
                state[i] = _states(entry)
        last = [[told.time for told in (*e.rewards, *e.costs)] for e in entries]
        return {
            "round": torch.tensor([c.t for c in choices], dtype=torch.long),
            "prefix": torch.tensor(prefixes, dtype=torch.long),
            "asked": torch.tensor([each.time for each in made], dtype=torch.float64),
            "told": torch.tensor(
                [max(times, default=nan) for times in last], dtype=torch.float64
            ),
            "state": state,
            "index": _numbers(choices, size),
            "x": _joined([c.x for c in choices], (size, self._dim), nan),
            "reward": _told([e.rewards for e in entries], size, 1)[..., 0],
            "costs": _told([(*e.costs, *e.charged) for e in entries], size, m),
            "multiplier": _joined([e.multiplier for e in made], (size, m), nan),
            "score": _joined([e.score for e in made], (size,), nan),
            "limits": _joined([e.limits for e in made], (size, m), nan),
            "promised": _joined([e.promised for e in made], (size, m), nan),
            "estimate": _joined([e.estimate for e in made], (size, 1 + m), nan),
        }

    def _prefix(self, name: str) -> int:
        prefix = name.rpartition("-")[0]
        if prefix not in self._prefixes:
            self._prefixes.append(prefix)
        return self._prefixes.index(prefix)


def _states(entry: Entry) -> Tensor:
    """Return the state of a choice in each trial, as an index into ``STATES``."""
    out = torch.where(entry.waits(), 3 if entry.cancelled else 0, 1)
    if entry.failed is not None:
        out = torch.where(entry.failed, 2, out)
    if entry.choice.idle is not None:
        out = torch.where(entry.choice.idle.reshape(-1).cpu(), 4, out)
    return out.to(torch.uint8)


def _told(by_entry: Sequence[Sequence[Told]], size: int, m: int) -> Tensor:
    """Return the values told, ``(n, T, m)``, NaN where there is none."""
    out = torch.full((len(by_entry), size, m), torch.nan, dtype=torch.float64)
    single = [
        i for i, items in enumerate(by_entry) if len(items) == 1 and _whole(items[0])
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


def _whole(item: Told) -> bool:
    return item.where is None and item.columns is None


def _joined(
    values: Sequence[Tensor | None], shape: tuple[int, ...], missing: float
) -> Tensor:
    """Stack values to ``(n, *shape)`` float64 on the host; ``None`` is ``missing``."""
    n, known = len(values), [value for value in values if value is not None]
    if not known or known[0].numel() != math.prod(shape) or not known[0].numel():
        return torch.full((n, *shape), missing, dtype=torch.float64)
    if len(known) < n:
        nothing = torch.full_like(known[0], missing)
        known = [nothing if value is None else value for value in values]
    # torch.cat is several times faster than torch.stack
    join = torch.cat if known[0].dim() else torch.stack
    return devices.host(join(known))[0].double().view(n, *shape)


def _numbers(choices: Sequence[Choice], size: int) -> Tensor:
    """Return the actions' numbers, ``(n, T)``, -1 where they have none."""
    if all(c.keys is not None and c.index is not None for c in choices):
        return torch.tensor([c.keys for c in choices]).view(len(choices), size)
    return _joined([c.index for c in choices], (size,), -1).long()


def _length(columns: dict[str, Tensor]) -> int:
    return len(columns["round"])


def best_tried(x: Tensor, outcomes: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best action told, ``(d,)``, and its mean outcomes ``(1 + m,)``.

    It has the largest mean reward within the limits; if no action kept them, it is the
    one that exceeded them least. Both are NaN if no action was told in full.

    Args:
        x: the actions of all rounds, ``(n, d)``.
        outcomes: reward and costs, ``(n, 1 + m)``, NaN where nothing was told.
        limits: the thresholds, ``(m,)``.
    """
    points, group = torch.unique(x, dim=0, return_inverse=True)
    told = ~outcomes.isnan()
    empty = outcomes.new_zeros(len(points), outcomes.shape[-1])
    count = empty.index_add(0, group, told.to(outcomes))
    means = empty.index_add(0, group, outcomes.nan_to_num(0.0)) / count
    known = (count > 0).all(-1)
    if not bool(known.any()):
        nothing = outcomes.new_full(outcomes.shape[1:], math.nan)
        return (x[0] if len(x) else x.new_zeros(x.shape[1])), nothing
    points, means = points[known], means[known]
    over = torch.nn.functional.pad(means[:, 1:] - limits, (1, 0)).amax(-1).clamp_min(0)
    best = torch.where(over == over.min(), means[:, 0], -math.inf).argmax()
    return points[best], means[best]
