"""A panel of a figure: a certificate as it was after each round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cbandit._core.figures import COLOURS
from cbandit.receipt.bets import Array
from cbandit.receipt.certificate import Bands, can_be_worst
from cbandit.receipt.sums import Costs, sums_after

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 60  # rounds at which the bounds are computed
MAX_COSTS = 4  # of more costs, those nearest to a broken limit are drawn
EARLY = 5  # the first of this many parts of the rounds may leave the panel


def draw_certificate(
    panel: Axes,
    costs: Costs,
    values: Array,
    limits: Array,
    tries: Array | None = None,
    alpha: float = 0.05,
) -> None:
    """Draw the bounds on each cost's mean over the rounds so far, and its limit.

    They are computed from what was told alone, without what a belief expects. With
    trials, their means over the trials are drawn. Several costs are drawn as excess
    over their limits, in the size of the limit.

    Args:
        panel: where to draw.
        costs: what is known of the costs.
        values: the costs of the rounds, ``(n, T, m)``; NaN where they never came.
        limits: their limits, likewise.
        tries: the tries or exposure behind each, likewise; ``None``: 1.
        alpha: the chance that any of the bounds ever fails.
    """
    n = len(values)
    even, early = np.linspace(1, n, POINTS), np.geomspace(1, n, POINTS)
    rounds = np.unique(np.concatenate([even, early]).round().astype(int))
    parts = []
    for sums in sums_after(costs, values, limits, rounds.tolist(), tries):
        bands = Bands(sums, costs, alpha, can_be_worst(sums, costs))
        parts.append(np.stack([bands.told, bands.lower, bands.upper, bands.limit]))
    lines = np.where(np.isfinite(parts), parts, np.nan).mean(2)  # rounds x 4 x m
    several = lines.shape[-1] > 1
    if several:
        limit = lines[:, 3:]
        size = np.abs(limit[-1:])
        lines = (lines - limit) * costs.signs / np.where(size > 0, size, 1.0)
    far = np.nan_to_num(lines[-1, 2], nan=np.inf)
    shown = sorted(np.argsort(-far, kind="stable")[:MAX_COSTS])
    for k, j in enumerate(shown):
        told, lower, upper, limit = lines[:, :, j].T
        colour = COLOURS[k]
        panel.plot(rounds, told, color=colour, linewidth=1.3, label=costs.names[j])
        panel.fill_between(rounds, lower, upper, color=colour, alpha=0.2, linewidth=0)
        if not several:
            panel.plot(rounds, limit, color="#000000", linewidth=1.2, label="limit")
    if several:
        panel.axhline(0, color="#000000", linewidth=1.2)
    inside = lines[rounds >= n / EARLY][..., shown]
    known = inside[np.isfinite(inside)]
    if known.size:
        least, most = known.min(), known.max()
        room = 0.08 * (most - least) or 1.0
        panel.set_ylim(least - room, most + room)
    panel.set_xlim(0, n)
    bounded = bool(np.isfinite(lines[-1, 1:3]).any())
    panel.set_title("Certificate" if bounded else "Certificate: no bounds yet")
    unit = "excess, in limits" if several else costs.names[0]
    panel.set_ylabel(f"{unit};\nmean so far, {100 * (1 - alpha):g} % bounds")
    panel.set_xlabel("round")
    panel.legend(fontsize=6.5)
