"""Figures of the account: curves over the rounds, with a band for the spread of trials.

Each is drawn on a :class:`matplotlib.figure.Figure` of its own, so no display is needed
and pyplot is left alone. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import torch

from cbandit import account
from cbandit._core import checks
from cbandit._core.figures import (
    COLOURS,
    DPI,
    add_legend,
    columns_for,
    look,
    sheet,
)
from cbandit._core.files import atomic
from cbandit.errors import CBanditError
from cbandit.simulation.curves import (
    EACH_ROUND,
    LABELS,
    NAMED,
    RELATIVE,
    TITLES,
    Curve,
    Curves,
    HasCurves,
    averaged,
    over_trials,
    scales,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

Level = tuple[str, float, str]
"""A horizontal line: its name, height and colour."""

MORE = ("best_feasible", "reward", "expected_reward")  # more is better of these

Band = tuple[str, float]
"""The kind of a band, ``"sem"`` or ``"std"``, and how many of them to each side."""

CLIPPED = 3.0  # early rounds above this many times the later maximum are cut off
LATER = 20  # the first of this many parts of the rounds counts as early


def curves(
    runs: Sequence[HasCurves],
    metrics: Sequence[str] = tuple(LABELS),
    points: int | None = 1000,
    average: bool = False,
) -> Curves:
    """Return the curves of several runs, by policy and metric; see :meth:`Run.curve`.

    Costs with names have ``"cost NAME"`` and ``"limit NAME"`` too; several costs have
    ``"hard_violation NAME"`` each, and ``"hard_violation_relative"``, in which each is
    divided by its limit.
    """
    listed = isinstance(runs, list | tuple)
    if not listed or not all(isinstance(run, HasCurves) for run in runs):
        raise CBanditError(f"runs must be a list of cb.Run; got {runs!r}")
    policies = [run.policy for run in runs]
    if len(set(policies)) != len(policies):
        raise CBanditError(
            f"runs must be of policies of different names; got {policies}: set "
            "policy.name before the run, or dataclasses.replace(run, policy=...)"
        )
    table = {}
    for run in runs:
        named = [f"{kind} {cost}" for kind in NAMED for cost in run.cost_names]
        names = (*metrics, *named)
        table[run.policy] = {name: run.curve(name, points, average) for name in names}
        alike = [x for x in runs if x.costs.shape[-1] == run.costs.shape[-1]]
        for name, total in run.violations(scales(alike)).items():
            values = account.time_average(total) if average else total
            t = run.thinned(points)
            table[run.policy][name] = over_trials(
                values.reshape(-1, values.shape[-1])[:, t - 1], t
            )
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
    design: int = 0,
    reward: str = "reward",
    more: Sequence[Callable[[Axes], object]] = (),
) -> Figure:
    """Draw a panel for each metric, with a curve for each policy.

    A dotted line shows where a policy has stopped in half of its trials.

    Args:
        shown: runs of different policies, or one run, or their curves as
            :func:`curves` returns them.
        metrics: some of :data:`LABELS`. ``None``: regret and the three violations; the
            totals of several costs are then relative to their limits.
        title: the title above all panels.
        average: divide by the number of rounds so far.
        spread: the band is ``"sem"``, the standard error of the mean over the trials,
            or ``"std"``, their standard deviation.
        width: the band reaches this many of them to either side.
        log: whether the axis of rounds is logarithmic. By default it is for averages
            and for the soft violation, which is often over within a few rounds.
        until: the last round shown; all of them unless given.
        marks: rounds marked in every panel, such as those at which the world changes.
        design: how many rounds, played by a common design, are shaded at the start.
        reward: what the reward is called.
        more: functions that each draw one more panel, given its ``Axes``.

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
    usual = metrics is None
    if metrics is None:
        metrics = ("regret", "soft_violation", "hard_violation", "rounds_in_violation")
    listed = list(metrics) if isinstance(metrics, list | tuple) else []
    if not listed or not all(isinstance(m, str) and m in TITLES for m in listed):
        raise CBanditError(
            f"metrics must be a list of some of {', '.join(TITLES)}; got {metrics!r}"
        )
    table = _table(shown, [m for m in metrics if m in LABELS], average, until)
    if usual:
        metrics = in_their_units(table, metrics)
    if not table:
        raise CBanditError("nothing to plot: no runs")
    policies = [policy for policy, lines in table.items() if metrics[0] in lines]
    if title is not None and len(policies) == 1:
        title += f": {policies[0]}"
    count = len(metrics) + len(more)
    columns = columns_for(count)
    with sheet(title, count, columns, 1.9, 0.7) as (figure, grid):
        panels = grid.flat[:count]
        for panel, draw in zip(panels[len(metrics) :], more, strict=True):
            draw(panel)
        for panel, name in zip(panels, metrics, strict=False):
            _draw_panel(
                panel,
                table,
                name,
                (spread, width),
                list(table),
                average=average,
                log=average or name.startswith("soft_violation")
                if log is None
                else log,
                reward=reward,
            )
            panel.set_ylabel(_axis_of(name, reward, average))
            for t in marks:
                panel.axvline(t, color="#999999", linestyle=":", linewidth=1, zorder=1)
            _shade(panel, design)
        for panel in panels[-columns:]:
            panel.set_xlabel(panel.get_xlabel() or "round")
        # the title names a policy that is alone
        if title is None or len(panels[0].get_legend_handles_labels()[1]) > 1:
            add_legend(figure, panels[:1])
    return figure


