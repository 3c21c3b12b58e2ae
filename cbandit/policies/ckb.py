"""CKB: primal-dual kernelized bandits with soft constraints.

Each round, with multiplier ``phi`` (one a cost), inverse step ``V`` and cap ``rho``:

1. estimates ``f_t``, ``g_t`` from the beliefs (UCB, Thompson, or one random width),
   clipped to ``[-B, B]`` and ``[-G, G]``;
2. ``x_t = argmax f_t(x) - sum_j phi_j g_tj(x)``;
3. ``phi_j = clip(phi_j + (g_tj(x_t) + slack) / V, 0, rho)``: by the estimate, not by
   what is observed;
4. observe reward and costs, update the beliefs.

X. Zhou and B. Ji, On kernelized multi-armed bandits with constraints, 2022. The theory
asks for ``rho >= 4 B / delta`` (``delta`` Slater's constant; less the slack, where
there is one) and ``V = G sqrt(T) / rho``.

With ``dual="resolved"`` (ours) a price is solved for instead of step 3, see
:mod:`cbandit.policies.resolved`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Actions, Contextual, nearest_to_middle
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.checks import believed_costs
from cbandit.policies.choices import Asked, Decision, News
from cbandit.policies.dual import Dual, Scheduled
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import BeliefKeywords, CostBeliefs
from cbandit.policies.resolved import (
    FEW,
    MOST,
    Resolved,
    Spending,
    certain,
    check_resolved,
    drawn,
    pinned,
)
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import Best, estimated
from cbandit.search.simplex.window import resolve, resolve_row
from cbandit_kernels import Look


class CKB(GPPolicy):
    """Primal-dual exploration under soft constraints.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`, :class:`~cbandit.TS` or :class:`~cbandit.Rand`;
            ``cb.UCB(1.0)`` unless given. The paper's rates are for RKHS widths: with
            UCB (Theorem 1), with Rand (Theorem 2), and with TS (Theorem 2) if the best
            distribution is a single action.
        step: ``1 / V``, above 0: the multiplier's gain in a round whose estimate is one
            unit above the limit. A good choice is a small fraction of the price at
            which the limit is kept, divided by the usual excess. A number,
            ``(*trials,)`` or ``(1 or *trials, m)``, one a cost; so are ``cap``,
            ``slack`` and ``slater``. With
            ``dual="queue"`` also a callable of the round. Left out beside ``slater``,
            ``clip`` and ``horizon``, ``rho / (G sqrt(T))``. Left out without them, 0.5,
            if all beliefs are standardised. Gradients reach ``step``, ``slack`` and
            ``cap`` through :meth:`move` and :meth:`score`; what ``ask`` stores has
            none. To learn a step over rounds, unroll :mod:`cbandit.multipliers` and
            :mod:`cbandit.scores`.
        cap: ``rho``. Left out beside ``slater`` and ``clip``, ``4 B / (slater -
            slack)``; without them 20, if all beliefs are standardised. The multiplier
            is the reward given up for a unit of cost, in spreads where beliefs are
            standardised, else in the user's units. If the cap is too low a price for
            the limit, the policy does not keep the limit.
        slack: added to every estimate in the dual step. With ``0 < slack <= slater /
            2`` the cumulative violation is bounded, and it is zero from the ``T`` on
            at which ``slack T`` exceeds the bound without slack. May be a callable,
            as ``step``.
        clip: ``(B, G)``, bounds of reward and costs.
        horizon: ``T``; asking beyond it is an error.
        slater: ``delta``: some action (or distribution) has every cost ``<= -delta``.
        anytime: no horizon: epochs double in length, and the multiplier restarts at 0
            in each. Data and widths go on: a callable ``beta`` is given the round of
            the run. The epoch of round ``t`` has ``1 << (t.bit_length() - 1)`` rounds.
        forget: with ``anytime``, drop the data at every epoch too. Feedback that is
            told later enters the new beliefs, whatever round it is of.
        dual: ``"projected"``, the default except for choices with contexts, where it
            is ``"resolved"``. ``"queue"``: ``Q = [Q + g_t(x_t) + slack]_+`` scored as
            ``f_t - step Q g_t`` (no cap: ``cap`` only serves to derive the step). Its
            theory is for UCB; zero violation is not proven where costs are seen at
            the action played alone (longer form, E.1).
            ``"resolved"``: the multiplier is the price at which, under today's
            estimates, the expected cost equals the limit, corrected by what was really
            spent; with contexts, the price over the last ``price_window`` contexts.
            The choice is a draw from ``choice.distribution``, over actions that are
            equally good at this price. With TS and Rand this is the law given the
            round's draw, not the chance of an action before it, so no propensity.
            ``policy.multiplier`` is the price of the latest ``ask``. Finite choices
            only; ``step``, ``cap``, ``slater`` and ``anytime`` are errors beside it.
        dual_beta: the width of the costs' estimate in the dual step, a number,
            ``(*trials,)`` or ``(*trials, m)``. 0: the mean. -1: the mean plus one
            deviation, pessimistic. ``"score"``: the score's own estimate, as in the
            paper. Left out, it is -1.5 if there is no ``slater`` and all beliefs are
            standardised (whatever ``step`` and ``cap`` are); else ``"score"``. With
            ``dual="resolved"`` it is the width in both price and score. Left out
            there, it is ``"score"``; but 0 in a set with contexts if ``explore`` is
            left out too: in the first 600 requests of five streams lower bounds spent
            2 to 40 % above the limit, means up to 3 %. Without contexts a mean may
            rule out for ever what looked too expensive once.
        price_window: how many of the last contexts the resolved price is solved over;
            fewer where there are many choices, as it looks at 32 768 of them at most.
        common: see below.

    Example:
        >>> import cbandit as cb, gpytorch, torch
        >>> kernel = gpytorch.kernels.RBFKernel().double()
        >>> kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
        >>> gp = cb.GP(kernel, noise=1e-2)
        >>> policy = cb.CKB(
        ...     cb.Finite(torch.linspace(0, 1, 100).double().unsqueeze(-1)),
        ...     reward=gp, costs=gp, explore=cb.UCB(2.0),
        ...     clip=(1.0, 1.0), slater=0.5, horizon=1000,
        ... )
        >>> choice = policy.ask()
        >>> policy.tell(choice, reward=0.3, cost=-0.1)
    """

    hallucinates = True
    _dual: Dual | Resolved

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs,
        explore: Explore | None = None,
        step: Scheduled | None = None,
        cap: ArrayLike | None = None,
        slack: Scheduled = 0.0,
        clip: Any = None,
        horizon: int | None = None,
        slater: ArrayLike | None = None,
        anytime: bool = False,
        forget: bool = False,
        dual: str | None = None,
        dual_beta: ArrayLike | None = None,
        price_window: int = 500,
        **common: Unpack[BeliefKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        anytime = checks.flag("anytime", anytime)
        if checks.flag("forget", forget) and not anytime:
            raise CBanditError("forget=True goes with anytime=True")
        if dual is None:
            choices = isinstance(actions, Contextual) and actions.finite
            dual = "resolved" if choices else "projected"
        checks.one_of("dual", dual, "projected", "queue", "resolved")
        if dual == "resolved":
            self.splits = False  # the price is solved over the whole set
        super().__init__(
            actions,
            reward=reward,
            costs=believed_costs(costs),
            explore=explore,
            clip=clip,
            horizon=horizon,
            start=0.0,
            restart="doubling" if anytime else None,
            forget=forget,
            **common,
        )
        self.name = f"CKB-{self.explore.name}"
        # the multiplier moves by estimates alone, unless a derived class overrides move
        self.hears_costs = type(self).move is not CKB.move
        if dual == "resolved":
            stepped = {"step": step, "cap": cap, "slater": slater, "anytime": anytime}
            check_resolved(self.actions, self.explore, dual_beta, **stepped)
            if dual_beta is None:
                # a window's worth of optimism is more than one round can correct
                mean = explore is None and isinstance(self.actions, Contextual)
                dual_beta = 0.0 if mean else "score"
            self._dual = Resolved.of(
                slack, dual_beta, price_window, shaped=self._number
            )
            spending = Spending(torch.zeros_like(self._dual.slack))
            self.begin(self._now.state._replace(own=spending))
            return
        self._dual = Dual.of(
            dual,
            step,
            cap,
            slack,
            slater,
            dual_beta,
            shaped=self._parameter,
            bounds=self._bound,
            units=self._beliefs.units(),
            epoch=self.restart or self.horizon,
        )
        self.no_limit = self._dual.no_limit

    def score(self, t: int, phi: Tensor) -> scores.PrimalDual:
        """Return ``f - sum_j phi_j g_j``."""
        return scores.PrimalDual(self._dual.weight(phi, t, self._epoch(t)))

    def _judged(self, beliefs: Beliefs, look: Look, best: Best, asked: Asked) -> Tensor:
        """Return the estimates ``(T, 1 + m)`` that move the multiplier."""
        return self._dual.judged(beliefs, look, best, asked)

    # -- a price that is solved for ----------------------------------------------------

    def _coefficient(self, state: GPState, asked: Asked) -> Tensor:
        return self._dual.coefficient(super()._coefficient(state, asked))

    def _picked(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        resolved = self._dual
        if isinstance(resolved, Dual):
            return super()._picked(state, asked)
        spending, shown = state.own, asked.shown
        if shown is not None:
            spending = spending.shown(shown.values, resolved.window)
            if self.standardized and spending.contexts.shape[1] < resolved.few:
                decision, state = super()._picked(state, asked)
                decision.distribution = certain(decision.index, self.m)
                return decision, state._replace(own=spending._replace(stepped=True))
        look, beliefs = self._look(state, asked), state.beliefs
        values, numbers = self._window(state._replace(own=spending), asked, look)
        # a finite sum is the faster test; it may also overflow, so look closer then
        if not (values.sum().isfinite() or values.isfinite().all()):
            raise CBanditError(
                "the estimates are not finite numbers at every action; look at "
                "policy.posterior()"
            )
        f, g = self._allowed(values[:, 0], asked, numbers), values[:, 1:]
        row = values[:, :, -1]
        limits = asked.limits
        target, unit = resolved.target(
            spending, limits, beliefs.units(), asked.t, self.senses.budgets
        )
        if shown is None:
            price = resolve_row(f[:, 0], g[:, :, 0], target, unit)
        else:
            price = resolve(f, g, target, unit, spending.near)
        fresh = self._fresh(beliefs, asked) if beliefs.by_default else None
        if fresh is not None and shown is None:  # new trials begin in the middle
            middle = nearest_to_middle(self.actions, asked.actions, asked.mask)
            price = pinned(price, fresh.to(f.device), middle, state.multiplier)
        index, phi, pi = drawn(price.shares, asked.streams), price.price, price.shares
        at = index.view(-1, 1, 1).expand(-1, values.shape[1], 1)
        estimate = row.gather(-1, at).squeeze(-1)
        if numbers is not None:
            index = numbers.gather(1, index.unsqueeze(-1)).squeeze(-1)
            pi = replace(pi, index=numbers.gather(1, pi.index))
        decision = Decision(
            index,
            pi.infeasible,
            pi,
            score=estimate[:, 0] - (phi * estimate[:, 1:]).sum(-1),
            estimate=estimate,
            sure=True,
        )
        spending = spending._replace(near=price.near, stepped=False)
        return decision, state._replace(multiplier=phi, estimate=estimate, own=spending)

    def _allowed(self, f: Tensor, asked: Asked, numbers: Tensor | None) -> Tensor:
        """Return rewards ``(T, n, K)``, minus infinity where a choice is not allowed.

        Retired choices are allowed in no context. What this round bars is barred in its
        own context, the last one.
        """
        offered = None if asked.shown is None else self._offered(None)[1]
        if offered is not None:
            f = f.masked_fill(~offered.to(f.device).unsqueeze(1), -torch.inf)
        if asked.mask is None:
            return f
        mask = asked.mask.expand(len(f), -1)
        mask = mask if numbers is None else mask.gather(1, numbers)
        last = f[:, -1:].masked_fill(~mask[:, None], -torch.inf)
        return torch.cat([f[:, :-1], last], 1)

    def _window(
        self, state: GPState, asked: Asked, look: Look
    ) -> tuple[Tensor, Tensor | None]:
        """Return estimates in the last contexts, the current one last.

        The first value is ``(T, 1 + m, n, K)``; without contexts ``n`` is 1. With joint
        draws the earlier contexts are judged by the means. The second value is the
        choices' numbers ``(T, K)`` in the round's set, or ``None`` if they are the
        same.
        """
        shown, beliefs = asked.shown, state.beliefs
        if shown is None or self.explore.samples:
            blocks = self._looks(state, asked)
            parts = [estimated(look, mean, spread) for _, mean, spread in blocks]
            row = torch.cat(parts, -1).double()
            if shown is None:
                return row.unsqueeze(2), None
        space, contexts = shown.space, state.own.contexts
        count = max(FEW, MOST // int(space.size))
        last = contexts[:, -count:]
        mean, spread = beliefs.in_contexts(space, last, asked.pending)
        if self.explore.samples:
            spread = torch.zeros_like(spread)
        values = estimated(look, mean.flatten(2), spread.flatten(2)).double()
        values = values.unflatten(-1, mean.shape[2:])  # T x (1 + m) x n x K
        numbers = None
        if space.levelled:
            numbers = space.domain.index(space.candidates(last[:, -1]))
        if self.explore.samples:
            if numbers is not None:
                at = numbers.unsqueeze(1).expand(-1, row.shape[1], -1)
                row = row.gather(-1, at)
            values = torch.cat([values[:, :, :-1], row.unsqueeze(2)], 2)
        return values, numbers

    def _designed(self, asked: Asked) -> Decision:
        decision = super()._designed(asked)
        if isinstance(self._dual, Resolved):
            decision.distribution = certain(decision.index, self.m)
        return decision

    def _next(
        self,
        state: GPState,
        t: int,
        arrived: Sequence[Tensor],
        restarted: Tensor | None,
    ) -> Tensor:
        phi, resolved = super()._next(state, t, arrived, restarted), self._dual
        if isinstance(resolved, Dual) or not state.own.stepped:
            return phi
        if state.moved is not None or state.estimate is None:
            return phi
        return resolved.stepped(phi, state.estimate[:, 1:])

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state with the news in its beliefs and in the costs spent."""
        before, state = state.own, super().absorb(state, news)
        if isinstance(self._dual, Dual) or not news.costs:
            return state
        return state._replace(own=before.after(news.raw))

    # -- between rounds ----------------------------------------------------------------

    def move(
        self, t: int, phi: Tensor, estimate: Tensor, arrived: Sequence[Tensor]
    ) -> Tensor:
        """Move the multiplier by the estimated costs of the action played."""
        return self._dual.moved(phi, estimate[:, 1:], t, self._epoch(t))
