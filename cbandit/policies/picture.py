"""The picture of a policy: what it believes, its multiplier and its certificate.

In shapes, ``n`` counts the points drawn, ``k`` the rounds, ``d`` the coordinates of an
action and ``m`` the costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.figures import COLOURS, add_legend, columns_for, sheet
from cbandit.actions import Actions, Category, Context, Finite, ProductGrid
from cbandit.errors import CBanditError
from cbandit.policies.history import STATES
from cbandit.policies.signs import Objective
from cbandit.receipt.bets import Array
from cbandit.receipt.panel import draw_certificate
from cbandit.receipt.sums import Costs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_FUNCTIONS = 4  # the reward, then costs
MAX_VALUES = 61  # along a knob, of which more values are thinned out


class Axis(NamedTuple):
    """One knob along an axis of a panel.

    Args:
        name: what it is called.
        column: its coordinate.
        values: the coordinates that are drawn, ``(n,)``, rising.
        words: the values of a category; ``None``: they are numbers.
        log: whether the axis is logarithmic.
    """

    name: str
    column: int
    values: Tensor
    words: Sequence[str] | None = None
    log: bool = False

    def label(self, panel: Axes, along: str) -> None:
        """Label the axis ``along``, ``"x"`` or ``"y"``, of a panel."""
        axis = panel.xaxis if along == "x" else panel.yaxis
        axis.set_label_text(self.name)
        if self.words is not None:
            axis.set_ticks(self.values.tolist(), list(self.words))
        elif self.log:
            (panel.set_xscale if along == "x" else panel.set_yscale)("log")


class Belief(NamedTuple):
    """The belief about one function, and what was told of it.

    Args:
        name: what the function is called.
        mean: its means at the points drawn, ``(n,)``.
        std: its standard deviations, ``(n,)``.
        limit: its limit; ``None``: it has none.
        told: what was told of it, ``(k,)``, NaN where nothing was.
    """

    name: str
    mean: Array
    std: Array
    limit: float | None
    told: Array


class Parts(NamedTuple):
    """The parts of the picture of a policy.

    Args:
        title: the title above all panels.
        axes: one or two knobs.
        objective: the names and signs of the functions.
        past: the history, see :meth:`History.table`.
        trial: the trial that is drawn.
        posterior: the beliefs at the points drawn; ``None``: there are none.
        limits: the limits of the next round, ``(m,)``, with the policy's signs.
        best: the actions to deploy, ``(k, d)``; ``None``: there are none.
        costs: what the certificate knows of the costs; ``None``: there is none.
    """

    title: str
    axes: Sequence[Axis]
    objective: Objective
    past: Mapping[str, Tensor]
    trial: int
    posterior: Any
    limits: Tensor
    best: Tensor | None
    costs: Costs | None

    def draw(self) -> Figure:
        """Draw a panel for each belief, for multipliers and for the certificate."""
        beliefs = self._beliefs()
        draws: list[Callable[[Axes], None]] = []
        draws += [partial(self._draw_belief, belief) for belief in beliefs]
        played = len(self.past["round"]) > 0
        if played and bool(self._multipliers().nan_to_num().any()):
            draws.append(self._draw_multipliers)
        if played and self.costs is not None:
            draws.append(partial(self._draw_certificate, self.costs))
        if not draws:
            raise CBanditError("nothing to plot: no beliefs over the set and no rounds")
        columns = columns_for(len(draws))
        with sheet(self.title, len(draws), columns, 2.1, 0.6) as (figure, panels):
            for panel, draw in zip(panels.flat, draws, strict=False):
                draw(panel)
            add_legend(figure, panels.flat[: len(beliefs)])
        return figure

    def _told(self) -> Tensor:
        """Return what was told in each round, with the user's signs, ``(k, 1 + m)``."""
        reward, costs = (self.past[name][:, self.trial] for name in ("reward", "costs"))
        turned = self.objective.reward(reward).unsqueeze(-1)
        return torch.cat([turned, self.objective.costs(costs)], -1)

    def _beliefs(self) -> list[Belief]:
        if self.posterior is None:
            return []
        reward, costs = self.posterior.reward, self.posterior.costs
        n, told = reward.mean.shape[-1], self._told().numpy()

        def of_trial(values: Tensor) -> Tensor:
            return values.cpu().double().reshape(-1, values.shape[-2], n)[self.trial]

        mean, std = (part.unsqueeze(-2) for part in (reward.mean, reward.std))
        mean, std = of_trial(mean), of_trial(std)
        if costs is not None:
            mean = torch.cat([mean, of_trial(costs.mean)])
            std = torch.cat([std, of_trial(costs.std)])
        labels = ["reward", *map(self.objective.label, range(self.objective.m))]
        limits = [None, *self.objective.costs(self.limits.cpu()).tolist()]
        return [
            Belief(labels[f], mean[f].numpy(), std[f].numpy(), limits[f], told[:, f])
            for f in range(min(len(mean), MAX_FUNCTIONS))
        ]

    def _draw_belief(self, belief: Belief, panel: Axes) -> None:
        x = self.past["x"][:, self.trial]
        draw_belief(panel, self.axes, belief, x, self.best)

    def _multipliers(self) -> Tensor:
        return self.past["multiplier"][:, self.trial]

    def _draw_multipliers(self, panel: Axes) -> None:
        rounds, lines = self.past["round"].numpy(), self._multipliers().numpy()
        for j, line in enumerate(lines.T):
            style: dict[str, Any] = {
                "color": COLOURS[j % len(COLOURS)],
                "linewidth": 1.3,
            }
            panel.plot(rounds, line, label=self.objective.label(j), **style)
        panel.set_title("Multiplier")
        panel.set_xlabel("round")
        panel.set_xlim(0, rounds[-1])
        panel.legend(fontsize=6.5)

    def _draw_certificate(self, costs: Costs, panel: Axes) -> None:
        past, i = self.past, self.trial
        values = self.objective.costs(past["costs"][:, i])
        state = past["state"][:, i]
        idle, cancelled = (state == STATES.index(k) for k in ("idle", "cancelled"))
        # what was cancelled without an answer was not played
        played = ~idle & ~(cancelled & values.isnan().all(-1))
        limits = self.objective.costs(past["limits"][:, i])
        tries = None
        if past["tries"].shape[-1]:
            tries = past["tries"][played, i, 1:].nan_to_num(1.0).unsqueeze(1).numpy()
        told = values[played].unsqueeze(1).numpy()
        if len(told):
            first = costs.first[i : i + 1]
            at = limits[played].unsqueeze(1).numpy()
            draw_certificate(panel, replace(costs, first=first), told, at, tries)


