"""The benchmark of a continuous round at toy size; its check can fail."""

from __future__ import annotations

import json

import pytest

from cbandit.bench import box as bench_box


@pytest.mark.slow
def test_rows_and_the_check(monkeypatch):
    row = bench_box.measure(2, 12, 1)
    assert row["ok"]
    assert row["climbs"] > 0
    assert 0 <= row["failed"] <= row["climbs"]
    machine = {"processor": "any", "threads": 1, "torch": "2"}
    result = {"bench": "box", "quick": True, "machine": machine}
    result |= {"rows": [row], "ok": row["ok"]}
    assert json.loads(json.dumps(result)) == result
    assert f"{row['failed']} of {row['climbs']}" in bench_box.table(result)
    monkeypatch.setattr(bench_box, "SHORT", -1.0)
    assert not bench_box.measure(2, 12, 1)["ok"]
