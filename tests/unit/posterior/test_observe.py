"""Data from before, and points to look at, that cannot be."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from midway import NAN, line, prepared, same_future

import cbandit as cb

OBSERVES = [
    ({"index": [20], "reward": [1.0]}, ["index", "0 .. 19"]),
    ({"index": [-1], "reward": [1.0]}, ["index", "-1"]),
    ({"index": [0.5], "reward": [1.0]}, ["index", "whole"]),
    ({"x": [[0.5001]], "reward": [1.0]}, ["x", "point of the set"]),
    ({"x": [[0.0, 0.0]], "reward": [1.0]}, ["x"]),
    ({"x": [[NAN]], "reward": [1.0]}, ["x", "finite"]),
    ({"index": [1], "reward": [NAN]}, ["reward", "finite"]),
    ({"index": [1, 2], "reward": [1.0]}, ["reward", "2 rows"]),
    ({"index": [1, 2], "cost": [[1.0, 2.0]]}, ["cost", "2 rows"]),
    ({"index": [1, 2], "cost": [1.0, 2.0]}, ["cost"]),
    ({"index": [1], "x": [[0.0]], "reward": [1.0]}, ["index=", "x="]),
    ({"reward": [1.0]}, ["index=", "x="]),
    ({"index": [1]}, ["reward=", "cost="]),
]


@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize(("data", "words"), OBSERVES)
def test_data_from_before_that_is_none(data, words, rows):
    (policy, _, _), (twin, _, _) = prepared(), prepared()
    data = {k: list(v) * 1 for k, v in data.items()}
    if rows > 1:
        # the fault is at the end of many good rows
        good = {"index": [3], "x": [[0.0]], "reward": [0.0], "cost": [[0.0, 0.0]]}
        data = (
            {k: good[k] * rows + v for k, v in data.items()}
            if words != ["cost"]
            else data
        )
    words = [w.replace("2 rows", "rows") for w in words]
    with pytest.raises(cb.CBanditError) as error:
        policy.observe(**data)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert same_future(policy, twin)


MISSHAPEN = [
    ({"index": [[1, 2], [3, 4]], "reward": [1.0, 2.0]}, "index", "(2, 2)", "(3, n)"),
    ({"index": [1, 2], "reward": [1.0] * 3}, "reward", "(3,)", "(2,) or (3, 2)"),
    ({"index": [1, 2], "reward": 1.0}, "reward", "()", "(2,) or (3, 2)"),
    ({"index": [1, 2], "cost": [1.0, 2.0]}, "cost", "(2,)", "(2, 2) or (3, 2, 2)"),
    ({"index": [1], "cost": [[1.0] * 3]}, "cost", "(1, 3)", "(1, 2) or (3, 1, 2)"),
    ({"x": [[0.0, 0.0]], "reward": [1.0]}, "x", "(1, 2)", "(n, 1) or (3, n, 1)"),
    ({"x": [0.0], "reward": [1.0]}, "x", "(1,)", "(n, 1) or (3, n, 1)"),
    ({"index": 1, "reward": [1.0]}, "index", "()", "(n,) or (3, n)"),
]


@pytest.mark.parametrize(("data", "name", "came", "expected"), MISSHAPEN)
def test_shapes_of_data_from_before(data, name, came, expected):
    (policy, _, _), (twin, _, _) = prepared(3), prepared(3)
    with pytest.raises(cb.CBanditError) as error:
        policy.observe(**data)
    said = str(error.value)
    assert said.startswith(f"{name} must have")
    assert expected in said
    assert said.endswith(f"got {came}")
    assert same_future(policy, twin)


@pytest.mark.parametrize("kind", ["arms", "linear"])
def test_shapes_of_data_from_before_of_other_beliefs(kind):
    safe = cb.Safe(index=0, reward=0.0, cost=0.0)
    if kind == "arms":
        policy = cb.OPB(
            cb.Finite(line()),
            reward=cb.Counts(1.0),
            costs=[cb.Counts(1.0)] * 2,
            safe=safe,
            thresholds=0.5,
            horizon=9,
        )
    else:
        policy = cb.LCLUCB(
            cb.Finite(line()),
            reward=cb.Linear(1.0),
            costs=[cb.Linear(1.0)] * 2,
            safe=safe,
            thresholds=0.5,
        )
    before = policy.posterior().reward.mean
    for data, name, came, expected in MISSHAPEN:
        with pytest.raises(cb.CBanditError) as error:
            policy.observe(**data)
        said = str(error.value)
        assert said.startswith(f"{name} must have")
        assert expected.partition(" or")[0].replace("3, n", "n,") in said
        assert said.endswith(f"got {came}")
    assert torch.equal(policy.posterior().reward.mean, before)


def test_no_data_from_before_is_no_error():
    (policy, _, _), (twin, _, _) = prepared(), prepared()
    policy.observe(index=[], reward=[])
    assert same_future(policy, twin)


def test_points_of_another_width_have_no_posterior():
    policy, _, _ = prepared()
    with pytest.raises(cb.CBanditError, match=r"x must have .*\(n, 1\); got \(3, 2\)"):
        policy.posterior(np.zeros((3, 2)))


def test_where_the_posterior_is_asked_for():
    policy, _, _ = prepared()
    for x in (np.zeros((3, 4)), np.zeros((2, 3, 1)), np.zeros(3)):
        with pytest.raises(cb.CBanditError, match="x must have"):
            policy.posterior(x)
    assert policy.posterior(line(3)).reward.mean.shape == (3,)


def test_no_rows_of_data_are_no_data():
    (policy, _, _), (twin, _, _) = prepared(), prepared()
    policy.observe(index=[], reward=[], cost=np.zeros((0, 2)))
    policy.observe(x=np.zeros((0, 1)), reward=[])
    assert same_future(policy, twin)


@pytest.mark.parametrize("engine", ["joint", "factor", "stream"])
@pytest.mark.parametrize("rows", [4, 12])
def test_variances_of_data_from_before_follow_the_unit(engine, rows):
    """A variance is in the user's unit; its share of the spread changes with that."""
    gp = cb.GP(gpytorch.kernels.RBFKernel().double(), noise=0.1, standardize=True)
    one, two = (cb.GPUCB(cb.Finite(line()), reward=gp, engine=engine) for _ in range(2))
    index, values = np.arange(rows), np.sin(np.arange(rows + 1))
    own = {"index": index, "noise": np.linspace(0.01, 0.3, rows)}
    one.observe(**own, reward=values[:-1])
    choice = one.ask(among=[15])
    one.tell(choice, reward=values[-1] + 3.0)
    two.tell(two.ask(among=[15]), reward=values[-1] + 3.0)
    two.observe(**own, reward=values[:-1])
    found, want = one.posterior().reward, two.posterior().reward
    torch.testing.assert_close(found.mean, want.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.std, want.std, rtol=0, atol=1e-10)


def test_a_variance_is_a_share_of_its_own_functions_spread():
    """So many rows at once, and a few at a time, are one and the same."""
    gp = cb.GP(gpytorch.kernels.RBFKernel().double(), noise=0.1, standardize=True)
    one, two = (
        cb.RPOL(cb.Finite(line()), reward=gp, costs=gp, thresholds=0.1)
        for _ in range(2)
    )
    index, rewards = np.arange(12), np.sin(np.arange(12))
    told = {"reward": rewards, "cost": 0.1 * rewards**2, "noise": rewards**2 + 0.01}
    one.observe(index=index, **told)
    for k in index:
        two.observe(index=[k], **{name: [value[k]] for name, value in told.items()})
    found, want = one.posterior().costs, two.posterior().costs
    torch.testing.assert_close(found.mean, want.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.std, want.std, rtol=0, atol=1e-10)
