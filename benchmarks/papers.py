"""The table of the papers' figures in benchmarks/README.md, from the committed results.

    python benchmarks/papers.py           write the tables
    python benchmarks/papers.py --check   fail if they are not what the results say
    python benchmarks/papers.py --take NAME FOLDER...
                                          keep summaries of folders as results/NAME.json

``papers.toml`` holds the rows. ``{FILE[k=v].POLICY.METRIC}`` in them is a number of
``results/FILE.json``, of that entry whose parameters are these if the file holds
several, as ``mean +- standard error``; ``/T`` behind it divides by the horizon. The
metric ``less.METRIC`` is the policy's less the first policy's, paired by trial. What is
ours has no other digits but those between backquotes, so that no number can rot.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cbandit.experiments.catalogue import find
from cbandit.experiments.results import read_curves, read_rounds
from cbandit.simulation.curves import Curve

HERE = Path(__file__).resolve().parent
RESULTS, ROWS = HERE / "results", HERE / "papers.toml"
READMES = {
    HERE / "README.md": ("figures", "why", "sensitivity"),
    HERE.parent / "README.md": ("short",),
}
PLACE = re.compile(r"\{([\w-]+)(?:\[([^\]]*)\])?\.([^.{}]+)\.([\w.]+)(/T)?\}")
PAIRED = ("regret", "hard_violation", "rounds_in_violation")
DROPPED = ("tables", "digest", "figures")  # of a summary: they are of its folder


def entries(name: str) -> list[dict[str, Any]]:
    """Return the summaries that a file of results holds."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    return found if isinstance(found, list) else [found]


def entry(name: str, chosen: str | None) -> dict[str, Any]:
    """Return the one summary in a file whose parameters are ``k=v,...``."""
    wanted = dict(pair.split("=") for pair in (chosen or "").split(",") if pair)
    fitting = [
        each
        for each in entries(name)
        if all(_alike(each["parameters"].get(k), v) for k, v in wanted.items())
    ]
    if len(fitting) != 1:
        raise SystemExit(f"{name}[{chosen}]: {len(fitting)} entries, not one")
    return fitting[0]


def _alike(value: Any, text: str) -> bool:
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return str(value) == text


def number(mean: float, sem: float) -> str:
    """``mean +- sem``, to two digits of the standard error; the mean alone without."""
    if sem == 0:
        return f"{mean:.3g}" if mean != round(mean) else f"{mean:.0f}"
    digits = max(0, 1 - math.floor(math.log10(sem)))
    return f"{mean:.{digits}f} +- {sem:.{digits}f}"


def filled(text: str) -> str:
    """Return a text with its numbers."""

    def found(match: re.Match[str]) -> str:
        name, chosen, policy, metric, averaged = match.groups()
        summary = entry(name, chosen)
        value: Any = summary["policies"][policy]
        for key in metric.split("."):
            value = value[int(key)] if isinstance(value, list) else value[key]
        if not isinstance(value, dict):
            return f"{value}"
        share = summary["horizon"] if averaged else 1
        return number(value["mean"] / share, value["sem"] / share)

    return PLACE.sub(found, text)


def stray(text: str) -> str:
    """Return the digits of a template that come from nowhere."""
    return " ".join(
        re.findall(r"\d[\d.]*", re.sub(r"`[^`]*`", "", PLACE.sub("", text)))
    )


def rows() -> dict[str, list[dict[str, Any]]]:
    """Return the tables of ``papers.toml``."""
    return tomllib.loads(ROWS.read_text())


def tables() -> Iterator[tuple[str, str]]:
    """Yield each table's name and its text."""
    every = rows()
    lines = [
        "| figure | the paper | ours | verdict | command |",
        "|---|---|---|---|---|",
    ]
    for row in every["figure"]:
        words = [
            row["figure"],
            row["paper"],
            _sound(row["ours"]),
            f"*{row['verdict']}*",
        ]
        lines.append("| " + " | ".join([*words, f"`{row['command']}`"]) + " |")
    yield "figures", "\n".join(lines)
    lines = ["| setting | ours | command |", "|---|---|---|"]
    for row in every["sensitivity"]:
        lines.append(
            f"| {row['setting']} | {_sound(row['ours'])} | `{row['command']}` |"
        )
    yield "sensitivity", "\n".join(lines)
    lines = ["| experiment | question | what came out |", "|---|---|---|"]
    for row in every["short"]:
        cells = row["experiment"], row["question"], _sound(row["ours"])
        lines.append("| " + " | ".join(cells) + " |")
    yield "short", "\n".join(lines)
    why = [row for row in every["figure"] if "why" in row]
    yield "why", "\n".join(f"- **{r['figure']}.** {_sound(r['why'])}" for r in why)


def _sound(template: str) -> str:
    """Return a template filled in, or stop where a number comes from nowhere."""
    if stray(template):
        raise SystemExit(f"numbers without a result: {stray(template)}: {template}")
    return filled(template)


def written(text: str, names: Sequence[str]) -> str:
    """Return a README whose tables are those of the results."""
    for name, table in tables():
        if name not in names:
            continue
        first, last = f"<!-- {name}: by papers.py -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(first)
        _, found, after = rest.partition(last)
        if not found:
            raise SystemExit(f"README.md has no {first} ... {last}")
        text = f"{before}{first}\n{table}\n{last}{after}"
    return text


def take(name: str, folders: list[str]) -> None:
    """Keep the summaries of folders of results as ``results/NAME.json``."""
    kept = []
    for folder in map(Path, folders):
        summary = json.loads((folder / "summary.json").read_text())
        if find(summary["experiment"]).figures.early:
            for policy, curves in read_curves(folder).items():
                summary["policies"][policy]["first_100"] = _early(curves)
        for policy, differences in _paired(folder, list(summary["policies"])):
            summary["policies"][policy]["less"] = differences
        kept.append({k: v for k, v in summary.items() if k not in DROPPED})
    text = json.dumps(kept if len(kept) > 1 else kept[0], indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def _paired(
    folder: Path, policies: Sequence[str]
) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    """Yield each later policy's metrics less those of the first, paired by trial."""
    last = read_rounds(folder, last=True)
    ends = {
        name: rows.set_index("trial")[list(PAIRED)].to_numpy("float64")
        for name, rows in last.groupby("policy")
    }
    for policy in policies[1:]:
        less = ends[policy] - ends[policies[0]]
        means = less.mean(0).tolist()
        errors = (less.std(0, ddof=1) / math.sqrt(len(less))).tolist()
        yield (
            policy,
            {
                metric: {"mean": mean, "sem": error}
                for metric, mean, error in zip(PAIRED, means, errors, strict=True)
            },
        )


def _early(curves: Mapping[str, Curve], t: int = 100) -> dict[str, dict[str, float]]:
    """Return time averages over the first ``t`` rounds, a figure of their own."""
    out = {}
    for metric in ("regret", "soft_violation"):
        curve = curves[metric]
        at = int((curve.t == t).nonzero())
        mean, sem = float(curve.mean[at]) / t, float(curve.sem[at]) / t
        out[metric] = {"mean": mean, "sem": sem}
    return out


def main(argv: list[str] | None = None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description="The table of the papers' figures.")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--take", nargs="+", metavar=("NAME", "FOLDER"))
    given = parser.parse_args(argv)
    if given.take:
        take(given.take[0], given.take[1:])
        return
    for path, names in READMES.items():
        old = path.read_text()
        new = written(old, names)
        if given.check and new != old:
            sys.exit(f"{path} is not what the results say: run benchmarks/papers.py")
        if not given.check:
            path.write_text(new)


if __name__ == "__main__":
    main()
