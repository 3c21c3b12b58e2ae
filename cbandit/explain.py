"""Explanations: why a policy chose what it did, in numbers and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cbandit._core.printing import brief, html_table
from cbandit.actions import Names
from cbandit.choice import Distribution, params_of

__all__ = ["Explanation"]


@dataclass(frozen=True)
class Explanation:
    """The reasons for a choice; parts that are no longer known are ``None``.

    Args:
        id: the choice's id.
        t: the choice's round.
        index: the action's number, ``(*trials,)``; ``None`` on a box.
        x: the action, ``(*trials, d)``.
        mean: the posterior mean of reward and costs at the time, ``(*trials, 1 + m)``,
            in the user's units; the prior mean if nothing had been told.
        std: the standard deviations around ``mean``, ``(*trials, 1 + m)``.
        known: whether any feedback on each function had come, ``(*trials, 1 + m)``.
        taken: the estimates of reward and costs after exploration, such as bounds or
            draws, in the user's units, ``(*trials, 1 + m)``.
        estimate: the estimates that entered the score, ``(*trials, 1 + m)``, in
            ``unit``: here limits are subtracted from costs.
        multiplier: the multiplier of each cost, ``(*trials, m)``, in ``unit``.
        price: the multiplier in the user's units: the reward that one unit of each cost
            is worth, ``(*trials, m)``.
        score: the choice's score, ``(*trials,)``, in ``unit``.
        labels: the names of the reward and the costs.
        names: the names of the coordinates, if the policy's set has any.
        drawn_from: the actions that are equally good at the price, and their
            probabilities; ``None``: the choice was not drawn.
        unit: the unit of scores, multipliers and ``estimate``: ``"spreads"`` of
            outcomes if beliefs are standardised, else ``""``, the user's.
        own_score: whether the score comes from a policy's own ``acquire``, and so has
            no known unit.
    """

    id: str
    t: int
    index: Tensor | None
    x: Tensor
    mean: Tensor | None = None
    std: Tensor | None = None
    estimate: Tensor | None = None
    multiplier: Tensor | None = None
    score: Tensor | None = None
    labels: tuple[str, ...] = ()
    names: Names | None = field(default=None, repr=False)
    taken: Tensor | None = None
    price: Tensor | None = None
    drawn_from: Distribution | None = None
    unit: str = ""
    own_score: bool = False
    known: Tensor | None = None

    __repr__ = brief

    @property
    def params(self) -> Any:
        """The action by name, a dict; with trials a list of dicts."""
        return params_of(self.names, self.x)

    def __str__(self) -> str:
        trials = self.x.shape[0] if self.x.dim() == 2 else 1
        return "\n".join(line for i in range(trials) for line in self._lines(i))

    def _repr_html_(self) -> str:
        trials = self.x.shape[0] if self.x.dim() == 2 else 1
        rows = [row for i in range(trials) for row in self._rows(i)]
        return html_table(rows, str(self) if trials == 1 else f"round {self.t}")

    def _rows(self, i: int) -> list[dict[str, object]]:
        """Return the rows of a table about one trial, one for each function."""
        inside = f" ({self.unit})" if self.unit else ""
        columns = {
            "believed": self.mean,
            "+-": self.std,
            "taken for": self.taken,
            f"in the score, less its limit{inside}": self.estimate,
        }
        of_costs = {f"multiplier{inside}": self.multiplier, "price": self.price}
        rows: list[dict[str, object]] = []
        for j, label in enumerate(self.labels):
            row: dict[str, object] = {"trial": i} if self.x.dim() == 2 else {}
            row["function"] = label
            for values, k in ((columns, j), (of_costs, j - 1)):
                for name, value in values.items():
                    if value is not None and 0 <= k < value.shape[-1]:
                        row[name] = _row(value, i)[k].item()
            rows.append(row)
        return rows

    def _lines(self, i: int) -> list[str]:
        """Describe one trial."""
        trial = f", trial {i}" if self.x.dim() == 2 else ""
        place = _place(self.names, _row(self.x, i), _number(self.index, i))
        out = [f"round {self.t}{trial}: {place}"]
        mean, std, known, taken, estimate, multiplier, price = (
            None if v is None or not v.shape[-1] else _row(v, i).tolist()
            for v in (
                self.mean,
                self.std,
                self.known,
                self.taken,
                self.estimate,
                self.multiplier,
                self.price,
            )
        )
        unit = f" {self.unit}" if self.unit else ""
        inside = f" (in {self.unit})" if self.unit else ""
        scored = "" if self.own_score else inside
        for j, label in enumerate(self.labels):
            words, untold = [], known is not None and not all(known[j : j + 1])
            if mean is not None and std is not None and j < len(mean):
                believed = f"{mean[j]:.4g} +- {std[j]:.3g}"
                prior = f"nothing told yet, prior {believed}{inside}"
                words.append(prior if untold else f"believed {believed}")
            if taken is not None and j < len(taken) and not untold:
                words.append(f"taken for {taken[j]:.4g}")
            elif estimate is not None and j < len(estimate):
                side = "over" if estimate[j] > 0 else "within"
                value = abs(estimate[j]) if j else estimate[j]
                over = f" {side} its limit" * (j > 0)
                words.append(f"taken for {value:.4g}{unit}{over}")
            if j and multiplier is not None:
                words.append(f"multiplier {multiplier[j - 1]:.4g}{inside}")
            if j and unit and price is not None and not math.isnan(price[j - 1]):
                words.append(f"price {price[j - 1]:.4g} of reward for 1 of it")
            if words:
                out.append(f"  {label}: {', '.join(words)}")
        shares = [] if self.drawn_from is None else _shares(self.drawn_from, i)
        if len(shares) > 1:
            out.append(f"  drawn from {', '.join(shares)}: equally good at the price")
        if self.score is not None:
            out.append(f"  score {self.score.reshape(-1)[i].item():.6g}{scored}")
        return out


def _row(value: Tensor, i: int) -> Tensor:
    return value[i] if value.dim() == 2 else value


def _number(index: Tensor | None, i: int) -> int | None:
    return None if index is None else int(torch.as_tensor(index).reshape(-1)[i])


def _shares(drawn_from: Distribution, i: int) -> list[str]:
    """Return one trial's distribution in words."""
    index, p = (
        part.reshape(-1, part.shape[-1])[i].tolist()
        for part in (drawn_from.index, drawn_from.probability)
    )
    pairs = zip(index, p, strict=True)
    return [f"action {a} with {share:.3g}" for a, share in pairs if share > 0]


def _place(names: Names | None, x: Tensor, number: int | None) -> str:
    """Name an action."""
    words = (
        ", ".join(f"{v:.4g}" for v in x.tolist()) if names is None else names.said(x)
    )
    return f"the point ({words})" if number is None else f"action {number} at ({words})"
