"""Safe sets that are made by hand, and seed sets as users give them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense import GP, N, X, rbf
from inside import settled

import cbandit as cb


def on_a_line(kind, m=1, **given):
    """``kind`` on arms 0 .. 4, a unit apart, that say nothing of each other."""
    x = torch.arange(5, dtype=torch.float64).unsqueeze(-1)
    gp = cb.GP(rbf(0.05), noise=1e-6)
    given = {"explore": cb.UCB(1.0), "safe": 0, **given}
    return kind(cb.Finite(x), reward=gp, costs=[gp] * m, **given)


def test_lipschitz_growth_and_expanders_by_hand():
    policy = on_a_line(cb.baselines.StageOpt, lipschitz=1.0, rounds=10, thresholds=2.5)
    # the prior: -1 <= cost <= 1, safety between 1.5 and 3.5: arms 0 and 1 are safe
    choice = policy.ask()
    assert policy.safe.tolist() == [True, True, False, False, False]
    # both could reach arm 2; equally wide, the first is played
    assert choice.index.item() == 0
    policy.tell(choice, reward=0.0, cost=0.0)
    # arm 0 is 2.5 safe: it vouches for arm 2; arm 1, in the safe set by now, too
    choice = policy.ask()
    assert policy.safe.tolist() == [True, True, True, False, False]
    # arm 0 cannot reach arm 3 any more: 2.5 < 3; arms 1 and 2 may
    assert choice.index.item() == 1
    policy.tell(choice, reward=0.0, cost=2.4)
    # arm 1 is 0.1 safe; of the rest arm 2 alone is an expander, and vouches for 3
    assert policy.ask().index.item() == 2
    assert policy.safe.tolist() == [True, True, True, True, False]


def test_costs_are_intersected():
    policy = on_a_line(
        cb.baselines.SafeOpt,
        2,
        lipschitz=torch.tensor([1.0, 2.0]),
        thresholds=torch.tensor([2.5, 2.5]),
    )
    policy.ask()
    # the first cost would let arm 1 in, 1.5 >= 1; the second does not, 1.5 < 2
    assert policy.safe.tolist() == [True, False, False, False, False]


def test_zero_lipschitz_makes_all_safe_at_once():
    policy = on_a_line(cb.baselines.StageOpt, lipschitz=0.0, rounds=9)
    choice = policy.ask()  # the seed is safe by 0, and costs are all alike
    assert bool(policy.safe.all())
    assert choice.index.item() == 0


def test_moving_thresholds_shrink_the_safe_set():
    policy = on_a_line(
        cb.baselines.StageOpt, lipschitz=1.0, rounds=0, thresholds=tighter
    )
    policy.ask()
    assert policy.safe.tolist() == [True, True, True, False, False]
    policy.ask()
    assert policy.safe.tolist() == [True, False, False, False, False]


def tighter(t):
    return 3.5 if t == 1 else 0.5


def test_eps_ends_expansion():
    policy = on_a_line(
        cb.baselines.StageOpt,
        safe=torch.tensor([0, 0]),
        lipschitz=1.0,
        rounds=100,
        eps=torch.tensor([3.0, 0.1]),
        thresholds=2.5,
        trials=2,
    )
    # widths are 2: trial 0 has nothing to expand, and both play arm 0 for it is first
    choice = policy.ask()
    policy.tell(choice, reward=[-5.0, -5.0], cost=[0.0, 0.0])
    assert policy.ask().index.tolist() == [1, 1]
    policy.tell(policy.outstanding[0], reward=[-5.0, -5.0], cost=[2.4, 2.4])
    assert policy.ask().index.tolist() == [2, 2]
    assert settled(policy).own.going.tolist() == [False, True]


@pytest.mark.parametrize(
    ("safe", "trials", "expected"),
    [
        (3, None, [[3]]),
        ([3, 4], None, [[3, 4]]),
        (torch.tensor([3, 4]), None, [[3, 4]]),
        ([3, 4], 2, [[3, 4], [3, 4]]),
        (torch.tensor([3, 4]), 2, [[3], [4]]),
        (np.array([[3, 4], [5, 5]]), 2, [[3, 4], [5]]),
        (torch.arange(N) < 2, 2, [[0, 1], [0, 1]]),
        (X[[3, 4]], 2, [[3, 4], [3, 4]]),
        (X[3], None, [[3]]),
        (X[torch.tensor([[3], [5]])], 2, [[3], [5]]),
    ],
)
def test_seed_sets(safe, trials, expected):
    policy = cb.baselines.SafeOpt(
        cb.Finite(X), reward=GP, costs=GP, explore=cb.UCB(1.0), safe=safe, trials=trials
    )
    mask = policy.safe.reshape(-1, N)
    assert [row.nonzero().squeeze(-1).tolist() for row in mask] == expected


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"safe": []}, "empty seed"),
        ({"safe": torch.zeros(N, dtype=torch.bool)}, "empty seed"),
        ({"safe": N}, "index"),
        ({"safe": -1}, "index"),
        ({"safe": torch.tensor([1, 2, 3])}, "safe"),
        ({"safe": torch.ones(4, dtype=torch.bool)}, "safe"),
        ({"safe": [[0.123]]}, "point of the set"),
        ({"safe": "left"}, "safe"),
        ({"lipschitz": -1.0}, "lipschitz"),
        ({"lipschitz": float("nan")}, "lipschitz"),
        ({"lipschitz": torch.ones(5)}, "lipschitz"),
        ({"rounds": -1}, "rounds"),
        ({"rounds": 1.5}, "rounds"),
        ({"eps": -0.1}, "eps"),
        ({"costs": None}, "costs"),
        ({"explore": cb.TS()}, "explore"),
        ({"pending": "hallucinate"}, "pending"),
        ({"feedback": cb.Sliding(10)}, "feedback"),
    ],
)
def test_bad_input_is_named(bad, word):
    given = {
        "reward": GP,
        "costs": GP,
        "explore": cb.UCB(1.0),
        "safe": 12,
        "rounds": 3,
        "trials": 2,
    }
    with pytest.raises(cb.CBanditError, match=word):
        cb.baselines.StageOpt(cb.Finite(X), **{**given, **bad})
