"""One reading far outside what was seen has a bounded effect, and is warned of."""

from __future__ import annotations

import warnings

import pytest
import torch
from inside import beliefs_of
from worlds import smooth

import cbandit as cb

AXIS = torch.linspace(0, 1, 15, dtype=torch.float64)
GRID = cb.ProductGrid([AXIS, AXIS])
PLACES = torch.cartesian_prod(AXIS, AXIS)
COST = (1.2 * PLACES[:, 0] + 0.4 * (5 * PLACES[:, 1]).sin() - 0.5) * 1.6
REWARD = (3 * PLACES[:, 1]).sin() + PLACES[:, 0]
ROUND = 41  # of the wild reading


def made(kind, gp=None, **more):
    gp = gp or cb.GP.default(GRID)
    return kind(GRID, reward=gp, costs=gp, **more)


def play(policy, rounds, wild=None, shift=None, size=1.0):
    """Rounds with noise; ``wild`` is added to one cost, ``shift`` to all from there."""
    draws, costs = torch.Generator().manual_seed(3), []
    for t in range(1, rounds + 1):
        choice = policy.ask()
        index = choice.index.reshape(-1)
        z = 0.05 * torch.randn(2, generator=draws, dtype=torch.float64)
        reward, cost = REWARD[index] + z[0], COST[index] + z[1]
        if t == ROUND and wild is not None:
            cost = cost + torch.as_tensor(wild)
        if t >= ROUND and shift is not None:
            cost = cost + shift
        costs.append(COST[index])
        told = (reward, size * cost)
        if policy.trials is None:
            told = tuple(value[0] for value in told)
        policy.tell(choice, reward=told[0], cost=told[1])
    return torch.stack(costs)


