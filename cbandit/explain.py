"""Explanations: why a policy chose what it did, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cbandit.choice import params_of

__all__ = ["Explanation", "Rival"]


@dataclass(frozen=True)
class Rival:
    """Another action that was weighed.

    Args:
        index: its number, ``(*trials,)``; ``None`` on a box.
        x: the action, ``(*trials, d)``.
        score: its score, ``(*trials,)``.
        names: of the coordinates, where the policy's set has any.
    """

    index: Tensor | None
    x: Tensor
    score: Tensor
    names: Any = field(default=None, repr=False)

    @property
    def params(self) -> Any:
        """The action by name, a dict; with trials a list of dicts."""
        return params_of(self.names, self.x)


@dataclass(frozen=True)
class Explanation:
    """Why one action was chosen; parts that are no longer known are ``None``.

    Args:
        id: of the choice.
        t: its round.
        index: its number, ``(*trials,)``; ``None`` on a box.
        x: the action, ``(*trials, d)``.
        mean: believed of reward and costs before it was tried, ``(*trials, 1 + m)``, as
            the user states them.
        std: how uncertain that was, likewise.
        estimate: what was assumed of them, by exploration, and entered the score: of
            what is maximised, and by how much costs exceed their limits, ``(*trials, 1
            + m)``.
        multiplier: ``(*trials, m)``, the price of each cost.
        score: ``(*trials,)``.
        runner_up: what would have been chosen instead.
        unconstrained: what would have been chosen if costs did not matter; its score is
            the reward's estimate.
        labels: of the reward and the costs.
        names: of the coordinates, where the policy's set has any.
    """

    id: str
    t: int
    index: Tensor | None
    x: Tensor
    mean: Tensor | None
    std: Tensor | None
    estimate: Tensor | None
    multiplier: Tensor | None
    score: Tensor | None
    runner_up: Rival | None
    unconstrained: Rival | None
    labels: tuple[str, ...] = ()
    names: Any = field(default=None, repr=False)

    @property
    def params(self) -> Any:
        """The action by name, a dict; with trials a list of dicts."""
        return params_of(self.names, self.x)

    def __str__(self) -> str:
        trials = self.x.shape[0] if self.x.dim() == 2 else 1
        return "\n".join(line for i in range(trials) for line in self._lines(i))

    def _lines(self, i: int) -> list[str]:
        """Describe one trial."""
        trial = f", trial {i}" if self.x.dim() == 2 else ""
        place = _place(self.names, _row(self.x, i), _number(self.index, i))
        out = [f"round {self.t}{trial}: {place}"]
        mean, std, estimate, price = (
            None if v is None or not v.shape[-1] else _row(v, i).tolist()
            for v in (self.mean, self.std, self.estimate, self.multiplier)
        )
        for j, label in enumerate(self.labels):
            words = []
            if mean is not None and std is not None and j < len(mean):
                words.append(f"believed {mean[j]:.4g} +- {std[j]:.3g}")
            if estimate is not None and j < len(estimate):
                words.append(
                    f"taken for {estimate[j]:.4g}" + " over its limit" * (j > 0)
                )
            if j and price is not None:
                words.append(f"price {price[j - 1]:.4g}")
            if words:
                out.append(f"  {label}: {', '.join(words)}")
        if self.score is not None:
            out.append(f"  score {self.score.reshape(-1)[i].item():.6g}")
        for what, rival in (
            ("runner-up", self.runner_up),
            ("if costs did not matter", self.unconstrained),
        ):
            if rival is not None:
                number = _number(rival.index, i)
                place = _place(self.names, _row(rival.x, i), number)
                score = rival.score.reshape(-1)[i].item()
                out.append(f"  {what}: {place}, score {score:.6g}")
        return out


def _row(value: Tensor, i: int) -> Tensor:
    return value[i] if value.dim() == 2 else value


def _number(index: Tensor | None, i: int) -> int | None:
    return None if index is None else int(torch.as_tensor(index).reshape(-1)[i])


def _place(names: Any, x: Tensor, number: int | None) -> str:
    """Name an action."""
    words = (
        ", ".join(f"{v:.4g}" for v in x.tolist()) if names is None else names.said(x)
    )
    return f"the point ({words})" if number is None else f"action {number} at ({words})"
