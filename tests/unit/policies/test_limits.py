"""Limits that change while a policy runs, limits kept with choices, read-only parts."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from inside import Share, concern_of

import cbandit as cb

F64 = torch.float64
X = torch.linspace(0, 1, 12, dtype=F64).unsqueeze(-1)
SET = cb.Finite(X)
KERNEL = gpytorch.kernels.RBFKernel().double()
KERNEL.lengthscale = torch.tensor(0.3, dtype=F64)
GP = cb.GP(KERNEL, noise=0.01)
LIMITS = {"ms": "<= 90", "up": ">= 0.9"}


def rpol(trials=None, on=SET, limits=LIMITS, **more):
    costs = dict.fromkeys(limits, GP)
    return cb.RPOL(on, reward=GP, costs=costs, thresholds=limits, trials=trials, **more)


def tell(policy, choice, ms, up=1.0):
    shape = policy.batch_shape
    cost = {"ms": torch.full(shape, 1.0 * ms), "up": torch.full(shape, up)}
    policy.tell(choice, reward=torch.full(shape, 0.0), cost=cost)


def test_what_is_judged_by_which_limit():
    """By hand: the multiplier gains each round's excess over that round's limit."""
    policy = rpol()
    old = policy.ask()
    policy.limit("ms", "<= 60")
    new = policy.ask()
    tell(policy, new, 70)  # 10 above
    tell(policy, old, 92, 0.8)  # 2 above 90, 0.1 below 0.9
    assert policy.multiplier.tolist() == pytest.approx([13.0, 2**0.5])
    assert policy.history()["limit_ms"].tolist() == [90.0, 60.0]
    assert "limit_up" not in policy.history()
    assert policy.thresholds.tolist() == [[60.0, -0.9]]


@pytest.mark.parametrize("trials", [None, 2])
def test_texts_numbers_trials_and_callables(trials, tmp_path):
    policy = rpol(trials)
    shape, size = policy.batch_shape, trials or 1
    for said, ms in ((70, 70.0), ("<= 65", 65.0), ("<= 50%", 0.5)):
        policy.limit("ms", said)
        assert policy.limits(1)[:, 0].tolist() == [ms] * size
    policy.limit("ms", lambda t: 50.0 + t)
    policy.limit("up", torch.linspace(0.5, 0.6, size).double().reshape(shape))
    assert policy.limits(7)[:, 0].tolist() == [57.0] * size
    assert policy.limits(7)[:, 1].tolist() == pytest.approx(
        [-0.5 - 0.1 * i / max(1, size - 1) for i in range(size)]
    )
    policy.ask()
    policy.limit("ms", 40)  # over a callable of one cost
    policy.save(tmp_path / "a.ckpt")
    loaded = cb.load(tmp_path / "a.ckpt")
    for each in (policy, loaded):
        assert each.limits(9)[:, 0].tolist() == [40.0] * size
        each.ask()
        assert each.history()["limit_ms"].tolist() == [51.0] * size + [40.0] * size
    left, right = policy.ask(), loaded.ask()
    assert torch.equal(left.index, right.index)


def later(t):
    return [1.0 + t, 2.0]


def test_over_a_callable_for_all_costs(tmp_path):
    policy = rpol(limits={"ms": 0.0, "up": 0.0})
    policy = cb.RPOL(SET, reward=GP, costs=[GP, GP], thresholds=later)
    policy.limit("cost2", 5)
    assert policy.limits(3).tolist() == [[4.0, 5.0]]
    assert policy.thresholds(3).tolist() == [[4.0, 5.0]]
    policy.save(tmp_path / "a.ckpt")
    loaded = cb.load(tmp_path / "a.ckpt", trust=(later,))
    assert loaded.limits(3).tolist() == [[4.0, 5.0]]
    policy.limit("cost1", lambda t: 2.0 * t)
    assert policy.limits(3).tolist() == [[6.0, 5.0]]


def test_the_next_choices_are_those_of_a_policy_built_with_the_limit(tmp_path):
    """Under fixed beliefs the limit is all that differs."""
    changed = rpol(limits={"ms": "<= 9", "up": ">= 0.9"})
    built = rpol(limits={"ms": "<= 0.4", "up": ">= 0.9"})
    for policy in (changed, built):
        for t in range(6):
            choice = policy.ask(among=[2 * t])
            tell(policy, choice, 0.3, 0.95)  # within both limits
        if policy is changed:
            changed.save(tmp_path / "a.ckpt")
            changed.limit("ms", "<= 0.4")
            changed.save(tmp_path / "a.ckpt")
            changed = policy = cb.load(tmp_path / "a.ckpt")
    for _ in range(5):
        one, other = changed.ask(), built.ask()
        assert torch.equal(one.index, other.index)
        for policy, choice in ((changed, one), (built, other)):
            tell(policy, choice, float(choice.x), 0.95)
    assert torch.equal(changed.multiplier, built.multiplier)


@pytest.mark.parametrize("trials", [None, 2])
def test_a_budget_may_begin_change_and_end(trials, tmp_path):
    policy = rpol(trials)
    old = policy.ask()
    policy.limit("ms", cb.Budget(100.0, rounds=10))
    assert policy.horizon == 11
    assert policy.budget["ms"].rounds == 10
    tell(policy, old, 50)  # of before: it is not charged
    one = policy.ask()
    assert policy.budget["ms"].left.min() < 100
    tell(policy, one, 10)
    policy.save(tmp_path / "a.ckpt")
    policy = cb.load(tmp_path / "a.ckpt")
    standing = policy.budget["ms"]
    assert standing.spent.tolist() == ([10.0] * trials if trials else 10.0)
    torch.testing.assert_close(standing.pace, standing.left / 9)
    two = policy.ask()
    policy.limit("ms", cb.Budget(30.0, rounds=3))  # anew, from here
    tell(policy, two, 7)
    assert policy.budget["ms"].left.tolist() == ([30.0] * trials if trials else 30.0)
    policy.ask()
    policy.limit("ms", 5)
    assert policy.budget == {}
    assert policy.horizon is None
    three = policy.ask()
    tell(policy, three, 6)
    frame, size = policy.history(), trials or 1
    assert frame["limit_ms"].tolist()[::size] == [90.0, 10.0, 10.0, 10.0, 5.0]
    assert frame["pace_ms"].isna().tolist()[::size] == [True, *[False] * 3, True]


def test_of_two_budgets_one_ends():
    policy = rpol(
        limits={"ms": cb.Budget(10.0, rounds=10), "up": cb.Budget(20.0, rounds=20)}
    )
    choice = policy.ask()
    policy.limit("ms", 3)
    tell(policy, choice, 1, 2.0)
    assert list(policy.budget) == ["up"]
    assert policy.budget["up"].spent == 2.0
    assert policy.horizon == 20
    policy.limit("ms", cb.Budget(10.0, rounds=5))
    assert list(policy.budget) == ["ms", "up"]
    assert policy.budget["up"].spent == 2.0
    assert policy.horizon == 6


def test_a_share_beside_a_budget_is_judged_by_its_own_pace():
    """The second cost is late: the pace of a later round must not judge it."""
    policy = rpol(
        limits={"ms": cb.Budget(100.0, rounds=10), "up": 0.5}, share=0.5, seed=1
    )
    first = policy.ask()
    pace = 10.0
    policy.tell(first, cost={"ms": 80.0})
    policy.ask()
    assert policy.limits(2)[0, 0] != pace
    policy.tell(first, cost={"up": 0.1})
    (judged,) = concern_of(policy, Share).open
    assert judged.limits[0, 0] == pace


def test_binary_costs_take_shares():
    rate = cb.GP(KERNEL, outcome="binary", mean=0.1)
    policy = cb.RPOL(
        SET, reward=GP, costs={"fails": rate}, thresholds={"fails": "<= 1%"}
    )
    assert policy.thresholds.tolist() == [[0.01]]
    with pytest.raises(cb.CBanditError, match="probability between 0 and 1"):
        policy.limit("fails", "<= 2")
    policy.limit("fails", "<= 5%")
    choice = policy.ask()
    policy.tell(choice, reward=0.0, cost={"fails": (3, 100)})
    assert policy.status().limits[0].within == 1


def test_per_cent_is_a_share_and_told_as_one():
    policy = rpol(limits={"ms": "<= 1%", "up": ">= 99.9%"})
    assert policy.thresholds.tolist() == [[0.01, -0.999]]
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match=r"told as a share: 0\.995; got 99\.5"):
        tell(policy, choice, 0.005, 99.5)
    with pytest.raises(cb.CBanditError, match="told as a share"):
        policy.observe(index=[1], cost={"ms": [0.0], "up": [99.0]})
    tell(policy, choice, 0.05, 0.9999)
    assert policy.multiplier[0] == pytest.approx(1.04)  # 5 % are above 1 %
    assert policy.status().limits[0].within == 0
    policy.limit("up", ">= 99")  # now in per cent
    tell(policy, policy.ask(), 0.005, 99.5)


REFUSED = [
    ("mss", 1, "did you mean 'ms'"),
    (0, 1, "no cost is called 0"),
    ("ms", ">= 3", "keeps its side"),
    ("up", "<= 3", "keeps its side"),
    ("up", cb.Budget(3.0, rounds=2), "cannot have a cb.Budget"),
    ("ms", float("nan"), "finite"),
    ("ms", [1.0, 2.0, 3.0], "limit of ms"),
    ("ms", "sixty", "must be a number"),
    ("ms", lambda t: [1.0, 2.0, 3.0], "limit of ms"),
]


@pytest.mark.parametrize(("name", "limit", "words"), REFUSED)
def test_a_limit_that_is_refused_changes_nothing(name, limit, words):
    policy, twin = rpol(), rpol()
    with pytest.raises(cb.CBanditError, match=words):
        policy.limit(name, limit)
    assert torch.equal(policy.thresholds, twin.thresholds)
    assert torch.equal(policy.ask().index, twin.ask().index)


STAY = {
    "slater": lambda: cb.CKB(
        SET, reward=GP, costs=GP, slater=0.5, clip=(1.0, 1.0), horizon=9,
        explore=cb.UCB(1.0),
    ),
    "step from clip": lambda: cb.CKB(
        SET, reward=GP, costs=GP, cap=5.0, clip=(1.0, 1.0), horizon=9,
        explore=cb.UCB(1.0),
    ),
    "SCGP-UCB": lambda: cb.SCGPUCB(
        SET, reward=GP, costs=1, slater=0.5, clip=1.0, explore=cb.UCB(1.0)
    ),
    "safe": lambda: cb.baselines.SafeOpt(
        SET, reward=GP, costs=GP, safe=0, explore=cb.UCB(1.0)
    ),
    "LC-LUCB": lambda: cb.LCLUCB(
        cb.Star([0.0], [[1.0]]), reward=cb.Linear(0.1), costs=cb.Linear(0.1),
        safe=cb.Safe(x=[0.0]), thresholds=0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_limits_stay_where_constants_or_a_safe_action_rest_on_them(name):
    with pytest.raises(cb.CBanditError, match="takes no other limit"):
        STAY[name]().limit("cost1", 1.0)


def test_others_take_them():
    plain = cb.CKB(
        SET, reward=GP, costs=GP, step=0.1, cap=5.0, clip=(1.0, 1.0),
        explore=cb.UCB(1.0),
    )  # fmt: skip
    delayed = rpol(feedback=cb.Delayed(3))
    for policy, name in ((plain, "cost1"), (delayed, "ms")):
        policy.ask()
        policy.limit(name, 2.0)
        choice = policy.ask()
        policy.tell(choice, reward=0.0, cost=[0.0] * policy.m)
        policy.ask()
        assert policy.history()[f"limit{1 if name == 'cost1' else '_ms'}"].iloc[-1] == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("thresholds", "limit(name, '<= 60')"),
        ("explore", "another explore="),
        ("penalty", "another penalty="),
        ("m", "cannot be assigned"),
        ("multiplier", "cannot be assigned"),
        ("horizon", "another horizon="),
        ("pending", "another pending="),
    ],
)
def test_what_the_state_rests_on_is_read_only(name, words):
    policy = rpol(pending="ignore")
    with pytest.raises(cb.CBanditError) as error:
        setattr(policy, name, 3)
    assert isinstance(error.value, AttributeError)
    assert words in str(error.value)
    policy.ask()
    policy.note = "one's own"  # other attributes are the user's


def test_every_ask_reads_a_callable_limit_of_its_round():
    seen = []

    def limit(t):
        seen.append(t)
        return 0.5

    policy = rpol()
    policy.limit("ms", limit)
    policy.ask()
    policy.ask()
    assert set(seen) == {1, 2}
