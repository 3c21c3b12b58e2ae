"""The command line, ``cbandit``: a file for each group of commands.

``play`` has the commands that run experiments and prepare their data, ``show`` those
that show results. Commands import what they need when they run.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cbandit.cli.play import data, init, list_, reproduce, run
from cbandit.cli.show import compare, info, plot
from cbandit.errors import CBanditError

__all__ = ["app", "main"]

app = typer.Typer(
    name="cbandit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Constrained bandits: the papers' experiments, and studies of your own.",
)
app.command("list")(list_)
for command in (init, data, reproduce, run, compare, plot, info):
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        from cbandit import __version__

        print(f"cbandit {__version__}")
        raise typer.Exit


@app.callback()
def _before_all(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print it."),
    ] = False,
) -> None: ...


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's error prints one line and exits with code 2."""
    try:
        app(args=arguments)
    except CBanditError as error:
        from cbandit.experiments.settings import printable

        # a file's names may hold what a terminal would obey
        lines = map(printable, f"Error: {error}".split("\n"))
        print("\n".join(lines), file=sys.stderr)
        raise SystemExit(2) from None
    except ImportError as error:
        if error.name is None or error.name.startswith("cbandit"):
            raise
        print(
            f"Error: {error.name} is not installed: pip install 'cbandit[experiments]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
