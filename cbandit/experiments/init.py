"""Write a commented study file from the columns of a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cbandit.errors import CBanditError
from cbandit.experiments.settings import toml_key, toml_value
from cbandit.problems.measured import FEW, apart

if TYPE_CHECKING:
    import pandas

MOST = 20  # different values of a column that looks like a knob
LIMIT = re.compile(r"^\s*(.+?)\s*(<=|>=)\s*(\S+)\s*$")

RULE = (
    f"numbers, more than {MOST} different ones and more than a quarter as many as rows"
)
HEAD = """\
# A study of {table}: {rows} rows. Play it, and compare the policies, by
#
#     cbandit run {file}
#     cbandit compare results/{name}
#
# A list where a value may stand is a sweep: beta = [1.0, 2.0] plays two policies, and a
# list in [problem] makes a folder of results for each entry. A value that is itself a
# list goes into another: clip = [[5.0, 2.0]].

horizon = 100  # rounds
trials = 10    # seeds: each plays all policies on the same noise
seed = 0
# design = 6   # first rounds, the same for all policies; left out: 2 a knob, and 2

[problem]
"""
POLICIES = """\

# What is believed of each function before data. Left out, kernel, lengthscales and
# noise are learned (cb.GP.default). A policy may have a belief of its own.
# [belief]
# kernel = "matern-5/2"  # or rbf, matern-3/2, matern-1/2, or "module:function"
# lengthscale = 0.2      # in shares of each knob's range
# noise = 0.01           # variance, in shares of a function's own

# A type is a class of cbandit or cb.baselines, or "module:Class" of your own; the other
# keys are its arguments (help(cb.CKB) lists them). An argument that is an object is a
# table with a type again: explore = { type = "TS", beta = 1.0 }.

[policies.CKB]  # the average must keep to the limits
type = "CKB"

[policies.RPOL]  # every excess counts
type = "RPOL"

[policies.CONFIG]  # optimistic about the limits
type = "CONFIG"

[policies.Random]
type = "Random"
"""
ACQUISITION = """\

[policies.LogCEI]  # any acquisition function of BoTorch
type = "BoTorchPolicy"
acquisition = "LogConstrainedExpectedImprovement"
"""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        name: its name.
        words: what it holds, for a comment.
        numeric: whether it holds numbers.
        distinct: how many different values it has.
        middle: the median of its numbers.
        numbers_rows: whether it may number the rows: it has no value twice.
        whole: whether its numbers are whole.
    """

    name: str
    words: str
    numeric: bool
    distinct: int
    middle: float = 0.0
    numbers_rows: bool = False
    whole: bool = True


def study_text(
    frame: pandas.DataFrame,
    table: str,
    file: str,
    name: str,
    goal: tuple[str, str] | None = None,
    limits: Sequence[str] = (),
    contexts: Sequence[str] = (),
) -> str:
    """Return the text of a study file.

    Args:
        frame: the table's rows.
        table: the table's path, as the file is to name it.
        file: the path that the text will be written to.
        name: the study's name.
        goal: ``maximise`` or ``minimise``, and the column. Unless given it is the first
            that looks like a measurement.
        limits: such as ``"latency <= 20"``. Unless given, other columns that look like
            measurements are kept below their medians; where there are none, the file
            asks for limits, and cannot run before.
        contexts: the columns that are shown before a choice, and not chosen.

    In a table of few rows, a column of fractions that hardly repeat may be a
    measurement. It counts as one if no goal or limit is given and no other column is
    clearly measured; the file then marks it as a guess. Otherwise it is no knob, and
    the file offers a limit on it in a comment.
    """
    columns = {str(k): _column(str(k), values) for k, values in frame.items()}
    for context in contexts:
        _there(context, columns)
    every, columns = columns, {k: c for k, c in columns.items() if k not in contexts}
    read = dict(_limit(words, columns) for words in limits)
    if goal is not None:
        _known(goal[1], columns)
    rows = len(frame)
    counts = [] if rows <= FEW else [c.name for c in columns.values() if c.numbers_rows]
    measured = [
        c.name
        for c in columns.values()
        if _looks_measured(c, rows) and c.name not in counts
    ]
    stated = [*([goal[1]] if goal else []), *read]
    known = {*stated, *measured, *counts}
    others = [c for c in columns.values() if c.name not in known]
    needed = goal is None and all(column in read for column in measured)
    maybe = _maybe_measured(others, rows, needed)
    if needed and not stated:
        measured, maybe = maybe, []
    if goal is None:
        free = [column for column in [*measured, *maybe] if column not in read]
        if not free:
            raise CBanditError(
                f"{table} has no column of numbers, beside others as knobs, that could "
                "be a measurement: say which by --maximise or --minimise"
            )
        goal = ("maximise", free[0])
    guessed = not read
    if guessed:
        read = {m: _below(columns[m]) for m in measured if m != goal[1]}
    outcomes = {goal[1], *read}
    maybe = [column for column in maybe if column not in outcomes]
    left = [] if not stated else [m for m in measured if m not in outcomes]
    left += [c for c in counts if c not in outcomes]
    knobs = [c for c in columns if c not in outcomes and c not in [*left, *maybe]]
    if not knobs:
        raise CBanditError(f"{table} has no column left that could be a knob")
    other = "minimise" if goal[0] == "maximise" else "maximise"
    mark = f"a guess, from few rows; or {other}" if needed else f"or {other}"
    lines = [
        f"table = {toml_value(table)}",
        f"{goal[0]} = {toml_value(goal[1])}  # {mark}",
        f"knobs = {toml_value(knobs)}" + "  # a guess: all others" * needed,
    ]
    if contexts:
        lines.append(f"contexts = {toml_value(list(contexts))}  # shown, not chosen")
    lines += [
        f"# {column}: left out" + ", another value in every row" * (column in counts)
        for column in left
    ]
    if not contexts:
        lines.append(
            "# noise = 0.01  # variance of one measurement; left out: from repeats"
        )
    offered = {column: _below(columns[column]) for column in maybe}
    if read:
        lines += ["", "[problem.limits]"]
        lines += _set(read, "  # a guess: its median" if guessed else "")
        if offered:
            lines += ["# Limits at medians, on what may be measured too; else a knob:"]
    else:
        offered = offered or {"COLUMN": "<= NUMBER"}
        lines += [
            "",
            "# Fill in a limit at least, on a column that was measured and is no knob",
            f"# ({', '.join(knobs)}), and take out these marks:",
            "# [problem.limits]",
        ]
    lines += [f"# {line}" for line in _set(offered, '  # or ">= NUMBER"')]
    lines += [
        "",
        "# Columns. Those count as measured, unless options say which, that hold",
    ]
    lines += [f"# {RULE}."]
    width = max(map(len, every))
    lines += [f"#   {c.name:<{width}}  {c.words}" for c in every.values()]
    head = HEAD.format(table=table, rows=rows, file=file, name=name)
    policies = POLICIES + ("" if contexts else ACQUISITION)
    return head + "\n".join(lines) + "\n" + policies


