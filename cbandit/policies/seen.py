"""The state of epoch penalties: this epoch's costs, rounds whose targets may move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.policies.believed import Data
from cbandit.policies.ledger import News, Told
from cbandit.policies.packing import Place

__all__ = ["Epoch", "Seen"]


@dataclass(frozen=True)
class Seen:
    """Feedback of one round, and the trials in which it has come.

    Args:
        place: the round, and where its choice is.
        reward: ``(T, 1)``.
        cost: ``(T, m)``, less the thresholds.
        rewarded: ``(T,)``, on the host, the trials whose reward has come.
        charged: likewise for the costs.
    """

    place: Place
    reward: Tensor
    cost: Tensor
    rewarded: Tensor
    charged: Tensor

    @classmethod
    def nothing(cls, place: Place, like: Tensor) -> Seen:
        """Return a round of which nothing has come; ``like`` is ``(T, m)``."""
        nowhere = torch.zeros(len(like), dtype=torch.bool)
        return cls(place, torch.zeros_like(like[:, :1]), like * 0, nowhere, nowhere)

    @classmethod
    def before(cls, data: Data, limits: Tensor) -> Iterator[Seen]:
        """Yield data from before, under thresholds ``(T, m)``."""
        every = torch.ones(len(limits), dtype=torch.bool)
        for keys, x, ((_, reward, *_), (_, cost, *_)) in data.rows():
            yield cls(Place(list(keys), x, 0), reward, cost - limits, every, every)

    def whole(self) -> Tensor:
        """Return the trials in which reward and costs have both come, ``(T,)``."""
        return self.rewarded & self.charged

    def told(self, news: News, limits: Tensor) -> Seen:
        """Return what has come with the news, under thresholds ``(T, m)``."""
        reward, rewarded, cost, charged = (
            self.reward,
            self.rewarded,
            self.cost,
            self.charged,
        )
        for told in news.rewards:
            reward, rewarded = _with(reward, rewarded, told)
        for told in news.costs:
            less = told._replace(values=told.values - limits)
            cost, charged = _with(cost, charged, less)
        return Seen(self.place, reward, cost, rewarded, charged)

    def only(self, where: Tensor, mask: Tensor) -> Seen:
        """Return what came in the trials ``where (T,)``, and ``mask (T, 1)`` beside."""
        reward = torch.where(mask, self.reward, 0.0)
        cost = torch.where(mask, self.cost, 0.0)
        return Seen(self.place, reward, cost, where, where)


class Epoch(NamedTuple):
    """The state of epoch penalties.

    Args:
        number: the epoch, counted from 0.
        kept: the multipliers ``(T, m)``; their logarithms where they multiply.
        sums: of this epoch's costs, ``(T, m)``.
        counts: how many they are.
        partly: rounds that have not been told in full.
        data: rounds that have, by epoch; -1 is data from before.
    """

    number: int
    kept: Tensor
    sums: Tensor
    counts: Tensor
    partly: dict[int, Seen]
    data: dict[int, tuple[Seen, ...]]

    @classmethod
    def start(cls, kept: Tensor) -> Epoch:
        """Return the first epoch, nothing seen."""
        none = torch.zeros_like(kept)
        return cls(0, kept, none, none, {}, {})

    def next(self, number: int, kept: Tensor, reuse: bool) -> Epoch:
        """Return another epoch, of other multipliers, with or without past rounds."""
        none = torch.zeros_like(kept)
        return Epoch(number, kept, none, none, self.partly, self.data if reuse else {})

    def mean(self) -> Tensor:
        """Return the mean of this epoch's costs, 0 where nothing came, ``(T, m)``."""
        return self.sums / self.counts.clamp_min(1)

    def told(
        self, place: Place, news: News, limits: Tensor
    ) -> tuple[Epoch, Seen | None]:
        """Return the state with the news, and what they complete; ``None``: nothing.

        Args:
            place: the round, and where its choice is.
            news: of that round.
            limits: its thresholds, ``(T, m)``.
        """
        before = self.partly.get(place.t) or Seen.nothing(place, self.sums)
        seen = before.told(news, limits)
        partly = {s: each for s, each in self.partly.items() if s != place.t}
        if not (news.cancelled or bool(seen.whole().all())):
            partly[place.t] = seen
        fresh, left = seen.whole() & ~before.whole(), self._replace(partly=partly)
        if not bool(fresh.any()):
            return left, None
        mask = devices.put(fresh, self.sums.device).unsqueeze(-1)
        return left, seen.only(fresh, mask)

    def added(self, number: int, seen: Seen) -> Epoch:
        """Return the state with one more round of an epoch."""
        own = self
        if number == self.number:
            mask = devices.put(seen.whole(), self.sums.device).unsqueeze(-1)
            sums, counts = self.sums + seen.cost, self.counts + mask
            own = self._replace(sums=sums, counts=counts)
        rows = self.data.get(number, ())
        place = len(rows)
        while place and rows[place - 1].place.t > seen.place.t:
            place -= 1
        rows = (*rows[:place], seen, *rows[place:])
        return own._replace(data={**self.data, number: rows})

    def seen(self) -> list[Seen]:
        """Return all rounds told in full, in the order of the beliefs' log."""
        return [each for _, rows in sorted(self.data.items()) for each in rows]


def _with(values: Tensor, seen: Tensor, told: Told) -> tuple[Tensor, Tensor]:
    if told.where is None:
        return told.values, torch.ones_like(seen)
    return (
        torch.where(told.mask().unsqueeze(-1), told.values, values),
        seen | told.where,
    )
