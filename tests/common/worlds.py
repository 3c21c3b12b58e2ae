"""Small policies and problems for tests of the loop."""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import RBFKernel
from inside import Choice, Distribution, Streams, trial_range

import cbandit as cb
import cbandit.problems as problems


class Uniform:
    """Plays uniformly at random; its multipliers add up the costs it is told."""

    name = "Uniform"

    def __init__(self, problem, seed=0, trials=None, m=1, horizon=None, mixed=False):
        self.actions, self.seed, self.m = problem.actions, seed, m
        self.trials = trial_range(trials)
        self.batch_shape = () if self.trials is None else (len(self.trials),)
        self.multiplier = torch.zeros(*self.batch_shape, m, dtype=torch.float64)
        self.streams = Streams(seed, trials, "policy")
        self.horizon, self.mixed, self.t = horizon or math.inf, mixed, 0
        self.open = {}
        self.log = []

    def ask(self, among=None, actions=None, observed_costs=None):
        if self.t >= self.horizon:
            raise cb.HorizonError(f"horizon {self.horizon} passed")
        self.t += 1
        self.question = (among, actions, observed_costs)
        where = actions or self.actions
        distribution = None
        if where.size == math.inf:
            u = self.streams.uniform(where.dim)
            index, x = None, where.lower + u * (where.upper - where.lower)
        else:
            index = (self.streams.uniform() * where.size).long()
            x = where.points(index)
            if self.mixed:
                pair = torch.stack([index, torch.zeros_like(index)], -1)
                half = torch.full(pair.shape, 0.5, dtype=torch.float64)
                distribution = Distribution(pair, half)
        infeasible = torch.zeros(self.batch_shape, dtype=torch.bool)
        choice = Choice(self.t, index, x, infeasible, distribution, "uniform")
        self.open[self.t] = choice
        return choice

    def lighten(self):
        """Nothing here is large."""

    def tell(self, choice, reward=None, cost=None, where=None):
        if self.open.get(choice.t) is not choice:
            raise cb.ChoiceError(f"choice of round {choice.t} is not of this policy")
        self.log.append((self.t, choice.t, reward is not None, cost is not None, where))
        if cost is not None:
            mask = 1.0 if where is None else where.unsqueeze(-1).double()
            # in place on purpose: the loop must have copied it
            self.multiplier += mask * cost


class Plain:
    """A user's problem with nothing but the contract's methods; it drifts."""

    def __init__(self, trials=None, delays=None, m=1):
        self.actions = problems.Table([0.0] * 5, [[0.0] * 5]).actions
        self.trials, self.delays, self.m = trial_range(trials), delays, m

    def reward(self, x, t):
        return x[..., 0] + 0.01 * t

    def costs(self, x, t):
        return torch.stack([x[..., 0] - 2.0 - j for j in range(self.m)], -1)

    def observe(self, choice, generator):
        noise = generator.normal(1 + self.m)
        t = choice.t
        return (
            self.reward(choice.x, t) + noise[..., 0],
            self.costs(choice.x, t) + noise[..., 1:],
        )

    def optimum(self, t):
        return torch.tensor(2.0 + 0.01 * t)

    def stochastic_optimum(self, t):
        return None

    def round(self, t, generator):
        if self.delays is None:
            return problems.Round()
        return problems.Round(delays=self.delays(t, generator))


def table(trials=None, m=1, seed=0, size=20, noise=0.1):
    """A random finite problem."""
    generator = torch.Generator().manual_seed(seed)
    batch = () if trials is None else (len(trial_range(trials)),)
    f = torch.randn(*batch, size, generator=generator, dtype=torch.float64)
    g = torch.randn(*batch, m, size, generator=generator, dtype=torch.float64)
    g[..., 0] = -1.0
    return problems.Table(f, g, noise, trials=trials)


def same(a, b):
    """Whether two runs are the same to the last bit, their clocks apart."""
    for name, value in vars(a).items():
        other = getattr(b, name)
        if name == "seconds":
            continue
        if isinstance(value, torch.Tensor):
            assert value.dtype == other.dtype, name
            assert torch.equal(value.nan_to_num(99), other.nan_to_num(99)), name
        else:
            assert value == other, name
    return True


class Timeless:
    """Hides ``evaluate``: the same table as a user without blocks would write it."""

    def __init__(self, table):
        for name in ("actions", "trials", "thresholds", "reward", "costs", "observe"):
            setattr(self, name, getattr(table, name))
        for name in ("optimum", "stochastic_optimum", "round"):
            setattr(self, name, getattr(table, name))


def ckb(problem, scale=0.2, noise=0.01, points=1.0, explore=None, **more):
    """A policy over the problem's actions, or over points that are off them."""
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(scale, dtype=torch.float64)
    gp = cb.GP(kernel, noise=noise)
    settings = {"reward": gp, "costs": gp, "step": 0.1, "cap": 3.0} | more
    actions = cb.Finite(problem.actions.all * points)
    return cb.CKB(actions, explore=explore or cb.UCB(1.0), **settings)


def stop_after(t):
    return lambda played: played.t == t


def smooth(**more):
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    return cb.GP(kernel, noise=0.01, **{"standardize": True} | more)


def grown(rounds):
    """A policy with many rounds behind it, and a large checkpoint."""
    points = torch.linspace(0, 1, 40, dtype=torch.float64).unsqueeze(-1)
    policy = cb.baselines.Random(cb.Finite(points), costs=1, seed=0)
    for _ in range(rounds):
        policy.tell(policy.ask(), reward=0.0, cost=0.0)
    return policy
