"""The look of figures: colours, panels, legends, and a figure that notebooks show.

This module needs matplotlib. ``plots`` imports it when something is to be drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as _Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from cbandit.simulation.curves import EACH_ROUND, LABELS, Curve, Curves

__all__ = [
    "COLOURS",
    "MARKERS",
    "Figure",
    "add_headline",
    "add_legend",
    "draw_panel",
    "stop_of",
    "styled",
    "title_of",
]

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
MARKERS = "os^DvPX*"
_DASHES = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5, 1, 1.5)))
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.labelcolor": "#333333",
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "font.size": 10,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "savefig.dpi": 160,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}


class Figure(_Figure):
    """A figure that IPython shows as a picture, without pyplot."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png", dpi=self.dpi)
        return file.getvalue()


def styled() -> AbstractContextManager[None]:
    """Our colours and fonts, while it is entered."""
    return matplotlib.rc_context(_STYLE)


def title_of(metric: str, reward: str = "reward") -> str:
    """A metric's name with a capital letter, the reward by what it is called."""
    words = LABELS[metric].replace("reward", reward)
    if metric == "regret" and reward != "reward":
        words = f"regret in {reward}"
    return words[0].upper() + words[1:]


def add_headline(figure: Figure, title: str | None) -> None:
    """Put a title at the left, on as many lines as the figure's width asks for."""
    if title is not None:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, wrap=True)


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Put a legend below all panels, in as many columns as its names leave room for."""
    inches = 0.7 + 0.085 * max(map(len, labels))  # a line, gaps, letters of 10 points
    columns = max(1, min(len(labels), int(figure.get_figwidth() / inches)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def stop_of(each: Mapping[str, Curve]) -> int | None:
    """The round from which half of a policy's trials have stopped, if they have."""
    if "stopped" not in each:
        return None
    over = each["stopped"].mean >= 0.5
    return int(each["stopped"].t[over][0]) if bool(over.any()) else None


def draw_panel(
    panel: Axes,
    table: Curves,
    name: str,
    *,
    spread: str,
    width: float,
    average: bool = False,
    log: bool = False,
    order: Sequence[str] | None = None,
    reward: str = "reward",
    zero: bool = True,
) -> None:
    """Draw one metric, a curve and a band for each policy.

    Args:
        panel: where to draw.
        table: the curves; policies without this metric are left out.
        name: the metric.
        spread: ``"sem"`` or ``"std"``, the band.
        width: how many of them to either side.
        average: whether the curves are time averages.
        log: whether rounds are on a logarithmic axis.
        order: all policies of the figure, whose places settle colours and dashes; the
            table's unless given.
        reward: what the reward is called.
        zero: whether a line marks 0, where that tells something.
    """
    last, places = 1, list(table if order is None else order)
    for policy, each in table.items():
        if name in each:
            k = places.index(policy)
            _draw_curve(panel, each[name], name, policy, k, spread, width)
            _mark_stop(panel, stop_of(each), policy, COLOURS[k % len(COLOURS)])
            last = max(last, int(each[name].t[-1]))
    if name in LABELS:
        panel.set_title(title_of(name, reward) + (" / t" if average else ""))
    panel.set_axisbelow(True)
    panel.margins(x=0)
    if log:
        panel.set_xscale("log")
        panel.set_xlim(1, max(2, last))
        if not average:
            panel.set_xlabel("round, logarithmic")
    else:
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panel.set_xlim(0, last)
    whole = name == "rounds_in_violation" and not average
    panel.yaxis.set_major_locator(MaxNLocator(5, integer=whole))
    bottom, top = panel.get_ylim()
    if zero and top - bottom < 0.12 and not average and name not in EACH_ROUND:
        # an account that stays at 0 shall look like it, not like its rounding
        panel.set_ylim(-0.05, 1)
    if zero and name != "best_feasible":  # whose values may lie far from 0
        panel.axhline(0, color="#999999", linewidth=0.8, zorder=1)


def _draw_curve(
    panel: Axes,
    curve: Curve,
    name: str,
    policy: str,
    k: int,
    spread: str,
    width: float,
) -> None:
    t, mean = curve.t.numpy(), curve.mean.numpy()
    band = width * (curve.sem if spread == "sem" else curve.std).numpy()
    colour = COLOURS[k % len(COLOURS)]
    # dashes as well as colours: curves that lie on each other stay visible
    style: Any = _DASHES[k % len(_DASHES)]
    panel.plot(
        t, mean, color=colour, linestyle=style, linewidth=1.7, label=policy, zorder=3
    )
    low = mean - band
    if name.endswith("violation"):
        low = low.clip(min=0)  # no violation can be negative
    panel.fill_between(t, low, mean + band, color=colour, alpha=0.13, linewidth=0)


def _mark_stop(panel: Axes, stop: int | None, policy: str, colour: str) -> None:
    if stop is None:
        return
    panel.axvline(stop, color=colour, linestyle=":", linewidth=1.2)
    panel.annotate(
        f"{policy} stops",
        (stop, 0.98),
        xycoords=("data", "axes fraction"),
        xytext=(3, 0),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color=colour,
    )