def read_axes(actions: Actions, knobs: Any) -> list[Axis]:
    """Return the axes of the user's ``knobs``, one or two; ``None``: the first ones."""
    names = knob_names(actions)
    if knobs is None:
        knobs = names[:2]
    wanted = [knobs] if isinstance(knobs, str | int) else list(knobs)
    columns = []
    for knob in wanted:
        if knob in names:
            columns.append(names.index(knob))
        elif isinstance(knob, int) and 0 <= knob < len(names):
            columns.append(knob)
        else:
            raise CBanditError(f"knobs must be of {', '.join(names)}; got {knob!r}")
    if not 1 <= len(columns) <= 2 or len({*columns}) < len(columns):
        raise CBanditError(f"knobs must be one or two different ones; got {knobs!r}")
    return [_axis(actions, column, names[column]) for column in columns]


def knob_names(actions: Actions) -> list[str]:
    """Return the names of the coordinates, ``x1``, ``x2`` where they have none."""
    if actions.names is None:
        return [f"x{j + 1}" for j in range(actions.dim)]
    columns = actions.names.columns
    return [
        name if columns.count(name) == 1 else f"{name}{columns[: j + 1].count(name)}"
        for j, name in enumerate(columns)
    ]


def _axis(actions: Actions, column: int, name: str) -> Axis:
    parameter: Any = None
    if actions.names is not None:
        parameter = actions.names.parameters[actions.names.columns[column]]
        if isinstance(parameter, Context):
            parameter = parameter.parameter
    words, log, whole = None, bool(parameter and parameter.log), False
    if parameter is not None and parameter.values is not None:
        values = parameter.values
        if isinstance(parameter, Category):
            words = [str(option) for option in parameter.options]
        whole = True
    elif isinstance(actions.domain, ProductGrid):
        values, whole = actions.domain.axes[column].sort().values, True
    elif isinstance(actions, Finite) and actions.dim == 1:
        values, whole = actions.block(0, int(actions.size))[..., 0].unique(), True
    else:
        least, most = actions.extent().reshape(-1, 2, actions.dim)[0, :, column]
        if not math.isfinite(float(most - least)):
            raise CBanditError(f"the context {name!r} has no bounds to draw it between")
        values = torch.linspace(0, 1, MAX_VALUES, dtype=torch.float64)
        low, high = (float(end) for end in (least, most))
        values = low * (high / low) ** values if log else low + (high - low) * values
    if whole and len(values) > MAX_VALUES:
        at = torch.linspace(0, len(values) - 1, MAX_VALUES).round().long()
        values = values[at]
        words = None if words is None else [words[i] for i in at.tolist()]
    return Axis(name, column, values.double().cpu(), words, log)


