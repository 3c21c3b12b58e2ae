"""The resolved price: CKB's multiplier is solved for instead of stepped.

Each round the price is the dual solution of the programme

    max  E f_t(x)   s.t.  E c_t(x) <= target

over distributions of actions, under today's estimates. The action is a draw from its
solution, which has at most ``m + 1`` actions, equally good at that price. The target is
the limit, corrected by what was really spent, which makes up for errors of estimates:
an excess is made up for within a hundredth of the rounds so far, by at most a tenth of
the limit a round. A target that followed every excess at once would be as noisy as the
costs, and regret would grow in proportion to the rounds. There is no step, no cap and
no Slater constant.

With contexts, the programme is over the choices in the last contexts, and the draw is
from its solution in the current one. Until there are ten contexts, or as many as the
window if that is shorter, the multiplier of standardised beliefs makes projected steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit import multipliers, scores
from cbandit._core import checks, devices
from cbandit._core.randomness import Streams
from cbandit.actions import Actions, nearest_to_middle
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.choices import News
from cbandit.policies.dual import CAP, STEP, Dual, Pick, Scheduled
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import estimated
from cbandit.posterior.units import Units
from cbandit.search.simplex.window import Price, resolve, resolve_row
from cbandit_kernels import Look

FEW = 10  # contexts; with fewer a price would rest on too little
MOST = 2**15  # how many choices in past contexts a round looks at
CORRECTED = 0.1  # the most by which the target differs from the limit, as a share of it
REPAID = 100  # until this round an excess is made up for at once, later over t / 100


class Spending(NamedTuple):
    """The costs told so far less the limits of their rounds, and the contexts shown.

    Args:
        excess: the sum of costs less limits, ``(T, m)``, in the user's units.
        contexts: the last ones, ``(T, W, k)``; ``None``: there are none, or none was
            shown yet.
        near: the prices at which the next search begins, see
            :class:`~cbandit.search.simplex.window.Price`.
        stepped: whether the multiplier makes a projected step after this round.
    """

    excess: Tensor
    contexts: Tensor | None = None
    near: Tensor | None = None
    stepped: bool = False

    def shown(self, values: Tensor, window: int) -> Spending:
        """Return this with a context ``(T, k)`` added, and the last ``window`` kept."""
        latest = values.unsqueeze(1)
        if self.contexts is not None:
            latest = torch.cat([self.contexts, latest], 1)[:, -window:]
        return self._replace(contexts=latest)

    def after(self, news: News) -> Spending:
        """Return this after news of a round."""
        excess = self.excess
        for costs in news.costs:
            values, came = costs.wide(excess.shape[-1])
            excess = excess + torch.where(came, values - news.limits, 0.0)
        return self._replace(excess=excess)


@dataclass(frozen=True)
class Resolved(Dual):
    """The multiplier is the price at which estimated costs equal the limits.

    Args:
        slack: how far the costs are to stay below the target, ``(T, m)``, in units.
        width: of the costs' estimates, ``(T, m)``; ``None``: the score's.
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
        shaped: Callable[[str, Any], Tensor],
    ) -> Resolved:
        """Return the rule with a user's slack, width and window.

        Args:
            slack: how far the costs are to stay below the target.
            beta: the width of the costs' estimates; ``"score"``: the score's.
            window: how many contexts the price is solved over.
            shaped: turns a number into ``(T, m)``.
        """
        if callable(slack):
            raise CBanditError(
                "step and slack may be callables of the round with dual='queue' only"
            )
        slacks = shaped("slack", checks.nonnegative("slack", slack))
        scored = isinstance(beta, str) and beta == "score"
        width = None if scored else shaped("dual_beta", beta)
        return cls(slacks, width, checks.whole("price_window", window))

    @property
    def few(self) -> int:
        """The number of contexts from which on the price is solved for."""
        return min(FEW, self.window)

    def score(self, t: int, phi: Tensor, start: int) -> scores.PrimalDual:
        """Return ``f - sum_j phi_j g_j``, with the price ``phi``."""
        return scores.PrimalDual(phi)

    def move(self, t: int, phi: Tensor, g: Tensor, start: int) -> Tensor:
        """Return the price unchanged, as the next round solves for it anew."""
        return phi

    def start(self) -> Spending:
        """Return that nothing was spent yet."""
        return Spending(torch.zeros_like(self.slack))

    def hear(self, own: Spending, news: News) -> Spending:
        """Return the costs spent after news of a round."""
        return own.after(news)

    def next_multiplier(self, phi: Tensor, state: GPState) -> Tensor:
        """Return ``phi`` after a projected step, where the price was not solved for."""
        if not state.own.stepped or state.moved is not None or state.estimate is None:
            return phi
        g = state.estimate[:, 1:]
        return multipliers.projected(phi, g, STEP, self.slack, CAP, checked=False)

    def complete(self, decision: Decision) -> Decision:
        """Give a decision made without a price its action as distribution."""
        if decision.distribution is None:
            decision.distribution = certain(decision.index, self.slack.shape[-1])
        return decision

    def pick(
        self, policy: GPPolicy, greatest: Pick, state: GPState, turn: Turn
    ) -> tuple[Decision, GPState]:
        """Return an action drawn from the programme's solution, and the price."""
        spending, shown = state.own, turn.shown
        if shown is not None:
            spending = spending.shown(shown.values, self.window)
            if policy.standardized and spending.contexts.shape[1] < self.few:
                decision, state = greatest(state, turn)
                spending = spending._replace(stepped=True)
                return decision, state._replace(own=spending)
        look, beliefs = policy._make_look(state, turn), state.beliefs
        blocks, samples = policy._moments(state, turn), policy.explore.samples
        values, numbers = _window(
            beliefs, spending.contexts, turn, look, blocks, samples
        )
        # a finite sum is the faster test; it may also overflow, so look closer then
        if not (values.sum().isfinite() or values.isfinite().all()):
            raise CBanditError(
                "the estimates are not finite numbers at every action; look at "
                "policy.posterior()"
            )
        f, g = _allowed(values[:, 0], turn, numbers), values[:, 1:]
        row, budgets = values[:, :, -1], policy.objective.budgets
        target, unit = self.target(
            spending, turn.limits, beliefs.units(), turn.t, budgets
        )
        if shown is None:
            price = resolve_row(f[:, 0], g[:, :, 0], target, unit)
        else:
            price = resolve(f, g, target, unit, spending.near)
        fresh = (
            policy._trials_without_data(beliefs, turn) if beliefs.by_default else None
        )
        if fresh is not None and shown is None:  # new trials begin in the middle
            middle = nearest_to_middle(policy.actions, turn.actions, turn.mask)
            price = pinned(price, fresh.to(f.device), middle, state.multiplier)
        index, phi, pi = drawn(price.shares, turn.streams), price.price, price.shares
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

    def target(
        self,
        spending: Spending,
        limits: Tensor,
        units: Units | None,
        t: int,
        budgets: Iterable[int],
    ) -> tuple[Tensor, Tensor]:
        """Return the target less the limit, and a unit for excesses, both ``(T, m)``.

        Both are in units of the beliefs. The unit for excesses is the limit, or the
        cost's unit if the limit is 0.

        Args:
            spending: the costs told before.
            limits: the round's limits, in the user's units.
            units: the units of the beliefs.
            t: the round, from 1.
            budgets: the numbers of the costs that have a budget, whose limits make up
                for what was spent by themselves.
        """
        size = torch.ones_like(limits)
        if units is not None:
            size = units.size[:, 1:].to(limits)
        whole = torch.where(limits == 0, size, limits.abs())
        most = CORRECTED * whole
        most[:, list(budgets)] = 0.0
        repaid = spending.excess * min(1.0, REPAID / t)
        correction = torch.maximum(-most, torch.minimum(repaid, most))
        return -correction / size - self.slack, whole / size

    def coefficient(self, coefficient: Tensor) -> Tensor:
        """Return factors ``(T, 1 + m)`` of spreads; -``width`` for costs, if given."""
        if self.width is None:
            return coefficient
        return torch.cat([coefficient[:, :1], -self.width.to(coefficient)], -1)


