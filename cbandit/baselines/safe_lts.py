"""Safe-LTS: linear Thompson sampling among actions that are surely safe.

The set contains 0 (the safe action, of reward and cost 0) and, with every point, the
segment from 0 to it. Each round:

1. ``theta~ = theta + beta Sigma^{-1/2} eta``,
   ``eta ~ N(0, (1 + 2 L S / (tau - c0))^2 I)``: the draw is inflated as much as makes
   it optimistic despite the shrunken set;
2. play ``argmax <x, theta~>`` over ``{<x, mu> + beta ||x||_{Sigma^{-1}} <= tau}``;
   observe, update.

A. Moradipari, S. Amani, M. Alizadeh, C. Thrampoulidis, Safe linear Thompson sampling
with side information, 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from numpy.typing import ArrayLike

from cbandit._core import devices
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.linear import Linear
from cbandit.errors import CBanditError
from cbandit.policies.dual import Scheduled
from cbandit.policies.keywords import PolicyKeywords
from cbandit.policies.safe.action import Safe
from cbandit.policies.safe.linear import LinearBounds, LinearModel
from cbandit.policies.safe.stagewise import SafeState, Stagewise
from cbandit.policies.turn import Decision, Turn


class SafeLTS(Stagewise):
    """Thompson sampling among actions that surely keep their limits.

    Args:
        actions: a :class:`~cbandit.Star` around 0 (or a finite set that holds 0).
        reward: the belief about the reward, a :class:`~cbandit.Linear`.
        costs: the belief about the cost, or a list of them.
        safe: the safe action, ``x = 0``.
        delta: the largest share of runs in which a limit is ever exceeded.
        alpha: the draw's inflation; by the theorem unless given.
        beta: the width, a number or a callable of the round, in place of the theory's.
        common: see below.
    """

    name = "Safe-LTS"

    def __init__(
        self,
        actions: Actions,
        *,
        reward: Linear,
        costs: Linear | Sequence[Linear] | Mapping[str, Linear],
        safe: Safe | None = None,
        delta: float = 0.1,
        alpha: ArrayLike | None = None,
        beta: Scheduled | None = None,
        **common: Unpack[PolicyKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        super().__init__(
            actions, Linear, reward, costs, safe, delta, alpha, None, **common
        )
        self._linear = LinearModel(
            self.actions, self._beliefs, self._safe, self.delta, beta, self.batch_shape
        )
        self._start(self._linear)
        if not bool(self._safe.origin.all()):
            raise CBanditError(
                f"safe must be x = 0 for Safe-LTS; got x = {self._safe.x.tolist()}"
            )
        self._norm = self._per_trial("norm", reward.norm)

    def decide(self, state: SafeState, turn: Turn) -> tuple[Decision, SafeState]:
        """Return the best action for a draw among those with ``V_c <= tau``."""
        tau = turn.limits
        safe_index, state = self._linear.find_safe_action(state, turn.actions)
        length = (
            state.longest
            if self._linear.stated_length is None
            else self._linear.stated_length
        )
        ratio = (2 * length * self._norm).unsqueeze(-1) / tau
        scale = self._linear.scale(turn.t, state, self._factors, ratio)
        eta = devices.put(turn.streams.normal(self.actions.dim), self.device)
        root = state.data.solved[1][:, 0]  # root' root = Sigma^{-1}
        shift = scale[:, :1] * (root.mT @ eta.view(self.size, -1, 1)).squeeze(-1)
        scale[:, 0] = 0.0
        # V_r is <x, theta~>: no width, but moved coefficients
        bounds = LinearBounds(state.data, scale, shift)
        return self._linear.pick(self.name, state, turn, bounds, tau, safe_index)
