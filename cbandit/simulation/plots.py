"""Figures of the account: curves over the rounds, with a band for the spread of trials.

Each is drawn on a :class:`matplotlib.figure.Figure` of its own, so no display is needed
and pyplot is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbandit._core import checks
from cbandit._core.files import atomic
from cbandit.errors import CBanditError
from cbandit.simulation.averages import costs, drawing
from cbandit.simulation.curves import (
    LABELS,
    NAMED,
    Curve,
    Curves,
    HasCurves,
    averaged,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "LABELS",
    "Curves",
    "Level",
    "boxes",
    "comparison",
    "costs",
    "curves",
    "differences",
    "evolution",
    "overview",
    "save",
    "trade_off",
]

Level = tuple[str, float, str]
"""A horizontal line: what it is called, its height, its colour."""


def curves(
    runs: Sequence[HasCurves],
    metrics: Sequence[str] = tuple(LABELS),
    points: int | None = 1000,
    average: bool = False,
) -> Curves:
    """The curves of several runs, by policy and metric; see :meth:`Run.curve`.

    Costs with names have ``"cost NAME"`` and ``"limit NAME"`` too.
    """
    listed = isinstance(runs, list | tuple)
    if not listed or not all(isinstance(run, HasCurves) for run in runs):
        raise CBanditError(f"runs must be a list of cb.Run; got {runs!r}")
    names = [run.policy for run in runs]
    if len(set(names)) != len(names):
        raise CBanditError(
            f"runs must be of policies of different names; got {names}: set "
            "policy.name before the run, or dataclasses.replace(run, policy=...)"
        )
    table = {
        run.policy: {name: run.curve(name, points, average) for name in metrics}
        for run in runs
    }
    for run in runs:
        for name in (f"{kind} {cost}" for kind in NAMED for cost in run.cost_names):
            table[run.policy][name] = run.curve(name, points, average)
        if run.stopped is not None:
            table[run.policy]["stopped"] = run.curve("stopped", points)
    return table


def overview(
    shown: HasCurves | Sequence[HasCurves] | Curves,
    metrics: Sequence[str] | None = None,
    *,
    title: str | None = None,
    average: bool = False,
    spread: str = "sem",
    width: float = 1.0,
    log: bool | None = None,
    until: int | None = None,
    marks: Sequence[int] = (),
    reward: str = "reward",
) -> Figure:
    """Draw one panel a metric, one curve a policy.

    A dotted line shows where a policy has stopped in half of its trials.

    Args:
        shown: runs of different policies, or one run, or their curves as
            :func:`curves` gives them.
        metrics: of :data:`LABELS`; regret and the three violations unless given.
        title: above all panels.
        average: divide by the number of rounds so far.
        spread: the band is ``"sem"``, the standard error of the mean over the trials,
            or ``"std"``, their standard deviation.
        width: the band is so many of them to either side.
        log: whether rounds are on a logarithmic axis. Unless given they are for
            averages, and for the soft violation, which is often over within a few
            rounds.
        until: the last round shown; all of them unless given.
        marks: rounds marked in every panel, such as those at which the world changes.
        reward: what the reward is called.

    Example:
        >>> figure = cb.plots.overview([run, other], title="...")   # doctest: +SKIP
        >>> figure.savefig("account.png")                           # doctest: +SKIP
    """
    checks.one_of("spread", spread, "sem", "std")
    average, width = checks.flag("average", average), checks.number("width", width)
    if not isinstance(title, str | None):
        raise CBanditError(f"title must be a str or None; got {title!r}")
    if log is not None:
        log = checks.flag("log", log)
    if until is not None:
        until = checks.whole("until", until)
    marks = [checks.whole("marks", t) for t in marks]
    if metrics is None:
        metrics = ("regret", "soft_violation", "hard_violation", "rounds_in_violation")
    listed = list(metrics) if isinstance(metrics, list | tuple) else []
    if not listed or not all(isinstance(m, str) and m in LABELS for m in listed):
        raise CBanditError(
            f"metrics must be a list of some of {', '.join(LABELS)}; got {metrics!r}"
        )
    table = _table(shown, metrics, average, until)
    if not table:
        raise CBanditError("nothing to plot: no runs")
    draw = drawing()
    with draw.styled():
        columns = len(metrics) if len(metrics) < 4 else (len(metrics) + 1) // 2
        rows = -(-len(metrics) // columns)
        size = (4.4 * columns, 3.1 * rows + 0.7)
        figure: Figure = draw.Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        band = {"spread": spread, "width": width}
        for panel, name in zip(panels, metrics, strict=False):
            early = average or name == "soft_violation"
            scale = {"average": average, "log": early if log is None else log}
            draw.draw_panel(panel, table, name, reward=reward, **band, **scale)
            for t in marks:
                panel.axvline(t, color="#999999", linestyle=":", linewidth=1, zorder=1)
        for panel in panels[len(metrics) :]:
            panel.set_visible(False)
        for panel in panels[: len(metrics)][-columns:]:
            panel.set_xlabel(panel.get_xlabel() or "round")
        handles, labels = panels[0].get_legend_handles_labels()
        if len(labels) > 1 or title is None:
            draw.add_legend(figure, handles, labels)
        alone = f": {labels[0]}" if len(labels) == 1 else ""
        draw.add_headline(figure, None if title is None else title + alone)
    return figure


def _table(
    shown: Any, metrics: Sequence[str], average: bool, until: int | None
) -> dict[str, dict[str, Curve]]:
    """The curves to draw, averaged and cut as asked."""
    if isinstance(shown, Mapping):
        table = {policy: dict(each) for policy, each in shown.items()}
        if average:
            table = {
                p: {k: c if k == "stopped" else averaged(c) for k, c in e.items()}
                for p, e in table.items()
            }
    else:
        runs = [shown] if isinstance(shown, HasCurves) else shown
        found = curves(runs, metrics, 1000, average)
        table = {policy: dict(each) for policy, each in found.items()}
    if until is None:
        return table
    return {p: {k: c.until(until) for k, c in e.items()} for p, e in table.items()}


def evolution(
    rows: Sequence[tuple[str, Curves, Mapping[str, Sequence[Level]]]],
    metrics: Sequence[str],
    *,
    title: str | None = None,
    spread: str = "std",
    width: float = 1.0,
) -> Figure:
    """Draw a row for each setting of an experiment, one panel a metric.

    Args:
        rows: the setting in words, its curves, and levels to be marked, by metric.
        metrics: of :data:`LABELS`.
        title: above all panels.
        spread: as for :func:`overview`.
        width: likewise.
    """
    draw = drawing()
    with draw.styled():
        size = (4.4 * len(metrics), 2.7 * len(rows) + 0.9)
        figure: Figure = draw.Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(rows), len(metrics), squeeze=False)
        seen: dict[str, Any] = {}
        order = list(dict.fromkeys(policy for _, table, _ in rows for policy in table))
        band: dict[str, Any] = {"spread": spread, "width": width, "order": order}
        for line, (words, table, levels) in zip(panels, rows, strict=True):
            for panel, name in zip(line, metrics, strict=True):
                draw.draw_panel(panel, table, name, **band)
                _draw_levels(panel, levels.get(name, ()))
                handles, labels = panel.get_legend_handles_labels()
                seen.update(zip(labels, handles, strict=True))
            if words:
                line[0].set_ylabel(words, fontweight="bold")
        # regret is there to be compared between the rows
        top = max(panel.get_ylim()[1] for panel in panels[:, 0])
        for panel in panels[:, 0]:
            panel.set_ylim(min(panel.get_ylim()[0], -0.03 * top), top)
        for panel in panels[-1]:
            panel.set_xlabel("round")
        if len(seen) > 1:
            draw.add_legend(figure, list(seen.values()), list(seen))
        draw.add_headline(figure, title)
    return figure


def _draw_levels(panel: Axes, levels: Sequence[Level]) -> None:
    for label, height, colour in levels:
        # the optimum is dotted, on top of other lines: both are seen where they meet
        dots: Any = (0, (1, 2.5)) if label == "optimum" else "-"
        panel.axhline(height, color=colour, linewidth=1.4, linestyle=dots, label=label)
    if ("threshold", 0.0) in [each[:2] for each in levels]:
        panel.set_title("Expected cost less its threshold")
    if levels:
        heights = [height for _, height, _ in levels]
        bottom, top = panel.get_ylim()
        bottom, top = min(bottom, 0.0, *heights), max(top, *heights)
        panel.set_ylim(bottom, top + 0.05 * (top - bottom))


def comparison(
    panels: Mapping[str, Curves],
    metric: str,
    *,
    title: str | None = None,
    spread: str = "std",
    width: float = 1.0,
) -> Figure:
    """Draw one metric, one panel a setting, one curve for each name in it."""
    draw = drawing()
    with draw.styled():
        size = (4.4 * len(panels), 3.8)
        figure: Figure = draw.Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        order = list(dict.fromkeys(name for each in panels.values() for name in each))
        band: dict[str, Any] = {"spread": spread, "width": width, "order": order}
        seen: dict[str, Any] = {}
        for panel, (words, table) in zip(axes, panels.items(), strict=True):
            draw.draw_panel(panel, table, metric, **band)
            panel.set_title(words)
            panel.set_xlabel("round")
            handles, labels = panel.get_legend_handles_labels()
            seen.update(zip(labels, handles, strict=True))
        axes[0].set_ylabel(LABELS[metric])
        draw.add_legend(figure, list(seen.values()), list(seen))
        draw.add_headline(figure, title)
    return figure


def boxes(
    frame: Any, *, title: str | None = None, table: Curves | None = None
) -> Figure:
    """Draw boxplots of time averages: a row a metric, a column a policy.

    Args:
        frame: columns ``policy``, ``metric``, ``t``, ``trial``, ``value``.
        title: above all panels.
        table: the curves, which know where a policy stopped; marked if given.
    """
    draw = drawing()
    policies, metrics = list(frame.policy.unique()), list(frame.metric.unique())
    with draw.styled():
        size = (4.4 * len(policies), 2.9 * len(metrics) + 0.6)
        figure: Figure = draw.Figure(figsize=size, layout="constrained")
        panels = figure.subplots(
            len(metrics), len(policies), squeeze=False, sharex="col", sharey="row"
        )
        for row, metric in zip(panels, metrics, strict=True):
            for k, (panel, policy) in enumerate(zip(row, policies, strict=True)):
                part = frame[(frame.policy == policy) & (frame.metric == metric)]
                t = sorted(part.t.unique())
                values = [part.value[part.t == each].to_numpy() for each in t]
                colour = draw.COLOURS[k % len(draw.COLOURS)]
                panel.boxplot(
                    values,
                    positions=t,
                    widths=0.7 * (t[0] if len(t) == 1 else t[1] - t[0]),
                    manage_ticks=False,
                    medianprops={"color": colour, "linewidth": 1.6},
                    flierprops={"marker": ".", "markersize": 3, "alpha": 0.4},
                )
                panel.set_title(f"{policy}: {draw.title_of(metric)} / t")
                panel.axhline(0, color="#999999", linewidth=0.8, zorder=1)
                stop = draw.stop_of((table or {}).get(policy, {}))
                if stop is not None:
                    panel.axvline(stop, color=colour, linestyle=":", linewidth=1.2)
        for panel in panels[-1]:
            panel.set_xlabel("round")
        draw.add_headline(figure, title)
    return figure


def trade_off(
    table: Curves,
    metrics: tuple[str, str] = ("regret", "soft_violation"),
    *,
    title: str | None = None,
    sweeps: Sequence[Sequence[str]] = (),
) -> Figure:
    """Draw final time averages of two metrics against each other, a point a policy.

    Args:
        table: the curves, by policy; bars are standard errors over the trials.
        metrics: along the axes.
        title: above the panel.
        sweeps: policies that differ in one argument alone; a line joins those of each
            sweep, in this order.
    """
    draw = drawing()
    with draw.styled():
        figure: Figure = draw.Figure(figsize=(5.6, 4.2), layout="constrained")
        panel = figure.subplots()
        ends = [[averaged(each[name]) for name in metrics] for each in table.values()]
        x, y = ([float(pair[k].mean[-1]) for pair in ends] for k in (0, 1))
        xerr, yerr = ([float(pair[k].sem[-1]) for pair in ends] for k in (0, 1))
        places = dict(zip(table, zip(x, y, strict=True), strict=True))
        for sweep in sweeps:
            joined = [places[name] for name in sweep if name in places]
            if len(joined) > 1:
                panel.plot(*zip(*joined, strict=True), color="#999999", linewidth=1.2)
        for k, (a, b, da, db) in enumerate(zip(x, y, xerr, yerr, strict=True)):
            colour = draw.COLOURS[k % len(draw.COLOURS)]
            look = {"color": colour, "ecolor": "#999999", "capsize": 2}
            panel.errorbar(a, b, db, da, fmt=draw.MARKERS[k % 8], **look)
        alike: dict[tuple[float, float], list[str]] = {}
        for name, place in places.items():
            alike.setdefault(place, []).append(name)
        for place, names in alike.items():
            panel.annotate(", ".join(names), place, (5, 5), textcoords="offset points")
        panel.set_xlabel(f"{LABELS[metrics[0]]} / t")
        panel.set_ylabel(f"{LABELS[metrics[1]]} / t")
        panel.margins(0.12)
        draw.add_headline(figure, title)
    return figure


def differences(
    shown: Mapping[str, Mapping[str, tuple[float, float, float]]],
    *,
    title: str | None = None,
) -> Figure:
    """Draw differences and their intervals beside 0, a panel a metric.

    Args:
        shown: by metric and by name, a difference and the ends of its interval.
        title: above all panels.
    """
    draw = drawing()
    names = list(next(iter(shown.values())))
    with draw.styled():
        columns = min(3, len(shown))
        rows = -(-len(shown) // columns)
        size = (1.2 + 3.6 * columns, (0.9 + 0.32 * len(names)) * rows + 0.5)
        figure: Figure = draw.Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
        for panel, (metric, each) in zip(panels, shown.items(), strict=False):
            for k, name in enumerate(names):
                middle, low, high = each[name]
                colour, mark = draw.COLOURS[k % 8], draw.MARKERS[k % 8]
                panel.plot([low, high], [k, k], color=colour, linewidth=1.6)
                panel.plot([middle], [k], marker=mark, color=colour, linestyle="")
            panel.axvline(0, color="#666666", linewidth=0.9, zorder=1)
            panel.set_title(draw.title_of(metric))
            panel.xaxis.set_major_locator(draw.MaxNLocator(4))
            panel.set_yticks(range(len(names)), names)
            panel.set_ylim(len(names) - 0.5, -0.5)
        for panel in panels[len(shown) :]:
            panel.set_visible(False)
        draw.add_headline(figure, title)
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write the figure to a file, atomically; its kind is by the path's ending."""
    kind = Path(path).suffix.lstrip(".").lower() or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise CBanditError(
            f"a figure must be of a known kind, {', '.join(known)}; got {path}"
        )
    drawn = BytesIO()
    figure.savefig(drawn, format=kind, dpi=160)
    with atomic(path) as file:
        file.write(drawn.getbuffer())
