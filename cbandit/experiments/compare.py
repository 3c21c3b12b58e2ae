"""Paired comparisons of policies, folders or parameters, trial by trial.

Trials of one number and seed see the same world and the same noise. Their differences
vary less than the trials themselves, and it is these that are compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

from cbandit.errors import CBanditError
from cbandit.experiments.report import COLUMNS, columns, number
from cbandit.experiments.results import read_rounds
from cbandit.experiments.settings import Settings

Interval = tuple[float, float, float]
"""A mean difference, and the ends of its 95 % interval."""
LEVEL = 0.95
DRAWS = 9999  # resamples of the bootstrap


@dataclass(frozen=True)
class Comparison:
    """Final values of trials that differ in one column alone.

    Args:
        by: the column, such as ``policy``.
        words: what they have in common.
        values: a row for each trial that all of them have; columns by the value of
            ``by``, then by metric. The others are compared with the first value.
    """

    by: str
    words: str
    values: pandas.DataFrame

    @property
    def names(self) -> list[str]:
        """The values of the column ``by``."""
        return [str(name) for name in self.values.columns.unique(0)]

    def difference(self, name: str, metric: str) -> Interval:
        """Return the mean of ``name`` less that of the first, with its interval."""
        gaps = self.values[name, metric] - self.values[self.names[0], metric]
        return interval(gaps.to_numpy("float64"))

    def rows(self) -> list[tuple[list[str], list[str]]]:
        """Return the table's rows: names (two for a difference), and the cells."""
        first, *others = self.names
        count = len(self.values)
        mean, sem = self.values.mean(skipna=False), self.values.sem(skipna=False)
        if count == 1:
            sem[:] = 0.0
        out = [
            ([name], [number(mean[name, k], sem[name, k], count) for k in COLUMNS])
            for name in self.names
        ]
        for name in others:
            gaps = [_in_words(self.difference(name, metric)) for metric in COLUMNS]
            out.append(([name, first], gaps))
        return out


def interval(differences: np.ndarray) -> Interval:
    """Return the mean of ``(n,)`` paired differences and its bootstrap interval.

    The ends of the interval are NaN where there is only one pair.
    """
    from scipy.stats import bootstrap

    mean = float(differences.mean())
    if len(differences) < 2 or not math.isfinite(mean):
        return mean, math.nan, math.nan
    if (differences == differences[0]).all():
        return mean, mean, mean
    ends = bootstrap(
        (differences,),
        lambda d, axis: d.mean(axis),
        n_resamples=DRAWS,
        confidence_level=LEVEL,
        method="BCa",
        rng=0,
    ).confidence_interval
    return mean, float(ends.low), float(ends.high)


def compare(
    folders: Sequence[tuple[Path, Settings]], by: str | None = None
) -> list[Comparison]:
    """Compare policies, folders or parameters, pairing trials of the same number.

    There is one comparison for each combination of the columns that are not compared.

    Args:
        folders: where results lie, and their settings.
        by: the column to compare: ``policy``, ``folder``, or a parameter in which the
            folders differ. The default is ``policy`` for one folder, else ``folder``.
    """
    by = by or ("policy" if len(folders) == 1 else "folder")
    _check_alike(folders)
    labels = [{"folder": _name(path, folders), **s.world} for path, s in folders]
    known = ["policy", *dict.fromkeys(key for label in labels for key in label)]
    if by not in known:
        raise CBanditError(f"--by must be one of {', '.join(known)}; got {by!r}")
    for (path, _), label in zip(folders, labels, strict=True):
        if by != "policy" and by not in label:
            raise CBanditError(f"{path} has no {by}: it cannot be compared by it")
    # folders differ in their names always: a parameter in which they do says more
    compared = (by,) if by == "policy" else (by, "folder")
    others = [k for k in known[1:] if len({str(x.get(k)) for x in labels}) > 1]
    others = [] if by == "folder" else [k for k in others if k not in compared]
    groups: dict[str, dict[str, pandas.DataFrame]] = {}
    for (path, _), label in zip(folders, labels, strict=True):
        frame = read_rounds(path, last=True)
        words = [f"{k} = {label[k]}" for k in others if k in label]
        for policy, part in frame.groupby("policy", sort=False):
            alike = words if by == "policy" else [*words, str(policy)]
            value = str(policy) if by == "policy" else str(label[by])
            group = groups.setdefault(", ".join(alike), {})
            if value in group:
                raise CBanditError(
                    f"two folders hold {policy} with {by} = {value}, and differ in "
                    "nothing but their names: compare them by folder"
                )
            group[value] = part.set_index("trial")[[*COLUMNS]]
    out = []
    for alike_words, group in groups.items():
        values = pandas.concat(group, axis=1, join="inner").sort_index()
        if values.empty:
            raise CBanditError(f"{', '.join(group)} have no trials in common")
        out.append(Comparison(by, alike_words, values))
    if all(len(pairs.names) == 1 for pairs in out):
        has = ", ".join(pairs.names[0] for pairs in out)
        raise CBanditError(f"nothing to compare by {by}: there is only {has}")
    return [pairs for pairs in out if len(pairs.names) > 1]


