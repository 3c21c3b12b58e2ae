"""Constrained functions on boxes with few evaluations, beside the best optimisers.

    python benchmarks/quality/constrained_functions.py [--quick] [--json FILE]
        [--out FOLDER] [--problems NAME,..] [--policies NAME,..] [--seeds 0,1,..]
        [--evaluations 120] [--summary] [--kept FILE]

The problems are those of ``constrained_problems.py``, functions as they are: no
logarithms, no scaling, no noise. RPOL and CKB with nothing set and RPOL with Thompson
sampling, under ``cb.GP.default``, beside the rivals of ``box_rivals.py``: BoTorch's
``qLogNEI`` and ``LogConstrainedExpectedImprovement``, SCBO, Optuna's ``GPSampler`` and
``TPESampler``. All are told the same ``2 d + 2`` uniform points, which count as
evaluations; what is reported of 60 evaluations is the beginning of the 120.

Every run leaves its trace in a file of FOLDER: points, rewards and costs, the
processor's seconds of each round, and the point that the policy would keep after 20,
40, 60 and 120 evaluations. Runs that are there are not played again, and shorter ones
are taken up where they end. The summary reads the folder, whichever call filled it;
``--summary`` plays nothing. ``--kept`` adds the runs of an earlier summary, a FILE that
``--json`` wrote, so that seeds may be played on several days.

A problem's figures are medians over seeds, rounds after the start points:

* regret: how far the best feasible point tried (or the one named, if it is feasible) is
  below the optimum, as a share of the reward's range over the box;
* violation: the mean over rounds of the costs' excess, each cost in deviations over the
  box;
* seconds of the processor for all rounds.

What is asked of ours: near the best (three times the least regret of all policies,
or 1e-3 of the range) on 80 % of the problems; a violation no higher than the median
rival's; no feasible point where two rivals have one (same problem, same seed) in at
most 5 % of the runs where two rivals have one; half of qLogNEI's time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.box_rivals import RULES, Player
from benchmarks.common.constrained_problems import CHOOSING, PROBLEMS, Problem
from benchmarks.common.report import Row, check_of, row_of, say
from benchmarks.common.report import main as report_main

OURS = ("RPOL", "RPOL-TS", "CKB")
PEER = "qLogNEI"
MARKS = (20, 40, 60, 120)  # evaluations after which a policy names a point
REPORTED = (60, 120)
ENOUGH = 1e-3  # of the range: as good as the best
BEHIND = 3.0  # times the least regret: near it
RIVALS = 3  # without so many, a problem does not count in the totals
ABOVE = 1e-6  # of the range, that rounding may put a feasible point above the optimum

Trace = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    problems: tuple[str, ...] = tuple(PROBLEMS)
    policies: tuple[str, ...] = tuple(RULES)
    seeds: tuple[int, ...] = tuple(range(10))
    evaluations: int = 120


QUICK = Sizes(("Gramacy", "bowl 2"), ("RPOL-TS", "LogCEI", "Optuna TPE"), (0,), 12)


# -- traces ----------------------------------------------------------------------------


def path_of(folder: Path, problem: str, policy: str, seed: int) -> Path:
    """Return where a run's trace is kept."""
    names = f"{problem} {policy}".replace(" ", "_")
    return folder / f"{names}_{seed}.json"


def read(path: Path) -> Trace:
    """Return a run's trace; an empty one where there is none."""
    if path.exists():
        trace: Trace = json.loads(path.read_text())
        return trace
    return {"x": [], "y": [], "seconds": [], "named": {}}


