"""Failures that are learned from: a belief about the probability to fail."""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch
from inside import FailureBelief, concern_of
from scipy.integrate import quad
from scipy.stats import norm

import cbandit as cb

F64 = torch.float64
AXIS = torch.linspace(0, 1, 13, dtype=F64)
GRID = cb.ProductGrid([AXIS, AXIS])
POINTS = cb.Finite(torch.cartesian_prod(AXIS, AXIS))
BOX = cb.Box([0.0, 0.0], [1.0, 1.0])
SETS = {"grid": GRID, "points": POINTS, "box": BOX}
PRIOR = math.sqrt(2) * norm.ppf(0.05)


def belief():
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=F64)
    return cb.GP(kernel, noise=1e-2)


def gpucb(on=GRID, **more):
    return cb.GPUCB(on, reward=belief(), explore=cb.UCB(1.0), **more)


def value(x):
    return 1.0 - 2.0 * (x - 0.4).square().sum(-1)


def fails(x):
    """A quarter of the set, next to the best action."""
    return (x[..., 0] > 0.5) & (x[..., 1] > 0.5)


def probability(policy, x):
    """Of failing, as the policy believes it."""
    beliefs = concern_of(policy, FailureBelief).beliefs
    mean, std = beliefs.anywhere(torch.as_tensor(x).double().reshape(1, -1, 2))
    return torch.special.ndtr(mean / (1 + std.square()).sqrt())[:, 0]


def matched(*outcomes):
    """P(fails) after outcomes at one action, matched one by one by integration."""
    mean, var = PRIOR, 1.0
    for fails in outcomes:

        def part(power, sign=1.0 if fails else -1.0, mean=mean, var=var):
            def density(f):
                return f**power * norm.cdf(sign * f) * norm.pdf(f, mean, var**0.5)

            return quad(density, mean - 10, mean + 10, points=[mean])[0]

        mass = part(0)
        mean, var = part(1) / mass, part(2) / mass - (part(1) / mass) ** 2
    return norm.cdf(mean / (1 + var) ** 0.5)


@pytest.mark.parametrize("name", ["grid", "points"])
def test_an_action_that_always_fails_is_left_after_three_times(name):
    policy, seen = gpucb(SETS[name]), []
    for _ in range(4):
        choice = policy.ask()
        seen.append(choice.x.clone())
        if len(seen) == 1:
            assert concern_of(policy, FailureBelief) is None
        policy.tell(choice, failed=True)
        if len(seen) < 4 and torch.equal(seen[-1], seen[0]):
            chance = float(probability(policy, seen[0]))
            assert chance == pytest.approx(matched(*[1] * len(seen)), abs=1e-6)
    assert [torch.equal(x, seen[0]) for x in seen[:4]] == [True, True, True, False]


def test_what_was_measured_before_counts():
    one, other = gpucb(), gpucb()
    x = torch.tensor([[0.5, 0.5]], dtype=F64)
    other.observe(x=x, reward=[1.0])
    other.tell(other.ask(among=[84]), reward=1.0)  # the same action
    for policy in (one, other):
        policy.tell(policy.ask(among=[84]), failed=True)
    assert float(probability(one, x)) == pytest.approx(matched(1), abs=1e-6)
    assert float(probability(other, x)) == pytest.approx(matched(0, 0, 1), abs=1e-6)
    other.observe(x=x, reward=[1.0])
    assert float(probability(other, x)) == pytest.approx(matched(0, 0, 1, 0), abs=1e-6)


def played(policy, rounds):
    """In which rounds a setting of the region was asked for."""
    out = []
    for _ in range(rounds):
        choice = policy.ask()
        out.append(bool(fails(choice.x)))
        told = {"failed": True} if out[-1] else {"reward": value(choice.x)}
        policy.tell(choice, **told)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid", "points"])
def test_a_region_that_fails_is_learned(name):
    """Of its 36 actions most are never tried, and in the end hardly any."""
    learned = played(gpucb(SETS[name]), 60)
    barred = played(gpucb(SETS[name], failures=False), 60)
    assert sum(learned) <= 9  # 14, were the bar at one half
    assert sum(learned[-20:]) <= 1
    assert sum(barred) >= 22
    assert any(barred[-20:])


@pytest.mark.slow
def test_a_region_of_a_box_is_learned():
    learned, barred = (played(gpucb(BOX, failures=way), 20) for way in (None, False))
    assert sum(learned) <= 7 < sum(barred)  # 12, were the bar at one half


