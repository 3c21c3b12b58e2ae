"""Run the quick part of the tests in several environments, built one after the other.

``make matrix`` runs it. On every Python found the pinned versions, and on the oldest
one also the lowest versions that ``pyproject.toml`` allows. On Linux the package
index's torch is a CUDA build: gigabytes each, removed again unless ``--keep`` is given.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from places import ROOT

# old releases, beside the newest of what they use, warn of each other
QUIET = ["-W", "ignore::DeprecationWarning"]
QUICK = "not slow and not dist and not data"
CHECKERS = ("mypy", "ruff", "pandas-stubs", "scipy-stubs")  # no test runs them
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
WHAT = (
    "import platform, torch; cuda = torch.version.cuda or 'no'; "
    "print(f'Python {platform.python_version()}, torch {torch.__version__}, built for "
    "{cuda} CUDA, {torch.cuda.device_count()} devices')"
)


def lowest(project: Path) -> Iterator[str]:
    """The lower end of each range that a project's file states."""
    table = tomllib.loads(project.read_text())["project"]
    optional = table["optional-dependencies"]
    for each in [
        *table["dependencies"],
        *(one for all in optional.values() for one in all),
    ]:
        if not each.startswith(table["name"]):
            ranged = r"([\w-]+)(?:\[\w+\])?>=([\w.]+)(?:,<[\w.]+)?(;.*)?"
            found = re.fullmatch(ranged, each)
            if found is None:
                raise SystemExit(f"{project}: {each!r} states no lower end")
            if found[1] not in CHECKERS:
                yield f"{found[1]}=={found[2]}{found[3] or ''}"


def pythons(named: list[str]) -> list[str]:
    """The Pythons to use, the oldest first: those named, or all on the path."""
    here = (shutil.which(each) for each in named or PYTHONS)
    return [each for each in here if each is not None and _works(each)]


def _works(python: str) -> bool:
    asked = [python, "-c", "import ensurepip, venv"]
    return subprocess.run(asked, capture_output=True).returncode == 0


def tried(
    name: str, python: str, constraints: Path, home: Path, options: list[str]
) -> str:
    """Build one environment and run the tests there; what came of it, in words."""
    folder, log = home / name, home / f"{name}.log"
    inside = folder / "bin" / "python"
    pip = [
        inside,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-c",
        constraints,
    ]
    begun = time.monotonic()
    with open(log, "w") as out:

        def run(*command: str | Path) -> bool:
            done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out)
            return done.returncode == 0

        built = (
            run(python, "-m", "venv", "--clear", folder)
            and run(*pip, "hatchling", "editables")
            and run(*pip, "--no-build-isolation", "--editable", ".[dev]")
        )
        if not built:
            return f"{name}: cannot be built, see {log}"
        made = time.monotonic()
        passed = run(inside, "-m", "pytest", "-q", "-m", QUICK, *options)
    of = subprocess.run([inside, "-c", WHAT], capture_output=True, text=True)
    last = log.read_text().rstrip().rpartition("\n")[2]
    word = "passed" if passed else f"FAILED, see {log}"
    return (
        f"{name}: {of.stdout.strip()}: {word}: {last} "
        f"(built in {made - begun:.0f} s, ran {time.monotonic() - made:.0f} s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="environments; all unless given")
    parser.add_argument("--python", action="append", default=[], metavar="PATH")
    parser.add_argument("--home", type=Path, help="where to build; a temporary folder")
    parser.add_argument("--keep", action="store_true", help="remove no environment")
    parser.add_argument("--pytest", default="", help="options for pytest")
    parser.add_argument("--list", action="store_true", help="say which there are")
    given = parser.parse_args()

    found = pythons(given.python)
    if not found:
        raise SystemExit(f"none of {', '.join(given.python or PYTHONS)} is here")
    home = given.home or Path(tempfile.mkdtemp(prefix="matrix-"))
    home.mkdir(parents=True, exist_ok=True)
    ends = home / "lowest.txt"
    ends.write_text("".join(f"{line}\n" for line in lowest(ROOT / "pyproject.toml")))
    rows = {"lowest": (found[0], ends, QUIET)}
    pins = ROOT / "constraints.txt"
    rows |= {f"pinned-{Path(each).name}": (each, pins, []) for each in found}
    unknown = [each for each in given.names if each not in rows]
    if unknown:
        raise SystemExit(f"no environment {', '.join(unknown)}; {', '.join(rows)}")
    results = []
    for name in given.names or rows:
        if given.list:
            print(name)
            continue
        python, constraints, quiet = rows[name]
        options = [*quiet, *given.pytest.split()]
        results.append(tried(name, python, constraints, home, options))
        print(results[-1], flush=True)
        if not given.keep:
            shutil.rmtree(home / name, ignore_errors=True)
    if any(": passed: " not in each for each in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
