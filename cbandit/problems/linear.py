"""Problems whose reward and costs are linear in the action's coordinates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit._core.randomness import Trials, trial_range
from cbandit.actions import Finite, Star
from cbandit.errors import CBanditError
from cbandit.problems.optima import best_value, within
from cbandit.problems.protocol import Fixed, Round
from cbandit.search.segments import furthest
from cbandit.search.simplex.lp import solve_policy
from cbandit.search.simplex.programme import PolicySolution


class LinearProblem(Fixed):
    """A linear problem: ``f(x) = <x, theta>``, ``cost_j(x) = <x, mu_j>``.

    Args:
        actions: a :class:`~cbandit.Finite` set, or a :class:`~cbandit.Star` whose
            centre is feasible.
        theta: the reward's coefficients, ``(d,)`` or ``(*trials, d)``.
        mu: the costs' coefficients, ``(m, d)`` or ``(*trials, m, d)``.
        noise: variance of the Gaussian noise on reward and costs, a number.
        thresholds: a cost is feasible at or below it, a number, ``(m,)`` or
            ``(*trials, m)``.
        trials: the trials it is for; ``None``: no trials axis.

    Example:
        >>> import cbandit as cb, torch
        >>> star = cb.Star(torch.zeros(2), torch.eye(2))
        >>> problem = cb.problems.LinearProblem(
        ...     star, [1.0, 0.5], [[1.0, 0.0]], noise=0.01, thresholds=0.4
        ... )
        >>> problem.optimum(1)
        tensor(0.5000, dtype=torch.float64)
    """

    def __init__(
        self,
        actions: Finite | Star,
        theta: object,
        mu: object,
        noise: object = 0.0,
        thresholds: object = 0.0,
        trials: Trials = None,
    ) -> None:
        self.settings = stated(self, locals())
        if not isinstance(actions, Finite | Star):
            raise CBanditError(
                f"actions must be a Finite set or a Star; got {actions!r}"
            )
        self.actions, self.trials = actions, trial_range(trials)
        batch = () if self.trials is None else (len(self.trials),)
        dim = actions.dim
        theta = checks.finite("theta", checks.tensor("theta", theta))
        mu = checks.finite("mu", checks.tensor("mu", mu))
        if mu.dim() < 2:
            raise CBanditError(
                f"mu must have shape (*trials, m, d); got {tuple(mu.shape)}"
            )
        self.m = mu.shape[-2]
        self.theta = checks.shaped("theta", theta, (*batch, dim), "(*trials, d)")
        self.mu = checks.shaped("mu", mu, (*batch, self.m, dim), "(*trials, m, d)")
        tau = checks.finite("thresholds", checks.tensor("thresholds", thresholds))
        self._tau = checks.shaped("thresholds", tau, (*batch, self.m), "(*trials, m)")
        self.thresholds: Any = self._tau
        deviation = checks.number("noise", noise, minimum=0.0) ** 0.5
        self._std = torch.full((1 + self.m,), deviation, dtype=torch.float64)
        # (*trials, d, 1 + m): one product gives reward and costs
        self._coefficients = torch.cat(
            [self.theta.unsqueeze(-2), self.mu], -2
        ).mT.contiguous()

    def _values(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        values: Tensor = x.to(self._coefficients) @ self._coefficients
        return values

    @cached_property
    def _corners(self) -> Tensor:
        """Reward and costs ``(*trials, n, 1 + m)`` at the set's corners.

        Every other action is a mixture of these.
        """
        return self._values(corners_of(self.actions))

    @cached_property
    def _optimum(self) -> Tensor:
        values, best = self._corners, best_in(self.actions)
        return best(values[..., 0], values[..., 1:].mT, self._tau)

    def within(self, t: int, shown: Round) -> tuple[Tensor, Tensor]:
        """Return both optima ``(*trials,)`` of the set that round ``t`` shows."""
        on = self.actions if shown.actions is None else shown.actions
        if not isinstance(on, Finite | Star):
            return super().within(t, shown)
        return within(self, t, shown.among, self._values(corners_of(on)), best_in(on))

    @cached_property
    def _solution(self) -> PolicySolution:
        values = self._corners
        return solve_policy(values[..., 0], values[..., 1:].mT, self._tau)

    def optimal_costs(self) -> Tensor:
        """Expected costs under the best distribution, ``(*trials, m)``."""
        return self._solution.spent(self._corners[..., 1:].mT)

    def __repr__(self) -> str:
        return f"LinearProblem({self.actions!r}, m={self.m}, trials={self.trials})"


def corners_of(actions: Finite | Star) -> Tensor:
    """Return the points of which every action is a mixture, ``(*trials, n, d)``."""
    return actions.ends if isinstance(actions, Star) else actions.all


def best_in(actions: Finite | Star) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the function that finds the best action from values at the corners."""
    return _best_on_segments if isinstance(actions, Star) else best_value


def _best_on_segments(f: Tensor, g: Tensor, tau: Tensor) -> Tensor:
    """Return the best reward ``(*b,)`` on the segments from the first point to others.

    Values are affine on a segment: its best point is an end of its feasible part. A
    reward ``f (*b, n)`` of minus infinity leaves a segment out. Costs are ``g (*b, m,
    n)``, limits ``tau (*b, m)``, kept by the first point.
    """
    start, tips = f[..., :1], f[..., 1:]
    a = furthest(g[..., :1], g[..., 1:], tau.unsqueeze(-1))
    ends = torch.where(tips.isneginf(), tips, start + a * (tips - start))
    return torch.cat([start, ends], -1).amax(-1)
