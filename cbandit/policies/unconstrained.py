"""GP-UCB and GP-TS, which maximise a reward without constraints.

GP-UCB plays ``argmax mean + beta std`` (IGP-UCB of Chowdhury and Gopalan, 2017, with
the RKHS width), GP-TS the ``argmax`` of a joint draw from the posterior.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from torch import Tensor

from cbandit import scores
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.explore import TS, UCB
from cbandit.policies.abilities import BY_SCORE
from cbandit.policies.gp import GPPolicy
from cbandit.policies.keywords import GPKeywords


class GPUCB(GPPolicy):
    """GP-UCB: play ``argmax mean + beta std``.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        explore: :class:`~cbandit.UCB`, ``cb.UCB(2.0)`` unless given.
        clip: the bound ``B`` on the reward; of a pair ``(B, G)``, ``G`` is not used.
        common: see below. There are no costs, so ``thresholds`` change nothing.
    """

    name = "GP-UCB"
    abilities = replace(BY_SCORE, explores=(UCB,), explore=UCB(2.0), hallucinates=True)

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        explore: UCB | None = None,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        super().__init__(actions, reward=reward, costs=None, explore=explore, **common)

    def score(self, t: int, multiplier: Tensor) -> scores.Reward:
        """Return the score: the reward's upper confidence bound."""
        return scores.Reward()


class GPTS(GPPolicy):
    """GP-TS: play the ``argmax`` of one joint posterior draw in each round.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        explore: :class:`~cbandit.TS`; unless given, draws are those of the posterior.
        common: see below. There are no costs, so ``thresholds`` change nothing.
    """

    name = "GP-TS"
    abilities = replace(BY_SCORE, explores=(TS,), explore=TS())

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        explore: TS | None = None,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        super().__init__(actions, reward=reward, costs=None, explore=explore, **common)

    def score(self, t: int, multiplier: Tensor) -> scores.Reward:
        """Return the score: the reward's estimate, a joint draw."""
        return scores.Reward()
