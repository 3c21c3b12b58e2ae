"""When epochs begin: the keyword ``restart=``, fixed, doubling or adaptive.

In the first round of an epoch the multiplier is as at the start, and with
``forget=True`` the beliefs drop their data.

``"adaptive"``: each outcome is compared with its prediction before the beliefs absorb
it. Where the errors of the last 1, 2, 4, ... or 64 outcomes sum to more than bounds and
noise explain (``change_detected`` in :mod:`cbandit.confidence.drift`), the trial starts
anew; other trials go on. Only outcomes count whose predicted mean is known to half a
noise deviation. So bounds that are too narrow for an action never tried, as constant
widths often are, cause no restart.

Guaranteed: if nothing changes, bounds hold in every round and the noise is at most the
belief's (with RKHS widths, at most theirs), at most a share ``RESTART_RATE`` of runs
ever starts anew. State the noise as it is: a far too large one, as the papers'
``1 + 2/T`` mostly is, hides changes. Learned noise and units are estimates: a
function's outcomes count only after ``MIN_OUTCOMES`` of them. There is no bound on
regret. The reduction that remark 2 of Guo, Zhu and Liu (2023) names has one (Wei and
Luo, Non-stationary reinforcement learning without prior knowledge, 2021: copies at
doubling scales), but its tests hardly fire in horizons that are played in practice
(Gerogiannis, Huang and Veeravalli, 2024).

``T`` counts the trials and ``F`` the functions that have a belief, the reward first.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.confidence.bound import BoundWidths
from cbandit.confidence.drift import change_detected
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.choices import News, Place
from cbandit.policies.round import Concern
from cbandit.policies.setup import Setup
from cbandit.policies.timing import AtOnce
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.units import Units

ADAPTIVE = "adaptive"
NOT_ADAPTIVE_ERROR = (
    "restart='adaptive' compares Gaussian outcomes with bounds, so it goes with "
    "forget=True and explore=cb.UCB(...), and without feedback=, share=, outcome= and "
    "shared studies; restart= a number of rounds goes with all of them"
)
RESTART_RATE = 0.1  # the share of runs that may start anew though nothing changes
MAX_OUTCOMES = 64  # the latest outcomes whose errors are kept
MAX_STD = 0.5  # noise deviations; outcomes with a less certain mean do not count
MIN_OUTCOMES = 20  # with fewer outcomes a learned unit is not trusted


def checked_restart(restart: object) -> int | str | None:
    """Return a user's argument ``restart=`` unchanged, or raise an error."""
    if restart is None:
        return None
    if not isinstance(restart, str):
        return checks.whole("restart", restart)
    checks.one_of("restart", restart, "doubling", ADAPTIVE, other="a number of rounds")
    return restart


def epoch_start(restart: int | str | None, t: int) -> int:
    """Return the first round of the epoch that round ``t`` is in.

    Args:
        restart: how many rounds an epoch has; ``"doubling"``: epoch ``i`` is the rounds
            from ``2^i`` to ``2^(i+1) - 1``; ``None``: there is one epoch.
        t: the round, from 1.
    """
    if restart is None:
        return 1
    if isinstance(restart, str):
        return 1 << (t.bit_length() - 1)
    return t - (t - 1) % restart