def _window(
    beliefs: Beliefs,
    contexts: Tensor | None,
    turn: Turn,
    look: Look,
    blocks: Iterable[tuple[int, Tensor, Tensor]],
    samples: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return estimates in the last contexts, the current one last.

    The first value is ``(T, 1 + m, n, K)``; without contexts ``n`` is 1. With joint
    draws the earlier contexts are judged by the means. The second value is the choices'
    numbers ``(T, K)`` in the round's set, or ``None`` if they are the same.

    Args:
        beliefs: about reward and costs.
        contexts: the last ones, ``(T, W, k)``; ``None``: there are none.
        turn: the round.
        look: how estimates are made.
        blocks: means and spreads over the round's set, block by block, if needed.
        samples: whether spreads are joint draws.
    """
    shown = turn.shown
    if shown is None or contexts is None or samples:
        parts = [estimated(look, mean, spread) for _, mean, spread in blocks]
        row = torch.cat(parts, -1).double()
        if shown is None or contexts is None:
            return row.unsqueeze(2), None
    space = shown.space
    last = contexts[:, -max(FEW, MOST // int(space.size)) :]
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


def _allowed(f: Tensor, turn: Turn, numbers: Tensor | None) -> Tensor:
    """Return rewards ``(T, n, K)``, minus infinity for choices that may not be made.

    The ``n`` contexts end with the current one. Choices outside ``turn.offered`` are
    excluded in all contexts, those outside ``turn.mask`` in the current one.

    Args:
        f: the rewards.
        turn: the round.
        numbers: the choices' numbers in the round's set, ``(T, K)``; ``None``: they are
            the same.
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
    actions: Actions, explore: Explore, beta: Any, **stepped: object
) -> None:
    """Raise an error for arguments that do not go with ``dual="resolved"``.

    Args:
        actions: what can be chosen.
        explore: how estimates come from beliefs.
        beta: the width of the costs' estimates, as the user gives it.
        stepped: arguments that only a stepped multiplier uses.
    """
    for name, value in stepped.items():
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


