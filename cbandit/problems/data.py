"""Data files of the papers' experiments. The library does not ship them.

They are looked for in ``$CBANDIT_DATA``, in ``../shared/data`` relative to a checkout
and in the user's data folder. :func:`write_public` makes them from public copies.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit._core.files import atomic, whole
from cbandit.errors import CBanditError, MissingDataError

REPOSITORY = "sayakrc/Bayesian-Optimization-under-Heavy-tailed-Payoffs"
SOURCE = Path(__file__).resolve().parents[2]  # a checkout, or where it is installed


@dataclass(frozen=True)
class Needed:
    """A data file that experiments read.

    Args:
        name: the file's name.
        rows, columns: the shape of its table of numbers.
        digest: the digest of these numbers, see :func:`digest`.
        what: a description of the numbers.
        public: the file's name in the public copy's repository.
        skip: header lines and columns before the numbers.
    """

    name: str
    rows: int
    columns: int
    digest: str
    what: str
    public: str
    skip: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        numbers = f"{self.rows} x {self.columns} numbers"
        return f"{self.name} ({numbers}; {self.what}; {self.source})"

    @property
    def source(self) -> str:
        """Where the file can be had, and the command that converts it."""
        return (
            f"public copy: {self.public} in the GitHub repository {REPOSITORY}, which "
            f"`cbandit data {self.public}` turns into this file"
        )


_SENSORS = (
    "light sensors of the CMU Intelligent Workplace, November 2005, collected by A. "
    "Krause"
)
TRAIN = Needed(
    "light_train.csv",
    601,
    41,
    "8805f85cd59cc6cdf4a4af3a6bed8f3507c71af53721e48cd3d7777dea14bddd",
    _SENSORS,
    "iw_data_all.mat",
)
TEST = Needed(
    "light_test.csv",
    192,
    41,
    "53b0f47846621b9a03cb081478224ae1f28edae4cd7ac5bff8bbcc415e13686c",
    _SENSORS,
    "iw_data_all.mat",
)
STOCKS = Needed(
    "stocks_dow29_adjclose.csv",
    823,
    29,
    "9c1775745df557479bf46a5033e5412828fe8ef4ce9ea8644ad524079ddd8ae0",
    "adjusted closing prices of 29 stocks, 2016-01-04 to 2019-04-10",
    "fin.csv",
    (1, 1),
)


def folders() -> list[Path]:
    """Return the folders in which data files are looked for, in this order.

    These are ``$CBANDIT_DATA``, if it is set; ``../shared/data``, if this is a
    checkout; and the user's, by the XDG base directories.
    """
    named = os.environ.get("CBANDIT_DATA")
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    checkout = (SOURCE / "pyproject.toml").is_file()
    return [
        *([Path(named)] if named else []),
        *([_beside()] if checkout else []),
        Path(home) / "cbandit",
    ]


def _beside() -> Path:
    return SOURCE.parent / "shared" / "data"


def shown(folder: Path) -> str:
    """Return how a data folder is named to users: by variable, checkout or home."""
    named = os.environ.get("CBANDIT_DATA")
    if named and folder == Path(named):
        return f"$CBANDIT_DATA ({folder})"
    if folder == _beside():
        return "../shared/data of the checkout"
    home = Path.home()
    if folder.is_relative_to(home):
        return str(Path("~") / folder.relative_to(home))
    return str(folder)


def _numbers(path: Path, wanted: Needed) -> np.ndarray:
    """Return a file's numbers, in any shape; raise if it holds anything else."""
    lines, columns = wanted.skip
    try:
        return np.loadtxt(
            path,
            delimiter=",",
            skiprows=lines,
            usecols=range(columns, columns + wanted.columns),
            ndmin=2,
        )
    except (ValueError, IndexError, OSError) as error:
        raise MissingDataError(f"{path} is not {wanted}: {error}") from None


def _read(wanted: Needed) -> Tensor:
    for folder in folders():
        path = folder / wanted.name
        if not path.is_file():
            continue
        table = _numbers(path, wanted)
        if table.shape != (wanted.rows, wanted.columns):
            raise MissingDataError(f"{path} is not {wanted}: it has {table.shape}")
        return torch.as_tensor(table, dtype=torch.float64)
    unset = [] if os.environ.get("CBANDIT_DATA") else ["$CBANDIT_DATA (not set)"]
    places = " nor in ".join([*unset, *map(shown, folders())])
    raise MissingDataError(f"data file {wanted} is not in {places}")


def light() -> tuple[Tensor, Tensor]:
    """Return training ``(601, 41)`` and test ``(192, 41)`` readings of the sensors."""
    return _read(TRAIN), _read(TEST)


def stocks() -> Tensor:
    """Return adjusted closing prices, ``(823 days, 29 stocks)``."""
    return _read(STOCKS)


# -- public copies ---------------------------------------------------------------------

KNOWN = (
    f"understood are iw_data_all.mat, the light sensors, and fin.csv, the stocks, both "
    f"of the GitHub repository {REPOSITORY}"
)


def write_public(path: Path, changed: bool = False) -> list[Path]:
    """Turn one public copy into the files that experiments read; return their paths.

    The files go to ``$CBANDIT_DATA``, or to the user's folder if that is not set.
    Nothing is written unless the whole copy is in order.

    Args:
        path: the copy, a ``.mat`` file with the sensors or a ``.csv`` with the stocks.
        changed: also accept numbers that differ from those of our results.
    """
    if not path.is_file():
        raise CBanditError(f"{path} is not there; {KNOWN}")
    kinds = {".mat": _sensors, ".csv": _stocks}
    if path.suffix.lower() not in kinds:
        raise CBanditError(f"{path} is not a file that is understood; {KNOWN}")
    files = kinds[path.suffix.lower()](path)
    for wanted, (table, _) in files.items():
        _check(path, wanted, table, changed)
    folder = folders()[0 if os.environ.get("CBANDIT_DATA") else -1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CBanditError(
            f"{folder} cannot be made: {error.strerror}; name another folder in "
            "$CBANDIT_DATA"
        ) from None
    for wanted, (_, text) in files.items():
        with atomic(folder / wanted.name) as file:
            file.write(text)
    return [folder / wanted.name for wanted in files]


def digest(table: np.ndarray) -> str:
    """Return the SHA-256 digest of a table's numbers, row by row as 64-bit floats."""
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


Copies = dict[Needed, tuple[np.ndarray, bytes]]
"""The numbers and the text of each file that is made from a public copy."""


def _sensors(path: Path) -> Copies:
    """Read ``data.train.sensordata`` and ``data.test.sensordata``."""
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
    out: Copies = {}
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


def _stocks(path: Path) -> Copies:
    """Read the file: a line of names, then a date and 29 prices for each day."""
    raw = whole(path).replace(b"\r\n", b"\n")
    if not raw.startswith(b"Date,"):
        raise CBanditError(f"{path} does not begin with 'Date,'; {KNOWN}")
    return {STOCKS: (_numbers(path, STOCKS), raw)}
