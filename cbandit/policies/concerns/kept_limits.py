"""Count the rounds within each limit; warn if most recent rounds were above one.

A "look" at the recent rounds decides whether to warn. To avoid false alarms, the share
of rounds above a limit must exceed what a fair coin explains (Hoeffding's bound, over
all looks, trials and costs), and the mean of these rounds must be above the limit too.
A policy whose rounds are above the limit as often as below warns in at most a share
``ALARM_RATE`` of all runs. Policies exceed limits while they learn: until there are
``RECENT_ROUNDS`` rounds, all of them must be above. Of several trials, most must agree.
``T`` counts the trials and ``m`` the costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from cbandit.policies.choices import News, Outcome
from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup

RECENT_ROUNDS = 100  # rounds that count as recent
LOOK_EVERY = 15  # choices with new costs from one look to the next
EARLY_LOOKS = 6  # looks after which the time between two is EARLY_LOOKS times as long
ALARM_RATE = 0.01  # share of runs that warn if rounds are as often above as below


class LimitCounts(NamedTuple):
    """Counts of rounds for each cost and its limit.

    Args:
        told: in how many rounds the user told the cost, ``(T, m)``.
        within: in how many of them it was at or below its limit, ``(T, m)``.
        total: the sum of the cost over these rounds, ``(T, m)``.
        recent_excess: by how much the cost exceeded its limit in recent rounds,
            ``(RECENT_ROUNDS, T, m)``, NaN before the first.
        looks: how many looks there were.
        broken: the numbers of the costs that were above their limit in most recent
            rounds, in most trials.
        held: news that are not counted yet: the costs, and the round's limits.
    """

    told: Tensor
    within: Tensor
    total: Tensor
    recent_excess: Tensor
    looks: int = 0
    broken: tuple[int, ...] = ()
    held: tuple[tuple[Sequence[Outcome], Tensor], ...] = ()

    @classmethod
    def none(cls, size: int, m: int, device: torch.device) -> LimitCounts:
        """Return the counts before the first round."""
        zero = torch.zeros(size, m, dtype=torch.float64, device=device)
        last = zero.new_full((RECENT_ROUNDS, size, m), torch.nan)
        return cls(zero, zero, zero, last)

    def after(self, news: News) -> LimitCounts:
        """Return the counts with the news held, and counted if a look is due."""
        counts = self._replace(held=(*self.held, (news.costs, news.limits)))
        wait = LOOK_EVERY if self.looks < EARLY_LOOKS else EARLY_LOOKS * LOOK_EVERY
        return counts.with_held().after_look() if len(counts.held) >= wait else counts

    def with_held(self) -> LimitCounts:
        """Return the counts after all held news is counted."""
        if not self.held:
            return self
        m, rows, came = self.told.shape[1], [], []
        plain = all(len(items) == 1 and items[0].is_full for items, _ in self.held)
        if plain:  # the usual case: costs of all trials, told together
            values = torch.stack([items[0].values for items, _ in self.held]).double()
            excess = values - torch.stack([limits for _, limits in self.held])
            return self._replace(
                told=self.told + len(values),
                within=self.within + (excess <= 0).sum(0),
                total=self.total + values.sum(0),
                recent_excess=torch.cat([self.recent_excess, excess])[-RECENT_ROUNDS:],
                held=(),
            )
        for items, limits in self.held:
            values, there = items[0].in_columns(m)
            for item in items[1:]:  # costs told one by one
                more, now = item.in_columns(m)
                values, there = torch.where(now, more, values), there | now
            rows.append(torch.stack([values.double(), limits.expand_as(values)]))
            came.append(there)
        (values, limits), there = torch.stack(rows, 1), torch.stack(came)
        excess = torch.where(there, values - limits, torch.nan)
        last = self.recent_excess
        for row, now in zip(excess, there, strict=True):
            shifted = torch.cat([last[1:], row.unsqueeze(0)])
            last = torch.where(now, shifted, last)
        return self._replace(
            told=self.told + there.sum(0),
            within=self.within + (excess <= 0).sum(0),
            total=self.total + torch.where(there, values, 0.0).sum(0),
            recent_excess=last,
            held=(),
        )

    def after_look(self) -> LimitCounts:
        """Return the counts with ``broken`` renewed by a look at the recent rounds."""
        looks, (size, m) = self.looks + 1, self.told.shape
        n, above = self.recent()
        bound = math.log(size * m * (math.pi * looks) ** 2 / (6 * ALARM_RATE))
        most = above >= n / 2 + (n * bound / 2).sqrt()
        most &= (n == RECENT_ROUNDS) | (above == n)  # early, all must be above
        broken = most & (n >= LOOK_EVERY) & (self.recent_excess.nansum(0) > 0)
        # of many trials some are unlucky: more than half must agree
        costs = (broken.double().mean(0) > 0.5).nonzero().flatten().tolist()
        return self._replace(looks=looks, broken=tuple(costs))

    def recent(self) -> tuple[Tensor, Tensor]:
        """Count recent rounds, and those of them above the limit, ``(T, m)`` each."""
        return (
            (~self.recent_excess.isnan()).sum(0).double(),
            (self.recent_excess > 0).sum(0).double(),
        )


class KeptLimits(Concern[LimitCounts]):
    """Count, for every policy, the rounds within each limit, and warn."""

    needs_beliefs = False

    @classmethod
    def of(cls, setup: Setup) -> Self:
        """Return the concern; every policy has it."""
        return cls(setup)

    def start(self) -> LimitCounts:
        """Return the counts before the first round."""
        setup = self.setup
        return LimitCounts.none(setup.size, setup.objective.m, setup.device)

    def hear(
        self, state: LimitCounts, news: News, beliefs: object
    ) -> tuple[LimitCounts, News]:
        """Count the costs told."""
        return state.after(news) if news.costs else state, news

    def alarm(self, state: LimitCounts, t: int, together: int) -> dict[str, str]:
        """Return a warning that names the limits that most recent rounds were above."""
        words, objective, trials = [], self.setup.objective, self.setup.trials
        for j in state.broken:
            if j in objective.budgets:
                continue  # its total counts, not the pace of a round
            label, (n, above) = objective.label(j), state.recent()
            i = int((above[:, j] / n[:, j].clamp_min(1)).argmax())
            side = "below" if objective.above(j) else "above"
            trial = "" if trials is None else f" of trial {trials[i]}"
            words.append(
                f"{label} was told {side} its limit in {int(above[i, j])} of the last "
                f"{int(n[i, j])} rounds{trial}"
            )
        if not words:
            return {}
        return {
            "limits": f"{'; '.join(words)}. recommend() says what keeps the limits, if "
            "anything does; limit(name, ...) changes one; status() has the counts"
        }
