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
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.checks import believed_costs
from cbandit.policies.choices import Asked
from cbandit.policies.dual import Dual, Scheduled
from cbandit.policies.gp import GPPolicy
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import Best
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
        dual: ``"projected"``, or ``"queue"``: ``Q = [Q + g_t(x_t) + slack]_+`` scored
            as ``f_t - step Q g_t`` (no cap: ``cap`` is for the step it implies).
        dual_beta: the width of the costs' estimate in the dual step, a number,
            ``(*trials,)`` or ``(*trials, m)``; 0: the mean; -1: the mean and one
            deviation, pessimistic; ``"score"``: the score's own estimate, as in the
            paper. Left out, -1.5 without ``slater``, if all beliefs are standardised,
            whatever ``step`` and ``cap`` are; else ``"score"``.
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
        dual: str = "projected",
        dual_beta: ArrayLike | None = None,
        **common: Any,
    ) -> None:
        self.settings = stated(self, locals())
        anytime = checks.flag("anytime", anytime)
        if checks.flag("forget", forget) and not anytime:
            raise CBanditError("forget=True goes with anytime=True")
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

    def score(self, t: int, phi: Tensor) -> scores.PrimalDual:
        """Return ``f - sum_j phi_j g_j``."""
        return scores.PrimalDual(self._dual.weight(phi, t, self._epoch(t)))

    def _judged(self, beliefs: Beliefs, look: Look, best: Best, asked: Asked) -> Tensor:
        """Return the estimates that the multiplier moves by, ``(T, 1 + m)``."""
        return self._dual.judged(beliefs, look, best, asked, self._limits, self._ahead)

    def move(
        self, t: int, phi: Tensor, estimate: Tensor, arrived: Sequence[Tensor]
    ) -> Tensor:
        """Move the multiplier by the estimated costs of the action played."""
        return self._dual.moved(phi, estimate[:, 1:], t, self._epoch(t))
