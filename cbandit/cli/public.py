"""The command ``data``: public copies of the papers' data become usable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["data"]


def data(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    changed: Annotated[
        bool,
        typer.Option("--changed", help="Take other numbers than those of our results."),
    ] = False,
) -> None:
    """Turn public copies of the papers' data into what the experiments read.

    These are iw_data_all.mat (light sensors) and fin.csv (stocks), of the GitHub
    repository sayakrc/Bayesian-Optimization-under-Heavy-tailed-Payoffs. Shapes and
    digests are checked. The results go into $CBANDIT_DATA, or, if it is not set, into
    ~/.local/share/cbandit.

    Example: cbandit data iw_data_all.mat fin.csv
    """
    from cbandit.problems.data import write_public

    for file in files:
        for path in write_public(file, changed):
            print(f"{file}: {path}")
