"""CKB's dual as a resolved price: the multiplier is solved for anew in each round.

Each round the price is the dual solution of the programme::

    max  E f_t(x)   s.t.  E c_t(x) <= target

over distributions of actions, under this round's estimates. The action is a draw from
its solution, which has at most ``m + 1`` actions, equally good at that price. The
target is the limit, corrected by the costs told so far, which makes up for errors of
estimates: an excess is repaid over a hundredth of the rounds so far, by at most a
tenth of the limit a round. A target that followed every excess at once would be as
noisy as the costs, and regret would grow in proportion to the rounds. There is no step,
no cap and no Slater constant.

With contexts, the programme is over the choices in the last contexts, the window, and
the draw is from its solution in the current one. In the first nine contexts (fewer if
the window is shorter) the multiplier of standardised beliefs makes projected steps.

In shapes, ``T`` counts trials, ``m`` costs, ``n`` the contexts in the window, ``K``
choices, and ``k`` the numbers in a context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit import multipliers, scores
from cbandit._core import checks
from cbandit.actions import Actions, nearest_to_middle
from cbandit.choice import Distribution, draw_actions
from cbandit.errors import CBanditError
from cbandit.explore import UCB, Explore
from cbandit.policies.choices import News
from cbandit.policies.dual import DEFAULT_CAP, DEFAULT_STEP, Dual, PickRule, Scheduled
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.round_search import trials_without_data
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import estimated
from cbandit.posterior.units import Units
from cbandit.search.simplex.window import Price, resolve, resolve_row
from cbandit_kernels import Look

MIN_CONTEXTS = 10  # the fewest contexts that a price is solved over
MAX_PAST_CHOICES = 2**15  # choices in past contexts that a round looks at
MAX_CORRECTION = 0.1  # of the limit; the target differs from it by no more
REPAYMENT_ROUNDS = 100  # up to here an excess is repaid at once, later over t / 100


class ResolvedState(NamedTuple):
    """The state of the rule: the excess of costs so far, and the last contexts.

    Args:
        excess: the sum of the costs told less their rounds' limits, ``(T, m)``, in the
            user's units.
        contexts: the last contexts, ``(T, n, k)``; ``None``: there was none yet.
        start_prices: the prices at which the next search begins,
            :attr:`cbandit.search.simplex.window.Price.near`; ``None``: no search yet.
        makes_step: whether the multiplier makes a projected step after this round.
    """

    excess: Tensor
    contexts: Tensor | None = None
    start_prices: Tensor | None = None
    makes_step: bool = False

    def with_context(self, values: Tensor, window: int) -> ResolvedState:
        """Return the state with the context ``values (T, k)``, and the last before it.

        It keeps ``window`` contexts at most.
        """
        latest = values.unsqueeze(1)
        if self.contexts is not None:
            latest = torch.cat([self.contexts, latest], 1)[:, -window:]
        return self._replace(contexts=latest)

    def after(self, news: News) -> ResolvedState:
        """Return the state after the feedback ``news`` of one round."""
        excess = self.excess
        for costs in news.costs:
            values, came = costs.in_columns(excess.shape[-1])
            excess = excess + torch.where(came, values - news.limits, 0.0)
        return self._replace(excess=excess)


@dataclass(frozen=True)
class Resolved(Dual):
    """The rule: the multiplier is the price at which expected costs equal the target.

    Args:
        slack: distance of costs below the target, ``(T, m)``, in the beliefs' units.
        width: the width of the costs' estimates, ``(T, m)``; ``None``: the policy's.
        window: how many contexts the price is solved over.
    """

    slack: Tensor
    width: Tensor | None
    window: int

    @classmethod
    def of(
        cls,
        slack: Scheduled,
        beta: Any,
        window: int,
        *,
        reshape: Callable[[str, Any], Tensor],
    ) -> Resolved:
        """Return the rule with the user's slack, width and window.

        Args:
            slack: the distance of costs below the target.
            beta: the width of the costs' estimates; ``"score"``: the policy's.
            window: how many contexts the price is solved over.
            reshape: turns a number into ``(T, m)``.
        """
        if callable(slack):
            raise CBanditError(
                "step and slack may be callables of the round with dual='queue' only"
            )
        slacks = reshape("slack", checks.nonnegative("slack", slack))
        scored = isinstance(beta, str) and beta == "score"
        width = None if scored else reshape("dual_beta", beta)
        return cls(slacks, width, checks.whole("price_window", window))

    @property
    def min_contexts(self) -> int:
        """The fewest contexts over which the price is solved for."""
        return min(MIN_CONTEXTS, self.window)

    def score(self, t: int, phi: Tensor, first_round: int) -> scores.PrimalDual:
        """Return the score ``f - sum_j phi_j g_j``, with the price ``phi``."""
        return scores.PrimalDual(phi)

    def move(self, t: int, phi: Tensor, g: Tensor, first_round: int) -> Tensor:
        """Return the price ``phi`` unchanged: the next round solves for it anew."""
        return phi

    def start(self) -> ResolvedState:
        """Return the rule's state before the first round."""
        return ResolvedState(torch.zeros_like(self.slack))

    def hear(self, rule_state: ResolvedState, news: News) -> ResolvedState:
        """Return the rule's state after the feedback of one round."""
        return rule_state.after(news)

    def next_multiplier(self, phi: Tensor, state: GPState) -> Tensor:
        """Return the multiplier ``phi``, after a projected step if one is due."""
        g, makes_step = state.estimate, state.own.makes_step
        if not makes_step or state.moved is not None or g is None:
            return phi
        step, cap = DEFAULT_STEP, DEFAULT_CAP
        return multipliers.projected(
            phi, g[:, 1:], step, self.slack, cap, checked=False
        )

    def complete(self, decision: Decision) -> Decision:
        """Return the decision; add a missing distribution, all of it on the action."""
        if decision.distribution is None:
            decision.distribution = point_mass(decision.index, self.slack.shape[-1])
        return decision

    def pick(
        self, policy: GPPolicy, pick_greatest: PickRule, state: GPState, turn: Turn
    ) -> tuple[Decision, GPState]:
        """Return a draw from the programme's solution, and the state with its price."""
        rule_state, shown = state.own, turn.shown
        if shown is not None:
            rule_state = rule_state.with_context(shown.values, self.window)
            if policy.standardized and rule_state.contexts.shape[1] < self.min_contexts:
                decision, state = pick_greatest(state, turn)
                rule_state = rule_state._replace(makes_step=True)
                return decision, state._replace(own=rule_state)
        look, beliefs = policy._make_look(state, turn), state.beliefs
        blocks, samples = policy._moments(state, turn), policy.explore.samples
        values, numbers = _estimates_in_contexts(
            beliefs, rule_state.contexts, turn, look, blocks, samples
        )
        # the sum is the faster test; as it may overflow, then test each value
        if not (values.sum().isfinite() or values.isfinite().all()):
            raise CBanditError(
                "the estimates are not finite numbers at every action; look at "
                "policy.posterior()"
            )
        f, g = _mask_rewards(values[:, 0], turn, numbers), values[:, 1:]
        row, budgets = values[:, :, -1], policy.objective.budgets
        target, unit = self.target(
            rule_state, turn.limits, beliefs.units(), turn.t, budgets
        )
        if shown is None:
            price = resolve_row(f[:, 0], g[:, :, 0], target, unit)
        else:
            price = resolve(f, g, target, unit, rule_state.start_prices)
        new_trials = None
        if beliefs.by_default:
            new_trials = trials_without_data(beliefs, turn)
        if (
            new_trials is not None and shown is None
        ):  # they begin in the middle of the set
            middle = nearest_to_middle(policy.actions, turn.actions, turn.mask)
            price = fix_trials(price, new_trials.to(f.device), middle, state.multiplier)
        phi, pi = price.price, price.shares
        index = draw_actions(pi, turn.streams)
        at = index.view(-1, 1, 1).expand(-1, values.shape[1], 1)
        estimate = row.gather(-1, at).squeeze(-1)
        if numbers is not None:
            index = numbers.gather(1, index.unsqueeze(-1)).squeeze(-1)
            pi = replace(pi, index=numbers.gather(1, pi.index))
        chance = None
        if isinstance(policy.explore, UCB):  # else it is the law given a draw
            chance = pi.chance(index)
            if new_trials is not None and shown is None:
                chance = chance.masked_fill(new_trials.to(chance.device), torch.nan)
        decision = Decision(
            index,
            pi.infeasible,
            pi,
            score=estimate[:, 0] - (phi * estimate[:, 1:]).sum(-1),
            estimate=estimate,
            sure=True,
            chance=chance,
        )
        rule_state = rule_state._replace(start_prices=price.near, makes_step=False)
        return decision, state._replace(
            multiplier=phi, estimate=estimate, own=rule_state
        )

    def target(
        self,
        rule_state: ResolvedState,
        limits: Tensor,
        units: Units | None,
        t: int,
        budgets: Iterable[int],
    ) -> tuple[Tensor, Tensor]:
        """Return the target less the limit, and the unit of excesses, both ``(T, m)``.

        Both are in units of the beliefs. The unit of excesses is the limit, or the
        cost's unit if the limit is 0.

        Args:
            rule_state: the rule's state, with the excess so far.
            limits: the round's limits, in the user's units.
            units: the units of the beliefs; ``None``: the user's units.
            t: the round, from 1.
            budgets: numbers of the costs with a budget: their limits make up for an
                excess already, so that their targets are not corrected.
        """
        size = torch.ones_like(limits)
        if units is not None:
            size = units.size[:, 1:].to(limits)
        excess_unit = torch.where(limits == 0, size, limits.abs())
        largest = MAX_CORRECTION * excess_unit
        for j in budgets:
            largest[:, j] = 0.0
        repayment = rule_state.excess * min(1.0, REPAYMENT_ROUNDS / t)
        correction = torch.maximum(-largest, torch.minimum(repayment, largest))
        return -correction / size - self.slack, excess_unit / size

    def coefficient(self, coefficient: Tensor) -> Tensor:
        """Return the factors ``(T, 1 + m)`` of deviations in the round's estimates.

        The costs' are ``-width`` if that is given; else the policy's, ``coefficient``.
        """
        if self.width is None:
            return coefficient
        return torch.cat([coefficient[:, :1], -self.width.to(coefficient)], -1)


