"""Public copies of the papers' data, turned into the files that experiments read."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from cbandit._core.files import atomic
from cbandit.errors import CBanditError
from cbandit.problems import data
from cbandit.problems.data import STOCKS, TEST, TRAIN, Needed

__all__ = ["digest", "written"]

KNOWN = (
    f"understood are iw_data_all.mat, the light sensors, and fin.csv, the stocks, both "
    f"of the GitHub repository {data.REPOSITORY}"
)


def written(path: Path, changed: bool = False) -> list[Path]:
    """Write what experiments read from one public copy; return where it lies.

    Nothing is written unless all of the file is in order.

    Args:
        path: of the copy: a ``.mat`` file with the sensors, a ``.csv`` with the stocks.
        changed: take numbers, too, that are not those of the published results.
    """
    if not path.is_file():
        raise CBanditError(f"{path} is not there; {KNOWN}")
    kinds = {".mat": _sensors, ".csv": _stocks}
    if path.suffix.lower() not in kinds:
        raise CBanditError(f"{path} is not a file that is understood; {KNOWN}")
    found = kinds[path.suffix.lower()](path)
    for wanted, (table, _) in found.items():
        _check(path, wanted, table, changed)
    folder = data.target()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CBanditError(
            f"{folder} cannot be made: {error.strerror}; name another folder in "
            "$CBANDIT_DATA"
        ) from None
    for wanted, (_, text) in found.items():
        with atomic(folder / wanted.name) as file:
            file.write(text)
    return [folder / wanted.name for wanted in found]


def digest(table: np.ndarray) -> str:
    """The SHA-256 digest of a table's numbers, row by row as 64-bit floats."""
    return hashlib.sha256(np.ascontiguousarray(table, "<f8").tobytes()).hexdigest()


def _check(path: Path, wanted: Needed, table: np.ndarray, changed: bool) -> None:
    shape = (wanted.rows, wanted.columns)
    if table.shape != shape:
        raise CBanditError(
            f"{path}: {wanted.name} has {wanted.rows} x {wanted.columns} numbers; "
            f"found {' x '.join(map(str, table.shape))}"
        )
    if not np.isfinite(table).all():
        raise CBanditError(f"{path}: numbers for {wanted.name} are missing or infinite")
    if not changed and digest(table) != wanted.digest:
        raise CBanditError(
            f"{path} has the right shape for {wanted.name}, but other numbers than our "
            f"results come from (digest {digest(table)[:12]}, not "
            f"{wanted.digest[:12]}): download it again, or take them with --changed"
        )


Found = dict[Needed, tuple[np.ndarray, bytes]]


def _sensors(path: Path) -> Found:
    """The readings in ``data.train.sensordata`` and ``data.test.sensordata``."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        raw: Any = loadmat(path, simplify_cells=True)
    except NotImplementedError:
        raise CBanditError(
            f"{path} is of MATLAB's format 7.3, which is not read: save it with '-v7'"
        ) from None
    except (MatReadError, ValueError, TypeError, OSError, EOFError) as error:
        raise CBanditError(f"{path} cannot be read: {error}; {KNOWN}") from None
    out: Found = {}
    for part, wanted in (("train", TRAIN), ("test", TEST)):
        try:
            table = np.asarray(raw["data"][part]["sensordata"], dtype=np.float64)
        except (KeyError, TypeError, IndexError, ValueError):
            raise CBanditError(
                f"{path} has no numbers in data.{part}.sensordata; {KNOWN}"
            ) from None
        text = io.BytesIO()
        np.savetxt(text, np.atleast_2d(table), fmt="%.17g", delimiter=",")
        out[wanted] = table, text.getvalue()
    return out


def _stocks(path: Path) -> Found:
    """The file itself: a line of names, then a date and 29 prices a day."""
    raw = path.read_bytes().replace(b"\r\n", b"\n")
    if not raw.startswith(b"Date,"):
        raise CBanditError(f"{path} does not begin with 'Date,'; {KNOWN}")
    return {STOCKS: (data.numbers(path, STOCKS), raw)}