@pytest.mark.parametrize("name", ["grid", "box"])
def test_the_bar_is_half_way_between_one_half_and_the_surest_action(name):
    policy, tried, failures = gpucb(SETS[name]), [], 0
    for _ in range(13):
        choice = policy.ask()
        if failures:
            chances = probability(policy, torch.stack(tried)).flatten()
            here = float(probability(policy, choice.x))
            assert here <= 0.5 * (0.5 + float(chances.min())) + 1e-6
        tried.append(choice.x)
        bad = bool(fails(choice.x))
        failures += bad
        told = {"failed": True} if bad else {"reward": value(choice.x)}
        policy.tell(choice, **told)
    assert failures > 1


def test_above_the_bar_what_is_below_one_half_is_left():
    """One that works goes before one that failed twice, which goes before nothing."""
    policy = gpucb()
    for _ in range(3):
        policy.tell(policy.ask(among=[0]), reward=0.0)
    for _ in range(2):
        policy.tell(policy.ask(among=[84]), failed=True)
    assert 0.3 < float(probability(policy, [[0.5, 0.5]])) < 0.5
    assert int(policy.ask(among=[0, 84]).index) == 0
    assert int(policy.ask(among=[84, 85]).index) in (84, 85)


def test_random_failures_bar_nothing_for_long():
    """Every tenth try of an action fails; it is never left out."""
    policy = gpucb()
    for i in range(30):
        choice = policy.ask(among=[84])
        told = {"reward": 1.0} if i % 10 else {"failed": True}
        policy.tell(choice, **told)
        assert float(probability(policy, [[0.5, 0.5]])) < 0.5


@pytest.mark.parametrize("engine", ["joint", "factor", "product", "stream"])
@pytest.mark.parametrize("trials", [None, 2])
def test_engines_and_trials_agree(engine, trials):
    policy, plain = gpucb(engine=engine, trials=trials), gpucb(trials=None)
    for t in range(8):
        choice, other = policy.ask(), plain.ask()
        index = choice.index.reshape(-1)
        assert (index == other.index).all()
        bad = t % 3 == 1
        for p, c in ((policy, choice), (plain, other)):
            p.tell(c, **({"failed": True} if bad else {"reward": value(c.x)}))


def test_failures_are_learned_in_float32():
    wide, narrow = gpucb(), gpucb(dtype=torch.float32)
    for policy in (wide, narrow):
        for t in range(8):
            choice = policy.ask(among=[20 * t])
            policy.tell(choice, **({"failed": True} if t % 3 else {"reward": 1.0}))
    chances = [probability(policy, POINTS.all) for policy in (wide, narrow)]
    assert chances[0].max() > 0.3
    torch.testing.assert_close(*chances, rtol=0, atol=1e-5)


def test_each_trial_has_failures_of_its_own():
    policy = gpucb(trials=2)
    for _ in range(4):
        choice = policy.ask()
        policy.tell(choice, failed=True, where=[True, False])
        policy.ask()  # what has failed in a part of the trials counts at once
        policy.tell(choice, reward=value(choice.x), where=[False, True])
    chances = probability(policy, [[0.5, 0.5]])
    assert chances[0, 0] > 0.2
    assert chances[1, 0] < 0.05


def test_where_all_that_is_allowed_fails_it_is_what_fails_least():
    policy = gpucb()
    for _ in range(4):
        policy.tell(policy.ask(among=[0]), failed=True)
    for _ in range(3):
        policy.tell(policy.ask(among=[168]), failed=True)
    assert int(policy.ask(among=[0]).index) == 0
    assert int(policy.ask(among=[0, 168]).index) == 168
    assert int(policy.ask(among=[0, 50, 168]).index) == 50


@pytest.mark.parametrize("name", ["grid", "box"])
def test_it_resumes_bit_for_bit(name, tmp_path):
    policy = gpucb(SETS[name])
    played(policy, 5)
    policy.tell(policy.ask(), failed=True)
    waiting = policy.ask()
    policy.tell(waiting, failed=True)
    policy.save(tmp_path / "a.ckpt")
    copy = cb.load(tmp_path / "a.ckpt")
    for _ in range(3):
        one, other = policy.ask(), copy.ask()
        assert torch.equal(one.x, other.x)
        policy.tell(one, failed=True)
        copy.tell(other, failed=True)


