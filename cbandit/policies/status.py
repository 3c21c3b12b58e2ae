"""The standing of each limit: counts that are kept as feedback comes, and a report.

A policy warns once when most of the last rounds were told above a limit. So that it
stays silent where all is well, the share above must be beyond what a fair coin explains
(Hoeffding's bound, over all looks, trials and costs), and the mean of these rounds must
be above the limit too. A policy whose rounds are above the limit as often as below
warns in at most a share ``RATE`` of all runs. Before there are ``LAST`` rounds, all of
them must be above, as policies try what is above a limit while they learn. Where there
are trials, it must be so in most of them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from cbandit.policies.choices import News, Told

if TYPE_CHECKING:
    import pandas as pd

LAST = 100  # rounds that count as recent
EVERY = 16  # rounds told between two looks at the counts
EARLY = 6  # the first looks; later ones are as many times rarer
RATE = 0.01  # the share of runs that warn though rounds are above as often as below


class LimitCounts(NamedTuple):
    """LimitCounts of the rounds told, for each limit.

    Args:
        told: how many rounds, ``(T, m)``.
        within: how many of them were at or below their limit.
        total: the sum of their costs.
        last: by how much each of the latest exceeded its limit, ``(LAST, T, m)``, NaN
            where there is none.
        looks: how often the recent rounds were looked at.
        broken: the costs that were above their limit in most recent rounds, in most
            trials.
        held: news that are not counted yet: the costs, and the round's limits.
    """

    told: Tensor
    within: Tensor
    total: Tensor
    last: Tensor
    looks: int = 0
    broken: tuple[int, ...] = ()
    held: tuple[tuple[Sequence[Told], Tensor], ...] = ()

    @classmethod
    def none(cls, size: int, m: int, device: torch.device) -> LimitCounts:
        """Return the counts before the first round."""
        zero = torch.zeros(size, m, dtype=torch.float64, device=device)
        last = zero.new_full((LAST, size, m), torch.nan)
        return cls(zero, zero, zero, last)

    def after(self, news: News) -> LimitCounts:
        """Return the counts with the news, which are looked at now and then."""
        counts = self._replace(held=(*self.held, (news.costs, news.limits)))
        wait = EVERY if self.looks < EARLY else EARLY * EVERY
        return counts.whole().looked() if len(counts.held) >= wait else counts

    def whole(self) -> LimitCounts:
        """Return the counts with all news counted."""
        if not self.held:
            return self
        m, rows, came = self.told.shape[1], [], []
        plain = all(len(items) == 1 and _plain(items[0]) for items, _ in self.held)
        if plain:  # as it mostly is: costs of all trials, told together
            values = torch.stack([items[0].values for items, _ in self.held]).double()
            excess = values - torch.stack([limits for _, limits in self.held])
            return self._replace(
                told=self.told + len(values),
                within=self.within + (excess <= 0).sum(0),
                total=self.total + values.sum(0),
                last=torch.cat([self.last, excess])[-LAST:],
                held=(),
            )
        for items, limits in self.held:
            values, there = items[0].wide(m)
            for item in items[1:]:  # costs that came one by one
                more, now = item.wide(m)
                values, there = torch.where(now, more, values), there | now
            rows.append(torch.stack([values.double(), limits.expand_as(values)]))
            came.append(there)
        (values, limits), there = torch.stack(rows, 1), torch.stack(came)
        excess = torch.where(there, values - limits, torch.nan)
        last = self.last
        for row, now in zip(excess, there, strict=True):
            shifted = torch.cat([last[1:], row.unsqueeze(0)])
            last = torch.where(now, shifted, last)
        return self._replace(
            told=self.told + there.sum(0),
            within=self.within + (excess <= 0).sum(0),
            total=self.total + torch.where(there, values, 0.0).sum(0),
            last=last,
            held=(),
        )

    def looked(self) -> LimitCounts:
        """Return the counts with the limits that most recent rounds were above."""
        looks, (size, m) = self.looks + 1, self.told.shape
        n, above = self.recent()
        bound = math.log(size * m * (math.pi * looks) ** 2 / (6 * RATE))
        most = above >= n / 2 + (n * bound / 2).sqrt()
        most &= (n == LAST) | (above == n)  # of the first rounds some may be above
        broken = most & (n >= EVERY) & (self.last.nansum(0) > 0)
        # of many trials some are unlucky: most of them must be
        costs = (broken.double().mean(0) > 0.5).nonzero().flatten().tolist()
        return self._replace(looks=looks, broken=tuple(costs))

    def recent(self) -> tuple[Tensor, Tensor]:
        """Return how many recent rounds there are, and how many above, ``(T, m)``."""
        return (~self.last.isnan()).sum(0).double(), (self.last > 0).sum(0).double()


@dataclass(frozen=True, eq=False)
class LimitStatus:
    """The standing of one limit; every tensor is ``(*trials,)``.

    Args:
        name: of the cost.
        sign: ``"<="`` or ``">="``.
        limit: of the next round.
        told: how many rounds were told.
        within: how many of them kept their limit.
        recent: how many of the last 100 were told.
        recent_within: how many of these kept their limit.
        mean: of the costs told, NaN before any.
    """

    name: str
    sign: str
    limit: Tensor
    told: Tensor
    within: Tensor
    recent: Tensor
    recent_within: Tensor
    mean: Tensor

    def __str__(self) -> str:
        return (
            f"{self.name} {self.sign} {_said(self.limit)}: within in "
            f"{_said(self.within)} of {_said(self.told)} rounds told, "
            f"{_said(self.recent_within)} of the last {_said(self.recent)}; mean "
            f"{_said(self.mean)}"
        )


@dataclass(frozen=True, eq=False)
class Status:
    """The standing of a policy: its limits, open choices, fits and warnings.

    Args:
        name: of the policy.
        t: the round last asked for.
        limits: one a cost.
        open: how many choices wait for feedback.
        fits: how often hyperparameters were fitted.
        warnings: what is wrong at present, in words; empty if nothing is.
        trials: the trials' numbers; ``None``: there is no trials axis.
    """

    name: str
    t: int
    limits: tuple[LimitStatus, ...]
    open: int
    fits: int
    warnings: tuple[str, ...]
    trials: range | None = field(default=None, repr=False)

    def __str__(self) -> str:
        head = f"{self.name}: round {self.t}, {self.open} open, {self.fits} fits"
        lines = [head, *map(str, self.limits)]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def frame(self) -> pd.DataFrame:
        """Return a pandas frame with a row for each limit and trial."""
        import pandas as pd

        rows = []
        for each in self.limits:
            numbers = {
                word: getattr(each, word).reshape(-1).tolist()
                for word in (
                    "limit",
                    "told",
                    "within",
                    "recent",
                    "recent_within",
                    "mean",
                )
            }
            for i in range(len(numbers["limit"])):
                trial = {} if self.trials is None else {"trial": self.trials[i]}
                told = {word: values[i] for word, values in numbers.items()}
                rows.append({"name": each.name, **trial, "sign": each.sign, **told})
        return pd.DataFrame(rows)


def _plain(told: Told) -> bool:
    """Return whether feedback is of all trials and all costs."""
    return told.where is None and told.columns is None


def _said(value: Tensor) -> str:
    """Return a number, or the least and the greatest of the trials, in words."""
    numbers = [each for each in value.reshape(-1).tolist() if not math.isnan(each)]
    if not numbers:
        return "none"
    least, most = f"{min(numbers):.4g}", f"{max(numbers):.4g}"
    return least if least == most else f"{least} to {most}"
