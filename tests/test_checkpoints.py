"""Checkpoints: whole or not at all, read back only if they are ours."""

from __future__ import annotations

import pytest
import torch
from inside import write
from midway import prepared, same_future

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
    assert line.startswith(b"cbandit checkpoint 2 policy ")
    for content, words in [
        (b"cbandit checkpoint 1\n" + body, "written by cbandit 0.1; this version cann"),
        (line.replace(b" 2 ", b" 3 ") + b"\n" + body, "not a checkpoint of this versi"),
        (line.replace(b"policy", b"polic\xff") + b"\n" + body, "checksum fails"),
    ]:
        path.write_bytes(content)
        for call in (lambda: cb.load(path), lambda: policy.save(path)):
            with pytest.raises(cb.CheckpointError, match=words):
                call()
        assert path.read_bytes() == content
    write(tmp_path / "run", "simulation", {})
    with pytest.raises(cb.CheckpointError, match="of a simulation, not of a policy"):
        cb.load(tmp_path / "run")
