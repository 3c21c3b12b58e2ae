"""Paired comparisons: what policies, folders or parameters change, trial by trial.

Trials of one number and seed see the same world and the same noise. Their differences
vary less than the trials themselves, and it is these that are compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cbandit.errors import CBanditError
from cbandit.experiments.figures import goal_of
from cbandit.experiments.report import COLUMNS, columns, number
from cbandit.experiments.rounds import read_rounds
from cbandit.experiments.settings import Settings
from cbandit.simulation import plots
from cbandit.simulation.curves import mean_and_sem

__all__ = ["Comparison", "compare", "draw_comparison", "in_latex", "in_lines"]

Interval = tuple[float, float, float]
"""A mean difference, and the ends of its 95 % interval."""
LEVEL = 0.95
DRAWS = 9999  # resamples of the bootstrap


@dataclass(frozen=True)
class Comparison:
    """Final values that are told apart by one column, and alike in the others.

    Args:
        by: the column.
        words: in what all of them are alike.
        trials: the numbers of the trials that all of them have.
        values: by value of the column and by metric, ``(n,)``: a number a trial. The
            first is what the others are compared with.
    """

    by: str
    words: str
    trials: tuple[int, ...]
    values: Mapping[str, Mapping[str, Tensor]]

    @property
    def first(self) -> str:
        """The value that the others are compared with."""
        return next(iter(self.values))

    def difference(self, name: str, metric: str) -> Interval:
        """The mean difference of ``name`` to the first, with its interval."""
        return interval(self.values[name][metric] - self.values[self.first][metric])


def interval(differences: Tensor) -> Interval:
    """The mean of ``(n,)`` paired differences, and its bias-corrected bootstrap's ends.

    The ends are NaN where a single pair tells nothing of them.
    """
    from scipy.stats import bootstrap

    mean = float(differences.mean())
    if len(differences) < 2 or not math.isfinite(mean):
        return mean, math.nan, math.nan
    if bool((differences == differences[0]).all()):
        return mean, mean, mean
    found = bootstrap(
        (differences.numpy(),),
        lambda d, axis: d.mean(axis),
        n_resamples=DRAWS,
        confidence_level=LEVEL,
        method="BCa",
        rng=0,
    ).confidence_interval
    return mean, float(found.low), float(found.high)


def compare(
    folders: Sequence[tuple[Path, Settings]], by: str | None = None
) -> list[Comparison]:
    """Pair the trials of folders; one comparison for each combination of the rest.

    Args:
        folders: where results lie, and their settings.
        by: the column that tells apart: ``policy``, ``folder``, or a parameter in which
            the folders differ. Unless given it is ``policy`` for one folder, and
            ``folder`` for several.
    """
    by = by or ("policy" if len(folders) == 1 else "folder")
    _check_alike(folders)
    labels = [{"folder": _name(path, folders), **s.world} for path, s in folders]
    known = ["policy", *dict.fromkeys(key for each in labels for key in each)]
    if by not in known:
        raise CBanditError(f"--by must be one of {', '.join(known)}; got {by!r}")
    for (path, _), each in zip(folders, labels, strict=True):
        if by != "policy" and by not in each:
            raise CBanditError(f"{path} has no {by}: it cannot be compared by it")
    differing = [k for k in known[1:] if len({str(e.get(k)) for e in labels}) > 1]
    # folders differ in their names always: a parameter in which they do says more
    rest = [k for k in differing if k != by and (k != "folder" or by == "policy")]
    rest = [] if by == "folder" else rest
    groups: dict[str, dict[str, Any]] = {}
    for (path, _), each in zip(folders, labels, strict=True):
        frame = read_rounds(path, last=True)
        words = [f"{k} = {each[k]}" for k in rest if k in each]
        for policy, part in frame.groupby("policy", sort=False):
            alike = words if by == "policy" else [*words, str(policy)]
            value = str(policy) if by == "policy" else str(each[by])
            group = groups.setdefault(", ".join(alike), {})
            if value in group:
                raise CBanditError(
                    f"two folders hold {policy} with {by} = {value}, and differ in "
                    f"nothing but their names: compare them by folder"
                )
            group[value] = part.set_index("trial")
    found = [_paired(by, words, group) for words, group in groups.items()]
    if not any(len(each.values) > 1 for each in found):
        has = ", ".join(next(iter(each.values)) for each in found)
        raise CBanditError(f"nothing to compare by {by}: there is only {has}")
    return [each for each in found if len(each.values) > 1]


def _paired(by: str, words: str, group: Mapping[str, Any]) -> Comparison:
    common = set.intersection(*(set(frame.index) for frame in group.values()))
    if not common:
        raise CBanditError(f"{', '.join(group)} have no trials in common")
    trials = sorted(common)
    values = {
        value: {
            metric: torch.tensor(frame[metric].loc[trials].to_numpy("float64"))
            for metric in COLUMNS
        }
        for value, frame in group.items()
    }
    return Comparison(by, words, tuple(trials), values)


def _check_alike(folders: Sequence[tuple[Path, Settings]]) -> None:
    """Raise where trials of one number are not of the same draws and rounds."""
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
    """A folder's name; its whole path where another has the same name."""
    names = [each.resolve().name for each, _ in folders]
    own = path.resolve().name
    return own if names.count(own) == 1 else str(path)


