"""Feedback that cannot be is named, and leaves the policy as it was."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from inside import renumbered
from midway import INF, NAN, belief, line, policy_of, prepared, same_future

import cbandit as cb

TELLS = [
    ({"reward": NAN}, ["reward", "finite", "nan"]),
    ({"reward": 0.0, "cost": [0.0, INF]}, ["cost", "finite", "inf"]),
    ({"reward": [0.0, 1.0]}, ["reward", "shape", "(2,)"]),
    ({"cost": 0.0}, ["cost", "shape", "(2,)", "()"]),
    ({"cost": [0.0, 0.0, 0.0]}, ["cost", "shape", "(3,)", "(2,)"]),
    ({"reward": 0.0, "cost": [[0.0, 0.0]]}, ["cost", "shape"]),
    ({"reward": "much"}, ["reward", "number"]),
    ({"reward": 1 + 1j}, ["reward", "real"]),
    ({"reward": [[1.0], [2.0, 3.0]]}, ["reward", "number"]),
    ({"reward": 0.0, "noise": -0.1}, ["noise", "negative", "-0.1"]),
    ({"reward": 0.0, "noise": NAN}, ["noise", "finite"]),
    ({"reward": 0.0, "noise": [0.1, 0.1]}, ["noise", "shape"]),
    ({"reward": 0.0, "where": [True, False]}, ["where", "shape"]),
    ({"reward": 0.0, "where": 1.0}, ["where", "bool"]),
    ({}, ["reward=", "cost="]),
]


@pytest.mark.parametrize(("told", "words"), TELLS)
def test_feedback_that_is_none(told, words):
    (policy, _, choice), (twin, _, _) = prepared(), prepared()
    with pytest.raises(cb.CBanditError) as error:
        policy.tell(choice, **told)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert same_future(policy, twin)


TRIAL_TELLS = [
    ({"reward": 0.0}, ["reward", "(3,)", "()"]),
    ({"reward": [0.0, NAN, 0.0]}, ["reward", "nan"]),
    ({"cost": np.zeros((2, 3))}, ["cost", "(3, 2)", "(2, 3)"]),
    ({"reward": np.zeros(3), "noise": [1.0, 2.0]}, ["noise", "(3,)", "(2,)"]),
    ({"reward": np.zeros(3), "where": [1, 0, 1]}, ["where", "bool"]),
    ({"reward": [NAN, 0.0, 0.0], "where": [True, False, True]}, ["reward", "nan"]),
]


@pytest.mark.parametrize(("told", "words"), TRIAL_TELLS)
def test_feedback_of_trials_that_is_none(told, words):
    (policy, _, choice), (twin, _, _) = prepared(3), prepared(3)
    with pytest.raises(cb.CBanditError) as error:
        policy.tell(choice, **told)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert same_future(policy, twin)


def test_what_has_not_come_may_be_anything():
    policy, _, choice = prepared(3)
    policy.tell(
        choice,
        reward=[NAN, 1.0, INF],
        cost=np.full((3, 2), [NAN, 0.0]),
        where=[False, False, False],
    )
    policy.tell(choice, reward=[NAN, 1.0, INF], where=[False, True, False])
    assert policy.posterior().reward.mean.isfinite().all()


@pytest.mark.parametrize("trials", [None, 3])
def test_what_came_in_no_trial_may_still_come_in_all(trials):
    lead = () if trials is None else (trials,)
    (policy, _, choice), (twin, _, other) = prepared(trials), prepared(trials)
    told = {"reward": np.ones(lead), "cost": np.ones((*lead, 2))}
    policy.tell(choice, **told, where=np.zeros(lead, dtype=bool))
    policy.tell(choice, **told)
    twin.tell(other, **told)
    assert same_future(policy, twin)


def test_choices_told_twice_foreign_unknown_or_cancelled():
    (policy, half, _), (twin, _, _) = prepared(), prepared()
    stranger = twin.outstanding[-1]
    finished = renumbered(half, 1)
    future = renumbered(half, 99)
    for bad, told, words in [
        (half, {"reward": 1.0}, ["round 7", "reward", "already"]),
        (half, {"reward": 1.0, "cost": [0.0, 0.0]}, ["reward", "already"]),
        (stranger, {"reward": 1.0}, ["another policy"]),
        (finished, {"reward": 1.0}, ["round 1", "finished"]),
        (future, {"reward": 1.0}, ["round 99", "unknown"]),
        ("x", {"reward": 1.0}, ["choice", "id 'x'"]),
        (None, {"reward": 1.0}, ["choice", "NoneType"]),
    ]:
        with pytest.raises(cb.ChoiceError) as error:
            policy.tell(bad, **told)
        assert all(word in str(error.value) for word in words), str(error.value)
        if "reward" in words and bad is half:
            continue
        with pytest.raises(cb.ChoiceError):
            policy.cancel(bad)
    assert same_future(policy, twin)


def test_a_trial_told_twice():
    (policy, _, choice), (twin, _, other) = prepared(2), prepared(2)
    for each, one in ((policy, choice), (twin, other)):
        each.tell(one, reward=[0.5, 0.0], where=[True, False])
    for where in ([True, False], None, [True, True]):
        with pytest.raises(cb.ChoiceError, match="already"):
            policy.tell(choice, reward=[0.1, 0.1], where=where)
    assert same_future(policy, twin)
    policy.tell(choice, reward=[0.1, 0.1], where=[False, True])


@pytest.mark.parametrize("where", [[True], True, [True] * 3, [1, 1]])
def test_where_names_every_trial(where):
    (policy, _, choice), (twin, _, _) = prepared(2), prepared(2)
    with pytest.raises(cb.CBanditError, match=r"where must be .* = \(2,\); got"):
        policy.tell(choice, reward=[0.1, 0.1], where=where)
    assert same_future(policy, twin)


def test_late_feedback_is_counted_in_the_shape_of_trials():
    for trials in (None, 2):
        policy = policy_of(
            trials, explore=cb.UCB(1.0), feedback=cb.Delayed(1, weight=0.0)
        )
        shape = () if trials is None else (trials,)
        first = policy.ask()
        policy.ask(), policy.ask()
        policy.tell(first, reward=np.zeros(shape))
        assert policy.late.shape == shape
        assert bool((policy.late == 1).all())


def test_a_policy_without_costs_is_told_none():
    policy = cb.GPUCB(cb.Finite(line()), reward=belief(), explore=cb.UCB(1.0))
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match="no costs"):
        policy.tell(choice, reward=1.0, cost=1.0)
    assert policy.outstanding == [choice]
    with pytest.raises(cb.CBanditError, match="no costs"):
        policy.observe(index=[1], cost=[1.0])


@pytest.mark.parametrize("told", ["nothing", "rewards only"])
def test_feedback_that_never_comes_is_warned_of_once(told):
    policy = policy_of(explore=cb.UCB(1.0))
    for t in range(1, 251):
        if t == 100:
            with pytest.warns(UserWarning, match="100 choices wait for their") as seen:
                choice = policy.ask()
            (warning,) = seen
            assert "tell(choice, reward=..., cost=...)" in str(warning.message)
            assert "cancel(choice)" in str(warning.message)
            assert warning.filename == __file__
        else:
            choice = policy.ask()  # any other warning is an error
        if told == "rewards only":
            policy.tell(choice, reward=0.0)
    assert len(policy.outstanding) == 250


def test_policies_that_count_on_feedback_to_come_are_not_warned():
    late = {"feedback": cb.Delayed(20, weight=0.0)}
    for more in (late, {"pending": "hallucinate", "m": 1}):
        policy = policy_of(explore=cb.UCB(1.0), **more)
        for _ in range(110):
            policy.ask()
    policy = policy_of(explore=cb.UCB(1.0))
    for _ in range(110):
        policy.tell(policy.ask(), reward=0.0, cost=[0.0, 0.0])


def test_what_to_do_about_several_costs_is_said():
    actions = cb.Finite([[0.0], [1.0]])
    gp = cb.GP.default(actions)
    goal = {"reward": gp, "explore": cb.UCB(1.0), "thresholds": [0.5, 1.0]}
    with pytest.raises(cb.CBanditError, match=r"several costs are a list"):
        cb.RPOL(actions, costs=gp, **goal)
    policy = cb.RPOL(actions, costs=[gp, gp], **goal)
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match=r"tell the others by name"):
        policy.tell(choice, reward=1.0, cost=[0.3, NAN])
    policy.tell(choice, reward=1.0)
    policy.cancel(choice)
    assert policy.outstanding == []
    # the reward was kept, and nothing learned of the costs
    assert len(policy.model.models[0].train_targets) == 1
    assert float(policy.posterior().costs.mean.abs().max()) == 0.0


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("EpochPenalty", "Delayed Sliding"),
        ("baselines.SafeOpt", "Sliding hallucinate"),
        ("baselines.StageOpt", "Sliding hallucinate"),
        ("baselines.SGPUCB", "Sliding hallucinate"),
        ("baselines.ADMMBO", "Delayed hallucinate"),
        ("baselines.BoTorchPolicy", "Delayed hallucinate"),
        ("baselines.BKB", "Delayed Sliding hallucinate"),
    ],
)
def test_policies_say_why_they_take_no_late_feedback(name, refused):
    kind = operator.attrgetter(name)(cb)
    own = {
        "EpochPenalty": {"costs": 1, "epoch": 5},
        "SafeOpt": {"safe": 0},
        "StageOpt": {"safe": 0, "rounds": 5},
        "SGPUCB": {"safe": 0, "rounds": 5},
        "BoTorchPolicy": {"make_acquisition": print},
    }.get(kind.__name__, {})
    gp, points = belief(), cb.Finite(line())
    costs = {} if kind.__name__ == "BKB" else {"costs": gp}

    def made(**more):
        return kind(points, reward=gp, horizon=20, **{**costs, **own, **more})

    for what in ("Delayed", "Sliding", "hallucinate"):
        late = what != "hallucinate"
        more = {"feedback": getattr(cb, what)(3)} if late else {"pending": what}
        if what in refused.split():
            with pytest.raises(cb.CBanditError, match=f"{kind.__name__} takes no .*: "):
                made(**more)
        elif late or kind.__name__ != "EpochPenalty":
            made(**more)


# --------------------------------------------------------------- a request sent again


def counting(**more) -> cb.CKB:
    """A policy with a binary and a counted cost, by name."""
    kernel = belief().kernel
    costs = {
        "fails": cb.GP(kernel, outcome="binary"),
        "restarts": cb.GP(kernel, outcome="count"),
    }
    limits = {"fails": "<= 0.2", "restarts": "<= 1.5"}
    own = {"costs": costs, "thresholds": limits, "explore": cb.UCB(1.0)}
    return policy_of(**(own | more))


def waiting(**more) -> cb.LCLUCB:
    """A policy that hears of its costs once all of them have come."""
    linear = cb.Linear(0.1)
    return cb.LCLUCB(
        cb.Finite(line()),
        reward=linear,
        costs={"up": linear, "down": linear},
        thresholds={"up": 1.0, "down": 1.0},
        safe=cb.Safe(index=0, reward=0.0, cost=[0.0, 0.0]),
        **more,
    )


SAME = {  # a policy, what is told twice, and what contradicts it
    "whole": (
        policy_of,
        {"reward": 0.5, "cost": [0.1, 0.2]},
        [{"reward": 0.4}, {"cost": [0.1, 0.3]}, {"reward": 0.5, "noise": 0.1}],
    ),
    "part": (policy_of, {"reward": 0.5}, [{"reward": 0.4}]),
    "noise": (
        policy_of,
        {"cost": [0.1, 0.2], "noise": 0.3},
        [{"cost": [0.1, 0.2]}, {"cost": [0.1, 0.2], "noise": 0.4}],
    ),
    "tries": (
        counting,
        {"cost": {"fails": (1, 4), "restarts": (2, 8.0)}},
        [{"cost": {"fails": (2, 8)}}, {"cost": {"restarts": 1}, "exposure": 4.0}],
    ),
    "failed": (
        policy_of,
        {"failed": True},
        [{"reward": 0.5}, {"failed": True, "noise": 0.1}],
    ),
    "waiting": (
        waiting,
        {"reward": 0.5, "cost": {"up": 0.3}},
        [{"cost": {"up": 0.2}}, {"cost": [0.3, 0.2]}],
    ),
    "budget": (
        lambda: policy_of(m=1, thresholds=[cb.Budget(9.0, rounds=9)]),
        {"failed": True, "cost": 0.3},
        [{"failed": True, "cost": 0.2}, {"cost": 0.3}],
    ),
}


@pytest.mark.parametrize("loaded", [False, True], ids=["", "loaded"])
@pytest.mark.parametrize("case", SAME)
def test_the_same_told_again_changes_nothing(case, loaded, tmp_path):
    make, told, others = SAME[case]
    once, twice = make(), make()
    once.tell(once.ask(), **told)
    choice = twice.ask()
    twice.tell(choice, **told)
    twice.tell(choice.id, **told)  # before it is absorbed
    if loaded:
        twice.save(tmp_path / "state.ckpt")
        twice = cb.load(tmp_path / "state.ckpt")
    later = once.ask(), twice.ask()
    for again in (choice, choice.id):
        twice.tell(again, **told)
    for other in others:
        with pytest.raises(cb.ChoiceError):
            twice.tell(choice, **other)
    for policy, one in zip((once, twice), later, strict=True):
        policy.cancel(one)
        for _ in range(2):
            policy.cancel(policy.ask())
    plain = [column for column in once.history() if column not in ("id", "asked")]
    mine, its = once.history()[plain], twice.history()[plain]
    mine["told"] = its["told"] = 0
    assert mine.equals(its)
    assert len(once.outstanding) == len(twice.outstanding)


def test_the_same_told_again_in_some_trials():
    (policy, _, choice), (twin, _, other) = prepared(2), prepared(2)
    for each, one in ((policy, choice), (twin, other)):
        each.tell(one, reward=[0.5, NAN], where=[True, False])
    policy.tell(choice, reward=[0.5, 9.9], where=[True, False])
    for reward, where in (
        ([0.4, 0.1], [True, False]),
        ([0.5, 0.1], [True, True]),
        ([0.5, 0.1], None),
    ):
        with pytest.raises(cb.ChoiceError, match="its reward already"):
            policy.tell(choice, reward=reward, where=where)
    assert same_future(policy, twin)
