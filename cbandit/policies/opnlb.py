"""OPNLB: a distribution over arms each round, for functions of finite classes.

The reward is a function from a finite class, and so is each cost. The user knows a safe
arm ``x0`` with reward ``r0`` and costs ``c0 < tau``. Each round:

1. confidence sets ``C = {h : sum_s (h(X_s) - h_hat(X_s))^2 <= radius}`` around the
   least-squares fits ``h_hat``, ``radius = 512 R^2 ln(12 (m + 1) G ln(2 t) / delta)``
   for ``G`` functions in the class. Of a cost's class only functions with
   ``h(x0) = c0`` count (the paper fits among all of them, see
   :mod:`cbandit.policies.safe.classes`);
2. ``V_c(pi) = max over C_c of E_pi mu``;
   ``V_r(pi) = max over C_r of E_pi theta + alpha_r max over C_c of E_pi (mu' - mu'')``,
   ``alpha_r = (r_max - r0) / (tau - c0)``;
3. ``pi = argmax V_r`` over ``{V_c <= tau}``: one linear programme for each
   ``(theta, mu', mu'')``; draw an arm from ``pi``; observe.

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise
constraints, 2024, Algorithm 4, Theorem 38.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import devices
from cbandit._core.arguments import stated
from cbandit.actions import Actions, Finite
from cbandit.beliefs.classes import FiniteClass
from cbandit.errors import CBanditError
from cbandit.policies.keywords import PolicyKeywords
from cbandit.policies.safe.action import Safe, require_numbers
from cbandit.policies.safe.arms import Arms
from cbandit.policies.safe.bounds import within_limits
from cbandit.policies.safe.classes import (
    ConfidenceSets,
    as_recommendation,
    best_distribution,
    optimistic_rewards,
    stack_distributions,
)
from cbandit.policies.safe.estimate import Block
from cbandit.policies.safe.stagewise import SafeState, Stagewise
from cbandit.policies.turn import Decision, Turn
from cbandit.recommend import Recommendation


class OPNLB(Stagewise):
    """Optimism and pessimism over distributions, for finite classes of functions.

    In all but a share ``delta`` of runs no round's expected cost is above its limit, if
    reward and costs are in their classes, the noise is sub-Gaussian with the classes'
    ``R``, the safe arm has the cost stated, and no radius is given.

    Args:
        actions: the arms, a :class:`~cbandit.Finite` set.
        reward: a :class:`~cbandit.FiniteClass`.
        costs: a :class:`~cbandit.FiniteClass`, or a list or dict of them, one for each
            cost.
        safe: the safe arm, with its reward and cost.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``; the theorem's unless given.
        largest: ``r_max``, the largest possible mean reward; unless given, the largest
            value in the reward's class.
        common: see below.
    """

    name = "OPNLB"

    def __init__(
        self,
        actions: Actions,
        *,
        reward: FiniteClass,
        costs: FiniteClass | Sequence[FiniteClass] | Mapping[str, FiniteClass],
        safe: Safe | None = None,
        delta: float = 0.1,
        alpha: ArrayLike | None = None,
        largest: ArrayLike | None = None,
        **common: Unpack[PolicyKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        if not isinstance(actions, Finite):
            raise CBanditError(
                f"OPNLB chooses from a Finite set; got {actions!r}. Its arms may be "
                "pairs of choice and context: give ask(among=numbers) those of the "
                "round, the safe arm among them"
            )
        if isinstance(safe, Safe) and (safe.reward is None or safe.cost is None):
            raise CBanditError(
                "safe needs reward= and cost= for OPNLB: its functions are those that "
                "agree with them"
            )
        super().__init__(
            actions, FiniteClass, reward, costs, safe, delta, alpha, largest, **common
        )
        self._start(Arms(self.actions, self._subgaussian, self.dtype))
        self._sets = ConfidenceSets(self._beliefs, self._safe, int(actions.size))

    def decide(self, state: SafeState, turn: Turn) -> tuple[Decision, SafeState]:
        """Return a draw from the distribution of greatest ``V_r`` found."""
        tau = turn.limits
        infeasible = self._unsafe_trials(state, turn, tau)
        alpha = state.safe.gap_ratio(tau) / 2  # (r_max - r0) / (tau_j - c0_j)
        if self._factors.reward is not None:
            alpha = self._factors.reward.unsqueeze(-1).expand_as(alpha)
        # classes are small, so their programmes are solved on the host
        count, mean, limits, alpha = devices.host(
            state.data.count, state.data.mean, tau, alpha
        )
        inside = self._sets.members(turn.t, self.delta, count, mean)
        allowed = None if turn.mask is None else turn.mask.cpu()
        answers = []
        for i in range(self.size):
            functions = self._sets.functions_of(inside, i)
            some = (
                None if allowed is None else allowed[i % len(allowed)].nonzero()[:, 0]
            )
            if some is not None:  # functions that agree on these arms count once
                functions = [h[:, some].unique(dim=0) for h in functions]
            theta, *mu = functions
            u_r = optimistic_rewards(theta, mu, alpha[i])
            best = best_distribution(u_r, mu, limits[i])
            if some is not None:
                best = replace(best, index=some[best.index])
            answers.append(best)
        pi = stack_distributions(answers, self.device)
        safe_index = require_numbers(self._safe.index)
        believed = None
        if turn.explores:
            high = self._sets.extremes(inside)[1]
            believed = within_limits(high, limits, allowed).to(self.device)
        of = pi, safe_index, turn.streams, infeasible
        return state.safe.draw(*of, safe=believed), state

    def _has_data(self, state: SafeState) -> Tensor:
        """Return the trials that have data of all functions, ``(T, 1)`` bool."""
        pulled: Tensor = (state.data.count > 0).any(-1)
        return pulled.all(-1, keepdim=True)

    def _recommend_likely(
        self, state: SafeState, limits: Tensor, confidence: float, mask: Tensor | None
    ) -> Recommendation:
        """Return the distribution of greatest fitted reward believed feasible.

        It keeps the limits under every function in the costs' confidence sets of level
        ``confidence``; a radius that the user gave is used for any level.
        """
        count, mean, tau = devices.host(state.data.count, state.data.mean, limits)
        inside = self._sets.members(max(self.t, 1), 1 - confidence, count, mean)
        fit = self._sets.fit(count, mean)
        wanted = fit[:, :1]
        if mask is not None:
            wanted = wanted.masked_fill(~mask.cpu().unsqueeze(1), -torch.inf)
        answers = [
            best_distribution(wanted[i], self._sets.functions_of(inside, i)[1:], tau[i])
            for i in range(self.size)
        ]
        pi = stack_distributions(answers, self.device)
        fit = devices.put(fit, self.device)
        return as_recommendation(pi, fit, limits, confidence, self.actions)

    def _estimates(self, state: SafeState) -> Iterator[Block]:
        """Yield the middle and half width of each arm's values in confidence sets."""
        count, mean = devices.host(state.data.count, state.data.mean)
        inside = self._sets.members(max(self.t, 1), self.delta, count, mean)
        low, high = (devices.put(v, self.device) for v in self._sets.extremes(inside))
        yield 0, (low + high) / 2, (high - low) / 2