def _column(name: str, values: pandas.Series[Any]) -> Column:
    import pandas

    missing = int(values.isna().sum())
    known = values.dropna()
    distinct = int(known.nunique())
    gaps = f", {missing} missing" if missing else ""
    numeric = bool(pandas.api.types.is_numeric_dtype(values)) and not (
        pandas.api.types.is_bool_dtype(values)
    )
    if not numeric or known.empty:
        shown = ", ".join(map(str, sorted(map(str, known.unique()))[:4]))
        dots = ", ..." if distinct > 4 else ""
        rows = distinct > 0 and apart(values)
        words = f"{distinct} texts: {shown}{dots}{gaps}"
        return Column(name, words, False, distinct, numbers_rows=rows)
    whole = bool((known == known.round()).all())
    kind = "whole numbers" if whole else "numbers"
    words = f"{kind}, {known.min():g} to {known.max():g}, {distinct} distinct{gaps}"
    ranks = whole and distinct == len(values) == known.max() - known.min() + 1
    middle = float(known.median())
    return Column(name, words, True, distinct, middle, bool(ranks), whole)


def _looks_measured(column: Column, rows: int) -> bool:
    return column.numeric and column.distinct > max(MOST, rows // 4)


def _maybe_measured(columns: list[Column], rows: int, needed: bool) -> list[str]:
    """Return columns that may be measured although :data:`RULE` does not say so.

    These are fractions that hardly repeat; if one is ``needed`` and there are none, the
    later half of the columns of numbers. At least one column is left as a knob.
    """
    numbers = [c for c in columns if c.numeric]
    maybe = [c for c in numbers if not c.whole and 4 * c.distinct > 3 * rows]
    if needed and not 0 < len(maybe) < len(columns):
        maybe = numbers[len(numbers) // 2 :] if numbers[1:] else numbers
    return [c.name for c in maybe] if len(maybe) < len(columns) else []


def _below(column: Column) -> str:
    return f"<= {column.middle:.4g}"


def _set(limits: dict[str, str], more: str) -> list[str]:
    return [f"{toml_key(k)} = {toml_value(v)}{more}" for k, v in limits.items()]


def _there(name: str, columns: dict[str, Column]) -> None:
    if name not in columns:
        raise CBanditError(f"there is no column {name}; there are {', '.join(columns)}")


def _known(name: str, columns: dict[str, Column]) -> None:
    _there(name, columns)
    if not columns[name].numeric:
        raise CBanditError(f"{name} holds texts: it cannot be a measurement")


def _limit(words: str, columns: dict[str, Column]) -> tuple[str, str]:
    """Split ``latency <= 20`` into the column and its limit."""
    match = LIMIT.match(words)
    if match is None:
        raise CBanditError(f"--limit takes 'COLUMN <= NUMBER' or >=; got {words!r}")
    name, sign, number = match.groups()
    _known(name, columns)
    try:
        float(number)
    except ValueError:
        raise CBanditError(f"--limit {words}: {number} is not a number") from None
    return name, f"{sign} {number}"
