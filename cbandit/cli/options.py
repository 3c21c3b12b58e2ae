"""The options that commands share, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cbandit.errors import CBanditError

__all__ = [
    "Device",
    "Dtype",
    "Every",
    "Horizon",
    "More",
    "Out",
    "Policies",
    "Resume",
    "Seed",
    "Set",
    "Trials",
    "Trust",
    "Workers",
    "options",
    "pairs",
]

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PARAM=VALUE ...",
        help="Parameters, after one --set or several.",
    ),
]
# an option takes one value: what follows it comes as arguments
More = Annotated[
    list[str] | None,
    typer.Argument(metavar="PARAM=VALUE", help="More parameters, beside --set."),
]
Trials = Annotated[
    int | None, typer.Option("--trials", min=1, help="Independent replications.")
]
Horizon = Annotated[int | None, typer.Option("--horizon", min=1, help="Rounds.")]
Policies = Annotated[
    str | None,
    typer.Option("--policies", metavar="A,B", help="Some of the policies, by name."),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Of every draw.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="cpu|cuda", help="Where to compute.")
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", metavar="float64|float32", help="Precision.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder of the results."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with what is in the folder.")
]
Workers = Annotated[
    str,
    typer.Option(
        "--workers", metavar="N|ray", help="Processes to share the trials, or Ray's."
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        help="A module of yours that a folder of results may name; may be repeated.",
    ),
]
Every = Annotated[
    int,
    typer.Option(
        "--every", metavar="N", min=1, help="Write one round in N to rounds.parquet."
    ),
]


def pairs(given: list[str] | None, more: list[str] | None = None) -> dict[str, str]:
    """The parameters of ``--set PARAM=VALUE ...``, by name."""
    if more and not given:
        raise CBanditError(f"{more[0]} is unexpected; parameters follow --set")
    out = {}
    for pair in [*(given or ()), *(more or ())]:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CBanditError(f"--set takes PARAM=VALUE; got {pair!r}")
        if name.strip() in out:
            raise CBanditError(f"--set {name.strip()} is there twice; give it once")
        out[name.strip()] = value.strip()
    return out


def options(
    trials: int | None,
    horizon: int | None,
    policies: str | None,
    seed: int | None,
    device: str | None,
    dtype: str | None,
) -> dict[str, Any]:
    """The settings that a command was given; ``None`` where it was not."""
    names = None
    if policies is not None:
        names = [name.strip() for name in policies.split(",") if name.strip()]
    return {
        "trials": trials,
        "horizon": horizon,
        "policies": names,
        "seed": seed,
        "device": device,
        "dtype": dtype,
    }
