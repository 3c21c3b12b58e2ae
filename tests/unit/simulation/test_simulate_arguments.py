"""The loop refuses parts that lack something or do not go together."""

from __future__ import annotations

import warnings

import pytest
import torch
from gpytorch.kernels import RBFKernel
from inside import simulate
from worlds import Plain, Timeless, Uniform, ckb, table

import cbandit as cb
from cbandit.problems import Table


def test_other_trials_are_refused():
    problem = table(3)
    with pytest.raises(cb.CBanditError, match="same trials"):
        simulate(Uniform(problem, trials=4), problem, 5)
    with pytest.raises(cb.CBanditError, match="same trials"):
        simulate(Uniform(problem), problem, 5)


@pytest.mark.parametrize("horizon", [0, -1, 2.5, True])
def test_a_bad_horizon_is_refused(horizon):
    problem = table()
    with pytest.raises(cb.CBanditError, match="horizon"):
        simulate(Uniform(problem), problem, horizon)


def test_wrong_feedback_is_named():
    problem = Plain(m=2)
    with pytest.raises(cb.CBanditError, match="costs of shape"):
        simulate(Uniform(problem, m=3), problem, 2)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"round": lambda t, generator: None}, "problem.round must return a cb.Round"),
        ({"observe": lambda choice, generator: 0.5}, "must return a pair"),
        ({"observe": lambda choice, generator: None}, "must return a pair"),
    ],
)
def test_what_a_problem_answers_is_checked(broken, says):
    problem = Plain()
    vars(problem).update(broken)
    policy = Uniform(problem)
    with pytest.raises(cb.CBanditError, match=says):
        simulate(policy, problem, 2)


def test_what_a_problem_lacks_is_named():
    class Half:
        trials = None
        actions = Plain().actions

        def reward(self, x, t):
            return x.sum(-1)

    with pytest.raises(
        cb.CBanditError, match=r"Half lacks costs\(\), observe\(\), optimum"
    ):
        simulate(Uniform(Half()), Half(), 2)


@pytest.mark.parametrize(
    ("own", "odd"),
    [
        (0.0, True),  # left out, it may be
        (0.2, False),
        (0.3, False),
        (0.4, True),
        ([[0.2], [0.4]], True),
        (lambda t: 0.9, False),
    ],
)
def test_thresholds_that_nobody_may_have_meant_are_warned_of(own, odd):
    gp = cb.GP(RBFKernel().double(), noise=0.1)
    cost = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
    problem = Table(cost, cost[None], noise=0.01, thresholds=0.3)
    both = {"reward": gp, "costs": gp, "explore": cb.UCB(1.0)}
    trials = 2 if isinstance(own, list) else None
    policy = cb.CKB(
        problem.actions, step=0.5, cap=4.0, thresholds=own, trials=trials, **both
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        simulate(policy, problem, 2)
    assert len(seen) == odd
    if odd:
        assert "by the problem's, [0.3]" in str(seen[0].message)
        assert seen[0].filename == __file__


def test_thresholds_of_ones_own_problem_are_looked_at_before_a_round():
    problem = table()
    problem.thresholds = [0.1, 0.2, 0.3]
    policy = ckb(problem)
    with pytest.raises(cb.CBanditError, match=r"problem.thresholds must have shape"):
        simulate(policy, problem, 2)
    assert policy.t == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"progress": [1]}, r"progress must be True or False; got \[1\]"),
        ({"horizon": 10**30}, r"horizon = 1000.* GB for their account"),
        ({"checkpoint": "a\0b"}, r"checkpoint must be a path without a null byte"),
        ({"callback": 3}, r"callback must be a callable.*got 3"),
        ({"checkpoint": 3}, r"checkpoint must be a path; got 3"),
        ({"checkpoint_every": "x"}, r"checkpoint_every must be a number; got 'x'"),
        ({"checkpoint_every": -1.0}, r"checkpoint_every must be .* at least 0"),
        ({"checkpoint_every": float("nan")}, r"checkpoint_every must be finite"),
    ],
)
def test_what_cannot_be_is_told_before_a_round(more, words):
    problem = table()
    policy = Uniform(problem)
    with pytest.raises(cb.CBanditError, match=words):
        simulate(policy, problem, **({"horizon": 4} | more))
    assert policy.t == 0


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize(
    "name", ["reward", "costs", "optimum", "stochastic_optimum", "observe"]
)
def test_truths_of_ones_own_problem_of_other_shapes(name, trials):
    problem = Timeless(table(trials, 2))
    policy = Uniform(problem, trials=trials, m=2)
    kept = getattr(problem, name)
    bad = torch.zeros(*policy.batch_shape, 5)
    setattr(problem, name, lambda *given: bad)
    with pytest.raises(cb.CBanditError, match=rf"^problem.{name} must"):
        simulate(policy, problem, 3)
    setattr(problem, name, kept)
    observe = problem.observe
    problem.observe = lambda *given: [v.requires_grad_() for v in observe(*given)]
    assert simulate(Uniform(problem, trials=trials, m=2), problem, 3).rounds == 3


def test_a_policy_of_other_costs_is_not_asked():
    problem = table(m=2)
    policy = Uniform(problem, m=3)
    with pytest.raises(cb.CBanditError, match="the policy has 3, the problem 2"):
        simulate(policy, problem, 4)
    assert policy.t == 0


def test_a_horizon_that_will_pass_is_told_before_a_round(tmp_path):
    problem, path = table(), tmp_path / "a.ckpt"
    gp = cb.GP(RBFKernel().double(), noise=0.1)

    def make():
        both = {"reward": gp, "costs": gp, "explore": cb.UCB(1.0)}
        return cb.CKB(problem.actions, step=0.5, cap=4.0, horizon=8, **both)

    policy = make()
    with pytest.raises(cb.HorizonError, match="own is 8 rounds; got 9 to play"):
        simulate(policy, problem, 9)
    assert policy.t == 0
    assert simulate(policy, problem, 5, path).rounds == 5
    with pytest.raises(cb.HorizonError, match="got 4 to play after its 5 so far"):
        simulate(policy, problem, 4)
    assert policy.t == 5
    # a callback may stop it before
    stops = simulate(make(), problem, 9, callback=lambda played: played.t == 6)
    assert stops.rounds == 6
    # of a run that goes on only the rest is to play
    assert simulate(make(), problem, 8, path).rounds == 8
