"""CKB with restarts, for a world that changes.

Every ``restart`` rounds the data are dropped and the multipliers go back to 0; in
between it is CKB-UCB. The sliding-window form is
``cb.CKB(..., feedback=cb.Sliding(window))``.

Y. Deng, X. Zhou, A. Ghosh, A. Gupta and N. B. Shroff, 2022, a baseline of Guo et al.
2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cbandit._core import checks
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.ckb import CKB

__all__ = ["CKBRestart"]


class CKBRestart(CKB):
    """CKB that starts again every ``restart`` rounds.

    Args:
        actions: what can be chosen.
        restart: ``H``, rounds between restarts; the theorem's ``T`` where ``step`` is
            left out.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: as for :class:`~cbandit.CKB`.
        common: see :class:`~cbandit.CKB`.
    """

    def __init__(
        self,
        actions: Any,
        *,
        restart: int,
        reward: GP,
        costs: GP | Sequence[GP],
        explore: Explore,
        **common: Any,
    ) -> None:
        restart = checks.whole("restart", restart)
        if common.get("anytime"):
            raise CBanditError("anytime goes with cb.CKB; CKBRestart has restart=")
        self.restart = restart
        horizon = common.pop("horizon", None)
        if horizon is not None:
            horizon = checks.whole("horizon", horizon, 1, "None or a positive int")
        super().__init__(
            actions,
            reward=reward,
            costs=costs,
            explore=explore,
            horizon=restart,
            **common,
        )
        self.horizon = horizon
        self.forget = True
        self.name = f"CKB-Restart{self.explore.name}"

    def _epoch(self, t: int) -> int:
        return t - (t - 1) % self.restart
