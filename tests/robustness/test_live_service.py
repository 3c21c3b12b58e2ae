"""A service that is killed at any moment loses nothing that it was told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from places import COMMON
from service import world

import cbandit as cb

KILLS = 2
KINDS = {"failed", "cancelled", "told"}


def answers(journal):
    """What has been answered so far: id, kind of answer, setting."""
    lines = journal.read_text().split("\n")[:-1]  # the last one may be half written
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_a_service_that_is_killed_goes_on(tmp_path):
    state, journal = tmp_path / "state.ckpt", tmp_path / "journal"
    journal.touch()
    script = COMMON / "service.py"
    for kill in range(KILLS):
        before = len(answers(journal))
        process = subprocess.Popen([sys.executable, script, state, journal])
        limit = time.monotonic() + 120
        # 40 answers, one of each kind, and then anywhere in the middle
        while len(said := answers(journal)) < before + 40 or not (
            {what for _, what, _ in said} >= KINDS
        ):
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.01)
        time.sleep(0.003 * kill)
        process.send_signal(signal.SIGKILL)
        process.wait()
        check(state, journal)


def check(state, journal):
    """The last process's state has all that was answered, at the right actions."""
    policy = cb.load(state)
    rows = {row["id"]: row for row in policy.history().to_dict("records")}
    said = answers(journal)
    for name, what, params in said:
        row = rows[name]  # ids stay valid
        assert {key: row[key] for key in params} == params
        if what == "up":
            assert row["up"] == world(params)[2]
        else:
            assert row["state"] == what
    for row in rows.values():
        seen = world({"threads": row["threads"], "codec": row["codec"]})
        if row["state"] == "told":
            assert (row["reward"], row["latency"], row["up"]) == seen
        if row["state"] == "failed":
            assert seen is None
    # an action that failed is not asked for again, but by those who had asked before
    failed = {tuple(params.items()) for _, what, params in said if what == "failed"}
    for key in failed:
        mine = [r for r in rows.values() if all(r[k] == v for k, v in key)]
        told = [r["told"] for r in mine if r["state"] == "failed"]
        assert told
        assert len(mine) <= 5  # threads
    choices = {tuple(policy.ask().params.items()) for _ in range(3)}
    assert not choices & failed
    frame = policy.history()
    assert frame["id"].is_unique
