"""Experiments write their results whole, and go on after a stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
import torch
from inside import carry_out, find, settings_of_experiment
from places import COMMON, ROOT
from terminal import SMALL, call, command, complaint

import cbandit as cb


def test_reproduce_writes_all_it_says(capsys, tmp_path):
    out = tmp_path / "out"
    small = ["reproduce", "zhou-synthetic", *SMALL, "--out", out]
    code, text, _ = call(capsys, *small, figures=True)
    assert code == 0
    assert "CKB-Rand" in text
    assert "in place of" not in text
    for name in ("account.png", "averages.png"):
        assert str(out / name) in text
    names = {each.name for each in out.iterdir()}
    assert names == {
        "account.png",
        "averages.png",
        "config.toml",
        "means.parquet",
        "rounds.parquet",
        "summary.json",
    }
    summary = json.loads((out / "summary.json").read_text())
    assert summary["horizon"] == 40
    assert summary["trials"] == 3
    assert summary["versions"]["torch"] == torch.__version__
    for name in ("CKB-UCB", "CKB-TS", "CKB-Rand"):
        each = summary["policies"][name]
        assert each["status"] == "complete"
        assert each["seconds_per_round"] > 0
        for metric in (
            "regret",
            "stochastic_regret",
            "soft_violation",
            "hard_violation",
            "rounds_in_violation",
        ):
            assert set(each[metric]) == {"mean", "sem"}
    means = pd.read_parquet(out / "means.parquet")
    last = means[(means.policy == "CKB-TS") & (means.metric == "regret")].iloc[-1]
    assert last.t == 40
    ts = summary["policies"]["CKB-TS"]["regret"]
    assert last["mean"] == pytest.approx(ts["mean"], rel=1e-12)
    assert last["sem"] == pytest.approx(ts["sem"], rel=1e-12)
    rounds = pd.read_parquet(out / "rounds.parquet")
    each = rounds[rounds.policy == "CKB-TS"]
    assert len(rounds) == len(summary["policies"]) * 3 * 40
    assert each.regret[each.t == 40].mean() == pytest.approx(ts["mean"], rel=1e-12)
    assert f"rounds.parquet: {len(rounds)} rows, one a policy, trial and round" in text
    assert (out / "account.png").read_bytes().startswith(b"\x89PNG")

    # the settings file is all that is needed to do it again
    again = tmp_path / "again"
    code, _, _ = call(capsys, "run", out / "config.toml", "--out", again)
    assert code == 0
    assert pd.read_parquet(again / "rounds.parquet").equals(rounds)

    (out / "account.png").unlink()
    code, text, _ = call(capsys, "plot", out)
    assert code == 0
    assert (out / "account.png").exists()
    assert "averages.png" in text

    # a folder that is complete is not run again
    before = (out / "summary.json").stat().st_mtime_ns
    code, text, _ = call(
        capsys, "reproduce", "zhou-synthetic", *SMALL, "--out", out, "--resume"
    )
    assert code == 0
    assert "CKB-Rand" in text
    assert (out / "summary.json").stat().st_mtime_ns == before
    assert "other settings: " in complaint(
        capsys, "reproduce", "zhou-synthetic", "--trials", 4, "--out", out, "--resume"
    )
    # those of the same settings are computed again, and it is said
    for extra in ([], ["--resume"]):
        _, text, _ = call(
            capsys, "reproduce", "zhou-synthetic", *SMALL, "--out", out, *extra
        )
        assert ("in place of earlier results" in text) == (not extra)
    # figures of somebody's own are none of these
    (out / "mine.png").write_bytes(b"")
    for extra in ([], ["--resume"]):
        _, text, _ = call(capsys, *small, *extra, figures=True)
        assert f"figures: {out / 'account.png'}, {out / 'averages.png'}" in text
        assert "mine" not in text
    before = (out / "summary.json").stat().st_mtime_ns
    # nor overwritten by another
    line = complaint(capsys, "reproduce", "zhou-synthetic", "--trials", 4, "--out", out)
    assert "results of other settings" in line
    assert (out / "summary.json").stat().st_mtime_ns == before


def test_folders_that_somebody_has_been_at(capsys, tmp_path):
    config, out = tmp_path / "größe 1.toml", tmp_path / "out put ü"
    settings = settings_of_experiment(
        "zhou-synthetic", trials=1, horizon=5, policies=["CKB-UCB"]
    )
    config.write_text(settings.toml(), "utf-8-sig")  # as some editors write it
    again = ["run", config, "--out", out, "--resume"]
    assert call(capsys, *again)[0] == 0
    whole = (out / "summary.json").read_text()
    for broken in ("junk", "[]", '{"policies": 3}', '{"policies": {"CKB-UCB": {}}}'):
        (out / "summary.json").write_text(broken)
        line = complaint(capsys, *again)
        assert "summary.json" in line
        assert "without that file --resume computes it all again" in line
    (out / "summary.json").write_text(whole)
    for name, commands in (
        ("means.parquet", [again, ["plot", out]]),
        ("rounds.parquet", [again, ["compare", out]]),
    ):
        (out / name).write_text("junk")
        for words in commands:
            line = complaint(capsys, *words)
            assert f"{name} is not one of ours, or broken" in line
            assert "--resume computes it all again" in line
        (out / name).unlink()
        assert call(capsys, *again)[0] == 0
        assert len(pd.read_parquet(out / name)) > 0


@pytest.mark.slow
@pytest.mark.dist
def test_workers_share_the_trials_and_change_nothing(capsys, tmp_path):
    few = ["reproduce", "zhou-synthetic", *SMALL, "--policies", "CKB-UCB", "--out"]
    assert call(capsys, *few, tmp_path / "1")[0] == 0
    shared = command(*few, tmp_path / "2", "--workers", 2)
    _, said = shared.communicate(timeout=600)
    assert shared.returncode == 0, said
    one, two = (pd.read_parquet(tmp_path / w / "rounds.parquet") for w in "12")
    pd.testing.assert_frame_equal(one, two, rtol=1e-9, atol=1e-9)


def test_ctrl_c_leaves_a_folder_to_go_on_with(capsys, tmp_path):
    out = tmp_path / "out"
    few = ["reproduce", "zhou-synthetic", "--trials", "2", "--policies", "CKB-UCB"]
    few += ["--horizon", "700", "--out", str(out)]
    script = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(COMMON)!r})\n"
        "from inside import after_round, main\n"
        "after_round(123, lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        f"main({few!r})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
        timeout=120,
    )
    assert ended.returncode == 130, ended.stderr
    assert "--resume" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (out / "checkpoints" / "CKB-UCB.ckpt").exists()
    assert "unfinished" in complaint(capsys, *few)
    code, _, _ = call(capsys, *few, "--resume")
    assert code == 0
    whole = tmp_path / "whole"
    few[few.index(str(out))] = str(whole)
    assert call(capsys, *few)[0] == 0
    one, two = (pd.read_parquet(each / "rounds.parquet") for each in (out, whole))
    assert one.equals(two)


def broken(problem, task):
    raise cb.CBanditError("no such luck")


def cut_off(problem, task):
    raise RuntimeError("power cut")


def changed(**policies):
    """zhou-synthetic with other policies."""
    known = find("zhou-synthetic")
    return replace(known, policies={"CKB-Rand": known.policies["CKB-Rand"], **policies})


def test_a_policy_that_fails_does_not_take_the_others_along(tmp_path):
    experiment, out = changed(Broken=broken), tmp_path / "out"
    settings = experiment.settings(trials=3, horizon=40)
    found = carry_out(experiment, settings, out, progress=False)
    said = {name: each["status"] for name, each in found["policies"].items()}
    assert said == {"Broken": "failed: no such luck", "CKB-Rand": "complete"}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["policies"]["Broken"] == {"status": "failed: no such luck"}
    assert (out / "runs" / "CKB-Rand").is_dir()  # kept for --resume
    alone = replace(experiment, policies={"Broken": broken})
    with pytest.raises(cb.CBanditError, match=r"^Broken failed: no such luck$"):
        carry_out(alone, alone.settings(), tmp_path / "alone", progress=False)


def test_a_crash_between_policies_keeps_the_finished_ones(tmp_path):
    crashing, out = changed(Later=cut_off), tmp_path / "out"
    settings = crashing.settings(trials=2, horizon=20)
    with pytest.raises(RuntimeError, match="power cut"):
        carry_out(crashing, settings, out, progress=False)
    kept = out / "runs" / "CKB-Rand" / "run.ckpt"
    begun = kept.stat().st_mtime_ns
    mended = changed(Later=find("zhou-synthetic").policies["CKB-UCB"])
    played = []

    def noted(problem, task):
        assert kept.stat().st_mtime_ns == begun
        played.append(task.policy)
        return mended.policies[task.policy](problem, task)

    counting = replace(mended, policies=dict.fromkeys(mended.policies, noted))
    found = carry_out(counting, settings, out, resume=True, progress=False)
    assert played == ["Later"]
    assert {e["status"] for e in found["policies"].values()} == {"complete"}
    assert not (out / "runs").exists()
    assert signal.getsignal(signal.SIGINT) is not None


HOLDER = """
import sys, time
from pathlib import Path
from inside import files
with files.locked(Path(sys.argv[1]), 0.0, "taken"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(os.name == "nt", reason="locks are Unix's")
def test_one_process_at_a_time_is_at_work_in_a_folder(tmp_path):
    experiment, out, met = changed(), tmp_path / "out", []

    def twice(problem, task):
        with pytest.raises(cb.CBanditError, match="another process is at work on") as e:
            carry_out(experiment, settings, out, resume=True, progress=False)
        met.append(str(e.value))
        return find("zhou-synthetic").policies["CKB-Rand"](problem, task)

    experiment = replace(experiment, policies={"CKB-Rand": twice})
    settings = experiment.settings(trials=2, horizon=20)
    out.mkdir()
    command = [sys.executable, "-W", "ignore", "-c", HOLDER, str(out)]
    paths = os.pathsep.join(map(str, [COMMON, ROOT, ROOT / "kernels"]))
    talk = {"stdout": subprocess.PIPE, "env": {**os.environ, "PYTHONPATH": paths}}
    with subprocess.Popen(command, **talk) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(cb.CBanditError, match="another process is at work on"):
            carry_out(experiment, settings, out, progress=False)
        assert list(out.iterdir()) == []
        holder.kill()
    found = carry_out(experiment, settings, out, progress=False)
    assert found["policies"]["CKB-Rand"]["status"] == "complete"
    assert str(out) in met[0]
