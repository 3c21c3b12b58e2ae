"""Checkpoints: whole or not at all, read back only if they are ours."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import pytest
import torch
from inside import files, write
from midway import prepared, same_future
from places import COMMON

import cbandit as cb


def test_broken_and_foreign_checkpoints_are_kept(tmp_path):
    policy, _, _ = prepared()
    path = tmp_path / "a.ckpt"
    policy.save(path)
    whole = path.read_bytes()
    for name, content in {
        "cut": whole[:-10],
        "flipped": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        "foreign": b"hello",
        "empty": b"",
        "header": whole[:21],
    }.items():
        broken = tmp_path / name
        broken.write_bytes(content)
        with pytest.raises(cb.CheckpointError) as error:
            cb.load(broken)
        assert name in str(error.value)
        with pytest.raises(cb.CheckpointError) as error:
            policy.save(broken)
        assert name in str(error.value)
        assert broken.read_bytes() == content
    for bad in (tmp_path, tmp_path / "none" / "x"):
        with pytest.raises(cb.CheckpointError):
            policy.save(bad)
        with pytest.raises(cb.CheckpointError):
            cb.load(bad)
    policy.save(path)


def play(policy, rounds=1):
    for _ in range(rounds):
        policy.tell(policy.ask(), reward=0.5, cost=[0.1, 0.2])


def test_what_others_have_saved_meanwhile_is_kept(tmp_path):
    policy, path = prepared()[0], tmp_path / "a.ckpt"
    policy.save(path)
    one, two = cb.load(path), cb.load(path)
    play(one, 10)
    one.save(path)
    saved = path.read_bytes()
    for late in (two, policy):
        play(late, 3)
        with pytest.raises(cb.CheckpointError) as error:
            late.save(path)
        for words in ("has changed since", "kept", "cb.load()", "overwrite=True"):
            assert words in str(error.value)
        assert path.read_bytes() == saved
        assert os.listdir(tmp_path) == ["a.ckpt"]
    for _ in range(2):  # one that saves alone is not disturbed
        play(one)
        one.save(path)
    two.save(path, overwrite=True)
    assert cb.load(path).t == two.t
    two.save(path)
    with pytest.raises(cb.CheckpointError, match="has changed since"):
        one.save(path)


def test_a_file_that_is_no_checkpoint_is_kept(tmp_path):
    policy, path = prepared()[0], tmp_path / "foreign"
    path.write_bytes(b"hello")
    with pytest.raises(cb.CheckpointError, match="not overwritten"):
        policy.save(path, overwrite=True)
    assert path.read_bytes() == b"hello"
    with pytest.raises(cb.CBanditError, match="overwrite must be"):
        policy.save(tmp_path / "a.ckpt", overwrite="yes")


def test_more_rounds_than_its_own_are_not_replaced_by_whoever_does_not_know_them(
    tmp_path,
):
    """Neither by a new policy, nor by a copy, nor through another name."""
    policy, path = prepared()[0], tmp_path / "a.ckpt"
    policy.save(path)
    first = cb.load(path)
    copies = copy.deepcopy(first), copy.copy(first), pickle.loads(pickle.dumps(first))
    play(policy, 5)
    policy.save(path)
    (tmp_path / "link").symlink_to(path)
    late = prepared()[0]
    for each in (late, first, *copies):
        for name in (path, tmp_path / "link"):
            with pytest.raises(cb.CheckpointError, match="would be lost"):
                each.save(name)
    for each in copies:  # they know that others have gone on, however far they come
        play(each, 9)
        with pytest.raises(cb.CheckpointError, match="has changed since"):
            each.save(path)
    play(late, 9)
    late.save(path)  # nothing tells it from the same run, played again
    assert cb.load(path).t == late.t


def test_a_run_is_not_replaced_by_a_policy(tmp_path):
    path = tmp_path / "run"
    write(path, "simulation", {})
    before = path.read_bytes()
    with pytest.raises(cb.CheckpointError, match="is a simulation of 0 rounds"):
        prepared()[0].save(path)
    assert path.read_bytes() == before


def test_a_link_is_written_through(tmp_path):
    policy, path, link = prepared()[0], tmp_path / "a.ckpt", tmp_path / "link"
    policy.save(path)
    link.symlink_to(path)
    again = cb.load(link)
    play(again)
    again.save(link)
    assert link.is_symlink()
    assert cb.load(path).t == again.t


def test_files_that_are_moved_removed_and_kept_side_by_side(tmp_path, monkeypatch):
    policy, one, two = prepared()[0], tmp_path / "one", tmp_path / "two"
    monkeypatch.chdir(tmp_path)
    for path in (one, two, "one", two, one):
        play(policy)
        policy.save(path)
        play(policy)
    one.replace(tmp_path / "moved")
    policy.save(tmp_path / "moved")
    two.unlink()
    policy.save(two)
    loaded = cb.load(two)
    play(loaded)
    loaded.save(two)
    assert {each.name for each in tmp_path.iterdir()} == {"moved", "two"}
    assert b"two" not in two.read_bytes()  # where files lie is this machine's affair


def test_an_interrupt_of_a_save_does_not_shut_a_policy_out(tmp_path, monkeypatch):
    policy, path, replace = prepared()[0], tmp_path / "a.ckpt", os.replace

    def interrupted(*paths, first):
        if first:
            raise KeyboardInterrupt
        replace(*paths)
        raise KeyboardInterrupt

    for first in (True, False, True, False, False):
        play(policy)
        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", lambda *p, f=first: interrupted(*p, first=f))
            with pytest.raises(KeyboardInterrupt):
                policy.save(path)
    play(policy)
    policy.save(path)
    assert cb.load(path).t == policy.t
    assert os.listdir(tmp_path) == ["a.ckpt"]


SAVER = """
import sys
sys.path.insert(0, {home!r})
import cbandit as cb
for line in sys.stdin:
    path = line.strip()
    policy = cb.load(path)
    for _ in range(int(sys.argv[1])):
        policy.tell(policy.ask(), reward=0.5, cost=[0.1, 0.2])
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        policy.save(path)
        print("saved", policy.t, flush=True)
    except cb.CheckpointError as error:
        print("told", error, flush=True)
