"""The standing of a policy, as ``policy.status()`` reports it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from cbandit._core.printing import brief, html_table
from cbandit.receipt.alarm import Alarm
from cbandit.receipt.certificate import Bound

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class LimitStatus:
    """The standing of one limit; every tensor is ``(*trials,)``.

    Args:
        name: the cost's name.
        sign: ``"<="`` or ``">="``.
        limit: the limit of the next round.
        told: in how many rounds the user told this cost.
        within: in how many of these rounds the cost kept its limit.
        recent: how many of these rounds are recent: the last 100 at most.
        recent_within: in how many recent rounds the cost kept its limit.
        mean: the mean of the cost over these rounds, NaN before the first.
        bound: the certificate, see :meth:`cbandit.Policy.certificate`; ``None``: there
            is none.
    """

    name: str
    sign: str
    limit: Tensor
    told: Tensor
    within: Tensor
    recent: Tensor
    recent_within: Tensor
    mean: Tensor
    bound: Bound | None = field(default=None, kw_only=True)

    __repr__ = brief

    def __str__(self) -> str:
        sure = "" if self.bound is None else f"\n  {self.bound.in_short()}"
        return (
            f"{self.name} {self.sign} {_text(self.limit)}: within in "
            f"{_text(self.within)} of {_text(self.told)} rounds told, "
            f"{_text(self.recent_within)} of the last {_text(self.recent)}; mean "
            f"{_text(self.mean)}{sure}"
        )


@dataclass(frozen=True, eq=False)
class Status:
    """The standing of a policy: its limits, open choices, fits and warnings.

    Args:
        name: the policy's name.
        t: the latest round.
        limits: the standing of the limit of each cost.
        open: how many choices wait for feedback.
        fits: how often hyperparameters were fitted.
        warnings: what is wrong at present, in words; empty if nothing is.
        alarms: limits that were broken from some round on, see
            :meth:`cbandit.Policy.watch`.
        trials: the trials' numbers; ``None``: there is no trials axis.
        expired: how many choices expired and have no answer, see ``expire=``.
    """

    name: str
    t: int
    limits: tuple[LimitStatus, ...]
    open: int
    fits: int
    warnings: tuple[str, ...]
    alarms: tuple[Alarm, ...] = ()
    trials: range | None = field(default=None, repr=False)
    expired: int = 0

    def __str__(self) -> str:
        return "\n".join([self._head(), *map(str, self.limits), *self._warnings()])

    def _head(self) -> str:
        expired = f", {self.expired} expired" * bool(self.expired)
        return (
            f"{self.name}: round {self.t}, {self.open} open{expired}, {self.fits} fits"
        )

    def _warnings(self) -> list[str]:
        return [f"warning: {text}" for text in self.warnings]

    def _repr_html_(self) -> str:
        rows = []
        for each in self.limits:
            row = {
                "limit": f"{each.name} {each.sign} {_text(each.limit)}",
                "rounds within": f"{_text(each.within)} of {_text(each.told)}",
                "of the last": f"{_text(each.recent_within)} of {_text(each.recent)}",
                "mean": _text(each.mean),
            }
            if each.bound is not None:
                row["certificate"] = each.bound.in_short()
            rows.append(row)
        return html_table(rows, "\n".join([self._head(), *self._warnings()]))

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
                if each.bound is not None:
                    told |= each.bound.row(i)
                rows.append({"name": each.name, **trial, "sign": each.sign, **told})
        return pd.DataFrame(rows)


def _text(value: Tensor) -> str:
    """Return a text: one number, or the least and the greatest over the trials."""
    numbers = [each for each in value.reshape(-1).tolist() if not math.isnan(each)]
    if not numbers:
        return "none"
    least, most = f"{min(numbers):.4g}", f"{max(numbers):.4g}"
    return least if least == most else f"{least} to {most}"
