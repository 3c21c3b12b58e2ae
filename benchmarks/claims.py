"""All measured numbers of the READMEs and docs/guide/defaults.md, from kept results.

    python benchmarks/claims.py           write the blocks between markers
    python benchmarks/claims.py --check   fail if they are not what the results say
    python benchmarks/claims.py --take NAME FOLDER...
                                          keep summaries of folders as results/NAME.json

``papers.toml`` has the rows about the papers' figures, ``claims.toml`` all others. A
place in braces stands for a number of ``results/FILE.json``:

``{FILE[k=v].POLICY.METRIC}``
    of an experiment's summary, as ``mean +- standard error``: of that entry whose
    parameters are these, if the file holds several. ``/T`` behind it divides by the
    horizon. The metric ``less.METRIC`` is the policy's less the first policy's, paired
    by trial.
``{FILE|SECTION|WHAT|KEY}``
    of a script's rows whose section and name match these expressions: the value under
    the key, in two digits; ``LEAST to MOST`` of several rows. A key is dotted, ``s`` is
    ``ms`` in seconds, ``check NAME`` a check's value; ``*NUMBER`` behind it multiplies.

What is ours has no digits of its own but those between backquotes.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.report import provenance
from cbandit.experiments.catalogue import find
from cbandit.experiments.results import read_curves, read_rounds
from cbandit.simulation.curves import Curve

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAPERS, CLAIMS = HERE / "papers" / "papers.toml", HERE / "claims.toml"
README, DETAILS = HERE.parent / "README.md", HERE / "README.md"
DEFAULTS = HERE.parent / "docs" / "guide" / "defaults.md"
FROM = {README: "benchmarks/", DETAILS: "", DEFAULTS: "../../benchmarks/"}
"""The pages, and where the folder of benchmarks is as seen from there."""
BLOCK = re.compile(
    r"<!-- (?P<name>[\w-]+): by claims\.py -->\n.*?<!-- end of (?P=name) -->", re.S
)
PLACE = re.compile(r"\{([\w-]+)(?:\[([^\]]*)\])?\.([^.{}]+)\.([\w.]+)(/T)?\}")
ROW = re.compile(r"\{([\w-]+)\|([^|{}]*)\|([^|{}]*)\|([^|{}*]+)(?:\*([\d.e+-]+))?\}")
LINK = re.compile(r"(\]\()(results/|README)")  # as seen from the benchmarks
UNKNOWN = "not recorded"
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

    def measured(match: re.Match[str]) -> str:
        name, section, what, key, factor = match.groups()
        values = [_value(row, key) for row in results(name, section, what)]
        if not values:
            raise SystemExit(f"{match[0]}: no row of {name}.json is like this")
        scale = float(factor or 1)
        ends = [figure(scale * value) for value in (min(values), max(values))]
        return " to ".join(dict.fromkeys(ends))

    return ROW.sub(measured, PLACE.sub(found, text))


def results(name: str, section: str = "", what: str = "") -> list[dict[str, Any]]:
    """Return a script's rows whose section and name match these expressions."""
    kept = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return [
        row
        for row in kept
        if re.search(section, row.get("section", ""))
        and re.search(what, row.get("what", ""))
    ]


def _value(row: Mapping[str, Any], key: str) -> float:
    """Return the number under a key of a row."""
    if key == "s":
        return float(row["ms"]) / 1e3
    if key.startswith("check "):
        (checked,) = [c["value"] for c in row["checks"] if c["name"] == key[6:]]
        return float(checked)
    found: Any = row
    for part in key.split("."):
        found = found[part]
    return float(found)


def figure(value: float) -> str:
    """Return a measured value in two digits, or whole above a hundred."""
    if value == round(value) or abs(value) >= 100:
        return f"{value:.0f}"
    digits = 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, digits)}f}" if abs(value) > 1e-3 else f"{value:.1e}"


