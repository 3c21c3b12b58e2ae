"""Write a commented study file for the columns of a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np

from cbandit._core.hints import near
from cbandit.errors import CBanditError
from cbandit.experiments.doubts import believable, doubts
from cbandit.experiments.settings import printable, toml_key, toml_value
from cbandit.experiments.tables import ReadTable, in_words, no_numbers
from cbandit.policies.signs import Objective
from cbandit.problems.measured import apart, truths, yes_or_no

if TYPE_CHECKING:
    import pandas

MOST = 20  # most distinct values of a column that looks like a knob
WIDEST = 100  # most columns, as all are compared with each other
LIMIT = re.compile(r"^\s*(.+?)\s*(<=|>=)\s*(\S+)\s*$")

RULE = (
    f"numbers, more than {MOST} different ones and more than a quarter as many as rows"
)
HEAD = """\
# A study of {table}, {rows} rows: in each round every policy chooses among the measured
# settings. Run it and compare the policies with
#
#     cbandit run {file}
#     cbandit compare {results}
#
# A list in place of a value is a sweep: beta = [1.0, 2.0] plays two policies, and one
# in place of a limit or of horizon makes a folder of results for each entry. Where the
# value itself is a list, put it into another: clip = [[5.0, 2.0]].

horizon = 100  # rounds
trials = 10    # repetitions; in each, all policies meet the same noise
seed = 0       # of all random numbers
# design = 6   # first rounds, spread over the settings, the same for all policies; if
#              # left out, two for each knob and two more

[problem]
"""
POLICIES = """\

# The model of reward and costs. If left out, kernel, lengthscales and noise are learned
# (cb.GP.default). A policy may have its own: belief = { kernel = "rbf" }.
# [belief]
# kernel = "matern-5/2"  # or rbf, matern-3/2, matern-1/2, or "module:function"
# lengthscale = 0.2      # as a share of each knob's range
# noise = 0.01           # variance, as a share of that of reward or cost

# A type is a class of cbandit or cb.baselines, or your own "module:Class". The other
# keys are its arguments (help(cb.CKB) lists them). An argument that is an object is
# written as a table with a type: explore = { type = "TS", beta = 1.0 }.

[policies.CKB]  # keeps the average of all rounds within the limits
type = "CKB"

[policies.RPOL]  # avoids every excess: no later round makes up for it
type = "RPOL"

[policies.CONFIG]  # plays what could keep the limits, judged with optimism
type = "CONFIG"

[policies.Random]  # chooses at random: what the others should beat
type = "Random"
"""
ACQUISITION = """\

[policies.LogCEI]  # an acquisition function of BoTorch; any will do
type = "BoTorchPolicy"
acquisition = "LogConstrainedExpectedImprovement"
"""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        name: its name.
        words: its content in words, for a comment.
        numeric: whether it holds numbers.
        distinct: how many distinct values it has.
        middle: the median of its numbers.
        whole: whether its numbers are whole.
        yes_no: whether it holds yes and no, true and false, or both 0 and 1.
    """

    name: str
    words: str
    numeric: bool
    distinct: int
    middle: float = 0.0
    whole: bool = True
    yes_no: bool = False


@dataclass(frozen=True)
class Sketch:
    """A study file to write, with remarks to print.

    Args:
        text: the file's text.
        remarks: what was left out, converted or guessed, in words.
    """

    text: str
    remarks: tuple[str, ...]


