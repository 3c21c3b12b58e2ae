"""What a benchmark says: rows with checks and goals, the machine, a table."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch

__all__ = [
    "check_of",
    "name_of",
    "resident",
    "result_of",
    "row_of",
    "say",
    "table",
    "this_machine",
]


def check_of(name: str, value: float, limit: float) -> dict[str, Any]:
    """A comparison that must hold: ``value <= limit``."""
    return {"name": name, "value": value, "limit": limit, "ok": bool(value <= limit)}


def row_of(
    section: str,
    what: str,
    seconds: float | None = None,
    *,
    ratio: float | None = None,
    goal: tuple[str, float] | None = None,
    checks: list[dict[str, Any]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A line of the result; ``goal`` is ``(">=" or "<=", number)`` of ``ratio``."""
    met = None
    if goal is not None and ratio is not None:
        met = ratio >= goal[1] if goal[0] == ">=" else ratio <= goal[1]
    return {
        "section": section,
        "what": what,
        "ms": None if seconds is None else 1e3 * seconds,
        "ratio": ratio,
        "goal": None if goal is None else f"{goal[0]} {goal[1]:g}",
        "met": met,
        "checks": checks or [],
        **more,
    }


def result_of(name: str, quick: bool, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What a benchmark returns; ``ok`` where every check holds."""
    return {
        "bench": name,
        "quick": quick,
        "machine": this_machine(),
        "rows": rows,
        "ok": all(check["ok"] for row in rows for check in row["checks"]),
    }


def this_machine() -> dict[str, Any]:
    """The processor, and the versions that matter."""
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
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpytorch": version("gpytorch"),
        "botorch": version("botorch"),
    }


def table(result: dict[str, Any]) -> str:
    """A result as text, one line a row, its checks and notes beneath."""
    machine = result["machine"]
    lines = [
        f"bench {result['bench']}{' --quick' if result['quick'] else ''}: "
        f"{machine['processor']}, {machine['threads']} threads, "
        f"torch {machine['torch']}, botorch {machine['botorch']}"
    ]
    section = None
    for row in result["rows"]:
        if row["section"] != section:
            section = row["section"]
            lines += ["", section]
        ms = "" if row["ms"] is None else f"{row['ms']:,.3f} ms"
        if row["ms"] is not None and row["ms"] >= 10:
            ms = f"{row['ms']:,.1f} ms"
        ratio = ""
        if row["ratio"] is not None:
            digits = 0 if row["ratio"] >= 100 else 2
            ratio = f"{row['ratio']:,.{digits}f} x"
        goal = ""
        if row["met"] is not None:
            reached = "reached" if row["met"] else "NOT REACHED"
            goal = f"goal {row['goal']} x: {reached}"
        lines.append(f"  {row['what']:<70}{ms:>14} {ratio:>9}  {goal}".rstrip())
        notes = []
        if row.get("note"):
            notes.append(row["note"])
        if row.get("peak_mb") is not None:
            notes.append(f"peak memory {row['peak_mb']:,.0f} MB ({row['peak_how']})")
        for check in row["checks"]:
            mark = "ok" if check["ok"] else "FAILED"
            limit = f"(limit {check['limit']:.2g})"
            notes.append(f"{check['name']} {check['value']:.2g} {limit} {mark}")
        lines += [f"      {note}" for note in notes]
    goals = [row for row in result["rows"] if row["met"] is not None]
    met = sum(bool(row["met"]) for row in goals)
    correct = "all hold" if result["ok"] else "SOME FAILED"
    lines += ["", f"checks of the answers: {correct}"]
    if goals:
        lines.append(f"goals of speed: {met} of {len(goals)} reached")
    return "\n".join(lines)


def say(text: str) -> None:
    """Progress: what is measured now, which may take a minute."""
    print(text, file=sys.stderr, flush=True)


def name_of(dtype: torch.dtype) -> str:
    """``"float64"`` and the like."""
    return str(dtype).removeprefix("torch.")


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
