"""An experiment that is killed again and again, workers and all, and goes on.

As a script it is killed so many times, and says what came of it: ``killed.py 100``.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
from terminal import command

FEW = ["reproduce", "zhou-synthetic", "--trials", 4, "--horizon", 400, "--workers", 2]
FEW += ["--policies", "CKB-UCB,CKB-Rand", "--out"]


def tables(folder):
    """What must be the same, to the bit, however often it was killed."""
    names = ("rounds.parquet", "means.parquet")
    return [pd.read_parquet(folder / name) for name in names]


def started(folder, resume):
    """The experiment under way, in a process group of its own."""
    more = ["--resume"] if resume else []
    return command(*FEW, folder, *more, start_new_session=True)


def whole(folder, resume=False):
    """Play it undisturbed; after how long its workers began, and it ended."""
    start = time.monotonic()
    process = started(folder, resume)
    while process.poll() is None and not (folder / "checkpoints").exists():
        time.sleep(0.05)
    begun = time.monotonic() - start
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return begun, time.monotonic() - start


def killed(home, times, seed, say=lambda text: None):
    """Kill it so many times, at random once it has begun; compare when it ends.

    Returns how many kills met it at work, and how often it was compared.
    """
    dice, done, compared = random.Random(seed), 0, 0
    begun, lasted = whole(home / "uncut")
    wanted, out = tables(home / "uncut"), home / "cut"
    while done < times:
        process = started(out, out.exists())
        group = process.pid
        time.sleep(slept := dice.uniform(begun, lasted))
        alive = [each for each in psutil.process_iter() if _of(each, group)]
        if process.poll() is None:
            for each in alive:
                with suppress(psutil.NoSuchProcess):  # it may just have ended
                    each.kill()
            done += 1
        else:
            lasted = slept  # it is quicker now
        process.communicate(timeout=60)
        psutil.wait_procs(alive, timeout=60)
        assert not [each for each in alive if each.is_running()]
        if done == times or process.returncode == 0:
            whole(out, resume=True)
            for one, two in zip(tables(out), wanted, strict=True):
                pd.testing.assert_frame_equal(one, two, check_exact=True)
            assert not list(out.rglob("*.part"))
            assert not list(out.rglob(".*"))
            left = {each.name for each in out.iterdir()}
            assert left == {each.name for each in (home / "uncut").iterdir()}
            shutil.rmtree(out)
            compared += 1
        say(f"{done} kills, compared {compared} times")
    return done, compared


def _of(process, group):
    """Whether a process is of a group; a worker's tracker of semaphores is too."""
    try:
        return os.getpgid(process.pid) == group
    except ProcessLookupError:
        return False


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(killed(Path(folder), int(sys.argv[1]), 0, lambda t: print(t, flush=True)))
