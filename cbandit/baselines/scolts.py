"""S-COLTS: a linear programme with drawn coefficients, scaled back to what is safe.

On a star around 0, with estimates ``theta`` of the reward and ``mu_j`` of each cost.
Each round:

1. one draw ``zeta`` of a standard normal vector moves them all, the reward up where it
   moves the costs down: ``theta' = theta + beta Sigma^{-1/2} zeta``, ``mu_j' = mu_j -
   beta Sigma^{-1/2} zeta``. With a fixed probability, that of ``<zeta, u> >= ||u||``,
   the optimum is then feasible under ``mu'`` and overrated by ``theta'``;
2. ``b``: the best ``<x, theta'>`` with ``<x, mu_j'> <= tau_j``, a linear programme;
3. play ``rho b``, ``rho`` the largest share with ``<rho b, mu_j> +
   beta ||rho b||_{Sigma^-1} <= tau_j``; observe, update.

A. Gangrade, V. Saligrama, Constrained linear Thompson sampling, 2025, in its form for a
known safe action, which here is 0, so that no round is spent on learning about it. Its
abstract says that one draw is shared by rewards and costs; the full text was not at
hand, and the law of ``zeta`` may differ from the authors'. E-COLTS and R-COLTS, for
unknown safe actions, are not implemented here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from cbandit._core import devices
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


class SCOLTS(Stagewise):
    """Thompson sampling of reward and costs by one draw, scaled back to what is safe.

    Args:
        actions: a :class:`~cbandit.Star` around 0.
        reward: the belief about the reward, a :class:`~cbandit.Linear`.
        costs: the belief about the cost, or a list of them.
        safe: the safe action, ``x = 0``.
        delta: the largest share of runs in which a limit is ever exceeded.
        beta: the width, a number or a callable of the round, in place of the theory's.
        common: see below.
    """

    name = "S-COLTS"

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
        """Return the best action for the draw, as far as it is safe."""
        ways, state = Directions.of(self._linear, state, turn, turn.limits)
        zeta = devices.put(turn.streams.normal(self.actions.dim), self.device)
        # <Sigma^{-1/2} zeta, tip> for every function
        rays = state.data.rays(ways.tips)
        along = (zeta.view(self.size, 1, 1, -1) @ rays).squeeze(-2)
        moved = self._linear.width(turn.t, state).unsqueeze(-1) * along
        moved[:, 1:].neg_()
        return ways.play(ways.mean + moved, turn), state
