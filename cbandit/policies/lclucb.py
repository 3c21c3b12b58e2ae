"""LC-LUCB: linear rewards and costs, a constraint that holds in every round.

The user knows a safe action ``x0`` with reward ``r0`` and costs ``c0 < tau``. Each
round, from ridge estimates ``theta`` of the reward and ``mu`` of each cost (``mu`` only
orthogonal to ``x0``, as the cost along ``x0`` is known):

1. ``V_r(x) = <x, theta> + alpha_r beta ||x||_{Sigma^-1}``, optimistic and inflated by
   ``alpha_r = 1 + 2 (r_max - r0) / min_j (tau_j - c0_j)``, or by more if a cost is
   known less well than the reward (``LinearModel.scale``);
2. ``V_c(x)``: the known cost along ``x0``, plus the estimate orthogonal to it, plus
   ``beta ||x_perp||_{Sigma_perp^-1}``: pessimistic;
3. play ``argmax V_r`` over ``{V_c <= tau}``; observe, update.

Along a segment from ``x0``, ``V_c`` is affine and ``V_r`` convex: the best point is
``x0`` or the furthest safe point. If ``r0`` or ``c0`` is unknown, ``x0`` is
played until it is known well enough (:mod:`cbandit.policies.safe.estimate`). Then
``mu`` is estimated in all directions, ``V_c`` is convex along a segment, and the best
point is an end of the segment's safe stretch or ``x0``, which is always allowed.

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise
constraints, 2024, Algorithms 1 and 5, Theorems 19 and 24.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from numpy.typing import ArrayLike

from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.linear import Linear
from cbandit.policies.abilities import SAFE_REFUSES
from cbandit.policies.dual import Scheduled
from cbandit.policies.keywords import PolicyKeywords
from cbandit.policies.safe.action import Safe
from cbandit.policies.safe.linear import CONTEXTS_ADVICE, LinearBounds, LinearModel
from cbandit.policies.safe.stagewise import SafeState, Stagewise
from cbandit.policies.turn import Decision, Turn


class LCLUCB(Stagewise):
    """Optimism about the reward among actions that are surely within their limits.

    In all but a share ``delta`` of runs no action's cost is above its limit, if reward
    and costs are linear in the action with coefficients no longer than the beliefs'
    ``norm``, the noise is sub-Gaussian with their ``R``, the safe action has the cost
    stated, and neither ``alpha`` nor ``beta`` is given. The theorems on regret also
    need sets in which one can go part of the way from the safe action to any other, as
    on a star.

    Args:
        actions: :class:`~cbandit.Finite`, or a :class:`~cbandit.Star` around the safe
            action. ``ask(actions=...)`` takes another set in every round, which must
            contain the safe action too.
        reward: the belief about the reward, a :class:`~cbandit.Linear`.
        costs: the belief about the cost, or a list of them.
        safe: the safe action, with its reward and cost if they are known. If the cost
            is not, ``V_c(x0)`` may stay above the threshold for long in many
            dimensions, which the paper ignores. Here ``x0`` counts as safe in any case,
            and every other action must be safe by ``V_c``.
        delta: the share of runs in which the costs' bounds may fail; in as many other
            runs the reward's may.
        alpha: ``alpha_r``, or ``(alpha_r, alpha_c)``, where ``alpha_c`` multiplies the
            costs' widths; unless given, the theorem's ``alpha_r``, and 1.
        beta: the width, a number or a callable of the round; the theory's unless given.
        largest: ``r_max``, the largest possible mean reward, 1 unless given; a warning
            comes if rewards contradict it.
        common: see below.

    On a star, a choice's ``index`` is the number of its segment.

    Example:
        >>> import cbandit as cb, torch
        >>> linear = cb.Linear(subgaussian=0.1)
        >>> policy = cb.LCLUCB(
        ...     cb.Star(torch.zeros(2), torch.eye(2)), reward=linear, costs=linear,
        ...     safe=cb.Safe(x=[0.0, 0.0]), delta=0.1, thresholds=0.5,
        ... )
        >>> policy.tell(policy.ask(), reward=0.3, cost=0.1)
    """

    name = "LC-LUCB"
    abilities = replace(
        Stagewise.abilities, refuses={**SAFE_REFUSES, "contexts": CONTEXTS_ADVICE}
    )

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
        largest: ArrayLike | None = None,
        **common: Unpack[PolicyKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        super().__init__(
            actions, Linear, reward, costs, safe, delta, alpha, largest, **common
        )
        self._linear = LinearModel(
            self.actions, self._beliefs, self._safe, self.delta, beta, self.batch_shape
        )
        self._start(self._linear)

    def decide(self, state: SafeState, turn: Turn) -> tuple[Decision, SafeState]:
        """Return the action of greatest ``V_r`` among those with ``V_c <= tau``."""
        tau = turn.limits
        safe_index, state = self._linear.find_safe_action(state, turn.actions)
        ratio = state.safe.gap_ratio(tau)
        scale = self._linear.scale(turn.t, state, self._factors, ratio)
        bounds = LinearBounds(state.data, scale)  # V_r and V_c
        return self._linear.pick(self.name, state, turn, bounds, tau, safe_index)