def in_their_units(table: Curves, metrics: Sequence[str]) -> list[str]:
    """Return ``metrics`` with relative totals in place of totals over several units."""
    known = {name for lines in table.values() for name in lines}
    relative = {k: short for k, short in RELATIVE.items() if short in known}
    return [relative.get(metric, metric) for metric in metrics]


def _table(
    shown: HasCurves | Sequence[HasCurves] | Curves,
    metrics: Sequence[str],
    average: bool,
    until: int | None,
) -> Curves:
    """Return the curves to draw, averaged and cut as asked."""
    if not isinstance(shown, Mapping):
        runs = [shown] if isinstance(shown, HasCurves) else shown
        table = curves(runs, metrics, 1000, average)
    elif average:
        table = {
            policy: {k: c if k == "stopped" else averaged(c) for k, c in lines.items()}
            for policy, lines in shown.items()
        }
    else:
        table = shown
    if until is None:
        return table
    return {p: {k: c.until(until) for k, c in e.items()} for p, e in table.items()}


def costs(
    table: Curves,
    *,
    title: str | None = None,
    reward: str = "reward",
    spread: str = "sem",
    width: float = 1.0,
    design: int = 0,
) -> Figure:
    """Draw the averages so far of the reward and of each cost that has a name.

    Lines mark the costs' limits. A policy that keeps its limits on average ends on the
    allowed side of them.

    Args:
        table: curves as :func:`curves` returns them, of runs with named costs.
        title: the title above all panels.
        reward: what the reward is called.
        spread: as for :func:`overview`.
        width: likewise.
        design: likewise.
    """
    first = next(iter(table.values()), {})
    names = [name for name in first if name.partition(" ")[0] == "cost"]
    if not names:
        raise CBanditError("nothing to plot: the runs' costs have no names")
    names = ["reward", *names]
    band, order = (spread, width), list(table)
    with sheet(title, len(names), columns_for(len(names)), 1.9, 0.7) as (figure, grid):
        panels = grid.flat[: len(names)]
        for panel, name in zip(panels, names, strict=True):
            means = {
                policy: {name: averaged(lines[name])}
                for policy, lines in table.items()
                if name in lines
            }
            _draw_panel(panel, means, name, band, order, reward=reward, zero=False)
            called = reward if name == "reward" else name.partition(" ")[2]
            panel.set_title(f"{called}, average so far")
            panel.set_xlabel("round")
            if name != "reward":
                limit = averaged(first[f"limit {called}"])
                line = {"color": "#000000", "linewidth": 1.2, "label": "limit"}
                panel.plot(limit.t, limit.mean.numpy(), **line)
            panel.set_ylabel(f"{called};\n{_better(name)}")
            _shade(panel, design)
        add_legend(figure, panels[1:2])
    return figure