def _check_alike(folders: Sequence[tuple[Path, Settings]]) -> None:
    """Raise unless trials of one number share their draws and rounds."""
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
    """Return a folder's name, or its path where another has the same name."""
    names = [other.resolve().name for other, _ in folders]
    name = path.resolve().name
    return name if names.count(name) == 1 else str(path)


# --------------------------------------------------------------------------- in words


def in_lines(compared: Sequence[Comparison], settings: Settings) -> list[str]:
    """Return a table for each comparison: means, and differences with intervals."""
    out = [_head(settings)]
    for pairs in compared:
        count = len(pairs.values)
        words = f"{count} pairs" if count > 1 else "1 pair"
        out.append(f"{pairs.words + ': ' if pairs.words else ''}{words} of trials")
        rows = [[" - ".join(names), *cells] for names, cells in pairs.rows()]
        out += columns([[pairs.by, *COLUMNS.values()], *rows])
    return out


def _head(settings: Settings) -> str:
    return (
        f"{settings.experiment}: after {settings.horizon} rounds, mean +- standard "
        f"error; paired differences with {LEVEL:.0%} bootstrap intervals"
    )


def _in_words(difference: Interval) -> str:
    mean, low, high = difference
    if math.isnan(mean):
        return "unknown"
    ends = "" if math.isnan(low) else f" [{low + 0.0:.3g}, {high + 0.0:.3g}]"
    return f"{mean + 0.0:+.3g}{ends}"


def in_latex(compared: Sequence[Comparison], settings: Settings) -> list[str]:
    """Return all comparisons as one LaTeX table; it needs the package booktabs."""
    out = [
        f"% {_head(settings)}",
        r"\begin{tabular}{l" + "r" * len(COLUMNS) + "}",
        r"\toprule",
        " & ".join([_escaped(compared[0].by), *COLUMNS.values()]) + r" \\",
    ]
    for pairs in compared:
        out.append(r"\midrule")
        if pairs.words:
            wide = len(COLUMNS) + 1
            out.append(rf"\multicolumn{{{wide}}}{{l}}{{{_escaped(pairs.words)}}} \\")
        for names, cells in pairs.rows():
            shown = [c if c == "unknown" else f"${_powers(c)}$" for c in cells]
            name = " $-$ ".join(map(_escaped, names))
            out.append(" & ".join([name, *shown]) + r" \\")
    return [*out, r"\bottomrule", r"\end{tabular}"]


def _powers(words: str) -> str:
    """Return a text with its numbers in TeX's notation."""
    words = re.sub(r"e([-+])0*(\d+)", _power, words)
    return words.replace("+-", r"\pm")


def _power(match: re.Match[str]) -> str:
    return rf"\cdot 10^{{{match[1].strip('+')}{match[2]}}}"


def _escaped(words: str) -> str:
    out = words.replace("\\", r"\textbackslash ")
    for sign in "&%$#_{}":
        out = out.replace(sign, "\\" + sign)
    for sign, meant in (("<=", r"$\le$"), (">=", r"$\ge$"), ("<", "$<$"), (">", "$>$")):
        out = out.replace(sign, meant)
    return out
