"""The benchmark of a continuous round at toy size; its check can fail."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from inside import CANDIDATES

from benchmarks.common import report
from benchmarks.speed import box, climbs

TOY = box.Sizes(dims=(2,), distinct=12, rounds=1, seeds=1, reaching=2)


@pytest.mark.slow
def test_rows_and_the_check():
    rows = box.measure(TOY)
    ours = rows[0]
    assert ours["checks"][0]["ok"]
    assert ours["climbs"] > 0
    assert 0 <= ours["failed"] <= ours["climbs"]
    assert [row["ratio"] for row in rows[1:3]] == [
        pytest.approx(row["ms"] / ours["ms"]) for row in rows[1:3]
    ]
    result = report.result_of(box.__file__, True, rows)
    assert json.loads(json.dumps(result)) == result
    assert f"{ours['failed']} of {ours['climbs']}" in report.table(result)
    strict = box.beside(replace(TOY, short=-1.0), 2)
    assert not strict[0]["checks"][0]["ok"]


def test_theirs_climbs_from_as_many_points_as_ours():
    assert box.RAW == CANDIDATES


@pytest.mark.slow
@pytest.mark.parametrize("name", box.REACHING)
def test_the_small_feasible_set_is_found(name):
    row = box.reach(name, rounds=60)
    assert all(check["ok"] for check in row["checks"])
    axis = torch.linspace(0, 6, 1201, dtype=torch.float64)
    x = torch.cartesian_prod(axis, axis)
    cost = box.cost_of(x)
    kept = box.reward_of(x)[cost <= 0]
    assert row["best"] <= box.reward_of(x)[cost <= 0.01].max() + 0.01
    assert pytest.approx(kept.max().item(), abs=0.01) == box.OPTIMUM


@pytest.mark.slow
def test_climbs_beside_l_bfgs_b():
    rows = climbs.measure(climbs.QUICK)
    gaps = {row["what"]: row["gaps"] for row in rows if "gaps" in row}
    assert len(gaps) == 4
    assert all(0 <= gap <= 1e-6 for each in gaps.values() for gap in each)
    assert "Climbs(made=" in report.table(report.result_of(climbs.__file__, True, rows))
