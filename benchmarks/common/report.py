"""What every benchmark reports: rows with checks and goals, the machine, a table.

A script calls :func:`main`, which reads ``--quick`` and ``--json FILE``, prints the
table and ends with 1 when a check of an answer fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import torch

__all__ = [
    "Result",
    "Row",
    "check_of",
    "free_memory",
    "main",
    "name_of",
    "provenance",
    "resident",
    "result_of",
    "row_of",
    "say",
    "table",
    "this_machine",
]

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
Result = dict[str, Any]
S = TypeVar("S")


def check_of(name: str, value: float, limit: float) -> dict[str, Any]:
    """A comparison that must hold: ``value <= limit``."""
    return {"name": name, "value": value, "limit": limit, "ok": bool(value <= limit)}


def row_of(
    section: str,
    what: str,
    seconds: float | None = None,
    *,
    ours: bool = False,
    ratio: float | None = None,
    goal: tuple[str, float] | None = None,
    checks: Sequence[dict[str, Any]] = (),
    **more: Any,
) -> Row:
    """A line of the result.

    Args:
        section: the heading that it stands under.
        what: what was measured.
        seconds: how long it took.
        ours: whether the library's own time, which ``before_after.py`` compares.
        ratio: how it compares with another row; ``note`` should say which.
        goal: what ``ratio`` should be, ``(">=" or "<=", number)``.
        checks: comparisons that must hold, see :func:`check_of`.
        more: kept as given; ``note`` is printed, and ``columns`` in place of times.
    """
    met = None
    if goal is not None and ratio is not None:
        met = ratio >= goal[1] if goal[0] == ">=" else ratio <= goal[1]
    return {
        "section": section,
        "what": what,
        "ms": None if seconds is None else 1e3 * seconds,
        "ours": ours,
        "ratio": ratio,
        "goal": None if goal is None else f"{goal[0]} {goal[1]:g}",
        "met": met,
        "checks": list(checks),
        **more,
    }


def result_of(script: str, quick: bool, rows: list[Row], **more: Any) -> Result:
    """The whole result of a script's ``__file__``; ``ok`` where every check holds."""
    return {
        "bench": Path(script).stem,
        "quick": quick,
        **provenance(script),
        "rows": rows,
        "ok": all(check["ok"] for row in rows for check in row["checks"]),
        **more,
    }


def provenance(script: str, command: str | None = None) -> dict[str, Any]:
    """The command, commit, day and machine of a result of a script's ``__file__``."""
    return {
        "command": command or _this_command(script),
        "commit": _commit(),
        "date": date.today().isoformat(),
        "machine": this_machine(),
    }


def _commit() -> str | None:
    """The checkout's commit, ``+`` if files differ from it; ``None`` without git."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = [*git, "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout
        state = [*git, "status", "--porcelain", "--untracked-files=no"]
        changed = subprocess.run(state, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.strip() + ("+" if changed.stdout.strip() else "")


def _this_command(script: str) -> str:
    """The command line of a script, less the names of files that it writes."""
    words = list(sys.argv[1:])
    for option in ("--json", "--out", "--runs", "--figure"):
        if option in words[:-1]:
            words[words.index(option) + 1] = "PATH"
    return shlex.join(["python", _shown(script), *words])


def _shown(script: str) -> str:
    """The script's path, as one writes it at the root of the checkout."""
    return os.path.relpath(script, ROOT)


def this_machine() -> dict[str, Any]:
    """The processor, the CUDA device if there is one, versions that matter."""
    from importlib.metadata import version

    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            names = [
                n.split(":", 1)[1].strip() for n in lines if n.startswith("model name")
            ]
            model = names[0] if names else model
    except OSError:
        pass
    machine: dict[str, Any] = {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpytorch": version("gpytorch"),
        "botorch": version("botorch"),
    }
    if torch.cuda.is_available():
        machine |= {
            "device": torch.cuda.get_device_name(),
            "memory": torch.cuda.get_device_properties(0).total_memory,
            "cuda": torch.version.cuda,
            "triton": version("triton"),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }
    return machine


# -- as text ---------------------------------------------------------------------------


