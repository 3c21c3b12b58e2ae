"""OPB over correlated actions: Gaussian processes, up to millions of actions.

Known: a safe action with reward ``r0`` and costs ``c0 < tau``. Each round, from the
posteriors of reward and costs at every action:

1. ``u_cj = mu_cj + beta_cj sigma_cj``, pessimistic, and ``u_r = mu_r + beta_r sigma_r +
   max_j rho_j beta_cj sigma_cj`` with ``rho_j = 2 (r_max - r0) / (tau_j - c0_j)``,
   optimistic and inflated as much as pessimism takes away; the safe action's are exact;
2. ``max_pi E u_r`` subject to ``E u_cj <= tau_j``: a linear programme over all actions,
   at most ``m + 1`` of them;
3. draw an action from ``pi``; observe, update.

The costs' widths must enter the reward's bonus: scaling ``sigma_r`` alone is not
optimistic once reward and costs are known unequally well. After A. Pacchiano, M.
Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise constraints, 2024,
Algorithm 3; this form is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.beliefs.gp import GP
from cbandit.choice import Choice
from cbandit.explore import UCB
from cbandit.policies.decision import Decision
from cbandit.policies.given import listed
from cbandit.policies.ledger import Told
from cbandit.policies.safe.action import Safe, SafeAction
from cbandit.policies.safe.stagewise import drawn, given_scales, must_hold, share
from cbandit.policies.stepwise import StepwiseGP
from cbandit.recommend import Recommendation, recommend_policy
from cbandit.search.simplex.lp import PolicySolution, solve_policy_in_blocks

__all__ = ["GPOPB", "BayesWidth"]


class BayesWidth:
    """``sqrt(2 ln((m + 1) N pi^2 t^2 / (6 delta)))``: for functions of the prior's law.

    With probability ``1 - delta`` all functions stay within it at all ``N`` actions in
    all rounds (N. Srinivas et al., 2010).
    """

    def __init__(self, functions: int, size: int, delta: float) -> None:
        self._scale = functions * size * math.pi**2 / (6 * delta)

    def __call__(self, t: int, gain: Tensor) -> float:
        """The width of round ``t``."""
        return math.sqrt(2 * math.log(self._scale * t * t))


class GPOPB(StepwiseGP):
    """OPB over a finite set or a grid whose actions are correlated.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward, a :class:`~cbandit.GP`.
        costs: the belief about the cost, or one a cost.
        safe: the safe action; its reward and cost where they are known.
        explore: :class:`~cbandit.UCB` with the widths ``beta`` and ``cost_beta``; those
            of :class:`BayesWidth` unless given.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``, in place of ``1 + rho_j`` for every cost, or ``(alpha_r,
            alpha_c)``, ``alpha_c`` multiplying the costs' widths.
        largest: ``r_max``, the largest possible mean reward, 1 unless given.
        common: see below.
    """

    name = "OPB"
    explores = (UCB,)

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        safe: Safe | None = None,
        explore: UCB | None = None,
        delta: float = 0.1,
        alpha: Any = None,
        largest: Any = None,
        **common: Any,
    ) -> None:
        self.delta = share("delta", delta)
        if explore is None:
            functions = 1 + len(listed(costs, GP))
            explore = UCB(BayesWidth(functions, actions.size, self.delta))
        super().__init__(actions, reward=reward, costs=costs, explore=explore, **common)
        given = checks.finite(
            "largest", checks.tensor("largest", 1.0 if largest is None else largest)
        )
        self._scales = given_scales(alpha, self._per_trial)
        self._safe = SafeAction(
            safe,
            self.actions,
            self.batch_shape,
            self._beliefs.noises().sqrt(),
            self._per_trial("largest", given),
            self.delta,
            self.horizon,
        )
        if self._safe.given[1]:
            self._safe.check(self._limits(1))
        # the last programme's dual solution
        self._multiplier = torch.zeros(
            self._size, self.m, dtype=torch.float64, device=self.device
        )

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        tau = self._limits(t)
        infeasible = self._safe.check(tau)
        at = self._safe.index if asked is self.actions else self._safe.within(asked)
        assert at is not None
        must_hold(mask, at)
        pi = self._programme(t, asked, mask, tau, at)
        self._multiplier = pi.multiplier
        return drawn(pi.distribution, self._safe, self._streams, infeasible, at)

    def _programme(
        self, t: int, asked: Any, mask: Tensor | None, tau: Tensor, at: Tensor
    ) -> PolicySolution:
        width = self._coefficient(t).abs()
        rho = self._safe.ratio(tau)
        alpha_r, alpha_c = self._scales(rho)
        if self._scales.reward is not None:
            rho = (alpha_r - 1).unsqueeze(-1).expand_as(rho)
        width = torch.cat([width[:, :1], width[:, 1:] * alpha_c.unsqueeze(-1)], -1)

        def bounds() -> Iterator[tuple[int, Tensor]]:
            for start, mean, std in self._looks(asked):
                u = _bounds(mean, std, width, rho)
                here = (at >= start) & (at < start + u.shape[-1])
                self._safe.exact(u, tau, here, at - start)
                if mask is not None:
                    hidden = ~mask[:, start : start + u.shape[-1]]
                    u[:, 0].masked_fill_(hidden, -torch.inf)
                yield start, u

        return solve_policy_in_blocks(bounds, int(asked.size), tau)

    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """What to deploy: the best distribution believed feasible with ``confidence``.

        Over the policy's own set; its expected costs are what is to be feasible.
        """
        confidence = share("confidence", confidence)
        self._catch_up()
        limits, size = self._limits(max(self.t, 1)), int(self.actions.size)
        found = recommend_policy(self._known, size, limits, confidence)
        assert found.index is not None
        x = self.actions.at(found.index)
        return replace(found, x=x).of(self._outside)

    def _known(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The posterior block by block, with what is given of the safe action."""
        blocks = ((b.start, b.mean, b.std) for b in self._beliefs.blocks())
        return self._safe.known(blocks)

    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        if not self._safe.ready:
            at = (choice.x.reshape(self._size, -1).double() == self._safe.x).all(-1)
            limits = self._limits(choice.t)
            for told in rewards:
                where = at if told.where is None else at & told.mask()
                self._safe.learn(told.values, None, where, limits)
            for told in costs:
                where = at if told.where is None else at & told.mask()
                self._safe.learn(None, told.values, where, limits)


def _bounds(mean: Tensor, std: Tensor, width: Tensor, rho: Tensor) -> Tensor:
    """``u_r`` and every ``u_c``, ``(T, 1 + m, n)``."""
    extra = rho * width[:, 1:]
    if std.shape[1] == 1:
        whole = width.clone()
        whole[:, 0] += extra.amax(-1)
        return torch.addcmul(mean, std, whole.to(mean).unsqueeze(-1))
    u = torch.addcmul(mean, std, width.to(mean).unsqueeze(-1))
    u[:, 0] += (std[:, 1:] * extra.to(mean).unsqueeze(-1)).amax(1)
    return u
