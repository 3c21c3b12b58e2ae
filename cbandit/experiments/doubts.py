"""Find the columns of a table that look like knobs but set nothing."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cbandit.problems.measured import FEW, apart, truths, yes_or_no

if TYPE_CHECKING:
    import pandas

# the last word of a column's name that numbers or names rows
IDENTIFIER = re.compile(r"(.*[\W_])?(id|uuid|guid|hash|sha|index|idx)", re.IGNORECASE)
# the same where its whole numbers rise from row to row
COUNT = re.compile(r"(.*[\W_])?(no|nr|row|run|trial|test|job)\W*", re.IGNORECASE)
# names of columns that say which rows failed, if they hold yes and no
FAILURE = re.compile(
    r"(.*[\W_])?(fail(s|ed|ure|ures)?|error|crash(ed)?)\W*", re.IGNORECASE
)
COMMENT = re.compile(
    r"(.*[\W_])?(comment|note|remark|description|kommentar|bemerkung|notiz)(s|en)?\W*",
    re.IGNORECASE,
)
TIME = re.compile(r".*(time|date|stamp|epoch|created|day).*", re.IGNORECASE)
DATE = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}( .*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?|\d{4}/\d{1,2}/\d{1,2}( .*)?"
)
EPOCHS = ((1e9, 2.5e9), (1e12, 2.5e12))  # seconds and milliseconds since 1970
RARE = 0.5  # share of the rows; a text column with more distinct values is no knob
COPY = 1e-3  # a column is a copy if a smaller share of its variance is unexplained
EXACT = 1e-12  # the same for a column computed from others
UNITS = (1.0, 1e3, 1e6, 1e9, 1024.0, 1024.0**2, 1024.0**3, 60.0, 3600.0, 100.0)
DECIMALS = 4  # to which a column may be rounded and still follow from others
HUGE = 1e50  # of smaller numbers the square of a product times a square is finite
LEAST = 8  # with fewer rows no column is said to follow from another
PAIRED = 20  # with more knobs, columns are not compared with pairs of them
LEVELS = 3  # rows for each value before a column is said to follow from another


def doubts(frame: pandas.DataFrame, outcomes: Sequence[str]) -> dict[str, str]:
    """Return the columns to leave out, with the reason for each.

    Args:
        frame: the rows.
        outcomes: the columns that were measured, which are not judged.
    """
    out: dict[str, str] = {}
    rows = len(frame)
    others = [str(name) for name in frame if name not in outcomes]
    for name in others:
        reason = _by_itself(name, frame[name], rows)
        reason = reason or _tells_failures(frame, name, outcomes)
        if reason:
            out[name] = reason
    left = [name for name in others if name not in out]
    copies = {name: c for name in left if (c := _copied(frame, name, outcomes))}
    # if all are copies, the outcome is a plain function of the knobs: keep them
    if len(copies) < len(left):
        out |= {name: f"a copy of {outcome}" for name, outcome in copies.items()}
    knobs: list[str] = []
    for name in others:
        if name not in out:
            reason = _follows(frame, name, knobs)
            if reason:
                out[name] = reason
            else:
                knobs.append(name)
    return out


def believable(frame: pandas.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the columns that may be measurements: not row numbers, dates or copies."""
    out: list[str] = []
    for name in names:
        if not _by_itself(name, frame[name], len(frame)):
            if not _copied(frame, name, out):
                out.append(name)
    return out


def _by_itself(name: str, column: pandas.Series[Any], rows: int) -> str:
    """Return why a column is no knob, by its values alone; empty if it may be one."""
    known = column.dropna()
    distinct = int(known.nunique())
    if distinct <= 1:
        return "the same in every row" if distinct else "without a value"
    number = getattr(column.dtype, "kind", "O") in "iuf"
    if not number and all(DATE.fullmatch(text.strip()) for text in known.astype(str)):
        return "dates or times"
    if number and TIME.fullmatch(name):
        for low, high in EPOCHS:
            if bool(known.between(low, high).all()):
                return "dates or times"
    if not number and COMMENT.fullmatch(name):
        return "comments"
    if IDENTIFIER.fullmatch(name) and distinct > RARE * rows:
        return "names the rows"
    rising = number and apart(column) and column.is_monotonic_increasing
    if rising and COUNT.fullmatch(name):
        return "another value in every row"
    if rows <= FEW:
        return ""
    if not number and apart(column):
        return "another value in every row"
    ranks = number and apart(column) and distinct == known.max() - known.min() + 1
    if ranks:
        return "another value in every row"
    if not number and distinct > RARE * rows:
        return f"texts that hardly repeat: {distinct} in {rows} rows"
    return ""


