"""Paired comparisons of folders of results, and how they are printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas

from cbandit.errors import CBanditError
from cbandit.experiments.intervals import COVERAGE, FEWEST, LEVEL, Difference
from cbandit.experiments.paired import Comparison, in_common, pairs_of, tested
from cbandit.experiments.report import alike_in_words, columns, number, shown
from cbandit.experiments.results import read_rounds, read_summary
from cbandit.experiments.settings import Settings

ESCAPED = str.maketrans(
    {
        **{sign: "\\" + sign for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "≤": r"$\le$",
        "≥": r"$\ge$",
        # at the end of a row LaTeX would take these as arguments of the line break
        "[": "{[}",
        "*": "{*}",
    }
)
"""How LaTeX prints its special characters."""


def compare(
    folders: Sequence[tuple[Path, Settings]],
    by: str | None = None,
    baseline: str | None = None,
    all_pairs: bool = False,
) -> list[Comparison]:
    """Compare policies, folders or parameters, pairing trials of the same number.

    There is one comparison for each combination of the other columns' values.

    Args:
        folders: the folders of results, and their settings.
        by: the column to compare: ``policy``, ``folder``, or a parameter in which the
            folders differ. The default is ``policy`` for one folder, else ``folder``.
        baseline: the value that the others are compared with; unless given, the first.
        all_pairs: compare all pairs instead.
    """
    paths = [path.resolve() for path, _ in folders]
    for path, _ in folders:
        if paths.count(path.resolve()) > 1:
            raise CBanditError(f"{path} is given twice: name each folder once")
    by = by or ("policy" if len(folders) == 1 else "folder")
    _check_alike(folders)
    labels = [{"folder": _name(path, folders), **s.world} for path, s in folders]
    known = ["policy", *dict.fromkeys(key for label in labels for key in label)]
    if by not in known:
        raise CBanditError(f"--by must be one of {', '.join(known)}; got {by!r}")
    for (path, _), label in zip(folders, labels, strict=True):
        if by != "policy" and by not in label:
            raise CBanditError(f"{path} has no {by}: it cannot be compared by it")
    # folders always differ in their names, so a parameter that differs says more
    compared = (by,) if by == "policy" else (by, "folder")
    others = [k for k in known[1:] if len({str(x.get(k)) for x in labels}) > 1]
    others = [] if by == "folder" else [k for k in others if k not in compared]
    said = [k for k in others if k != "folder"]
    if len({tuple(str(x.get(k)) for k in said) for x in labels}) == len(labels):
        others = said  # they tell the folders apart
    groups: dict[str, dict[str, pandas.DataFrame]] = {}
    same: dict[str, list[tuple[str, ...]]] = {}
    for (path, _), label in zip(folders, labels, strict=True):
        frame = read_rounds(path, last=True)
        words = [_equation(k, label[k]) for k in others if k in label]
        if by == "policy":
            told = read_summary(path).get("same", ())
            same[", ".join(words)] = [tuple(map(str, names)) for names in told]
        for policy, part in frame.groupby("policy", sort=False):
            alike = words if by == "policy" else [*words, str(policy)]
            value = str(policy) if by == "policy" else str(label[by])
            group = groups.setdefault(", ".join(alike), {})
            if value in group:
                raise CBanditError(
                    f"two folders hold {policy} with {by} = {value}, and differ in "
                    "nothing but their names: compare them by folder"
                )
            group[value] = part.set_index("trial")[[*shown(part.columns)]]
    out = []
    for alike_words, group in groups.items():
        values = pandas.concat(group, axis=1, join="inner").sort_index()
        if values.empty:
            raise CBanditError(f"{', '.join(group)} have no trials in common")
        pairs = pairs_of([*group], by, baseline, all_pairs)
        played = tuple(same.get(alike_words, ()))
        out.append(Comparison(by, alike_words, values, pairs, played))
    if not any(table.pairs for table in out):
        has = ", ".join(table.names[0] for table in out)
        raise CBanditError(f"nothing to compare by {by}: there is only {has}")
    return [table for table in out if table.pairs]


def _equation(name: str, value: object) -> str:
    """Return ``cost = half`` or, of a limit, ``latency <= 7``."""
    sign = "" if str(value).startswith(("<", ">")) else "= "
    return f"{name} {sign}{value}"


def _check_alike(folders: Sequence[tuple[Path, Settings]]) -> None:
    """Raise an error unless trials of one number share draws and rounds."""
    (first, settings), *others = folders
    for path, other in others:
        for name in ("experiment", "horizon", "seed"):
            ours, theirs = getattr(settings, name), getattr(other, name)
            if ours != theirs:
                raise CBanditError(
                    f"{first} has {name} = {ours!r}, {path} {name} = {theirs!r}: their "
                    "trials are not pairs"
                )


def _name(path: Path, folders: Sequence[tuple[Path, Settings]]) -> str:
    """Return a folder's name, or its path if another folder has the same name."""
    names = [other.resolve().name for other, _ in folders]
    name = path.resolve().name
    return name if names.count(name) == 1 else str(path)


# --------------------------------------------------------------------------- in words


def in_lines(compared: Sequence[Comparison], settings: Settings) -> list[str]:
    """Return lines with a table for each comparison: means, and differences."""
    out, gaps = [f"{_head(settings)}; {_method(compared)}"], tested(compared)
    for place, table in enumerate(compared):
        count = len(table.values)
        words = f"{count} pairs" if count > 1 else "1 pair"
        out.append(f"{table.words + ': ' if table.words else ''}{words} of trials")
        rows = [
            [name, *(number(*table.mean(name, k), count) for k in table.metrics)]
            for name in table.names
        ]
        rows += [
            [
                " - ".join(pair),
                *(_in_words(gaps[place, *pair, k]) for k in table.metrics),
            ]
            for pair in table.pairs
        ]
        out += columns([[table.by, *table.metrics.values()], *rows])
        out += map(alike_in_words, table.same)
    return out


