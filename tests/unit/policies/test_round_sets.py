"""The account of rounds that show a set of their own, against brute force."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.optimize import linprog

import cbandit as cb
from cbandit.problems import Gridded, LinearProblem, Phase, Round, Table

R = 0.1
STEPS = {"step": 0.5, "cap": 4.0, "explore": cb.UCB(1.0)}


def unit(t, count=6, dim=3):
    """Return ``count`` unit vectors that depend on ``t`` alone."""
    draws = np.random.default_rng(t).normal(size=(count, dim))
    return torch.from_numpy(draws / np.linalg.norm(draws, axis=-1, keepdims=True))


def mask_of(t, trials=0):
    """Return a mask of eight actions that depends on ``t`` alone, with action 0."""
    shape = (trials, 8) if trials else (8,)
    mask = torch.from_numpy(np.random.default_rng(t).random(shape) < 0.4)
    mask[..., 0] = True
    return mask


def best_mixture(f, g, tau):
    """Return the value of the linear programme over arms ``f (n,)``, ``g (m, n)``."""
    f, g = np.asarray(f), np.asarray(g)
    solved = linprog(-f, A_ub=g, b_ub=tau, A_eq=np.ones((1, len(f))), b_eq=[1.0])
    return -solved.fun


def summed(values):
    return torch.tensor(values, dtype=torch.float64).cumsum(0)


class Stars(LinearProblem):
    """A linear problem with new segments in every round."""

    def round(self, t, generator):
        return Round(actions=cb.Star(torch.zeros(3), unit(t)))


def stars(**more):
    nearly_nothing = cb.Star(torch.zeros(3), [[0.0, 0.0, 0.01]])
    theta, mu = [1.0, 0.0, 0.5], [[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]
    problem = Stars(
        nearly_nothing, theta, mu, noise=R**2, thresholds=[0.3, 0.4], **more
    )
    linear = cb.Linear(subgaussian=R)
    policy = cb.LCLUCB(
        problem.actions,
        reward=linear,
        costs=[linear] * 2,
        safe=cb.Safe(x=[0.0, 0.0, 0.0]),
        thresholds=[0.3, 0.4],
        **more,
    )
    return policy, problem


@pytest.mark.parametrize("trials", [None, 2])
def test_regret_is_against_the_segments_of_the_round(trials):
    policy, problem = stars(trials=trials)
    run = cb.simulate(policy, problem, 40)
    a = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    best, mixed = [], []
    for t in range(1, 41):
        x = unit(t)
        costs = x @ problem.mu.reshape(-1, 2, 3)[0].mT  # 6 x 2
        f = x @ problem.theta.reshape(-1, 3)[0]
        kept = (costs.unsqueeze(-1) * a <= torch.tensor([[0.3], [0.4]])).all(1)
        best.append(float((f.unsqueeze(-1) * a).masked_fill(~kept, -9).max()))
        f, costs = np.append(0.0, f), np.append(np.zeros((1, 2)), costs, 0)
        mixed.append(best_mixture(f, costs.T, [0.3, 0.4]))
    earned = run.true_rewards.cumsum(-1)
    # the grid of 10 001 points along a segment misses at most 1e-4 of it each round
    assert torch.allclose(run.regret, summed(best) - earned, atol=40e-4)
    assert torch.allclose(run.stochastic_regret, summed(mixed) - earned, atol=1e-8)


class Parts(Table):
    """A table of which every round shows a part."""

    def round(self, t, generator):
        mask = mask_of(t, 0 if self.trials is None else len(self.trials))
        return Round(among=mask if t % 2 else mask.nonzero()[..., -1])


def table(kind=Parts, **more):
    draws = torch.from_numpy(np.random.default_rng(0).random((2, 8)))
    draws[:, 0] = 0.0
    problem = kind(draws[0], draws[1:], 0.01, thresholds=0.4, **more)
    belief = cb.Counts(subgaussian=R, range=(-2.0, 3.0))
    policy = cb.OPB(
        problem.actions,
        reward=belief,
        costs=belief,
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=0.4,
        horizon=60,
        **more,
    )
    return policy, problem


def test_regret_is_against_the_part_of_the_round():
    policy, problem = table()
    run = cb.simulate(policy, problem, 60)
    f, g = problem.f, problem.g
    masks = [mask_of(t) for t in range(1, 61)]
    best = [float(f[mask & (g[0] <= 0.4)].max()) for mask in masks]
    mixed = [best_mixture(f[mask], g[:, mask], [0.4]) for mask in masks]
    assert torch.allclose(run.regret, summed(best) - run.true_rewards.cumsum(0))
    expected = run.expected_rewards.cumsum(0)
    assert torch.allclose(run.policy_regret, summed(mixed) - expected)
    assert float(run.policy_regret.diff().min()) > -1e-9


class PartsByTrial(Parts):
    """Each trial is shown a part of its own."""

    def round(self, t, generator):
        return Round(among=mask_of(t, 3))


def test_each_trial_has_its_own_part():
    policy, problem = table(PartsByTrial, trials=3)
    run = cb.simulate(policy, problem, 20)
    f, g = problem.f[0], problem.g[0]
    for i in range(3):
        masks = [mask_of(t, 3)[i] for t in range(1, 21)]
        mixed = [best_mixture(f[mask], g[:, mask], [0.4]) for mask in masks]
        expected = run.expected_rewards[i].cumsum(0)
        assert torch.allclose(run.policy_regret[i], summed(mixed) - expected)


class Later(Parts):
    """The first rounds, and some later ones, show the whole set."""

    def round(self, t, generator):
        return Round() if t < 10 or t % 3 == 0 else super().round(t, generator)


def later(t):
    return t >= 10 and t % 3 != 0


@pytest.mark.parametrize("stop", [None, 5, 10, 21])
def test_rounds_with_and_without_a_part_mix(stop, tmp_path):
    policy, problem = table(Later)
    if stop is not None:  # a run that goes on from its checkpoint
        path = tmp_path / "run.ckpt"
        cb.simulate(policy, problem, stop, checkpoint=path)
        policy, problem = table(Later)
        run = cb.simulate(policy, problem, 40, checkpoint=path)
    else:
        run = cb.simulate(policy, problem, 40)
    every = torch.ones(8, dtype=torch.bool)
    allowed = [mask_of(t) if later(t) else every for t in range(1, 41)]
    best = [float(problem.f[m & (problem.g[0] <= 0.4)].max()) for m in allowed]
    assert torch.allclose(run.optimum.expand(40), torch.tensor(best).double())


def test_a_set_of_the_rounds_own_is_numbered_apart_from_the_problems():
    class Reversed(Table):
        def round(self, t, generator):
            return Round(
                actions=cb.Finite(torch.arange(7.0, 3.0, -1.0).double()[:, None])
            )

    problem = Reversed(torch.arange(8.0), torch.zeros(1, 8), thresholds=1.0)
    gp = cb.GP(RBFKernel().double(), noise=0.01)
    policy = cb.CKB(problem.actions, reward=gp, costs=gp, thresholds=1.0, **STEPS)
    run = cb.simulate(policy, problem, 10)
    assert torch.equal(run.true_rewards, run.actions[:, 0])
    assert torch.equal(run.rewards, run.actions[:, 0])  # there is no noise
    assert torch.allclose(run.regret, (7.0 - run.actions[:, 0]).cumsum(0))


def test_a_minimised_reward_and_a_lower_limit():
    class Cheap(Table):
        def round(self, t, generator):
            return Round(among=mask_of(t))

    f, g = torch.from_numpy(np.random.default_rng(1).random((2, 8)))
    g[0] = 1.0
    problem = Cheap(f, g[None], thresholds={"quality": ">= 0.5"}, minimise=True)
    gp = cb.GP(RBFKernel().double(), noise=0.01)
    policy = cb.CKB(
        problem.actions,
        reward=gp,
        costs={"quality": gp},
        thresholds={"quality": ">= 0.5"},
        minimise=True,
        **STEPS,
    )
    run = cb.simulate(policy, problem, 15)
    masks = [mask_of(t) for t in range(1, 16)]
    best = [float(f[mask & (g >= 0.5)].min()) for mask in masks]
    assert torch.allclose(run.regret, run.true_rewards.cumsum(0) - summed(best))


@pytest.mark.parametrize("part", [False, True])
def test_a_problems_own_optimum_is_asked(part):
    class Own(Table):
        def round(self, t, generator):
            return Round(among=mask_of(t)) if part else Round()

        def optimum(self, t):
            return 2.0 + t

    policy, problem = table(Own)
    run = cb.simulate(policy, problem, 30)
    rounds = torch.arange(1, 31, dtype=torch.float64)
    assert torch.equal(run.optimum.expand(30), 2.0 + rounds)
    assert not bool(run.stochastic_optimum.isnan().any())


def test_a_grid_is_searched_in_the_rounds_part():
    class Half(Gridded):
        def round(self, t, generator):
            return Round(among=torch.arange(11) < 5 + t)

    phase = Phase(1, lambda x: x[..., 0], lambda x: x - 0.85)
    problem = Half([phase], [torch.linspace(0, 1, 11, dtype=torch.float64)], noise=0.0)
    gp = cb.GP(RBFKernel().double(), noise=0.01)
    run = cb.simulate(cb.CKB(problem.actions, reward=gp, costs=gp, **STEPS), problem, 8)
    best = torch.tensor([min(0.4 + 0.1 * t, 0.8) for t in range(1, 9)]).double()
    assert torch.allclose(run.optimum, best)


def test_hindsight_over_all_choices_says_that_it_is_of_no_use_for_a_part():
    class Some(cb.problems.Contexts):
        def round(self, t, generator):
            whole = super().round(t, generator)
            return Round(context=whole.context, among=[0, 1])

    draws = np.random.default_rng(0)
    problem = Some(
        draws.random((20, 2)),
        draws.random((20, 3)),
        draws.random((20, 1, 3)),
        thresholds=0.9,
    )
    gp = cb.GP.default(problem.actions)
    policy = cb.CKB(problem.actions, reward=gp, costs=gp, thresholds=0.9)
    with pytest.warns(UserWarning, match="Some.round shows a part of its set"):
        run = cb.simulate(policy, problem, 5)
    assert bool(run.regret.isnan().all())
    assert not bool(run.true_rewards.isnan().any())


@pytest.mark.parametrize("star", [True, False])
def test_the_shipped_problem_is_against_the_best_of_its_sets(star):
    problem = cb.problems.pacchiano_contextual(3, 6, 0.4, star, trials=2, seed=4)
    linear, zero = cb.Linear(subgaussian=R), [0.0, 0.0, 0.0]
    kind = cb.LCLUCB if star else cb.OPLB
    policy = kind(
        problem.actions,
        reward=linear,
        costs=linear,
        safe=cb.Safe(x=zero),
        thresholds=problem.thresholds,
        trials=2,
    )
    run = cb.simulate(policy, problem, 12)
    for i in range(2):
        sets = [problem.round_set(t) for t in range(1, 13)]
        points = [(s.ends if star else s.all)[i].numpy() for s in sets]
        f = [x @ problem.theta[i].numpy() for x in points]
        g = [x @ problem.mu[i, 0].numpy() for x in points]
        over = [row > 0.4 for row in g]
        if star:  # the part of each segment that keeps the limit
            shares = [0.4 / np.where(o, c, 0.4) for o, c in zip(over, g, strict=True)]
            ends = [a * row for a, row in zip(shares, f, strict=True)]
        else:
            ends = [np.where(o, -9.0, row) for o, row in zip(over, f, strict=True)]
        best = summed([max(row) for row in ends])
        mixed = [best_mixture(r, c[None], [0.4]) for r, c in zip(f, g, strict=True)]
        earned = run.true_rewards[i].cumsum(0)
        assert torch.allclose(run.regret[i], best - earned)
        assert torch.allclose(run.stochastic_regret[i], summed(mixed) - earned)
    assert int(run.rounds_in_violation[:, -1].sum()) == 0 or not star


def test_the_shipped_problems_sets_change_and_are_those_of_the_trial():
    problem = cb.problems.pacchiano_contextual(trials=3)
    alone = cb.problems.pacchiano_contextual(trials=range(2, 3))
    tips = [problem.round_set(t).tips for t in (1, 2, 64, 65, 1)]
    assert all(not torch.equal(a, b) for a, b in pairwise(tips))
    assert torch.equal(tips[0], tips[-1])
    assert torch.equal(alone.round_set(65).tips[0], tips[3][2])
    with pytest.raises(cb.CBanditError, match="thresholds must be at least 0"):
        cb.problems.pacchiano_contextual(tau=-0.1)
