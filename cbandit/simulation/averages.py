"""Figures of what each cost was on average, beside its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cbandit.errors import CBanditError, MissingExtraError
from cbandit.simulation.curves import Curves, averaged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["costs", "drawing"]


def drawing() -> Any:
    """Return the module that draws, which needs matplotlib."""
    try:
        from cbandit.simulation import figure
    except ImportError:
        raise MissingExtraError(
            "figures need matplotlib: pip install 'cbandit[experiments]'"
        ) from None
    return figure


def costs(
    table: Curves,
    *,
    title: str | None = None,
    reward: str = "reward",
    spread: str = "sem",
    width: float = 1.0,
) -> Figure:
    """Draw the averages so far of the reward and of each cost that has a name.

    Lines mark the costs' limits. A policy that keeps limits on average ends at them or
    on their right side.

    Args:
        table: curves as :func:`curves` gives them, of runs with named costs.
        title: above all panels.
        reward: what the reward is called.
        spread: as for :func:`overview`.
        width: likewise.
    """
    first = next(iter(table.values()), {})
    names = [name for name in first if name.partition(" ")[0] == "cost"]
    if not names:
        raise CBanditError("nothing to plot: the runs' costs have no names")
    means = {
        policy: {k: averaged(c) for k, c in each.items() if k != "stopped"}
        for policy, each in table.items()
    }
    draw = drawing()
    with draw.styled():
        count = 1 + len(names)
        columns = count if count < 4 else (count + 1) // 2
        rows = -(-count // columns)
        size = (4.4 * columns, 3.1 * rows + 0.7)
        figure: Figure = draw.Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        band = {"spread": spread, "width": width}
        for panel, name in zip(panels, ["reward", *names], strict=False):
            draw.draw_panel(panel, means, name, reward=reward, zero=False, **band)
            words = reward if name == "reward" else name.partition(" ")[2]
            panel.set_title(f"{words}, average so far")
            panel.set_xlabel("round")
            if name != "reward":
                limit = first[f"limit {words}"]
                height = (limit.mean / limit.t).numpy()
                panel.plot(
                    limit.t, height, color="#000000", linewidth=1.2, label="limit"
                )
        for panel in panels[count:]:
            panel.set_visible(False)
        handles, labels = panels[1].get_legend_handles_labels()
        draw.add_legend(figure, handles, labels)
        draw.add_headline(figure, title)
    return figure
