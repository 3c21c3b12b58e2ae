"""OPLB: a distribution over vectors each round, within its limits in expectation.

It is LC-LUCB (:mod:`cbandit.policies.lclucb`) with the mean ``x_pi`` of a distribution
in place of an action::

    max_pi V_r(x_pi) = <x_pi, theta> + alpha_r beta ||x_pi||_{Sigma^-1}
    subject to V_c(x_pi) <= tau, pi over this round's finite set

then draw an action from ``pi``, observe, update. The objective is convex, so the
programme is hard in general. With ``theta`` fixed it is a second-order-cone programme:

``solver="l1"``: enclose the ellipsoid around ``theta`` in the ball ``||Sigma^{1/2}
(theta' - theta)||_1 <= sqrt(d) alpha_r beta`` and try its ``2 d`` vertices in turn. The
result is exact for that ball and still optimistic; regret grows ``sqrt(d)``-fold.
``solver="ascent"``: find the best ``pi`` for each of these vertices and for the safe
action; from the three of largest ``V_r`` on, find the best ``theta'`` of the ellipsoid
and the best ``pi`` in turn until neither gains.

For a polytope, distributions over its corners suffice: they reach the reward and costs
of all its points. For a ball take points of its boundary, see :class:`~cbandit.Star`.

With either solver the limits hold: if a solution exceeds a limit by rounding, it is
mixed with the safe action.

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise
constraints, 2024, Algorithms 2 and 5, Theorem 27.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.arguments import stated
from cbandit.actions import Actions, Star
from cbandit.beliefs.linear import Linear
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.policies.abilities import SAFE_REFUSES
from cbandit.policies.dual import Scheduled
from cbandit.policies.keywords import PolicyKeywords
from cbandit.policies.safe.action import Safe, require_numbers
from cbandit.policies.safe.estimate import check_has_safe
from cbandit.policies.safe.linear import CONTEXTS_ADVICE, LinearBounds, LinearModel
from cbandit.policies.safe.mixtures import as_distribution, best_mixture, mix_with_safe
from cbandit.policies.safe.stagewise import SafeState, Stagewise
from cbandit.policies.turn import Decision, Turn
from cbandit.recommend import Recommendation
from cbandit.search.conic import needed


class OPLB(Stagewise):
    """Optimism and pessimism over distributions on finite sets of vectors.

    In all but a share ``delta`` of runs no round's expected cost is above its limit,
    under the conditions of :class:`~cbandit.LCLUCB`.

    Args:
        actions: a :class:`~cbandit.Finite` set of moderate size; ``ask(actions=...)``
            takes another set in every round, which must contain the safe action too.
        reward: the belief about the reward, a :class:`~cbandit.Linear`.
        costs: the belief about the cost, or a list of them.
        safe: the safe action, with its reward and cost if they are known.
        delta: the share of runs in which the costs' bounds may fail; in as many other
            runs the reward's may.
        alpha: ``alpha_r``, or ``(alpha_r, alpha_c)``, as for :class:`~cbandit.LCLUCB`.
        solver: ``"ascent"`` or ``"l1"``. With 51 actions in ten dimensions a round
            takes about 0.1 s by ``"ascent"``, and 0.04 s by ``"l1"``, whose ``V_r`` is
            a tenth lower on average. Time grows with the dimension.
        beta: the width, a number or a callable of the round; the theory's unless given.
        largest: ``r_max``, the largest possible mean reward, 1 unless given; a warning
            comes if rewards contradict it.
        common: see below.
    """

    name = "OPLB"
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
        solver: str = "ascent",
        beta: Scheduled | None = None,
        largest: ArrayLike | None = None,
        **common: Unpack[PolicyKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        checks.one_of("solver", solver, "l1", "ascent")
        if isinstance(actions, Star):
            raise CBanditError(
                "actions must be a Finite set: a distribution over the centre and the "
                "tips of a Star does all that its segments can"
            )
        super().__init__(
            actions, Linear, reward, costs, safe, delta, alpha, largest, **common
        )
        self._linear = LinearModel(
            self.actions, self._beliefs, self._safe, self.delta, beta, self.batch_shape
        )
        self._start(self._linear)
        self.solver = solver
        needed()

    def decide(self, state: SafeState, turn: Turn) -> tuple[Decision, SafeState]:
        """Return a draw from the distribution of greatest ``V_r`` found."""
        on, tau = turn.actions, turn.limits
        if isinstance(on, Star):
            raise CBanditError("actions of this round must be a Finite set; got a Star")
        infeasible = state.safe.unsafe_trials(tau)
        safe_index, state = self._linear.find_safe_action(state, on)
        safe_index = require_numbers(safe_index)
        check_has_safe(turn.mask, safe_index)
        ratio = state.safe.gap_ratio(tau)
        scale = self._linear.scale(turn.t, state, self._factors, ratio)
        pi = self._solve_programmes(state, turn, scale, tau, safe_index)
        inside = None
        if turn.explores:
            bounds = LinearBounds(state.data, scale)
            inside = self._linear.safe_actions(turn, bounds, tau, safe_index)
        of = pi, safe_index, turn.streams, infeasible
        return state.safe.draw(*of, safe=inside), state

    def _recommend_likely(
        self, state: SafeState, limits: Tensor, confidence: float, mask: Tensor | None
    ) -> Recommendation:
        """Return the best distribution believed feasible in each trial."""
        blocks, safe = partial(self._linear.estimates, state.data), state.safe
        return safe.recommend_mixture(self.actions, blocks, limits, confidence, mask)

    def _solve_programmes(
        self,
        state: SafeState,
        turn: Turn,
        scale: Tensor,
        tau: Tensor,
        safe_index: Tensor,
    ) -> Distribution:
        """Return the best distribution found in each trial.

        ``scale`` is as :meth:`LinearModel.scale` returns it; ``tau`` are the limits.
        The programmes are solved on the host, so their inputs are first copied there.
        """
        points = torch.cat([p for _, p in self._linear.blocks(turn.actions)], 1)
        w, root = state.data.solved
        root, known = root * scale[..., None, None], state.safe.known
        x0, c0 = state.safe.action.x, state.safe.cost.mean
        on_host = devices.host(points, w, root, tau, x0, c0, safe_index, known)
        points, w, root, tau, x0, c0, safe_index, known = on_host
        points = points.expand(self.size, -1, -1)
        allowed = None if turn.mask is None else turn.mask.cpu()
        shares = torch.zeros(points.shape[:2], dtype=torch.float64)
        for i in [i for i, is_known in enumerate(known.tolist()) if is_known]:
            chosen = slice(None) if allowed is None else allowed[i % len(allowed)]
            problem = (points[i, chosen], w[i], root[i], tau[i], x0[i])
            best = best_mixture(self.solver, *(v.numpy() for v in problem))
            if best is not None:
                shares[i, chosen] = torch.as_tensor(best)
        safe_cost = None if self._safe.cost is None else c0
        shares = mix_with_safe(shares, points, w, root, tau, x0, safe_cost, safe_index)
        return as_distribution(shares, self.device)
