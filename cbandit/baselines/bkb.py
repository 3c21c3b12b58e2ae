"""BKB: GP-UCB on a dictionary of past actions, resampled every round.

Each round:

1. each past round ``s`` enters the dictionary ``S`` with probability
   ``min(1, q var(x_s) / lam)``, independently, ``var`` that of the last dictionary;
2. features ``z(x) = K_SS^{-1/2} k_S(x)``, and with the rows ``Z`` of all past actions
   ``A = I + Z' Z / lam``: ``mean(x) = z(x)' A^{-1} Z' y / lam`` and
   ``var(x) = k(x, x) - z(x)' z(x) + z(x)' A^{-1} z(x)``, the exact one up to a factor
   (:mod:`cbandit.baselines.nystrom`);
3. ``x_t = argmax mean + beta std``;
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
from cbandit._core.arguments import stated
from cbandit.baselines.sketch import Sketched
from cbandit.beliefs.gp import GP
from cbandit.confidence import sketched_width
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.alone import alone
from cbandit.policies.decision import Asked
from cbandit.policies.gp import GPPolicy
from cbandit.policies.state import GPState

__all__ = ["BKB"]


class BKB(GPPolicy):
    """GP-UCB at a cost a round that does not grow with time.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward; its kernel and noise are fixed.
        explore: :class:`~cbandit.UCB`, ``cb.UCB(2.0)`` unless given. An RKHS width
            (``any-lam``, the default form) becomes the paper's own,
            :func:`cbandit.confidence.sketched_width`: with the theory's
            ``oversampling`` a guarantee (its ``delta`` is for the noise, and as much
            again for the dictionary), with less a heuristic.
        oversampling: ``q``, how much more is kept than the dictionary needs at the
            least; the theory's is ``72 ln(4 T / delta)``, a few do in practice.
        common: see below.
    """

    name = "BKB"
    takes_no = dict.fromkeys(
        ("Delayed", "Sliding", "hallucinate"), "a sketch is of all that was told"
    )
    continuous = splits = False
    explores = (UCB,)
    usual = UCB(2.0)

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        explore: UCB | None = None,
        oversampling: float = 5.0,
        **common: Any,
    ) -> None:
        self.settings = stated(self, locals())
        if isinstance(reward, GP) and (reward.learn_noise or reward.standardize):
            raise CBanditError(
                "reward must be a cb.GP with a kernel and noise of its own, not "
                f"learned and not standardised; got {reward!r}"
            )
        self._oversampling = checks.number("oversampling", oversampling)
        if self._oversampling <= 0:
            raise CBanditError(
                f"oversampling must be above 0; got {self._oversampling}"
            )
        super().__init__(actions, reward=reward, costs=None, explore=explore, **common)

    def _fresh_beliefs(self, beliefs: list[GP]) -> Sketched:
        shape, kept = self.batch_shape, (self.dtype, self.device)
        return Sketched(beliefs[0].copy(), self.actions, shape, *kept)

    def _opened(self, state: GPState, asked: Asked) -> GPState:
        """Keep each past round with probability ``min(1, q var(x_s) / lam)``."""
        beliefs = state.beliefs
        share = self._oversampling * beliefs.variances() / beliefs.noises()
        beliefs = beliefs.resampled(share.clamp(0, 1), asked.streams)
        return state._replace(beliefs=beliefs)

    def _coefficient(self, state: GPState, asked: Asked) -> Tensor:
        """Return what the deviation is multiplied by: the paper's width, if asked."""
        parts = [part for part, _ in self._estimating.widths.rkhs_parts()]
        if not parts or parts[0].rkhs.form != "any-lam":
            return super()._coefficient(state, asked)
        part = parts[0]
        dimension, mass = state.beliefs.dimension()
        noise, delta = state.beliefs.noises(), part.rkhs.delta
        known = part.norm, part.subgaussian
        width = sketched_width(*known, dimension, mass, noise, delta)
        return self.explore.coefficient(width, asked.streams)

    def score(self, t: int, multiplier: Tensor) -> scores.Reward:
        """Return the reward's estimate."""
        return scores.Reward()

    @property
    @alone
    def model(self) -> Any:
        """Raise an error: a sketch has no BoTorch model."""
        raise CBanditError("BKB keeps a sketch, not a model; see policy.posterior()")

    def _engines(self) -> list[str]:
        return ["engine=dictionary"]
