"""Data files of the papers' experiments. The library does not ship them.

They are looked for in ``$CBANDIT_DATA``, then in ``../shared/data`` beside a checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cbandit.errors import MissingDataError

__all__ = ["folders", "light", "stocks"]

_LIGHT = (
    "light sensors of the CMU Intelligent Workplace, November 2005, collected by "
    "A. Krause; public copy: iw_data_all.mat in the GitHub repository "
    "sayakrc/Bayesian-Optimization-under-Heavy-tailed-Payoffs"
)
_STOCKS = (
    "adjusted closing prices of 29 stocks, 2016-01-04 to 2019-04-10; public copy: "
    "fin.csv in the GitHub repository "
    "sayakrc/Bayesian-Optimization-under-Heavy-tailed-Payoffs"
)


def folders() -> list[Path]:
    """The folders in which data files are looked for, in this order."""
    given = os.environ.get("CBANDIT_DATA")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return ([Path(given)] if given else []) + [beside]


def _read(
    file: str, rows: int, columns: int, what: str, *, skip: tuple[int, int] = (0, 0)
) -> Tensor:
    """Read ``(rows, columns)`` numbers after ``skip`` header lines and columns."""
    wanted = f"{file} ({rows} x {columns} numbers; {what})"
    for folder in folders():
        path = folder / file
        if not path.is_file():
            continue
        try:
            table = np.loadtxt(
                path,
                delimiter=",",
                skiprows=skip[0],
                usecols=range(skip[1], skip[1] + columns),
                ndmin=2,
            )
        except (ValueError, IndexError, OSError) as error:
            raise MissingDataError(f"{path} is not {wanted}: {error}") from None
        if table.shape != (rows, columns):
            raise MissingDataError(f"{path} is not {wanted}: it has {table.shape}")
        return torch.as_tensor(table, dtype=torch.float64)
    places = " nor in ".join(str(folder) for folder in folders())
    hint = "" if os.environ.get("CBANDIT_DATA") else " ($CBANDIT_DATA is not set)"
    raise MissingDataError(f"data file {wanted} is not in {places}{hint}")


def light() -> tuple[Tensor, Tensor]:
    """Training ``(601, 41)`` and test ``(192, 41)`` readings of the light sensors."""
    train = _read("light_train.csv", 601, 41, _LIGHT)
    return train, _read("light_test.csv", 192, 41, _LIGHT)


def stocks() -> Tensor:
    """Adjusted closing prices, ``(823 days, 29 stocks)``."""
    return _read("stocks_dow29_adjclose.csv", 823, 29, _STOCKS, skip=(1, 1))
