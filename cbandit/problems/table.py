"""Finite problems: tables of the reward and the costs of every action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit._core.hints import hinted
from cbandit._core.log import warn
from cbandit._core.randomness import Trials, trial_range
from cbandit.actions import Actions, Finite, ProductGrid
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.policies.signs import Objective
from cbandit.problems.failures import failing_shares, worst_where_failing
from cbandit.problems.measured import measured
from cbandit.problems.optima import best_value
from cbandit.problems.protocol import Fixed, normals, uniforms
from cbandit.search.simplex.lp import solve_policy
from cbandit.search.simplex.programme import PolicySolution

if TYPE_CHECKING:
    import pandas as pd

Noise = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Resampled:
    """Noise drawn from observed deviations.

    Args:
        reward: ``(S, N)``, ``S`` rows of deviations of every action's reward.
        costs: ``(S, m, N)``, likewise for the costs; their row is drawn separately.
    """

    reward: Tensor
    costs: Tensor

    def __call__(
        self, index: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return noise ``(*trials,)`` and ``(*trials, m)`` at the actions ``index``."""
        draws = uniforms(generator, tuple(index.shape), 2)
        rows = (draws * self.reward.shape[0]).long()
        return (
            self.reward[rows[..., 0], index],
            self.costs.movedim(-2, -1)[rows[..., 1], index],
        )