def evolution(
    rows: Sequence[tuple[str, Curves, Mapping[str, Sequence[Level]]]],
    metrics: Sequence[str],
    *,
    title: str | None = None,
    spread: str = "std",
    width: float = 1.0,
    reward: str = "reward",
) -> Figure:
    """Draw a row for each setting of an experiment, with a panel for each metric.

    Args:
        rows: the name, the curves and, by metric, the levels to mark of each setting.
        metrics: as for :func:`overview`.
        title: the title above all panels.
        spread: as for :func:`overview`.
        width: likewise.
        reward: likewise.
    """
    columns, order = len(metrics), _policies(table for _, table, _ in rows)
    with sheet(title, len(rows) * columns, columns, 1.9, 0.9) as (figure, panels):
        for line, (words, table, levels) in zip(panels, rows, strict=True):
            for panel, name in zip(line, metrics, strict=True):
                _draw_panel(panel, table, name, (spread, width), order, reward=reward)
                _draw_levels(panel, levels.get(name, ()))
                panel.set_ylabel(_axis_of(name, reward, False))
            if words:
                line[0].set_ylabel(f"{words}\n{line[0].get_ylabel()}")
        # all rows have the same axis of regret, for comparison
        top = max(panel.get_ylim()[1] for panel in panels[:, 0])
        for panel in panels[:, 0]:
            panel.set_ylim(min(panel.get_ylim()[0], -0.03 * top), top)
        for panel in panels[-1]:
            panel.set_xlabel("round")
        if len(order) > 1 or any(levels for _, _, levels in rows):
            add_legend(figure, panels.flat)
    return figure


def comparison(
    panels: Mapping[str, Curves],
    metric: str,
    *,
    title: str | None = None,
    spread: str = "std",
    width: float = 1.0,
) -> Figure:
    """Draw one metric: a panel for each setting, a curve for each name in it."""
    columns, order = len(panels), _policies(panels.values())
    with sheet(title, columns, columns, 2.6, 0.0, sharey=True) as (figure, grid):
        for panel, (words, table) in zip(grid[0], panels.items(), strict=True):
            _draw_panel(panel, table, metric, (spread, width), order)
            panel.set_title(words)
            panel.set_xlabel("round")
        grid[0, 0].set_ylabel(f"{LABELS[metric]}; less is better")
        add_legend(figure, grid[0])
    return figure


def boxes(
    frame: pd.DataFrame, *, title: str | None = None, table: Curves | None = None
) -> Figure:
    """Draw boxplots of time averages: a row per metric, a column per policy.

    Args:
        frame: columns ``policy``, ``metric``, ``t``, ``trial``, ``value``.
        title: the title above all panels.
        table: the curves; if given, the round where a policy stopped is marked.
    """
    policies, metrics = list(frame.policy.unique()), list(frame.metric.unique())
    count, columns = len(metrics) * len(policies), len(policies)
    shared: dict[str, Any] = {"sharex": "col", "sharey": "row"}
    with sheet(title, count, columns, 1.9, 0.6, **shared) as (figure, panels):
        for row, metric in zip(panels, metrics, strict=True):
            row[0].set_ylabel(f"{_title_of(metric)} / t;\n{_better(metric)}")
            for k, (panel, policy) in enumerate(zip(row, policies, strict=True)):
                part = frame[(frame.policy == policy) & (frame.metric == metric)]
                t = sorted(part.t.unique())
                colour = COLOURS[k % len(COLOURS)]
                panel.boxplot(
                    [part.value[part.t == s].to_numpy() for s in t],
                    positions=t,
                    widths=0.7 * (t[0] if len(t) == 1 else t[1] - t[0]),
                    manage_ticks=False,
                    medianprops={"color": colour, "linewidth": 1.6},
                    flierprops={"marker": ".", "markersize": 3, "alpha": 0.4},
                )
                panel.set_title(policy)
                panel.axhline(0, color="#999999", linewidth=0.8, zorder=1)
                stop = _stop_of((table or {}).get(policy, {}))
                if stop is not None:
                    _mark_stop(panel, policy, stop, colour)
        for panel in panels[-1]:
            panel.set_xlabel("round")
        add_legend(figure, panels[0])
    return figure