def _head(settings: Settings) -> str:
    rounds = f"after {settings.horizon} rounds"
    return f"{settings.experiment}: {rounds}, mean +- standard error"


def _method(compared: Sequence[Comparison]) -> str:
    """Return how differences were tested, or why they were not, in words."""
    counts = [len(table.values) for table in compared]
    if max(counts) < FEWEST:
        return (
            "paired differences without intervals: too few trials "
            f"({max(counts)}; {FEWEST} are needed)"
        )
    tests = sum(len(table.pairs) for table in compared)
    star = "* differs from 0"
    if tests > 1:
        star += f", corrected for the {tests} differences of a column (Holm)"
    return (
        f"paired differences with {LEVEL:.0%} intervals, each by itself, of the "
        f"studentised bootstrap (measured coverage {COVERAGE}); {star}"
    )


def _in_words(gap: Difference) -> str:
    if math.isnan(gap.mean):
        return "unknown"
    mean, low, high = (f"{x:z{_short(x)}}" for x in gap[:3])
    star = " *" * (gap.p < 1 - LEVEL)
    shown = "" if math.isnan(gap.low) else f" [{low}, {high}]{star}"
    return f"{'' if mean.startswith('-') else '+'}{mean}{shown}"


def _short(x: float) -> str:
    """Return a format that shows three digits or, from 1000 to a million, all."""
    return ".0f" if 1e3 <= abs(x) < 1e6 else ".3g"


def in_latex(compared: Sequence[Comparison], settings: Settings) -> list[str]:
    """Return all comparisons as one LaTeX table; it needs the package booktabs.

    The numbers of a column share one power of ten, which its head shows. A mean is bold
    if it is significantly better than every other, which Holm's procedure corrects for
    these comparisons alone.
    """
    metrics = in_common(compared)
    powers = {metric: _power(compared, metric) for metric in metrics}
    heads = [
        _escaped(head) + (rf" $/\,10^{{{powers[k]}}}$" if powers[k] else "")
        for k, head in metrics.items()
    ]
    out = [
        f"% {_head(settings)}; {_method(compared)}; bold: better than every other, "
        "corrected for these comparisons alone",
        r"\begin{tabular}{l" + "r" * len(metrics) + "}",
        r"\toprule",
        " & ".join([_escaped(compared[0].by), *heads]) + r" \\",
    ]
    gaps = tested(compared)
    for place, table in enumerate(compared):
        out.append(r"\midrule")
        if table.words:
            wide = len(metrics) + 1
            out.append(rf"\multicolumn{{{wide}}}{{l}}{{{_escaped(table.words)}}} \\")
        best = {metric: table.best(metric) for metric in metrics}
        for name in table.names:
            cells = [
                _mean_in_latex(table, name, k, powers[k], bold=best[k] == name)
                for k in metrics
            ]
            out.append(" & ".join([_escaped(name), *cells]) + r" \\")
        out.append(r"\addlinespace")
        for pair in table.pairs:
            cells = [_gap_in_latex(gaps[place, *pair, k], powers[k]) for k in metrics]
            out.append(" & ".join([" $-$ ".join(map(_escaped, pair)), *cells]) + r" \\")
        out += [f"% {alike_in_words(names)}" for names in table.same]
    return [*out, r"\bottomrule", r"\end{tabular}"]


def _power(compared: Sequence[Comparison], metric: str) -> int:
    """Return the power of ten in which a column's numbers are shown."""
    means = [abs(t.mean(name, metric)[0]) for t in compared for name in t.names]
    largest = max((x for x in means if x > 0 and math.isfinite(x)), default=1.0)
    power = math.floor(math.log10(largest))
    return power if power >= 4 or power <= -3 else 0


def _mean_in_latex(
    table: Comparison, name: str, metric: str, power: int, bold: bool
) -> str:
    mean, sem = table.mean(name, metric)
    if math.isnan(mean):
        return "unknown"
    places = _places(sem if sem else mean, power)
    shown = f"{mean / 10**power:.{places}f}"
    spread = rf" \pm {sem / 10**power:.{places}f}" if len(table.values) > 1 else ""
    shown = rf"\mathbf{{{shown}}}" if bold else shown
    return f"${shown}{spread}$"


def _gap_in_latex(gap: Difference, power: int) -> str:
    if math.isnan(gap.mean):
        return "unknown"
    wide = gap.mean if math.isnan(gap.low) else (gap.high - gap.low) / 2
    places = _places(wide or gap.mean, power)
    mean, *ends = (f"{x / 10**power:z.{places}f}" for x in gap[:3])
    mean = mean if mean.startswith("-") else f"+{mean}"
    if math.isnan(gap.low):
        return f"${mean}$"
    star = "^{*}" if gap.p < 1 - LEVEL else ""
    return f"${mean}{star}\\ [{', '.join(ends)}]$"


def _places(size: float, power: int) -> int:
    """Return how many decimals show two digits of ``size`` at a power of ten."""
    if not size or not math.isfinite(size):
        return 0
    return min(6, max(0, 1 - math.floor(math.log10(abs(size) / 10**power))))


def _escaped(words: str) -> str:
    return words.replace("<=", "≤").replace(">=", "≥").translate(ESCAPED)
