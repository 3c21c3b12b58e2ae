"""Restarts that need no known change: ``restart="adaptive"``.

Each outcome is compared with what was predicted, before the beliefs take it in. Where
the errors of the last 1, 2, 4, ... or 64 rounds sum to more than the bounds and the
noise explain (:func:`~cbandit.confidence.change_detected`), that trial starts anew: it
drops its data, and its multiplier and epoch begin again. Other trials go on.

It stands in for Wei and Luo's reduction (Non-stationary reinforcement learning without
prior knowledge, 2021), which remark 2 of Guo, Zhu and Liu (2023) names: that runs
copies of the policy at doubling scales and keeps the regret bounds of a known drift;
but its tests hardly fire in horizons that are played in practice (Gerogiannis, Huang
and Veeravalli, 2024). Ours is simpler and has no regret bound. Guaranteed is this: if
nothing changes and all bounds hold, at most a share ``DELTA`` of runs ever starts anew.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cbandit.confidence.drift import change_detected
from cbandit.policies.choices import News
from cbandit.posterior.units import Units

ADAPTIVE = "adaptive"
DELTA = 0.1  # the share of runs that may start anew though nothing changes
LAST = 64  # rounds, the longest window
MANY = 20  # outcomes, before which a learned unit and noise are not relied on


class Errors(NamedTuple):
    """By how much the latest outcomes missed their predictions.

    Args:
        last: errors, bands and noise variances of the last rounds, ``(LAST, 3, T, F)``.
        count: how many outcomes there were, ``(T, F)``.
        changed: the trials that have changed since the last round, ``(T,)`` bool.
        start: the first round of each trial's epoch, ``(T,)``.
    """

    last: Tensor
    count: Tensor
    changed: Tensor
    start: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Errors:
        """Return the errors before the first round, for ``like (T, F)``, float64."""
        nothing = torch.zeros(LAST, 3, *like.shape).to(like)
        nothing[:, 1] = torch.inf
        start = torch.ones(len(like), dtype=torch.long, device=like.device)
        return cls(nothing, torch.zeros_like(like), start < 1, start)

    def after(
        self, news: News, units: Units | None, mean: Tensor, band: Tensor, noise: Tensor
    ) -> Errors:
        """Return the errors with those of one choice; look for a change.

        Args:
            news: the feedback of the choice.
            units: the units of the beliefs; ``None``: the user's own.
            mean: the predicted means, ``(T, F)``, in units.
            band: half the widths of the bands there, likewise.
            noise: the noise's variances, likewise.
        """
        units = Units.own(mean) if units is None else units
        values, came = torch.zeros_like(mean), torch.zeros_like(mean, dtype=torch.bool)
        noise = noise.clone()
        for told, f in news.by_functions():
            mask = told.mask().unsqueeze(-1)
            values[:, f] = torch.where(mask, told.values.to(values), values[:, f])
            came[:, f] |= mask
            if told.noise is not None:
                own = told.noise.to(noise).unsqueeze(-1) / units.size[:, f].square()
                noise[:, f] = torch.where(mask, own, noise[:, f])
        came &= units.known & (units.seen >= MANY)
        error = (values - units.center) / units.size - mean
        new = torch.stack([error, band, noise]).unsqueeze(0)
        last = torch.where(came, torch.cat([self.last[1:], new]), self.last)
        count = self.count + came
        found = change_detected(*last.unbind(1), count, DELTA).any(-1)
        return self._replace(last=last, count=count, changed=self.changed | found)

    def begun(self, t: int) -> Errors:
        """Return the errors after changed trials have started anew in round ``t``."""
        fresh, changed = Errors.none(self.count), self.changed
        last = torch.where(changed.unsqueeze(-1), fresh.last, self.last)
        start = torch.where(changed, t, self.start)
        return Errors(last, self.count, fresh.changed, start)
