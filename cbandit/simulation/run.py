"""A run: everything that happened in a simulation, and its account."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from cbandit import account
from cbandit._core import checkpoint, checks, files
from cbandit._core.printing import html_table
from cbandit._core.randomness import trial_range
from cbandit.actions import Names
from cbandit.errors import CBanditError, CheckpointError
from cbandit.policies.concerns.receipt import costs_of
from cbandit.policies.signs import Objective
from cbandit.receipt.bets import Array
from cbandit.receipt.certificate import Certificate, certify
from cbandit.receipt.sums import Costs, over_rounds
from cbandit.simulation.curves import (
    LABELS,
    NAMED,
    RELATIVE,
    VIOLATIONS,
    Curve,
    mean_and_sem,
    over_trials,
    scales,
    thinned,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = (
    "regret",
    "stochastic_regret",
    "soft_violation",
    "hard_violation",
    "rounds_in_violation",
)
STAGES = ("policy_regret", "worst_stage_cost", "stage_rounds_kept", "stage_runs_kept")
# columns of a frame that parameters cannot be called
COLUMNS = ("policy", "trial", "t", "action", "reward", "true_reward", "failed")
FILE = "run.ckpt"


class Summary(dict[str, dict[str, float]]):
    """Final values of a run: ``summary["regret"]["mean"]``; prints as a table.

    Args:
        policy: the policy's name.
        rounds: how many rounds were played.
        values: ``mean`` and ``sem``, the standard error over the trials, by metric.
        seconds_per_round: the mean time of a round of the whole batch of trials.
        trials: how many trials there were.
        alike: whether all trials are equal to the bit, as without random draws.
    """

    def __init__(
        self,
        policy: str,
        rounds: int,
        values: dict[str, dict[str, float]],
        seconds_per_round: float,
        trials: int,
        alike: bool = False,
    ) -> None:
        self.policy, self.rounds, self.trials = policy, rounds, trials
        self.alike = alike
        self.seconds_per_round = seconds_per_round
        super().__init__(values)

    def _head(self) -> str:
        head = f"{self.policy}, {self.rounds} rounds, "
        head += f"{1e3 * self.seconds_per_round:.3g} ms each"
        if self.alike:
            head += (
                f"; all {self.trials} trials are one run, to the bit, for neither the "
                "policy nor the problem draws at random: +- 0 says nothing"
            )
        return head

    def _shown(self) -> dict[str, dict[str, float]]:
        """Return the metrics without totals that add up costs of several units."""
        return {k: value for k, value in self.items() if RELATIVE.get(k) not in self}

    def _repr_html_(self) -> str:
        rows = [{"metric": name, **value} for name, value in self._shown().items()]
        if self.trials == 1:
            rows = [{"metric": row["metric"], "value": row["mean"]} for row in rows]
        return html_table(rows, self._head())

    def __str__(self) -> str:
        rows, width = [], max(20, *map(len, self))
        for name, value in self._shown().items():
            known = not math.isnan(value["mean"])
            mean = f"{value['mean']:.5g}" if known else "unknown"
            spread = f" +- {value['sem']:.3g}" if known and self.trials > 1 else ""
            rows.append(f"  {name:<{width}} {mean:>12}{spread}")
        return "\n".join([self._head(), *rows])

    __repr__ = __str__


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """Everything that happened in ``T`` rounds; all on the CPU.

    Args:
        policy: the policy's name.
        seed: its seed.
        trials: the numbers of the trials, or ``None`` without a trials axis.
        horizon: how many rounds were asked for; ``run.rounds`` were played.
        actions: the actions played, ``(*trials, T, d)``.
        index: their numbers in the round's set, ``(*trials, T)``; ``None`` on a box.
        rewards: the observed rewards, ``(*trials, T)``.
        costs: the observed costs, ``(*trials, T, m)``, in the problem's units.
        multipliers: those before each round's ``ask``, ``(*trials, T, m)``; no columns
            for a policy without costs.
        infeasible: whether the policy believed nothing feasible, ``(*trials, T)``.
        true_rewards: the noiseless rewards, ``(*trials, T)``.
        true_costs: the noiseless costs, as excess over the problem's thresholds (for
            lower limits, as shortfall), ``(*trials, T, m)``.
        optimum: the optimum of each round, ``(*trials, T)``; NaN if none is feasible.
        stochastic_optimum: that of distributions, shaped as ``optimum``.
        seconds: the time of each round of the whole batch of trials, ``(T,)``.
        thresholds: the problem's limits (not the policy's), ``(*trials, 1, m)`` or
            ``(*trials, T, m)``.
        expected_rewards: means under each round's distribution, ``(*trials, T)``;
            ``None`` for policies that do not randomise.
        expected_costs: likewise, less thresholds, ``(*trials, T, m)``.
        stopped: the round from which a policy that ends by itself plays what it found,
            ``(*trials,)``; 0 for trials in which it went on.
        failed: rounds whose action could not be measured, ``(*trials, T)``; their
            rewards and costs as observed are NaN. ``None``: there were none.
        priced: the multipliers in the user's units; ``None``: as ``multipliers``.
        names: the names of the actions' coordinates; ``None``: they have none.
        objective: the problem's names, directions and limits. Rewards, optima and
            observed costs are in its directions. ``None``: rewards are maximised, and
            costs stay below.
    """

    policy: str
    seed: int
    trials: range | None
    horizon: int
    actions: Tensor
    index: Tensor | None
    rewards: Tensor
    costs: Tensor
    multipliers: Tensor
    infeasible: Tensor
    true_rewards: Tensor
    true_costs: Tensor
    optimum: Tensor
    stochastic_optimum: Tensor
    seconds: Tensor
    thresholds: Tensor
    expected_rewards: Tensor | None = None
    expected_costs: Tensor | None = None
    stopped: Tensor | None = None
    failed: Tensor | None = None
    priced: Tensor | None = None
    names: Names | None = None
    objective: Objective | None = None

    __copy__ = copy.deepcopy  # a shallow copy would share the tensors

    @property
    def prices(self) -> Tensor:
        """The multipliers before each round, in the user's units.

        ``(*trials, T, m)``; NaN where a standardised belief had no unit yet.
        """
        return self.multipliers if self.priced is None else self.priced

    @property
    def rounds(self) -> int:
        """How many rounds were played."""
        return int(self.rewards.shape[-1])

    @property
    def m(self) -> int:
        """The number of costs."""
        return int(self.costs.shape[-1])

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The names of the costs; empty if they have none."""
        return self._words.names or ()

    @property
    def cost_labels(self) -> tuple[str, ...]:
        """The costs' names, or their numbers from 1 on."""
        return self.cost_names or tuple(str(j + 1) for j in range(self.m))

    @property
    def noisy(self) -> bool:
        """Whether outcomes as observed differ from the true ones."""
        pairs = [
            (self.rewards, self.true_rewards),
            (self.costs, self._stated(self.true_costs)),
        ]
        return any(
            # NaN where an action failed; true costs are rounded, less their thresholds
            bool(((told - true).abs() > 1e-9 * (1 + true.abs())).any())
            for told, true in pairs
        )

    @property
    def complete(self) -> bool:
        """Whether the horizon was reached."""
        return self.rounds >= self.horizon

    @property
    def randomised(self) -> bool:
        """Whether the policy drew its actions from distributions."""
        return self.expected_rewards is not None

    @property
    def _words(self) -> Objective:
        """The problem's objective; by default rewards are maximised, costs limited."""
        return Objective(self.m) if self.objective is None else self.objective

    def _up(self, rewards: Tensor) -> Tensor:
        """Return rewards with the sign under which larger is better."""
        return self._words.reward(rewards)

    def _stated(self, over: Tensor) -> Tensor:
        """Return costs as the problem states them, from their excess over limits."""
        return self._words.costs(over) + self.thresholds

    @property
    def regret(self) -> Tensor:
        """Cumulative regret, ``(*trials, T)``; dynamic if the optimum moves."""
        return account.regret(self._up(self.optimum), self._up(self.true_rewards))

    @property
    def stochastic_regret(self) -> Tensor:
        """Cumulative regret against the best distribution, ``(*trials, T)``."""
        best, earned = self.stochastic_optimum, self.true_rewards
        return account.stochastic_regret(self._up(best), self._up(earned))

    @property
    def policy_regret(self) -> Tensor:
        """Cumulative expected regret of the policy's distributions, ``(*trials, T)``.

        Each round compares the expected reward of the best distribution with that of
        the distribution drawn from.
        """
        best, earned = self.stochastic_optimum, self._stage_rewards
        return account.policy_regret(self._up(best), self._up(earned))

    @property
    def _stage_rewards(self) -> Tensor:
        """Each round's expected reward, ``(*trials, T)``."""
        drawn = self.expected_rewards
        return self.true_rewards if drawn is None else drawn

    @property
    def stage_costs(self) -> Tensor:
        """Each round's expected costs less thresholds, ``(*trials, T, m)``."""
        return self.true_costs if self.expected_costs is None else self.expected_costs

    @property
    def stage_kept(self) -> Tensor:
        """Whether a round's expected costs are within thresholds, ``(*trials, T)``."""
        return account.stage_kept(self.stage_costs)

    @property
    def worst_stage_cost(self) -> Tensor:
        """The largest stage cost so far, less its threshold, ``(*trials, T)``."""
        return self.stage_costs.amax(-1).cummax(-1).values

    @property
    def stage_rounds_kept(self) -> Tensor:
        """The share of rounds so far that kept all limits, ``(*trials, rounds)``.

        See :attr:`stage_kept`.
        """
        return account.time_average(self.stage_kept.double().cumsum(-1))

    @property
    def stage_runs_kept(self) -> Tensor:
        """1 while every round had :attr:`stage_kept`, then 0, ``(*trials, T)``."""
        return self.stage_kept.double().cummin(-1).values

    @property
    def realised_regret(self) -> Tensor:
        """Cumulative ``f(x*) - r_t`` of the observed rewards, ``(*trials, T)``.

        A failed action counts by its true reward, as none was observed.
        """
        rewards = self.rewards
        if self.failed is not None:
            rewards = torch.where(self.failed, self.true_rewards, rewards)
        return account.realised_regret(self._up(self.optimum), self._up(rewards))

    @property
    def soft_violation(self) -> Tensor:
        """Soft violation ``|| [ sum_s g(x_s) ]_+ ||``, ``(*trials, T)``."""
        return account.soft_violation(self.true_costs)

    @property
    def hard_violation(self) -> Tensor:
        """Hard violation ``sum_s sum_j [g_j(x_s)]_+``, ``(*trials, T)``."""
        return account.hard_violation(self.true_costs)

    @property
    def hard_violation_in_spreads(self) -> Tensor:
        """Hard violation, each cost divided by its observed spread, ``(*trials, T)``.

        This adds up costs of different units.
        """
        costs = self.costs.double().flatten(0, -2)
        spread = costs.std(0) if len(costs) > 1 else torch.ones_like(costs[0])
        spread = torch.where(spread > 0, spread, 1.0)
        return account.hard_violation(self.true_costs / spread)

    def violations(self, scale: Tensor) -> dict[str, Tensor]:
        """Return violations of several costs, ``(*trials, T)`` each, by name.

        ``"hard_violation latency"`` is in the cost's own unit. In the totals, such as
        ``"hard_violation_relative"``, each cost is divided by its entry of ``scale``
        ``(m,)``. With a single cost the dict is empty.
        """
        if self.m < 2:
            return {}
        out, costs = {}, self.true_costs.double()
        for name in VIOLATIONS:
            total: Any = getattr(account, name)
            for j, label in enumerate(self.cost_labels):
                out[f"{name} {label}"] = total(costs[..., j : j + 1])
            out[RELATIVE[name]] = total(costs / scale)
        return out

    @property
    def realised_violation(self) -> Tensor:
        """The soft violation of the costs as observed, ``(*trials, T)``."""
        over = self.costs - self.thresholds
        if self.failed is not None:
            over = over.masked_fill(self.failed.unsqueeze(-1), 0.0)
        return account.realised_violation(self._words.costs(over))

    @property
    def rounds_in_violation(self) -> Tensor:
        """Rounds with any true cost above its threshold, ``(*trials, T)``, int64."""
        return account.rounds_in_violation(self.true_costs)

    @property
    def best_feasible(self) -> Tensor:
        """The largest true reward so far of a feasible action, ``(*trials, T)``.

        NaN until a feasible action was played.
        """
        return account.best_feasible(self.true_rewards, self.true_costs)

    def certificate(self, alpha: float = 0.05, ranges: Any = None) -> Certificate:
        """Return whether the limits were kept on average, by the costs observed.

        See :meth:`cbandit.Policy.certificate`, which also hears of beliefs, of yes or
        no and of late answers.

        Args:
            alpha: the chance that any of the bounds ever fails.
            ranges: what the costs cannot leave, as in policies.
        """
        if not self.m:
            raise CBanditError("certificate: this run has no costs")
        costs, values, limits = self._receipt(ranges)
        sums = over_rounds(costs, values, limits)
        alpha = checks.share("alpha", alpha)
        return certify(sums, costs, alpha, trials=self.trials)

    def _receipt(self, ranges: Any = None) -> tuple[Costs, Array, Array]:
        """Return what is known of the costs, and values and limits, ``(n, T, m)``."""
        shape, words = (-1, self.rounds, self.m), self._words
        limits = self.thresholds.double().expand(self.costs.shape).reshape(shape)
        costs = costs_of(words, ranges, words.costs(limits[:, 0]), {})
        values = self.costs.double().reshape(shape).transpose(0, 1).numpy()
        return costs, values, limits.transpose(0, 1).numpy()

    @property
    def seconds_per_round(self) -> float:
        """The average time of a round, for the whole batch of trials."""
        return float(self.seconds.mean()) if self.rounds else 0.0

    def summary(self) -> Summary:
        """Return final values over the trials: a dict that prints as a table.

        For a policy that randomises it also holds :data:`STAGES`: policy regret, the
        largest stage cost, and the shares of rounds, and of whole runs, whose stage
        costs were at most their thresholds. With several costs it holds the violations
        of each in its own unit, ``"hard_violation latency"``, and totals relative to
        limits, ``"hard_violation_relative"``; it prints these in place of totals over
        several units.

        Example:
            >>> print(run.summary())                            # doctest: +SKIP
            >>> frames = {run.policy: pandas.DataFrame(run.summary()).T for run in runs}
            ... # doctest: +SKIP
            >>> pandas.concat(frames)                           # doctest: +SKIP
        """
        names = METRICS + (STAGES if self.randomised else ())
        if self.m > 1:
            names += ("hard_violation_in_spreads",)
        values = {
            name: mean_and_sem(getattr(self, name)[..., -1:].double().reshape(-1))
            for name in names
        }
        apart = self.violations(scales([self]))
        values |= {k: mean_and_sem(x[..., -1].reshape(-1)) for k, x in apart.items()}
        trials = 1 if self.trials is None else len(self.trials)
        played = (self.actions, self.rewards, self.costs)
        alike = trials > 1 and all(bool((x == x[:1]).all()) for x in played)
        pace = self.seconds_per_round
        return Summary(self.policy, self.rounds, values, pace, trials, alike)

    def curve(
        self, name: str, points: int | None = None, average: bool = False
    ) -> Curve:
        """Return a metric's mean and spread over the trials.

        Args:
            name: a cumulative metric, such as ``"regret"`` or ``"reward"`` (true
                rewards); or a metric of single rounds: ``"multiplier"`` (its norm),
                ``"best_feasible"`` (the best reward so far), ``"expected_reward"``,
                ``"stage_cost"`` (the largest cost less its threshold) and, for a policy
                that ends by itself, ``"stopped"`` (the share of trials that have
                ended). Costs with names have the sums ``"cost NAME"`` (true costs) and
                ``"limit NAME"``.
            points: about how many rounds to keep at most, half of them spaced evenly
                and half logarithmically; ``None``: all.
            average: divide by the number of rounds so far.
        """
        average = checks.flag("average", average)
        t, total = self.thinned(points), self.cumulative(name)
        if average:
            total = account.time_average(total)
        return over_trials(total.reshape(-1, self.rounds)[:, t - 1], t)

    def thinned(self, points: int | None = None) -> Tensor:
        """Return the rounds ``(n,)`` of a curve, ``n`` at most about ``points``."""
        return thinned(self.rounds, points)

    def cumulative(self, name: str) -> Tensor:
        """Return a metric of :meth:`curve` in each trial, ``(*trials, T)``, float64."""
        name = name if isinstance(name, str) else repr(name)  # matches no metric
        kind, _, cost = name.partition(" ")
        if kind in NAMED and cost in self.cost_names:
            over = self.true_costs if kind == "cost" else self.true_costs * 0
            stated = self._stated(over.double())[..., self.cost_names.index(cost)]
            return torch.cumsum(stated, -1)
        if name == "stopped" and self.stopped is not None:
            first = self.stopped.unsqueeze(-1)
            t = torch.arange(1, self.rounds + 1)
            return ((first > 0) & (first <= t)).double()
        if name not in LABELS:
            raise CBanditError(
                f"name must be a metric, one of {', '.join(LABELS)}; got {name!r}"
            )
        values: Tensor
        if name == "multiplier":
            values = self.multipliers.double().norm(dim=-1)
        elif name == "reward":
            values = self.true_rewards.double().cumsum(-1)
        elif name == "expected_reward":
            values = self._stage_rewards
        elif name == "stage_cost":
            values = self.stage_costs.amax(-1)
        else:
            values = getattr(self, name)
        return values.double()

    def frame(self) -> pd.DataFrame:
        """Return a long pandas frame with a row for each trial and round.

        Columns: policy, trial, t, x1.. (or the parameters by name, with the user's
        values), action (its number), reward, cost1.. (or the costs' names),
        true_reward, true_cost1.., threshold1.., multiplier1.., and the cumulative
        metrics; for a policy that randomises also expected_reward, stage_cost1.. and
        policy_regret. Costs are as the problem states them throughout.
        """
        import pandas as pd

        metrics = METRICS + (("policy_regret",) if self.randomised else ())
        numbers, costs = list(self.trials or range(1)), self.cost_names
        columns: dict[str, Any] = {
            "policy": self.policy,
            "trial": torch.tensor(numbers).repeat_interleave(self.rounds).numpy(),
            "t": torch.arange(1, self.rounds + 1).repeat(len(numbers)).numpy(),
        }
        parameters: dict[str, Any]
        parameters = {f"x{j + 1}": x for j, x in enumerate(self.actions.unbind(-1))}
        if self.names is not None:
            read = self.names.table(self.actions)
            taken = (*COLUMNS, *costs, *metrics)
            parameters = {f"x.{n}" if n in taken else n: x for n, x in read.items()}
        tables = [
            ("action", self.index),
            ("failed", self.failed),
            *parameters.items(),
            ("reward", self.rewards),
            ("cost", self.costs),
            ("true_reward", self.true_rewards),
            ("true_cost", self._stated(self.true_costs)),
            ("threshold", self.thresholds.expand_as(self.costs)),
            ("multiplier", self.multipliers),
            ("expected_reward", self.expected_rewards),
            ("stage_cost", self._stated(self.stage_costs) if self.randomised else None),
            *((name, getattr(self, name)) for name in metrics),
        ]
        prefixes = {"cost": "", "true_cost": "true_"}  # before a cost's name
        for name, table in tables:
            if table is None:
                continue
            if table.ndim == self.rewards.ndim:
                columns[name] = np.asarray(table).reshape(-1)
                continue
            prefix = prefixes.get(name, f"{name}_")
            for j, column in enumerate(table.unbind(-1)):
                called = f"{prefix}{costs[j]}" if costs else f"{name}{j + 1}"
                columns[called] = column.reshape(-1).numpy()
        return pd.DataFrame(columns)

    def plot(self, **options: Any) -> Figure:
        """Draw the account; ``options`` are those of ``cb.plots.overview``.

        The last panel is the certificate: bounds on the mean costs after each round.
        """
        from cbandit.receipt.panel import draw_certificate
        from cbandit.simulation import plots

        def draw(panel: Axes) -> None:
            draw_certificate(panel, *self._receipt())

        if self.m and self.rounds and "metrics" not in options:
            options = {"more": [draw], **options}
        return plots.overview([self], **options)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write ``run.ckpt`` into the directory, atomically."""
        folder = files.folder(checks.path("directory", directory), "directory")
        checkpoint.write(folder / FILE, "run", dict(vars(self)), overwrite=True)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Run:
        """Return the run that :meth:`save` wrote; raise if the file has changed."""
        folder = checks.path("directory", directory)
        if not (folder / FILE).exists():
            raise CheckpointError(
                f"{folder} holds no saved run: {folder / FILE} is missing"
            )
        content = checkpoint.read(folder / FILE, "run", dict)
        kinds = get_type_hints(cls)
        if content.keys() != kinds.keys() or not all(
            isinstance(content[name], kind) for name, kind in kinds.items()
        ):
            raise CheckpointError(
                f"{folder / FILE} was not read: it is not all of a run; "
                f"{checkpoint.KEPT}"
            )
        return cls(**content)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def __repr__(self) -> str:
        count = 1 if self.trials is None else len(self.trials)
        return f"Run({self.policy}, rounds={self.rounds}, trials={count}, m={self.m})"


def join(runs: Sequence[Run]) -> Run:
    """Join runs of different trials into one, in the order of the trials' numbers.

    The parts must be of the same policy over the same rounds. The seconds of a round
    are those of the slowest part, as if all ran side by side.
    """
    if not runs:
        raise CBanditError("runs must hold at least one run; got none")
    if any(run.trials is None for run in runs):
        raise CBanditError("runs must have a trials axis to be joined")
    runs = sorted(runs, key=lambda run: run.trials[0] if run.trials else 0)
    numbers = [i for run in runs for i in run.trials or ()]
    trials = trial_range(range(numbers[0], numbers[-1] + 1))
    if trials is None or numbers != list(trials):
        raise CBanditError(f"runs must hold consecutive trials; got {numbers}")
    first = runs[0]
    if any((run.policy, run.rounds) != (first.policy, first.rounds) for run in runs):
        raise CBanditError(f"runs must be of one policy and length; got {runs}")
    if any(run.failed is not None for run in runs):
        runs = [
            replace(run, failed=torch.zeros_like(run.infeasible))
            if run.failed is None
            else run
            for run in runs
        ]
    joined: dict[str, Any] = {
        name: torch.cat([getattr(run, name) for run in runs])
        for name, values in vars(runs[0]).items()
        if isinstance(values, Tensor) and name != "seconds"
    }
    seconds = torch.stack([run.seconds for run in runs]).amax(0)
    return replace(first, trials=trials, seconds=seconds, **joined)
