"""The look of our figures: colours, a sheet of panels, a legend below them.

Each is drawn on a :class:`matplotlib.figure.Figure` of its own, so no display is needed
and pyplot is left alone. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING, Any

from cbandit.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by the colour-blind too; yellow is too faint
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
    "#7F7F7F",
)
MARKERS = "os^DvPX*<"  # 9 marks, 8 colours: the first 72 policies differ
DPI = 300
DASHES = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5, 1, 1.5)))
ONE, TWO = 3.4, 7.0  # inches: one column of a paper, and two
NARROW = 1.6  # the least width of a panel
STYLE = {
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.labelcolor": "#333333",
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8.5,
    "axes.labelsize": 7.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "font.size": 8,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 3.2,  # so that dashes can be seen
    "lines.markeredgecolor": "white",  # so that marks on jagged curves can be seen
    "lines.markeredgewidth": 0.5,
    "lines.markersize": 4.5,
    "savefig.dpi": DPI,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}


def look(k: int) -> dict[str, Any]:
    """Return colour, mark and dashes of the ``k``-th policy, in every figure.

    Marks and dashes tell policies apart in grey, and where colours begin again.
    """
    return {
        "color": COLOURS[k % len(COLOURS)],
        "marker": MARKERS[k % len(MARKERS)],
        "linestyle": DASHES[k % len(DASHES)],
    }


@contextmanager
def sheet(
    title: str | None,
    count: int,
    columns: int,
    row: float,
    rest: float,
    **shared: Any,
) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure and its panels ``(rows, columns)``, in our colours and fonts.

    Args:
        title: the title above all panels, on as many lines as the width needs.
        count: how many panels; the rest of the last row is hidden.
        columns: panels side by side.
        row, rest: heights of a row of panels, and of all else, in inches. The width is
            one column of a paper for one panel, two columns for more.
        shared: axes that the panels share, as for ``matplotlib``'s ``subplots``.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "figures need matplotlib: pip install 'cbandit[plots]'"
        ) from None
    rows = -(-count // columns)
    width = ONE if columns == 1 else max(TWO, NARROW * columns)
    size = width, row * rows + rest
    style: dict[Any, Any] = dict(STYLE)
    with matplotlib.rc_context(style):
        figure: Any = Figure(figsize=size, layout="constrained")
        figure._repr_png_ = partial(_png, figure)  # notebooks look for it
        panels = figure.subplots(rows, columns, squeeze=False, **shared)
        for panel in panels.flat[count:]:
            panel.set_visible(False)
        yield figure, panels
        letters = int((width / columns - 0.8) / 0.07)  # of a panel's title on a line
        for panel in panels.flat:
            panel.set_title(fill(panel.get_title("left"), letters))
        if title is not None:
            for said, sign in (("<=", "\u2264"), (">=", "\u2265"), ("=", "=")):
                # a line may end between limits or parameters, but not in one of them
                title = title.replace(f" {said} ", f"\u00a0{sign}\u00a0")
            figure.suptitle(title, x=0.01, ha="left", fontsize=9, wrap=True)
        _as_written(figure)


def _as_written(figure: Figure) -> None:
    """Let names show as they are, dollar signs too; powers of ten stay formulas."""
    from matplotlib.text import Text

    powers = {
        id(tick.label1)
        for panel in figure.axes
        for axis in (panel.xaxis, panel.yaxis)
        if axis.get_scale() == "log"
        for tick in (*axis.majorTicks, *axis.minorTicks)
    }
    for text in figure.findobj(Text):
        text.set_parse_math(id(text) in powers)


def columns_for(count: int) -> int:
    """Return how many of ``count`` panels stand side by side, in one row or two."""
    return count if count < 4 else 2 if count == 4 else 3


def _png(figure: Figure) -> bytes:
    """Return the figure as a PNG picture, which IPython shows without pyplot."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=figure.dpi)
    return file.getvalue()


def add_legend(figure: Figure, panels: Iterable[Axes]) -> None:
    """Add a legend of the panels' curves below all panels, in the columns that fit."""
    handles: dict[str, Any] = {}
    for panel in panels:
        shown, labels = panel.get_legend_handles_labels()
        handles.update(zip(labels, shown, strict=True))
    if not handles:
        return
    longest = max(len(line) for label in handles for line in label.split("\n"))
    inches = 0.7 + 0.068 * longest  # a line, gaps, letters of 8 points
    columns = max(1, min(len(handles), int(figure.get_figwidth() / inches)))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns
    )
