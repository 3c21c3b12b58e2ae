"""Processes that share an experiment end with it, however it ends."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psutil
import pytest
from inside import read
from killed import killed
from terminal import command

FEW = ["reproduce", "zhou-synthetic", "--trials", 2, "--policies", "CKB-UCB"]

pytestmark = [pytest.mark.slow, pytest.mark.dist]


def begun(out, workers):
    """An experiment under way, and the processes that belong to it."""
    shared = command(*FEW, "--horizon", 10**6, "--out", out, "--workers", workers)
    until(lambda: (out / "checkpoints").exists(), 300)
    time.sleep(2)  # all are at work, or about to be
    return shared, psutil.Process(shared.pid).children(recursive=True)


def until(true, seconds):
    last = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < last
        time.sleep(0.05)


def ours(process):
    """Whether a process is one of ours; Ray's idle agents outlive it by a minute."""
    with suppress(psutil.NoSuchProcess):  # it may end while it is asked
        return process.is_running() and "Agent" not in process.name()
    return False


def words(process):
    """The command line of a process, empty where it has ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGINT, 2), (signal.SIGTERM, "ray")]
)
def test_a_signal_to_the_parent_ends_all_and_leaves_checkpoints(
    tmp_path, number, workers
):
    shared, processes = begun(tmp_path / "out", workers)
    shared.send_signal(number)
    _, said = shared.communicate(timeout=300)
    assert shared.returncode == 128 + number, said
    assert "--resume" in said
    assert "Traceback" not in said
    if workers == 2:
        assert "leaked" not in said
    until(lambda: not any(map(ours, processes)), 30)
    for path in (tmp_path / "out" / "checkpoints").iterdir():
        assert path.suffix == ".ckpt"
        assert read(path, "simulation", dict)["tape"].rounds > 0


def test_workers_end_when_their_parent_is_killed(tmp_path):
    shared, processes = begun(tmp_path / "out", 2)
    assert len(processes) >= 3
    shared.kill()
    shared.communicate(timeout=60)
    until(lambda: not any(map(ours, processes)), 30)


def test_a_worker_that_is_killed_is_told_in_a_line(tmp_path):
    shared, processes = begun(tmp_path / "out", 2)
    workers = [each for each in processes if "spawn_main" in words(each)]
    assert len(workers) == 2
    os.kill(workers[0].pid, signal.SIGKILL)
    _, said = shared.communicate(timeout=300)
    assert shared.returncode == 2, said
    assert "a worker was killed" in said
    assert "--resume" in said
    assert "Traceback" not in said
    until(lambda: not any(map(ours, processes)), 30)


def test_killed_with_all_its_workers_it_ends_as_if_it_never_had_been(tmp_path):
    done, compared = killed(tmp_path, 1, seed=9)  # amid the run
    assert done == compared == 1
