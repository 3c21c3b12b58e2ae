"""What puzzled people who used the library for the first time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import cbandit as cb

POINTS = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)


def rpol(actions=None, **more):
    actions = cb.Finite(POINTS) if actions is None else actions
    gp = cb.GP.default(actions)
    return cb.RPOL(actions, reward=gp, costs=gp, thresholds=0.0, **more)


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e9])
@pytest.mark.parametrize("way", [1e-13, 3e-16])
def test_outcomes_that_differ_by_rounding_are_no_unit(size, way):
    """Once a unit was 1e-13 of the values, and a violation of 0.3 was 10^12 of them."""
    policy = rpol()
    values = [0.5, 0.5 * (1 + way)]
    for value in values:
        policy.tell(policy.ask(), reward=value * size, cost=value * size)
    policy.ask()
    assert float(policy.multiplier) < 1000
    assert bool(policy.price.isnan().all())  # there is no unit yet
    rng = np.random.default_rng(0)
    for value in rng.normal(0.5, 0.3, 5):
        policy.tell(policy.ask(), reward=value * size, cost=value * size)
    policy.ask()
    assert float(policy.multiplier) < 1000
    assert bool(policy.price.isfinite().all())


def test_units_do_not_depend_on_what_outcomes_are_measured_in():
    """A small spread counts, whatever the scale, unless the level hides it."""
    for scale in (1.0, 2.0**-40, 2.0**40):
        policy = rpol()
        for value in (1.0, 1.0 + 1e-6):
            policy.tell(policy.ask(), reward=value * scale, cost=value * scale)
        assert float(policy.price) == float(policy.multiplier)
        assert not bool(policy.price.isnan())
    around_zero = rpol()
    for value in (1e-12, -1e-12):
        around_zero.tell(around_zero.ask(), reward=value, cost=value)
    assert not bool(around_zero.price.isnan())


def test_a_space_too_large_to_keep_says_so():
    space = cb.Space(**{f"knob{i}": cb.Int(1, 10) for i in range(14)})
    with pytest.raises(cb.CBanditError, match="actions") as error:
        rpol(space)
    for word in ("100,000,000,000,000", "GB", "free on cpu", "cb.Box", "fewer values"):
        assert word in str(error.value)


FLAGS = [True, np.True_, torch.tensor(True), [True], np.array([False])]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: type(flag).__name__)
@pytest.mark.parametrize("name", ["reward", "cost"])
def test_truth_values_are_no_measurements(flag, name):
    policy = rpol()
    choice = policy.ask()
    values = {"reward": 0.5, "cost": 0.1, name: flag}
    with pytest.raises(cb.CBanditError, match=f"{name} must be a number; got a truth"):
        policy.tell(choice, **values)
    values = {"reward": [0.5], "cost": [0.1], name: flag}
    with pytest.raises(cb.CBanditError, match=f"{name} must be a number; got a truth"):
        policy.observe(index=[3], **values)
    policy.tell(choice, reward=1, cost=np.float32(0.0))


def test_observe_takes_one_dict_and_a_frame():
    space = cb.Space(threads=cb.Int(1, 8), codec=cb.Category("lz4", "zstd"))
    rows = [{"threads": 3, "codec": "zstd"}, {"threads": 5, "codec": "lz4"}]
    one, two, three = (rpol(space) for _ in range(3))
    one.observe(params=rows, reward=[1.0, 2.0], cost=[0.1, 0.2])
    for row, reward, cost in zip(rows, (1.0, 2.0), (0.1, 0.2), strict=True):
        two.observe(params=row, reward=reward, cost=cost)
    frame = pd.DataFrame(rows)
    three.observe(params=frame, reward=pd.Series([1.0, 2.0]), cost=[[0.1], [0.2]])
    means = [each.posterior().reward.mean for each in (one, two, three)]
    assert torch.equal(means[0], means[1])
    assert torch.equal(means[0], means[2])
    with pytest.raises(cb.CBanditError, match="params\\[0\\] must give each of"):
        one.observe(params=frame.assign(extra=1), reward=[1.0, 2.0])


def test_observe_takes_one_dict_with_several_costs():
    space = cb.Space(threads=cb.Int(1, 8))
    gp = cb.GP.default(space)
    policy = cb.RPOL(space, reward=gp, costs=[gp, gp], thresholds=0.0)
    policy.observe(params={"threads": 3}, reward=1.0, cost=[0.1, 0.2])
    assert len(policy.model.models[0].train_targets) == 1


def test_steps_that_miss_the_end_are_refused():
    with pytest.raises(cb.CBanditError) as error:
        cb.Float(0, 8, step=3)
    assert "lead to 6 and 9, and not to 8" in str(error.value)
    assert "hi = 6 or hi = 9" in str(error.value)
    assert cb.Float(0, 9, step=3).values.tolist() == [0, 3, 6, 9]
    assert len(cb.Float(0.1, 0.7, step=0.1).values) == 7


def test_a_choice_that_was_told_says_what_became_of_it():
    policy = rpol()
    failed, told, cancelled, half = (policy.ask() for _ in range(4))
    policy.tell(failed, failed=True)
    policy.tell(told, reward=0.1, cost=0.1)
    policy.cancel(cancelled)
    policy.tell(half, reward=0.1)
    for _ in range(2):  # before and after it is taken in
        for choice in (failed, failed.id):
            with pytest.raises(cb.ChoiceError, match="told as failed") as error:
                policy.tell(choice, reward=0.2, cost=0.2)
            assert "cannot be changed" in str(error.value)
        for choice in (told, told.id):
            with pytest.raises(cb.ChoiceError, match="was told in full") as error:
                policy.tell(choice, reward=0.2, cost=0.2)
            assert "what was told cannot be changed" in str(error.value)
            assert "earlier save" in str(error.value)
        for choice in (cancelled, cancelled.id):
            with pytest.raises(cb.ChoiceError, match="was cancelled; what has come"):
                policy.tell(choice, reward=0.2, cost=0.2)
        with pytest.raises(cb.ChoiceError, match="its reward already") as error:
            policy.tell(half, reward=0.3)
        assert "what was told cannot be changed" in str(error.value)
        policy.ask()
    with pytest.raises(cb.ChoiceError, match="another policy gave it out"):
        policy.tell("nobody-1", reward=0.2, cost=0.2)