def _estimates_in_contexts(
    beliefs: Beliefs,
    contexts: Tensor | None,
    turn: Turn,
    look: Look,
    blocks: Iterable[tuple[int, Tensor, Tensor]],
    samples: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return estimates of reward and costs in the last contexts, the current one last.

    The first value is ``(T, 1 + m, n, K)``; without contexts ``n`` is 1. With joint
    draws, estimates in earlier contexts are means. The second value holds the choices'
    numbers ``(T, K)`` in the round's set; ``None``: choice ``i`` has number ``i``.

    Args:
        beliefs: the beliefs about reward and costs.
        contexts: the last contexts, ``(T, n, k)``; ``None``: there are none.
        turn: the round.
        look: how estimates are made from means and deviations.
        blocks: means and deviations over the round's set, block by block.
        samples: whether ``blocks`` hold joint draws in place of deviations.
    """
    shown = turn.shown
    if shown is None or contexts is None or samples:
        parts = [estimated(look, mean, spread) for _, mean, spread in blocks]
        row = torch.cat(parts, -1).double()
        if shown is None or contexts is None:
            return row.unsqueeze(2), None
    space = shown.space
    last = contexts[:, -max(MIN_CONTEXTS, MAX_PAST_CHOICES // int(space.size)) :]
    mean, spread = beliefs.in_contexts(space, last, turn.pending)
    if samples:
        spread = torch.zeros_like(spread)
    values = estimated(look, mean.flatten(2), spread.flatten(2)).double()
    values = values.unflatten(-1, mean.shape[2:])  # T x (1 + m) x n x K
    numbers = None
    if space.levelled:
        numbers = space.domain.index(space.candidates(last[:, -1]))
    if samples:
        if numbers is not None:
            at = numbers.unsqueeze(1).expand(-1, row.shape[1], -1)
            row = row.gather(-1, at)
        values = torch.cat([values[:, :, :-1], row.unsqueeze(2)], 2)
    return values, numbers


def _mask_rewards(f: Tensor, turn: Turn, numbers: Tensor | None) -> Tensor:
    """Return the rewards, minus infinity for choices that are not allowed.

    Choices outside ``turn.offered`` are not allowed in any context, those outside
    ``turn.mask`` not in the current one, the last.

    Args:
        f: the rewards, ``(T, n, K)``.
        turn: the round.
        numbers: the choices' numbers in the round's set, ``(T, K)``; ``None``: choice
            ``i`` has number ``i``.
    """
    if turn.offered is not None:
        f = f.masked_fill(~turn.offered.to(f.device).unsqueeze(1), -torch.inf)
    if turn.mask is None:
        return f
    mask = turn.mask.expand(len(f), -1)
    mask = mask if numbers is None else mask.gather(1, numbers)
    last = f[:, -1:].masked_fill(~mask[:, None], -torch.inf)
    return torch.cat([f[:, :-1], last], 1)


def check_resolved(
    actions: Actions, explore: Explore, beta: Any, **step_settings: object
) -> None:
    """Raise an error for arguments that do not go with ``dual="resolved"``.

    Args:
        actions: what can be chosen.
        explore: how the policy explores.
        beta: the width of the costs' estimates, as the user gives it.
        step_settings: the arguments that only a multiplier that makes steps uses.
    """
    for name, value in step_settings.items():
        if value is not None and value is not False:
            raise CBanditError(
                f"{name} goes with dual='projected': dual='resolved' solves for the "
                f"price and makes no steps; got {name}={value!r}"
            )
    if not actions.finite:
        raise CBanditError(
            "dual='resolved' solves over the actions of a finite set or grid; on "
            f"{actions!r} give dual='projected'"
        )
    numbers = beta is not None and not isinstance(beta, str)
    if numbers and explore.samples and bool(checks.tensor("dual_beta", beta).any()):
        raise CBanditError(
            "dual_beta with dual='resolved' and explore=cb.TS(...) must be 'score', "
            f"the draw itself, or 0, the mean; got {beta!r}"
        )


def point_mass(index: Tensor | None, m: int) -> Distribution | None:
    """Return distributions of ``m + 1`` places with all mass on ``index (T,)``."""
    if index is None:
        return None
    first = torch.arange(m + 1, device=index.device) == 0
    return Distribution(
        index.unsqueeze(-1) * first, first.double().expand(len(index), -1)
    )


def fix_trials(price: Price, where: Tensor, index: Tensor, phi: Tensor) -> Price:
    """Return ``price`` with some trials fixed to one action each.

    Args:
        price: the price and distribution of each trial.
        where: the trials to fix, ``(T,)`` bool.
        index: the actions to fix them to, ``(T,)``.
        phi: the price in these trials, ``(T, m)``.
    """
    column, pi = where.unsqueeze(-1), price.shares
    first = torch.arange(pi.index.shape[-1], device=pi.index.device) == 0
    shares = Distribution(
        torch.where(column, index.unsqueeze(-1) * first, pi.index),
        torch.where(column, first.to(pi.probability), pi.probability),
        None if pi.infeasible is None else pi.infeasible & ~where,
    )
    return Price(torch.where(column, phi, price.price), shares, price.near)
