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
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit import multipliers
from cbandit._core import checks, devices
from cbandit._core.randomness import Streams
from cbandit.actions import Actions
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.choices import News
from cbandit.policies.dual import CAP, STEP, Scheduled
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import Best
from cbandit.posterior.units import Units
from cbandit.search.simplex.window import Price
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
class Resolved:
    """The rule by which the price is solved for.

    Args:
        slack: how far the costs are to stay below the target, ``(T, m)``, in units.
        beta: the width of the costs' estimates, ``(T, m)``; ``None``: the score's.
        window: how many contexts the price is solved over.
    """

    slack: Tensor
    beta: Tensor | None
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

    def weight(self, phi: Tensor, t: int, start: int) -> Tensor:
        """Return the costs' weight in the score: the price."""
        return phi

    def judged(self, beliefs: Beliefs, look: Look, best: Best, *rest: object) -> Tensor:
        """Return the score's own estimates, as they do not move the price."""
        return best.estimate

    def moved(self, phi: Tensor, g: Tensor, t: int, start: int) -> Tensor:
        """Return the price unchanged, as the next round solves for it anew."""
        return phi

    def stepped(self, phi: Tensor, g: Tensor) -> Tensor:
        """Return the multiplier after a projected step by estimates ``g (T, m)``."""
        return multipliers.projected(phi, g, STEP, self.slack, CAP, checked=False)

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
        """Return factors ``(T, 1 + m)`` of the spreads, with -``beta`` for costs."""
        if self.beta is None:
            return coefficient
        return torch.cat([coefficient[:, :1], -self.beta.to(coefficient)], -1)


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
