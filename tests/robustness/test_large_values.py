"""Values whose squares do not add up are refused like infinity, and change nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from midway import belief, line, policy_of, prepared, same_future

import cbandit as cb

LARGE = {"float64": [1e200, -1e200, -1.7e308, 2e151], "float32": [1e39, -1e17, 1e200]}
KINDS = {
    "CKB": lambda **both: cb.CKB(step=0.5, cap=3.0, **both),
    "TS": lambda **both: cb.CKB(step=0.5, cap=3.0, **both | {"explore": cb.TS(1.0)}),
    "RPOL": cb.RPOL,
    "sliding": lambda **both: cb.RPOL(feedback=cb.Sliding(5), **both),
    "delayed": lambda **both: cb.RPOL(feedback=cb.Delayed(5), **both),
    "CONFIG": cb.baselines.CONFIG,
}


@pytest.mark.parametrize("trials", [None, 3])
@pytest.mark.parametrize("dtype", LARGE)
@pytest.mark.parametrize("standardize", [False, True])
def test_a_value_too_large_to_square(dtype, standardize, trials):
    gp = belief(standardize=standardize)
    more = {"dtype": dtype, "reward": gp, "costs": [gp] * 2}
    (policy, _, choice), (twin, _, _) = (prepared(trials, **more) for _ in range(2))
    lead = () if trials is None else (trials,)
    for value in LARGE[dtype]:
        reward, cost = np.zeros(lead), np.zeros((*lead, 2))
        reward[...] = cost[..., 1] = value
        for told in ({"reward": reward}, {"cost": cost}):
            name = next(iter(told))
            with pytest.raises(cb.CBanditError, match=f"^{name} must be") as error:
                policy.tell(choice, **told)
            assert "in size" in str(error.value)
            rows = {k: v[..., None] if k == "reward" else v for k, v in told.items()}
            if trials is None:
                with pytest.raises(cb.CBanditError, match=f"^{name} must be"):
                    policy.observe(
                        index=[3],
                        **{
                            k: np.atleast_1d(v).reshape(
                                (1,) if k == "reward" else (1, 2)
                            )
                            for k, v in rows.items()
                        },
                    )
    assert same_future(policy, twin)


@pytest.mark.parametrize("dtype", LARGE)
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_values_leave_a_policy_that_works(kind, standardize, dtype):
    gp = belief(standardize=standardize)
    both = {"reward": gp, "costs": gp, "explore": cb.UCB(1.0), "dtype": dtype}
    largest = 0.99e-3 * torch.finfo(getattr(torch, dtype)).max ** 0.5
    for sign in (1, -1):
        policy = KINDS[kind](actions=cb.Finite(line()), **both)
        for t in range(12):
            told = sign * largest if t in (3, 4, 5) else 0.3
            policy.tell(policy.ask(), reward=told, cost=-told)
        assert policy.posterior().reward.mean.isfinite().all()


def test_what_has_not_come_may_be_too_large():
    policy, _, choice = prepared(3)
    policy.tell(choice, reward=[1e300, 1.0, 1e300], where=[False, True, False])
    assert policy_of().ask().t == 1


@pytest.mark.parametrize("gp", [cb.GP.default, cb.GP.linear])
@pytest.mark.parametrize("dtype", LARGE)
def test_contexts_too_large_to_square_leave_a_policy_that_works(gp, dtype):
    """Taken, one would make every later score NaN."""
    space = cb.Space(model=cb.Category("small", "large"), load=cb.Context(2))
    policy = cb.GPUCB(space, reward=gp(space), dtype=dtype)
    for value in LARGE[dtype]:
        shown = {"load": [1.0, value]}
        row = {"model": "small", **shown}
        with pytest.raises(cb.CBanditError, match=r"context must be at most"):
            policy.ask(context=shown)
        with pytest.raises(cb.CBanditError, match=r"x must be (finite|at most)"):
            policy.observe(params=[row], reward=[1.0])
    for t in range(4):
        choice = policy.ask(context={"load": [0.1 * t, 0.2]})
        policy.tell(choice, reward=0.5 * t)
    assert choice.t == 4


@pytest.mark.parametrize("value", [1e200, -2e151])
def test_tables_refuse_it_too(value):
    actions, zeros = cb.Finite(line(3)), torch.zeros(3, dtype=torch.float64)
    large = torch.tensor([0.0, value, 0.0], dtype=torch.float64)
    for name, reward, cost in (("reward", large, zeros), ("costs", zeros, large)):
        with pytest.raises(
            cb.CBanditError, match=f"^{name} must be at most .* in size"
        ):
            cb.problems.Table(reward, [cost], 0.01, actions=actions)
    frame = pd.DataFrame({"knob": [1, 2, 3], "y": [1.0, value, 2.0], "c": [0.1] * 3})
    words = "column 'y' must be at most .* in size; row 1"
    with pytest.raises(cb.CBanditError, match=words):
        cb.problems.Table.from_frame(frame, maximise="y", limits={"c": "<= 1"})
