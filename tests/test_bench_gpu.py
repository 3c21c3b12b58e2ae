"""The GPU's benchmark: silent without one, and run whole at toy size anywhere."""

from __future__ import annotations

import json

import pytest
import torch
from inside import Swept, main
from inside import gpu as bench_gpu

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOY = bench_gpu._Sizes(
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
    peers=9,
    subset=50,
    chunks=(40, 60),
    batches=(1, 10),
    trials=3,
    horizon=4,
    solves=(5,),
    blocks=(64,),
)


@pytest.fixture(scope="module")
def toy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Swept, "BACKEND", "triton")
        yield bench_gpu._measure(TOY, DEVICE, quick=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_it_says_so_in_one_line(capsys, tmp_path):
    kept = tmp_path / "gpu.json"
    with pytest.raises(SystemExit) as done:
        main(["bench", "gpu", "--json", str(kept)])
    assert not done.value.code
    out = capsys.readouterr().out
    assert out.strip() == "bench gpu: no CUDA device here, so nothing was measured"
    assert json.loads(kept.read_text())["rows"] == []


def test_every_check_holds_and_the_result_is_json(toy):
    failed = [c for row in toy["rows"] for c in row["checks"] if not c["ok"]]
    assert failed == []
    assert toy["ok"] is True
    assert json.loads(json.dumps(toy)) == toy


def test_every_part_is_there(toy):
    text = bench_gpu.table(toy)
    for wanted in (
        "copy",
        "matrix product 32",
        "kernel values in registers, d = 2, float64",
        "grid 7 x 6 x 5, u = 12, float32",
        "free-form 150 x 2, u = 12, float32",
        "free-form 100 x 2, u = 9, float64",
        "by hand, chunks of",
        "BoTorch, q = ",
        "zhou-synthetic, CKB-UCB, 3 trials",
        "u = 5, on the device",
        "64 actions, u = ",
        "checks: all hold",
    ):
        assert wanted in text
    rounds = [row for row in toy["rows"] if row.get("share") is not None]
    assert len(rounds) == 2 * 2 * 4
    for row in rounds:
        assert row["share"] == pytest.approx(row["floor_ms"] / row["pass_ms"])


def test_a_wrong_posterior_fails_its_check(monkeypatch):
    monkeypatch.setattr(Swept, "BACKEND", "triton")
    actions = bench_gpu._actions(100, 2, torch.float64, DEVICE)[0]
    case = bench_gpu._Case(actions, "stream", torch.float64, DEVICE, 9)
    case.round()
    assert all(check["ok"] for check in case.checks(40))
    case.engine.mean[0, 0, -1] += 1e-6  # among the last, which are always looked at
    assert [c["name"] for c in case.checks(40) if not c["ok"]] == ["mean"]


def test_what_does_not_fit_or_comes_late_is_skipped(monkeypatch):
    monkeypatch.setattr(bench_gpu, "free_memory", lambda device: 1000)
    ceilings = bench_gpu._Ceilings(1.0, {}, {})
    row, case = bench_gpu._round(TOY, (9, 8), 9, torch.float64, DEVICE, ceilings)
    assert case is None
    assert "does not fit" in bench_gpu._line(row)
