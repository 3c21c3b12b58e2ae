"""Small work runs on one thread: ``one_thread.py``, in a process of its own.

Other tests load libraries with pools of their own, and set their numbers.
"""

from __future__ import annotations

import subprocess
import sys

from places import COMMON, ROOT

CASES = COMMON / "one_thread.py"


def test_small_work_runs_on_one_thread():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", str(CASES)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stdout
    assert "passed" in run.stdout
