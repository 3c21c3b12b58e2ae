"""CKB with restarts, for a world that changes.

Every ``restart`` rounds the data are dropped and the multipliers go back to 0; in
between it is CKB-UCB. The sliding-window form is
``cb.CKB(..., feedback=cb.Sliding(window))``.

Y. Deng, X. Zhou, A. Ghosh, A. Gupta and N. B. Shroff, Interference constrained beam
alignment for time-varying channels via kernelized bandits, 2022, a baseline of Guo et
al. 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from numpy.typing import ArrayLike

from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.explore import Explore
from cbandit.policies.ckb import CKB
from cbandit.policies.dual import Scheduled
from cbandit.policies.keywords import CostBeliefs, GPKeywords


class CKBRestart(CKB):
    """CKB that starts again every ``restart`` rounds.

    Args:
        actions: what can be chosen.
        restart: ``H``, rounds between restarts; it is the theorem's ``T`` if ``step``
            is left out. ``"adaptive"``: a trial restarts when its predictions fail, and
            ``T`` is the horizon (:mod:`cbandit.policies.concerns.restarts`).
            Feedback that is told after a restart enters the new beliefs, whatever round
            it is of.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: as for :class:`~cbandit.CKB`.
        step: as for :class:`~cbandit.CKB`.
        cap: as for :class:`~cbandit.CKB`.
        slack: as for :class:`~cbandit.CKB`.
        slater: as for :class:`~cbandit.CKB`.
        dual: as for :class:`~cbandit.CKB`.
        dual_beta: as for :class:`~cbandit.CKB`.
        common: see below.
    """

    abilities = replace(CKB.abilities, hallucinates=False)

    def __init__(
        self,
        actions: Actions,
        *,
        restart: int | str,
        reward: GP,
        costs: CostBeliefs,
        explore: Explore | None = None,
        step: Scheduled | None = None,
        cap: ArrayLike | None = None,
        slack: Scheduled = 0.0,
        slater: ArrayLike | None = None,
        dual: str = "projected",
        dual_beta: ArrayLike | None = None,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        super().__init__(
            actions,
            reward=reward,
            costs=costs,
            explore=explore,
            step=step,
            cap=cap,
            slack=slack,
            slater=slater,
            restart=restart,
            forget=True,
            dual=dual,
            dual_beta=dual_beta,
            **common,
        )