def _tells_failures(frame: pandas.DataFrame, name: str, outcomes: Sequence[str]) -> str:
    """Return in words that a column says which rows failed; empty if it does not.

    It does if one of its two values stands in just the rows without any outcome.
    """
    column = frame[name]
    lost = frame[list(outcomes)].isna().all(axis=1)
    truth = yes_or_no(column)
    exact = bool(lost.any()) and column.nunique() == 2 and not column.isna().any()
    exact = exact and column[lost].nunique() == 1 == column[~lost].nunique()
    if not exact and not (truth and FAILURE.fullmatch(name)):
        return ""
    how = ""
    if truth and (not exact or bool((truths(frame, name) == lost).all())):
        how = f"; --failed {shlex.quote(name)} lets these be learned"
    return f"says which rows failed{how}"


def _numbers(frame: pandas.DataFrame, names: Sequence[str]) -> np.ndarray | None:
    """Return some columns of numbers without missing cells, ``(n, k)``.

    ``None`` if one holds anything else, or numbers too large to square.
    """
    part = frame[list(names)]
    if any(getattr(part[name].dtype, "kind", "O") not in "iuf" for name in names):
        return None
    found = part.dropna().to_numpy("float64")
    return found if bool((np.abs(found) < HUGE).all()) else None


def _unexplained(x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of the variance of ``y`` that a line in ``x`` leaves over."""
    x, y = x - x.mean(), y - y.mean()
    size = float((x * x).sum() * (y * y).sum())
    return 1.0 if size == 0 else 1.0 - float((x * y).sum()) ** 2 / size


def _copied(frame: pandas.DataFrame, name: str, outcomes: Sequence[str]) -> str:
    """Return the outcome that a column copies, rounded or in another unit; or empty.

    An outcome may be a plain function of a knob, as a price is of a size. A copy is the
    same number in another unit, and has many values.
    """
    for outcome in outcomes:
        both = _numbers(frame, (name, outcome))
        if both is None or len(both) < LEAST or 4 * frame[name].nunique() < len(frame):
            continue
        x, y = both.T
        ratio = abs(float((x * y).sum() / (x * x).sum()))
        same = any(abs(max(ratio, 1 / ratio) / unit - 1) < 0.01 for unit in UNITS)
        if same and _unexplained(x, y) < COPY:
            return outcome
    return ""


def _follows(frame: pandas.DataFrame, name: str, knobs: Sequence[str]) -> str:
    """Return which knobs a column follows from, in words; empty if from none."""
    if len(frame) < LEAST:
        return ""
    for knob in knobs:
        both = _numbers(frame, (knob, name))
        if both is not None and len(both) >= LEAST:
            if _summed(both[:, :1], both[:, 1]):
                return f"follows from {knob}"
        pairs = frame[[knob, name]].dropna().drop_duplicates()
        levels = pairs[knob].nunique()
        if len(pairs) == levels and len(frame) >= LEVELS * levels:
            return f"follows from {knob}"
    for a, b in itertools.combinations(knobs, 2) if len(knobs) <= PAIRED else ():
        three = _numbers(frame, (a, b, name))
        if three is None or len(three) < LEAST:
            continue
        x, y, z = three.T
        with np.errstate(divide="ignore", invalid="ignore"):
            made = {"*": x * y, "+": x + y, "-": x - y, "/": x / y}
        for sign, value in made.items():
            if np.isfinite(value).all() and _unexplained(value, z) < EXACT:
                return f"follows from {a} {sign} {b}"
        if _summed(three[:, :2], z):
            return f"follows from {a} and {b}"
    return ""


def _summed(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether ``y (n,)`` is a weighted sum of the columns ``x (n, k)``.

    It is one if such a sum and a constant leave over no more than rounding: that of
    the computation, or that of ``y`` to as many decimals as it has.
    """
    centered = x - x.mean(0)
    size = np.linalg.norm(centered, axis=0)
    design = np.column_stack(
        [centered / np.where(size > 0, size, 1.0), np.ones(len(x))]
    )
    weights, _, rank, _ = np.linalg.lstsq(design, y)
    gap, spread = y - design @ weights, y - y.mean()
    left, whole = float(gap @ gap), float(spread @ spread)
    if rank < design.shape[1] or whole == 0:
        return False
    exact = [k for k in range(DECIMALS + 1) if np.array_equal(np.round(y, k), y)]
    rounded = bool(exact) and np.abs(gap).max() <= 0.51 * 10.0 ** -exact[0]
    return left < EXACT * whole or (rounded and left < COPY * whole)
