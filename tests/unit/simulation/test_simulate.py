"""The loop: what it tells whom and when."""

from __future__ import annotations

import time
import warnings

import pytest
import torch
from gpytorch.kernels import RBFKernel
from inside import Choice, join, simulate
from worlds import Plain, Timeless, Uniform, same, table

import cbandit as cb
from cbandit import account
from cbandit.problems import Blockwise, Problem, Round, Table


@pytest.mark.parametrize("trials", [None, 3, range(4, 6)])
@pytest.mark.parametrize("m", [1, 3])
def test_the_run_holds_what_happened(trials, m):
    problem = table(trials, m)
    policy = Uniform(problem, seed=1, trials=trials, m=m)
    run = simulate(policy, problem, 300)
    batch = policy.batch_shape
    assert run.rounds == 300
    assert run.complete
    assert run.m == m
    assert run.actions.shape == (*batch, 300, 1)
    assert run.index.shape == run.rewards.shape == (*batch, 300)
    assert run.costs.shape == run.multipliers.shape == (*batch, 300, m)
    assert run.seconds.shape == (300,)
    f = problem.f.expand(*batch, -1).gather(-1, run.index)
    torch.testing.assert_close(run.true_rewards, f)
    assert 0.2 < (run.rewards - f).std() < 0.45  # noise of variance 0.1
    torch.testing.assert_close(run.regret, account.regret(run.optimum, f))
    # a policy's multiplier is noted before the round, though told in place
    assert torch.equal(run.multipliers[..., 0, :], torch.zeros(*batch, m).double())
    expected = run.costs.cumsum(-2)[..., :-1, :]
    torch.testing.assert_close(run.multipliers[..., 1:, :], expected)
    assert policy.log[0] == (1, 1, True, True, None)
    assert len(policy.log) == 300


def test_blocks_and_rounds_give_the_same_account():
    problem = table(3, 2)
    a = simulate(Uniform(problem, trials=3, m=2), problem, 600)
    plain = Timeless(problem)
    assert isinstance(problem, Blockwise)
    assert not isinstance(plain, Blockwise)
    assert isinstance(plain, Problem)
    b = simulate(Uniform(problem, trials=3, m=2), plain, 600)
    assert same(a, b)


def test_any_split_of_trials_is_the_same_run():
    from cbandit.problems import zhou_synthetic

    def play(trials):
        problem = zhou_synthetic(trials=trials)
        return simulate(Uniform(problem, trials=trials), problem, 50)

    whole, parts = play(5), [play(range(0, 2)), play(range(2, 5))]
    assert same(whole, join(parts[::-1]))
    with pytest.raises(cb.CBanditError, match="consecutive trials"):
        join([parts[0], parts[0]])


def test_a_problem_without_trials_serves_a_batch():
    problem = table(None)
    run = simulate(Uniform(problem, trials=4), problem, 20)
    assert run.true_costs.shape == (4, 20, 1)
    assert run.rewards.std(0).min() > 0


def test_a_policy_without_costs_is_told_none():
    problem = table()
    policy = Uniform(problem, m=0)
    run = simulate(policy, problem, 10)
    assert {entry[2:4] for entry in policy.log} == {(True, False)}
    assert run.multipliers.shape == (10, 0)
    assert run.costs.shape == (10, 1)


def test_a_drifting_world_and_thresholds():
    problem = Plain()
    problem.thresholds = lambda t: float(t)
    run = simulate(Uniform(problem), problem, 30)
    t = torch.arange(1, 31)
    assert torch.allclose(run.optimum, (2 + 0.01 * t).double())
    assert bool(run.stochastic_optimum.isnan().all())
    x = run.actions[:, 0]
    torch.testing.assert_close(run.true_costs[:, 0], x - 2.0 - t)
    torch.testing.assert_close(run.true_rewards, x + 0.01 * t)


def test_questions_reach_the_policy():
    problem, seen = Plain(), torch.ones(1, 5)
    problem.round = lambda t, generator: Round(among=[0, 1], observed_costs=seen)
    policy = Uniform(problem)
    simulate(policy, problem, 1)
    assert policy.question == ([0, 1], None, seen)


