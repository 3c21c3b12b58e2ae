"""Figures of the account: curves over the rounds, a band for the spread of trials.

Drawn on a :class:`matplotlib.figure.Figure` of their own, so no display is needed and
nobody's pyplot is touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cbandit._core import checks
from cbandit.errors import CBanditError, MissingExtraError
from cbandit.simulation.run import Curve, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "LABELS",
    "Curves",
    "Level",
    "boxes",
    "comparison",
    "curves",
    "evolution",
    "overview",
    "save",
    "trade_off",
]

Curves = Mapping[str, Mapping[str, Curve]]
"""``curves[policy][metric]``."""

LABELS = {
    "regret": "regret",
    "stochastic_regret": "stochastic regret",
    "policy_regret": "policy regret",
    "realised_regret": "realised regret",
    "soft_violation": "soft violation",
    "hard_violation": "hard violation",
    "realised_violation": "realised violation",
    "rounds_in_violation": "rounds in violation",
    "reward": "reward",
    "multiplier": "multiplier",
    "expected_reward": "expected reward of each round",
    "stage_cost": "expected cost of each round",
}

EACH_ROUND = ("expected_reward", "stage_cost")  # all others add up over the rounds

Level = tuple[str, float, str]
"""A horizontal line: what it is called, its height, its colour."""

# Okabe and Ito's colours, told apart by the colour-blind too; yellow is too faint
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
    "#7F7F7F",
)
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


def curves(
    runs: Sequence[Run],
    metrics: Sequence[str] = tuple(LABELS),
    points: int | None = 1000,
    average: bool = False,
) -> Curves:
    """The curves of several runs, by policy and metric; see :meth:`Run.curve`."""
    if not isinstance(runs, list | tuple) or not all(isinstance(r, Run) for r in runs):
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
        if run.stopped is not None:
            table[run.policy]["stopped"] = run.curve("stopped", points)
    return table


def overview(
    shown: Run | Sequence[Run] | Curves,
    metrics: Sequence[str] | None = None,
    *,
    title: str | None = None,
    average: bool = False,
    spread: str = "sem",
    width: float = 1.0,
    log: bool | None = None,
    until: int | None = None,
    marks: Sequence[int] = (),
) -> Figure:
    """One panel a metric, one curve a policy.

    Where a policy has stopped in half of its trials a dotted line says so.

    Args:
        shown: runs of different policies, or one run, or their curves as
            :func:`curves` gives them.
        metrics: of :data:`LABELS`; regret and the three violations unless given.
        title: above all panels.
        average: divide by the number of rounds so far.
        spread: the band is ``"sem"``, the standard error of the mean over the trials,
            or ``"std"``, their standard deviation.
        width: the band is so many of them to either side.
        log: rounds on a logarithmic axis. Unless said otherwise averages are, and the
            soft violation, which is often over within a few rounds.
        until: the last round shown; all of them unless given.
        marks: rounds marked in every panel, such as those at which the world changes.

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
    if isinstance(shown, Run):
        shown = [shown]
    if isinstance(shown, Mapping):
        table = {policy: dict(each) for policy, each in shown.items()}
        if average:
            table = {
                p: {k: c if k == "stopped" else _averaged(c) for k, c in e.items()}
                for p, e in table.items()
            }
    else:
        table = {p: dict(e) for p, e in curves(shown, metrics, 1000, average).items()}
    if not table:
        raise CBanditError("nothing to plot: no runs")
    if until is not None:
        table = {
            p: {k: _until(c, until) for k, c in e.items()} for p, e in table.items()
        }
    matplotlib, Figure = _matplotlib()
    with matplotlib.rc_context(_STYLE):
        columns = len(metrics) if len(metrics) < 4 else (len(metrics) + 1) // 2
        rows = -(-len(metrics) // columns)
        figure = Figure(figsize=(4.4 * columns, 3.1 * rows + 0.7), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for panel, name in zip(panels, metrics, strict=False):
            early = average or name == "soft_violation"
            logarithmic = early if log is None else log
            _panel(panel, table, name, average, spread, width, logarithmic)
            for t in marks:
                panel.axvline(t, color="#999999", linestyle=":", linewidth=1, zorder=1)
        for panel in panels[len(metrics) :]:
            panel.set_visible(False)
        for panel in panels[: len(metrics)][-columns:]:
            panel.set_xlabel(panel.get_xlabel() or "round")
        handles, labels = panels[0].get_legend_handles_labels()
        if len(labels) > 1 or title is None:
            _legend(figure, handles, labels)
        if title is not None:
            alone = f": {labels[0]}" if len(labels) == 1 else ""
            _headline(figure, title + alone)
    return figure


def _matplotlib() -> tuple[Any, type[Figure]]:
    try:
        import matplotlib

        from cbandit.simulation.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "figures need matplotlib: pip install 'cbandit[experiments]'"
        ) from None
    return matplotlib, Figure


def _headline(figure: Figure, title: str) -> None:
    """A title at the left, on as many lines as the figure's width asks for."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, wrap=True)


def _legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Below all panels, in as many columns as its names leave room for."""
    inches = 0.7 + 0.085 * max(map(len, labels))  # a line, gaps, letters of 10 points
    columns = max(1, min(len(labels), int(figure.get_figwidth() / inches)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _averaged(curve: Curve) -> Curve:
    t = curve.t.double()
    return Curve(curve.t, curve.mean / t, curve.std / t, curve.sem / t)


def _until(curve: Curve, last: int) -> Curve:
    kept = curve.t <= last
    return Curve(curve.t[kept], curve.mean[kept], curve.std[kept], curve.sem[kept])


def _stop(each: Mapping[str, Curve]) -> int | None:
    """The round from which half of a policy's trials have stopped, if they have."""
    if "stopped" not in each:
        return None
    over = each["stopped"].mean >= 0.5
    return int(each["stopped"].t[over][0]) if bool(over.any()) else None


def _panel(
    panel: Axes,
    table: Curves,
    name: str,
    average: bool,
    spread: str,
    width: float,
    log: bool,
) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    last = 1
    for k, (policy, each) in enumerate(table.items()):
        if name not in each:
            continue
        curve = each[name]
        t, mean = curve.t.numpy(), curve.mean.numpy()
        band = width * (curve.sem if spread == "sem" else curve.std).numpy()
        colour = _COLOURS[k % len(_COLOURS)]
        # dashes as well as colours: curves that lie on each other stay visible
        style: Any = _DASHES[k % len(_DASHES)]
        panel.plot(
            t,
            mean,
            color=colour,
            linestyle=style,
            linewidth=1.7,
            label=policy,
            zorder=3,
        )
        low = mean - band
        if name.endswith("violation"):
            low = low.clip(min=0)  # none of them can be negative
        panel.fill_between(t, low, mean + band, color=colour, alpha=0.13, linewidth=0)
        stop = _stop(each)
        if stop is not None:
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
        last = max(last, int(t[-1]))
    words = LABELS[name][0].upper() + LABELS[name][1:]
    panel.set_title(words + (" / t" if average else ""))
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
    if top - bottom < 0.12 and not average and name not in EACH_ROUND:
        # an account that stays at 0 shall look like it, not like its rounding
        panel.set_ylim(-0.05, 1)
    panel.axhline(0, color="#999999", linewidth=0.8, zorder=1)


def evolution(
    rows: Sequence[tuple[str, Curves, Mapping[str, Sequence[Level]]]],
    metrics: Sequence[str],
    *,
    title: str | None = None,
    spread: str = "std",
    width: float = 1.0,
) -> Figure:
    """A row for each setting of an experiment, one panel a metric.

    Args:
        rows: the setting in words, its curves, and levels to be marked, by metric.
        metrics: of :data:`LABELS`.
        title: above all panels.
        spread: as for :func:`overview`.
        width: likewise.
    """
    matplotlib, Figure = _matplotlib()
    with matplotlib.rc_context(_STYLE):
        size = (4.4 * len(metrics), 2.7 * len(rows) + 0.9)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(rows), len(metrics), squeeze=False)
        seen: dict[str, Any] = {}
        for line, (words, table, levels) in zip(panels, rows, strict=True):
            for panel, name in zip(line, metrics, strict=True):
                _panel(panel, table, name, False, spread, width, False)
                for label, height, colour in levels.get(name, ()):
                    # dotted on top of drawn through: both are seen where they meet
                    dots: Any = (0, (1, 2.5)) if label == "optimum" else "-"
                    panel.axhline(
                        height,
                        color=colour,
                        linewidth=1.4,
                        linestyle=dots,
                        label=label,
                    )
                if ("threshold", 0.0) in [each[:2] for each in levels.get(name, ())]:
                    panel.set_title("Expected cost less its threshold")
                if levels.get(name):
                    panel.set_ylim(*_around(panel, [v for _, v, _ in levels[name]]))
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
            _legend(figure, list(seen.values()), list(seen))
        if title is not None:
            _headline(figure, title)
    return figure


def _around(panel: Axes, heights: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis that shows 0 and these heights too."""
    bottom, top = panel.get_ylim()
    bottom, top = min(bottom, 0.0, *heights), max(top, *heights)
    return bottom, top + 0.05 * (top - bottom)


def comparison(
    panels: Mapping[str, Curves],
    metric: str,
    *,
    title: str | None = None,
    spread: str = "std",
    width: float = 1.0,
) -> Figure:
    """One metric, one panel a setting, one curve for each name in it."""
    matplotlib, Figure = _matplotlib()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.4 * len(panels), 3.8), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for panel, (words, table) in zip(axes, panels.items(), strict=True):
            _panel(panel, table, metric, False, spread, width, False)
            panel.set_title(words)
            panel.set_xlabel("round")
        axes[0].set_ylabel(LABELS[metric])
        handles, labels = axes[0].get_legend_handles_labels()
        _legend(figure, handles, labels)
        if title is not None:
            _headline(figure, title)
    return figure


def boxes(
    frame: Any, *, title: str | None = None, table: Curves | None = None
) -> Figure:
    """Boxplots of time averages over the trials: a row a metric, a column a policy.

    Args:
        frame: columns ``policy``, ``metric``, ``t``, ``trial``, ``value``.
        title: above all panels.
        table: the curves, which know where a policy stopped; marked if given.
    """
    matplotlib, Figure = _matplotlib()
    policies, metrics = list(frame.policy.unique()), list(frame.metric.unique())
    with matplotlib.rc_context(_STYLE):
        size = (4.4 * len(policies), 2.9 * len(metrics) + 0.6)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(
            len(metrics), len(policies), squeeze=False, sharex="col", sharey="row"
        )
        for row, metric in zip(panels, metrics, strict=True):
            for k, (panel, policy) in enumerate(zip(row, policies, strict=True)):
                part = frame[(frame.policy == policy) & (frame.metric == metric)]
                t = sorted(part.t.unique())
                values = [part.value[part.t == each].to_numpy() for each in t]
                width = 0.7 * (t[0] if len(t) == 1 else t[1] - t[0])
                colour = _COLOURS[k % len(_COLOURS)]
                panel.boxplot(
                    values,
                    positions=t,
                    widths=width,
                    manage_ticks=False,
                    medianprops={"color": colour, "linewidth": 1.6},
                    flierprops={"marker": ".", "markersize": 3, "alpha": 0.4},
                )
                words = LABELS[metric][0].upper() + LABELS[metric][1:]
                panel.set_title(f"{policy}: {words} / t")
                panel.axhline(0, color="#999999", linewidth=0.8, zorder=1)
                stop = _stop((table or {}).get(policy, {}))
                if stop is not None:
                    panel.axvline(stop, color=colour, linestyle=":", linewidth=1.2)
        for panel in panels[-1]:
            panel.set_xlabel("round")
        if title is not None:
            _headline(figure, title)
    return figure


def trade_off(
    table: Curves,
    metrics: tuple[str, str] = ("regret", "soft_violation"),
    *,
    title: str | None = None,
) -> Figure:
    """Final time averages of two metrics against each other, a point a policy.

    Policies are joined in their order; bars are standard errors over the trials.
    """
    matplotlib, Figure = _matplotlib()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 4.2), layout="constrained")
        panel = figure.subplots()
        ends = [[_averaged(each[name]) for name in metrics] for each in table.values()]
        x, y = ([float(pair[k].mean[-1]) for pair in ends] for k in (0, 1))
        xerr, yerr = ([float(pair[k].sem[-1]) for pair in ends] for k in (0, 1))
        panel.errorbar(
            x, y, yerr, xerr, fmt="o-", color=_COLOURS[0], ecolor="#999999", capsize=2
        )
        for label, *place in zip(table, x, y, strict=True):
            panel.annotate(
                label, (place[0], place[1]), (5, 5), textcoords="offset points"
            )
        panel.set_xlabel(f"{LABELS[metrics[0]]} / t")
        panel.set_ylabel(f"{LABELS[metrics[1]]} / t")
        panel.margins(0.12)
        if title is not None:
            _headline(figure, title)
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """The figure as a file, atomically; its kind by the path's ending."""
    from pathlib import Path

    from cbandit._core.checkpoint import atomic

    kind = Path(path).suffix.lstrip(".").lower() or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise CBanditError(
            f"a figure must be of a known kind, {', '.join(known)}; got {path}"
        )
    with atomic(path) as file:
        figure.savefig(file, format=kind, dpi=160)
