"""The options that `reproduce` and `run` share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cbandit.errors import CBanditError


@dataclass
class Options:
    """The options that were given; ``None`` for each that was not."""

    # an option takes one value; further values come as arguments
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="PARAM=VALUE", help="More parameters after --set."),
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PARAM=VALUE ...",
            help="Parameters of the experiment; may be repeated.",
        ),
    ] = None
    trials: Annotated[
        int | None, typer.Option(min=1, help="Independent replications.")
    ] = None
    horizon: Annotated[int | None, typer.Option(min=1, help="Rounds to play.")] = None
    policies: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Names of the policies to play."),
    ] = None
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all draws.")] = None
    device: Annotated[
        str | None,
        typer.Option(metavar="cpu|cuda", help="Where to compute."),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(metavar="float64|float32", help="Precision of numbers."),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the results."),
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder.")
    ] = False
    workers: Annotated[
        str,
        typer.Option(metavar="N|ray", help="Processes that share the trials, or Ray."),
    ] = "1"
    every: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Write one round in N to rounds.parquet."
        ),
    ] = 1
    figures: Annotated[
        bool,
        typer.Option(
            "--figures/--no-figures",
            help="Whether to draw figures; `cbandit plot DIR` draws them later.",
        ),
    ] = True
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="A module of yours that a results folder may import; may be repeated.",
        ),
    ] = None

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of ``--set PARAM=VALUE ...``, by name."""
        if self.more and not self.set_:
            raise CBanditError(f"{self.more[0]} is unexpected; parameters follow --set")
        values: dict[str, str] = {}
        for pair in [*(self.set_ or ()), *(self.more or ())]:
            name, equals, value = pair.partition("=")
            if not equals or not name:
                raise CBanditError(f"--set takes PARAM=VALUE; got {pair!r}")
            if name.strip() in values:
                raise CBanditError(f"--set {name.strip()} is there twice; give it once")
            values[name.strip()] = value.strip()
        return values

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of an experiment that have their own options."""
        names = ("trials", "horizon", "policies", "seed", "device", "dtype")
        settings = {name: getattr(self, name) for name in names}
        if self.policies is not None:
            listed = (name.strip() for name in self.policies.split(","))
            settings["policies"] = [name for name in listed if name]
        return settings


def with_options(command: Callable[[Any, Options], None]) -> Callable[..., None]:
    """Return a command of one argument that also takes all of :class:`Options`."""
    first = next(iter(inspect.signature(command, eval_str=True).parameters.values()))
    options = inspect.signature(Options, eval_str=True).parameters.values()

    @functools.wraps(command)
    def called(**values: Any) -> None:
        command(values.pop(first.name), Options(**values))

    # typer reads a command's arguments from its signature
    called.__signature__ = inspect.Signature([first, *options])  # type: ignore[attr-defined]
    return called