def origin(name: str) -> str:
    """Return the commit, day and machine of a kept result, as far as it names them."""
    kept = json.loads((RESULTS / f"{name}.json").read_text())
    first = kept[0] if isinstance(kept, list) else kept
    machine = first.get("machine", {})
    if isinstance(machine, str):
        machine = {"processor": machine}
    facts = {
        "commit": first.get("commit"),
        "date": first.get("date") or machine.get("date"),
        "machine": machine.get("device") or machine.get("processor"),
    }
    said = [f"{key} {UNKNOWN}" if v is None else str(v) for key, v in facts.items()]
    return ", ".join(said)


def stray(text: str) -> str:
    """Return the digits of a template that come from nowhere."""
    return " ".join(
        re.findall(
            r"\d[\d.]*", re.sub(r"`[^`]*`", "", ROW.sub("", PLACE.sub("", text)))
        )
    )


def rows() -> dict[str, Any]:
    """Return the tables of ``papers.toml`` and ``claims.toml``."""
    return tomllib.loads(PAPERS.read_text()) | tomllib.loads(CLAIMS.read_text())


def table(head: str, lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the head's columns are separated by bars."""
    columns = head.split("|")
    out = [columns, ["---"] * len(columns), *lines]
    return "\n".join("| " + " | ".join(map(str.strip, line)) + " |" for line in out)


def blocks() -> dict[str, str]:
    """Return the text of each generated block, by its name."""
    every = rows()
    out = {
        "figures": table(
            "figure|the paper|ours|verdict|command", map(_row, every["figure"])
        ),
        "why": "\n".join(
            f"- **{row['figure']}.** {_sound(row['why'])}"
            for row in every["figure"]
            if "why" in row
        ),
        "sensitivity": table(
            "setting|ours|command",
            (
                (row["setting"], _sound(row["ours"]), f"`{row['command']}`")
                for row in every["sensitivity"]
            ),
        ),
        "papers": table(
            "paper|claim|does it come out?",
            (
                (f"[{row['paper']}]({row['link']})", row["claim"], row["verdict"])
                for row in every["main"]
            ),
        ),
        "main": table(
            "paper|claim|ours|does it come out?",
            (
                (row["paper"], row["claim"], _sound(row["ours"]), row["verdict"])
                for row in every["main"]
            ),
        ),
        "scripts": table(
            "script|what it measures|kept result|goals reached",
            map(_script, every["script"]),
        ),
        "missed": "\n".join(missed()),
    }
    out["fast"] = table(
        "what|measured|result",
        (
            (row["claim"], _sound(row["ours"]), _linked(row["result"]))
            for row in every["fast"]
        ),
    )
    out["speed"] = table(
        "what|measured|kept result",
        (
            (row["claim"], _sound(row["ours"]), _kept(row["result"]))
            for row in every["speed"]
        ),
    )
    out["fast"] += "\n\n" + _goals()
    out["guarantees"] = f"From {_kept('guarantees')}.\n\n" + table(
        "runs of 300 that|seen",
        ((row["claim"], _sound(row["ours"])) for row in every["guarantee"]),
    )
    for row in every["listing"]:
        out[row["name"]] = _listing(row)
    return out


def _row(row: Mapping[str, str]) -> list[str]:
    """Return a figure of a paper as cells."""
    ours, verdict = _sound(row["ours"]), f"*{_sound(row['verdict'])}*"
    return [row["figure"], row["paper"], ours, verdict, f"`{row['command']}`"]


def _kept(name: str) -> str:
    """Return a link to a kept result, and its origin."""
    return f"[{name}](results/{name}.txt), {origin(name)}"


def _linked(name: str) -> str:
    """Return a link to a kept result, by its machine."""
    machine = origin(name).rpartition(", ")[2]
    return f"[{machine}](results/{name}.txt)"


def _script(row: Mapping[str, Any]) -> list[str]:
    """Return a script as cells: what it measures, its results and their goals."""
    reached = [met for name, _, met in goals() if name in row["results"]]
    return [
        f"`python benchmarks/{row['name']}.py`",
        row["measures"],
        "; ".join(map(_kept, row["results"])) or "none",
        f"{sum(reached)} of {len(reached)}" if reached else "none stated",
    ]


def goals() -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield each goal of the kept results: its file, its row, if it was reached."""
    names = [name for row in rows()["script"] for name in row["results"]]
    for name in names:
        for row in results(name):
            for key in ("met", "memory_met"):
                if row.get(key) is not None:
                    yield name, row, row[key]


def missed() -> Iterator[str]:
    """Yield a line for each goal that a kept result did not reach."""
    for name, row, reached in goals():
        if reached:
            continue
        where = f"- {name}: {row['section']}, {row['what'].strip()}"
        if row["met"] is False:
            yield f"{where}: {figure(row['ratio'])}, the goal was {row['goal']}"
        else:
            yield f"{where}: {figure(row['peak_mb'])} MB, more than the goal"


def _goals() -> str:
    """Return how many goals were reached, and where the others are."""
    reached = [met for *_, met in goals()]
    others = "[the others](README.md#goals-not-reached)"
    return (
        f"{sum(reached)} of {len(reached)} benchmark goals were reached; "
        f"{others} are listed."
    )


def _listing(wanted: Mapping[str, Any]) -> str:
    """Return rows of a script as they were printed, with their origin."""
    name = wanted["result"]
    found = results(name, wanted.get("section", ""), wanted.get("what", ""))
    if not found:
        raise SystemExit(f"{wanted}: no such rows")
    many = len({row["section"] for row in found}) > 1
    lines = []
    for row in found:
        printed = " ".join(str(row.get("columns") or _timing(row)).split())
        lines.append([row["section"]] * many + [row["what"], printed])
    head = "in|case|" if many else "case|"
    return f"From {_kept(name)}.\n\n" + table(head + wanted["columns"], lines)


def _timing(row: Mapping[str, Any]) -> str:
    ratio = "" if row["ratio"] is None else f", {figure(row['ratio'])} x"
    return f"{figure(row['ms'])} ms{ratio}"


def _sound(template: str) -> str:
    """Return a template filled in, or stop where a number comes from nowhere."""
    if stray(template):
        raise SystemExit(f"numbers without a result: {stray(template)}: {template}")
    return filled(template)


def written(text: str, made: Mapping[str, str], folder: str) -> str:
    """Return a text whose blocks are those of the results, with links from a page."""

    def block(match: re.Match[str]) -> str:
        first, last = match[0].split("\n")[0], f"<!-- end of {match['name']} -->"
        linked = LINK.sub(rf"\1{folder}\2", made[match["name"]])
        return f"{first}\n{linked}\n{last}"

    return BLOCK.sub(block, text)


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
        known = {k: v for k, v in summary.items() if k not in DROPPED}
        kept.append(known | provenance(__file__, _command(summary)))
    text = json.dumps(kept if len(kept) > 1 else kept[0], indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def _command(summary: Mapping[str, Any]) -> str:
    """Return the command that does one entry of a file of summaries again."""
    known = find(summary["experiment"]).settings()
    words = ["cbandit", "reproduce", summary["experiment"]]
    for name, value in summary["parameters"].items():
        if value != known.parameters[name]:
            words += ["--set", f"{name}={value}"]
    for name in ("trials", "horizon", "seed"):
        if summary[name] != getattr(known, name):
            words += [f"--{name}", str(summary[name])]
    return shlex.join([*words, "--policies", ",".join(summary["policies"])])


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
    parser = argparse.ArgumentParser(description="Write all measured numbers.")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--take", nargs="+", metavar=("NAME", "FOLDER"))
    given = parser.parse_args(argv)
    if given.take:
        take(given.take[0], given.take[1:])
        return
    made = blocks()
    for path, folder in FROM.items():
        old = path.read_text()
        new = written(old, made, folder)
        if given.check and new != old:
            sys.exit(
                f"{path.name} is not what the results say: run benchmarks/claims.py"
            )
        if not given.check:
            path.write_text(new)


if __name__ == "__main__":
    main()
