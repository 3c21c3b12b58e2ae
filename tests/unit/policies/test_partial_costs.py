"""Stage-wise policies: costs told one by one, and recommendations after failures."""

from __future__ import annotations

import math

import pytest
import torch
from stagewise import noise, rbf, unit

import cbandit as cb

NAMES = ("heat", "noise")
LIMITS = dict.fromkeys(NAMES, 0.3)


def line(n=6):
    return torch.linspace(0, 1, n).double().unsqueeze(-1)


def policy_of(kind, **more):
    """A stage-wise policy with two named costs, both about 0.2 x."""
    given = {"thresholds": LIMITS, "seed": 3, **more}
    if kind in ("LCLUCB", "SafeLTS", "OPLB"):
        make = getattr(cb, kind, None) or getattr(cb.baselines, kind)
        linear = cb.Linear(0.1, length=1.0)
        points = torch.cat([torch.zeros(1, 3).double(), 0.3 * unit(5, 3, seed=1)])
        star = cb.Star(torch.zeros(3), unit(5, 3, seed=1).abs())
        on = cb.Finite(points) if kind == "OPLB" else star
        costs = dict.fromkeys(NAMES, linear)
        given = {"safe": cb.Safe(x=[0.0] * 3), **given}
        return make(on, reward=linear, costs=costs, **given)
    if kind == "OPNLB":
        values = torch.stack([a * line().squeeze(-1) for a in (0.1, 0.2, 0.3, 0.9)])
        one = cb.FiniteClass(values, subgaussian=0.1, radius=0.5)
        costs = dict.fromkeys(NAMES, one)
        given = {"safe": cb.Safe(index=0, reward=0.0, cost=[0.0, 0.0]), **given}
        return cb.OPNLB(cb.Finite(line()), reward=one, costs=costs, **given)
    belief = cb.Counts(0.1, range=(-1.0, 2.0))
    if kind == "GP":
        belief = cb.GP(rbf(), noise=0.01)
    given = {"safe": cb.Safe(index=0), "horizon": 50, **given}
    costs = dict.fromkeys(NAMES, belief)
    return cb.OPB(cb.Finite(line()), reward=belief, costs=costs, **given)


KINDS = ["LCLUCB", "SafeLTS", "OPLB", "OPNLB", "Counts", "GP"]


@pytest.mark.parametrize("kind", KINDS)
def test_costs_may_come_one_by_one(kind):
    pytest.importorskip("cvxpy") if kind == "OPLB" else None
    whole, parts = policy_of(kind), policy_of(kind)
    z = noise(12, 3, seed=5)
    for t in range(12):
        one, other = whole.ask(), parts.ask()
        assert torch.equal(one.x, other.x)
        level = float(one.x.sum())
        cost = {"heat": 0.2 * level + z[t, 0], "noise": 0.1 * level + z[t, 1]}
        reward = level + z[t, 2]
        whole.tell(one, reward=reward, cost=cost)
        parts.tell(other, cost={"noise": cost["noise"]})
        parts.tell(other, reward=reward)
        parts.tell(other, cost={"heat": cost["heat"]})
    assert parts.outstanding == []
    both = [each.posterior() for each in (whole, parts)]
    for read in ("mean", "std"):
        for functions in ("reward", "costs"):
            a, b = (getattr(getattr(each, functions), read) for each in both)
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    both = [each.history()[["reward", *NAMES]] for each in (whole, parts)]
    assert both[0].equals(both[1])


@pytest.mark.parametrize("kind", ["LCLUCB", "Counts", "GP"])
def test_a_cost_counts_at_once(kind):
    policy = policy_of(kind)
    observed = {"x": unit(1, 3, seed=1).abs()} if kind == "LCLUCB" else {"index": [5]}
    policy.observe(**observed, reward=[0.1], cost={"heat": [0.1], "noise": [0.1]})
    choice = policy.ask()
    before = policy.posterior().costs.mean.clone()
    policy.tell(choice, cost={"heat": 0.1})
    after = policy.posterior().costs.mean
    if kind != "LCLUCB":  # whose safe action, the origin, teaches nothing
        assert bool((after[0] != before[0]).any())
    assert torch.equal(after[1], before[1])
    assert [each.id for each in policy.outstanding] == [choice.id]


def test_the_safe_costs_are_averaged_one_by_one():
    policy = policy_of("Counts", safe=cb.Safe(index=0), horizon=50)
    heats, noises = [0.05, 0.15, 0.1], [0.2]
    choices = [policy.ask() for _ in heats]
    for choice, heat in zip(choices, heats, strict=True):
        assert int(choice.index) == 0
        policy.tell(choice, reward=0.1, cost={"heat": heat})
    policy.tell(choices[1], cost={"noise": noises[0]})
    policy.multiplier  # noqa: B018  takes in what was told
    policy.posterior()
    known = policy._now.state.safe.cost
    assert known.mean[0].tolist() == pytest.approx([sum(heats) / 3, 0.2])
    log = 2 * math.log(3 * 50 / 0.1)
    widths = [0.3 * math.sqrt(log / n) for n in (3, 1)]
    assert known.width[0].tolist() == pytest.approx(widths)


# ---------------------------------------------------------------------------- failures


@pytest.mark.parametrize("kind", KINDS)
def test_what_failed_is_not_recommended(kind):
    pytest.importorskip("cvxpy") if kind == "OPLB" else None
    safe = {"LCLUCB": {}, "SafeLTS": {}, "OPLB": {}}.get(
        kind, {"safe": cb.Safe(index=0, reward=0.0, cost=[0.0, 0.0])}
    )
    policy = policy_of(kind, **safe)
    on = policy.actions
    every = on.tips if isinstance(on, cb.Star) else on.points(torch.arange(6))
    for _ in range(20):
        level = every.double().sum(-1)
        costs = {"heat": 0.2 * level, "noise": 0.1 * level}
        policy.observe(x=every, reward=level, cost=costs)
    first = played(policy)
    assert first, "it recommends another action than the safe one"
    for number in first:
        for _ in range(300):
            alone = isinstance(on, cb.Star)  # its safe action is never left out
            choice = policy.ask(among=[number] if alone else [0, number])
            if int(choice.index) == number and bool(choice.x.any()):
                policy.tell(choice, failed=True)
                break
            policy.cancel(choice)
        else:
            pytest.fail(f"{number} is never played")
    again = played(policy)
    assert again
    assert not set(first) & set(again)
    found = policy.recommend()
    assert bool(found.value.isfinite()) and bool(found.feasible)


def played(policy):
    """The numbers of the actions recommended, on a star of segments."""
    found = policy.recommend()
    numbers = found.index.reshape(-1).tolist()
    shares = [1.0] if found.distribution is None else found.distribution.probability
    x = found.x.reshape(len(numbers), -1)
    pairs = zip(numbers, shares, x, strict=True)
    return [n for n, share, at in pairs if share > 0 and bool(at.any())]


def test_with_nothing_left_an_error_says_so():
    policy = policy_of("Counts", safe=cb.Safe(index=0, reward=0.0, cost=[0.0, 0.0]))
    policy.tell(policy.ask(among=[0]), failed=True)
    with pytest.raises(cb.CBanditError, match="safe action has failed"):
        policy.recommend()
