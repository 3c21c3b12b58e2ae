"""Warn once if readings contradict a belief that takes the world as constant.

A reading is the feedback of one choice. Now and then a "look" compares the latest
readings with the belief's means at their points. The belief holds these readings. If it
is right, the misses of ``n`` readings sum to no more than their noise does, as a fit to
readings only makes misses smaller. So a larger sum (``change_detected`` of
:mod:`cbandit.confidence.drift`, on blocks of ``BLOCK_READINGS`` readings) shows that
the world has changed, or that the noise or the kernel is wrong. Each miss counts for at
most ``MAX_MISS`` deviations of the noise: :mod:`cbandit.policies.concerns.outliers`
sees to single wild readings.

While the belief is right and its noise no smaller than the world's, at most a share
``ALARM_RATE`` of policies ever warns. Of several trials most must show a contradiction.
Beliefs that follow changes (windows, restarts with ``forget=True``, fading weights) are
not looked at, nor are binary and counted outcomes. ``T`` counts the trials and ``F``
the functions: the reward, number 0, then the costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from cbandit.confidence.drift import change_detected
from cbandit.policies.choices import News, Place
from cbandit.policies.round import Concern, ReadPast
from cbandit.policies.setup import Setup
from cbandit.policies.timing import AtOnce
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.units import Units

ALARM_RATE = 0.01  # the share of policies that warn though the belief is right
MAX_READINGS = 64  # the latest readings that a look compares
BLOCK_READINGS = 8  # readings whose misses are summed first
LOOK_EVERY = 32  # readings from one look to the next
EARLY_LOOKS = 4  # looks after which the time between two is EARLY_LOOKS times as long
MAX_MISS = 3.0  # noise deviations that one reading counts for at most
MIN_OUTCOMES = 20  # with fewer outcomes a learned unit is not trusted


class Contradiction(NamedTuple):
    """The latest readings, and what a look at them has found.

    Args:
        rounds: the places and the news of the latest readings, the oldest first.
        fresh: how many readings came since the last look.
        looks: how many looks there were.
        against: the numbers of the functions whose readings contradict the belief.
    """

    rounds: tuple[tuple[Place, News], ...] = ()
    fresh: int = 0
    looks: int = 0
    against: tuple[int, ...] = ()

    def after(self, place: Place, news: News) -> Contradiction:
        """Return the state with the reading ``news`` of the choice at ``place``."""
        rounds = (*self.rounds, (place, news))[-MAX_READINGS:]
        return self._replace(rounds=rounds, fresh=self.fresh + 1)

    @property
    def due(self) -> bool:
        """Whether it is time for a look."""
        return self.fresh >= (
            LOOK_EVERY if self.looks < EARLY_LOOKS else EARLY_LOOKS * LOOK_EVERY
        )

    def after_look(self, beliefs: Beliefs, linked: Sequence[int]) -> Contradiction:
        """Return the state after a look at the readings.

        Args:
            beliefs: the policy's, with the readings absorbed.
            linked: the numbers of binary and counted functions, which are left out.
        """
        x = torch.stack([place.x for place, _ in self.rounds], 1)
        mean, _ = beliefs.anywhere(x)
        variance = beliefs.noises().double()
        units = beliefs.units() or Units.own(variance)
        counts = units.known & (units.seen >= MIN_OUTCOMES)
        counts[:, list(linked)] = False
        errors = mean.new_zeros(MAX_READINGS, *variance.shape).double()
        noises = torch.zeros_like(errors)
        rounds = [news for _, news in self.rounds]
        values, noise = _complete_values(rounds, variance.shape[1]), variance
        if values is None:
            readings = (news.readings(variance, units.size) for news in rounds)
            values, came, noise = map(torch.stack, zip(*readings, strict=True))
            counts = counts & came
        most = MAX_MISS * noise.sqrt()
        miss = (values - units.center) / units.size - mean.movedim(-1, 0)
        errors[-len(rounds) :] = counts * miss.minimum(most).maximum(-most)
        noises[-len(rounds) :] = counts * noise
        sums, spreads = (
            part.unflatten(0, (MAX_READINGS // BLOCK_READINGS, BLOCK_READINGS)).sum(1)
            for part in (errors, noises)
        )
        looks = torch.full_like(variance, self.looks + 1)
        rate, zero = ALARM_RATE / len(variance), torch.zeros_like(sums)
        found = change_detected(sums, zero, spreads, looks, rate).double()
        found = found.mean(0) > 0.5  # of many trials some have wild noise
        against = tuple(found.nonzero().flatten().tolist())
        return self._replace(fresh=0, looks=self.looks + 1, against=against)


def _complete_values(rounds: Sequence[News], functions: int) -> Tensor | None:
    """Return the values of ``n`` readings, ``(n, T, F)``, if all are complete.

    ``None``: one lacks a function or a trial, or states its own variance.
    """
    rows = []
    for news in rounds:
        items = [*news.rewards, *news.costs]
        plain = all(told.is_full and told.noise is None for told in items)
        if not plain or len(news.rewards) != 1 or len(news.costs) != (functions > 1):
            return None
        rows.append(torch.cat([told.values for told in items], -1))
    return torch.stack(rows).double()


class Contradictions(Concern[Contradiction]):
    """Compare the latest readings with the beliefs that hold them."""

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern, or ``None`` if the policy's old data count less."""
        alike = type(setup.timing) is AtOnce and not setup.forget and not setup.fades
        if not (alike and setup.abilities.readings):
            return None
        return cls(setup)

    def start(self) -> Contradiction:
        """Return the state before any reading."""
        return Contradiction()

    def hear(
        self, state: Contradiction, news: News, beliefs: Beliefs
    ) -> tuple[Contradiction, News]:
        """Keep the new reading."""
        if news.rewards or news.costs:
            state = state.after(news.place, news)
        return state, news

    def settle(
        self, state: Contradiction, beliefs: Beliefs, t: int, past: ReadPast
    ) -> Contradiction:
        """Compare the latest readings with the beliefs, if a look is due."""
        return self.look(state, beliefs) if state.due else state

    def look(self, state: Contradiction, beliefs: Beliefs) -> Contradiction:
        """Return the state after a look, if there are enough new readings for one."""
        return (
            state.after_look(beliefs, self.setup.linked)
            if state.fresh >= BLOCK_READINGS
            else state
        )

    def alarm(self, state: Contradiction, t: int, together: int) -> dict[str, str]:
        """Return a warning that names functions whose readings contradict beliefs."""
        if not state.against:
            return {}
        labels = " and ".join(self.setup.labels[f] for f in state.against)
        return {
            "belief": f"the latest readings of {labels} lie to one side of what the "
            "belief, which holds them, says, by more than its noise explains: the "
            "world may have changed, or noise= or the kernel does not fit it, and "
            "recommend() rests on that belief. feedback=cb.Sliding(window), or "
            "restart='adaptive' with forget=True, follow a world that changes. "
            f"(While the belief holds, at most {ALARM_RATE:.0%} of policies say this.)"
        }
