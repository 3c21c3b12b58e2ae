"""Keep a stated share of all rounds within their limits: the keyword ``share=``.

Each round asks for a probability that all limits are kept, as ``ask(confidence=)``
does. An integral control moves it on the probit scale:

    shortfall  = share * rounds - (expected number of rounds within all limits)
    confidence = Phi(Phi^-1(share) + GAIN * (shortfall + RESERVE_ROUNDS))

The expected number is the sum of today's posterior probabilities at the actions played,
as outcomes carry noise, and a played action is often known better later. So the latest
rounds, the open ones, are judged anew before each choice; older rounds keep their last
probability. Choices whose costs have not come count by today's belief too. ``T`` counts
the trials, ``m`` the costs and ``d`` the coordinates of an action.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.errors import CBanditError
from cbandit.policies.checks import check_probability
from cbandit.policies.choices import Entry, News, Place
from cbandit.policies.concerns.confidence import log_chance, room_of
from cbandit.policies.concerns.restarts import ADAPTIVE, NOT_ADAPTIVE_ERROR, epoch_start
from cbandit.policies.round import Concern, ReadPast
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.recommend import log_chances

GAIN = 1.0  # probit units that the confidence rises for each round short of the share
RESERVE_ROUNDS = 1.0  # so many rounds more than the share are aimed at
MAX_PROBIT = 4.0  # of the confidence: surer actions are hardly ever found
MAX_OPEN_ROUNDS = 256  # at most so many rounds are judged anew


class JudgedRound(NamedTuple):
    """A round whose costs have come, or are awaited, in some trials.

    Args:
        t: the round.
        x: the actions played, ``(T, d)``.
        limits: the thresholds, ``(T, m)``.
        where: the trials in which it counts, ``(T,)`` bool.
    """

    t: int
    x: Tensor
    limits: Tensor
    where: Tensor


class ShareCount(NamedTuple):
    """The number of rounds, and the expected number of them within all limits.

    Args:
        share: the share of rounds that must be within all limits, ``(T,)``.
        settled_count: how many rounds keep their last probability, ``(T,)``.
        within: the sum of these probabilities, ``(T,)``.
        open: the rounds that are judged anew.
        least: the confidence that the latest round asked for, ``(T,)``; ``None``: there
            is no such round yet.
    """

    share: Tensor
    settled_count: Tensor
    within: Tensor
    open: tuple[JudgedRound, ...] = ()
    least: Tensor | None = None

    @classmethod
    def none(cls, share: Tensor) -> ShareCount:
        """Return the count before the first round, for a share ``(T,)``."""
        nothing = torch.zeros_like(share)
        return cls(share, nothing, nothing)

    def after(self, news: News, place: Place) -> ShareCount:
        """Return the count with the news' round added, if all its costs have come."""
        limits = news.limits
        now = torch.zeros(len(limits), dtype=torch.bool)
        for told in news.costs:
            now |= told.trials
        now &= news.came[:, 1:].all(-1)
        if not bool(now.any()):
            return self
        played = JudgedRound(place.t, place.x, limits, devices.put(now, limits.device))
        rounds = sorted([*self.open, played], key=lambda each: each.t)
        return self._replace(open=tuple(rounds))

    def with_confidence(
        self,
        beliefs: Beliefs,
        waiting: Sequence[JudgedRound],
        first: float,
    ) -> ShareCount:
        """Return the count with the confidence ``(T,)`` to ask for in this round.

        Args:
            beliefs: about the reward and the costs.
            waiting: the rounds of choices that wait for costs.
            first: a round number: earlier rounds are judged for the last time.
        """
        settled = self.settle_before(beliefs, first)
        share, count, within = settled.share, settled.settled_count, settled.within
        for rounds, costs_told in ((settled.open, True), (waiting, False)):
            if rounds:
                more, kept = _count_within(beliefs, rounds, costs_told)
                count, within = count + more, within + kept
        short = share * count - within + RESERVE_ROUNDS
        deviates = torch.special.ndtri(share) + GAIN * short
        least = torch.special.ndtr(deviates.clamp(-MAX_PROBIT, MAX_PROBIT))
        return settled._replace(least=least)

    def settle_before(self, beliefs: Beliefs, first: float) -> ShareCount:
        """Return the count with rounds before ``first`` judged for the last time.

        Today's probability that they were within the limits is kept. If more than
        ``MAX_OPEN_ROUNDS`` later rounds are open, the oldest are judged too.
        """
        last = len(self.open) - MAX_OPEN_ROUNDS
        old = [each for i, each in enumerate(self.open) if i < last or each.t < first]
        if not old:
            return self
        count, within = _count_within(beliefs, old, True)
        return self._replace(
            settled_count=self.settled_count + count,
            within=self.within + within,
            open=self.open[len(old) :],
        )


