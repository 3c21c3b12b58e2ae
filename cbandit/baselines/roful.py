"""ROFUL: an optimistic direction, followed as far as it is safe.

On a star around 0, with ellipsoids around ``theta`` of the reward and ``mu_j`` of each
cost. Each round:

1. ``x~``: the best ``<x, theta'>`` over ``x``, ``theta'`` and ``mu_j'`` of the
   ellipsoids with ``<x, mu_j'> <= tau_j``. That is optimistic about reward *and* costs:
   along a segment ``<x, theta> + beta ||x||_{Sigma^-1}`` at the furthest ``x`` with
   ``<x, mu_j> - beta ||x||_{Sigma^-1} <= tau_j``;
2. play ``gamma x~`` with the largest ``gamma`` that surely keeps the limits: the
   largest share with ``<gamma x~, mu_j> + beta ||gamma x~||_{Sigma^-1} <= tau_j``, and
   at least ``nu / ||x~||`` (at most 1), ``nu = min_j tau_j / S_j``, since no cost of a
   shorter action can exceed ``nu S_j``; observe, update.

The reward is not inflated, unlike LC-LUCB's. The paper has one cost of this kind; here
each of several costs has its own ellipsoid, as in its form for convex constraints.

S. Hutchinson, B. Turan, M. Alizadeh, Directional optimism for safe linear bandits,
2024, and the authors' code of their experiments. (Safe-PE, its elimination of finitely
many directions, is not here.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.baselines.directions import Directions, around_origin
from cbandit.beliefs.linear import Linear
from cbandit.policies.dual import Scheduled
from cbandit.policies.keywords import PolicyKeywords
from cbandit.policies.safe.action import Safe
from cbandit.policies.safe.linear import LinearModel
from cbandit.policies.safe.stagewise import SafeState, Stagewise
from cbandit.policies.turn import Decision, Turn
from cbandit.search.segments import MARGIN


class ROFUL(Stagewise):
    """Optimism about the direction, pessimism about how far to go.

    Args:
        actions: a :class:`~cbandit.Star` around 0.
        reward: the belief about the reward, a :class:`~cbandit.Linear`.
        costs: the belief about the cost, or a list of them.
        safe: the safe action, ``x = 0``.
        delta: the largest share of runs in which a limit is ever exceeded.
        beta: the width, a number or a callable of the round, in place of the theory's.
        common: see below.
    """

    name = "ROFUL"

    def __init__(
        self,
        actions: Actions,
        *,
        reward: Linear,
        costs: Linear | Sequence[Linear] | Mapping[str, Linear],
        safe: Safe | None = None,
        delta: float = 0.1,
        beta: Scheduled | None = None,
        **common: Unpack[PolicyKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        super().__init__(
            actions, Linear, reward, costs, safe, delta, None, None, **common
        )
        plane = LinearModel(
            self.actions, self._beliefs, self._safe, self.delta, beta, self.batch_shape
        )
        self._linear = around_origin(plane, self.name)
        self._start(self._linear)

    def decide(self, state: SafeState, turn: Turn) -> tuple[Decision, SafeState]:
        """Return the best optimistic direction, as far as it is safe."""
        tau = turn.limits
        ways, state = Directions.of(self._linear, state, turn, tau)
        nu = (tau / self._linear.norm[:, 1:]).amin(-1, keepdim=True)
        floor = nu * (1 - MARGIN) / ways.tips.norm(dim=-2)
        return ways.play(ways.optimistic(), turn, floor), state
