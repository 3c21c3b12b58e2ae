"""Recommendations: which action, or distribution, to deploy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.printing import brief, html_table
from cbandit.actions import Names
from cbandit.choice import Distribution, params_of, rows_of
from cbandit.errors import CBanditError
from cbandit.search.simplex.lp import solve_policy_in_blocks

__all__ = [
    "Recommendation",
    "nothing_told",
    "quantile",
    "recommend",
    "recommend_policy",
]

SURE = 1e20  # log probabilities below minus this count as equal
SLIGHT = 1e-9  # deviations taken off, so that of equal values the better known wins
NOTHING = "nothing has been told yet that says which action is best"

Blocks = Iterable[tuple[int, Tensor, Tensor]]


@dataclass(frozen=True)
class Recommendation:
    """The best action believed feasible, or else the one that is most likely feasible.

    Nothing is claimed before data. If no reward was told in a trial, its numbers are
    NaN and its action means nothing. If no value of a cost was told, its margin and the
    probability are NaN: the action is the best one within the other limits, and is not
    called feasible.

    A policy that randomises recommends a distribution over actions. Then ``index`` is
    ``distribution.index (*trials, k)`` and ``x`` its actions ``(*trials, k, d)``.

    Args:
        index: the action's number, ``(*trials,)``; ``None`` on a box.
        x: the action, ``(*trials, d)``.
        value: its expected reward, ``(*trials,)``.
        probability: the probability that it meets every constraint, for independent
            costs, ``(*trials,)``. NaN if nothing is known of some cost, or if this is
            the best observed action. A lower bound for a distribution.
        margin: threshold less expected cost, ``(*trials, m)``; positive means room. NaN
            if nothing is known of the cost: no belief, or no data.
        feasible: ``(*trials,)``, whether the probability reaches the confidence; false
            if nothing is known of some cost. For the best observed action, whether its
            means kept the limits.
        confidence: the confidence that was asked for.
        distribution: the distribution over actions, for policies that randomise.
        penalised: whether the value is the reward less penalties for costs.
        names: the names of the coordinates, if the policy's set has any.
        costs: the names of the costs, if they have any.
    """

    index: Tensor | None
    x: Tensor
    value: Tensor
    probability: Tensor
    margin: Tensor
    feasible: Tensor
    confidence: float
    distribution: Distribution | None = None
    penalised: bool = False
    names: Names | None = field(default=None, repr=False)
    costs: tuple[str, ...] | None = None

    __repr__ = brief

    @property
    def params(self) -> Any:
        """The action by name; of a distribution, or with trials, a list of dicts."""
        return params_of(self.names, self.x)

    def of(self, part: Callable[[Tensor], Tensor]) -> Recommendation:
        """Return a copy with ``part`` applied to every tensor, for one trial, say."""
        tensors: dict[str, Any] = {
            k: part(v) for k, v in vars(self).items() if isinstance(v, Tensor)
        }
        pi = self.distribution
        pi = pi and Distribution(part(pi.index), part(pi.probability))
        return replace(self, **tensors, distribution=pi)

    def known(self, costs: Tensor) -> Recommendation:
        """Return a copy that claims nothing about costs without data.

        Args:
            costs: the costs with data, ``(T, m)`` bool. ``margin`` may have fewer than
                ``m`` columns.
        """
        costs = costs.to(self.margin.device)
        missing = costs.shape[-1] - self.margin.shape[-1]
        margin = torch.nn.functional.pad(self.margin, (0, missing), value=torch.nan)
        whole = costs.all(-1)
        return replace(
            self,
            margin=torch.where(costs, margin, torch.nan),
            probability=torch.where(whole, self.probability, torch.nan),
            feasible=self.feasible & whole,
        )

    def withheld(self, trials: Tensor) -> Recommendation:
        """Return a copy that claims nothing at all in some ``trials (T,)``."""
        trials = trials.to(self.value.device)
        return replace(
            self.known(~trials.unsqueeze(-1).expand_as(self.margin)),
            value=torch.where(trials, torch.nan, self.value),
            probability=torch.where(trials, torch.nan, self.probability),
            feasible=self.feasible & ~trials,
        )

    def __str__(self) -> str:
        return "\n".join(
            self._line(i, ok) for i, ok in enumerate(self.feasible.flatten().tolist())
        )

    def _repr_html_(self) -> str:
        count = self.feasible.numel()
        rows = [row for trial in range(count) for row in self._rows(trial)]
        if self.feasible.dim() == 0:
            for row in rows:
                del row["trial"]
        return html_table(rows, f"recommended, with confidence {self.confidence:g}")

    def _rows(self, trial: int) -> list[dict[str, object]]:
        """Return the rows of a table about one trial, one for each action."""
        count, m = self.feasible.numel(), self.margin.shape[-1]
        value, chance, ok = (
            part.flatten()[trial].item()
            for part in (self.value, self.probability, self.feasible)
        )
        if math.isnan(value) and not ok:
            return [{"trial": trial, "": NOTHING}]
        margin = self.margin.reshape(count, m)[trial].tolist()
        known: dict[str, object] = {"reward": value}
        if m:
            known |= {"feasible": ok, "with probability": chance}
            pairs = zip(self._cost_labels(), margin, strict=True)
            known |= {f"room of {name}": room for name, room in pairs}
        x = self.x.reshape(count, -1, self.x.shape[-1])[trial]
        rows, pi = rows_of(self.names, x), self.distribution
        if self.index is not None:
            numbers = self.index.reshape(count, -1)[trial].tolist()
            rows = [{"action": k, **row} for k, row in zip(numbers, rows, strict=True)]
        if pi is not None:
            shares = pi.probability.reshape(count, -1)[trial].tolist()
            rows = [
                {"share": share, **row}
                for share, row in zip(shares, rows, strict=True)
                if share > 0
            ]
        return [{"trial": trial, **row, **known} for row in rows]

    def _cost_labels(self) -> tuple[str, ...]:
        if self.costs is not None:
            return self.costs
        return tuple(f"cost{j + 1}" for j in range(self.margin.shape[-1]))

    def _line(self, trial: int, ok: bool) -> str:
        """Describe the recommendation of one trial."""
        value, probability = (
            v.flatten()[trial].item() for v in (self.value, self.probability)
        )
        if math.isnan(value) and not ok:
            return NOTHING
        reward = "unknown" if math.isnan(value) else f"{value:.4g}"
        line = f"{self._name(trial)}: reward {reward}"
        if self.penalised:
            line += ", penalties included"
        count, m = self.feasible.numel(), self.margin.shape[-1]
        margin = self.margin.reshape(count, m)[trial].tolist()
        if not m:
            return line
        names = self._cost_labels()
        room = [
            f"{v:.4g}" if self.costs is None else f"{name} {v:.4g}"
            for name, v in zip(names, margin, strict=True)
        ]
        unknown = [n for n, v in zip(names, margin, strict=True) if math.isnan(v)]
        if unknown:
            which = (
                ", ".join(unknown) if len(unknown) < m or self.costs else "its costs"
            )
            return f"{line}; nothing is known of {which}: it may or may not be feasible"
        if math.isnan(probability):
            within = "within" if ok else "above"
            return line + f", observed {within} its limits, margin {', '.join(room)}"
        least = "" if self.distribution is None else "at least "
        line += f", feasible with probability {least}{probability:.3g}"
        line += f", margin {', '.join(room)}"
        if ok:
            return line
        what = "action" if self.distribution is None else "distribution"
        return (
            f"no {what} is believed feasible with probability {self.confidence:g}; the "
            f"likeliest is {line}"
        )

    def _name(self, trial: int) -> str:
        if self.distribution is None:
            x = self.x.reshape(self.feasible.numel(), -1)[trial]
            if self.index is None:
                return f"the point ({self._place(x)})"
            number = self.index.flatten()[trial].item()
            return f"action {number} at ({self._place(x)})"
        count, dim = self.feasible.numel(), self.x.shape[-1]
        rows = zip(
            self.distribution.index.reshape(count, -1)[trial].tolist(),
            self.distribution.probability.reshape(count, -1)[trial].tolist(),
            self.x.reshape(count, -1, dim)[trial],
            strict=True,
        )
        return ", ".join(
            f"action {number} at ({self._place(x)}) {share:.1%} of the time"
            for number, share, x in rows
            if share > 0
        )

    def _place(self, x: Tensor) -> str:
        return _numbers(x) if self.names is None else str(self.names.said(x))


def _numbers(values: Tensor) -> str:
    return ", ".join(f"{v:.4g}" for v in values.tolist())


def nothing_told() -> CBanditError:
    """Return the error for a recommendation without any data."""
    return CBanditError(
        f"recommend: {NOTHING}: tell() the reward and the costs of a choice, or "
        "observe() data from before"
    )


def quantile(confidence: float, m: int) -> float:
    """Return ``z`` for which ``m`` bounds of ``z`` spreads hold with ``confidence``.

    The bounds are independent. ``z`` is at least 0, so no mean may exceed its limit.
    """
    share = torch.tensor(confidence ** (1 / max(m, 1)), dtype=torch.float64)
    return max(0.0, float(torch.special.ndtri(share)))


class _Candidate(NamedTuple):
    """The best action so far of each trial, ``(T,)``, with ``margin (T, m)``.

    ``chance`` is the logarithm of the probability, which also orders probabilities that
    round to 0. ``rank`` is the value less a tiny share of its deviation.
    """

    number: Tensor
    value: Tensor
    rank: Tensor
    chance: Tensor
    feasible: Tensor
    margin: Tensor


def recommend(
    blocks: Blocks, limits: Tensor, confidence: float, ranks: Ranks = ALONE
) -> Recommendation:
    """Return the action of greatest mean reward that is feasible with ``confidence``.

    If there is none, return the action that is most likely feasible.

    Args:
        blocks: ``(start, mean (T, F, n), std (T, 1 or F, n))``, reward first.
        limits: the thresholds, ``(T, m)``.
        confidence: the least probability that all limits are kept.
        ranks: the processes that share the set; the blocks are this one's share.

    Returns:
        A recommendation whose ``x`` is left empty.
    """
    best = _best(blocks, limits, confidence, ranks)
    return Recommendation(
        index=best.number,
        x=limits.new_empty(0),
        value=best.value,
        probability=best.chance.exp(),
        margin=best.margin,
        feasible=best.feasible,
        confidence=confidence,
    )


def log_chances(room: Tensor, spread: Tensor) -> Tensor:
    """Return the log probability that each cost keeps its limit, ``(T, m, n)``.

    Args:
        room: limits less means, ``(T, m, n)``.
        spread: standard deviations, ``(T, m, n)``. If one is 0, the cost is surely
            feasible or surely not.
    """
    least = torch.finfo(room.dtype).tiny  # avoid a division by 0
    sure = torch.where(room >= 0, 0.0, SURE * room - SURE)
    share = torch.special.log_ndtr(room / spread.clamp_min(least))
    return torch.where(spread > 0, share.clamp_min(-SURE), sure)


def _best(
    blocks: Blocks, limits: Tensor, confidence: float, ranks: Ranks = ALONE
) -> _Candidate:
    best: _Candidate | None = None
    for start, mean, std in blocks:
        room = limits.to(mean).unsqueeze(-1) - mean[:, 1:]  # T x m x n
        spread = std.expand_as(mean)
        chance = log_chances(room, spread[:, 1:]).sum(-2)
        safe = chance >= math.log(confidence)
        # of equal rewards, prefer the action known best, which was tried
        rank = mean[:, 0] - SLIGHT * spread[:, 0]
        # a safe action ranks before all others
        _, place = torch.where(safe, rank, -torch.inf).max(-1)
        _, other = chance.max(-1)
        any_safe = safe.any(-1)
        place = torch.where(any_safe, place, other)

        def at(values: Tensor, place: Tensor = place) -> Tensor:
            where = place.reshape(-1, *[1] * (values.dim() - 1))
            return values.gather(-1, where.expand(*values.shape[:-1], 1)).squeeze(-1)

        candidate = _Candidate(
            place + start, at(mean[:, 0]), at(rank), at(chance), any_safe, at(room)
        )
        best = candidate if best is None else _better(best, candidate)
    if best is None:
        raise _empty()
    return best if ranks.size == 1 else _among(best, ranks)


def _better(best: _Candidate, other: _Candidate) -> _Candidate:
    """Return ``other`` in the trials in which it is better, else ``best``."""
    better = torch.where(
        other.feasible & best.feasible,
        other.rank > best.rank,
        other.feasible | (~best.feasible & (other.chance > best.chance)),
    )
    wide = [better] * 5 + [better.unsqueeze(-1)]
    return _Candidate._make(map(torch.where, wide, other, best))


def _among(best: _Candidate, ranks: Ranks) -> _Candidate:
    """Return the best of all ranks' candidates, on every rank."""
    columns = [v.double() for v in (best.value, best.rank, best.chance, best.feasible)]
    numbers = torch.cat([torch.stack(columns, -1), best.margin.double()], -1)
    index, numbers = ranks.candidates(best.number, numbers)
    every = [
        _Candidate(
            index[rank],
            row[:, 0].to(best.value),
            row[:, 1].to(best.rank),
            row[:, 2].to(best.chance),
            row[:, 3] > 0,
            row[:, 4:].to(best.margin),
        )
        for rank, row in enumerate(numbers)
    ]
    return reduce(_better, every)


