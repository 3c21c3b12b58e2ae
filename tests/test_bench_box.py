"""The benchmark of a continuous round at toy size; its check can fail."""

from __future__ import annotations

import json

import pytest
import torch
from inside import box as bench_box


@pytest.mark.slow
def test_rows_and_the_check(monkeypatch):
    row = bench_box.measure(2, 12, 1)
    assert row["ok"]
    assert row["climbs"] > 0
    assert 0 <= row["failed"] <= row["climbs"]
    machine = {"processor": "any", "threads": 1, "torch": "2"}
    result = {"bench": "box", "quick": True, "machine": machine}
    reached = bench_box.reach("CKB-UCB", rounds=2)
    result |= {"rows": [row], "reached": [reached], "ok": row["ok"]}
    assert json.loads(json.dumps(result)) == result
    assert f"{row['failed']} of {row['climbs']}" in bench_box.table(result)
    monkeypatch.setattr(bench_box, "SHORT", -1.0)
    assert not bench_box.measure(2, 12, 1)["ok"]


@pytest.mark.slow
@pytest.mark.parametrize("name", bench_box.REACHING)
def test_the_small_feasible_set_is_found(name):
    row = bench_box.reach(name, rounds=60)
    assert row["ok"]
    axis = torch.linspace(0, 6, 1201, dtype=torch.float64)
    x, y = torch.meshgrid(axis, axis, indexing="ij")
    cost = x.sin() * y.sin() + 0.95
    kept = (-x.sin() - y)[cost <= 0]
    assert row["best"] <= (-x.sin() - y)[cost <= 0.01].max() + 0.01
    assert pytest.approx(kept.max().item(), abs=0.01) == bench_box.OPTIMUM