def sketch(
    read: ReadTable,
    table: str,
    file: str,
    name: str,
    goal: tuple[str, str] | None = None,
    limits: Sequence[str] = (),
    contexts: Sequence[str] = (),
    failed: str | None = None,
) -> Sketch:
    """Return a study file for a table.

    Args:
        read: the table.
        table: the table's path, as written in the file.
        file: the path that the text will be written to.
        name: the study's name.
        goal: ``maximise`` or ``minimise``, and the column. Unless given, it is the
            first column that looks like a measurement.
        limits: limits as in ``"latency <= 20"``. If empty, other columns that look like
            measurements are kept below their medians; if there are none, the file asks
            for limits, and cannot run before it has some.
        contexts: the columns that are shown before a choice, and not chosen.
        failed: the column that says which rows failed.

    Columns that set nothing (see :func:`doubts`) are left out. If a goal and limits are
    given, all other columns are knobs. If not, a column of fractions that hardly repeat
    may be a measurement in a table of few rows. It counts as one if no goal or limit is
    given and no other column is clearly measured; the file then marks it as a guess.
    Otherwise it is neither, and the file offers a limit on it in a comment.
    """
    frame = read.frame
    _check_head(frame, table)
    columns = {str(k): _column(str(k), values) for k, values in frame.items()}
    taken = [*contexts] if failed is None else [*contexts, failed]
    for column in taken:
        _there(column, columns)
    if failed is not None:
        truths(frame, failed)
    if goal is not None:
        _known(goal[1], columns, frame)
    wanted: dict[str, str] = {}
    for column, limit in (_limit(words, columns, frame) for words in limits):
        twice = "has two limits" if column in wanted else ""
        if goal is not None and column == goal[1]:
            twice = f"is what to {goal[0]}, and has a limit"
        if twice:
            raise CBanditError(
                f"{column} {twice}: give the table a copy of it with another name, and "
                "limit that"
            )
        wanted[column] = limit
    for column in [*wanted, *([goal[1]] if goal else [])]:
        if column in taken:
            raise CBanditError(
                f"{column} is given by --context or --failed: it cannot be "
                "maximised, minimised or limited too"
            )
    every, columns = columns, {k: c for k, c in columns.items() if k not in taken}
    rows, told = len(frame), goal is not None
    stated = [*([goal[1]] if goal else []), *wanted]
    settled = goal is not None and bool(wanted)
    looks = [c.name for c in columns.values() if _looks_measured(c, rows)]
    looks = believable(frame, looks)
    odd = doubts(frame[list(columns)], stated or looks)
    measured = [] if settled else [m for m in looks if m not in odd]
    known = {*stated, *measured, *odd}
    others = [c for c in columns.values() if c.name not in known]
    needed = goal is None and all(column in wanted for column in measured)
    maybe = [] if settled else _maybe_measured(others, rows, needed)
    if needed and not stated:
        measured, maybe = maybe, []
    if goal is None:
        free = [column for column in [*measured, *maybe] if column not in wanted]
        if not free:
            raise CBanditError(
                f"{table} has no column of numbers, beside others as knobs, that could "
                "be a measurement: say which by --maximise or --minimise"
            )
        goal = ("maximise", free[0])
    guessed = not wanted
    if guessed:
        wanted = {m: _below(columns[m]) for m in measured if m != goal[1]}
    outcomes = {goal[1], *wanted}
    # a column may copy one that was taken for a measurement
    odd |= doubts(frame[[k for k in columns if k not in odd]], [*outcomes])
    maybe = [column for column in maybe if column not in {*outcomes, *odd}]
    reasons = {k: why for k, why in odd.items() if k not in outcomes}
    left = [m for m in measured if m not in outcomes] if stated else []
    lost = frame[[*outcomes]].isna().all(axis=1)
    doubtful: list[str] = []
    if settled:
        rest = [c for k, c in columns.items() if k not in {*outcomes, *reasons}]
        doubtful = [
            c.name for c in rest if _looks_measured(c, rows) or _hardly_repeats(c, rows)
        ]
        # rows that failed have knobs, and nothing that was measured
        bare = [c.name for c in rest if lost.any() and frame[c.name][lost].isna().all()]
        if len(bare) < len(rest):
            left += [k for k in doubtful if k in bare]
    reasons |= dict.fromkeys(left, "looks measured, and has no limit")
    knobs = [c for c in columns if c not in {*outcomes, *reasons, *maybe}]
    if not knobs:
        raise CBanditError(
            f"{table} has no column left that could be a knob"
            + "".join(f"; {k}: {why}" for k, why in reasons.items())
        )
    guesses = []
    if not told:
        guesses.append(
            f"{goal[0]} {goal[1]}: a guess; say it by --maximise or --minimise"
        )
    if guessed and wanted:
        named = ", ".join(wanted)
        guesses.append(
            f"limits of {named}: guesses, their medians; say them by --limit"
        )
    remarks = [*read.remarks, *(f"{k}: left out, {why}" for k, why in reasons.items())]
    since = ", since the outcomes are named" if settled else ""
    for k in knobs:
        unsure = ""
        if columns[k].yes_no or k in doubtful:
            unsure = f"{since}; if it was measured"
        elif knobs[1:] and not columns[k].numeric and apart(frame[k]):
            unsure = " with another text in every row; if it only names them"
        if unsure:
            remarks.append(f"{k}: taken as a knob{unsure}, take it out of knobs")
        if gaps := int(frame[k].isna().sum()):
            remarks.append(f"{k}: a knob that {gaps} rows lack: these are left out")
    kept = _kept(frame, wanted)
    remarks += kept
    other = "minimise" if goal[0] == "maximise" else "maximise"
    guess = "" if told else "a guess, from few rows; " if needed else "a guess; "
    mark = f"{guess}or {other}"
    lines = [
        f"table = {toml_value(table)}",
        f"{goal[0]} = {toml_value(goal[1])}  # {mark}",
        f"knobs = {toml_value(knobs)}" + "  # a guess: all others" * needed,
    ]
    if contexts:
        lines.append(
            f"contexts = {toml_value(list(contexts))}  # known before each choice"
        )
    empty = int(lost.sum())
    if failed is not None:
        lines.append(f"failed = {toml_value(failed)}  # true where a row failed")
    elif empty:
        lines.append(
            f"# failed = true  # if the {empty} rows without any outcome failed"
        )
    lines += [f"# {remark}" for remark in remarks if remark not in kept]
    if not contexts:
        again = bool(frame.duplicated(knobs).any())
        noise = "estimated from repeats" if again else "0, as no settings repeat"
        lines.append(
            f"# noise = 0.01  # variance of one measurement; if left out, {noise}"
        )
        if again:
            lines += [
                "# Where rows repeat settings, their mean is the truth. Or else",
                '# repeats = "resample"  # each trial has a table of rows drawn anew',
                '# repeats = "draw"      # each round observes one of these rows',
            ]
    offered = {column: _below(columns[column]) for column in maybe}
    if wanted:
        lines += ["", "[problem.limits]"]
        lines += _set(wanted, "  # a guess: its median" if guessed else "")
        lines += [f"# {words}" for words in kept]
        if offered:
            lines += [
                "# These may be measured too: limit them, here at their medians, or",
                "# write them into knobs.",
            ]
    else:
        offered = offered or {"COLUMN": "<= NUMBER"}
        lines += [
            "",
            "# Write one limit or more, on measured columns and not on a knob",
            f"# ({', '.join(knobs)}), and take the # away from these lines:",
            "# [problem.limits]",
        ]
    lines += [f"# {line}" for line in _set(offered, '  # or ">= NUMBER"')]
    lines += [
        "",
        "# All columns. Unless options say which were measured, it is those that hold",
        f"# {RULE}.",
    ]
    width = max(map(len, every))
    lines += [f"#   {c.name:<{width}}  {c.words}" for c in every.values()]
    # names and cells with line breaks would add lines of their own to comments
    lines = list(map(printable, lines))
    results = f"results/{name}"
    paths = {"table": table, "file": quote(file), "results": quote(results)}
    paths = {key: printable(path) for key, path in paths.items()}
    head = HEAD.format(rows=rows, **paths)
    policies = POLICIES + ("" if contexts else ACQUISITION)
    text = head + "\n".join(lines) + "\n" + policies
    return Sketch(text, (*guesses, *remarks))