def trade_off(
    table: Curves,
    metrics: tuple[str, str] = ("regret", "soft_violation"),
    *,
    title: str | None = None,
    sweeps: Sequence[Sequence[str]] = (),
    reward: str = "reward",
) -> Figure:
    """Draw each policy's final time averages of two metrics as a point.

    Args:
        table: the curves, by policy; bars are standard errors over the trials.
        metrics: the two metrics along the axes.
        title: the title above the panel.
        sweeps: groups of policies that differ in one argument alone; a line joins each
            group, in its order.
        reward: what the reward is called.
    """
    with sheet(title, 1, 1, 2.6, 0.2 * len(table)) as (figure, panels):
        panel, places = panels[0, 0], {}
        alike: dict[tuple[float, ...], list[str]] = {}
        for policy, lines in table.items():
            means = [averaged(lines[name]).mean for name in metrics]
            places[policy] = tuple(float(mean[-1]) for mean in means)
            alike.setdefault(places[policy], []).append(policy)
        for sweep in sweeps:
            ends = [places[policy] for policy in sweep if policy in places]
            if len(ends) > 1:
                panel.plot(*zip(*ends, strict=True), color="#999999", linewidth=1.2)
        for k, (policy, lines) in enumerate(table.items()):
            xerr, yerr = (float(averaged(lines[name]).sem[-1]) for name in metrics)
            style = look(k) | {"linestyle": "", "ecolor": "#999999", "capsize": 2}
            names = alike[places[policy]]
            if policy == names[0]:  # one mark and one label for all at one place
                style["label"] = fill(", ".join(names), 40)
            panel.errorbar(*places[policy], yerr, xerr, **style)
        along = [panel.set_xlabel, panel.set_ylabel]
        for name, set_label in zip(metrics, along, strict=True):
            unit = ", in limits" if name in RELATIVE.values() else ""
            set_label(f"{_title_of(name, reward)} / t{unit};\n{_better(name)}")
        panel.margins(0.12)
        add_legend(figure, [panel])
    return figure


def differences(
    shown: Mapping[str, Mapping[str, tuple[float, float, float]]],
    *,
    title: str | None = None,
    order: Mapping[str, int] | None = None,
    heads: Mapping[str, str] | None = None,
) -> Figure:
    """Draw differences and their intervals beside 0, with a panel for each metric.

    Args:
        shown: a difference and the ends of its interval, by metric and by name.
        title: the title above all panels.
        order: the place of each name's policy among all, which fixes its colour and
            mark; ``None``: the names' own order.
        heads: the panels' titles, where metrics are not of :data:`LABELS`.
    """
    names = list(next(iter(shown.values())))
    columns = min(3, len(shown))
    size = {"row": 0.6 + 0.2 * len(names), "rest": 0.5}
    with sheet(title, len(shown), columns, **size, sharey=True) as (figure, panels):
        from matplotlib.ticker import MaxNLocator

        for panel, (metric, intervals) in zip(panels.flat, shown.items(), strict=False):
            for k, name in enumerate(names):
                middle, low, high = intervals[name]
                style = look(k if order is None else order[name])
                colour = style["color"]
                panel.plot([low, high], [k, k], color=colour, linewidth=1.6)
                panel.plot([middle], [k], **style | {"linestyle": ""})
            panel.axvline(0, color="#666666", linewidth=0.9, zorder=1)
            head = (heads or {}).get(metric) or _title_of(metric)
            panel.set_title(head[0].upper() + head[1:])
            panel.set_xlabel("less is better")
            panel.xaxis.set_major_locator(MaxNLocator(3))
            panel.set_yticks(range(len(names)), names)
            panel.set_ylim(len(names) - 0.5, -0.5)
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write the figure to a file, atomically; the path's ending says its format."""
    kind = Path(path).suffix.lstrip(".").lower() or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise CBanditError(
            f"a figure must be of a known kind, {', '.join(known)}; got {path}"
        )
    drawn = BytesIO()
    # without the date of a PDF equal results give equal files
    plain = {"CreationDate": None} if kind == "pdf" else None
    import matplotlib

    # letters, not outlines: journals ask for it
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(drawn, format=kind, dpi=DPI, metadata=plain)
    with atomic(path) as file:
        file.write(drawn.getbuffer())


