"""Arguments of policies with a safe action that cannot be."""

from __future__ import annotations

import math

import pytest
import torch
from stagewise import rbf

import cbandit as cb

FOUR = cb.Finite(torch.arange(4.0).double().unsqueeze(-1))


CORNERS = cb.Finite(torch.cat([torch.zeros(1, 2), torch.eye(2)]))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"safe": cb.Safe(x=[0.0, 0.0], cost=0.2)}, "x = 0 are 0"),
        ({"thresholds": 0.0}, "safe.cost must be below"),
        ({"thresholds": -0.1}, "safe.cost must be below"),
        ({"safe": cb.Safe(x=[0.5, 0.0], reward=0.0, cost=0.0)}, "centre"),
        ({"safe": cb.Safe(index=0)}, "its centre; give x="),
        ({"safe": cb.Safe(x=[0.0])}, "safe.x must have shape"),
        ({"safe": None}, "safe must be a cb.Safe"),
        ({"delta": 1.5}, "delta must lie between"),
        ({"reward": cb.Linear(0.1, length=0.5)}, "no longer than length"),
        ({"reward": cb.Counts(0.1)}, "reward must be a cb.Linear"),
        ({"costs": []}, "at least one belief"),
        ({"alpha": (1.0, 1.0, 1.0)}, "alpha must be"),
    ],
)
def test_bad_arguments_are_said(wrong, says):
    arguments = {
        "reward": cb.Linear(0.1),
        "costs": cb.Linear(0.1),
        "safe": cb.Safe(x=[0.0, 0.0]),
        "thresholds": 0.3,
        "delta": 0.1,
    }
    star = cb.Star(torch.zeros(2), torch.eye(2))
    cb.LCLUCB(star, **arguments)
    with pytest.raises(cb.CBanditError, match=says):
        cb.LCLUCB(star, **{**arguments, **wrong})


def test_bad_arms_are_said():
    with pytest.raises(cb.CBanditError, match=r"one of index= and x="):
        cb.Safe()
    with pytest.raises(cb.CBanditError, match="horizon"):
        cb.OPB(
            cb.Finite(torch.eye(3)),
            reward=cb.Counts(1.0),
            costs=cb.Counts(1.0),
            safe=cb.Safe(index=0),
            horizon=None,
            thresholds=0.5,
        )
    with pytest.raises(cb.CBanditError, match="stated range"):
        cb.OPB(
            cb.Finite(torch.eye(3)),
            reward=cb.Counts(1.0),
            costs=cb.Counts(1.0, range=(0.0, 1.0)),
            safe=cb.Safe(index=0, reward=0.0, cost=-0.5),
            horizon=10,
            thresholds=0.5,
        )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"safe": None}, "safe must be a cb.Safe.* got none"),
        ({"safe": cb.Safe(index=0, reward=0.0, cost=0.5)}, "safe.cost must be below"),
        ({"safe": cb.Safe(index=0, reward=0.0, cost=0.7)}, "cost = 0.7 with thresh"),
        ({"safe": cb.Safe(index=9, reward=0.0, cost=0.0)}, "safe.index must lie in 0"),
        ({"safe": cb.Safe(index=0.5)}, "safe.index must hold whole numbers"),
        ({"safe": cb.Safe(x=[0.3] * 2)}, r"safe.x must (be a point|have shape)"),
        (
            {"safe": cb.Safe(index=0, reward=2.0, cost=0.0)},
            "safe.reward must be at most",
        ),
        (
            {"safe": cb.Safe(index=0, reward=math.nan, cost=0.0)},
            "safe.reward must be fin",
        ),
        ({"costs": []}, "at least one belief"),
        (
            {"costs": cb.Linear(0.1, length=0.5)},
            "costs must be a|no longer than length",
        ),
        ({"delta": 0.0}, "delta must lie between"),
        ({"alpha": -1.0}, "alpha must not be negative"),
    ],
)
@pytest.mark.parametrize("kind", ["OPB", "GP", "OPLB"])
def test_bad_arguments_of_randomised_policies_are_said(kind, wrong, says):
    belief, actions, more = {
        "OPB": (cb.Counts(1.0), FOUR, {"horizon": 10}),
        "GP": (cb.GP(rbf(), noise=0.1), CORNERS, {"horizon": 10}),
        "OPLB": (cb.Linear(0.1), CORNERS, {"horizon": 10}),
    }[kind]
    if kind == "OPLB":
        pytest.importorskip("clarabel")
    arguments = {
        "reward": belief,
        "costs": belief,
        "safe": cb.Safe(index=0, reward=0.0, cost=0.0),
        "thresholds": 0.5,
        **more,
    }
    build = cb.OPLB if kind == "OPLB" else cb.OPB
    build(actions, **arguments)
    with pytest.raises(cb.CBanditError, match=says):
        build(actions, **{**arguments, **wrong})


