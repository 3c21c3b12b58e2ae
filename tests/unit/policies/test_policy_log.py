"""``policy.log()``: the rounds of a policy with the chances of their choices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

import cbandit as cb

RARE = 1e-4  # a frequency test fails by chance in one of 10 000 runs

SPACE = cb.Space(
    model=cb.Category("small", "middle", "large"),
    load=cb.Context(2),
    region=cb.Context(cb.Category("eu", "us")),
)


def routed(trials=None, **keywords):
    gp = cb.GP.linear(SPACE)
    return cb.RPOL(
        SPACE,
        reward=gp,
        costs={"ms": gp, "right": gp},
        thresholds={"ms": "<= 90", "right": ">= 0.2"},
        trials=trials,
        minimise=True,
        **(
            {
                "explore_share": 0.3,
                "ranges": {"ms": (0, 200), "reward": (0, 1)},
            }
            | keywords
        ),
    )


def play(policy, rounds, seed=0):
    rng = np.random.default_rng(seed)
    shape = () if policy.trials is None else (len(policy.trials),)
    for t in range(rounds):
        region = "eu" if t % 2 else "us"
        context = {"load": rng.uniform(size=(*shape, 2)), "region": region}
        choice = policy.ask(context=context)
        noise = torch.as_tensor(rng.uniform(size=shape))
        ms = 40.0 * choice.index + 50 * noise
        cost = {"ms": ms, "right": (1 + choice.index) / 3}
        policy.tell(choice, reward=noise, cost=cost)
    return policy


def test_a_log_holds_what_the_history_does(tmp_path):
    policy = play(routed(design=2), 12)
    log, frame = policy.log(), policy.history()
    assert len(log) == 12
    assert [each["model"] for each in log.choices] == frame["model"].tolist()
    np.testing.assert_array_equal(log.propensity, frame["propensity"])
    assert np.isnan(log.propensity).tolist() == [True] * 2 + [False] * 10
    assert np.isnan(log.distribution[:2]).all()
    np.testing.assert_allclose(log.distribution[2:].sum(1), 1)
    assert list(log.contexts) == ["load1", "load2", "region"]
    for name in log.contexts:
        assert log.contexts[name].tolist() == frame[name].tolist()
    assert list(log.outcomes) == ["reward", "ms", "right"]
    for name in log.outcomes:
        np.testing.assert_array_equal(log.outcomes[name], frame[name])
    assert log.limits == {"ms": "<= 90", "right": ">= 0.2"}
    assert log.ranges == {"ms": (0, 200), "reward": (0, 1)}
    assert not log.maximise
    log.save(tmp_path / "log.parquet")
    again = cb.Log.load(tmp_path / "log.parquet")
    assert again.actions == log.actions
    np.testing.assert_array_equal(again.distribution, log.distribution)
    policy.save(tmp_path / "a.ckpt")
    loaded = cb.load(tmp_path / "a.ckpt").log()
    np.testing.assert_array_equal(loaded.distribution, log.distribution)


def test_each_trial_has_a_log_of_its_own():
    policy = play(routed(trials=3), 300)  # more rounds than a block of the history
    logs, frame = policy.log(), policy.history()
    assert len(logs) == 3
    for i, log in enumerate(logs):
        mine = frame[frame.trial == i]
        np.testing.assert_array_equal(log.propensity, mine["propensity"])
        np.testing.assert_array_equal(log.contexts["load2"], mine["load2"])
        assert len(log) == 300


def test_weights_of_any_candidate_average_to_one():
    log = play(routed(explore_share=0.4), 600).log()
    known = ~np.isnan(log.propensity)
    for wanted in range(3):
        weight = (log.action == wanted)[known] / log.propensity[known]
        each = 1 / log.distribution[known][:, wanted] - 1  # the weights' variances
        z = (weight - 1).sum() / np.sqrt(each.sum())
        assert abs(z) < norm.isf(RARE / 6)


def test_what_was_not_played_is_left_out():
    policy = routed()
    context = {"load": [0.1, 0.2], "region": "eu"}
    choices = [policy.ask(context=context) for _ in range(4)]
    policy.cancel(choices[1])
    policy.tell(choices[2], failed=True)
    policy.tell(choices[3], cost={"ms": 7.0})
    log = policy.log()
    assert len(log) == 3
    assert log.outcomes.isna().to_numpy().tolist() == [
        [True] * 3,
        [True] * 3,
        [True, False, True],
    ]


def test_policies_that_draw_have_logs_without_exploring():
    arms = cb.Finite(torch.arange(4.0).unsqueeze(-1))
    counts = cb.Counts(subgaussian=0.1, range=(0.0, 1.0))
    policy = cb.OPB(
        arms,
        reward=counts,
        costs=counts,
        safe=cb.Safe(index=0, reward=0.1, cost=0.0),
        thresholds=0.5,
        horizon=100,
    )
    for _ in range(5):
        choice = policy.ask()
        policy.tell(choice, reward=0.5, cost=0.2)
    log = policy.log()
    assert log.actions == (0, 1, 2, 3)
    assert log.ranges == {"reward": (0, 1), "cost1": (0, 1)}
    last = np.zeros(4)
    np.add.at(last, choice.distribution.index, choice.distribution.probability)
    np.testing.assert_allclose(log.distribution[-1], last)


def test_large_sets_list_what_could_have_been_played():
    points = cb.Finite(torch.linspace(0, 1, 200).double().unsqueeze(-1))
    gp = cb.GP.default(points)
    policy = cb.RPOL(points, reward=gp, costs=gp, explore_share=0.5)
    for among in ([5, 190, 7], [7, 9]):
        policy.tell(policy.ask(among=among), reward=0.0, cost=0.0)
    log = policy.log()
    assert set(log.actions) <= {5, 7, 9, 190}
    assert log.distribution[1, log.actions.index(9)] >= 0.25
    aside = cb.RPOL(points, reward=gp, costs=gp)
    aside.ask(actions=[[0.3], [0.4]])
    aside.ask()
    assert len(aside.log()) == 1


def test_boxes_have_no_logs_and_deterministic_rules_no_chances():
    box = cb.Box([0.0], [1.0])
    policy = cb.GPUCB(box, reward=cb.GP.default(box))
    with pytest.raises(cb.CBanditError, match="log lists the chance of every choice"):
        policy.log()
    policy = play(routed(explore_share=None), 3)
    assert np.isnan(policy.log().propensity).all()
    with pytest.raises(cb.CBanditError, match="no cost is called 'rewards'"):
        routed(ranges={"rewards": (0, 1)})


def test_another_policy_is_judged_by_a_log():
    policy = play(routed(explore_share=0.5), 600)
    log = policy.log()
    answer = cb.evaluate(log, {"model": "large"}, ranges={"right": (0, 1)})
    # what play() tells: 80 ms and up to 50 more, all right
    assert answer["ms"].lower <= 105 <= answer["ms"].upper
    assert answer["right"].lower <= 1 <= answer["right"].upper + 1e-9
    assert answer["ms"].upper < 200
