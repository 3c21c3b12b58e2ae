"""A round that fails half-way draws nothing, learns nothing and can be asked again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from inside import streams_of
from midway import F64, NAN, belief, line, prepared, same_future

import cbandit as cb


@pytest.mark.parametrize("kind", ["UCB", "Rand"])
def test_callables_that_fail_change_nothing(kind):
    def explore():
        return cb.UCB(beta) if kind == "UCB" else cb.Rand(beta)

    broken = {"beta": False, "tau": False}

    def beta(t, gain):
        return -1.0 if broken["beta"] else 1.0

    def tau(t):
        return [1.0, 2.0, 3.0] if broken["tau"] else 0.1

    (policy, _, _), (twin, _, _) = (
        prepared(explore=explore(), thresholds=tau) for _ in range(2)
    )
    for name, word in (("beta", "beta"), ("tau", "thresholds")):
        broken[name] = True
        with pytest.raises(cb.CBanditError, match=word):
            policy.ask()
        broken[name] = False
    assert same_future(policy, twin)


class Broken:
    """A callable of the round that fails while it is broken."""

    def __init__(self, value):
        self.value, self.broken = value, False

    def __call__(self, *round_and_gain):
        return NAN if self.broken else self.value


@pytest.mark.filterwarnings("ignore:Safe-LTS plays the safe action")
@pytest.mark.parametrize("kind", ["RPOL", "SGP-UCB", "Safe-LTS", "Safe-LTS among"])
def test_a_round_that_fails_late_draws_and_learns_nothing(kind):
    given = {"reward": belief(), "costs": belief(), "trials": 2}
    linear = cb.Linear(subgaussian=0.1)
    pair = []
    for _ in range(2):
        flaky = Broken(0.5)
        if kind == "RPOL":
            policy = cb.RPOL(
                cb.Finite(line()), explore=cb.UCB(1.0), thresholds=flaky, **given
            )
        elif kind == "SGP-UCB":
            policy = cb.baselines.SGPUCB(
                cb.Finite(line()),
                explore=cb.UCB(flaky),
                safe=list(range(15)),
                rounds=[1, 30],
                **given,
            )
        else:
            policy = cb.baselines.SafeLTS(
                cb.Finite(line()),
                beta=flaky,
                safe=cb.Safe(index=0),
                thresholds=5.0,
                **(given | {"reward": linear, "costs": linear}),
            )
        pair.append((policy, flaky))
    (policy, flaky), (twin, _) = pair
    for each in (policy, twin):
        for _ in range(2):
            each.tell(each.ask(), reward=[0.3, -1.0], cost=[1.7, 0.9])
    flaky.broken = not kind.endswith("among")
    for _ in range(3):
        with pytest.raises(cb.CBanditError):
            policy.ask(among=[1, 2] if kind.endswith("among") else None)
    flaky.broken = False
    for _ in range(4):
        assert torch.equal(policy.multiplier, twin.multiplier)
        a, b = policy.ask(), twin.ask()
        assert torch.equal(a.x, b.x)
        for each, choice in ((policy, a), (twin, b)):
            each.tell(choice, reward=[0.1, 0.4], cost=[0.6, 0.2])
    mean = [each.posterior().reward.mean for each in (policy, twin)]
    assert torch.equal(*mean)


def at_an_end(kind, beta, tau):
    """A policy in whose next round, the ninth, something ends or is drawn anew."""
    gp, more = belief(), {"explore": cb.UCB(beta), "trials": 2}
    one = {"reward": gp, "costs": gp, "thresholds": tau, **more}
    multipliers = {"step": 0.2, "cap": 3.0}
    points, epochs = cb.Finite(line()), {"reward": gp, "costs": 1, "epoch": 8, **more}
    if kind == "anytime":
        return cb.CKB(points, anytime=True, forget=True, **multipliers, **one)
    if kind == "restart":
        return cb.baselines.CKBRestart(points, restart=8, **multipliers, **one)
    if kind == "drift":
        drifting = cb.Sliding(5, drift=beta)
        one["explore"] = cb.Rand(1.0)
        return cb.CKB(points, feedback=drifting, **multipliers, **one)
    if kind == "BKB":
        return cb.baselines.BKB(points, reward=gp, oversampling=0.01, **more)
    if kind == "sketched":
        q = {"oversampling": 0.01}
        return cb.baselines.BKB(points, **q, **multipliers, **one)
    if kind == "ADMMBO":
        del one["explore"]
        two = {"budgets": (2, 2), "cost_budgets": (2, 2)}
        return cb.baselines.ADMMBO(points, **two, **one)
    return cb.EpochPenalty(points, reuse=kind == "epochs", thresholds=tau, **epochs)


@pytest.mark.parametrize("broken", ["beta", "tau"])
@pytest.mark.parametrize(
    "kind",
    [
        "anytime",
        "restart",
        "drift",
        "BKB",
        "sketched",
        "ADMMBO",
        "epochs",
        "fresh epochs",
    ],
)
def test_an_end_that_fails_has_not_come(kind, broken):
    if (kind, broken) in [("BKB", "tau"), ("ADMMBO", "beta")]:
        pytest.skip("there is none")
    pair = []
    for _ in range(2):
        flaky = {"beta": Broken(0.5), "tau": Broken(0.1)}
        policy = at_an_end(kind, **flaky)
        rng = np.random.default_rng(3)
        for _ in range(7 if kind == "anytime" else 8):
            told = {"cost": rng.standard_normal(2)} if policy.m else {}
            policy.tell(policy.ask(), reward=rng.standard_normal(2), **told)
        pair.append((policy, flaky))
    (policy, flaky), (twin, _) = pair
    before = policy.posterior()
    flaky[broken].broken = True
    for _ in range(2):
        with pytest.raises(cb.CBanditError):
            policy.ask()
    flaky[broken].broken = False
    after = policy.posterior()
    assert torch.equal(before.reward.mean, after.reward.mean)
    assert torch.equal(before.reward.std, after.reward.std)
    for _ in range(3):
        assert torch.equal(policy.multiplier, twin.multiplier)
        a, b = policy.ask(), twin.ask()
        assert torch.equal(a.x, b.x)
        for each, choice in ((policy, a), (twin, b)):
            told = {"cost": [0.6, 0.2]} if policy.m else {}
            each.tell(choice, reward=[0.1, 0.4], **told)
        mean = [each.posterior().reward.mean for each in (policy, twin)]
        assert torch.equal(*mean)


class Psi:
    """A penalty that is NaN while it is broken."""

    broken = False

    def __call__(self, z):
        return z.clamp_min(0).exp() * (NAN if self.broken else 1.0)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_a_penalty_that_fails_loses_and_doubles_nothing(reuse, apart):
    pair = []
    for _ in range(2):
        psi = Psi()
        policy = cb.EpochPenalty(
            cb.Finite(line()),
            reward=belief(),
            costs=1,
            explore=cb.UCB(1.0),
            epoch=4,
            psi=psi,
            reuse=reuse,
        )
        pair.append((policy, psi))
    (policy, flaky), (twin, _) = pair
    for t in range(10):
        assert torch.equal(policy.multiplier, twin.multiplier)
        a, b = policy.ask(), twin.ask()
        assert torch.equal(a.index, b.index)
        for each, choice in ((policy, a), (twin, b)):
            each.tell(choice, reward=0.1 * t)
            if apart:
                each.posterior()
        before = policy.posterior().reward.mean if apart else None
        for each, choice in ((policy, a), (twin, b)):
            each.tell(choice, cost=0.3 * (-1) ** t)
        flaky.broken = True
        for call in (policy.posterior, policy.ask, lambda: policy.multiplier):
            with pytest.raises(cb.CBanditError, match="psi must be at least 1"):
                call()
        flaky.broken = False
        if t == 5:
            for each in (policy, twin):
                each.observe(index=[3, 4], reward=[0.1, 0.2], cost=[[0.1], [0.5]])
        after = policy.posterior().reward.mean
        assert torch.equal(after, twin.posterior().reward.mean)
        assert before is None or not torch.equal(before, after)
    flaky.broken = True
    with pytest.raises(cb.CBanditError, match="psi must be at least 1"):
        policy.observe(index=[3, 4], reward=[0.1, 0.2], cost=[[0.1], [0.5]])
    flaky.broken = False
    assert torch.equal(policy.posterior().reward.mean, after)


def test_a_draw_of_ones_own_that_fails_draws_nothing():
    broken = [False]

    def draw(generator, shape):
        values = torch.rand(shape, generator=generator, dtype=F64)
        return values.fill_(NAN) if broken[0] else values + generator.normal(3)

    (policy, _, _), (twin, _, _) = (
        prepared(explore=cb.Rand(1.0, draw=draw)) for _ in range(2)
    )
    broken[0] = True
    for _ in range(400):  # past the end of a block of draws
        with pytest.raises(cb.CBanditError, match="draw must be finite"):
            policy.ask()
    broken[0] = False
    assert same_future(policy, twin)


@pytest.mark.parametrize("trials", [None, 2])
def test_an_acquisition_function_that_fails_draws_nothing(trials):
    from botorch.acquisition import qUpperConfidenceBound

    broken = [False]

    def acquisition(model, policy):
        if broken[0]:
            raise RuntimeError("no")
        return qUpperConfidenceBound(model.models[0], beta=3.0)

    pair = [
        cb.baselines.BoTorchPolicy(
            cb.Finite(line()),
            reward=belief(),
            make_acquisition=acquisition,
            trials=trials,
        )
        for _ in range(2)
    ]
    lead = () if trials is None else (trials,)
    for each in pair:
        each.tell(each.ask(), reward=np.full(lead, 0.3))
    broken[0] = True
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no"):
            pair[0].ask()
    broken[0] = False
    state = [streams_of(each).state() for each in pair]
    assert torch.equal(state[0]["blocks"]["uniform"], state[1]["blocks"]["uniform"])
    for _ in range(3):
        a, b = (each.ask() for each in pair)
        assert torch.equal(a.index, b.index)
        for each, choice in zip(pair, (a, b), strict=True):
            each.tell(choice, reward=np.full(lead, 0.3))