def test_what_opb_needs_is_said():
    counts, safe = cb.Counts(1.0), cb.Safe(index=0, reward=0.0, cost=0.0)
    given = {"reward": counts, "costs": counts, "safe": safe, "horizon": 10}
    for name in given:
        rest = {k: v for k, v in given.items() if k != name}
        with pytest.raises(cb.CBanditError, match=f"{name} must be .*got none"):
            cb.OPB(FOUR, thresholds=0.5, **rest)
    ranged = cb.Counts(1.0, range=(0.0, 1.0))
    with pytest.raises(
        cb.CBanditError, match=r"safe.reward must lie in .* 0 to 1; got -0"
    ):
        cb.OPB(
            FOUR,
            reward=ranged,
            costs=counts,
            safe=cb.Safe(index=0, reward=-0.5, cost=0.0),
            horizon=10,
            thresholds=0.5,
        )


def rewarded(kind, low, **more):
    """Return a policy without the safe reward, and rewards ``low`` to ``low + 3``."""
    common = {"horizon": 1000, "thresholds": 1.0, "seed": 1, **more}
    if kind == "LC-LUCB":
        linear, star = cb.Linear(0.1), cb.Star([1.0, 0.0], [[1.0, 1.0], [2.0, 0.0]])
        beliefs, safe = {"reward": linear, "costs": linear}, cb.Safe(x=[1.0, 0.0])
        policy = cb.LCLUCB(star, safe=safe, **beliefs, **common)
        return policy, lambda choice: low + choice.x[..., 1]
    belief = cb.Counts(0.1) if kind == "OPB" else cb.GP(rbf(), noise=0.01)
    if kind == "standardised":
        belief = cb.GP(rbf(), noise=0.01, standardize=True)
    stated = {"cost": 0.0} if kind == "cost stated" else {}
    policy = cb.OPB(
        FOUR, reward=belief, costs=belief, safe=cb.Safe(index=0, **stated), **common
    )
    return policy, lambda choice: low + choice.index


def told(policy, reward, rounds, sign=1.0, noise=0.1):
    """Play some rounds, and return how many left the safe action."""
    draws = torch.Generator().manual_seed(0)
    away, first = 0, None
    for _ in range(rounds):
        choice = policy.ask()
        first = choice.x if first is None else first
        away += int((choice.x != first).any())
        shape = (*choice.x.shape[:-1], 2)
        e = noise * torch.randn(shape, generator=draws, dtype=torch.float64)
        cost = 0.1 * reward(choice) + e[..., 1]
        policy.tell(choice, reward=sign * (reward(choice) + e[..., 0]), cost=cost)
    policy.ask()
    return away


KINDS = ["LC-LUCB", "OPB", "GP", "standardised", "cost stated"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("minimise", [False, True])
def test_rewards_above_the_largest_are_said_once(kind, minimise):
    sign = -1.0 if minimise else 1.0
    policy, reward = rewarded(kind, 5.0, minimise=minimise)
    said = rf"largest: .* contradicts {sign:g}, .* only the safe action is played"
    with pytest.warns(UserWarning, match=said) as seen:
        assert told(policy, reward, 20, sign) == 0
    assert len(seen) == 1
    policy, reward = rewarded(kind, 5.0, minimise=minimise, largest=sign * 10.0)
    told(policy, reward, 20, sign)  # warnings are errors here


def test_the_safe_actions_average_alone_contradicts_the_largest():
    # noise of 1, and a mean only .4 above: no single reward is beyond doubt
    policy = cb.OPB(
        FOUR,
        reward=cb.Counts(1.0),
        costs=cb.Counts(0.1),
        safe=cb.Safe(index=0, cost=0.0),
        thresholds=1.0,
        horizon=1000,
    )
    with pytest.warns(UserWarning, match="mean reward of 1.4 in round 12. contradicts"):
        told(policy, lambda choice: 1.4, 150, noise=0.0)


def test_rewards_of_other_actions_contradict_the_largest():
    policy = cb.OPB(
        FOUR,
        reward=cb.Counts(0.1),
        costs=cb.Counts(0.1, range=(0.0, 1.0)),
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=1.0,
        horizon=1000,
    )
    reward = torch.tensor([0.0, 0.5, 2.0, 0.5])
    with pytest.warns(
        UserWarning, match="a reward of 2 in round .* be possible: build"
    ):
        told(policy, lambda choice: reward[choice.index], 100, noise=0.0)


def test_noise_around_the_largest_is_no_contradiction():
    # 50 runs of 200 rounds, with mean rewards of exactly r_max: a warning in any of
    # them has a probability of at most delta = .1
    policy, _ = rewarded("OPB", 1.0, trials=50, largest=1.0)
    assert told(policy, lambda choice: torch.ones(50).double(), 200) == 0
