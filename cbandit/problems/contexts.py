"""Replayed data: every row shows a context, and has the outcome of every choice.

Each trial plays the rows in an order of its own, shuffled anew when they run out. Runs
are compared with three ways to choose, all of them feasible on average over the rows:

* the best fixed choice;
* the best linear policy in hindsight: outcomes predicted by ridge regression on all
  rows, and the prices of costs that are best for the true outcomes;
* the best choice of each row under the limits, which no policy can reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit._core.hints import hinted
from cbandit._core.log import warn
from cbandit._core.randomness import Streams
from cbandit.actions import Actions, Category, Context, Contextual, Float, Int, Space
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.policies.signs import Objective
from cbandit.problems.failures import failing_shares, worst_where_failing
from cbandit.problems.measured import column_names, measured
from cbandit.problems.optima import in_rounds, unknown, whole_set
from cbandit.problems.protocol import Evaluation, Round, uniforms
from cbandit.search.simplex.lp import solve_policy

RIDGE = 1.0
if TYPE_CHECKING:
    import pandas as pd

STEPS = 2.0 ** torch.linspace(-2, 2, 17, dtype=torch.float64)  # factors of a price
ROUNDS = 1000  # most prices that are solved for


class Yardstick(NamedTuple):
    """A way to choose that a run is compared with, on average over the rows.

    Args:
        reward: its mean reward.
        costs: its mean costs, ``(m,)``.
        shares: how often it takes each choice in each row, ``(n, K)``.
    """

    reward: float
    costs: Tensor
    shares: Tensor


@hinted
class Contexts:
    """A problem that replays data in which the outcome of every choice is known.

    ``run.regret`` is against the best linear policy in hindsight (:attr:`linear`),
    ``run.stochastic_regret`` against the best choice of each row (:attr:`each_row`);
    :attr:`fixed` is the best fixed choice. Limits hold on average.

    Args:
        contexts: ``(n, d)``, the context shown in each of ``n`` rows.
        rewards: ``(n, K)``, the reward of each of ``K`` choices.
        costs: ``(n, m, K)``, their costs.
        actions: a :func:`~cbandit.Space` with ``K`` choices and contexts of ``d``
            coordinates; ``None``: a category ``choice`` of the numbers 0 to K - 1, and
            the context ``context``.
        thresholds: the limits of the mean costs, a number or ``(m,)``; or by name,
            ``{"usd": "<= 0.02"}``, in the order of the costs. 0 by default.
        minimise: whether the reward is to be small.
        first: how many rows at the start of the data come before all others in each
            pass; both parts are shuffled apart. 0: all rows are shuffled together.
        failed: the probability that a choice cannot be measured, ``(n, K)`` or
            ``(K,)``. A choice that always fails counts as the least reward and the
            largest costs of the others in its row. ``None``: none fails.

    Example:
        >>> import cbandit as cb, torch
        >>> z = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> rewards = torch.stack([0.3 + 0 * z[:, 0], z[:, 0].sigmoid()], -1)
        >>> costs = torch.tensor([[0.1, 1.0]]).expand(500, 1, 2)
        >>> problem = cb.problems.Contexts(z, rewards, costs, thresholds=0.55)
        >>> gp = cb.GP.default(problem.actions)
        >>> policy = cb.CKB(problem.actions, reward=gp, costs=gp, thresholds=0.55)
        >>> run = cb.simulate(policy, problem, 50)
        >>> problem.fixed.reward < problem.linear.reward <= problem.each_row.reward
        True
    """

    trials = None

    def __init__(
        self,
        contexts: ArrayLike,
        rewards: ArrayLike,
        costs: ArrayLike,
        actions: Actions | None = None,
        thresholds: Any = 0.0,
        minimise: bool = False,
        first: int = 0,
        failed: object = None,
    ) -> None:
        self.settings = stated(self, locals())
        f = checks.tensor("rewards", rewards).double()
        g = checks.tensor("costs", costs).double()
        z = checks.finite("contexts", checks.tensor("contexts", contexts))
        if f.dim() != 2 or 0 in f.shape:
            raise CBanditError(
                f"rewards must have shape (n, K), a row a context; got {tuple(f.shape)}"
            )
        rows, size = f.shape
        if z.dim() != 2 or len(z) != rows or z.shape[1] == 0:
            raise CBanditError(
                f"contexts must have shape (n, d) with n = {rows}, as rewards have; "
                f"got {tuple(z.shape)}"
            )
        if g.dim() != 3 or (len(g), g.shape[2]) != (rows, size) or not g.shape[1]:
            raise CBanditError(
                f"costs must have shape (n, m, K) with n = {rows}, K = {size} and m >= "
                f"1; got {tuple(g.shape)}"
            )
        self.m = g.shape[1]
        names = list(thresholds) if isinstance(thresholds, Mapping) else self.m
        #: the names, directions and limits in which rewards and costs are stated
        self.objective = Objective(names, thresholds, minimise)
        self.minimise, self.thresholds = self.objective.minimise, thresholds
        self._failed: Tensor | None = None
        if failed is not None:
            self._failed = failing_shares(failed, (rows, size)).expand(rows, size)
            f, g = worst_where_failing(f, g, self._failed < 1, self.objective)
        f = checks.measured("rewards", f, torch.float64)
        g = checks.measured("costs", g, torch.float64)
        limits = checks.finite(
            "thresholds", checks.tensor("thresholds", self.objective.limits)
        )
        self._tau = checks.shaped("thresholds", limits, (self.m,), "(m,)")
        if actions is None:
            actions = Space(choice=Category(*range(size)), context=Context(z.shape[1]))
        self.actions = _checked(actions, size, z)
        self.contexts = z
        self._first = checks.whole("first", first, 0, f"an int from 0 to {rows}")
        if self._first > rows:
            raise CBanditError(f"first must be an int from 0 to {rows}; got {first}")
        # as stated; then as policies take them: rewards maximised, costs kept below
        self._told = torch.cat([f.unsqueeze(1), g], 1)  # n x (1 + m) x K
        self._f, self._g = self.objective.reward(f), self.objective.costs(g.mT).mT
        self._seed: tuple[int, Any] = (0, None)
        self._orders: dict[int, Tensor] = {}

    @classmethod
    @hinted
    def from_frame(
        cls,
        frame: pd.DataFrame,
        contexts: Sequence[str],
        maximise: str | None = None,
        limits: Mapping[str, Any] | None = None,
        knobs: Sequence[str] | None = None,
        *,
        minimise: str | None = None,
        failed: str | bool | None = None,
    ) -> Contexts:
        """Return a problem made of a table that measures every choice in its contexts.

        A column's type says whether it holds numbers, whole numbers or categories.
        Contexts in which some choice was not measured are left out, with a warning;
        repeated rows count as their mean.

        Args:
            frame: a pandas frame with a row for each measurement.
            contexts: the columns that are shown and not chosen.
            maximise: the column that is to be large. Give this or ``minimise``.
            minimise: the column that is to be small.
            limits: limits by column, ``{"latency": "<= 20"}``; they hold on average.
            knobs: the columns that are chosen; ``None``: all others.
            failed: a column of true and false (yes and no, 1 and 0) that says which
                rows failed; or True: rows without any outcome did. A choice fails in a
                context as often as its rows there did. ``None``: no row failed.

        Example:
            >>> import cbandit as cb, pandas
            >>> frame = pandas.DataFrame({
            ...     "load": [0.1, 0.1, 0.7, 0.7], "codec": ["lz4", "zstd"] * 2,
            ...     "speed": [3.0, 2.0, 1.0, 2.0], "heat": [5.0, 9.0, 2.0, 8.0],
            ... })
            >>> problem = cb.problems.Contexts.from_frame(
            ...     frame, ["load"], maximise="speed", limits={"heat": "<= 7"}
            ... )
            >>> problem.actions
            Space(codec=Category('lz4', 'zstd'), load=Context(Float(0.1, 0.7)))
            >>> problem.each_row.reward
            2.5
        """
        if (maximise is None) == (minimise is None):
            number = "neither" if maximise is None else "both"
            raise CBanditError(f"from_frame takes maximise= or minimise=; got {number}")
        if not isinstance(limits, Mapping) or not limits:
            raise CBanditError(
                "limits must name at least one column, {'latency': '<= 20'}; got "
                f"{limits!r}"
            )
        column_names("contexts", contexts)
        if not contexts:
            raise CBanditError("contexts must be a list of one column or more; got []")
        target, shown = str(maximise if minimise is None else minimise), list(contexts)
        taken = {target, *limits, *shown}
        if isinstance(failed, str):
            taken.add(failed)
        columns = list(frame) if knobs is None else knobs
        chosen = [str(c) for c in columns if knobs is not None or str(c) not in taken]
        read = measured(
            frame, target, list(limits), [*chosen, *shown], None, "mean", failed
        )
        names = read.actions.names
        if names is None or not chosen:
            raise CBanditError("knobs must hold at least one column; got none")
        kinds: dict[str, Any] = dict(names.parameters)
        x = read.actions.all
        levels = {c: _levels(kinds[c], x[:, j].unique()) for j, c in enumerate(chosen)}
        space = Space(**levels, **{c: Context(kinds[c]) for c in shown})
        rows, group = x[:, len(chosen) :].unique(dim=0, return_inverse=True)
        points = [
            levels[c].place(value)
            for c in chosen
            for value in names.read(x)[c].tolist()
        ]
        places = torch.tensor(points, dtype=torch.float64).view(len(chosen), -1).mT
        choice = space.menu.index(places)
        fails = torch.zeros_like(read.reward) if read.failed is None else read.failed
        told = torch.cat([read.reward.unsqueeze(0), read.costs, fails.unsqueeze(0)])
        values = torch.full((len(rows), len(told), space.size), torch.nan).double()
        values[group, :, choice] = told.mT
        never = values[:, -1] == 1  # these have no measured rows
        known = ~values.isnan().any(1) | never
        whole = known.all(-1) & ~never.all(-1)
        if not bool(whole.any()):
            raise CBanditError(
                f"frame must have every choice of {', '.join(chosen)} ({space.size} of "
                f"them) measured in some context; it has none of {len(rows)}"
            )
        if not bool(whole.all()):
            warn(
                f"{int((~whole).sum())} of {len(rows)} contexts are left out: not each "
                f"choice of {', '.join(chosen)} was measured there"
                + ", or all failed"
                * (read.failed is not None)
            )
        contextual: Any = space
        order = [shown.index(c) for c in contextual.contexts.columns]
        return cls(
            rows[whole][:, order],
            values[whole, 0],
            values[whole, 1:-1],
            space,
            dict(limits),
            minimise is not None,
            failed=None if read.failed is None else values[whole, -1],
        )

    # -- the rounds --------------------------------------------------------------------

    def _row(self, t: Tensor) -> Tensor:
        """Return the rows of rounds ``t (n,)``, ``(*trials, n)``."""
        count = len(self.contexts)
        passes = (t - 1) // count
        out = []
        for number in passes.unique().tolist():
            order = self._order(number)
            at = (t - 1)[passes == number] % count
            out.append((passes == number, order[..., at]))
        rows = torch.zeros(*out[0][1].shape[:-1], len(t), dtype=torch.long)
        for where, values in out:
            rows[..., where] = values
        return rows

    def _order(self, number: int) -> Tensor:
        """Return the order of the rows in a pass through them, ``(*trials, n)``."""
        if number not in self._orders:
            seed, trials = self._seed
            streams = Streams(seed, trials, f"rows, pass {number}")
            place = streams.uniform(len(self.contexts))
            place[..., self._first :] += 1  # after those that come first
            order = place.argsort(-1)
            # late feedback may still ask for the pass before
            held = {k: v for k, v in self._orders.items() if k >= number - 1}
            self._orders = {**held, number: order}
        return self._orders[number]

    def round(self, t: int, generator: torch.Generator) -> Round:
        """Return this round's context."""
        if isinstance(generator, Streams):
            seed = generator.seed_number, generator.trials
            if seed != self._seed:
                self._seed, self._orders = seed, {}
        rows = self._row(torch.tensor([t]))[..., 0]
        names = self.actions.contexts
        return Round(context=names.read(self.contexts[rows]))

    def _values(self, t: int, x: Tensor) -> Tensor:
        """Return reward and costs of a choice, ``(*trials, 1 + m)``."""
        rows = self._row(torch.tensor([t]))[..., 0]
        return self._told[rows, :, self.actions.index(x).to(rows.device)]

    def reward(self, x: Tensor, t: int) -> Tensor:
        """Reward ``(*trials,)`` of choices ``x (*trials, d)`` in round ``t``."""
        return self._values(t, x)[..., 0]

    def costs(self, x: Tensor, t: int) -> Tensor:
        """Costs ``(*trials, m)`` of choices ``x (*trials, d)`` in round ``t``."""
        return self._values(t, x)[..., 1:]

    def observe(self, choice: Choice, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Recorded reward ``(*trials,)`` and costs ``(*trials, m)`` of the choice.

        If choices can fail, a third value marks the trials in which this one failed.
        """
        values = self._values(choice.t, choice.x)
        if self._failed is None:
            return values[..., 0], values[..., 1:]
        rows = self._row(torch.tensor([choice.t]))[..., 0]
        chance = self._failed[rows, self.actions.index(choice.x).to(rows.device)]
        draws = uniforms(generator, tuple(chance.shape), 1)[..., 0]
        return values[..., 0], values[..., 1:], draws < chance

    # -- the account -------------------------------------------------------------------

    @whole_set
    def optimum(self, t: int) -> Tensor:
        """The reward of the best linear policy in this round, ``(*trials,)``."""
        return self._valued(self.linear, torch.tensor([t]))[..., 0]

    @whole_set
    def stochastic_optimum(self, t: int) -> Tensor:
        """The reward of the best choice of this row, ``(*trials,)``."""
        return self._valued(self.each_row, torch.tensor([t]))[..., 0]

    def _valued(self, yardstick: Yardstick, t: Tensor) -> Tensor:
        """Return what a yardstick gets in rounds ``t (n,)``, ``(*trials, n)``."""
        rows = self._row(t)
        return (yardstick.shares[rows] * self._told[rows, 0]).sum(-1)

    def evaluate(self, t: Tensor, index: Tensor | None, x: Tensor) -> Evaluation:
        """Return the truth about the rounds ``t``."""
        index = self.actions.index(x) if index is None else index
        rows = self._row(t)
        values = self._told[rows, :, index.to(rows.device)]
        optima = in_rounds(
            self,
            t,
            tuple(x.shape[:-2]),
            lambda: self._valued(self.linear, t),
            lambda: self._valued(self.each_row, t),
        )
        return Evaluation(values[..., 0], values[..., 1:], *optima)

    def within(self, t: int, shown: Round) -> tuple[Tensor, Tensor]:
        """Return NaN, with a warning: hindsight is over all choices of a row."""
        return unknown(self, shown.actions)

    @cached_property
    def fixed(self) -> Yardstick:
        """The best fixed choice; NaN if none keeps the limits on average."""
        f, g = self._f.mean(0), self._g.mean(0)
        feasible = (g <= self._tau.unsqueeze(-1)).all(0)
        shares = torch.zeros_like(self._f)
        if not bool(feasible.any()):
            return self._yardstick(shares.fill_(torch.nan))
        shares[:, f.masked_fill(~feasible, -torch.inf).argmax()] = 1.0
        return self._yardstick(shares)

    @cached_property
    def linear(self) -> Yardstick:
        """The best linear policy in hindsight, at its best price.

        It takes the choice with the greatest ``f - price g``; one ridge regression per
        choice on ``(context, 1)``, over all rows, predicts both. It may draw among a
        few prices and fixed choices, to earn most while mean costs keep the limits.
        """
        z, (rows, size) = self.contexts, self._f.shape
        spread = z.std(0, unbiased=False)
        z = (z - z.mean(0)) / torch.where(spread > 0, spread, 1.0)
        h = torch.cat([z, torch.ones_like(z[:, :1])], -1)
        inner = h.mT @ h + RIDGE * torch.eye(h.shape[1], dtype=h.dtype)
        told = torch.cat([self._f.unsqueeze(1), self._g], 1).flatten(1)
        fit = (h @ torch.linalg.solve(inner, h.mT @ told)).view(rows, -1, size)
        predicted, truth = (fit[:, 0], fit[:, 1:]), (self._f, self._g)
        policies = _solved(predicted, predicted, self._tau, [])
        policies += [torch.full((rows,), k) for k in range(size)]
        return self._mixed(_solved(predicted, truth, self._tau, policies, STEPS))

    @cached_property
    def each_row(self) -> Yardstick:
        """The best choice of each row under the limits, if all outcomes were known."""
        truth = self._f, self._g
        return self._mixed(_solved(truth, truth, self._tau, []))

    def _mixed(self, policies: list[Tensor]) -> Yardstick:
        """Return the best random mixture of policies, ``(n,)`` choices each."""
        means = torch.stack([_means((self._f, self._g), index) for index in policies])
        best = solve_policy(means[:, 0], means[:, 1:].mT, self._tau).distribution
        shares = torch.zeros_like(self._f)
        for place, share in zip(
            best.index.tolist(), best.probability.tolist(), strict=True
        ):
            index = policies[place].unsqueeze(-1)
            shares.scatter_add_(1, index, torch.full_like(shares[:, :1], share))
        return self._yardstick(shares)

    def _yardstick(self, shares: Tensor) -> Yardstick:
        means = (shares.unsqueeze(1) * self._told).sum(-1).mean(0)
        return Yardstick(float(means[0]), means[1:], shares)

    def __repr__(self) -> str:
        rows, size = self._f.shape
        return f"Contexts(n={rows}, K={size}, m={self.m})"


Functions = tuple[Tensor, Tensor]
"""Rewards ``(n, K)`` and costs ``(n, m, K)``."""


def _chosen(functions: Functions, price: Tensor) -> Tensor:
    """Return the best choice ``(n,)`` of each row at a price.

    ``price (1 + m,)`` weighs the reward, then each cost.
    """
    f, g = functions
    return (price[0] * f - torch.einsum("nmk,m->nk", g, price[1:])).argmax(-1)


def _means(functions: Functions, policy: Tensor) -> Tensor:
    """Return mean reward and costs ``(1 + m,)`` of a policy's choices ``(n,)``."""
    values = torch.cat([functions[0].unsqueeze(1), functions[1]], 1)
    at = policy[:, None, None].expand(-1, values.shape[1], 1)
    return values.gather(-1, at).squeeze(-1).mean(0)


def _solved(
    known: Functions,
    truth: Functions,
    tau: Tensor,
    policies: list[Tensor],
    steps: Tensor | None = None,
) -> list[Tensor]:
    """Return policies that have a best mixture within the limits ``tau (m,)``.

    Column generation: the best mixture so far has a price, and the policies at that
    price are added until none improves it.

    Args:
        known: the functions by which policies choose, each at a price of its own.
        truth: the functions that their choices earn.
        tau: the limits of the mean costs.
        policies: those to begin with, ``(n,)`` choices each.
        steps: factors of the price that are tried too; ``None``: none.
    """
    price = torch.zeros(1 + len(tau), dtype=torch.float64)
    price[0] = 1.0
    policies = [*policies, _chosen(known, price)]
    sums = [_means(truth, policy) for policy in policies]
    steps = torch.ones(1, dtype=torch.float64) if steps is None else steps
    for _ in range(ROUNDS):
        means = torch.stack(sums)
        best = solve_policy(means[:, 0], means[:, 1:].mT, tau)
        # while no mixture keeps the limits, only costs have a price
        price[0] = float(not bool(best.infeasible))
        weight = torch.cat([price[:1], -best.multiplier])
        least = float((means @ weight).max())
        least += 1e-12 * (1 + abs(least))
        count = len(policies)
        for step in steps:
            policy = _chosen(known, torch.cat([price[:1], step * best.multiplier]))
            new = _means(truth, policy)
            if float(weight @ new) > least:
                policies.append(policy)
                sums.append(new)
        if len(policies) == count:
            break
    return policies


def _levels(parameter: Any, values: Tensor) -> Int | Float | Category:
    """Return a knob whose values are exactly those measured, ``(n,)``."""
    if isinstance(parameter, Category):
        return parameter
    gaps = values.diff()
    if isinstance(parameter, Int) and bool((gaps == 1).all()):
        return parameter
    if len(gaps) and bool(((gaps - gaps[0]).abs() <= 1e-9 * gaps[0]).all()):
        low, high = float(values[0]), float(values[-1])
        return Float(low, high, step=(high - low) / len(gaps))
    return Category(*parameter.read(values.numpy()).tolist())


def _checked(actions: Actions, size: int, z: Tensor) -> Contextual:
    """Return the set of a problem's choices and contexts; raise if it does not fit."""
    if not isinstance(actions, Contextual) or not actions.finite:
        raise CBanditError(
            "actions must be a cb.Space with a cb.Context and choices that can be "
            f"counted; got {actions!r}"
        )
    if actions.menu.linear is not None:
        raise CBanditError(
            "actions must have no where= here, as every choice has data; got "
            f"{actions!r}: leave rows out instead"
        )
    columns = len(actions.contexts.columns)
    if actions.size != size or columns != z.shape[1]:
        raise CBanditError(
            f"actions must have K = {size} choices, as rewards have, and d = "
            f"{z.shape[1]} coordinates of contexts; got {actions.size} and {columns}"
        )
    return actions
