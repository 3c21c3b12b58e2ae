"""OPB: a distribution over actions each round, within its limits in expectation.

The user knows a safe arm with reward ``r1`` and costs ``c1 < tau``. Each round, from
the average and count ``n`` of each of ``K`` arms over ``T`` rounds, with
``w = R sqrt(2 ln(1 / delta') / n)`` and ``delta' = delta / (2 (m + 1) K T)``:

1. ``u_r = r_hat + alpha_r w``, optimistic and inflated by
   ``alpha_r = 1 + 2 (r_max - r1) / min_j (tau_j - c1_j)`` (Theorem 45 has 1 in the
   place of ``r_max - r1``; ours is smaller). ``u_c = c_hat + w``, pessimistic. The safe
   arm's bounds are ``r1`` and ``c1``. If reward and costs have different widths, the
   costs' widths inflate the reward (see :mod:`cbandit.policies.safe.bounds`). The rule
   for an arm never pulled is ours (the paper sets its width to 0): as ``u_c`` it has
   the largest mean cost that its belief states, ``top``, and as ``u_r`` at least
   ``r1 + (r_max - r1) max(1, max_j (top_j - c1_j) / (tau_j - c1_j))``: mixed with the
   safe arm within the limits it is then worth ``r_max``. Without a stated ``top`` the
   arm is not played;
2. ``max_pi E u_r`` subject to ``E u_cj <= tau_j``: a linear programme, at most
   ``m + 1`` arms;
3. draw an arm from ``pi``; observe, update.

If ``r1`` or ``c1`` is unknown, the safe arm is played until it is known well enough
(:mod:`cbandit.policies.safe.estimate`).

:class:`GPOPB` (this form is ours) is for correlated actions, up to millions of them.
From the means ``mu`` and deviations ``sigma`` of reward and costs at every action:

1. ``u_cj = mu_cj + beta_cj sigma_cj``, pessimistic, and ``u_r = mu_r + beta_r sigma_r +
   max_j rho_j beta_cj sigma_cj`` with ``rho_j = 2 (r_max - r0) / (tau_j - c0_j)``,
   optimistic and inflated by as much as pessimism may lose; the safe action's bounds
   are its reward ``r0`` and costs ``c0``;
2. and 3. as above, with the programme over all actions.

The reward's bonus must contain the costs' widths: a larger multiple of ``sigma_r`` is
not optimistic where a cost is known less well than the reward.

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise
constraints, 2024, Algorithms 3 and 5, Theorems 31 and 45.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Actions, Finite, ProductGrid
from cbandit.beliefs.counts import Counts
from cbandit.beliefs.gp import GP
from cbandit.confidence.widths import BayesWidth
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.abilities import OWN_RULE, PESSIMISTIC_REASON, SAFE_REFUSES
from cbandit.policies.checks import belief_list
from cbandit.policies.choices import News
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import CostBeliefs, GPKeywords, Keywords
from cbandit.policies.recommending import blocks_in_user_units
from cbandit.policies.safe.action import Safe, SafeAction, require_numbers
from cbandit.policies.safe.arms import Arms, bound_unpulled
from cbandit.policies.safe.bounds import (
    MIN_OUTCOMES,
    EnoughData,
    WidthFactors,
    upper_bounds,
    within_limits,
)
from cbandit.policies.safe.estimate import SafeEstimate, check_has_safe
from cbandit.policies.safe.stagewise import SafeState, Stagewise
from cbandit.policies.saving import locked
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.units import level
from cbandit.recommend import Recommendation
from cbandit.search.simplex.lp import solve_policy, solve_policy_in_blocks


class CountOPB(Stagewise):
    """OPB over independent arms.

    In all but a share ``delta`` of runs no round's expected cost is above its limit, if
    the noise is sub-Gaussian with the ``R`` stated, the safe arm has the cost stated,
    and no mean cost is above the top of its belief's ``means`` or ``range``. If a cost
    states neither, only the safe arm is played, and arms that have earlier data of this
    cost (``policy.observe``).

    Args:
        actions: the arms.
        reward: the belief about the reward, a :class:`~cbandit.Counts`.
        costs: the belief about the cost, or a list of them.
        safe: the safe arm, with its reward and cost if they are known.
        horizon: ``T``; the widths depend on it.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``, or ``(alpha_r, alpha_c)``, where ``alpha_c`` multiplies the
            costs' widths; unless given, the theorem's ``alpha_r``, and 1.
        largest: ``r_max``, the largest possible mean reward; unless given, the upper
            end of the reward's ``means`` or ``range``, or 1.
        common: see below.
    """

    name = "OPB"

    def __init__(
        self,
        actions: Actions,
        *,
        reward: Counts,
        costs: Counts | Sequence[Counts] | Mapping[str, Counts],
        safe: Safe | None = None,
        horizon: int | None = None,
        delta: float = 0.1,
        alpha: ArrayLike | None = None,
        largest: ArrayLike | None = None,
        **common: Unpack[Keywords],
    ) -> None:
        self.settings = stated(self, locals())
        if not isinstance(actions, Finite | ProductGrid):
            raise CBanditError(
                f"OPB chooses from a Finite set or a ProductGrid; got {actions!r}"
            )
        if horizon is None:
            raise CBanditError(
                "horizon must be given: OPB's widths rest on it; got none"
            )
        beliefs = Counts, reward, costs
        super().__init__(
            actions, *beliefs, safe, delta, alpha, largest, horizon=horizon, **common
        )
        self._start(Arms(self.actions, self._subgaussian, self.dtype))
        log = math.log(2 * (self.m + 1) * int(actions.size) * horizon / self.delta)
        self._width = self._subgaussian * math.sqrt(2 * log)  # of one pull, T x F
        means = [belief.means for belief in self._beliefs[1:]]
        tops = [math.inf if ends is None else ends[1] for ends in means]
        self._max_costs = self._safe.largest.new_tensor(tops).unsqueeze(-1)

    def decide(self, state: SafeState, turn: Turn) -> tuple[Decision, SafeState]:
        """Return a draw from the distribution that solves the programme."""
        tau, tally, safe = turn.limits, state.data, state.safe
        infeasible = self._unsafe_trials(state, turn, tau)
        safe_index = require_numbers(self._safe.index)
        inflated = self._factors.inflate(self._width, state.safe.gap_ratio(tau))
        u = upper_bounds(tally.mean, tally.spread, *inflated)
        bound_unpulled(u, tally.count, safe, tau, safe_index, self._max_costs)
        if turn.mask is not None:
            u[:, 0].masked_fill_(~turn.mask, -torch.inf)
        pi = solve_policy(u[:, 0], u[:, 1:], tau)
        inside = within_limits(u, tau, turn.mask) if turn.explores else None
        of = pi.distribution, safe_index, turn.streams, infeasible
        decision = safe.draw(*of, safe=inside)
        return decision, state._replace(multiplier=pi.multiplier)


class GPOPB(GPPolicy):
    """OPB over a finite set or a grid whose actions are correlated.

    A standardised belief is not used to call actions safe before it has five outcomes
    that are not all alike: until then the safe action is played.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward, a :class:`~cbandit.GP`.
        costs: the belief about the cost, or a list or dict of them, one for each cost.
        safe: the safe action, with its reward and cost if they are known.
        explore: :class:`~cbandit.UCB` with the widths ``beta`` and ``cost_beta``; with
            :class:`~cbandit.confidence.widths.BayesWidth` unless given.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r`` replaces ``1 + rho_j`` for every cost; in ``(alpha_r,
            alpha_c)``, ``alpha_c`` multiplies the costs' widths.
        largest: ``r_max``, the largest possible mean reward, 1 unless given; a warning
            comes if rewards contradict it.
        common: see below.
    """

    name = "OPB"
    abilities = replace(
        OWN_RULE,
        categories=False,
        explores=(UCB,),
        refuses={**SAFE_REFUSES, "caution": PESSIMISTIC_REASON},
    )

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs,
        safe: Safe | None = None,
        explore: UCB | None = None,
        delta: float = 0.1,
        alpha: ArrayLike | None = None,
        largest: ArrayLike | None = None,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        self.delta = checks.share("delta", delta)
        if explore is None:
            functions = 1 + len(belief_list(costs, GP))
            explore = UCB(BayesWidth(functions, actions.size, self.delta))
        super().__init__(actions, reward=reward, costs=costs, explore=explore, **common)
        self._factors = WidthFactors.of(alpha, self._per_trial)
        noises = self._beliefs.noises().sqrt()
        self._safe = SafeAction.of(self, safe, noises, largest)
        self._enough_data = EnoughData(self.name)
        self._safe.check_below(self.limits(1))
        # the multiplier is the last programme's dual solution
        zero = torch.zeros(self.size, self.m, dtype=torch.float64, device=self.device)
        estimate = SafeEstimate.start(self._safe)
        self.begin(self._now.state._replace(multiplier=zero, own=estimate))

    def _must_work(self) -> list[tuple[int | None, Tensor]]:
        """Return the number and point of each trial's action that must not fail."""
        return self._safe.numbers_and_points()

    @property
    @locked
    def multiplier(self) -> Tensor:
        """The dual solution of the last programme, ``(*trials, m)``."""
        return self._user_shape(self._now.state.multiplier.clone())

    def decide(self, state: GPState, turn: Turn) -> tuple[Decision, GPState]:
        """Return a draw from the distribution that solves the programme."""
        limits, on = turn.limits, turn.actions
        estimate, units = state.own, state.beliefs.units()
        infeasible = estimate.unsafe_trials(limits, units)
        tau, safe = level(units, limits), estimate.in_units(units)
        # a cost's unit comes from outcomes alone: equal outcomes deserve a warning
        enough = self._enough_data.trials(units, warn_after=MIN_OUTCOMES)
        index = self._safe.index if on is self.actions else self._safe.number_in(on)
        safe_index = require_numbers(index)
        check_has_safe(turn.mask, safe_index)
        beta = self._coefficient(state, turn).abs()
        ratio = estimate.gap_ratio(limits, units)
        inflated = self._factors.inflate(beta, ratio)  # alpha_c beta, and rho

        def bounds() -> Iterator[tuple[int, Tensor]]:
            for start, mean, std in self._moments(state, turn):
                u = upper_bounds(mean, std, *inflated)
                safe.overwrite_bounds(u, tau, safe_index, start)
                if turn.mask is not None:
                    hidden = ~turn.mask[:, start : start + u.shape[-1]]
                    u[:, 0].masked_fill_(hidden, -torch.inf)
                yield start, u

        pi = solve_policy_in_blocks(bounds, int(on.size), tau)
        inside = None
        if turn.explores:
            parts = [within_limits(u, tau) for _, u in bounds()]
            inside = torch.cat(parts, -1)
            inside = inside if turn.mask is None else inside & turn.mask
        of = pi.distribution, safe_index, turn.streams, infeasible, enough
        decision = safe.draw(*of, safe=inside)
        return decision, state._replace(multiplier=pi.multiplier)

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state after feedback of one choice.

        The beliefs absorb the feedback; so does the estimate of the safe action's
        reward and costs, until it knows them in all trials.
        """
        safe, state = state.own, super().absorb(state, news)
        if not safe.ready:
            safe = safe.after(news.raw, state.beliefs.units())
        safe = safe.check_largest(news.raw, self, state.beliefs.units())
        return state._replace(own=safe)

    @locked
    def recommend(
        self, confidence: float = 0.95, context: None = None
    ) -> Recommendation:
        """Return what to deploy: the best distribution believed feasible.

        Its expected costs keep the limits with probability ``confidence``; the policy's
        set has no contexts. Before any data, return the safe action if the user stated
        its cost.
        """
        confidence = checks.share("confidence", confidence)
        self._read_context(context)
        now = self._catch_up()
        limits, beliefs = self.limits(max(now.t, 1)), now.state.beliefs
        safe, size = now.state.own, (self.size, int(self.actions.size))
        data = beliefs.has_data().all(-1, keepdim=True).to(self.device).expand(size)
        blocks = partial(blocks_in_user_units, beliefs, limits)
        best = partial(safe.recommend_mixture, self.actions, blocks, limits, confidence)
        answer = safe.recommend(data, self._unplayed_turn().mask, best)
        return self.objective.recommended(answer.of(self._user_shape))


def OPB(actions: Actions, **arguments: Any) -> CountOPB | GPOPB:
    """Optimism and pessimism over distributions: limits hold in expectation.

    Args:
        actions: what can be chosen, a :class:`~cbandit.Finite` set or a
            :class:`~cbandit.ProductGrid`.
        arguments: ``reward``, ``costs``, ``safe``, ``delta``, ``alpha`` and more: the
            arguments of :class:`~cbandit.policies.opb.CountOPB` for beliefs of class
            :class:`~cbandit.Counts`, of
            :class:`~cbandit.policies.opb.GPOPB` for :class:`~cbandit.GP`.

    Example:
        >>> import cbandit as cb, torch
        >>> counts = cb.Counts(subgaussian=0.5, range=(0.0, 1.0))
        >>> policy = cb.OPB(
        ...     cb.Finite(torch.arange(4.0).unsqueeze(-1)), reward=counts, costs=counts,
        ...     safe=cb.Safe(index=0, reward=0.1, cost=0.0), thresholds=0.5,
        ...     horizon=1000,
        ... )
        >>> policy.ask().distribution.probability.sum()
        tensor(1., dtype=torch.float64)
    """
    for name in ("reward", "costs"):
        if arguments.get(name) is None:
            raise CBanditError(f"{name} must be a cb.Counts or a cb.GP; got none")
    if isinstance(arguments["reward"], GP):
        return GPOPB(actions, **arguments)
    if not isinstance(arguments["reward"], Counts):
        raise CBanditError(
            "reward must be a cb.Counts or a cb.GP; got "
            f"{checks.kind(arguments['reward'])}"
        )
    return CountOPB(actions, **arguments)


# studies read the abilities of a policy type, so this function has its classes'
OPB.abilities = CountOPB.abilities  # type: ignore[attr-defined]