def _count_within(
    beliefs: Beliefs, rounds: Sequence[JudgedRound], costs_told: bool
) -> tuple[Tensor, Tensor]:
    """Return the number of rounds, and the expected number within all limits.

    Both are ``(T,)``. ``costs_told``: whether the costs of these rounds have come.
    """
    x = torch.stack([each.x for each in rounds], 1)
    limits = torch.stack([each.limits for each in rounds], -1)
    where = torch.stack([each.where for each in rounds], -1)
    given = beliefs.units(), *beliefs.anywhere(x), limits
    if (
        costs_told
    ):  # the outcome itself says whether a cost of unknown scale keeps its limit
        room, spread, _ = room_of(*given)
        chance = log_chances(room, spread).sum(-2).exp()
    else:
        chance = log_chance(*given).exp()
    return where.double().sum(-1), (chance.double() * where).sum(-1)


def _round_of(entry: Entry) -> JudgedRound:
    """Return a choice's round for the trials that still wait for a cost."""
    missing, limits = ~entry.came[:, 1:].all(-1), entry.made.limits
    x = entry.choice.x.reshape(len(missing), -1)
    return JudgedRound(entry.choice.t, x, limits, devices.put(missing, limits.device))


class Share(Concern[ShareCount]):
    """Ask for the confidence that keeps a share of rounds within all limits."""

    in_studies = False
    keywords: ClassVar = {
        "share": """of all rounds so far at least this share is to be within all limits,
        a number or ``(*trials,)``, as far as today's beliefs can tell: a control moves
        the confidence that rounds ask for (see ``ask(confidence=)``, which goes before
        it), up while too few were within, down while there is room. Rounds whose costs
        never came do not count. ``None``: no such share."""
    }

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy that was given a share."""
        share = setup.keywords.get("share")
        if share is None:
            return None
        if not setup.can_narrow:
            raise CBanditError(
                f"{setup.name} takes no share= ({share!r}): cb.CKB, cb.RPOL, "
                "cb.baselines.CONFIG and rules on cb.GPPolicy do, where they have "
                "beliefs about their costs"
            )
        if setup.restart == ADAPTIVE:
            raise CBanditError(NOT_ADAPTIVE_ERROR)
        return cls(setup)

    def start(self) -> ShareCount:
        """Return the count before the first round."""
        share = self.setup.keywords["share"]
        goal = self.setup.per_trial("share", share)
        return ShareCount.none(check_probability("share", goal, share))

    def hear(
        self, state: ShareCount, news: News, beliefs: Beliefs
    ) -> tuple[ShareCount, News]:
        """Count the round once its costs have all come."""
        return state.after(news, news.place), news

    def settle(
        self, state: ShareCount, beliefs: Beliefs, t: int, past: ReadPast
    ) -> ShareCount:
        """Judge all rounds for the last time if beliefs drop their data next round."""
        setup, coming = self.setup, t + 1
        if setup.forget and epoch_start(setup.restart, coming) == coming:
            return state.settle_before(beliefs, coming)
        return state

    def open_turn(self, state: ShareCount, turn: Turn) -> tuple[ShareCount, Turn]:
        """Set the round's confidence, unless the user asks for one."""
        if not turn.by_rule:
            return state, turn
        first, window = -math.inf, self.setup.timing.memory
        if window is not None:
            # the next round's beliefs will lack the window's oldest outcome
            first = turn.t + 1 - window
        state = state.with_confidence(
            turn.beliefs, list(map(_round_of, turn.waiting)), first
        )
        if turn.confidence is None:
            turn = turn._replace(confidence=state.least)
        return state, turn