"""


def child(stack, script, *more):
    """A process of a script, to talk to; it ends with the stack."""
    script = script.format(home=str(COMMON))
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)]
    talk = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = stack.enter_context(subprocess.Popen([*command, *more], **talk))
    stack.callback(process.kill)
    return process


def said(process, line=None):
    if line is not None:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    return process.stdout.readline()


@pytest.mark.slow
def test_of_two_processes_that_save_at_once_one_is_told(tmp_path):
    with ExitStack() as stack:
        pair = [child(stack, SAVER, rounds) for rounds in ("1", "2")]
        path = tmp_path / "a.ckpt"
        prepared()[0].save(path)
        for _ in range(15):
            for each in pair:
                each.stdin.write(f"{path}\n")
                each.stdin.flush()
            assert [said(each) for each in pair] == ["ready\n"] * 2
            for each in pair:
                each.stdin.write("go\n")
                each.stdin.flush()
            first, second = sorted(said(each) for each in pair)
            assert first.startswith("saved")
            assert second.startswith("told")
            assert "has changed since" in second
            assert cb.load(path).t == int(first.split()[1])
    assert {each.suffix for each in tmp_path.iterdir()} == {".ckpt"}


STUCK = """
import os, sys, time
sys.path.insert(0, {home!r})
import cbandit as cb
policy = cb.load(sys.argv[1])
def replace(*paths):
    print("about to", flush=True)
    time.sleep(600)