def write(path: Path, trace: Trace) -> None:
    """Write a trace whole, or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(trace))
    part.replace(path)


def play(
    problem: Problem, policy: str, seed: int, evaluations: int, path: Path
) -> None:
    """Play a run to its end, from where its trace ends."""
    trace = read(path)
    start = problem.start(seed)
    if len(start) + len(trace["x"]) >= evaluations:
        return
    say(f"{problem.name}, {policy}, seed {seed}")
    player = RULES[policy](problem, seed)
    player.hear(start, problem.values(start))
    for point, outcome in zip(trace["x"], trace["y"], strict=True):
        player.hear(row(point), row(outcome))
    while len(start) + len(trace["x"]) < evaluations:
        began = time.process_time()
        x = problem.box.inside(player.next())
        y = problem.values(x.unsqueeze(0))
        player.hear(x.unsqueeze(0), y)
        trace["seconds"].append(time.process_time() - began)
        trace["x"].append(x.tolist())
        trace["y"].append(y[0].tolist())
        done = len(start) + len(trace["x"])
        if done in MARKS or done == evaluations:
            trace["named"][str(done)] = named(problem, player)
    write(path, trace)


def row(values: Sequence[float]) -> Tensor:
    """Return numbers as a tensor ``(1, n)``."""
    return torch.tensor([values], dtype=torch.float64)


def named(problem: Problem, player: Player) -> dict[str, Any]:
    """Return the point that a policy would keep, and its outcomes."""
    x = problem.box.inside(player.best())
    return {"x": x.tolist(), "y": problem.values(x.unsqueeze(0))[0].tolist()}


# -- figures ---------------------------------------------------------------------------


def account(problem: Problem, trace: Trace, seed: int, evaluations: int) -> Trace:
    """Return one run's figures after so many evaluations."""
    start = problem.start(seed)
    rounds = evaluations - len(start)
    y = torch.tensor(trace["y"][:rounds], dtype=torch.float64)
    tried = torch.cat([problem.values(start), y])
    over = (y[:, 1:] / problem.spread).clamp_min(0)
    name = trace["named"].get(str(evaluations))
    return {
        "regret": regret(problem, tried),
        "named": math.nan if name is None else regret(problem, row(name["y"])),
        "violation": float(over.sum(-1).mean()),
        "in violation": float((over > 0).any(-1).double().mean()),
        "seconds": sum(trace["seconds"][:rounds]),
    }


def regret(problem: Problem, y: Tensor) -> float:
    """Return the regret of the best feasible outcome, a share of the reward's range."""
    kept = y[(y[:, 1:] <= 0).all(-1), 0]
    if not len(kept):
        return math.inf
    return (problem.optimum - float(kept.amax())) / problem.span


Runs = dict[str, dict[int, Trace]]
"""The figures of runs, by policy and seed."""


def kept(path: Path | None) -> dict[str, Runs]:
    """Return the runs of an earlier summary, by the title of their section."""
    sections: dict[str, Runs] = {}
    for line in json.loads(path.read_text())["rows"] if path is not None else ():
        if "runs" in line:
            runs = {int(seed): run for seed, run in line["runs"].items()}
            sections.setdefault(line["section"], {})[line["what"]] = runs
    return sections


def gathered(
    folder: Path, problem: Problem, sizes: Sizes, evaluations: int, before: Runs
) -> Runs:
    """Return the figures of all runs that are there, and of those before."""
    runs: Runs = {policy: dict(before[policy]) for policy in before}
    for policy in sizes.policies:
        for seed in sizes.seeds:
            trace = read(path_of(folder, problem.name, policy, seed))
            start = 2 * problem.box.dim + 2
            if start < evaluations <= start + len(trace["x"]):
                figures = account(problem, trace, seed, evaluations)
                runs.setdefault(policy, {})[seed] = figures
    return {policy: runs[policy] for policy in sizes.policies if policy in runs}


