"""Read CSV files as people write them: separators, decimal commas, units in cells."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cbandit._core.files import whole
from cbandit.errors import CBanditError

if TYPE_CHECKING:
    import pandas

SEPARATORS = ",;\t|"
LOOKED = 50  # lines from which the separator is guessed
MISSING = {"", "-", "--", "?"}  # empty cells in a column of numbers
NUMBER = re.compile(
    r"([-+]?[\d.,]*\d(?:[eE][-+]?\d+)?)"
    r"\s*((?:°?[^\W\d_]+|[%‰°€$£])(?:/[^\W\d_]+)?)?"
)
SHOWN = 12  # most lines that a remark names
STRAY = 0.1  # largest share of texts in a column that was meant to hold numbers
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")  # in no table, but in most other files
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
# units that a column may mix; cells are converted to the first unit of a line
FAMILIES: tuple[dict[str, float], ...] = (
    {"s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60, "h": 3600},
    {"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    {"KiB": 1, "MiB": 1 << 10, "GiB": 1 << 20, "TiB": 1 << 30},
    {"Hz": 1, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
)


class ReadTable(NamedTuple):
    """A table as it was read.

    Args:
        frame: its rows, labelled by line number, with the head as line 1.
        remarks: what was recognised or converted, in words.
    """

    frame: pandas.DataFrame
    remarks: tuple[str, ...]


def read_table(path: Path) -> ReadTable:
    """Read a CSV file; columns of numbers with units or decimal commas are numbers."""
    import pandas

    try:
        raw = whole(path)
        encoding = "utf-8-sig" if _is_utf8(raw) else "cp1252"
        text = raw.decode(encoding, "replace" if encoding == "cp1252" else "strict")
        if CONTROL.search(text) or (encoding == "cp1252" and "\ufffd" in text):
            raise ValueError(
                "it is no text (a compressed table is to be unpacked first, and a "
                "spreadsheet exported as CSV in UTF-8)"
            )
        if not text.strip():
            raise ValueError("it is empty, and needs a line of names and rows")
        separator = _separator(text)
        lines = csv.reader(
            io.StringIO(text), delimiter=separator, skipinitialspace=True
        )
        head, *rows = [*itertools.islice(filter(None, lines), 2)] or [[]]
        names = Counter(name.strip() for name in head)
        twice = [name for name, count in names.items() if name and count > 1]
        if twice:
            raise CBanditError(f"{path} has several columns {twice[0]!r}: rename them")
        # as it is: pandas would inflate data.csv.gz, however large it becomes
        frame = pandas.read_csv(
            path,
            sep=separator,
            encoding=encoding,
            compression=None,
            skipinitialspace=True,
        )
    except CBanditError:
        raise
    except OSError as error:
        raise CBanditError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        said = str(error).strip()
        raise CBanditError(f"{path} cannot be read as CSV: {said}") from None
    remarks = []
    if separator != ",":
        shown = "tabs" if separator == "\t" else repr(separator)
        remarks.append(f"columns are separated by {shown}")
    if rows and len(rows[0]) > len(head):
        frame = _under_head(frame, path)
    frame.columns = [str(name).strip() for name in frame.columns]
    frame.index = pandas.RangeIndex(2, 2 + len(frame), name="line")
    frame, copies = _once(frame)
    if copies:
        remarks.append(
            "rows that are copies of others in every column and are left out: "
            f"{len(copies)}, at line {listed(copies)}"
        )
    for name in frame.columns.unique():
        column = frame[name]
        if column.ndim == 1 and not pandas.api.types.is_numeric_dtype(column):
            numbers = _as_numbers(column.dropna().astype(str), separator)
            if numbers is not None:
                values, words = numbers
                frame[name] = pandas.Series(values, dtype="float64").reindex(
                    frame.index
                )
                remarks.append(f"{name}: {words}")
            elif why := _why_texts(column):
                remarks.append(f"{name}: taken as texts, as {why}")
    return ReadTable(frame, tuple(remarks))


def _under_head(frame: pandas.DataFrame, path: Path) -> pandas.DataFrame:
    """Return a frame, read from rows longer than their head, without surplus cells.

    Pandas took the first cells of such rows as labels. Surplus cells must be empty.
    """
    import pandas

    head, cells = list(frame.columns), frame.reset_index(names=None)
    cells.columns = pandas.RangeIndex(cells.shape[1])
    if cells[cells.columns[len(head) :]].notna().any(axis=None):
        raise CBanditError(
            f"{path} names {len(head)} columns in its first line, and its rows have "
            f"{cells.shape[1]} cells: give each column a name"
        )
    return cells[cells.columns[: len(head)]].set_axis(head, axis=1)


def _once(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, list[int]]:
    """Return a frame without copies of rows, and the lines of these copies.

    Equal rows are copies if some column tells all other rows apart, as a time or a
    precise measurement does. Otherwise they may be measurements that came out equal.
    """
    copies = frame.duplicated()
    first = frame[~copies]
    apart = (first[name] for name in frame.columns.unique())
    if not 0 < 2 * copies.sum() < len(frame) or not any(
        column.ndim == 1 and column.is_unique and column.notna().all()
        for column in apart
    ):
        return frame, []
    return first.copy(), frame.index[copies].tolist()


def no_numbers(column: pandas.Series[Any]) -> pandas.Series[Any]:
    """Return the cells of a column that are no numbers, with or without a unit."""
    cells = column.dropna().astype(str).str.strip()
    return cells[[not NUMBER.fullmatch(cell) for cell in cells]]


def _why_texts(column: pandas.Series[Any]) -> str:
    """Return why a column that seems to hold numbers does not; empty if it does not."""
    texts, count = no_numbers(column), column.count()
    if 0 < len(texts) <= STRAY * count:
        return f"{len(texts)} of {count} cells are no numbers: {in_words(texts)}"
    return ""


def listed(lines: Sequence[Any]) -> str:
    """Return the numbers of some lines in words, at most :data:`SHOWN` of them."""
    return ", ".join(map(str, lines[:SHOWN])) + ", ..." * (len(lines) > SHOWN)


def in_words(cells: pandas.Series[Any]) -> str:
    """Return the first of some cells and its place, such as ``'no' in line 3``."""
    return f"{cells.iloc[0]!r} in line {cells.index[0]}"


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    return True


def _separator(text: str) -> str:
    """Return the separator that gives the most lines as many fields as the head."""
    lines = [line for line in text.splitlines() if line.strip()][:LOOKED]

    def score(separator: str) -> tuple[int, int]:
        rows = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
        width = len(rows[0]) if rows else 1
        return (sum(len(row) == width for row in rows) if width > 1 else 0, width)

    return max(SEPARATORS, key=score)  # of equal ones the first, a comma


def _as_numbers(
    column: pandas.Series[Any], separator: str
) -> tuple[dict[Any, float], str] | None:
    """Return a column's numbers by row, and how they were read; ``None``: texts."""
    texts = {row: text.strip() for row, text in column.items()}
    told = {row: text for row, text in texts.items() if text not in MISSING}
    matches = {row: NUMBER.fullmatch(text) for row, text in told.items()}
    if not told or not all(matches.values()):
        return None
    parts = {row: match.groups() for row, match in matches.items() if match}
    units = Counter(unit for _, unit in parts.values() if unit)
    factors = _factors(units) if len(units) != 1 else dict.fromkeys(units, 1.0)
    if factors is None or (len(units) > 0 and None in {u for _, u in parts.values()}):
        return None
    commas = [number for number, _ in parts.values() if "," in number]
    grouped = separator == "," and all(map(THOUSANDS.fullmatch, commas))
    values = {}
    for row, (number, unit) in parts.items():
        if commas:
            number = number.replace(*((",", "") if grouped else (".", "")))
        try:
            value = float(number.replace(",", "."))
        except ValueError:
            return None
        values[row] = value * factors.get(unit, 1.0)
    words = []
    if units:
        first = next(unit for _, unit in parts.values() if unit)
        mixed = f" ({', '.join(units)} are mixed)" if len(units) > 1 else ""
        words.append(f"numbers in {first}, the unit is taken off{mixed}")
    if commas:
        words.append(f"commas are {'for thousands' if grouped else 'decimal'}")
    gone = len(texts) - len(told)
    if gone:
        words.append(f"{gone} cells without a number are missing values")
    return values, ", ".join(words) or "numbers"


def _factors(units: Iterable[str]) -> dict[str, float] | None:
    """Return the factors that convert units of a family to the first one."""
    names = list(units)
    if not names:
        return {}
    for family in FAMILIES:
        if all(name in family for name in names):
            return {name: family[name] / family[names[0]] for name in names}
    return None