def recommend_policy(
    blocks: Callable[[], Blocks], size: int, limits: Tensor, confidence: float
) -> Recommendation:
    """Return the best distribution over ``size`` actions, feasible with ``confidence``.

    It has the greatest mean reward under ``E (mean + z std) <= limit``. This is safe
    however the actions' costs depend on each other: the deviation of a mixture is at
    most the mixture of the deviations. If a single action does better, or no mixture is
    feasible, the single action is recommended. ``x`` is left empty.
    """
    m = limits.shape[-1]
    z = quantile(confidence, m)

    def pessimistic() -> Iterator[tuple[int, Tensor]]:
        for start, mean, std in blocks():
            u = mean.double().clone()
            u[:, 1:] += z * std.expand_as(mean)[:, 1:]
            # a reward of minus infinity forbids an action, whatever its costs
            u[:, 1:].masked_fill_(u[:, :1].isneginf(), 0.0)
            yield start, u

    pi = solve_policy_in_blocks(pessimistic, size, limits)
    mean, std = _at(blocks(), pi.distribution.index)
    share = pi.distribution.probability
    mean, std = (torch.where(share.unsqueeze(1) > 0, v, 0.0) for v in (mean, std))
    value = (share * mean[:, 0]).sum(-1)
    one = _best(blocks(), limits, confidence)
    # the programme splits the risk evenly between costs; a single action need not
    single = pi.infeasible | (one.feasible & (one.value > value))
    room = limits - (share.unsqueeze(1) * mean[:, 1:]).sum(-1)
    spread = (share.unsqueeze(1) * std[:, 1:]).sum(-1)
    # costs without spread surely keep their limits, since the programme keeps them
    chance = torch.where(spread > 0, torch.special.ndtr(room / spread), 1.0).prod(-1)
    certain = torch.zeros_like(share)
    certain[:, 0] = 1.0
    index = torch.where(
        single.unsqueeze(-1),
        (certain * one.number.unsqueeze(-1)).long(),
        pi.distribution.index,
    )
    return Recommendation(
        index=index,
        x=limits.new_empty(0),
        value=torch.where(single, one.value.to(value), value),
        probability=torch.where(
            single, one.chance.exp().to(value), chance.clamp_min(confidence)
        ),
        margin=torch.where(single.unsqueeze(-1), one.margin.to(room), room),
        feasible=~pi.infeasible | one.feasible,
        confidence=confidence,
        distribution=Distribution(
            index, torch.where(single.unsqueeze(-1), certain, share)
        ),
    )


def _at(blocks: Blocks, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and spreads ``(T, F, k)`` at the actions ``index`` ``(T, k)``."""
    moments: Tensor | None = None
    for start, mean, std in blocks:
        inside = (index >= start) & (index < start + mean.shape[-1])
        place = torch.where(inside, index - start, 0).unsqueeze(1)
        values = torch.stack([mean.double(), std.double().expand_as(mean)])
        place = place.expand(2, -1, mean.shape[1], -1)
        new = values.gather(-1, place)
        if moments is not None:
            new = torch.where(inside.unsqueeze(1), new, moments)
        moments = new
    if moments is None:
        raise _empty()
    return moments[0], moments[1]


def _empty() -> CBanditError:
    return CBanditError("actions must hold at least one action; got none")
