"""BKB: GP-UCB on a dictionary of past actions, resampled every round.

Each round, with a dictionary ``S`` of actions tried before:

1. features ``z(x) = K_SS^{-1/2} k_S(x)``, and with the rows ``Z`` of all past actions
   ``A = I + Z' Z / lam``;
2. ``mean(x) = z(x)' A^{-1} Z' y / lam`` and
   ``var(x) = k(x, x) - z(x)' z(x) + z(x)' A^{-1} z(x)``, the exact one up to a factor:
   ``x_t = argmax mean + beta std``;
3. each past round ``s`` enters the next dictionary with probability
   ``min(1, q var(x_s) / lam)``, independently;
4. observe the reward.

A round costs ``O(N |S|^2)`` for ``N`` actions, whatever ``t``; ``|S|`` stays near
``q`` times the effective dimension.

D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L. Rosasco, Gaussian process
optimization with adaptive sketching: scalable and no regret, 2019. There ``var`` is in
units of ``lam``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cbandit import scores
from cbandit._core import checks
from cbandit.baselines.sketch import Sketched
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.gp import GPPolicy
from cbandit.policies.policy import Decision
from cbandit.posterior.beliefs import Kept

__all__ = ["BKB"]


class BKB(GPPolicy):
    """GP-UCB at a cost a round that does not grow with time.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward; its kernel and noise are fixed.
        explore: :class:`~cbandit.UCB`.
        oversampling: ``q``, how much more is kept than the dictionary needs at the
            least; the theory's is about ``70 ln(4 T / delta)``, a few do in practice.
        common: see below.
    """

    continuous = False
    explores = (UCB,)

    name = "BKB"

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        explore: UCB,
        oversampling: float = 5.0,
        **common: Any,
    ) -> None:
        if common.get("pending", "ignore") != "ignore":
            raise CBanditError(f"pending must be 'ignore'; got {common['pending']!r}")
        if common.get("feedback") is not None:
            raise CBanditError(f"feedback must be None; got {common['feedback']!r}")
        q = checks.number("oversampling", oversampling)
        if q <= 0:
            raise CBanditError(f"oversampling must be above 0; got {q}")
        self._oversampling = q
        super().__init__(actions, reward, None, explore, **common)

    def _fresh_beliefs(self, beliefs: list[GP]) -> Any:
        (reward,) = beliefs
        if reward.learn_noise or reward.standardize:
            raise CBanditError(
                "reward must be a cb.GP with a kernel and noise of its own, not "
                f"learned and not standardised; got {reward!r}"
            )
        known = self.actions, self.batch_shape, self.dtype, self.device
        return Kept(Sketched(reward, *known, self._oversampling))

    @property
    def model(self) -> Any:
        """A sketch has no BoTorch model: always an error that says so."""
        raise CBanditError("BKB keeps a sketch, not a model; see policy.posterior()")

    def _engines(self) -> list[str]:
        return ["engine=dictionary"]

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        beliefs: Any = self._beliefs
        beliefs.resample(self._streams)
        return Decision(self._maximise(t, asked, mask, scores.Reward()).index)
