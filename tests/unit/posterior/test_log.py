"""The log of observations: any version stays as it is, whatever becomes of others."""

from __future__ import annotations

import pickle
import random

import pytest
import torch
from inside import Log, Observation

POINT = torch.zeros(1, 1)


def row(t, value=0.0):
    return Observation([0], [t], POINT, torch.tensor([[value]]), [True], None, t)


def rounds(log):
    return [(each.t, each.values.item()) for each in log]


@pytest.mark.parametrize("seed", range(8))
def test_versions_are_lists_that_nobody_changes(seed):
    """A tree of versions beside plain lists, each changed from anywhere in the tree."""
    rng = random.Random(seed)
    versions, known, numbers = [Log()], [[]], set()
    for step in range(600):
        place = rng.choice((-1, -1, -1, rng.randrange(len(versions))))
        log, rows = versions[place], list(known[place])
        change = rng.choice(("append", "append", "append", "late", "drop", "replace"))
        value = float(step)
        if change == "append":
            t = rows[-1][0] + 1 if rows else 1
            log, rows = log.enter(row(t, value)), [*rows, (t, value)]
        elif change == "late":
            t = rng.randrange(rows[-1][0] + 1) if rows else 0
            log = log.enter(row(t, value))
            behind = next((i for i, r in enumerate(rows) if r[0] > t), len(rows))
            rows.insert(behind, (t, value))
        elif rows and change == "drop":
            log, rows = log.without_first(), rows[1:]
        elif rows:
            at = rng.randrange(len(rows))
            log = log.replaced(at, row(rows[at][0], value))
            rows[at] = (rows[at][0], value)
        versions.append(log)
        known.append(rows)
        numbers.add(log.version)
    for log, rows in zip(versions, known, strict=True):
        assert rounds(log) == rows
        assert len(log) == len(rows)
        assert [(log[i].t, log[i].values.item()) for i in range(len(rows))] == rows
        assert [each.t for each in log.last(3)] == [t for t, _ in rows[-3:]]
        if rows:
            t = rows[len(rows) // 2][0]
            assert log.first_of(t) == [r[0] for r in rows].index(t)
    assert len(numbers) == len({id(log) for log in versions[1:]})


def test_what_came_together_is_in_order():
    log = Log().enter(row(3)).merged([row(5), row(0), row(3, 1.0)])
    assert rounds(log) == [(0, 0.0), (3, 0.0), (3, 1.0), (5, 0.0)]


def test_a_pickle_keeps_rows_and_number():
    log = Log()
    for t in range(200):
        log = log.enter(row(t))
    older, log = log, log.enter(row(200))
    again, before = pickle.loads(pickle.dumps((log, older)))
    assert rounds(again) == rounds(log)
    assert again.version == log.version
    assert rounds(before.enter(row(200, 2.0)))[-1] == (200, 2.0)
    assert rounds(again) == rounds(log)
