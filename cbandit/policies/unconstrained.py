"""GP-UCB and GP-TS: no constraint, one function.

``argmax mean + beta std`` (IGP-UCB of Chowdhury and Gopalan, 2017, with the RKHS
width), and ``argmax`` of a joint draw of the posterior.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cbandit import scores
from cbandit.beliefs.gp import GP
from cbandit.explore import TS, UCB
from cbandit.policies.gp import GPPolicy
from cbandit.policies.policy import Decision

__all__ = ["GPTS", "GPUCB"]


class _Unconstrained(GPPolicy):
    splits = True

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        best = self._maximise(t, asked, mask, scores.Reward())
        return Decision(best.index, x=best.x, keys=best.keys)


class GPUCB(_Unconstrained):
    """``argmax mean + beta std``.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        explore: :class:`~cbandit.UCB`.
        clip: bound ``B`` on the reward, or ``(B, G)``.
        common: see below.
    """

    name = "GP-UCB"
    explores = (UCB,)

    def __init__(
        self, actions: Any, *, reward: GP, explore: UCB, **common: Any
    ) -> None:
        super().__init__(actions, reward, None, explore, **common)


class GPTS(_Unconstrained):
    """``argmax`` of one joint draw of the posterior a round.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        explore: :class:`~cbandit.TS`; of the posterior as it is unless given.
        common: see below.
    """

    name = "GP-TS"
    explores = (TS,)

    def __init__(
        self, actions: Any, *, reward: GP, explore: TS | None = None, **common: Any
    ) -> None:
        super().__init__(
            actions, reward, None, TS() if explore is None else explore, **common
        )
