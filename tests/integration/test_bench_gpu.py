"""The GPU's benchmark: silent without one, and run whole at toy size anywhere."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from inside import Swept

from benchmarks.common import report
from benchmarks.common.rivals import Effort
from benchmarks.speed import gpu

pytest.importorskip("triton")

# one process measures, for all tests
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("toy gpu")]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOY = gpu.Sizes(
    device=DEVICE,
    copy=1 << 10,
    matrix=32,
    pairs=(4096, 8),
    grids=((7, 6, 5), (9, 8)),
    frees=(150, 100),
    dim=2,
    distinct=(12, 9),
    sample=40,
    rounds=2,
    warm=1,
    turns=1,
    rival_distinct=9,
    effort=Effort(
        subset=50,
        chunks=(40, 60),
        batches=(1, 10),
        forms=("inverse factor",),
        together=(True,),
        fast=(True,),
    ),
    trials=3,
    horizon=4,
    solves=(5,),
    blocks=(64,),
)


@pytest.fixture(scope="module")
def toy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Swept, "BACKEND", "triton")
        yield gpu.measure(TOY)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    kept = tmp_path / "gpu.json"
    done = subprocess.run(
        [sys.executable, gpu.__file__, "--json", str(kept)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "gpu: no CUDA device here, so nothing was measured\n"
    assert json.loads(kept.read_text())["rows"] == []


def test_every_check_holds_and_the_result_is_json(toy):
    assert [c for row in toy for c in row["checks"] if not c["ok"]] == []
    result = report.result_of(gpu.__file__, False, toy)
    assert json.loads(json.dumps(result)) == result


def test_every_part_is_there(toy):
    text = report.table(report.result_of(gpu.__file__, False, toy))
    for wanted in (
        "copy",
        "matrix product 32",
        "kernel values in registers, d = 2, float64",
        "grid 7 x 6 x 5, u = 12, float32",
        "free-form 150 x 2, u = 12, float32",
        "free-form 100 x 2, u = 9, float64",
        "Cholesky by hand, inverse factor, chunks of",
        "BoTorch, one model, q = ",
        "zhou-synthetic, CKB-UCB, 3 trials",
        "u = 5, on the device",
        "64 actions, u = ",
        "checks of the answers: all hold",
    ):
        assert wanted in text
    passes = [row for row in toy if row.get("share") is not None]
    assert len(passes) == 2 * 2 * 4
    for row in passes:
        assert row["ratio"] == pytest.approx(row["ms"] / row["floor_ms"])
        assert row["share"] == pytest.approx(1 / row["ratio"])


def test_a_wrong_posterior_fails_its_check(monkeypatch):
    monkeypatch.setattr(Swept, "BACKEND", "triton")
    case, _ = gpu.case_of(100, 2, 9, torch.float64, DEVICE)
    case.round()
    assert all(check["ok"] for check in case.compare(40).checks)
    first = next(iter(case.data.total))
    case.data.total[first] = case.data.total[first] + 1e-6  # it was told otherwise
    failed = [c["name"] for c in case.compare(40).checks if not c["ok"]]
    assert failed == ["largest difference of the mean"]


def test_what_does_not_fit_or_comes_late_is_skipped():
    ceilings = gpu.Ceilings(1.0, {}, {})
    tight = gpu.Sizes(device=DEVICE, memory=1000)
    rows, case = gpu.one_round(tight, (9, 8), 9, torch.float64, ceilings)
    assert case is None
    assert "does not fit" in rows[0]["note"]