def points_along(axes: Sequence[Axis], base: Tensor) -> Tensor:
    """Return the points drawn, ``(n, d)``: ``base (d,)`` with the axes' values."""
    grid = torch.cartesian_prod(*(axis.values for axis in axes))
    points = base.expand(len(grid), -1).clone()
    points[:, [axis.column for axis in axes]] = grid.reshape(len(grid), -1).to(base)
    return points


def base_point(
    actions: Actions, x: Tensor, best: Tensor | None, at: Mapping[str, Any] | None
) -> Tensor:
    """Return the action ``(d,)`` whose other coordinates the picture holds.

    Args:
        actions: the policy's set.
        x: the actions of the rounds, ``(k, d)``.
        best: the actions to deploy, ``(b, d)``; ``None``: the latest is taken.
        at: coordinates that the user gave, by name.
    """
    if best is not None:
        base = best[0].double().cpu().clone()
    elif len(x):
        base = x[-1].double().clone()
    else:
        axes = [_axis(actions, j, name) for j, name in enumerate(knob_names(actions))]
        base = torch.stack([axis.values[len(axis.values) // 2] for axis in axes])
    if at is None:
        return base
    if not isinstance(at, Mapping):
        raise CBanditError(
            f"at must hold knobs by name, such as {{{knob_names(actions)[0]!r}: 1}}; "
            f"got {checks.kind(at)}"
        )
    names = knob_names(actions)
    for key, value in at.items():
        if actions.names is not None and key in actions.names.parameters:
            numbers = actions.names.coordinates(key, value, "at")
            first = actions.names.columns.index(key)
            base[first : first + len(numbers)] = torch.tensor(numbers)
        elif key in names:
            base[names.index(key)] = checks.number(f"at[{key!r}]", value)
        else:
            raise CBanditError(f"at: there is no knob {key!r}; there are {names}")
    return base


def draw_belief(
    panel: Axes, axes: Sequence[Axis], belief: Belief, x: Tensor, best: Tensor | None
) -> None:
    """Draw a belief over one or two knobs, its limit, and what was told.

    Args:
        panel: where to draw.
        axes: the knobs, one or two.
        belief: the belief.
        x: the actions of the rounds, ``(k, d)``.
        best: the recommended actions, ``(b, d)``; ``None``: there are none.
    """
    panel.set_title(belief.name)
    places = [x[:, axis.column].cpu().numpy() for axis in axes]
    known = np.isfinite(belief.told)
    for axis, along in zip(axes, "xy", strict=False):
        axis.label(panel, along)
    if len(axes) == 1:
        _draw_line(panel, axes[0], belief)
        dots: dict[str, Any] = {"s": 8, "color": "#444444", "alpha": 0.6, "zorder": 4}
        panel.scatter(places[0][known], belief.told[known], label="told", **dots)
        if best is not None:
            for at in best[:, axes[0].column].tolist():
                panel.axvline(at, color=COLOURS[2], linestyle="--", label="recommended")
        return
    shape = [len(axis.values) for axis in axes]
    grid = [axis.values.numpy() for axis in axes]
    heat = belief.mean.reshape(shape).T
    panel.grid(False)
    mesh = panel.pcolormesh(*grid, heat, shading="nearest", cmap="cividis")
    panel.figure.colorbar(mesh, ax=panel)
    if belief.limit is not None and min(shape) > 1:
        if heat.min() < belief.limit < heat.max():
            panel.contour(*grid, heat, [belief.limit], colors="white", linewidths=1.5)
        panel.plot([], [], color="#AAAAAA", linewidth=1.5, label="limit (white)")
    dots = {"s": 9, "color": "white", "edgecolors": "#222222", "linewidths": 0.5}
    panel.scatter(places[0][known], places[1][known], label="told", zorder=3, **dots)
    if best is not None:
        at = [best[:, axis.column].tolist() for axis in axes]
        star: dict[str, Any] = {
            "marker": "*",
            "s": 90,
            "color": COLOURS[1],
            "edgecolors": "white",
        }
        panel.scatter(*at, label="recommended", zorder=4, **star)


def _draw_line(panel: Axes, axis: Axis, belief: Belief) -> None:
    values, mean, wide = axis.values.numpy(), belief.mean, 2 * belief.std
    if axis.words is not None:
        panel.errorbar(values, mean, wide, fmt="o", color=COLOURS[0], capsize=3)
    else:
        panel.plot(values, mean, color=COLOURS[0], label="mean")
        style: dict[str, Any] = {"color": COLOURS[0], "alpha": 0.2, "linewidth": 0}
        panel.fill_between(
            values, mean - wide, mean + wide, label="2 standard deviations", **style
        )
    if belief.limit is not None:
        panel.axhline(belief.limit, color="#000000", linewidth=1.2, label="limit")
