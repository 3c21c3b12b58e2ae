"""A flipped bit in a file is an error, never a figure."""

from __future__ import annotations

import random
import shutil

import pytest
from inside import main, read_boxes, read_curves, read_rounds, read_summary, reproduced
from midway import prepared
from worlds import Uniform, table

import cbandit as cb

FLIPS = 8  # a digest covers every bit alike


def flipped(whole: bytes, seed: int):
    """Copies of ``whole`` with one bit flipped: its first and last, others anywhere."""
    rng, size = random.Random(seed), 8 * len(whole)
    for bit in [0, size - 1, *(rng.randrange(size) for _ in range(FLIPS - 2))]:
        out = bytearray(whole)
        out[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(out)


def refused(path, call):
    """Whether ``call`` is refused after each flip, and not before."""
    whole = path.read_bytes()
    call()
    for bit, content in flipped(whole, 18):
        path.write_bytes(content)
        with pytest.raises(cb.CBanditError) as error:
            call()
        assert path.name in str(error.value), bit
        assert path.read_bytes() == content
    path.write_bytes(whole)
    call()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of an experiment that has boxes."""
    out = tmp_path_factory.mktemp("results") / "shi"
    few = {"trials": 2, "horizon": 25, "policies": ["EpochPenalty", "OCO"]}
    reproduced(out, "shi-small-feasible", **few)
    return out


def test_a_policy(tmp_path):
    policy, _, _ = prepared(trials=2)
    policy.save(tmp_path / "policy.ckpt")
    refused(tmp_path / "policy.ckpt", lambda: cb.load(tmp_path / "policy.ckpt"))


def test_a_simulation(tmp_path):
    problem, path = table(3, 2), tmp_path / "a.ckpt"
    policy = Uniform(problem, trials=3, m=2)
    cb.simulate(policy, problem, 30, path, progress=False)
    again = Uniform(problem, trials=3, m=2)
    refused(path, lambda: cb.simulate(again, problem, 30, path, progress=False))


def test_a_run(tmp_path):
    problem = table(3, 2)
    run = cb.simulate(Uniform(problem, trials=3, m=2), problem, 30, progress=False)
    run.save(tmp_path)
    (path,) = tmp_path.iterdir()
    refused(path, lambda: cb.Run.load(tmp_path))


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("summary.json", read_summary),
        ("summary.json", read_curves),
        ("rounds.parquet", read_rounds),
        ("rounds.parquet", read_summary),
        ("means.parquet", read_curves),
        ("means.parquet", read_summary),
        ("boxes.parquet", read_boxes),
        ("boxes.parquet", read_summary),
    ],
)
def test_results(name, reader, results):
    refused(results / name, lambda: reader(results))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("resume", "summary.json"),
        ("resume", "config.toml"),
        ("resume", "rounds.parquet"),
        ("plot", "summary.json"),
        ("plot", "config.toml"),
        ("plot", "means.parquet"),
        ("compare", "config.toml"),
        ("compare", "rounds.parquet"),
    ],
)
def test_the_command_line(command, name, results, capsys):
    path, whole = results / name, (results / name).read_bytes()
    words = ["run", str(results / "config.toml"), "--out", str(results), "--resume"]
    if command != "resume":
        words = [command, str(results)]
    for bit, content in list(flipped(whole, 19))[:10]:
        path.write_bytes(content)
        with pytest.raises(SystemExit) as ended:
            main(words)
        said = capsys.readouterr().err
        assert ended.value.code == 2, bit
        assert said.count("\n") == 1
        assert name in said
        assert path.read_bytes() == content
    path.write_bytes(whole)


@pytest.mark.slow
def test_a_finished_task_is_not_taken_as_complete(results, tmp_path, capsys):
    """``--resume`` refuses a flipped run, and computes one that was half written."""
    few = {"trials": 2, "horizon": 9, "policies": ["CKB-UCB", "CKB-Rand"]}
    out = tmp_path / "out"
    whole = reproduced(tmp_path / "whole", "zhou-synthetic", **few)
    problem = cb.problems.zhou_synthetic(trials=2)
    run = cb.simulate(Uniform(problem, trials=2), problem, 9, progress=False)
    out.mkdir()
    shutil.copy(tmp_path / "whole" / "config.toml", out)
    done = out / "runs" / "CKB-UCB"
    run.save(done)
    (path,) = done.iterdir()
    content = path.read_bytes()
    for bit, broken in list(flipped(content, 20))[:5]:
        path.write_bytes(broken)
        with pytest.raises(SystemExit) as ended:
            main(["run", str(out / "config.toml"), "--out", str(out), "--resume"])
        assert ended.value.code == 2, bit
        assert f"{path} is" in capsys.readouterr().err
    path.unlink()  # as a kill before the file was there leaves it
    again = reproduced(out, "zhou-synthetic", resume=True, **few)
    for name, each in whole["policies"].items():
        assert again["policies"][name]["regret"] == each["regret"]
