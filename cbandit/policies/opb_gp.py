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

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.beliefs.gp import GP
from cbandit.confidence.widths import BayesWidth
from cbandit.explore import UCB
from cbandit.policies.alone import alone
from cbandit.policies.believed import told_blocks
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.given import listed
from cbandit.policies.gp import GPPolicy
from cbandit.policies.ledger import News
from cbandit.policies.safe.action import Safe, SafeAction, numbered
from cbandit.policies.safe.draws import drawn, must_hold
from cbandit.policies.safe.known import Known
from cbandit.policies.safe.likely import best_likely, best_of_known
from cbandit.policies.safe.scales import Scales, bounds_of, largest_of
from cbandit.policies.safe.trust import FEW, trusted
from cbandit.policies.state import GPState
from cbandit.posterior.units import level
from cbandit.recommend import Recommendation
from cbandit.search.simplex.lp import solve_policy_in_blocks

__all__ = ["GPOPB"]


class GPOPB(GPPolicy):
    """OPB over a finite set or a grid whose actions are correlated.

    A standardised belief says nothing of safety before it has seen five outcomes, not
    all alike: until then the safe action is played.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward, a :class:`~cbandit.GP`.
        costs: the belief about the cost, or one a cost.
        safe: the safe action; its reward and cost where they are known.
        explore: :class:`~cbandit.UCB` with the widths ``beta`` and ``cost_beta``; those
            of :class:`~cbandit.confidence.widths.BayesWidth` unless given.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``, in place of ``1 + rho_j`` for every cost, or ``(alpha_r,
            alpha_c)``, ``alpha_c`` multiplying the costs' widths.
        largest: ``r_max``, the largest possible mean reward, 1 unless given.
        common: see below.
    """

    name = "OPB"
    explores = (UCB,)
    splits = False

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
        self.settings = stated(self, locals())
        self.delta = checks.share("delta", delta)
        if explore is None:
            functions = 1 + len(listed(costs, GP))
            explore = UCB(BayesWidth(functions, actions.size, self.delta))
        super().__init__(actions, reward=reward, costs=costs, explore=explore, **common)
        largest = largest_of(self, largest)
        self._scales = Scales.of(alpha, self._per_trial)
        noises = self._beliefs.noises().sqrt()
        self._safe = SafeAction.of(self, safe, noises, largest)
        self._safe.below(self._limits(1))
        # the multiplier is the last programme's dual solution
        zero = torch.zeros(self._size, self.m, dtype=torch.float64, device=self.device)
        known = Known.start(self._safe)
        self._begin(self._now.state._replace(multiplier=zero, own=known))

    def _leans_on(self) -> list[tuple[int | None, Tensor]]:
        """Return the safe action of each trial."""
        return self._safe.listed()

    @property
    @alone
    def multiplier(self) -> Tensor:
        """The dual solution of the last programme, ``(*trials, m)``."""
        return self._outside(self._now.state.multiplier.clone())

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Return a draw from the distribution that solves the programme."""
        limits, on = self._limits(asked.t), asked.actions
        known, units = state.own, state.beliefs.units()
        infeasible = known.unsafe(limits, units)
        tau, safe = level(units, limits), known.within(units)
        # outcomes come by themselves; that they are all alike is worth a warning
        enough, own = trusted(self, units, patience=FEW), on is self.actions
        at = numbered(self._safe.index if own else self._safe.within(on))
        must_hold(asked.mask, at)
        beta, ratio = self._coefficient(state, asked).abs(), known.ratio(limits, units)
        inflated = self._scales.inflated(beta, ratio)  # alpha_c beta, and rho

        def bounds() -> Iterator[tuple[int, Tensor]]:
            for start, mean, std in self._looks(state, asked):
                u = bounds_of(mean, std, *inflated)
                safe.exact(u, tau, at, start)
                if asked.mask is not None:
                    hidden = ~asked.mask[:, start : start + u.shape[-1]]
                    u[:, 0].masked_fill_(hidden, -torch.inf)
                yield start, u

        pi = solve_policy_in_blocks(bounds, int(on.size), tau)
        pi_t, streams = pi.distribution, asked.streams
        decision = drawn(pi_t, safe, at, streams, infeasible, enough)
        return decision, state._replace(multiplier=pi.multiplier)

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state with the news in its beliefs, and of the safe action."""
        safe, state = state.own, super().absorb(state, news)
        if not safe.ready:
            limits = self._limits(news.choice.t)
            safe = safe.after(news, limits, state.beliefs.units())
        return state._replace(own=safe)

    @alone
    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """Say what to deploy: the best distribution believed feasible.

        Over the policy's own set, with probability ``confidence``; its expected costs
        are what is to be feasible. Before data it is the safe action, where its cost
        was given.
        """
        confidence = checks.share("confidence", confidence)
        now = self._settled()
        limits, beliefs = self._limits(max(now.t, 1)), now.state.beliefs
        safe, size = now.state.own, (self._size, int(self.actions.size))
        data = beliefs.has_data().all(-1, keepdim=True).to(self.device).expand(size)
        own = self.actions, safe, partial(told_blocks, beliefs), limits, confidence
        best = partial(best_likely, *own)
        found = best_of_known(data, self._left_over(), safe, best)
        return self.senses.recommended(found.of(self._outside))
