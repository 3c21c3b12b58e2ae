"""Checkpoints: whole or not at all, read back only if they are ours."""

from __future__ import annotations

import pytest
import torch
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
