"""Policies with a safe action: batches, checkpoints, late feedback, failed rounds."""

from __future__ import annotations

import copy

import pytest
import torch
from inside import settled, streams_of
from stagewise import count_policy, linear_policy, rounds_of, unit

import cbandit as cb

MAKERS = {
    "LC-LUCB": lambda trials: linear_policy(cb.LCLUCB, trials),
    "Safe-LTS": lambda trials: linear_policy(cb.baselines.SafeLTS, trials),
    "ROFUL": lambda trials: linear_policy(cb.baselines.ROFUL, trials),
    "S-COLTS": lambda trials: linear_policy(cb.baselines.SCOLTS, trials),
    "OPLB": lambda trials: linear_policy(cb.OPLB, trials, solver="l1"),
    "OPB": count_policy,
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_trial_runs_alike_in_any_batch(name):
    if name == "OPLB":
        pytest.importorskip("clarabel")
    whole = rounds_of(MAKERS[name](4), range(4))
    part = rounds_of(MAKERS[name](range(1, 3)), range(1, 3))
    torch.testing.assert_close(whole[1:3], part, rtol=1e-9, atol=1e-9)
    alone = rounds_of(MAKERS[name](None), [0])
    torch.testing.assert_close(whole[0], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MAKERS)
def test_it_goes_on_from_a_checkpoint(name, tmp_path):
    if name == "OPLB":
        pytest.importorskip("clarabel")
    policy = MAKERS[name](2)
    rounds_of(policy, range(2))
    policy.save(tmp_path / "one")
    again = cb.load(tmp_path / "one")
    torch.testing.assert_close(
        rounds_of(policy, range(2)), rounds_of(again, range(2)), rtol=0, atol=0
    )


@pytest.mark.parametrize("name", ["LC-LUCB", "OPB"])
def test_feedback_may_come_apart_late_and_for_some_trials(name):
    first, second = MAKERS[name](2), MAKERS[name](2)
    reward, cost = torch.tensor([0.1, 0.2]), torch.tensor([[0.0, 0.1], [0.1, 0.0]])
    one, other = first.ask(), second.ask()
    first.tell(one, reward=reward, cost=cost)
    second.tell(other, cost=cost, where=torch.tensor([True, False]))
    second.tell(other, cost=cost, where=torch.tensor([False, True]))
    second.tell(other, reward=reward)
    a, b = first.posterior(), second.posterior()
    torch.testing.assert_close(a.reward.mean, b.reward.mean)
    torch.testing.assert_close(a.costs.mean, b.costs.mean)
    torch.testing.assert_close(a.costs.std, b.costs.std)


def test_earlier_data_and_recommendations():
    policy = count_policy(None)
    index = torch.tensor([0, 1, 2, 3] * 50)
    means = torch.tensor([0.0, 0.5, 0.9, 1.0]).double()
    costs = torch.stack([means * 0.3, means * 0.1], -1)
    policy.observe(index=index, reward=means[index], cost=costs[index] / 1.0)
    torch.testing.assert_close(policy.posterior().reward.mean, means)
    linear = linear_policy(cb.LCLUCB, None)
    x = unit(30, 3, seed=9)
    linear.observe(x=x, reward=x[:, 0], cost=x[:, 1:])
    mean = linear.posterior().reward.mean
    w = torch.linalg.solve(torch.eye(3).double() + x.mT @ x, x.mT @ x[:, 0])
    torch.testing.assert_close(mean, linear.actions.tips @ w)


def draws_next(policy):
    """The next draws of a policy, which stay to be drawn."""
    return copy.deepcopy(streams_of(policy)).uniform(3)


def test_a_failed_round_of_oplb_changes_nothing():
    pytest.importorskip("clarabel")
    policy = linear_policy(cb.OPLB, None)
    rounds_of(policy, [0])
    before, draws = settled(policy), draws_next(policy)
    for wrong, says in (
        ({"actions": unit(4, 3)}, "must contain the safe action"),
        ({"actions": torch.zeros(0, 3)}, "none of them 0"),
        ({"actions": torch.cat([torch.zeros(1, 3), 2 * torch.eye(3)])}, "no longer"),
        ({"actions": cb.Star(torch.zeros(3), torch.eye(3))}, "must be a Finite set"),
        ({"among": [1, 2]}, "leave the safe action"),
        ({"among": []}, "at least one"),
    ):
        with pytest.raises(cb.CBanditError, match=says):
            policy.ask(**wrong)
    assert policy.t == 12
    assert settled(policy) is before
    assert draws_next(policy).equal(draws)


def test_a_failed_round_changes_nothing():
    policy = linear_policy(cb.LCLUCB, None)
    rounds_of(policy, [0])
    before, draws = settled(policy), draws_next(policy)
    for wrong, says in (
        ({"actions": unit(4, 3)}, "must contain the safe action"),
        ({"actions": torch.zeros(0, 3)}, "none of them 0"),
        ({"actions": cb.Star(0.1 * torch.ones(3), torch.eye(3))}, "centre"),
        ({"actions": torch.cat([torch.zeros(1, 3), 2 * torch.eye(3)])}, "no longer"),
        ({"actions": torch.zeros(2, 4)}, "d = 3"),
        ({"among": torch.zeros(5, dtype=torch.bool)}, "at least one"),
        ({"observed_costs": torch.zeros(2, 5)}, "SCGPUCB"),
    ):
        with pytest.raises(cb.CBanditError, match=says):
            policy.ask(**wrong)
    assert policy.t == 12
    assert settled(policy) is before
    assert draws_next(policy).equal(draws)


def test_feedback_out_of_its_range_changes_nothing():
    policy = count_policy(None)
    choice = policy.ask()
    with pytest.raises(
        cb.CBanditError, match=r"cost must lie in the stated range.* got 3"
    ):
        policy.tell(choice, reward=0.0, cost=[0.0, 3.0])
    with pytest.raises(cb.CBanditError, match="reward must lie in the stated range"):
        policy.tell(choice, reward=-9.0, cost=[0.0, 0.0])
    with pytest.raises(cb.CBanditError, match="finite"):
        policy.tell(choice, reward=float("nan"), cost=[0.0, 0.0])
    policy.tell(choice, reward=0.0, cost=[0.0, 0.0])  # nothing of these was kept


def test_a_safe_action_that_is_not_safe_is_found_out():
    policy = cb.LCLUCB(
        cb.Star([0.5, 0.0], torch.eye(2)),
        reward=cb.Linear(0.01),
        costs=cb.Linear(0.01),
        safe=cb.Safe(x=[0.5, 0.0]),
        thresholds=0.2,
        horizon=100,
    )
    choice = policy.ask()
    policy.tell(choice, reward=0.1, cost=0.9)
    with pytest.raises(cb.InfeasibleError, match="safe"):
        policy.ask()


def test_among_must_leave_the_safe_arm():
    policy = count_policy(None)
    with pytest.raises(cb.CBanditError, match="leave the safe action"):
        policy.ask(among=[1, 2])
    choice = policy.ask(among=[0, 2])
    shares = choice.distribution.probability
    assert set(choice.distribution.index[shares > 0].tolist()) <= {0, 2}