def middle(runs: dict[int, Trace], key: str) -> float:
    """Return the median over seeds, the higher of two middles."""
    values: list[float] = sorted(run[key] for run in runs.values())
    return values[len(values) // 2]


def compared(runs: Runs, policy: str) -> Trace:
    """Return how a policy stands beside the others on one problem."""
    rivals = [name for name in runs if name not in OURS and name != policy]
    least = {
        key: min(middle(each, key) for each in runs.values())
        for key in ("regret", "named")
    }
    near = {
        key: middle(runs[policy], key) <= max(BEHIND * least[key], ENOUGH)
        for key in least
    }
    lost = solved = 0
    for seed, run in runs[policy].items():
        others = [runs[name][seed]["regret"] for name in rivals if seed in runs[name]]
        if sum(map(math.isfinite, others)) >= 2:
            solved += 1
            lost += not math.isfinite(run["regret"])
    usual = [middle(runs[name], "violation") for name in rivals]
    seconds = [
        run["seconds"] / runs[PEER][seed]["seconds"]
        for seed, run in runs[policy].items()
        if seed in runs.get(PEER, {})
    ]
    return {
        "rivals": len(rivals),
        "near": near["regret"],
        "named near": near["named"],
        "lost": lost,
        "solved": solved,
        "calm": middle(runs[policy], "violation") <= statistics.median(usual)
        if usual
        else None,
        "time": statistics.median(seconds) if seconds else None,
    }


def summary(folder: Path, sizes: Sizes, before: dict[str, Runs]) -> list[Row]:
    """Return the rows: a policy's figures on each problem, then what is asked."""
    rows: list[Row] = []
    marks = sorted({*REPORTED, sizes.evaluations} & set(range(sizes.evaluations + 1)))
    for evaluations in marks:
        stands: dict[str, dict[str, Trace]] = {}
        for name in sizes.problems:
            problem = PROBLEMS[name](name)
            section = title_of(problem, evaluations)
            earlier = before.get(section, {})
            runs = gathered(folder, problem, sizes, evaluations, earlier)
            for policy in runs:
                stand = compared(runs, policy)
                stands.setdefault(policy, {})[name] = stand
                rows.append(line(section, policy, runs[policy], stand))
        rows += [
            total(evaluations, policy, title, chosen)
            for title, names in (
                ("all problems", sizes.problems),
                ("problems that chose no setting", reporting(sizes.problems)),
            )
            for policy, by_name in stands.items()
            if (chosen := {n: by_name[n] for n in names if counts(by_name.get(n))})
        ]
    return rows


def counts(stand: Trace | None) -> bool:
    """Return whether a problem counts in a policy's totals."""
    return stand is not None and stand["rivals"] >= RIVALS


def reporting(problems: Sequence[str]) -> list[str]:
    """Return the problems on which no setting was chosen."""
    return [name for name in problems if name not in CHOOSING]


def title_of(problem: Problem, evaluations: int) -> str:
    """Return the title of a problem's section."""
    return (
        f"{problem.name}, d = {problem.box.dim}, m = {problem.m}, "
        f"{problem.feasible:.2%} feasible, {evaluations} evaluations "
        "(* near the best; violation at most the median rival's)"
    )


def line(section: str, policy: str, runs: dict[int, Trace], stand: Trace) -> Row:
    """Return a policy's figures on one problem."""
    keys = ("regret", "named", "violation", "in violation", "seconds")
    mid = {key: middle(runs, key) for key in keys}
    columns = (
        f"regret {mid['regret']:8.1e}{'*' if stand['near'] else ' '} "
        f"named {mid['named']:8.1e}{'*' if stand['named near'] else ' '} "
        f"violation {mid['violation']:7.4f}{'*' if stand['calm'] else ' '} "
        f"over {mid['in violation']:4.0%}  {mid['seconds']:6.1f} s  seeds {len(runs)}"
    )
    above = -min(
        (run[key] for run in runs.values() for key in ("regret", "named")),
        default=0.0,
    )
    return row_of(
        section,
        policy,
        columns=columns,
        checks=[check_of("above the optimum, of the range", above, ABOVE)],
        runs=runs,
        stand=stand,
    )


def total(evaluations: int, policy: str, title: str, stands: dict[str, Trace]) -> Row:
    """Return what is asked, over problems."""
    n = len(stands)
    times = [s["time"] for s in stands.values() if s["time"] is not None]
    lost = sum(s["lost"] for s in stands.values())
    solved = sum(s["solved"] for s in stands.values())
    columns = (
        f"near the best {sum(s['near'] for s in stands.values())} of {n}, named "
        f"{sum(s['named near'] for s in stands.values())}; violation at most the "
        f"median rival's {sum(bool(s['calm']) for s in stands.values())}; nothing "
        f"feasible {lost} of {solved}"
    )
    if times:
        columns += f"; {statistics.median(times):.2f} of {PEER}'s time"
    return row_of(f"{title}, {evaluations} evaluations", policy, columns=columns)


# -- the script ------------------------------------------------------------------------


def measured(
    sizes: Sizes, folder: Path, playing: bool = True, before: Path | None = None
) -> list[Row]:
    """Play what is missing in a folder, and return all rows."""
    earlier = kept(before)
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    if playing:
        for seed in sizes.seeds:
            for name in sizes.problems:
                problem = PROBLEMS[name](name)
                for policy in sizes.policies:
                    path = path_of(folder, name, policy, seed)
                    play(problem, policy, seed, sizes.evaluations, path)
    return summary(folder, sizes, earlier)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--problems")
    parser.add_argument("--policies")
    parser.add_argument("--seeds")
    parser.add_argument("--evaluations", type=int)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--kept", type=Path)
    options, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)

    def chosen(sizes: Sizes) -> Sizes:
        lists = {
            name: tuple(text.split(","))
            for name in ("problems", "policies")
            if (text := getattr(options, name)) is not None
        }
        seeds = sizes.seeds
        if options.seeds is not None:
            seeds = tuple(map(int, options.seeds.split(",")))
        return Sizes(
            problems=lists.get("problems", sizes.problems),
            policies=lists.get("policies", sizes.policies),
            seeds=seeds,
            evaluations=options.evaluations or sizes.evaluations,
        )

    def measure(sizes: Sizes) -> list[Row]:
        if options.out is not None:
            playing = not options.summary
            return measured(chosen(sizes), options.out, playing, options.kept)
        with tempfile.TemporaryDirectory() as folder:
            return measured(chosen(sizes), Path(folder), before=options.kept)

    report_main(__file__, __doc__, measure, Sizes(), QUICK, rest)


if __name__ == "__main__":
    main()
