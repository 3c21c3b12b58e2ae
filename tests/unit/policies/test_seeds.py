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


def test_readings_and_a_lipschitz_constant_by_hand():
    policy = on_a_line(
        cb.baselines.LoSBO, lipschitz=1.0, noise_bound=0.25, thresholds=2.5
    )
    seed_only = [True, False, False, False, False]
    choice = policy.ask()  # the belief, -1 <= cost <= 1, says nothing of safety
    assert (policy.safe.tolist(), choice.index.item()) == (seed_only, 0)
    # at most 0.5 at arm 0, so at most 2.5 at arm 2: the limit
    policy.tell(choice, reward=0.0, cost=0.25)
    choice = policy.ask()
    assert policy.safe.tolist() == [True, True, True, False, False]
    # the belief would let both reach arm 3; arm 0 cannot: 2.25 < 3
    assert choice.index.item() == 1
    # a second reading of arm 0 does not undo what the first has shown
    policy.tell(choice, reward=0.0, cost=2.6)
    policy.observe(index=[0, 4], reward=[0.0, 0.0], cost=[9.0, 1.3])
    policy.ask()
    # data from before show arm 4, and arm 3 from there: 1.55 + 1 > 2.5
    assert policy.safe.tolist() == [True, True, True, False, True]


def test_no_limit_is_exceeded_whatever_the_belief():
    """Noise within the bound, a true Lipschitz constant: not one round of 50 x 30."""
    rng = np.random.default_rng(3)
    trials, e, x = 50, 0.2, X.numpy()[:, 0]
    rise = np.cumsum(rng.uniform(-4, 4, (trials, 2, N)) * np.diff(x, prepend=0), -1)
    truth = torch.tensor(1000 * rise)  # at most 4000 a unit
    tau = truth[:, 1].amin(-1) + 0.5 * (truth[:, 1].amax(-1) - truth[:, 1].amin(-1))
    policy = cb.baselines.LoSBO(
        cb.Finite(X),
        reward=cb.GP.default(cb.Finite(X)),
        costs=cb.GP(rbf(5.0), noise=1e-4, standardize=True),
        safe=truth[:, 1].argmin(-1),
        lipschitz=4000.0,
        noise_bound=1000 * e,
        thresholds=tau.unsqueeze(-1),
        trials=trials,
    )
    went = set()
    for _ in range(30):
        choice = policy.ask()
        y = truth.gather(-1, choice.index.view(-1, 1, 1).expand(-1, 2, 1))[..., 0]
        assert bool((y[:, 1] <= tau).all())
        y = y + torch.tensor(1000 * rng.uniform(-e, e, (trials, 2)))
        policy.tell(choice, reward=y[:, 0], cost=y[:, 1])
        went |= set(choice.index.tolist())
    assert len(went) > 20


def test_losbo_does_the_same_in_other_units():
    def played(unit):
        policy = cb.baselines.LoSBO(
            cb.Finite(X),
            reward=cb.GP(rbf(), noise=0.01, standardize=True),
            costs=cb.GP(rbf(), noise=0.01, standardize=True),
            safe=12,
            lipschitz=3.0 * unit,
            noise_bound=0.1 * unit,
            thresholds=unit,
        )
        went = []
        for _ in range(25):
            choice = policy.ask()
            at = float(X[choice.index])
            policy.tell(choice, reward=at, cost=unit * (2 * at - 0.8) ** 2)
            went.append(choice.index.item())
        return went, policy.safe.sum().item()

    (went, safe), other = played(1.0), played(1024.0)
    assert (went, safe) == other
    assert 3 < len(set(went)) <= safe < N


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
