"""CKB with restarts, for a world that changes.

Every ``restart`` rounds the data are dropped and the multipliers go back to 0; in
between it is CKB-UCB. The sliding-window form is
``cb.CKB(..., feedback=cb.Sliding(window))``.

Y. Deng, X. Zhou, A. Ghosh, A. Gupta and N. B. Shroff, Interference constrained beam
alignment for time-varying channels via kernelized bandits, 2022, a baseline of Guo et
al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.explore import Explore
from cbandit.policies.checks import believed_costs
from cbandit.policies.choices import Asked
from cbandit.policies.dual import Dual, Scheduled
from cbandit.policies.gp import GPPolicy
from cbandit.policies.keywords import CostBeliefs, GPKeywords
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import Best
from cbandit_kernels import Look


class CKBRestart(GPPolicy):
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
            costs=believed_costs(costs),
            explore=explore,
            start=0.0,
            restart=restart,
            forget=True,
            **common,
        )
        self.name = f"CKB-Restart{self.explore.name}"
        self.hears_costs = False  # only estimates move the multipliers
        self._dual = Dual.of(
            dual,
            step,
            cap,
            slack,
            slater,
            dual_beta,
            shaped=self._parameter,
            bounds=self._bound,
            units=self._beliefs.units(),
            epoch=self.restart or self.horizon,
        )
        self.no_limit = self._dual.no_limit

    def score(self, t: int, phi: Tensor) -> scores.PrimalDual:
        """Return ``f - sum_j phi_j g_j``."""
        return scores.PrimalDual(self._dual.weight(phi, t, self._epoch(t)))

    def _judged(self, beliefs: Beliefs, look: Look, best: Best, asked: Asked) -> Tensor:
        """Return the estimates ``(T, 1 + m)`` that move the multiplier."""
        return self._dual.judged(beliefs, look, best, asked)

    def move(
        self, t: int, phi: Tensor, estimate: Tensor, arrived: Sequence[Tensor]
    ) -> Tensor:
        """Move the multiplier by the estimated costs of the action played."""
        return self._dual.moved(phi, estimate[:, 1:], t, self._epoch(t))
