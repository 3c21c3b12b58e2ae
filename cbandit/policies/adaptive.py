"""Restarts when predictions fail: ``restart="adaptive"``.

Each outcome is compared with what was predicted, before the beliefs take it in. Where
the errors of the last 1, 2, 4, ... or 64 outcomes sum to more than bounds and noise
explain (:func:`~cbandit.confidence.change_detected`), that trial starts anew: it drops
its data, and its multiplier and epoch begin again. Other trials go on. Only outcomes
count whose mean is known to half a noise deviation. So bounds that are too narrow for
an action never tried, as a constant width's often are, cause no restart.

Guaranteed: if nothing changes, the belief's noise is the true one (or an RKHS width
bounds it) and all bounds hold, at most a share ``DELTA`` of runs ever starts anew. With
a noise stated too large a change may go unnoticed, with one too small restarts do not
end. There is no bound on regret: the reduction that remark 2 of Guo, Zhu and Liu (2023)
names has one (Wei and Luo, Non-stationary reinforcement learning without prior
knowledge, 2021: copies of the policy at doubling scales), but its tests hardly fire in
horizons that are played in practice (Gerogiannis, Huang and Veeravalli, 2024).
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
LAST = 64  # outcomes, the longest window
KNOWN = 0.5  # noise deviations; outcomes of means less certain do not count


class Errors(NamedTuple):
    """By how much the latest outcomes missed their predictions, in units.

    Args:
        last: errors, bands and noise variances of the last ones, ``(LAST, 3, T, F)``.
        seen: how many there were, ``(T, F)``.
        changed: the trials that have changed since the last round, ``(T,)`` bool.
        start: the first round of each trial's epoch, ``(T,)``.
    """

    last: Tensor
    seen: Tensor
    changed: Tensor
    start: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Errors:
        """Return the errors before the first round, for ``like (T, F)``, float64."""
        last = like.new_zeros(LAST, 3, *like.shape)
        last[:, 1] = torch.inf
        start = torch.ones(len(like), dtype=torch.long, device=like.device)
        return cls(last, torch.zeros_like(like), start < 1, start)

    def after(
        self,
        news: News,
        units: Units,
        known: Tensor,
        mean: Tensor,
        band: Tensor,
        noise: Tensor,
    ) -> Errors:
        """Return the errors with those of one choice's feedback; look for a change.

        ``known`` says which outcomes count, ``mean`` and ``band`` are what was
        predicted, ``noise`` has the noise's variances, ``(T, F)`` each.
        """
        values, came = torch.zeros_like(noise), torch.zeros_like(mean, dtype=torch.bool)
        for told, f in news.by_functions():
            mask = told.mask().unsqueeze(-1)
            values[:, f] = torch.where(mask, told.values.to(values), values[:, f])
            came[:, f] |= mask
            if told.noise is not None:
                own = told.noise.to(noise).unsqueeze(-1) / units.size[:, f].square()
                noise[:, f] = torch.where(mask, own, noise[:, f])
        came &= units.known & known
        error = (values - units.center) / units.size - mean
        new = torch.stack([error, band, noise]).unsqueeze(0)
        last = torch.where(came, torch.cat([self.last[1:], new]), self.last)
        (errors, bands, variances), seen = last.unbind(1), self.seen + came
        found = change_detected(errors, bands, variances, seen, DELTA).any(-1)
        return Errors(last, seen, self.changed | found, self.start)

    def begun(self, t: int) -> Errors:
        """Return the errors after changed trials have started anew in round ``t``."""
        fresh, gone = Errors.none(self.seen), self.changed
        last = torch.where(gone.unsqueeze(-1), fresh.last, self.last)
        start = torch.where(gone, t, self.start)
        return Errors(last, self.seen, fresh.changed, start)
