"""The receipt: bounds that hold at all times, verdicts, alarms, and what they hear."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import cbandit as cb
from cbandit.errors import CBanditError
from cbandit.receipt.alarm import Watch
from cbandit.receipt.bets import ODDS, SHARES, log_weights
from cbandit.receipt.certificate import certify
from cbandit.receipt.sums import Centre, Costs, Plays, Sums, Told

# ------------------------------------------------------------- the formulas, one by one


def costs_of(
    kind="number", limit=0.4, low=math.nan, high=math.nan, trials=1, sense="<="
):
    ends = np.array([low]), np.array([high])
    return Costs(("c",), (sense,), (kind,), *ends, np.full((trials, 1), limit))


def at(centre):
    """A centre of one round."""
    return Centre(centre.mean[None], centre.trust[None], centre.informed[None])


def told_of(costs, row, centre, tries=None):
    shape = (1, *costs.first.shape)
    weight = None if tries is None else np.full(shape, tries)
    values, came = np.reshape(row, shape), np.ones(shape, dtype=bool)
    return Told(values, came, weight, costs.first[None], at(centre))


def played(costs, values, tries=None, outstanding=0):
    """The sums after ``values (n, T)`` were told, one round after the other."""
    sums, one = Sums.none(costs.first.shape), np.ones((1, *costs.first.shape))
    for i, row in enumerate(np.atleast_2d(values)):
        centre = sums.next_centre(costs)
        sums = sums.after_plays(costs, Plays(one, costs.first[None], at(centre)))
        weight = None if tries is None else tries[i]
        sums = sums.after(costs, told_of(costs, row, centre, weight))
    for _ in range(outstanding):
        centre = at(sums.next_centre(costs))
        sums = sums.after_plays(costs, Plays(one, costs.first[None], centre))
    return sums


def log_mixture(bets, variance, exponent):
    """The logarithm of the mixture, bet by bet, with weights written again."""
    bell = [bet * math.exp(-bet * bet * variance / 14.8) for bet in bets]
    weights = [0.8 * b / sum(bell) + 0.2 / len(bets) for b in bell]
    logs = [math.log(w) + exponent(b) for w, b in zip(weights, bets, strict=True)]
    return max(logs) + math.log(sum(math.exp(x - max(logs)) for x in logs))


def test_weights_are_a_distribution():
    weights = np.exp(log_weights(ODDS, np.array([[10.0], [475.0]])))
    assert weights.shape == (48, 2, 1)
    assert weights.sum(0) == pytest.approx(np.ones((2, 1)))


@pytest.mark.parametrize("outstanding", [0, 7])
def test_a_yes_or_no(outstanding):
    costs, rng = costs_of("binary", 0.05), np.random.default_rng(0)
    values = (rng.random((300, 1)) < 0.03).astype(float)
    bound = certify(played(costs, values, outstanding=outstanding), costs)["c"]
    s, n, v = values.sum(), 300 + outstanding, 2500 * 0.05 * 0.95

    def excess(p, sign, successes):
        def exponent(bet):
            rate = math.log1p(p * math.expm1(sign * bet))
            return sign * bet * successes - n * rate

        return log_mixture(ODDS, v, exponent) - math.log(40)

    lower = brentq(lambda p: excess(p, 1, s), 1e-9, s / n, xtol=1e-14)
    upper = brentq(lambda p: excess(p, -1, s + outstanding), (s + outstanding) / n, 0.9)
    assert bound.lower == pytest.approx(lower, abs=1e-9)
    assert bound.upper == pytest.approx(upper, abs=1e-9)
    assert bound.grade == "exact"


def test_counts():
    costs, rng = costs_of("count", 2.5), np.random.default_rng(1)
    hours = rng.uniform(0.5, 2.0, 200)
    counts = rng.poisson(2.0 * hours).astype(float)
    rates = (counts / hours).reshape(-1, 1)
    bound = certify(played(costs, rates, hours), costs)["c"]

    def excess(mean, sign):
        def exponent(bet):
            step = math.expm1(sign * bet)
            return sign * bet * counts.sum() - hours.sum() * mean * step

        return log_mixture(ODDS, 2500 * 2.5, exponent) - math.log(40)

    told = counts.sum() / hours.sum()
    assert bound.mean == pytest.approx(told)
    lower = brentq(lambda m: excess(m, 1), 1e-9, told, xtol=1e-14)
    upper = brentq(lambda m: excess(m, -1), told, 50.0, xtol=1e-14)
    assert (bound.lower, bound.upper) == pytest.approx((lower, upper), abs=1e-8)


def test_a_range():
    costs, rng = costs_of("number", 0.2, 0.0, 1.0), np.random.default_rng(2)
    values = rng.beta(1.5, 6, (400, 1))
    bound = certify(played(costs, values), costs)["c"]
    # below: twice the way from 0 to the limit; above: the whole range
    below, above, m, total = 0.0, 0.0, 0.2, 0.0
    for i, y in enumerate(values[:, 0]):
        below += ((y - min(m, 0.4)) / 0.4) ** 2
        above += (y - max(m, 0.0)) ** 2
        total += y
        m = (0.2 + total) / (2 + i)

    def deviation(variance):
        def excess(u):
            def exponent(bet):
                return bet * u - (-math.log1p(-bet) - bet) * variance

            return log_mixture(SHARES, 100.0, exponent) - math.log(40)

        return brentq(excess, 0, 1e4, xtol=1e-12)

    mean = values.mean()
    assert bound.lower == pytest.approx(mean - 0.4 * deviation(below) / 400, abs=1e-9)
    assert bound.upper == pytest.approx(mean + deviation(above) / 400, abs=1e-9)


def test_no_range():
    costs, rng = costs_of("number", 0.0), np.random.default_rng(3)
    values = rng.normal(0.1, 1.0, (500, 1))
    bound = certify(played(costs, values), costs)["c"]
    squares, largest, m, total = 0.0, 0.0, 0.0, 0.0
    for i, y in enumerate(values[:, 0]):
        if i:  # the first centre rests on nothing
            squares, largest = squares + (y - m) ** 2, max(largest, (y - m) ** 2)
        total += y
        m = total / (1 + i)
    squares *= 500 / 499
    x = -2 * math.log(0.05)
    r = (x + math.log(x + 1)) / 2500
    half = math.sqrt((squares + 4 * largest) / 500) / 500
    half *= math.sqrt((500 * r + 1) / r * (math.log(500 * r + 1) + x))
    ends = values.mean() - half, values.mean() + half
    assert (bound.lower, bound.upper) == pytest.approx(ends, abs=1e-12)
    assert bound.grade == "asymptotic"


def test_nothing_is_said_while_one_round_carries_the_spread():
    values = np.full((50, 1), 0.1)
    values[7] = 100.0
    costs = costs_of("number", 0.0)
    bound = certify(played(costs, values), costs)["c"]
    assert (bound.lower, bound.upper, bound.verdict) == (-math.inf, math.inf, "open")


def test_counts_that_are_not_poisson_lose_the_grade_for_good():
    rng, costs = np.random.default_rng(4), costs_of("count", 2.5)
    spread = rng.negative_binomial(2, 0.5, (600, 1)).astype(float)  # twice the variance
    sums = played(costs, spread)
    assert certify(sums, costs)["c"].grade == "asymptotic"
    even = np.full((2000, 1), 2.0)
    for row in even[:200]:
        sums = sums.after(costs, told_of(costs, row, sums.next_centre(costs)))
    assert certify(sums, costs)["c"].grade == "asymptotic"
    poisson = rng.poisson(2.0, (600, 1)).astype(float)
    assert certify(played(costs, poisson), costs)["c"].grade == "exact"


def test_a_limit_from_below_is_one_from_above_turned():
    rng = np.random.default_rng(5)
    values = rng.beta(2, 5, (200, 1))
    above = costs_of("number", 0.4, 0.0, 1.0)
    below = costs_of("number", -0.4, -1.0, 0.0, sense=">=")
    one = certify(played(above, values, outstanding=3), above)["c"]
    two = certify(played(below, -values, outstanding=3), below)["c"]
    assert two.lower == pytest.approx(-one.upper, abs=1e-12)
    assert two.upper == pytest.approx(-one.lower, abs=1e-12)
    assert (one.verdict, one.over) == (two.verdict, two.over)


def test_rows_added_together_are_rows_added_one_by_one():
    rng, costs = np.random.default_rng(6), costs_of("number", 0.3, 0.0, 1.0)
    centre = Sums.none((1, 1)).next_centre(costs)
    values = rng.random((30, 1, 1))
    no = np.zeros(values.shape, dtype=bool)
    every = Centre(np.repeat(centre.mean[None], 30, 0), no, no)
    limits = np.repeat(costs.first[None], 30, 0)
    once = Sums.none((1, 1)).after_plays(
        costs, Plays(np.ones(values.shape), limits, every)
    )
    came = np.ones(values.shape, dtype=bool)
    once = once.after(costs, Told(values, came, None, limits, every))
    singly = Sums.none((1, 1))
    for row in values:
        one = Plays(np.ones((1, 1, 1)), costs.first[None], at(centre))
        singly = singly.after_plays(costs, one)
        singly = singly.after(costs, told_of(costs, row, centre))
    for name, a, b in zip(Sums._fields, once, singly, strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-12), name


# ------------------------------------------------------ they hold at all times at once


def constant(rng, t, past):
    return rng.beta(1.5, 6, past.shape), np.full(past.shape, 0.2)


def jump(rng, t, past):
    mean = 0.2 if t < 150 else 0.6
    return (rng.random(past.shape) < mean).astype(float), np.full(past.shape, mean)


def learner(rng, t, past):
    """A policy that lowers its cost once it has paid too much."""
    mean = np.where(past > 0.3 * max(t, 1), 0.15, 0.5)
    return rng.beta(4 * mean, 4 * (1 - mean)), mean


@pytest.mark.parametrize(
    ("world", "kind", "range_"),
    [
        (constant, "number", (0.0, 1.0)),
        (learner, "number", (0.0, 1.0)),
        (jump, "binary", (math.nan, math.nan)),
        (learner, "number", (math.nan, math.nan)),
    ],
)
def test_the_truth_is_within_at_every_look(world, kind, range_):
    """Nominal 5 %; 300 runs with 5 % misses show 10 % or more in 1 of 5 000 tests."""
    rng, trials, rounds = np.random.default_rng(7), 300, 300
    costs = costs_of(kind, 0.3, *range_, trials=trials)
    sums = Sums.none((trials, 1))
    past, truth, missed = np.zeros(trials), np.zeros(trials), np.zeros(trials, bool)
    for t in range(rounds):
        values, mean = world(rng, t, past)
        past, truth = past + values, truth + mean
        sums = sums.after(costs, told_of(costs, values, sums.next_centre(costs)))
        if t < 20 or t % 10 == 0:
            bound = certify(sums, costs, trials=range(trials))["c"]
            missed |= (truth / (t + 1) < bound.lower) | (truth / (t + 1) > bound.upper)
    assert missed.mean() < 0.1


# ------------------------------------------------------------------------ the alarm


def watched(costs, values, credit=0.0):
    """The rounds ``(T,)`` in which the alarm sounded, infinity where it did not."""
    watch = Watch.start(costs, 0)
    when = np.full(len(costs.first), np.inf)
    centre = Sums.none(costs.first.shape).next_centre(costs)
    for t, row in enumerate(values, 1):
        told = told_of(costs, row, centre)
        watch, sounds = watch.after(costs, told, t, credit, 0.05)
        when = np.where(sounds[:, 0], t, when)
    return when, watch


def test_false_alarms_are_rare_and_breaks_are_found():
    """At the very limit 5 % may sound; 10 % of 300 would be 1 in 5 000."""
    rng, costs = np.random.default_rng(8), costs_of("number", 0.3, 0.0, trials=300)
    kept = rng.beta(1.2, 2.8, (600, 300))
    when, _ = watched(costs, kept)
    assert np.isfinite(when).mean() < 0.1
    broken = kept.copy()
    broken[300:] = rng.beta(2.5, 2.5, broken[300:].shape)
    when, watch = watched(costs, broken)
    found = when > 300
    assert np.isfinite(when).all()
    assert np.median(when[found]) < 350
    assert abs(np.median(watch.began(0.0)[found, 0]) - 300) <= 15


def test_credit_forgives_what_is_paid_back():
    costs = costs_of("number", 0.5, 0.0)
    waves = np.where(np.arange(2000) // 20 % 2 == 0, 1.0, 0.0).reshape(-1, 1)
    assert np.isfinite(watched(costs, waves)[0]).all()
    assert not np.isfinite(watched(costs, waves, credit=10.0)[0]).any()


def test_signed_costs_are_watched_too():
    rng, costs = np.random.default_rng(9), costs_of("number", 0.0, trials=50)
    values = rng.normal(0, 1, (600, 50))
    values[300:] += 1.0
    when, _ = watched(costs, values)
    assert (when > 300).mean() > 0.9 and np.isfinite(when).all()


# ------------------------------------------------------------------- in every policy


def a_policy(**more):
    actions = cb.Finite(torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(-1))
    gp = cb.GP.default(actions)
    goal = {
        "costs": {"ms": gp, "up": gp},
        "thresholds": {"ms": "<= 0.5", "up": ">= 0.1"},
    }
    return cb.RPOL(actions, reward=gp, **goal, **more)


def tell(policy, choice, ms=0.2, up=0.6):
    policy.tell(choice, reward=1.0, cost={"ms": ms, "up": up})


def test_what_counts(recwarn):
    policy = a_policy(ranges={"ms": (0, 1), "up": (0, 1)})
    policy.observe(index=[1], reward=[0.0], cost={"ms": [0.9], "up": [0.0]})
    tell(policy, policy.ask())
    policy.cancel(policy.ask())  # was not played
    policy.tell(policy.ask(), failed=True)  # was played, its cost never came
    choice = policy.ask()
    policy.tell(choice, cost={"ms": 0.7})  # the other one is outstanding
    ms, up = policy.certificate()
    assert (ms.told, ms.out, ms.over) == (2, 1, 1)
    assert (up.told, up.out, up.over) == (1, 2, 0)
    assert ms.mean == pytest.approx(0.45)
    assert up.mean == 0.6
    assert "whatever the 1 outstanding are" in str(ms)
    assert "of the 2 rounds told" in str(policy.certificate(outstanding="told"))
    policy.cancel(choice)
    assert policy.certificate()["up"].out == 1


def test_values_are_those_told_not_those_bounded():
    policy, values = a_policy(), [0.2 + 0.01 * (i % 5) for i in range(20)]
    for value in values:
        tell(policy, policy.ask(), ms=value)
    tell(policy, policy.ask(), ms=1e4)
    with pytest.warns(UserWarning, match="far outside"):
        policy.ask()
    mean = (sum(values) + 1e4) / 21
    assert policy.certificate()["ms"].mean == pytest.approx(mean)


def test_it_is_kept_in_the_end_and_saved(tmp_path):
    policy = a_policy(ranges={"ms": (0, 1), "up": (0, 1)}, certificate_window=40)
    policy.watch()
    for _ in range(120):
        tell(policy, policy.ask())
    found = policy.certificate()
    assert [bound.verdict for bound in found] == ["kept", "kept"]
    assert policy.certificate(window=40)["ms"].told >= 40
    assert policy.certificate(window=40)["ms"].told <= 60
    policy.save(tmp_path / "p")
    other = cb.load(tmp_path / "p")
    assert str(other.certificate()) == str(found)
    assert (
        other.certificate(window=40)
        .frame()
        .equals(policy.certificate(window=40).frame())
    )
    assert list(found.frame()["name"]) == ["ms", "up"]


def test_an_alarm_warns_once_and_is_listed():
    policy = a_policy(ranges={"ms": (0, 1), "up": (0, 1)})
    policy.watch()
    for _ in range(30):
        tell(policy, policy.ask())

    def broken():
        for _ in range(40):
            tell(policy, policy.ask(), ms=0.95)

    with pytest.warns(UserWarning, match="ms breaks its limit since about round 3"):
        broken()
    (alarm,) = policy.alarms
    assert alarm.cost == "ms" and 28 <= alarm.since <= 33 < alarm.told
    assert policy.certificate()["ms"].lower > 0.2


def test_trials_are_what_single_runs_are():
    ms = torch.rand(30, 3, generator=torch.Generator().manual_seed(0)).double()
    both = a_policy(trials=3, ranges={"ms": (0, 1)})
    for row in ms:
        choice = both.ask()
        cost = torch.stack([row, torch.full((3,), 0.6)], -1)
        both.tell(choice, reward=torch.ones(3), cost=cost)
    together = both.certificate()
    for i in range(3):
        one = a_policy(trials=range(i, i + 1), ranges={"ms": (0, 1)})
        for row in ms:
            choice = one.ask()
            cost = torch.tensor([[float(row[i]), 0.6]])
            one.tell(choice, reward=torch.ones(1), cost=cost)
        alone = one.certificate()
        assert alone["ms"].lower[0] == pytest.approx(together["ms"].lower[i], abs=1e-9)
        assert alone["up"].upper[0] == pytest.approx(together["up"].upper[i], abs=1e-9)


@pytest.mark.parametrize(
    "policy",
    [
        lambda actions: cb.baselines.Random(actions, costs=1),
        lambda actions: cb.OPB(
            actions,
            reward=cb.Counts(0.5, range=(0, 1)),
            costs=cb.Counts(0.5, range=(0, 1)),
            thresholds=0.5,
            safe=cb.Safe(index=0, reward=0.1, cost=0.1),
            horizon=100,
        ),
    ],
)
def test_policies_without_such_beliefs_have_it_too(policy):
    made = policy(cb.Finite([[0.0], [0.5], [1.0]]))
    for _ in range(5):
        made.tell(made.ask(), reward=0.5, cost=0.3)
    assert made.certificate()["cost1"].told == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ranges": (1, 0)}, "low below a finite high"),
        ({"ranges": {"none": (0, 1)}}, "none"),
        ({"ranges": 3}, "must be"),
        ({"certificate_window": 1}, "whole number from 2"),
    ],
)
def test_what_cannot_be_is_named(arguments, words):
    with pytest.raises((CBanditError, KeyError), match=words):
        a_policy(**arguments)


def test_looks_that_cannot_be_are_named():
    policy = a_policy(certificate_window=50)
    for arguments in ({"alpha": 2}, {"window": 60}, {"outstanding": "best"}):
        with pytest.raises(CBanditError, match=next(iter(arguments))):
            policy.certificate(**arguments)
    free = cb.GPUCB(cb.Finite([[0.0], [1.0]]), reward=cb.GP.default(cb.Finite([[0.0]])))
    with pytest.raises(CBanditError, match="no costs"):
        free.certificate()


def test_an_outcome_outside_its_range_withdraws_it():
    policy = a_policy(ranges={"ms": (0, 1)})

    def play():
        for value in [0.2] * 20 + [1.5] + [0.2] * 20:
            tell(policy, policy.ask(), ms=value)

    with pytest.warns(UserWarning, match=r"outcomes of ms were outside ranges="):
        play()
    assert policy.certificate()["ms"].grade == "asymptotic"


def test_a_run_has_the_certificate_of_its_policy():
    problem = cb.problems.Table(
        [0.1, 0.5, 0.9], [[0.2, 0.4, 0.8]], noise=0.01, trials=2, thresholds=0.5
    )
    policy = cb.baselines.Random(problem.actions, costs=1, thresholds=0.5, trials=2)
    run = cb.simulate(policy, problem, 60, progress=False)
    for ranges in (None, (-2.0, 3.0)):
        one = run.certificate(ranges=ranges)["cost1"]
        same = cb.baselines.Random(
            problem.actions, costs=1, thresholds=0.5, trials=2, ranges=ranges
        )
        cb.simulate(same, problem, 60, progress=False)
        two = same.certificate()["cost1"]
        assert one.mean == pytest.approx(two.mean)
        assert one.over.tolist() == two.over.tolist()
        # a policy holds a few rounds before it moves the centre
        assert one.lower == pytest.approx(two.lower, abs=0.05)
        assert one.limit.tolist() == [0.5, 0.5]


# ---------------------------------------------------------- what a hunter found


def random_policy(**more):
    goal = {"costs": ["ms"], "thresholds": {"ms": "<= 0.5"}}
    return cb.baselines.Random(cb.Finite([[0.0], [0.5], [1.0]]), **goal, **more)


def test_epochs_have_it_too():
    actions = cb.Finite([[0.0], [0.5], [1.0]])
    policy = cb.EpochPenalty(
        actions, reward=cb.GP.default(actions), costs=2, thresholds=0.5, epoch=3
    )
    for _ in range(12):
        policy.tell(policy.ask(), reward=0.5, cost=[0.3, 0.6])
    assert [bound.told for bound in policy.certificate()] == [12, 12]


@pytest.mark.parametrize("scale", [2.0**14, 2.0**-10])
def test_an_alarm_does_not_depend_on_units(scale):
    rng, costs = np.random.default_rng(10), costs_of("number", 1.0, trials=60)
    values = rng.normal(0.95, 0.1, (400, 60))
    values[200:] += 0.15
    when, _ = watched(costs, values)
    scaled = costs_of("number", scale, trials=60)
    assert np.array_equal(watched(scaled, scale * values)[0], when)
    assert (when < 200).mean() < 0.15 and np.isfinite(when).all()


def test_a_value_below_its_range_does_not_silence_the_alarm():
    policy = random_policy(ranges={"ms": (0, 1)})
    policy.watch(credit=0.0)

    def play():
        for value in [0.2] * 20 + [-3.0] + [0.95, 0.9] * 200:
            policy.tell(policy.ask(), reward=0.0, cost={"ms": value})

    with pytest.warns(UserWarning, match=r"breaks its limit|outside ranges"):
        play()
    assert len(policy.alarms) == 1


def test_what_a_cancelled_choice_cost_counts():
    actions = cb.Finite([[0.0], [0.5], [1.0]])
    gp = cb.GP.default(actions)
    policy = cb.CKB(
        actions,
        reward=gp,
        costs={"eur": gp},
        thresholds={"eur": cb.Budget(50, rounds=100)},
    )
    for i in range(20):
        choice = policy.ask()
        if i % 2:
            policy.cancel(choice, cost={"eur": 1.0})
        else:
            policy.tell(choice, reward=0.1, cost={"eur": 0.1})
    bound = policy.certificate()["eur"]
    assert (bound.told, bound.out) == (20, 0)
    assert bound.mean == pytest.approx(0.55)


def test_a_window_is_of_rounds_played_in_it():
    """Dear rounds of long ago, told in it, do not count in it."""
    policy = random_policy(ranges={"ms": (0, 1)}, certificate_window=100)
    dear = []
    for i in range(300):
        choice = policy.ask()
        if i < 100 and i % 4 == 0:
            dear.append(choice)
            continue
        policy.tell(choice, reward=0.0, cost={"ms": 0.1})
    assert policy.certificate(window=100)["ms"].out == 0
    for choice in dear:
        policy.tell(choice, reward=0.0, cost={"ms": 1.0})
    bound = policy.certificate(window=100)["ms"]
    assert bound.mean == pytest.approx(0.1)
    assert 100 <= bound.told <= 125


def test_a_short_window_is_short():
    policy = random_policy(certificate_window=10)
    for _ in range(200):
        policy.tell(policy.ask(), reward=0.0, cost={"ms": 0.1})
        if policy.t > 20:
            assert 10 <= policy.certificate(window=10)["ms"].told <= 13


def test_a_limit_far_from_the_costs_does_not_withhold_the_band():
    rng, costs = np.random.default_rng(11), costs_of("number", 90.0)
    bound = certify(played(costs, rng.normal(20, 1, (200, 1))), costs)["c"]
    assert 19 < bound.lower < 20 < bound.upper < 21
    assert bound.verdict == "kept"


def test_the_worst_of_what_is_unbounded_is_refused():
    policy = random_policy()
    policy.ask()
    with pytest.raises(CBanditError, match="worst of an outstanding round of ms"):
        policy.certificate(outstanding="worst")
    assert policy.certificate()["ms"].outstanding == "told"


def test_a_choice_told_in_part_and_cancelled_was_not_played():
    actions = cb.Finite([[0.0], [1.0]])
    policy = cb.baselines.Random(actions, costs=["a", "b"], thresholds=0.5)
    choice = policy.ask()
    policy.tell(choice, cost={"a": 0.3})
    policy.cancel(choice)
    assert [(bound.told, bound.out) for bound in policy.certificate()] == [(0, 0)] * 2


def test_nothing_overflows_after_an_alarm():
    costs = costs_of("number", 0.5, 0.0, 1.0)
    when, watch = watched(costs, np.full((3000, 1), 0.95))
    assert np.isfinite(when).all()
    assert np.isfinite(watch.evidence).all()