# -- the parts of a figure -------------------------------------------------------------


def _policies(tables: Iterable[Curves]) -> list[str]:
    """Return the policies of several tables, each once."""
    return list(dict.fromkeys(policy for table in tables for policy in table))


def _title_of(metric: str, reward: str = "reward") -> str:
    """Return a metric's name as a title, with the reward's own name in it."""
    words = TITLES[metric].replace("reward", reward)
    if metric == "regret" and reward != "reward":
        words = f"regret in {reward}"
    return words[0].upper() + words[1:]


def _stop_of(lines: Mapping[str, Curve]) -> int | None:
    """Return the round from which half of a policy's trials have stopped, if any."""
    if "stopped" not in lines:
        return None
    over = lines["stopped"].mean >= 0.5
    return int(lines["stopped"].t[over][0]) if bool(over.any()) else None


def _mark_stop(panel: Axes, policy: str, stop: int, colour: Any) -> None:
    """Mark the round at which a policy has stopped; the legend says whose it is."""
    said = f"{policy} stops"
    panel.axvline(stop, color=colour, linestyle=":", linewidth=1.2, label=said)


def _draw_panel(
    panel: Axes,
    table: Curves,
    name: str,
    band: Band,
    order: list[str],
    *,
    average: bool = False,
    log: bool = False,
    reward: str = "reward",
    zero: bool = True,
) -> None:
    """Draw one metric, a curve and a band for each policy.

    Args:
        panel: where to draw.
        table: the curves; policies without this metric are left out.
        name: the metric.
        band: the spread around each curve.
        order: all policies of the figure; their places fix colours and dashes.
        average: whether the curves are time averages.
        log: whether rounds are on a logarithmic axis.
        reward: what the reward is called.
        zero: whether a line marks 0, for metrics whose values lie near it.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

    last = 1
    for policy, lines in table.items():
        if name not in lines:
            continue
        curve, k = lines[name], order.index(policy)
        t, mean = curve.t.numpy(), curve.mean.numpy()
        # marks and dashes as well as colours: curves on each other stay visible, and
        # are told apart in grey
        style = look(k) | {"label": policy, "markevery": _marked(curve.t, k, log)}
        colour = style["color"]
        panel.plot(t, mean, linewidth=1.3, zorder=3, **style)
        spread, width = band
        margin = width * (curve.sem if spread == "sem" else curve.std).numpy()
        low = mean - margin
        if "violation" in name:
            low = low.clip(min=0)  # no violation can be negative
        panel.fill_between(t, low, mean + margin, color=colour, alpha=0.13, linewidth=0)
        last, stop = max(last, int(t[-1])), _stop_of(lines)
        if stop is not None:
            _mark_stop(panel, policy, stop, colour)
    if name in TITLES:
        panel.set_title(_title_of(name, reward) + (" / t" if average else ""))
    panel.set_axisbelow(True)
    panel.margins(x=0)
    if log:
        panel.set_xscale("log")
        panel.set_xlim(1, max(2, last))
        panel.xaxis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if last < 200 else (1,), numticks=9)
        )
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.xaxis.set_minor_formatter(NullFormatter())
        if not average:
            panel.set_xlabel("round, logarithmic")
    else:
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panel.set_xlim(0, last)
    if average:
        _cut_off_early(panel, table, name)
    whole = name == "rounds_in_violation" and not average
    panel.yaxis.set_major_locator(MaxNLocator(5, integer=whole))
    bottom, top = panel.get_ylim()
    if zero and top - bottom < 0.12 and not average and name not in EACH_ROUND:
        # a metric that stays at 0 is drawn at 0, without magnified rounding errors
        panel.set_ylim(-0.05, 1)
    if zero and name != "best_feasible":  # this one may lie far from 0
        panel.axhline(0, color="#999999", linewidth=0.8, zorder=1)


def _marked(t: Tensor, k: int, log: bool) -> list[int]:
    """Return which points of the ``k``-th policy's curve have marks.

    They are a fifth of the axis apart, however much the curve goes up and down.
    """
    places = t.double().log() / math.log(max(2, int(t[-1]))) if log else t / t[-1]
    wanted = 0.02 + 0.03 * (k % 6) + 0.2 * torch.arange(5, dtype=places.dtype)
    found = torch.searchsorted(places, wanted).clamp(max=len(t) - 1)
    return [int(place) for place in found.unique()]


def _cut_off_early(panel: Axes, table: Curves, name: str) -> None:
    """Cut off the first rounds if they dwarf all later ones, and note it."""
    lines = [curves[name] for curves in table.values() if name in curves]
    later = [c.mean[c.t > int(c.t[-1]) // LATER] for c in lines]
    later = [part[part.isfinite()] for part in later]
    top = max((float(part.abs().max()) for part in later if len(part)), default=0.0)
    bottom, height = panel.get_ylim()
    if top > 0 and height > CLIPPED * top:
        least = min(0.0, *(float(part.min()) for part in later if len(part)))
        panel.set_ylim(max(bottom, least - 0.06 * top), 1.2 * top)
        panel.set_title(f"{panel.get_title('left')}, first rounds cut off")


def _axis_of(metric: str, reward: str, average: bool) -> str:
    """Return the label of a metric's axis: its unit, and which way is better."""
    unit = reward
    if metric == "rounds_in_violation":
        unit = "rounds"
    elif metric in RELATIVE.values():
        unit = "limits"  # a cost's violation as a multiple of its limit
    elif "violation" in metric or metric == "stage_cost":
        unit = "cost"
    return f"{unit}{' a round' if average else ''};\n{_better(metric)}"


