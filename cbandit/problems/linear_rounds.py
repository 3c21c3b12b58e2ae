"""Linear problems that show another set of vectors in every round.

This is the setting of A. Pacchiano, M. Ghavamzadeh, P. Bartlett, *Contextual bandits
with stage-wise constraints*, 2024: regret is against the best action, or distribution,
of each round's own set (equations 1 and 27).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit._core.randomness import Streams, Trials, trial_range
from cbandit.actions import Finite, Star
from cbandit.errors import CBanditError
from cbandit.problems.linear import LinearProblem
from cbandit.problems.protocol import Round

BLOCK = 64  # rounds whose sets are drawn at once


class LinearRounds(LinearProblem):
    """A linear problem with new uniform unit vectors, and 0, in every round.

    The sets depend on seed, trial and round alone: all policies meet the same.

    Args:
        theta: the reward's coefficients, ``(d,)`` or ``(*trials, d)``.
        mu: the costs' coefficients, ``(m, d)`` or ``(*trials, m, d)``.
        count: how many vectors a round shows.
        star: whether a round's set is a :class:`~cbandit.Star`, the segments from 0 to
            the vectors; or a :class:`~cbandit.Finite` set, of which 0 is action 0.
        noise: variance of the Gaussian noise on reward and costs, a number.
        thresholds: a cost is feasible at or below it, at least 0: a number, ``(m,)`` or
            ``(*trials, m)``.
        trials: the trials it is for; ``None``: no trials axis.
        seed: the seed of the sets.

    Example:
        >>> import cbandit as cb
        >>> problem = cb.problems.pacchiano_contextual(d=3, count=8)
        >>> linear = cb.Linear(subgaussian=0.1)
        >>> policy = cb.LCLUCB(
        ...     problem.actions, reward=linear, costs=linear, safe=cb.Safe(x=[0, 0, 0]),
        ...     thresholds=problem.thresholds,
        ... )
        >>> run = cb.simulate(policy, problem, 20)
        >>> bool((run.regret.diff() >= 0).all()), int(run.rounds_in_violation[-1])
        (True, 0)
    """

    def __init__(
        self,
        theta: object,
        mu: object,
        count: int = 20,
        star: bool = True,
        noise: object = 0.01,
        thresholds: object = 0.5,
        trials: Trials = None,
        seed: int = 0,
    ) -> None:
        self.count = checks.whole("count", count)
        self.star, self.seed = checks.flag("star", star), seed
        self.trials = trial_range(trials)
        self._dim = checks.tensor("theta", theta).shape[-1]
        self._drawn: tuple[int, Any] = (-1, None)
        self._part: tuple[int, Any] = (0, None)
        super().__init__(self.round_set(1), theta, mu, noise, thresholds, trials)
        if bool((self._tau < 0).any()):
            raise CBanditError(
                "thresholds must be at least 0, the costs of the action 0; got "
                f"{self._tau.min().item():g}"
            )
        self.settings = stated(self, locals())

    def round_set(self, t: int) -> Finite | Star:
        """Return the set of round ``t``."""
        block, place = divmod(t - 1, BLOCK)
        if self._drawn[0] != block:
            streams = Streams(self.seed, self.trials, f"linear rounds, block {block}")
            self._drawn = block, streams.normal(BLOCK, self.count, self._dim)
        rows = self._drawn[1][..., place, :, :]
        rows = rows / rows.norm(dim=-1, keepdim=True)
        if self.star:
            return Star(torch.zeros(self._dim, dtype=torch.float64), rows)
        return Finite(torch.cat([torch.zeros_like(rows[..., :1, :]), rows], -2))

    def round(self, t: int, generator: Streams) -> Round:
        """Return round ``t``'s set."""
        return Round(actions=self.round_set(t))

    def _optima(self, t: int) -> tuple[Tensor, Tensor]:
        if self._part[0] != t:
            self._part = t, self.within(t, Round(actions=self.round_set(t)))
        optima: tuple[Tensor, Tensor] = self._part[1]
        return optima

    def optimum(self, t: int) -> Tensor:
        """The reward of the best feasible action of round ``t``, ``(*trials,)``."""
        return self._optima(t)[0]

    def stochastic_optimum(self, t: int) -> Tensor:
        """The reward of round ``t``'s best distribution, ``(*trials,)``."""
        return self._optima(t)[1]

    def __repr__(self) -> str:
        kind = "Star" if self.star else "Finite"
        return f"LinearRounds({kind}, count={self.count}, m={self.m})"
