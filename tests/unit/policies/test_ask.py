"""A round that cannot be played is named, and leaves the policy as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from midway import NAN, belief, line, policy_of, prepared, same_future

import cbandit as cb


@pytest.mark.parametrize("kind", ["UCB", "TS", "Rand"])
def test_several_points_at_once(kind):
    """There is no q: several are outstanding, and only UCB counts their variance."""
    make = {"UCB": cb.UCB(1.0), "TS": cb.TS(1.0), "Rand": cb.Rand(1.0)}
    (policy, _, _), (twin, _, _) = (prepared(explore=make[kind]) for _ in range(2))
    with pytest.raises(TypeError, match="'q'"):
        policy.ask(q=2)
    assert same_future(policy, twin)
    if kind != "UCB":
        with pytest.raises(cb.CBanditError, match="pending='hallucinate' goes with"):
            prepared(explore=make[kind], pending="hallucinate")


ASKS = [
    ({"among": []}, ["among"]),
    ({"among": np.zeros(20, bool)}, ["among", "at least one"]),
    ({"among": np.zeros(19, bool)}, ["among", "20", "19"]),
    ({"among": [3, 20]}, ["among", "index", "0 .. 19", "20"]),
    ({"among": [-1]}, ["among", "index", "-1"]),
    ({"among": [0.5]}, ["among", "index", "whole"]),
    ({"among": [0, 1] * 10}, ["among", "20", "mask", ".bool()", "numbers"]),
    ({"among": np.array([[0, 1] * 10])}, ["among", "mask"]),
    ({"among": np.ones((2, 20), bool)}, ["among", "shape", "(2, 20)"]),
    ({"among": [1], "actions": line()}, ["among", "actions"]),
    ({"actions": torch.zeros(3, 2)}, ["actions", "d = 1", "2"]),
    ({"actions": torch.zeros(0, 1)}, ["points", "(0, 1)"]),
    ({"actions": [[NAN]]}, ["points", "finite"]),
    ({"actions": torch.zeros(4, 3, 1)}, ["actions", "trials"]),
    ({"actions": cb.Box([0.0], [1.0])}, ["actions", "Box"]),
    ({"actions": cb.Finite(covariance=np.eye(3))}, ["covariance", "among"]),
    ({"observed_costs": np.zeros((2, 20))}, ["observed_costs", "SCGPUCB"]),
]


@pytest.mark.parametrize("kind", ["UCB", "TS", "Rand"])
@pytest.mark.parametrize(("asked", "words"), ASKS)
def test_rounds_that_cannot_be(asked, words, kind):
    make = {"UCB": cb.UCB(1.0), "TS": cb.TS(1.0), "Rand": cb.Rand(1.0)}
    (policy, _, _), (twin, _, _) = (prepared(explore=make[kind]) for _ in range(2))
    with pytest.raises(cb.CBanditError) as error:
        policy.ask(**asked)
    if kind != "TS" or "actions" not in asked:
        assert all(word in str(error.value) for word in words), str(error.value)
    assert same_future(policy, twin)


def test_a_set_for_a_round_with_joint_draws():
    (policy, _, _), (twin, _, _) = (prepared(explore=cb.TS(1.0)) for _ in range(2))
    with pytest.raises(cb.CBanditError, match=r"cb\.UCB or cb\.Rand"):
        policy.ask(actions=line(4))
    assert same_future(policy, twin)


def test_points_that_are_no_set_name_the_argument():
    policy, _, _ = prepared()
    for points in ([[torch.nan]], torch.empty(0, 1)):
        with pytest.raises(cb.CBanditError, match="actions: points must"):
            policy.ask(actions=points)


def test_a_round_on_a_box_of_a_policy_of_vectors():
    linear = cb.Linear(subgaussian=0.1)
    policy = cb.LCLUCB(
        cb.Finite(line()),
        reward=linear,
        costs=linear,
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=0.5,
    )
    with pytest.raises(cb.CBanditError, match=r"actions of this round must be .*Box"):
        policy.ask(actions=cb.Box([0.0], [1.0]))


def default_on(actions):
    gp = cb.GP.default(actions)
    return cb.GPUCB(actions, reward=gp, explore=cb.UCB(1.0), seed=3)


@pytest.mark.parametrize("kind", ["Box", "rows"])
def test_a_round_outside_of_what_the_policy_knows(kind):
    far, words = [[5.0, 7.0]], "must lie between lower"
    actions = cb.Box([0.0, 0.0], [1.0, 1.0])
    if kind == "rows":
        actions = cb.Box([0.0], [1.0], choices=[[1.0], [2.0]])
        far, words = [[0.5, 1.5]], "must end with one of the 2 rows"
    policy, twin = default_on(actions), default_on(actions)
    with pytest.raises(cb.CBanditError, match=f"actions of this round {words}"):
        policy.ask(actions=far)
    assert policy.t == 0
    near = [[0.25, 1.0], [0.5, 1.0]]  # flat, but within
    for each in (policy, twin):
        choice = each.ask(actions=near)
        assert choice.x.tolist() in near
        each.tell(choice, reward=1.0)
    for _ in range(3):
        a, b = policy.ask(), twin.ask()
        assert torch.equal(a.x, b.x)
        for each, choice in ((policy, a), (twin, b)):
            each.tell(choice, reward=0.5)


def test_contexts_may_lie_where_no_action_of_the_set_did():
    policy = default_on(cb.Finite([[0.0, 0.0], [1.0, 1.0]]))
    choice = policy.ask(actions=[[1.2, 0.5]])
    policy.tell(choice, reward=1.0)
    assert float(policy.posterior([[1.2, 0.5]]).reward.mean) > 0.4


def test_numbers_without_a_sign_are_indices():
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        index = torch.tensor([3, 5]).to(dtype)
        assert policy_of().ask(among=index).index.item() in (3, 5)
        with pytest.raises(cb.CBanditError, match="among: index must lie in"):
            policy_of().ask(among=torch.tensor([20]).to(dtype))


def test_what_makes_no_acquisition_function():
    policy = cb.baselines.BoTorchPolicy(
        cb.Finite(line()), reward=belief(), make_acquisition=lambda m, p: None
    )
    policy.tell(policy.ask(), reward=1.0)
    with pytest.raises(cb.CBanditError, match=r"make_acquisition must return .*None"):
        policy.ask()
    assert policy.t == 1


def test_a_horizon_passed():
    policy = policy_of(horizon=3)
    for _ in range(3):
        policy.tell(policy.ask(), reward=0.0, cost=[0.0, 0.0])
    with pytest.raises(cb.HorizonError, match="horizon of 3"):
        policy.ask()
    assert policy.t == 3
    assert policy.recommend().index.dim() == 0


@pytest.mark.parametrize("engine", ["joint", "factor"])
def test_a_set_of_one_action(engine):
    policy = cb.CKB(
        cb.Finite([[0.5]]),
        reward=belief(),
        costs=belief(),
        explore=cb.UCB(1.0),
        step=0.1,
        cap=1.0,
        engine=engine,
    )
    for _ in range(5):
        choice = policy.ask()
        assert choice.index.item() == 0
        policy.tell(choice, reward=1.0, cost=1.0)


def test_what_is_not_a_number_is_not_skipped():
    from inside import maximise

    for trials in (1, 2):
        blocks = [torch.zeros(trials, 2, 4) for _ in range(3)]
        for bad in range(3):
            given = [b.clone() for b in blocks]
            given[bad][:, 0, 1] = NAN
            stretches = [(4 * k, b) for k, b in enumerate(given)]
            best = maximise(stretches, lambda f, g: f)
            assert not bool(
                best.value.isfinite().any()
            )  # the check of a round finds it
