"""The command line, and code, called from within and in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from inside import main
from places import COMMON, ROOT

SMALL = ["--trials", "3", "--horizon", "40"]


def call(capsys, *arguments, figures=False):
    """Exit code, what was printed, and what was complained about.

    Experiments draw figures only where a test looks at them: they take seconds.
    """
    try:
        main(undrawn(arguments) if not figures else [*map(str, arguments)])
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


def undrawn(arguments):
    """The words of a command that draws no figures."""
    words = [str(each) for each in arguments]
    plays = words[:1] in (["run"], ["reproduce"]) and "--help" not in words
    return [*words, "--no-figures"] if plays else words


def complaint(capsys, *arguments):
    """The one line that a user's error gives."""
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert "Traceback" not in err
    return err


def command(*arguments, **how):
    """The command line in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "cbandit", *undrawn(arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def printed(code, **environment):
    """What code prints in a process of its own; a variable that is None is not set."""
    paths = [str(COMMON), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={name: text for name, text in variables.items() if text is not None},
    )
    return done.stdout.strip()