def _check_head(frame: pandas.DataFrame, table: str) -> None:
    """Raise unless a table has rows and several columns."""
    if not len(frame):
        raise CBanditError(f"{table} has a head and no rows: there is nothing to learn")
    if len(frame.columns) < 2:
        raise CBanditError(
            f"{table} has one column alone, {frame.columns[0]!r}: fields are to be "
            "separated by commas, semicolons, tabs or |"
        )
    if len(frame.columns) > WIDEST:
        raise CBanditError(
            f"{table} has {len(frame.columns)} columns, and init takes {WIDEST}: give "
            "it a table of those that were chosen or measured"
        )
    if len(frame) == 1:
        raise CBanditError(f"{table} has one row: there is nothing to choose from")


def _kept(frame: pandas.DataFrame, limits: Mapping[str, str]) -> list[str]:
    """Return which limits no row or all rows meet, and whether any row meets all."""
    out, every = [], np.ones(len(frame), bool)
    for column, words in limits.items():
        sign, number = words.split()
        if yes_or_no(frame[column]):
            values = truths(frame, column)
        else:
            values = frame[column].to_numpy("float64")
        met = values <= float(number) if sign == "<=" else values >= float(number)
        told = met[~np.isnan(values)]
        every &= met
        if not told.any() or told.all():
            low, high = np.nanmin(values), np.nanmax(values)
            who = "every row meets" if told.all() else "no row meets"
            out.append(
                f"{who} the limit {column} {words}: its values are {low:g} to {high:g}"
            )
    if len(limits) > 1 and not every.any() and not out:
        out.append("no row meets all limits together")
    return out


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
        words = f"{distinct} text{'s' * (distinct != 1)}: {shown}{dots}{gaps}"
        return Column(name, words, False, distinct, yes_no=yes_or_no(values))
    whole = bool((known == known.round()).all())
    kind = "whole numbers" if whole else "numbers"
    words = f"{kind}, {known.min():g} to {known.max():g}, {distinct} distinct{gaps}"
    middle = float(known.median())
    return Column(name, words, True, distinct, middle, whole)


