"""Two checkouts of the library, one script, interleaved pairs: which is slower.

    python benchmarks/common/before_after.py BEFORE [--after DIR] [--pairs 15]
                                             [--scripts round,trials] [--json FILE]

BEFORE and DIR (this checkout, unless given) are folders that hold ``cbandit/`` and
``kernels/``. Each pair runs the script's quick form, without rivals, once on either, in
a process of its own, and takes turns in who comes first. The scripts are this
checkout's, for both: they use public names only.

For each row it prints the median over the pairs of after / before, and an interval that
holds the true median with a probability of 96 % (of 15 pairs, from the 4th to the 12th
ratio); for the script as a whole, the same of the geometric mean of its rows. It ends
with 1 where the lower end of a script's interval is more than 3 % slower, or where a
check of an answer fails on either side. Only the library's own rows count.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.speed import box, feedback, lp, trials
from benchmarks.speed import round as rounds

SLOWER = 1.03
ROOT = Path(__file__).resolve().parents[2]
# the library of PYTHONPATH, then the scripts of this checkout
CHILD = """
import sys
import cbandit, cbandit_kernels
sys.path.insert(0, sys.argv[1])
from benchmarks.common.before_after import played
played(sys.argv[2])
"""

SCRIPTS: dict[str, Callable[[], list[report.Row]]] = {
    "round": lambda: rounds.measure(
        replace(rounds.QUICK, rivals=False, memory=False, rounds=5, draws=20)
    ),
    "trials": lambda: trials.measure(trials.QUICK),
    "box": lambda: box.measure(replace(box.QUICK, rivals=False, rounds=15)),
    "lp": lambda: lp.measure(lp.QUICK),
    "feedback": lambda: feedback.measure(feedback.QUICK),
}


@dataclass(frozen=True)
class Played:
    """One run of a script: milliseconds of the library's rows, and what failed."""

    ms: dict[str, float]
    failed: list[str]

    @classmethod
    def of(cls, rows: list[report.Row]) -> Played:
        """The rows as one run."""
        ours = [row for row in rows if row["ours"] and row["ms"] is not None]
        failed = [
            f"{row['what']}: {check['name']} {check['value']:.3g}"
            for row in rows
            for check in row["checks"]
            if not check["ok"]
        ]
        return cls(
            {f"{row['section']}: {row['what']}": row["ms"] for row in ours}, failed
        )


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median, and the ends of the shortest interval that holds the true one at 96 %.

    The ends are two of the ratios; of fewer than 6, the least and the greatest, which
    hold it less surely.
    """
    each, n = sorted(ratios), len(ratios)
    rank, below = 0, 0.5**n
    while rank + 1 < n / 2:
        more = below + math.comb(n, rank + 1) * 0.5**n
        if 2 * more > 0.04:
            break
        rank, below = rank + 1, more
    return statistics.median(each), each[rank], each[n - 1 - rank]


def child(script: str, tree: Path) -> Played:
    """Run the script's quick form on a checkout, in a process of its own."""
    paths = [str(tree), str(tree / "kernels")]
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, str(ROOT), script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode:
        sys.exit(f"{script} failed on {tree}:\n{done.stderr}")
    told = json.loads(done.stdout.splitlines()[-1])
    if Path(told.pop("library")).resolve().parent.parent != tree:
        sys.exit(f"{tree} holds no cbandit of its own")
    return Played(**told)


def played(script: str) -> None:
    """Run the script here, and print the run as JSON."""
    import cbandit

    run = Played.of(SCRIPTS[script]())
    told = {"ms": run.ms, "failed": run.failed, "library": cbandit.__file__}
    print(json.dumps(told))


def compare(
    script: str, pairs: int, run: Callable[[str, str], Played]
) -> dict[str, Any]:
    """Ratios after / before of a script; ``run(script, side)`` plays a side."""
    ratios: dict[str, list[float]] = {}
    failed: list[str] = []
    whole = []
    for pair in range(pairs):
        sides = ("before", "after") if pair % 2 == 0 else ("after", "before")
        seen = {side: run(script, side) for side in sides}
        for side in sides:
            failed += [f"{side}: {each}" for each in seen[side].failed]
        before, after = seen["before"].ms, seen["after"].ms
        both = {name: after[name] / before[name] for name in before if name in after}
        for name, ratio in both.items():
            ratios.setdefault(name, []).append(ratio)
        whole.append(statistics.geometric_mean(both.values()))
        report.say(f"{script}, pair {pair + 1} of {pairs}: {whole[-1]:.3f}")
    median, low, high = interval(whole)
    return {
        "script": script,
        "pairs": pairs,
        "median": median,
        "low": low,
        "high": high,
        "ok": low <= SLOWER and not failed,
        "failed": sorted(set(failed)),
        "rows": {name: interval(each) for name, each in ratios.items()},
    }


def text_of(found: dict[str, Any]) -> str:
    """A script's comparison as text."""
    low, high = found["low"], found["high"]
    mark = "ok" if low <= SLOWER else "SLOWER"
    lines = [
        f"{found['script']}: after / before {found['median']:.3f} "
        f"[{low:.3f}, {high:.3f}] over {found['pairs']} pairs  {mark}"
    ]
    lines += [
        f"  {median:.3f} [{low:.3f}, {high:.3f}]  {name}"
        for name, (median, low, high) in found["rows"].items()
    ]
    lines += [f"  CHECK FAILED  {each}" for each in found["failed"]]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/common/before_after.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path, metavar="BEFORE")
    parser.add_argument("--after", type=Path, default=ROOT, metavar="DIR")
    parser.add_argument("--scripts", default=",".join(SCRIPTS))
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    trees = {"before": options.before.resolve(), "after": options.after.resolve()}
    found = []
    for script in options.scripts.split(","):
        if script not in SCRIPTS:
            parser.error(f"no script {script!r} here; known: {', '.join(SCRIPTS)}")
        found.append(
            compare(
                script, options.pairs, lambda script, side: child(script, trees[side])
            )
        )
        print(text_of(found[-1]), flush=True)
        if options.json is not None:
            report.write(
                options.json,
                {**report.provenance(__file__), "scripts": found},
            )
    if not all(each["ok"] for each in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