def drawn(shares: Distribution, streams: Streams) -> Tensor:
    """Return an action for each trial, ``(T,)``, drawn from its distribution."""
    share = shares.probability
    last = (share > 0).sum(-1) - 1  # rounding must not lead into the zero padding
    uniform = devices.put(streams.uniform().reshape(-1, 1), share.device)
    place = torch.minimum((uniform >= share.cumsum(-1)).sum(-1), last)
    return shares.index.gather(-1, place.unsqueeze(-1)).squeeze(-1)


def certain(index: Tensor | None, m: int) -> Distribution | None:
    """Return the distribution with all its mass on an action ``(T,)``."""
    if index is None:
        return None
    first = torch.arange(m + 1, device=index.device) == 0
    return Distribution(
        index.unsqueeze(-1) * first, first.double().expand(len(index), -1)
    )


def pinned(price: Price, where: Tensor, index: Tensor, phi: Tensor) -> Price:
    """Return ``price`` with trials ``where (T,)`` fixed to the actions ``index (T,)``.

    Their price is ``phi (T, m)``.
    """
    column, pi = where.unsqueeze(-1), price.shares
    first = torch.arange(pi.index.shape[-1], device=pi.index.device) == 0
    shares = Distribution(
        torch.where(column, index.unsqueeze(-1) * first, pi.index),
        torch.where(column, first.to(pi.probability), pi.probability),
        None if pi.infeasible is None else pi.infeasible & ~where,
    )
    return Price(torch.where(column, phi, price.price), shares, price.near)