def _better(metric: str) -> str:
    """Return which way a metric is better, in words."""
    return f"{'more' if metric in MORE else 'less'} is better"


def _shade(panel: Axes, design: int) -> None:
    """Shade the rounds of a common design."""
    if not design:
        return
    end = min(design, panel.get_xlim()[1])  # a study may end within its design
    grey: dict[str, Any] = {"color": "#BBBBBB", "alpha": 0.25, "linewidth": 0}
    panel.axvspan(0, end, zorder=0, label="design", **grey)


def _draw_levels(panel: Axes, levels: Sequence[Level]) -> None:
    for label, height, colour in levels:
        # the optimum is dotted, on top of other lines: both are seen where they meet
        dots: Any = (0, (1, 2.5)) if label == "optimum" else "-"
        style = {"color": colour, "linestyle": dots, "label": label}
        panel.axhline(height, linewidth=1.4, zorder=4, **style)
    if ("threshold", 0.0) in [level[:2] for level in levels]:
        panel.set_title("Expected cost less its threshold")
    if levels:
        heights = [height for _, height, _ in levels]
        bottom, top = panel.get_ylim()
        bottom, top = min(bottom, 0.0, *heights), max(top, *heights)
        panel.set_ylim(bottom, top + 0.05 * (top - bottom))