os.replace = replace
policy.save(sys.argv[1])
"""


@pytest.mark.skipif(os.name == "nt", reason="locks are Unix's")
def test_a_saver_that_is_killed_leaves_no_lock(tmp_path, monkeypatch):
    policy, path = prepared()[0], tmp_path / "a.ckpt"
    policy.save(path)
    before = path.read_bytes()
    play(policy)
    with ExitStack() as stack:
        stuck = child(stack, STUCK, str(path))
        assert said(stuck) == "about to\n"
        monkeypatch.setattr(files, "PATIENCE", 0.1)
        with pytest.raises(cb.CBanditError, match="another process has locked its"):
            policy.save(path)
        assert path.read_bytes() == before
        stuck.kill()
        stuck.wait()
    policy.save(path)
    assert cb.load(path).t == policy.t
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_a_policy_that_cannot_be_saved(tmp_path):
    (policy, _, _), (twin, _, _) = (
        prepared(explore=cb.UCB(lambda t, gain: 1.0)) for _ in range(2)
    )
    with pytest.raises(cb.CheckpointError, match="lambda"):
        policy.save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    assert same_future(policy, twin)


def test_every_policy_is_saved(tmp_path):
    policy = cb.baselines.BanditOCO(
        cb.Box([0.0, 0.0], [1.0, 1.0]), costs=1, radius=0.1, step=0.1, dual_step=0.1
    )
    policy.tell(policy.ask(), reward=1.0, cost=0.5)
    waiting = policy.ask()
    policy.tell(waiting, reward=0.5)
    policy.save(tmp_path / "a")
    again = cb.load(tmp_path / "a")
    for each in (policy, again):
        each.tell(each.outstanding[0], cost=0.2)
    assert torch.equal(policy.ask().x, again.ask().x)
    assert torch.equal(policy.multiplier, again.multiplier)


def test_files_of_other_formats_and_kinds_are_refused_by_name(tmp_path):
    policy, _, _ = prepared()
    path = tmp_path / "a.ckpt"
    policy.save(path)
    line, _, body = path.read_bytes().partition(b"\n")
    assert line.startswith(b"cbandit checkpoint 9 policy ")
    for content, words in [
        (
            b"cbandit checkpoint 1\n" + body,
            "is a checkpoint of cbandit 0.1, which this",
        ),
        (line.replace(b" 9 ", b" 8 ") + b"\n" + body, "of another version of cbandit"),
        (line.replace(b"policy", b"polic\xff") + b"\n" + body, "checksum fails"),
    ]:
        path.write_bytes(content)
        for call in (lambda: cb.load(path), lambda: policy.save(path)):
            with pytest.raises(cb.CheckpointError, match=words):
                call()
        assert path.read_bytes() == content
    write(tmp_path / "run", "simulation", {})
    with pytest.raises(
        cb.CheckpointError,
        match=r"of a simulation, not of a policy: cb.simulate\(policy, .* goes on",
    ):
        cb.load(tmp_path / "run")


SETS = {
    "points": lambda: cb.Finite(torch.linspace(0, 1, 600).unsqueeze(-1).expand(-1, 3)),
    "few": lambda: cb.Finite(torch.linspace(0, 1, 20).double().unsqueeze(-1)),
    "grid": lambda: cb.ProductGrid([torch.linspace(0, 1, 30).double()] * 2),
    "box": lambda: cb.Box([0.0, 0.0], [1.0, 1.0]),
    "names": lambda: cb.Space(n=cb.Int(1, 30, log=True), kind=cb.Category("a", "b")),
    "contexts": lambda: cb.Space(kind=cb.Category("a", "b"), load=cb.Context(2)),
}


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("name", SETS)
def test_a_checkpoint_without_the_set(tmp_path, name, trials):
    made, path = SETS[name], tmp_path / "small"
    actions, more = made(), {}
    if name == "contexts":
        more = {"context": torch.tensor([0.3, 0.7]).double()}
    gp = cb.GP.default(actions)
    policy = cb.RPOL(actions, reward=gp, costs=gp, trials=trials, explore=cb.UCB(1.0))
    value = torch.full(policy.batch_shape, 0.25, dtype=torch.float64)
    for _ in range(4):
        policy.tell(policy.ask(**more), reward=value, cost=-value)
        value = value + 0.1
    waits = policy.ask(**more)
    policy.save(path, actions=False)
    other = cb.load(path, actions=made())
    for each in (policy, other):
        each.tell(waits.id, reward=value, cost=value)
        for _ in range(2):
            each.tell(each.ask(**more), reward=value, cost=-value)
    pairs = zip(policy.history().items(), other.history().items(), strict=True)
    for (column, one), (_, two) in pairs:
        if column not in ("id", "asked", "told") and one.dtype.kind == "f":
            assert one.equals(two), column


def test_a_checkpoint_without_the_set_takes_that_set_alone(tmp_path):
    points = torch.rand(20_000, 8, generator=torch.Generator().manual_seed(0)).double()
    policy = cb.GPUCB(cb.Finite(points), reward=cb.GP.default(cb.Finite(points)))
    for _ in range(3):
        policy.tell(policy.ask(), reward=0.5)
    path = tmp_path / "small"
    policy.save(path, actions=False)
    assert path.stat().st_size < 200_000  # points alone take 1.3 MB
    with pytest.raises(cb.CheckpointError, match=r"load\(path, actions=\.\.\.\)"):
        cb.load(path)
    other = points.clone()
    other[-1, -1] += 1e-12
    for wrong in (cb.Finite(other), cb.Finite(points[:-1]), cb.Box([0.0], [1.0])):
        with pytest.raises(cb.CheckpointError, match=r"another set"):
            cb.load(path, actions=wrong)
    assert cb.load(path, actions=cb.Finite(points)).t == 3
    by_column = points.T.contiguous().T  # as a table's numbers lie in memory
    assert cb.load(path, actions=cb.Finite(by_column)).t == 3
    policy.save(path)
    with pytest.raises(cb.CheckpointError, match=r"another set"):
        cb.load(path, actions=cb.Finite(other))
    assert cb.load(path, actions=cb.Finite(points)).t == 3
    with pytest.raises(cb.CBanditError, match=r"actions must be a cb\.Finite"):
        cb.load(path, actions=points)
