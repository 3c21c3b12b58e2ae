"""Data files of the papers' experiments. The library does not ship them.

They are looked for in ``$CBANDIT_DATA``, in ``../shared/data`` beside a checkout and in
the user's data folder. :mod:`cbandit.problems.public` writes them from public copies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cbandit.errors import MissingDataError

__all__ = [
    "STOCKS",
    "TEST",
    "TRAIN",
    "Needed",
    "folders",
    "light",
    "numbers",
    "stocks",
    "target",
]

REPOSITORY = "sayakrc/Bayesian-Optimization-under-Heavy-tailed-Payoffs"


@dataclass(frozen=True)
class Needed:
    """A data file that experiments read.

    Args:
        name: of the file.
        rows, columns: of its numbers.
        digest: of these numbers, see :func:`cbandit.problems.public.digest`.
        what: what they are, in words.
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
        """Where it can be had, and the command that makes it usable."""
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
    """The folders in which data files are looked for, in this order."""
    given = os.environ.get("CBANDIT_DATA")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return ([Path(given)] if given else []) + [beside, _own()]


def _own() -> Path:
    """The user's folder, as the XDG base directories have it."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "cbandit"


def target() -> Path:
    """The folder into which files are written: ``$CBANDIT_DATA``, or the user's."""
    given = os.environ.get("CBANDIT_DATA")
    return Path(given) if given else _own()


def numbers(path: Path, wanted: Needed) -> np.ndarray:
    """A file's numbers, of any shape; an error if it holds anything else."""
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
        table = numbers(path, wanted)
        if table.shape != (wanted.rows, wanted.columns):
            raise MissingDataError(f"{path} is not {wanted}: it has {table.shape}")
        return torch.as_tensor(table, dtype=torch.float64)
    places = " nor in ".join(str(folder) for folder in folders())
    hint = "" if os.environ.get("CBANDIT_DATA") else " ($CBANDIT_DATA is not set)"
    raise MissingDataError(f"data file {wanted} is not in {places}{hint}")


def light() -> tuple[Tensor, Tensor]:
    """Training ``(601, 41)`` and test ``(192, 41)`` readings of the light sensors."""
    return _read(TRAIN), _read(TEST)


def stocks() -> Tensor:
    """Adjusted closing prices, ``(823 days, 29 stocks)``."""
    return _read(STOCKS)
