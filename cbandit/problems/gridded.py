"""Problems given by formulas on a box, played on a grid or anywhere inside."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit._core.randomness import Streams, Trials, trial_range
from cbandit.actions import Box, ProductGrid
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.problems.optima import (
    best_value,
    in_rounds,
    listed,
    unknown,
    whole_set,
    within,
)
from cbandit.problems.protocol import NOTHING, Evaluation, Round, normals, uniforms
from cbandit.search.simplex.lp import solve_policy

Formula = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Phase:
    """The functions of the world from one round on.

    Args:
        first: its first round; 1 for the first phase.
        reward: ``(..., d) -> (...)``.
        costs: ``(..., d) -> (..., m)``.
    """

    first: int
    reward: Formula
    costs: Formula


class Gridded:
    """A problem given by formulas, played on a grid; ``optimum`` is the grid's.

    A policy over a :class:`~cbandit.Box` can play it too, on ``problem.box``. Its
    regret is still against the grid's optimum, and may be a little negative.

    Args:
        phases: the functions, each from one round on; one phase if they never change.
        axes: the grid's axes, 1-d tensors.
        noise: variance of the Gaussian noise on the reward.
        cost_noise: variance of the Gaussian noise on the costs; 0 by default.
        half_width: half the width of uniform noise on the costs; 0 by default.
        delay: mean of the Poisson delays of reward and cost, drawn per round and trial;
            ``None``: feedback comes at once.
        trials: the trials it is for; ``None``: no trials axis.
        seed: the seed of :attr:`start`.
        purpose: a name that keeps the starts of different problems apart.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        axes: Sequence[Tensor],
        *,
        noise: float,
        cost_noise: float = 0.0,
        half_width: float = 0.0,
        delay: float | None = None,
        trials: Trials = None,
        seed: int = 0,
        purpose: str = "gridded",
    ) -> None:
        self.settings = stated(self, locals())
        firsts = [phase.first for phase in phases]
        if not firsts or firsts[0] != 1 or firsts != sorted(set(firsts)):
            raise CBanditError(
                f"phases must begin with round 1 and follow each other; got {firsts}"
            )
        self.phases, self._firsts = list(phases), firsts
        self.actions = ProductGrid(axes)
        self.box = Box(
            torch.stack([axis.min() for axis in axes]),
            torch.stack([axis.max() for axis in axes]),
        )
        self.trials = trial_range(trials)
        self._batch = () if self.trials is None else (len(self.trials),)
        self.noise = checks.number("noise", noise, minimum=0.0)
        self.cost_noise = checks.number("cost_noise", cost_noise, minimum=0.0)
        self.half_width = checks.number("half_width", half_width, minimum=0.0)
        self._delays = None if delay is None else poisson(delay)
        draws = Streams(seed, self.trials, f"{purpose}/start").uniform()
        #: the number of each trial's first action, uniformly random, ``(*trials,)``
        self.start = (draws * self.actions.size).long()
        self.m = phases[0].costs(self.actions.at(self.start)).shape[-1]

    # -- the truth -----------------------------------------------------------------

    def phase(self, t: int) -> int:
        """Return the number of round ``t``'s phase, counted from 0."""
        return bisect_right(self._firsts, t) - 1

    def reward(self, x: Tensor, t: int) -> Tensor:
        """Noiseless reward ``(*trials,)`` of ``x`` ``(*trials, d)``."""
        return self.phases[self.phase(t)].reward(x.double())

    def costs(self, x: Tensor, t: int) -> Tensor:
        """Noiseless costs ``(*trials, m)`` of ``x`` ``(*trials, d)``."""
        return self.phases[self.phase(t)].costs(x.double())

    @cached_property
    def tables(self) -> list[tuple[Tensor, Tensor]]:
        """``f (N,)`` and ``g (m, N)`` on the grid, for each phase."""
        points = self.actions.block(0, self.actions.size).double()
        return [(p.reward(points), p.costs(points).mT) for p in self.phases]

    @cached_property
    def _optima(self) -> Tensor:
        limits = torch.zeros(self.m, dtype=torch.float64)
        return torch.stack([best_value(f, g, limits) for f, g in self.tables])

    @cached_property
    def _stochastic_optima(self) -> Tensor:
        solved = [solve_policy(f, g, 0.0) for f, g in self.tables]
        best = [s.value.masked_fill(s.infeasible, torch.nan) for s in solved]
        return torch.stack(best).reshape(-1)

    @whole_set
    def optimum(self, t: int) -> Tensor:
        """The reward of the grid's best feasible action, ``(*trials,)``."""
        return self._optima[self.phase(t)].expand(self._batch)

    @whole_set
    def stochastic_optimum(self, t: int) -> Tensor:
        """The reward of the best distribution feasible on average, ``(*trials,)``."""
        return self._stochastic_optima[self.phase(t)].expand(self._batch)

    def within(self, t: int, shown: Round) -> tuple[Tensor, Tensor]:
        """Return both optima ``(*trials,)`` of the set that round ``t`` shows."""
        points = listed(self, shown.actions)
        if points is None:
            return unknown(self, shown.actions)
        x = points[0]
        f, g = self.reward(x, t).unsqueeze(-1), self.costs(x, t)
        return within(self, t, shown.among, torch.cat([f, g], -1))

    def evaluate(self, t: Tensor, index: Tensor | None, x: Tensor) -> Evaluation:
        """Return the truth about the rounds ``t`` ``(n,)``."""
        x, shape = x.double(), x.shape[:-1]
        phase = torch.tensor([self.phase(s) for s in t.tolist()])
        reward = torch.empty(shape, dtype=torch.float64)
        costs = torch.empty(*shape, self.m, dtype=torch.float64)
        for k in phase.unique().tolist():
            rounds = phase == k
            reward[..., rounds] = self.phases[k].reward(x[..., rounds, :])
            costs[..., rounds, :] = self.phases[k].costs(x[..., rounds, :])
        optima = in_rounds(
            self,
            t,
            tuple(shape[:-1]),
            lambda: self._optima[phase].expand(shape),
            lambda: self._stochastic_optima[phase].expand(shape),
        )
        return Evaluation(reward, costs, *optima)

    # -- rounds --------------------------------------------------------------------

    def observe(self, choice: Choice, generator: Streams) -> tuple[Tensor, Tensor]:
        """Return a choice's noisy reward ``(*trials,)`` and costs ``(*trials, m)``."""
        return self.look(choice.x, choice.t, generator)

    def look(
        self, x: Tensor, t: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return noisy reward and costs of ``x`` ``(*trials, d)`` in round ``t``."""
        x = x.cpu()
        batch = tuple(x.shape[:-1])
        reward, costs = self.reward(x, t), self.costs(x, t)
        draws = normals(generator, batch, 1 + self.m)
        reward = reward + self.noise**0.5 * draws[..., 0]
        costs = costs + self.cost_noise**0.5 * draws[..., 1:]
        if self.half_width:
            share = uniforms(generator, batch, self.m)
            costs = costs + self.half_width * (2 * share - 1)
        return reward, costs

    def round(self, t: int, generator: Streams) -> Round:
        """Return the round's delays, if there are any."""
        if self._delays is None:
            return NOTHING
        draws = uniforms(generator, self._batch, 2)
        delays = torch.searchsorted(self._delays, draws.contiguous())
        return Round(delays=(delays[..., 0], delays[..., 1]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.actions!r}, m={self.m})"


def poisson(mean: float) -> Tensor:
    """Return the distribution function of a Poisson variable at 0, 1, 2, ...

    It ends where float64 cannot tell it from 1. ``searchsorted`` of a uniform draw in
    it gives a draw of the variable.
    """
    mean = checks.number("delay", mean, minimum=0.0)
    k = torch.arange(int(mean + 12 * mean**0.5 + 30), dtype=torch.float64)
    log = k * math.log(max(mean, 1e-300)) - mean - torch.lgamma(k + 1)
    return log.exp().cumsum(0)