def test_a_world_that_shows_its_costs_is_for_policies_that_learn_them_too():
    class Shown(Table):
        def round(self, t, generator):
            return Round(observed_costs=self.g)

    hidden = table(size=6)
    shown = Shown(hidden.f, hidden.g, 0.1)
    gp = cb.GP(RBFKernel().double(), noise=0.1)

    def runs(world):
        policy = cb.RPOL(hidden.actions, reward=gp, costs=gp, explore=cb.UCB(1.0))
        return simulate(policy, world, 20)

    assert same(runs(shown), runs(hidden))
    sees = cb.SCGPUCB(
        hidden.actions,
        reward=gp,
        costs=1,
        explore=cb.UCB(1.0),
        slater=1.0,
        clip=3.0,
    )
    simulate(sees, shown, 20)
    assert sees.t == 20
    with pytest.raises(
        cb.CBanditError, match=r"returns cb.Round\(observed_costs=g_t\)"
    ):
        simulate(sees, hidden, 1)


def test_a_distribution_is_accounted_in_expectation():
    problem = table(2, 2)
    for world in (problem, Timeless(problem)):
        run = simulate(Uniform(problem, trials=2, m=2, mixed=True), world, 40)
        f = 0.5 * run.true_rewards + 0.5 * problem.f[:, :1]
        g = 0.5 * run.true_costs + 0.5 * problem.g[:, :, 0].unsqueeze(1)
        torch.testing.assert_close(run.expected_rewards, f)
        torch.testing.assert_close(run.stage_costs, g)


def test_callback_sees_the_rounds_and_stops():
    problem, seen = table(), []

    def callback(played):
        seen.append((played.t, played.choice.t, tuple(played.cost.shape)))
        return played.t == 7

    run = simulate(Uniform(problem), problem, 100, callback=callback)
    assert run.rounds == 7
    assert not run.complete
    assert seen == [(t, t, (1,)) for t in range(1, 8)]


def test_a_passed_horizon_is_the_policys_error():
    problem = table()
    with pytest.raises(cb.HorizonError):
        simulate(Uniform(problem, horizon=3), problem, 5)


def test_the_loop_itself_is_thin():
    """No hidden work: processor time of a round, far under its bound on any machine."""
    problem = Timeless(table(size=100))
    problem.evaluate = table(size=100).evaluate
    inner = 0.0

    def timed(function):
        def call(*args, **named):
            nonlocal inner
            begun = time.process_time()
            out = function(*args, **named)
            inner += time.process_time() - begun
            return out

        return call

    best = float("inf")
    for _ in range(3):
        policy, inner = Uniform(problem), 0.0
        policy.ask, policy.tell = timed(policy.ask), timed(policy.tell)
        observe = problem.observe
        problem.observe = timed(observe)
        begun = time.process_time()
        simulate(policy, problem, 1000)
        best = min(best, time.process_time() - begun - inner)
        problem.observe = observe
    assert best / 1000 < 200e-6


def test_a_policy_of_ones_own_may_keep_actions_of_any_kind():
    problem = cb.problems.zhou_synthetic()

    class First:
        """Plays action 0; its ``actions`` are mere names."""

        batch_shape, trials, m, t, seed, name = (), None, 1, 0, 0, "first"
        actions = ("the first",)
        multiplier = torch.zeros(1)

        def ask(self, **how):
            self.t += 1
            x = problem.actions.points(torch.tensor(0))
            index, kept = torch.tensor(0), torch.tensor(False)
            return Choice(index=index, x=x, t=self.t, infeasible=kept)

        def tell(self, choice, **seen):
            pass

        def lighten(self):
            pass

    played = []
    simulate(First(), problem, 3, callback=played.append)
    assert len(played) == 3


@pytest.mark.parametrize("own", [0.1, 0.3, 0.9, lambda t: 0.1])
def test_the_account_is_by_the_problems_thresholds(own):
    gp = cb.GP(RBFKernel().double(), noise=0.1)
    cost = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
    problem = Table(cost, cost[None], noise=0.01, thresholds=0.3)
    both = {"reward": gp, "costs": gp, "explore": cb.UCB(1.0)}
    policy = cb.CKB(problem.actions, step=0.5, cap=4.0, thresholds=own, **both)
    with warnings.catch_warnings():
        if own == 0.9:
            warnings.simplefilter("ignore")  # see below
        run = simulate(policy, problem, 30)
    assert run.thresholds.tolist() == [[0.3]]
    over = cost[run.index] - 0.3
    assert float(over.max()) > 0
    assert torch.allclose(run.hard_violation, over.clamp_min(0).cumsum(0))
    assert torch.equal(run.rounds_in_violation, (over > 0).cumsum(0))
