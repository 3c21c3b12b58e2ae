"""Safe-LTS: linear Thompson sampling within what is surely safe.

On a set that holds 0 (the safe action, of reward and cost 0) and with every point the
way from 0 to it. Each round:

1. ``theta~ = theta + beta Sigma^{-1/2} eta``,
   ``eta ~ N(0, (1 + 2 L S / (tau - c0))^2 I)``: the draw is inflated as much as makes
   it optimistic despite the shrunken set;
2. play ``argmax <x, theta~>`` over ``{<x, mu> + beta ||x||_{Sigma^{-1}} <= tau}``;
   observe, update.

A. Moradipari, S. Amani, M. Alizadeh, C. Thrampoulidis, Safe linear Thompson sampling
with side information, 2019.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cbandit._core import devices
from cbandit.beliefs.linear import Linear
from cbandit.errors import CBanditError
from cbandit.policies.decision import Decision
from cbandit.policies.safe.action import Safe
from cbandit.policies.safe.stagewise import must_hold
from cbandit.policies.safe.surely import SurelySafe

__all__ = ["SafeLTS"]


class SafeLTS(SurelySafe):
    """Thompson sampling among actions that are surely within their limits.

    Args:
        actions: a :class:`~cbandit.Star` around 0 (or a finite set that holds 0).
        reward: the belief about the reward, a :class:`~cbandit.Linear`.
        costs: the belief about the cost, or a list of them.
        safe: the safe action, ``x = 0``.
        delta: in at most this share of runs is a constraint ever violated.
        alpha: what the draw is inflated by; the theorem's unless given.
        beta: the width, a number or a callable of the round, in place of the theory's.
        common: ``thresholds``, ``horizon``, ``seed``, ``trials``, ``device``,
            ``dtype``.
    """

    name = "Safe-LTS"

    def __init__(
        self,
        actions: Any,
        *,
        reward: Linear,
        costs: Any,
        safe: Safe | None = None,
        delta: float = 0.1,
        alpha: Any = None,
        beta: Any = None,
        **common: Any,
    ) -> None:
        super().__init__(
            actions, reward, costs, safe, delta, alpha, beta, None, **common
        )
        if not bool(self._safe.origin.all()):
            raise CBanditError(
                f"safe must be x = 0 for Safe-LTS; got x = {self._safe.x.tolist()}"
            )
        self._inflated = alpha is not None
        self._norm = self._per_trial("norm", reward.norm)

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        tau = self._limits(t)
        self._safe.check(tau)
        # what can fail, and what a longer action widens, goes before what is drawn
        must_hold(mask, self._at_safe(asked))
        width = self._width(t)[:, :1]
        inflation = self._alpha(tau)[0]
        if not self._inflated:
            length = self._longest if self._stated is None else self._stated
            inflation = 1 + 2 * length * self._norm / tau.amin(-1)
        eta = devices.put(self._streams.normal(self.actions.dim), self.device)
        eta = eta.reshape(self._size, -1, 1) * inflation.view(-1, 1, 1)
        root = self._ridge.solve()[1][:, 0]  # root' root = Sigma^{-1}
        shift = width * (root.mT @ eta).squeeze(-1)
        alpha = tau.new_ones(self._size, 1 + self.m)
        alpha[:, 0] = 0.0
        return self._best_safe(t, asked, mask, tau, alpha, shift)