def _looks_measured(column: Column, rows: int) -> bool:
    return column.numeric and column.distinct > max(MOST, rows // 4)


def _hardly_repeats(column: Column, rows: int) -> bool:
    """Return whether a column holds fractions that hardly repeat."""
    return column.numeric and not column.whole and 4 * column.distinct > 3 * rows


def _maybe_measured(columns: list[Column], rows: int, needed: bool) -> list[str]:
    """Return columns that may be measured although :data:`RULE` does not say so.

    They are fractions that hardly repeat; if there are none and one is ``needed``, the
    later half of the columns of numbers. At least one column is left as a knob.
    """
    numbers = [c for c in columns if c.numeric]
    maybe = [c for c in numbers if _hardly_repeats(c, rows)]
    if needed and not 0 < len(maybe) < len(columns):
        maybe = numbers[len(numbers) // 2 :] if numbers[1:] else numbers
    return [c.name for c in maybe] if len(maybe) < len(columns) else []


def _below(column: Column) -> str:
    return f"<= {column.middle:.4g}"


def _set(limits: dict[str, str], more: str) -> list[str]:
    return [f"{toml_key(k)} = {toml_value(v)}{more}" for k, v in limits.items()]


def _there(name: str, columns: dict[str, Column]) -> None:
    if name not in columns:
        meant = near(name, columns)
        hint = f"; did you mean {meant}?" if meant else ""
        raise CBanditError(
            f"there is no column {name}; there are {', '.join(columns)}{hint}"
        )


def _known(name: str, columns: dict[str, Column], frame: pandas.DataFrame) -> None:
    """Raise unless a column is there and may be a measurement."""
    _there(name, columns)
    if columns[name].numeric or columns[name].yes_no:
        return
    texts = no_numbers(frame[name])
    such = f", such as {in_words(texts)}" if len(texts) else ""
    raise CBanditError(f"{name} holds texts{such}: it cannot be a measurement")


def _limit(
    words: str, columns: dict[str, Column], frame: pandas.DataFrame
) -> tuple[str, str]:
    """Split ``latency <= 20`` into the column and its limit."""
    match = LIMIT.match(words)
    if match is None:
        raise CBanditError(
            f"--limit takes 'COLUMN <= NUMBER' or >=, without a unit; got {words!r}"
        )
    name, sign, number = match.groups()
    _known(name, columns, frame)
    try:
        float(number)
    except ValueError:
        raise CBanditError(
            f"--limit {words}: {number} is not a number such as 0.5"
        ) from None
    limit = f"{sign} {number}"
    try:
        Objective([name], {name: limit}, False)
    except CBanditError as error:  # as a run would say
        raise CBanditError(f"--limit {words}: {error}") from None
    return name, limit
