"""Saves that append: what was called since the checkpoint, beside it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pandas as pd
import pytest
import torch
from inside import Call
from inside import checkpoint as files
from inside import files as locks

import cbandit as cb

F64 = torch.float64
AXIS = torch.linspace(0, 1, 30, dtype=F64)
SETS = {
    "few": lambda: cb.Finite(AXIS.unsqueeze(-1)),
    "grid": lambda: cb.ProductGrid([AXIS, AXIS**1.2]),
    "box": lambda: cb.Box([0.0, 0.0], [1.0, 1.0]),
}


def made(actions, trials=None, **more):
    gp = cb.GP.default(actions)
    return cb.CKB(
        actions,
        reward=gp,
        costs={"c": gp},
        thresholds={"c": "<= 0"},
        trials=trials,
        **more,
    )


def outcome(policy, choice):
    reward = torch.sin(4 * choice.x.double()).sum(-1)
    return {"reward": reward, "cost": {"c": reward - 0.5}}


def same(one, other):
    """Whether two policies are alike to the bit, in what was and what is to come."""
    assert one.t == other.t
    assert [c.id for c in one.outstanding] == [c.id for c in other.outstanding]
    assert one.history().equals(other.history())
    for each in (one, other):
        for _ in range(2):
            choice = each.ask()
            each.tell(choice, **outcome(each, choice))
    a, b = (
        each.history().drop(columns=["id", "asked", "told"]) for each in (one, other)
    )
    assert a.equals(b)


@pytest.mark.parametrize(
    ("name", "trials"), [("few", None), ("few", 2), ("grid", 2), ("box", None)]
)
def test_what_was_appended_is_called_again(tmp_path, name, trials):
    actions, path = SETS[name](), tmp_path / "state"
    policy = made(actions, trials, seed=3)
    policy.save(path, append=True)
    whole = path.read_bytes()
    first, choices = policy.ask(), policy.ask(n=3)
    policy.tell(first, **outcome(policy, first))
    policy.save(path, append=True)
    policy.tell(choices[1].id, **outcome(policy, choices[1]))
    policy.cancel(choice=choices[0])
    if actions.finite:
        policy.posterior()
    policy.recommend()
    _ = policy.multiplier
    for _ in range(4):
        choice = policy.ask()
        policy.tell(choice, **outcome(policy, choice))
        policy.save(path, append=True)
    policy.save(path, append=True)
    assert path.read_bytes() == whole
    other = cb.load(path)
    other.tell(choices[2].id, **outcome(policy, choices[2]))
    policy.tell(choices[2], **outcome(policy, choices[2]))
    told = [each.history()["told"].notna().sum() for each in (policy, other)]
    assert told[0] == told[1]
    for each in (policy, other):
        each.ask(n=2)
    a, b = (each.history()["score"].tolist() for each in (policy, other))
    assert a == b


def test_it_is_as_if_saved_whole(tmp_path):
    path, whole = tmp_path / "state", tmp_path / "whole"
    policy = made(SETS["grid"]())
    policy.save(path, append=True)
    for _ in range(7):
        choice = policy.ask()
        policy.tell(choice, **outcome(policy, choice))
        policy.save(path, append=True)
    policy.ask()
    policy.save(path, append=True)
    other = cb.load(path)
    policy.save(whole)
    same(cb.load(whole), other)


def test_a_journal_cut_at_any_byte_holds_the_calls_before(tmp_path):
    path, journal = tmp_path / "state", tmp_path / "state.journal"
    policy = made(SETS["few"]())
    policy.save(path, append=True)
    ends = [len(journal.read_bytes())]
    for _ in range(3):
        choice = policy.ask()
        policy.tell(choice, **outcome(policy, choice))
        policy.save(path, append=True)
        ends.append(len(journal.read_bytes()))
    raw = journal.read_bytes()
    counts = []
    for cut in range(len(raw) + 1):
        journal.write_bytes(raw[:cut])
        counts.append(len(entries(path).bodies))
    assert counts == sorted(counts)
    assert [counts[end] for end in ends] == [0, 2, 4, 6]
    assert counts[-2] == 5
    for cut, t in ((ends[0], 0), (ends[1] + 3, 1), (ends[2] - 1, 2), (len(raw), 3)):
        journal.write_bytes(raw[:cut])
        left = cb.load(path)
        assert left.t == t
        on = tmp_path / str(t)
        left.save(on, append=True)
        left.ask()
        left.save(on, append=True)
        assert cb.load(on).t == t + 1
    # what is appended after a cut takes the place of what the cut left
    journal.write_bytes(raw[: ends[2] - 1])
    noted = {os.path.realpath(path): (entries(path).mark,)}
    bodies = entries(path).bodies
    assert files.append(path, [b"one", b""], noted)
    assert entries(path).bodies == [*bodies, b"one", b""]
    assert noted == {os.path.realpath(path): (entries(path).mark,)}


def test_a_flipped_byte_is_an_error(tmp_path):
    path, journal = tmp_path / "state", tmp_path / "state.journal"
    policy = made(SETS["few"]())
    policy.save(path, append=True)
    for _ in range(2):
        policy.ask()
        policy.save(path, append=True)
    raw = journal.read_bytes()
    for place in range(len(raw)):
        flipped = bytes([raw[place] ^ 4])
        journal.write_bytes(raw[:place] + flipped + raw[place + 1 :])
        with pytest.raises(cb.CheckpointError, match="broken"):
            entries(path)
    with pytest.raises(cb.CheckpointError, match="remove it to go on from state"):
        cb.load(path)
    journal.unlink()
    with pytest.warns(UserWarning, match="round 0 is missing"):
        assert cb.load(path).t == 0


def entries(path):
    with open(path, "rb") as file:
        head = files._head(path, file.readline().rstrip(b"\n"))
    return files._entries(path, head)


def test_what_cannot_be_called_again_is_saved_whole(tmp_path):
    path, journal = tmp_path / "state", tmp_path / "state.journal"
    policy = made(SETS["grid"]())
    policy.save(path, append=True)
    choice = policy.ask()
    with pytest.raises(cb.CBanditError):
        policy.tell(choice, reward=float("nan"))
    policy.save(path, append=True)  # a call that failed may have left its traces
    assert not entries(path).bodies
    policy.tell(choice, **outcome(policy, choice))
    policy.save(path, append=True)
    assert len(entries(path).bodies) == 1
    policy.explain(policy.ask())
    policy.save(path, append=True)
    assert not entries(path).bodies
    assert cb.load(path).t == 2
    policy.ask()
    policy.save(path, append=True)
    policy.save(path)  # whole: an older journal counts no more
    assert not journal.exists()
    assert cb.load(path).t == 3


def test_a_journal_of_another_file_counts_for_nothing(tmp_path):
    path, journal = tmp_path / "state", tmp_path / "state.journal"
    policy = made(SETS["grid"]())
    policy.save(path, append=True)
    policy.ask()
    policy.save(path, append=True)
    old = journal.read_bytes()
    policy.save(path, append=False)
    journal.write_bytes(old)  # as after a crash between the two
    assert cb.load(path).t == 1


def test_a_journal_that_was_left_behind_is_missed(tmp_path):
    path, moved = tmp_path / "state", tmp_path / "moved"
    policy = made(SETS["few"]())
    policy.ask()
    policy.save(path, append=True)
    assert cb.load(path).t == 1  # nothing was appended, and nothing is missing
    policy.ask()
    policy.save(path, append=True)
    shutil.copy(path, moved)
    with pytest.warns(UserWarning, match=r"moved\.journal is not there.*after round 1"):
        assert cb.load(moved).t == 1
    other = made(SETS["few"](), seed=1)
    other.save(tmp_path / "other", append=True)
    shutil.copy(tmp_path / "other.journal", tmp_path / "moved.journal")
    with pytest.warns(UserWarning, match="or is of another file"):
        assert cb.load(moved).t == 1
    shutil.copy(tmp_path / "state.journal", tmp_path / "moved.journal")
    assert cb.load(moved).t == 2
    policy.save(moved, overwrite=True)
    assert not (tmp_path / "moved.journal").exists()
    assert cb.load(moved).t == 2


class Reward(float):
    """A number whose class load does not know."""


def test_arguments_that_load_would_refuse_are_saved_whole(tmp_path):
    path = tmp_path / "state"
    policy = made(SETS["few"]())
    for _ in range(2):
        policy.save(path, append=True)
        allowed = pd.Series([True] * 20 + [False] * 10)
        policy.tell(policy.ask(among=allowed), reward=Reward(0.3), cost={"c": 0.1})
    policy.observe(x=AXIS[:2].unsqueeze(-1), reward=pd.Series([0.1, 0.2]), cost=[0, 1])
    policy.save(path, append=True)
    assert not entries(path).bodies
    same(cb.load(path), policy)


def test_a_file_without_the_set_gets_it_when_asked_for(tmp_path):
    path = tmp_path / "state"
    policy = made(SETS["few"]())
    policy.save(path, actions=False, append=True)
    policy.ask()
    policy.save(path, actions=False, append=True)
    assert len(entries(path).bodies) == 1
    policy.save(path, append=True)
    assert cb.load(path).t == 1


def test_rounds_that_others_appended_are_not_lost(tmp_path):
    path = tmp_path / "state"
    made(SETS["grid"]()).save(path)
    one, two = cb.load(path), cb.load(path)
    for each in (one, two):
        each.ask()
    one.save(path, append=True)
    one.ask()
    one.save(path, append=True)
    for append in (True, False):
        with pytest.raises(cb.CheckpointError, match="what others have saved"):
            two.save(path, append=append)
    three = made(SETS["grid"](), seed=5)
    three.ask(n=2)
    with pytest.raises(cb.CheckpointError, match="what others have saved"):
        three.save(path)
    assert cb.load(path).t == 2


@pytest.mark.parametrize("renamed", [False, True])
def test_a_kill_beside_a_rename_loses_nothing_and_warns_of_nothing(
    tmp_path, monkeypatch, renamed
):
    """A whole save writes two files, the checkpoint and its journal."""
    path, begun = tmp_path / "state", tmp_path / "begun"
    policy = made(SETS["few"]())

    def replace(*paths):
        if renamed:
            os.rename(*paths)
        raise SystemExit  # what is on the disk is as after a kill

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(os, "replace", replace)
        policy.save(begun, append=True)
    assert begun.exists() == renamed
    if renamed:
        assert cb.load(begun).t == 0
    policy.save(path, append=True)
    policy.ask()
    policy.save(path, append=True)
    policy.explain(policy.ask())  # the next save is whole
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(os, "replace", replace)
        policy.save(path, append=True)
    assert cb.load(path).t == 1 + renamed
    bodies = entries(path).bodies
    assert len(bodies) == (not renamed)
    noted = {os.path.realpath(path): (entries(path).mark,)}
    assert files.append(path, [b"one", b""], noted)
    assert entries(path).bodies == [*bodies, b"one", b""]
    (tmp_path / "state.journal").unlink()
    with pytest.warns(UserWarning, match=f"after round {2 * renamed} is missing"):
        cb.load(path)


def test_a_journal_is_begun_before_others_may_append(tmp_path):
    journal, policy = tmp_path / "state.journal", made(SETS["few"]())
    os.mkfifo(journal)  # whoever writes to it waits for a reader
    writer = threading.Thread(
        target=policy.save, args=(tmp_path / "state",), kwargs={"append": True}
    )
    writer.start()
    try:
        with pytest.raises(cb.CBanditError, match="busy"):
            while True:
                with locks.locked(tmp_path, 0.0, "busy"):
                    time.sleep(0.001)
        assert not (tmp_path / "state").exists()
    finally:
        journal.read_bytes()
        writer.join()


KILLED = """
import sys, torch
import cbandit as cb
axis = torch.linspace(0, 1, 30, dtype=torch.float64)
grid = cb.ProductGrid([axis, axis])
gp = cb.GP.default(grid)
policy = cb.GPUCB(grid, reward=gp)
while True:
    choice = policy.ask()
    policy.tell(choice, reward=float(choice.x.sum()))
    policy.save(sys.argv[1], append=True)
    print(policy.t, flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_loses_no_round_that_it_saved(tmp_path):
    path = tmp_path / "state"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(12)]
        time.sleep(0.013)
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.read().split("\n")
    saved = max(int(line) for line in lines if line.strip().isdigit())
    assert cb.load(path).t >= saved >= 12


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("ask", {"nothing": 1}, "call of ask cannot be made again"),
        ("refit", {"nothing": 1}, "call of refit cannot be made again"),
        ("save", {"path": "elsewhere"}, "no save to be called"),
        ("_settled", {}, "no _settled to be called"),
    ],
)
def test_a_forged_call_is_an_error_of_the_checkpoint(name, given, words):
    policy = made(cb.Finite(torch.linspace(0, 1, 9).double().unsqueeze(-1)))
    with pytest.raises(cb.CheckpointError, match=words):
        policy.call_again([Call(name, (), given, 0.0)])