@pytest.mark.parametrize("name", ["grid", "box"])
def test_what_likely_fails_is_neither_recommended_nor_designed(name):
    policy = gpucb(SETS[name], design=3)
    first = policy.ask()
    policy.cancel(first)
    policy.observe(x=torch.tensor([[0.0, 0.0], [0.5, 0.5]]).double(), reward=[0.0, 1.0])
    best = policy.recommend().x
    for _ in range(6):
        choice = policy.ask(actions=best.reshape(1, 2))
        policy.tell(choice, failed=True)
    assert float(probability(policy, best)) > 0.5
    assert float(probability(policy, policy.recommend().x)) < 0.5 + 1e-6


def test_each_trial_recommends_what_does_not_fail_in_it():
    policy = gpucb(SETS["grid"], trials=3)
    for t in range(8):
        choice = policy.ask()
        failed = torch.tensor([t < 4, False, t < 2])
        if bool(failed.any()):
            policy.tell(choice, failed=True, where=failed)
        policy.tell(choice, reward=choice.x.sum(-1), where=~failed)
    best = policy.recommend().x
    assert bool((probability(policy, best).diagonal() < 0.5 + 1e-6).all())


def test_contexts_fail_apart():
    space = cb.Space(a=cb.Category("s", "l"), z=cb.Context(cb.Category("eu", "us")))
    gp = cb.GP.default(space)
    policy = cb.GPUCB(space, reward=gp)
    for i in range(6):
        choice = policy.ask(context={"z": "eu" if i % 2 else "us"})
        policy.tell(choice, reward=1.0 if choice.params["a"] == "l" else 0.0)
    for _ in range(8):
        choice = policy.ask(context={"z": "eu"})
        if choice.params["a"] == "l":
            policy.tell(choice, failed=True)
        else:
            policy.tell(choice, reward=0.0)
    assert choice.params["a"] == "s"
    assert policy.recommend(context={"z": "eu"}).params["a"] == "s"
    assert policy.ask(context={"z": "us"}).params["a"] == "l"


def test_a_model_that_always_fails_is_left_in_wide_contexts(tmp_path):
    """Its belief is linear, as no context comes twice; it was asked 57 times before."""
    space = cb.Space(model=cb.Category("a", "b", "bad"), z=cb.Context(10))
    gp, generator = cb.GP.default(space), torch.Generator().manual_seed(0)
    policy, asked = cb.GPUCB(space, reward=gp), []
    for t in range(60):
        z = torch.randn(10, generator=generator, dtype=torch.float64)
        choice = policy.ask(context=z)
        asked.append(choice.params["model"])
        if asked[-1] == "bad":
            policy.tell(choice, failed=True)
        else:
            policy.tell(choice, reward=1.0 + (asked[-1] == "b"))
        if t == 40:
            policy.save(tmp_path / "run")
            policy = cb.load(tmp_path / "run")
    assert asked.count("bad") <= 25
    assert asked[30:].count("bad") <= 8
    policy.add("model", "new")
    assert policy.ask(context=z).params["model"] != "bad"


def test_categories_that_come_are_not_known_to_fail():
    space = cb.Space(model=cb.Category("old", "small"))
    policy = cb.GPUCB(space, reward=cb.GP.default(space))
    for _ in range(4):
        policy.tell(policy.ask(among={"model": ["old"]}), failed=True)
    policy.add("model", "new")
    assert policy.ask().params["model"] != "old"


def test_costs_and_late_feedback():
    policy = cb.RPOL(
        GRID, reward=belief(), costs=belief(), explore=cb.UCB(1.0), thresholds=0.5,
        feedback=cb.Delayed(4), horizon=30,
    )  # fmt: skip
    waiting, count = [], 0
    for _ in range(30):
        waiting.append(policy.ask())
        if len(waiting) > 2:
            choice = waiting.pop(0)
            if bool(fails(choice.x)):
                policy.tell(choice, failed=True)
                count += 1
            else:
                policy.tell(choice, cost=choice.x.sum(-1))
                policy.tell(choice, reward=value(choice.x))
    assert count <= 14


@pytest.mark.parametrize("wrong", [True, "learn", 0])
def test_failures_are_none_or_false(wrong):
    with pytest.raises(cb.CBanditError, match="failures must be None or False"):
        gpucb(failures=wrong)
