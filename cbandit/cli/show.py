"""Commands that show results and the machine: ``compare``, ``plot``, ``info``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cbandit.errors import CBanditError


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...")],
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="policy, folder, or a parameter in which the folders differ.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Compare with this, not with the first."),
    ] = None,
    all_pairs: Annotated[
        bool, typer.Option("--all-pairs", help="Compare all pairs.")
    ] = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="Print a table for a paper.")
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the differences."),
    ] = None,
) -> None:
    """Compare results trial by trial: paired differences, with their intervals.

    Compares the policies of one folder, or several folders policy by policy. The 95 %
    intervals are by the studentised bootstrap; they need 6 trials. Where so many trials
    are equal that 1 % of resamples have no spread, they reach as far as Student's too.
    A star marks differences that are significant after Holm's correction for all
    differences in the column.

    Example: cbandit compare results/mine results/other --latex
    """
    from cbandit.experiments import compare as comparing
    from cbandit.experiments.catalogue import kept_in
    from cbandit.experiments.figures import draw_comparison

    settings = [kept_in(folder).settings for folder in folders]
    pairs = list(zip(folders, settings, strict=True))
    compared = comparing.compare(pairs, by, baseline, all_pairs)
    words = comparing.in_latex if latex else comparing.in_lines
    print("\n".join(words(compared, settings[0])))
    if figure is not None:
        draw_comparison(compared, settings, figure)
        print(f"{'% ' if latex else ''}{figure}")


def plot(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...")],
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="One figure of all, a row for each folder."),
    ] = None,
    panels: Annotated[
        str | None,
        typer.Option(
            metavar="PARAM",
            help="With --figure: draw only regret, a panel for each value.",
        ),
    ] = None,
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Write PDF files beside the PNG ones.")
    ] = False,
) -> None:
    """Draw the figures again from the results in one or several folders.

    They are as wide as one or two columns of a paper. The ending of --figure FILE
    chooses its format.

    Example: cbandit plot results/four-0.8 results/four-0.2 --figure four.png
    """
    from cbandit.experiments.catalogue import kept_in
    from cbandit.experiments.figures import Outcome, draw_together
    from cbandit.experiments.results import read_boxes, read_curves, read_summary

    if pdf and figure is not None:
        raise CBanditError("--pdf goes without --figure, whose ending says its format")
    if panels is not None and figure is None:
        raise CBanditError("--panels goes with --figure FILE")
    outcomes = []
    for folder in folders:
        curves, job = read_curves(folder), kept_in(folder)
        design = read_summary(folder).get("design", 0)
        outcome = Outcome(job.experiment, job.settings, curves, folder.name, design)
        outcomes.append(outcome)
        if figure is None:
            kinds = ("png", "pdf") if pdf else ("png",)
            for path in outcome.draw(read_boxes(folder), folder, kinds):
                print(path)
    if figure is not None:
        draw_together(outcomes, figure, panels)
        print(figure)


def info() -> None:
    """Show versions, devices, data folders, and the engine for each size of set.

    Example: cbandit info
    """
    import platform

    import torch

    from cbandit.experiments.settings import versions
    from cbandit.posterior import describe_engines
    from cbandit.problems.data import folders, shown

    for name, version in versions().items():
        print(f"{name}: {version}")
    print(f"cpu: {platform.processor() or platform.machine()}, ", end="")
    print(f"{torch.get_num_threads()} threads")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(k) for k in range(count)]
    print("cuda: " + (", ".join(names) or "none"))
    for folder in folders():
        print(f"data: {shown(folder)}" + ("" if folder.is_dir() else " (not there)"))
    print(describe_engines())