def table(result: Result) -> str:
    """A result as text, one line a row, its checks and notes beneath."""
    machine = result["machine"]
    where = machine.get("device") or f"{machine['processor']}, "
    if "device" not in machine:
        where += f"{machine['threads']} threads"
    lines = [
        f"{result['bench']}{' --quick' if result['quick'] else ''}: {where}, "
        f"torch {machine['torch']}, botorch {machine['botorch']}, {result['date']}, "
        f"commit {result['commit']}"
    ]
    section = None
    for row in result["rows"]:
        if row["section"] != section:
            section = row["section"]
            lines += ["", section]
        lines.append(_line(row))
        lines += [f"      {note}" for note in _notes(row)]
    goals = [row for row in result["rows"] if row["met"] is not None]
    met = sum(bool(row["met"]) for row in goals)
    correct = "all hold" if result["ok"] else "SOME FAILED"
    lines += ["", f"checks of the answers: {correct}"]
    if goals:
        lines.append(f"goals of speed: {met} of {len(goals)} reached")
    return "\n".join(lines)


def _line(row: Row) -> str:
    ms = ratio = goal = ""
    if row["ms"] is not None:
        ms = f"{row['ms']:,.{1 if row['ms'] >= 10 else 3}f} ms"
    if row["ratio"] is not None:
        ratio = f"{row['ratio']:,.{0 if row['ratio'] >= 100 else 2}f} x"
    if row["met"] is not None:
        reached = "reached" if row["met"] else "NOT REACHED"
        goal = f"goal {row['goal']} x: {reached}"
    columns = row.get("columns", f"{ms:>14} {ratio:>9}  {goal}")
    return f"  {row['what']:<70}{columns}".rstrip()


def _notes(row: Row) -> list[str]:
    notes = [row["note"]] if row.get("note") else []
    for check in row["checks"]:
        if check["ok"] and "columns" in row:
            continue  # they say it
        mark = "ok" if check["ok"] else "FAILED"
        limit = f"(limit {check['limit']:.2g})"
        notes.append(f"{check['name']} {check['value']:.2g} {limit} {mark}")
    return notes


def say(text: str) -> None:
    """Tell on stderr what is measured now: it may take a minute."""
    print(text, file=sys.stderr, flush=True)


def name_of(dtype: torch.dtype) -> str:
    """``"float64"`` and the like."""
    return str(dtype).removeprefix("torch.")


# -- a script --------------------------------------------------------------------------


def main(
    script: str,
    about: str | None,
    measure: Callable[[S], list[Row]],
    full: S,
    quick: S,
    argv: Sequence[str] | None = None,
    absent: str | None = None,
) -> None:
    """Measure, print the table, write the result, and end with 1 if a check failed.

    Args:
        script: the script's ``__file__``.
        about: its docstring, which ``--help`` prints.
        measure: gives the rows, for sizes such as ``full`` and ``quick``.
        full: the sizes of a whole run.
        quick: those of ``--quick``, which ends within a minute or two.
        argv: the arguments, instead of the command line's.
        absent: why nothing can be measured on this machine, if so.
    """
    parser = argparse.ArgumentParser(
        prog=f"python {_shown(script)}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the result")
    options = parser.parse_args(argv)
    if options.json is not None:
        _writable(parser, options.json)
    if absent is None:
        rows = measure(quick if options.quick else full)
        result = result_of(script, options.quick, rows)
        print(table(result))
    else:
        result = result_of(script, options.quick, [], note=absent)
        print(f"{result['bench']}: {absent}")
    if options.json is not None:
        write(options.json, result)
    if not result["ok"]:
        sys.exit(1)


def write(path: Path, result: Result) -> None:
    """Write the result under its name whole, or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(result, indent=1))
    part.replace(path)


def _writable(parser: argparse.ArgumentParser, path: Path) -> None:
    # now, and not after the ten minutes of a full run
    if path.is_dir():
        parser.error(f"{path} is a folder; --json needs a file")
    if not os.access(path.parent, os.W_OK):
        parser.error(f"{path} cannot be written: {path.parent} is no writable folder")


# -- memory ----------------------------------------------------------------------------


def resident(peak: bool) -> int:
    """Bytes resident now, or the most there ever were."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    try:
        with open("/proc/self/status") as lines:
            for line in lines:
                if line.startswith(wanted):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used


def free_memory(device: torch.device) -> int:
    """Bytes that may still be taken on the device, or of the machine's memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