def quietly(*given, **named):
    """Play; the costs, and the warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        costs = play(*given, **named)
    return costs, [str(each.message) for each in said]


@pytest.mark.parametrize("kind", [cb.CKB, cb.RPOL])
def test_the_limit_is_kept_after_a_wild_reading(kind):
    clean, none = quietly(made(kind), 100)
    assert none == []
    over = (clean[-40:] > 0.05).sum()
    for wild in (3.5, -3.5e4):
        policy = made(kind)
        costs, said = quietly(policy, 100, wild)
        assert (costs[-40:] > 0.05).sum() <= over + 4, wild
        assert costs.mean() <= clean.mean().clamp_min(0) + 0.1, wild
        assert float(policy.multiplier) < 100
        (text,) = said
        assert f"of round {ROUND} lies far outside" in text and "cost1 = " in text


def test_the_history_keeps_what_was_told():
    policy = made(cb.RPOL)
    quietly(policy, 45, 5e4)
    told = float(policy.history().iloc[ROUND - 1]["cost1"])
    assert 5e4 - 3 < told < 5e4 + 3
    believed = policy.posterior().costs.mean
    assert float(believed.abs().max()) < 20


def test_multipliers_take_what_beliefs_take():
    """An excess of 50 000 is worth a few deviations, and so is the price."""
    clean, wild = made(cb.RPOL), made(cb.RPOL)
    quietly(clean, ROUND)
    quietly(wild, ROUND, 5e4)
    with pytest.warns(UserWarning, match="far outside"):
        gained = float(wild.multiplier) - float(clean.multiplier)
    assert 0 < gained < 20
    assert 0.2 < float(wild.price / clean.price) < 20


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("spreads", [5, 500])
def test_a_level_that_moves_is_followed(spreads, sign):
    """Within 20 rounds, at the action just measured: elsewhere it is not known."""
    policy, shift = made(cb.RPOL), sign * 0.7 * spreads
    assert quietly(policy, ROUND - 1)[1] == []
    followed = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for t in range(20):
            choice = policy.ask()
            index = int(choice.index)
            noise = 0.05 * (-1) ** t
            policy.tell(choice, reward=REWARD[index], cost=COST[index] + noise + shift)
            believed = policy.posterior().costs.mean[0, index] - COST[index]
            followed.append(bool(believed / shift > 0.5))
    assert any(followed) and not followed[0]
    assert 1 <= len(said) <= 4


def test_a_steep_corner_is_believed():
    """Costs a hundred times higher in a corner are measured there again and again."""
    policy = made(cb.RPOL, thresholds=1e4)
    corner = int((PLACES.sum(-1)).argmax())
    quietly(policy, 30)
    for _ in range(6):
        choice = policy.ask(among=[corner])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            policy.tell(choice, reward=1.0, cost=200.0)
            assert bool(policy.multiplier.isfinite())
    policy.refit()
    assert float(policy.posterior().costs.mean[0, corner]) > 100


def test_a_warning_names_what_was_told_in_the_users_words():
    gp = cb.GP.default(GRID)
    policy = cb.RPOL(
        GRID, reward=gp, costs={"speed": gp}, thresholds={"speed": ">= 0"},
        minimise=True,
    )  # fmt: skip
    for t in range(45):
        choice = policy.ask()
        cost = float(-COST[choice.index]) + 0.01 * (t % 5)
        reward = float(-REWARD[choice.index]) + 0.01 * (t % 3)
        if t == 39:
            cost, reward = -700.0, 800.0
        policy.tell(choice, reward=reward, cost={"speed": cost})
        if t == 39:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                policy.ask()
            texts = [str(each.message) for each in said]
            assert texts[0].startswith("reward = 800 of round 40 lies far outside")
            assert texts[1].startswith("speed = -700 of round 40 lies far outside")
            assert {each.filename for each in said} == {__file__}
            assert len(texts) == 2


def test_trials_are_judged_apart():
    wild = torch.tensor([0.0, 5e3, 0.0], dtype=torch.float64)
    policy = made(cb.RPOL, trials=3)
    clean = made(cb.RPOL, trials=3)
    costs, said = quietly(policy, 60, wild)
    others, none = quietly(clean, 60)
    assert none == []
    (text,) = said
    assert f"round {ROUND} in trial 1 lies" in text
    assert torch.equal(costs[:, 0], others[:, 0])
    assert torch.equal(costs[:, 2], others[:, 2])


def test_data_from_before_are_bounded_too():
    draws = torch.Generator().manual_seed(0)
    index = torch.randperm(225, generator=draws)[:60]
    cost = COST[index] + 0.05 * torch.randn(60, generator=draws).double()
    cost[33] = -4e4
    policy = made(cb.CKB)
    with pytest.warns(UserWarning, match="row 33 of the data from before") as said:
        policy.observe(index=index, reward=REWARD[index], cost=cost)
    assert len(said) == 1
    believed = policy.posterior().costs
    assert float((believed.mean[0] - COST).abs().mean()) < 0.5


def test_tells_commute():
    """Readings told in another order between two rounds give the same bits."""
    policies = [made(cb.RPOL, pending="ignore") for _ in range(2)]
    for policy, order in zip(policies, (1, -1), strict=True):
        quietly(policy, 40)
        choices = [policy.ask(among=[k]) for k in (0, 100, 224)]
        told = dict(zip(choices, (COST[0], 5e3, COST[224]), strict=True))
        for choice in choices[::order]:
            policy.tell(choice, reward=1.0, cost=float(told[choice]))
        with pytest.warns(UserWarning, match="far outside"):
            policy.ask()
    first, second = (policy.posterior().costs.mean for policy in policies)
    assert torch.equal(first, second)
    assert torch.equal(policies[0].multiplier, policies[1].multiplier)


def test_a_checkpoint_goes_on_alike(tmp_path):
    policy = made(cb.RPOL)
    quietly(policy, ROUND, shift=500.0)  # amid a move
    with pytest.warns(UserWarning, match="far outside"):
        policy.posterior()
    policy.save(tmp_path / "policy")
    other = cb.load(tmp_path / "policy")
    for each in (policy, other):
        each.tell(each.ask(), reward=1.0, cost=500.0)
        each.ask()  # the second of its kind, which counts as told
    assert torch.equal(policy.posterior().costs.mean, other.posterior().costs.mean)


@pytest.mark.parametrize(
    "more",
    [
        {"feedback": cb.Sliding(30)},
        {"feedback": cb.Delayed(10, weight=0.1)},
        {"dtype": "float32"},
    ],
    ids=["sliding", "delayed", "float32"],
)
def test_other_feedback_and_dtypes(more):
    policy = made(cb.RPOL, **more)
    _, said = quietly(policy, 60, 5e4)
    assert len(said) == 1
    spread = beliefs_of(policy).units().size[0, 1]
    assert float(spread) < 5


def test_powers_of_two_give_equal_bits():
    costs = [quietly(made(cb.RPOL), 60, 900.0, size=size)[0] for size in (1.0, 2.0**20)]
    assert torch.equal(*costs)


def test_beliefs_that_are_not_standardised_take_readings_as_they_are():
    policy = made(cb.RPOL, gp=smooth(standardize=False))
    _, said = quietly(policy, 45, 1e3)
    assert said == []
    assert float(policy.posterior().costs.mean.abs().max()) > 100


def test_readings_like_earlier_ones_need_no_look_at_the_beliefs(monkeypatch):
    """What was accepted once is accepted again, so bounds are not computed for it."""
    policy, looks = made(cb.RPOL), []
    bounds = type(beliefs_of(policy)).bounds

    def counted(*given):
        looks.append(given)
        return bounds(*given)

    monkeypatch.setattr(type(beliefs_of(policy)), "bounds", counted)
    for cost, looked in ((0.0, 1), (1.0, 2), (0.5, 2), (1.0, 2), (1.5, 3), (1.2, 3)):
        policy.tell(policy.ask(), reward=0.0, cost=cost)
        beliefs_of(policy)
        assert len(looks) == looked, cost
