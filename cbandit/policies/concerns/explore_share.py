"""Explore a stated share of rounds, so that logs have propensities: ``explore_share=``.

With this chance a round plays an action drawn uniformly among those allowed; otherwise
the rule's. The rule is asked first in every round, so the chance of each action is
known, and stored with the choice. What is allowed is what the round leaves after
failures, budgets and confidence; policies that know a safe action play what they
believe safe. Costs of these rounds count as any others. The draws follow from seed,
trial and round. ``T`` counts the trials, ``N`` the actions of a round's set.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import hashed_uniforms
from cbandit.choice import Distribution, draw_at, mixed
from cbandit.errors import CBanditError
from cbandit.policies.checks import check_probability
from cbandit.policies.mixing import Rule, law_of, numbers, play_instead, with_law
from cbandit.policies.round import Concern
from cbandit.policies.round_search import trials_without_data
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Decision, Turn

MAX_CHOICES = 50  # more of them are explored too rarely for a log to be worth anything


class ExploreShare(Concern[None]):
    """Play a uniform action in a share of rounds, and keep the law of every choice.

    Args:
        setup: the policy as it is when the concern is made.
        share: the chance of a uniform action, ``(T,)``.
        by_score: whether the policy plays the action of greatest score.
    """

    keywords: ClassVar = {
        "explore_share": """the chance with which a round plays an action drawn
            uniformly among those allowed (safe policies: believed safe), a number or
            ``(*trials,)``. ``history()`` then has the chance of each choice in its
            column ``propensity``, and logs can be evaluated; .05 is a good start. What
            it costs counts under the limits. TS and Rand choose by 32 draws a round
            then, whose shares are the chances. For sets, of which at most 50 actions
            are allowed in a round. ``None``: no such rounds."""
    }
    needs_beliefs = False

    def __init__(self, setup: Setup, share: Tensor, by_score: bool) -> None:
        super().__init__(setup)
        self.share, self.by_score = share, by_score

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy that was given a share."""
        share = setup.keywords.get("explore_share")
        if share is None:
            return None
        name, actions = setup.name, setup.actions
        if not actions.finite:
            raise CBanditError(
                f"explore_share ({share!r}) needs a set of numbered actions, a "
                "cb.Finite, a grid or a cb.Space of choices, as points of a box or a "
                f"star have no chance each; got {actions!r}"
            )
        reason = setup.abilities.refuses.get("explore_share")
        if reason is not None:
            raise CBanditError(f"{name} takes no explore_share= ({share!r}): {reason}")
        wanted = setup.per_trial("explore_share", share).double()
        wanted = check_probability("explore_share", wanted, share)
        return cls(setup, wanted, setup.abilities.by_score)

    def start(self) -> None:
        """Return no state: the draws follow from the round's number."""

    def open_turn(self, state: None, turn: Turn) -> tuple[None, Turn]:
        """Ask the rule to say what it believes safe."""
        return None, turn._replace(explores=True)

    def mix(self, state: None, turn: Turn, rule: Rule) -> tuple[Decision, Any]:
        """Return the rule's decision, or a uniform one, with its law."""
        coin, place, draw = self._draws(turn.t)
        answer = with_law(rule, turn, draw)
        decision = answer.decision
        certain = self._certain(turn, decision)
        allowed = self._allowed(turn, decision, certain)
        other = Distribution.uniform(allowed)
        share = self.share.masked_fill(certain, 0.0)
        law = mixed([(1 - share, law_of(decision)), (share, other)])
        index, explores = draw_at(other, place), coin < share
        decision, after = play_instead(
            rule, turn, answer, explores, index, self.by_score
        )
        chance = law.chance(numbers(decision)).masked_fill(certain, torch.nan)
        return replace(decision, distribution=law, chance=chance), after

    def check_pick(
        self, state: None, turn: Turn, pick: Decision
    ) -> tuple[None, Decision]:
        """Give the rounds of a design a distribution too, all on the action played."""
        if pick.distribution is None:
            pick = replace(pick, distribution=Distribution.point(numbers(pick)))
        return None, pick

    def _draws(self, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return three uniform draws ``(T,)`` of round ``t``."""
        setup = self.setup
        draws = hashed_uniforms(setup.seed, setup.trials, f"explore_share/{t}", 3)
        coin, place, draw = devices.put(draws, setup.device).unbind(-1)
        return coin, place, draw

    def _certain(self, turn: Turn, decision: Decision) -> Tensor:
        """Return the trials ``(T,)`` whose first plays are fixed beforehand."""
        certain = torch.zeros_like(self.share, dtype=torch.bool)
        if decision.chance is not None:
            certain = decision.chance.isnan()
        if self.by_score and turn.beliefs.by_default:
            fresh = trials_without_data(turn.beliefs, turn)
            if fresh is not None:
                certain = certain | fresh.to(certain.device)
        return certain

    def _allowed(self, turn: Turn, decision: Decision, certain: Tensor) -> Tensor:
        """Return the actions to explore, ``(T, N)`` bool."""
        if turn.ranks.size > 1:
            raise CBanditError(
                "explore_share goes with one process; several share this policy's set"
            )
        shape = len(self.share), int(turn.actions.size)
        index = numbers(decision)
        allowed = turn.mask if decision.safe is None else decision.safe
        if allowed is None:
            allowed = torch.ones(shape, dtype=torch.bool, device=index.device)
        # what is played all the same may be the only action left, and not safe
        none = ~allowed.any(-1, keepdim=True) | certain.unsqueeze(-1)
        own = torch.zeros(shape, dtype=torch.bool, device=index.device)
        own.scatter_(1, index.unsqueeze(-1), True)
        allowed = torch.where(none, own, allowed)
        count = int(allowed.sum(-1).max())
        if count > MAX_CHOICES:
            raise CBanditError(
                f"explore_share explores at most {MAX_CHOICES} actions, as each of "
                f"more would be played too rarely; {count} are allowed in round "
                f"{turn.t}: leave fewer with ask(among=...)"
            )
        return allowed