# --------------------------------------------------------------------------- in words


def in_lines(found: Sequence[Comparison], settings: Settings) -> list[str]:
    """A table for each comparison: means, and differences with their intervals."""
    out = [_head(settings)]
    for each in found:
        count = len(each.trials)
        pairs = f"{count} pairs" if count > 1 else "1 pair"
        out.append(f"{each.words + ': ' if each.words else ''}{pairs} of trials")
        rows = [[each.by, *COLUMNS.values()]]
        rows += [[name, *_means(each, name)] for name in each.values]
        for name in list(each.values)[1:]:
            cells = [_difference(each.difference(name, key)) for key in COLUMNS]
            rows.append([f"{name} - {each.first}", *cells])
        out += columns(rows)
    return out


def _head(settings: Settings) -> str:
    return (
        f"{settings.experiment}: after {settings.horizon} rounds, mean +- standard "
        f"error; paired differences with {LEVEL:.0%} bootstrap intervals"
    )


def _means(each: Comparison, name: str) -> list[str]:
    own = each.values[name]
    return [number(**mean_and_sem(own[k]), trials=len(each.trials)) for k in COLUMNS]


def _difference(found: Interval) -> str:
    mean, low, high = found
    if math.isnan(mean):
        return "unknown"
    ends = "" if math.isnan(low) else f" [{low + 0.0:.3g}, {high + 0.0:.3g}]"
    return f"{mean + 0.0:+.3g}{ends}"


def in_latex(found: Sequence[Comparison], settings: Settings) -> list[str]:
    """The same as one table for a paper; it needs LaTeX's package booktabs."""
    out = [
        f"% {_head(settings)}",
        r"\begin{tabular}{l" + "r" * len(COLUMNS) + "}",
        r"\toprule",
        " & ".join([_escaped(found[0].by), *COLUMNS.values()]) + r" \\",
    ]
    for each in found:
        out.append(r"\midrule")
        if each.words:
            wide = len(COLUMNS) + 1
            out.append(rf"\multicolumn{{{wide}}}{{l}}{{{_escaped(each.words)}}} \\")
        for name in each.values:
            cells = [f"${_powers(c)}$" for c in _means(each, name)]
            out.append(" & ".join([_escaped(name), *cells]) + r" \\")
        for name in list(each.values)[1:]:
            found_each = [each.difference(name, k) for k in COLUMNS]
            cells = [f"${_powers(_difference(one))}$" for one in found_each]
            words = rf"{_escaped(name)} $-$ {_escaped(each.first)}"
            out.append(" & ".join([words, *cells]) + r" \\")
    lines = [*out, r"\bottomrule", r"\end{tabular}"]
    return [line.replace("$unknown$", "unknown") for line in lines]


def _powers(words: str) -> str:
    """Return numbers as TeX's mathematics writes them."""
    words = re.sub(r"e([-+])0*(\d+)", _power, words)
    return words.replace("+-", r"\pm")


def _power(found: re.Match[str]) -> str:
    return rf"\cdot 10^{{{found[1].strip('+')}{found[2]}}}"


def _escaped(words: str) -> str:
    out = words.replace("\\", r"\textbackslash ")
    for sign in "&%$#_{}":
        out = out.replace(sign, "\\" + sign)
    for sign, meant in (("<=", r"$\le$"), (">=", r"$\ge$"), ("<", "$<$"), (">", "$>$")):
        out = out.replace(sign, meant)
    return out


def draw_comparison(
    found: Sequence[Comparison], every: Sequence[Settings], path: Path
) -> None:
    """Draw all differences and their intervals into a file."""
    named = [
        (each, name, ", ".join(filter(None, [each.words, f"{name} - {each.first}"])))
        for each in found
        for name in list(each.values)[1:]
    ]
    shown = {
        metric: {words: each.difference(name, metric) for each, name, words in named}
        for metric in COLUMNS
    }
    plots.save(plots.differences(shown, title=_title(found, every)), path)


def _title(found: Sequence[Comparison], every: Sequence[Settings]) -> str:
    """Say what is compared, and the limits where all folders have the same."""
    first, goals = every[0], {goal_of(each)[1] for each in every}
    pairs = sorted({len(each.trials) for each in found})
    return (
        f"{first.experiment}: differences after {first.horizon} rounds, {LEVEL:.0%} "
        f"intervals over {' or '.join(map(str, pairs))} paired trials"
        f"{goals.pop() if len(goals) == 1 else ''}"
    )
