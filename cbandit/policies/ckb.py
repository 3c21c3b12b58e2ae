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

With ``dual="resolved"`` (ours) the price is solved for in place of step 3, see
:mod:`cbandit.policies.resolved`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Actions, nearest_to_middle
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.checks import believed_costs
from cbandit.policies.choices import Asked, Decision, News
from cbandit.policies.dual import Dual, Scheduled
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.resolved import (
    Resolved,
    Spending,
    check_resolved,
    drawn,
    pinned,
)
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import Best, estimated
from cbandit.search.simplex.window import resolve_row
from cbandit_kernels import Look


class CKB(GPPolicy):
    """Primal-dual exploration under soft constraints.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`, :class:`~cbandit.TS` or :class:`~cbandit.Rand`;
            ``cb.UCB(1.0)`` unless given.
        step: ``1 / V``, above 0: the multiplier's gain in a round whose estimate is one
            unit above the limit. A good choice is a small part of the limit's price,
            divided by the usual excess. A number, ``(*trials,)`` or one a cost,
            ``(1 or *trials, m)``, as ``cap``, ``slack`` and ``slater``; with
            ``dual="queue"`` also a callable of the round. Left out beside ``slater``,
            ``clip`` and ``horizon``, ``rho / (G sqrt(T))``. Left out without them, 0.5,
            if all beliefs are standardised.
        cap: ``rho``. Left out beside ``slater`` and ``clip``, ``4 B / (slater -
            slack)``; without them 20, if all beliefs are standardised. A multiplier is
            the reward paid for a unit of cost: of spreads where beliefs are
            standardised, else of the units that are told. With a cap below the limit's
            price the policy does not keep the limit.
        slack: added to every estimate in the dual step; with ``0 < slack <= slater /
            2`` the cumulative violation is not only bounded but zero. A callable as
            ``step``.
        clip: ``(B, G)``, bounds of reward and costs.
        horizon: ``T``; asking beyond it is an error.
        slater: ``delta``: some action (or distribution) has every cost ``<= -delta``.
        anytime: no horizon: epochs double in length, and the multiplier is back at 0 in
            each. Data and widths go on: a callable ``beta`` is given the round of the
            run. The epoch of round ``t`` has ``1 << (t.bit_length() - 1)`` rounds.
        forget: with ``anytime``, drop the data at every epoch too. Feedback of earlier
            rounds that is told later enters the new beliefs.
        dual: ``"projected"`` unless given; ``"queue"``: ``Q = [Q + g_t(x_t) +
            slack]_+`` scored as ``f_t - step Q g_t`` (no cap: ``cap`` is for the step
            it implies). ``"resolved"``: the multiplier is the price at which, under
            today's estimates, the expected cost is the limit, corrected by what was
            really spent; the choice is a draw from ``choice.distribution``, the actions
            that are equally good at this price. ``policy.multiplier`` is the price of
            the latest ``ask``. Finite sets and grids only; ``step``, ``cap``,
            ``slater`` and ``anytime`` are errors beside it.
        dual_beta: the width of the costs' estimate in the dual step, a number,
            ``(*trials,)`` or ``(*trials, m)``; 0: the mean; -1: the mean and one
            deviation, pessimistic; ``"score"``: the score's own estimate, as in the
            paper. Left out, -1.5 without ``slater``, if all beliefs are standardised,
            whatever ``step`` and ``cap`` are; else ``"score"``. With
            ``dual="resolved"``, of the costs' estimate in price and score alike, and
            ``"score"`` where left out: a mean or more may rule out for ever what looked
            too dear once.
        price_window: how many of the last contexts the resolved price is solved over.
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
    _dual: Dual
    _resolved: Resolved | None = None

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
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
        **common: Any,
    ) -> None:
        self.settings = stated(self, locals())
        anytime = checks.flag("anytime", anytime)
        if checks.flag("forget", forget) and not anytime:
            raise CBanditError("forget=True goes with anytime=True")
        dual = "projected" if dual is None else dual
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
        # estimates alone move the multiplier, unless a derived class overrides move
        self.hears_costs = type(self).move is not CKB.move
        if dual == "resolved":
            stepped = {"step": step, "cap": cap, "slater": slater, "anytime": anytime}
            check_resolved(self.actions, self.explore, dual_beta, **stepped)
            self._resolve(slack, dual_beta, price_window)
            return
        self._dual = Dual.of(
            dual,
            step,
            cap,
            slack,
            slater,
            dual_beta,
            shaped=self._number,
            bounds=self._bound,
            units=self._beliefs.units(),
            epoch=self.restart or self.horizon,
        )

    def _resolve(self, slack: Scheduled, beta: Any, window: int) -> None:
        """Let the price be solved for from now on."""
        if callable(slack):
            raise CBanditError(
                "step and slack may be callables of the round with dual='queue' only"
            )
        slacks = self._number("slack", checks.nonnegative("slack", slack))
        scored = beta is None or (isinstance(beta, str) and beta == "score")
        width = None if scored else self._number("dual_beta", beta)
        self._resolved = Resolved(slacks, width, checks.whole("price_window", window))
        spending = Spending(torch.zeros_like(slacks))
        self._begin(self._now.state._replace(own=spending))

    def score(self, t: int, phi: Tensor) -> scores.PrimalDual:
        """Return ``f - sum_j phi_j g_j``."""
        if self._resolved is not None:
            return scores.PrimalDual(phi)
        return scores.PrimalDual(self._dual.weight(phi, t, self._epoch(t)))

    def _judged(self, beliefs: Beliefs, look: Look, best: Best, asked: Asked) -> Tensor:
        """Return the estimates that the multiplier moves by, ``(T, 1 + m)``."""
        return self._dual.judged(beliefs, look, best, asked, self._limits, self._ahead)

    # -- a price that is solved for ----------------------------------------------------

    def _coefficient(self, state: GPState, asked: Asked) -> Tensor:
        coefficient = super()._coefficient(state, asked)
        if self._resolved is None:
            return coefficient
        return self._resolved.coefficient(coefficient)

    def _picked(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        resolved = self._resolved
        if resolved is None:
            return super()._picked(state, asked)
        look, beliefs = self._look(state, asked), state.beliefs
        values = torch.cat(
            [
                estimated(look, mean, spread).double()
                for _, mean, spread in self._looks(state, asked)
            ],
            -1,
        )
        f, g = values[:, 0], values[:, 1:]
        if not bool(values.isfinite().all()):
            raise CBanditError(
                "the estimates are not finite numbers at every action; look at "
                "policy.posterior()"
            )
        if asked.mask is not None:
            f = f.masked_fill(~asked.mask, -torch.inf)
        limits = self._limits(asked.t)
        target, unit = resolved.target(state.own, limits, beliefs.units())
        price = resolve_row(f, g, target, unit)
        fresh = self._fresh(beliefs, asked) if beliefs.by_default else None
        if fresh is not None:  # these begin in the middle of the set
            middle = nearest_to_middle(self.actions, asked.actions, asked.mask)
            price = pinned(price, fresh.to(f.device), middle, state.multiplier)
        index, phi = drawn(price.shares, asked.streams), price.price
        at = index.view(-1, 1, 1).expand(-1, values.shape[1], 1)
        estimate = values.gather(-1, at).squeeze(-1)
        decision = Decision(
            index,
            price.shares.infeasible,
            price.shares,
            score=estimate[:, 0] - (phi * estimate[:, 1:]).sum(-1),
            estimate=estimate,
            sure=True,
        )
        return decision, state._replace(multiplier=phi, estimate=estimate)

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state with the news in its beliefs, and in what was spent."""
        before, state = state.own, super().absorb(state, news)
        if self._resolved is None or not news.costs:
            return state
        return state._replace(own=before.after(news, self._limits(news.choice.t)))

    # -- between rounds ----------------------------------------------------------------

    def move(
        self, t: int, phi: Tensor, estimate: Tensor, arrived: Sequence[Tensor]
    ) -> Tensor:
        """Move the multiplier by the estimated costs of the action played."""
        if self._resolved is not None:
            return phi  # it is solved for anew
        return self._dual.moved(phi, estimate[:, 1:], t, self._epoch(t))