class PredictionErrors(NamedTuple):
    """The errors of the latest predictions: outcome less mean, in units.

    Args:
        latest: errors, widths of bounds and noise variances of the latest outcomes,
            ``(MAX_OUTCOMES, 3, T, F)``.
        seen: how many outcomes there were, ``(T, F)``.
        changed: the trials whose world was found changed since the last round,
            ``(T,)`` bool.
        start: the first round of each trial's epoch, ``(T,)``.
    """

    latest: Tensor
    seen: Tensor
    changed: Tensor
    start: Tensor

    @classmethod
    def none(cls, like: Tensor) -> PredictionErrors:
        """Return the state before any outcome; ``like (T, F)`` is float64."""
        last = like.new_zeros(MAX_OUTCOMES, 3, *like.shape)
        last[:, 1] = torch.inf
        start = torch.ones(len(like), dtype=torch.long, device=like.device)
        return cls(last, torch.zeros_like(like), start < 1, start)

    def after(
        self,
        news: News,
        place: Place,
        beliefs: Beliefs,
        widths: BoundWidths,
        bound_count: int,
    ) -> PredictionErrors:
        """Return the state with the errors of the news, after a test for changes.

        ``beliefs`` have not absorbed the news, of the choice at ``place``, yet. Their
        bounds have the ``widths``, and ``bound_count`` of them must hold together.
        """
        mean, std = (part[..., 0] for part in beliefs.anywhere(place.x.unsqueeze(1)))
        noise = beliefs.noises().double().clone()
        known = std <= MAX_STD * noise.sqrt()
        for part, at in widths.rkhs_parts():
            noise[:, at] = part.subgaussian.square()
        units = beliefs.units() or Units.own(noise)
        values, came, noise = news.readings(noise, units.size)
        came &= known & units.known & (units.seen >= MIN_OUTCOMES)
        error = (values - units.center) / units.size - mean
        band = widths.around(beliefs, place.t, bound_count).abs() * std
        new = torch.stack([error, band, noise]).unsqueeze(0)
        last = torch.where(came, torch.cat([self.latest[1:], new]), self.latest)
        (errors, bands, variances), seen = last.unbind(1), self.seen + came
        found = change_detected(errors, bands, variances, seen, RESTART_RATE).any(-1)
        return PredictionErrors(last, seen, self.changed | found, self.start)

    def restarted(self, t: int) -> PredictionErrors:
        """Return the state after changed trials have started anew in round ``t``."""
        fresh, gone = PredictionErrors.none(self.seen), self.changed
        last = torch.where(gone.unsqueeze(-1), fresh.latest, self.latest)
        start = torch.where(gone, t, self.start)
        return PredictionErrors(last, self.seen, fresh.changed, start)


class Restarts(Concern[PredictionErrors | None]):
    """Say when an epoch begins. Without ``"adaptive"`` the state is ``None``."""

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy that restarts."""
        if setup.restart is None:
            return None
        at_once = type(setup.timing) is AtOnce and not setup.linked
        bounds = setup.forget and isinstance(setup.explore, UCB)
        if setup.restart == ADAPTIVE and not (at_once and bounds):
            raise CBanditError(NOT_ADAPTIVE_ERROR)
        return cls(setup)

    def start(self) -> PredictionErrors | None:
        """Return the state before any outcome."""
        setup = self.setup
        if setup.restart != ADAPTIVE:
            return None
        like = torch.zeros(setup.size, setup.functions, dtype=torch.float64)
        return PredictionErrors.none(like.to(setup.device))

    def hear(
        self, state: PredictionErrors | None, news: News, beliefs: Beliefs
    ) -> tuple[PredictionErrors | None, News]:
        """Compare new outcomes with their predictions."""
        setup, widths = self.setup, self.setup.widths
        if state is None or widths is None or not (news.rewards or news.costs):
            return state, news
        bound_count = setup.timing.bound_count(setup.functions)
        return state.after(news, news.place, beliefs, widths, bound_count), news

    def open_epoch(
        self, state: PredictionErrors | None, t: int
    ) -> tuple[PredictionErrors | None, Tensor | None]:
        """Return the state, and the trials ``(T,)`` whose epoch begins in round ``t``.

        ``None``: no trial's does. In round 1 nothing starts anew, so that data from
        before it stay.
        """
        if state is not None:
            if not bool(state.changed.any()):
                return state, None
            return state.restarted(t), state.changed
        if t == 1 or epoch_start(self.setup.restart, t) != t:
            return None, None
        return None, torch.ones(self.setup.size, dtype=torch.bool)
