"""GP-UCB and GP-TS: no constraint, one function.

``argmax mean + beta std`` (IGP-UCB of Chowdhury and Gopalan, 2017, with the RKHS
width), and ``argmax`` of a joint draw of the posterior.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit import checks
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB
from cbandit.policies.base import Decision
from cbandit.policies.gp import GPPolicy

__all__ = ["GPTS", "GPUCB"]


class _Unconstrained(GPPolicy):
    splits = True

    @property
    def multiplier(self) -> Tensor:
        """Empty: there is no constraint."""
        return torch.zeros(
            *self.batch_shape, 0, dtype=torch.float64, device=self.device
        )

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        best = self._maximise(t, asked, mask, lambda f, g: f)
        return Decision(best.index, x=best.x)


class GPUCB(_Unconstrained):
    """``argmax mean + beta std``.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        explore: :class:`~cbandit.UCB`.
        clip: bound ``B`` on the reward, or ``(B, G)``.
        common: see :class:`~cbandit.policies.gp.GPPolicy`.
    """

    name = "GP-UCB"

    def __init__(
        self, actions: Any, *, reward: GP, explore: UCB, **common: Any
    ) -> None:
        if not isinstance(explore, UCB):
            raise CBanditError(
                f"explore must be cb.UCB(...); got {checks.kind(explore)}"
            )
        super().__init__(actions, reward, None, explore, **common)


class GPTS(_Unconstrained):
    """``argmax`` of one joint draw of the posterior a round.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        explore: :class:`~cbandit.TS`; of the posterior as it is unless given.
        common: see :class:`~cbandit.policies.gp.GPPolicy`.
    """

    name = "GP-TS"

    def __init__(
        self, actions: Any, *, reward: GP, explore: TS | None = None, **common: Any
    ) -> None:
        explore = TS() if explore is None else explore
        if not isinstance(explore, TS):
            raise CBanditError(
                f"explore must be cb.TS(...); got {checks.kind(explore)}"
            )
        super().__init__(actions, reward, None, explore, **common)