@dataclass(frozen=True)
class Normal:
    """Gaussian noise whose standard deviation depends on the action.

    Args:
        reward: ``(N,)``, the deviations of the reward.
        costs: ``(m, N)``, those of the costs.
    """

    reward: Tensor
    costs: Tensor

    def __call__(
        self, index: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return noise ``(*trials,)`` and ``(*trials, m)`` at the actions ``index``."""
        m = self.costs.shape[-2]
        draws = normals(generator, tuple(index.shape), 1 + m)
        costs = self.costs.mT[index] * draws[..., 1:]
        return self.reward[index] * draws[..., 0], costs


@hinted
class Table(Fixed):
    """A finite problem that never changes.

    Args:
        reward: ``f`` at every action, ``(N,)`` or ``(*trials, N)``.
        costs: ``g`` at every action, ``(m, N)`` or ``(*trials, m, N)``.
        noise: variance of the Gaussian noise on the reward, a number or ``(*trials,)``;
            or a callable ``(index, generator) -> (reward noise, costs noise)``.
        cost_noise: variance on the costs, a number, ``(m,)`` or ``(*trials, m)``; by
            default that of the reward.
        actions: the set of ``N`` actions; by default the numbers 0 to N - 1.
        trials: the trials the tables are for; ``None``: no trials axis.
        thresholds: a cost is feasible at or below it, a number, ``(m,)`` or
            ``(*trials, m)``; by name, ``{"latency": "<= 20", "up": ">= 0.9"}``, in the
            order of the costs.
        minimise: whether the reward is to be small.
        known: facts about the problem that policies may be told; stored unchanged.
        failed: the probability that an action cannot be measured, ``(N,)`` or
            ``(*trials, N)``. An action that always fails counts as the least reward and
            the largest costs of all others, whatever its tables say. ``None``: none.
        binary: which functions, the reward first, are observed as 0 or 1, ``(1 + m,)``
            bool; the tables hold the probabilities of a 1. ``None``: none.

    Example:
        >>> import cbandit as cb
        >>> problem = cb.problems.Table([0.0, 1.0, 2.0], [[-1.0, -0.5, 1.0]], noise=0.1)
        >>> problem.optimum(1)
        tensor(1., dtype=torch.float64)
    """

    dropped: tuple[Any, ...] = ()  # rows of a frame that have missing cells
    repeats: int = 0  # rows of a frame that repeat a configuration
    remarks: tuple[str, ...] = ()  # what else was noticed about a frame

    def __init__(
        self,
        reward: object,
        costs: object,
        noise: object = 0.0,
        cost_noise: object = None,
        actions: Actions | None = None,
        trials: Trials = None,
        thresholds: object = 0.0,
        known: object = None,
        minimise: bool = False,
        failed: object = None,
        binary: Sequence[bool] | None = None,
    ) -> None:
        self.settings = stated(self, locals())
        self.trials = trial_range(trials)
        batch = () if self.trials is None else (len(self.trials),)
        f = checks.tensor("reward", reward).double()
        g = checks.tensor("costs", costs).double()
        if f.dim() == 0 or f.shape[-1] == 0:
            raise CBanditError(
                f"reward must have shape (*trials, N); got {tuple(f.shape)}"
            )
        size = f.shape[-1]
        if g.dim() < 2 or g.shape[-1] != size or g.shape[-2] == 0:
            raise CBanditError(
                f"costs must have shape (*trials, m, N) with N = {size} and m >= 1; "
                f"got {tuple(g.shape)}"
            )
        self.m = g.shape[-2]
        f = checks.shaped("reward", f, (*batch, size), "(*trials, N)")
        g = checks.shaped("costs", g, (*batch, self.m, size), "(*trials, m, N)")
        names = list(thresholds) if isinstance(thresholds, Mapping) else self.m
        #: the names, directions and limits in which rewards and costs are stated
        self.objective = Objective(names, thresholds, minimise)
        self.minimise = self.objective.minimise
        self._failed: Tensor | None = None
        if failed is not None:
            self._failed = failing_shares(failed, (*batch, size))
            f, g = worst_where_failing(f, g, self._failed < 1, self.objective)
        f = checks.measured("reward", f, torch.float64)
        g = checks.measured("costs", g, torch.float64)
        #: ``"binary"``, or ``None`` for numbers, of each function, the reward first
        self.outcomes: tuple[str | None, ...] = (None,) * (1 + self.m)
        if binary is not None:
            self.outcomes = _kinds(binary, f, g)
        # as stated: a row of (f, g) for each action, all trials below each other, for
        # one look-up
        values = torch.cat([f.unsqueeze(-2), g], -2)
        self._rows = values.mT.reshape(-1, 1 + self.m).contiguous()
        # as policies take them: rewards maximised, costs kept below
        self.f = self.objective.reward(f).contiguous()
        self.g = self.objective.costs(g.mT).mT.contiguous()
        if actions is None:
            actions = Finite(torch.arange(float(size)).double()[:, None])
        if not isinstance(actions, Actions) or not actions.finite:
            raise CBanditError(
                "actions must be a cb.Finite or a cb.ProductGrid; got "
                f"{checks.kind(actions)}"
            )
        self.actions = actions
        if self.actions.size != size:
            raise CBanditError(
                f"actions must hold N = {size} actions; got {self.actions!r}"
            )
        within = actions.within_limits() if isinstance(actions, ProductGrid) else None
        if within is not None:  # nothing beyond known limits is an optimum
            self.f = self.f.masked_fill(~within, -torch.inf)
        limits = checks.tensor("thresholds", self.objective.limits)
        tau = checks.finite("thresholds", limits)
        tau = checks.shaped("thresholds", tau, (*batch, self.m), "(*trials, m)")
        worded = self.objective.names is not None or not self.objective.plain
        numbers = tau if bool(tau.any()) else 0.0
        self.thresholds: Any = thresholds if worded else numbers
        self.known: Any = known
        self._tau = tau
        if bool((self.best < 0).all()):
            warn(self._unkept())
        self._first = torch.arange(len(batch) and batch[0]) * size if batch else None
        self._noise: Noise | None = noise if callable(noise) else None
        self._std = torch.zeros(1 + self.m, dtype=torch.float64)
        if self._noise is None:
            lam = checks.nonnegative("noise", noise)
            lam = checks.shaped("noise", lam, batch, "(*trials,)").unsqueeze(-1)
            variance = lam if cost_noise is None else cost_noise
            variance = checks.nonnegative("cost_noise", variance)
            shape = (*batch, self.m)
            cost_lam = checks.shaped("cost_noise", variance, shape, "(*trials, m)")
            self._std = torch.cat([lam, cost_lam], -1).sqrt()
        elif cost_noise is not None:
            raise CBanditError("cost_noise must be left out where noise is a callable")

    @classmethod
    @hinted
    def from_frame(
        cls,
        frame: pd.DataFrame,
        maximise: str | None = None,
        limits: Mapping[str, Any] | None = None,
        knobs: Sequence[str] | Mapping[str, Any] | None = None,
        noise: object = None,
        *,
        minimise: str | None = None,
        repeats: str = "mean",
        failed: str | bool | None = None,
        trials: Trials = None,
        seed: int = 0,
    ) -> Table:
        """Return a problem made of a table of measurements.

        Its actions are the configurations that were measured, and have names; a
        column's type says whether it holds numbers, whole numbers or categories. Rows
        with missing cells are left out, and a warning names them (``problem.dropped``).

        Args:
            frame: a pandas frame with a row for each measurement.
            maximise: the column that is to be large. Give this or ``minimise``.
            minimise: the column that is to be small.
            limits: by column, ``{"latency": "<= 20", "accuracy": ">= 0.9"}``; a number
                alone is an upper limit. For two limits on a column, copy it in the
                frame under another name. If no row keeps all limits, a warning says so.
            knobs: the columns that can be set; a dict says what they hold, such as
                ``{"threads": cb.Int(1, 64, log=True)}``. ``None``: all others; a
                warning names those that have a different value in every row.
            noise: the variance of a measurement, a number or by column; ``None``: it is
                estimated from repeated configurations, and 0 if there are none.
            repeats: how repeated configurations are used: ``"mean"`` takes their means;
                ``"draw"`` draws from their measurements, reward and costs together;
                ``"resample"`` gives each trial its own table: means over as many rows,
                drawn with replacement from each configuration's.
            failed: a column of true and false (yes and no, 1 and 0) that says which
                rows could not be measured; or ``True``: those without any outcome. A
                configuration fails as often as its rows did. ``None``: no row failed.
            trials: the trials of ``"resample"``; else the problem is for any trials.
            seed: the seed of the drawn rows; trial ``i`` gets the same in any batch.

        Outcomes of true and false, yes and no, or 0 and 1 are probabilities (costs only
        if their limits lie between 0 and 1). A configuration's is the mean of its rows,
        and observations are 0 or 1. ``problem.outcomes`` says which outcomes these are;
        studies give them binary beliefs.

        Example:
            >>> import cbandit as cb, pandas
            >>> frame = pandas.DataFrame({
            ...     "threads": [1, 2, 4, 4], "codec": ["lz4", "zstd", "lz4", "lz4"],
            ...     "speed": [1.0, 1.5, 3.9, 4.1], "latency": [5.0, 9.0, 21.0, 19.0],
            ... })
            >>> problem = cb.problems.Table.from_frame(
            ...     frame, maximise="speed", limits={"latency": "<= 20"}
            ... )
            >>> problem.actions.names.params(problem.actions.points(2))
            {'threads': 4, 'codec': 'lz4'}
            >>> problem.optimum(1)
            tensor(4., dtype=torch.float64)
        """
        if (maximise is None) == (minimise is None):
            number = "neither" if maximise is None else "both"
            raise CBanditError(f"from_frame takes maximise= or minimise=; got {number}")
        if not isinstance(limits, Mapping) or not limits:
            raise CBanditError(
                "limits must name at least one column, {'latency': '<= 20'}; got "
                f"{limits!r}"
            )
        target = maximise if minimise is None else minimise
        if trials is not None and repeats != "resample":
            raise CBanditError(
                f"trials= goes with repeats='resample'; got repeats={repeats!r}, whose "
                "problem is for any trials: leave trials out"
            )
        names = list(limits)
        read = measured(
            frame, str(target), names, knobs, noise, repeats, failed, trials, seed
        )
        # a limit of 0, say, leaves no probability to learn
        objective = Objective(names, dict(limits))
        tau = objective.costs(checks.tensor("limits", objective.limits)).expand(
            len(names)
        )
        between = [True, *((tau > 0) & (tau < 1)).tolist()]
        yes_no = [a and b for a, b in zip(read.binary, between, strict=True)]
        table = cls(
            read.reward,
            read.costs,
            read.noise,
            read.cost_noise,
            read.actions,
            trials,
            thresholds=dict(limits),
            minimise=minimise is not None,
            failed=read.failed,
            binary=yes_no if any(yes_no) else None,
        )
        table.dropped, table.repeats = read.dropped, read.repeats
        return table

    def _rows_of(self, index: Tensor) -> Tensor:
        """Return reward and costs ``(*trials, ..., 1 + m)`` at actions ``index``."""
        index = index.to(self._rows.device)
        if self._first is not None:
            index = index + self._first.view(-1, *[1] * (index.dim() - 1))
        return self._rows[index]

    def _values(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        return self._rows_of(self.actions.index(x) if index is None else index)

    def observe(self, choice: Choice, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Noisy reward ``(*trials,)`` and costs ``(*trials, m)`` of the choice.

        If actions can fail, a third value marks the trials in which this one failed.
        """
        if self._noise is None and self._failed is None and not any(self.outcomes):
            return super().observe(choice, generator)
        own = choice.actions is None and choice.index is not None
        index = choice.numbers() if own else self.actions.index(choice.x)
        truth = self._rows_of(index)
        if self._noise is None:
            draws = normals(generator, tuple(index.shape), 1 + self.m)
            told = torch.addcmul(truth, draws, self._std)
        else:
            reward, costs = self._noise(index.to(truth.device), generator)
            told = truth + torch.cat([reward.unsqueeze(-1), costs], -1)
        for j, kind in enumerate(self.outcomes):
            if kind is not None and self._noise is None:
                sure = (
                    uniforms(generator, tuple(index.shape), 1)[..., 0] < truth[..., j]
                )
                told[..., j] = sure.to(told)
            elif kind is not None:  # noise drawn from rows gives 0 or 1 up to rounding
                told[..., j] = told[..., j].round()
        if self._failed is None:
            return told[..., 0], told[..., 1:]
        chance = self._failed.expand(*index.shape, -1)
        chance = chance.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        lost = uniforms(generator, tuple(index.shape), 1)[..., 0] < chance
        return told[..., 0], told[..., 1:], lost

    def _unkept(self) -> str:
        """Return a warning that no action keeps all limits, with how many keep each."""
        over = self.g - self._tau.unsqueeze(-1)
        counts = (over <= 0).sum(-1).reshape(-1, self.m).double().mean(0).tolist()
        shares = [
            f"{self.objective.label(j)} {count:g}" for j, count in enumerate(counts)
        ]
        alone = f"; alone they are kept by: {', '.join(shares)}" if self.m > 1 else ""
        return (
            f"none of the {self.actions.size} actions keeps all limits, so that every "
            "round violates one and regret is NaN; the nearest one exceeds them by "
            f"{float(over.amax(-2).min()):.3g}{alone}"
        )

    @cached_property
    def best(self) -> Tensor:
        """The number of the best feasible action, ``(*trials,)``; -1 if none is."""
        feasible = (self.g <= self._tau.unsqueeze(-1)).all(-2)
        best = self.f.masked_fill(~feasible, -torch.inf).argmax(-1)
        return best.masked_fill(~feasible.any(-1), -1)

    @cached_property
    def _optimum(self) -> Tensor:
        return self.objective.reward(best_value(self.f, self.g, self._tau))

    @cached_property
    def _solution(self) -> PolicySolution:
        return solve_policy(self.f, self.g, self._tau)

    @cached_property
    def _stochastic_optimum(self) -> Tensor:
        return self.objective.reward(super()._stochastic_optimum)

    def optimal_costs(self) -> Tensor:
        """Expected costs under the best distribution, ``(*trials, m)``."""
        return self.objective.costs(self._solution.spent(self.g))

    def __repr__(self) -> str:
        return f"Table(N={self.actions.size}, m={self.m}, trials={self.trials})"


def _kinds(binary: Sequence[bool], f: Tensor, g: Tensor) -> tuple[str | None, ...]:
    """Return the kinds of outcomes; raise if a binary one is no probability."""
    values = torch.cat([f.unsqueeze(-2), g], -2)
    if len(binary) != values.shape[-2]:
        raise CBanditError(
            f"binary must have an entry for the reward and each cost, "
            f"{values.shape[-2]}; got {len(binary)}"
        )
    for j, flag in enumerate(binary):
        rows = values[..., j, :]
        if flag and not bool(((rows >= 0) & (rows <= 1)).all()):
            name = "reward" if j == 0 else f"costs[{j - 1}]"
            raise CBanditError(
                f"{name} must hold probabilities, from 0 to 1, as it is binary; got "
                f"{float(rows.min()):g} to {float(rows.max()):g}"
            )
    return tuple("binary" if flag else None for flag in binary)
