"""What to deploy once learning is over, or so far."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit.distributed import ALONE, Ranks

__all__ = ["Recommendation", "recommend"]


@dataclass(frozen=True)
class Recommendation:
    """The best action believed feasible, or, where there is none, the likeliest.

    Args:
        index: the action's number, ``(*trials,)``; ``None`` on a box.
        x: the action, ``(*trials, d)``.
        value: its expected reward, ``(*trials,)``.
        probability: that it meets every constraint, costs independent, ``(*trials,)``;
            NaN where the policy holds no belief about costs.
        margin: threshold less expected cost, ``(*trials, m)``; positive is room.
        feasible: ``(*trials,)``, whether the probability reaches the confidence.
        confidence: what was asked for.
    """

    index: Tensor | None
    x: Tensor
    value: Tensor
    probability: Tensor
    margin: Tensor
    feasible: Tensor
    confidence: float

    def __str__(self) -> str:
        lines = []
        flat = [v.reshape(-1) for v in (self.value, self.probability)]
        numbers = None if self.index is None else self.index.reshape(-1).tolist()
        x = self.x.reshape(len(flat[0]), -1)
        margin = self.margin.reshape(len(flat[0]), -1)
        for i, ok in enumerate(self.feasible.reshape(-1).tolist()):
            value, probability = (v[i].item() for v in flat)
            name = "the point" if numbers is None else f"action {numbers[i]} at"
            point = ", ".join(f"{v:.4g}" for v in x[i].tolist())
            room = ", ".join(f"{v:.4g}" for v in margin[i].tolist())
            line = f"{name} ({point}): reward {value:.4g}"
            if math.isnan(probability):
                lines.append(line + ", penalties included; costs have no belief")
                continue
            line += f", feasible with probability {probability:.3g}"
            if room:
                line += f", margin {room}"
            if not ok:
                line = (
                    f"no action is believed feasible with probability "
                    f"{self.confidence:g}; the likeliest is {line}"
                )
            lines.append(line)
        return "\n".join(lines)


def recommend(
    blocks: Iterable[tuple[int, Tensor, Tensor]],
    limits: Tensor,
    confidence: float,
    ranks: Ranks = ALONE,
) -> Recommendation:
    """Search blocks ``(start, mean (T, F, n), std (T, 1 or F, n))``, reward first.

    Among actions feasible with ``confidence`` the greatest mean reward; where there is
    none, the greatest probability. ``limits`` are the thresholds, ``(T, m)``. ``x`` is
    left empty. Where ``ranks`` share the set, the blocks are this one's.
    """
    best: dict[str, Tensor] | None = None
    for start, mean, std in blocks:
        room = limits.to(mean).unsqueeze(-1) - mean[:, 1:]  # T x m x n
        spread = std.expand_as(mean)[:, 1:]
        # a known cost is feasible or not: no division by its zero spread
        known = (room >= 0).to(room.dtype)
        share = torch.special.ndtr(room / spread)
        probability = torch.where(spread > 0, share, known).prod(-2)
        safe = probability >= confidence
        # two keys in one: all safe actions come before all others
        _, place = torch.where(safe, mean[:, 0], -torch.inf).max(-1)
        _, other = probability.max(-1)
        any_safe = safe.any(-1)
        place = torch.where(any_safe, place, other)

        def at(values: Tensor, place: Tensor = place) -> Tensor:
            where = place.reshape(-1, *[1] * (values.dim() - 1))
            return values.gather(-1, where.expand(*values.shape[:-1], 1)).squeeze(-1)

        here = {
            "index": place + start,
            "value": at(mean[:, 0]),
            "probability": at(probability),
            "margin": at(room),
            "feasible": any_safe,
        }
        best = here if best is None else _better(best, here)
    assert best is not None
    if ranks.size > 1:
        best = _among(best, ranks)
    return Recommendation(x=limits.new_empty(0), confidence=confidence, **best)


def _better(best: dict[str, Tensor], here: dict[str, Tensor]) -> dict[str, Tensor]:
    """What comes ``here`` where it is better, and ``best`` where it is not."""
    better = torch.where(
        here["feasible"] & best["feasible"],
        here["value"] > best["value"],
        here["feasible"]
        | (~best["feasible"] & (here["probability"] > best["probability"])),
    )
    return {
        k: torch.where(better.unsqueeze(-1) if k == "margin" else better, v, best[k])
        for k, v in here.items()
    }


def _among(best: dict[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The best of all ranks' recommendations, on every rank."""
    columns = [best[k].double() for k in ("value", "probability", "feasible")]
    own = torch.cat([torch.stack(columns, -1), best["margin"].double()], -1)
    index, numbers = ranks.candidates(best["index"], own)
    every = [
        {
            "index": index[rank],
            "value": each[:, 0].to(best["value"]),
            "probability": each[:, 1].to(best["probability"]),
            "margin": each[:, 3:].to(best["margin"]),
            "feasible": each[:, 2] > 0,
        }
        for rank, each in enumerate(numbers)
    ]
    return functools.reduce(_better, every)
