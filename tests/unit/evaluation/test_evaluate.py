"""cb.evaluate and cb.gate: the formulas again, and how often they err.

The reference is written with plain loops over rounds, bets and caps.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import cbandit as cb
from cbandit.receipt import off_policy
from cbandit.receipt.predictions import predict

ROOMS = 4
SCALE = np.array([[1.0, -1.0, 0.5, 0.0], [0.2, 0.5, -1.0, 1.0]])


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def truth(x, action=None):
    """Chances of a reward, and mean costs from 0 to 20, of every choice or of one."""
    right = 1 / (1 + np.exp(-x @ SCALE))
    ms = 4 + 8 * right[:, ::-1]
    if action is None:
        return right, ms
    rows = np.arange(len(x))
    return right[rows, action], ms[rows, action]


def log_of(n, seed=0, share=0.3, sharp=1.0, **changes):
    """A log whose rule plays uniformly in a share of rounds, and is wrong at times."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    greedy = (x @ SCALE * sharp + rng.normal(size=(n, ROOMS))).argmax(1)
    p = (1 - share) * np.eye(ROOMS)[greedy] + share / ROOMS
    action = (p.cumsum(1) > rng.random((n, 1))).argmax(1)
    right, ms = truth(x, action)
    parts = dict(
        actions=("a", "b", "c", "d"),
        action=action,
        contexts=pd.DataFrame(x, columns=["u", "v"]),
        distribution=p,
        outcomes=pd.DataFrame(
            {"right": (rng.random(n) < right) * 1.0, "ms": rng.uniform(0, 2 * ms)}
        ),
        limits={"ms": "<= 9"},
        ranges={"right": (0, 1), "ms": (0, 24)},
    )
    return cb.Log(**{**parts, **changes})


def rule(sharp):
    """A candidate: a function of the context."""
    return lambda context: softmax(sharp * np.array([*context.values()]) @ SCALE)


def matrix(log, sharp):
    return softmax(sharp * log.contexts.to_numpy() @ SCALE)


# -- the formulas again ----------------------------------------------------------------


def caps_of(pi, p):
    worth = 1 / np.mean([(a * a / b).sum() for a, b in zip(pi, p, strict=True)])
    usual = max(0.5, min(2 / worth, math.sqrt(len(p)) / 8))
    return 1.0, 2.0 ** round(math.log2(usual))


def phi(y, q, pi, p, action, cap):
    """The pseudo-outcomes of one cap."""
    out = []
    for i, a in enumerate(action):
        cut = [min(q[i, k], cap * p[i, k] / pi[i, k]) for k in range(len(p[i]))]
        out.append(pi[i, a] / p[i, a] * (y[i] - cut[a]) + np.dot(pi[i], cut))
    return np.array(out)


def log_mean(tries, value):
    """The logarithm of the evidence that the mean of each (phi, cap) is above it."""
    logs = [
        np.log1p(bet * (each - value) / (value + cap)).sum()
        for each, cap in tries
        for bet in np.geomspace(1e-3, 0.95, 20)
    ]
    return float(torch.tensor(logs).logsumexp(0)) - math.log(len(logs))


def lowest(tries, a):
    low, high = 1e-9, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if log_mean(tries, middle) >= math.log(1 / a):
            low = middle
        else:
            high = middle
    return low if low > 1e-9 else 0.0


def predictions(log, name):
    """Those of the library, which are tested apart."""
    low, high = log.ranges[name]
    z = (log.outcomes[name].to_numpy() - low) / (high - low)
    x = np.zeros((len(log), 0)) if log.contexts is None else log.contexts.to_numpy()
    return z, predict(x, log.action, z, len(log.actions))


def test_estimates_and_bounds_are_those_of_the_formulas():
    log = log_of(400)
    found = cb.evaluate(log, rule(2.0), alpha=0.1)
    pi, p = matrix(log, 2.0), log.distribution
    caps = caps_of(pi, p)
    played = np.arange(len(log)), log.action
    w = pi[played] / p[played]
    for name, (low, high) in log.ranges.items():
        z, q = predictions(log, name)
        up = [(phi(z, q, pi, p, log.action, c), c) for c in caps]
        down = [(phi(1 - z, 1 - q, pi, p, log.action, c), c) for c in caps]
        robust = w * (z - q[played]) + (pi * q).sum(1)
        value, width = found[name], high - low
        assert value.estimate == pytest.approx(low + width * robust.mean())
        assert value.lower == pytest.approx(low + width * lowest(up, 0.05), abs=1e-8)
        expected = low + width * (1 - lowest(down, 0.05))
        assert value.upper == pytest.approx(expected, abs=1e-8)
        assert value.halves[0] == pytest.approx(low + width * robust[:200].mean())
        assert value.played == pytest.approx(log.outcomes[name].mean())
        assert value.told == 400 and value.out == 0 and not value.changed
    assert found["ms"].verdict == "open" and found["right"].verdict is None
    assert found.worth == pytest.approx(400 / (pi**2 / p).sum(1).mean())
    assert found.largest_weight == pytest.approx((pi / p).max())
    assert found.mean_weight == pytest.approx(w.mean())
    assert abs(found.unsupported) < 1e-12


def test_predictions_rest_on_earlier_rounds_alone():
    log = log_of(300)
    z, q = predictions(log, "ms")
    assert (q[0] == 0.5).all()
    for n in (1, 2, 3, 64, 65, 128, 200):
        later = z.copy()
        later[n:] = 1 - later[n:]
        x = log.contexts.to_numpy().copy()
        x[n + 1 :] += 100.0
        other = predict(x, log.action, later, ROOMS)
        np.testing.assert_array_equal(other[: n + 1], q[: n + 1])
    log = log_of(1_500)
    _, q = predictions(log, "ms")
    _, ms = truth(log.contexts.to_numpy())
    assert np.corrcoef(q[1_024:].ravel(), ms[1_024:].ravel())[0, 1] > 0.8


def test_predictions_are_of_any_context():
    n, rng = 600, np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "plan": rng.choice(["free", "paid", None], n),
            "new": rng.random(n) < 0.5,
            "day": pd.date_range("2026-01-01", periods=n),
            "user": [f"u{i}" for i in range(n)],
            "nothing": np.nan,
        }
    )
    x = cb.receipt.predictions.features_of(frame, n)
    assert x.shape == (n, 3 + 1 + 1 + 1) and np.isfinite(x).all()
    action = rng.integers(0, 2, n)
    z = np.where(frame["plan"] == "paid", 0.8, 0.3) * np.where(action == 1, 1.0, 0.5)
    q = predict(x, action, z, 2)
    found = q[np.arange(n), action]
    np.testing.assert_allclose(found[512:], z[512:], atol=0.02)


# -- candidates ------------------------------------------------------------------------


def test_the_same_candidate_in_every_form():
    log, every = log_of(300), ("estimate", "lower", "upper")
    expected = [getattr(cb.evaluate(log, "b")["ms"], word) for word in every]
    one = np.array([0.0, 1.0, 0.0, 0.0])
    several = np.tile(one, (300, 1))
    for candidate in (
        one,
        several,
        torch.tensor(several),
        lambda context: one,
        lambda context: [0, 1, 0, 0],
        lambda context: "b",
    ):
        value = cb.evaluate(log, candidate)["ms"]
        assert [getattr(value, word) for word in every] == expected
    asked = []
    cb.evaluate(log, lambda context: asked.append(context) or one)
    assert len(asked) == 300 and set(asked[0]) == {"u", "v"}
    no_contexts = log_of(300, contexts=None)
    assert cb.evaluate(no_contexts, lambda context: one if context == {} else 0)


def world():
    space = cb.Space(model=cb.Category("a", "b", "c", "d"), load=cb.Context(2))
    gp = cb.GP.default(space)
    policy = cb.CKB(space, reward=gp, costs={"ms": gp}, thresholds={"ms": "<= 9"})
    rng = np.random.default_rng(3)
    for _ in range(15):
        load = rng.normal(size=2)
        choice = policy.ask(context=load)
        right, ms = truth(load[None], [choice.index])
        policy.tell(choice, reward=right[0], cost={"ms": ms[0]})
    return policy


def test_a_policy_is_judged_as_it_is_and_stays_so(tmp_path):
    policy, log = world(), log_of(60)
    shown = log.contexts.rename(columns={"u": "load1", "v": "load2"})
    log = replace(log, contexts=shown)
    policy.save(tmp_path / "before.ckpt")
    copies = [cb.load(tmp_path / "before.ckpt") for _ in range(6)]
    made = [
        one.ask(context=row).index.item()
        for one, row in zip(copies, shown.to_numpy(), strict=False)
    ]
    contexts = [{"load": row} for row in shown.to_numpy()]
    choices = policy.foresee(contexts)
    numbers = [choice.index.item() for choice in choices]
    assert numbers[:6] == made and len({*numbers}) > 1
    found, again = (cb.evaluate(log, c) for c in (policy, np.eye(4)[numbers]))
    assert found.frame().equals(again.frame())
    assert policy.t == 15 and len(policy.outstanding) == 0
    other = cb.load(tmp_path / "before.ckpt")
    load = [0.3, -0.4]
    assert policy.ask(context=load).x.tolist() == other.ask(context=load).x.tolist()


def test_choices_that_the_log_does_not_know_are_never_possible():
    policy, log = world(), log_of(60)
    shown = log.contexts.rename(columns={"u": "load1", "v": "load2"})
    made = [int(c.index) for c in policy.foresee([*shown.to_numpy()])]
    known = np.delete(np.arange(ROOMS), made[0])
    rows = np.isin(log.action, known)
    log = replace(log[rows], contexts=shown[rows])
    shares = log.distribution[:, known] / log.distribution[:, known].sum(1)[:, None]
    part = replace(
        log,
        actions=tuple(log.actions[k] for k in known),
        action=np.searchsorted(known, log.action),
        distribution=shares,
    )
    found = cb.evaluate(part, policy)
    foreign = np.mean(np.array(made)[rows] == made[0])
    assert 0 < foreign < 1
    assert found.unsupported == pytest.approx(foreign)
    assert "were never possible" in found._repr_html_()


def test_a_policys_own_log(tmp_path):
    pytest.importorskip("pyarrow")
    space = cb.Space(model=cb.Category("a", "b", "c", "d"), load=cb.Context(2))
    gp = cb.GP.linear(space, noise=0.1)
    policy = cb.CKB(
        space,
        reward=gp,
        costs={"ms": gp},
        thresholds={"ms": "<= 9"},
        ranges={"ms": (0, 24)},
        explore_share=0.2,
    )
    rng = np.random.default_rng(3)
    for _ in range(40):
        load = rng.normal(size=2)
        choice = policy.ask(context=load)
        right, ms = truth(load[None], [int(choice.index)])
        policy.tell(choice, reward=right[0], cost={"ms": ms[0]})
    log = policy.log()
    log.save(tmp_path / "log.parquet")
    loaded = cb.Log.load(tmp_path / "log.parquet")
    ranges = {"reward": (0, 1)}
    for candidate in ("b", {"model": "b"}, policy):
        found = cb.evaluate(log, candidate, ranges)
        again = cb.evaluate(loaded, candidate, ranges)
        assert found.frame().equals(again.frame())
        assert found.rounds + found.left_out == 40 and found.rounds > 30
        assert found["ms"].limit == "<= 9"
    assert cb.gate(log, {"b": "b"}, ranges=ranges)["b"].limits[0].limit == "<= 9"


def test_a_policy_that_draws_is_judged_by_its_distribution():
    arms = cb.Finite(torch.arange(3).double().unsqueeze(-1))
    counts = cb.Counts(subgaussian=0.5, range=(0.0, 1.0))
    safe = cb.Safe(index=0, cost=0.1)
    policy = cb.OPB(
        arms, reward=counts, costs=counts, thresholds=0.5, safe=safe, horizon=50
    )
    for _ in range(30):
        choice = policy.ask()
        policy.tell(choice, reward=0.2 + 0.3 * float(choice.index), cost=0.4)
    log = log_of(200, contexts=None, actions=(0, 1, 2, 3))
    pi, shares = policy.foresee()[0].distribution, np.zeros(4)
    np.add.at(shares, pi.index.numpy(), pi.probability.numpy())
    found, again = cb.evaluate(log, policy), cb.evaluate(log, shares)
    assert found.frame().equals(again.frame())


def test_a_policy_at_its_horizon_is_judged():
    arms = cb.Finite([[0.0], [1.0], [2.0], [3.0]])
    policy = cb.GPUCB(arms, reward=cb.GP.default(arms), horizon=2)
    for _ in range(2):
        policy.tell(policy.ask(), reward=1.0)
    log = log_of(50, contexts=None, actions=(0, 1, 2, 3))
    assert len(cb.evaluate(log, policy).values) == 2


def test_what_cannot_be_a_candidate():
    log = log_of(40)
    space = cb.Space(model=cb.Category("e", "f"))
    gp = cb.GP.default(space)
    foreign = cb.GPUCB(space, reward=gp)
    many = cb.GPUCB(space, reward=gp, trials=2)
    box = cb.Space(speed=cb.Float(0, 1))
    for candidate, words in (
        ("e", "candidate must be a policy, a function of the context"),
        (np.ones(3) / 3, r"shape \(K,\) = \(4,\)"),
        (np.full(4, 0.3), "add up to 1; got"),
        (np.ones((3, 4)) / 4, r"shape \(n, K\) = \(40, 4\)"),
        (lambda context: [0.5, 0.7, -0.2, 0.0], "at least 0 and add up to 1"),
        (lambda context: None, "got None"),
        (many, "without trials="),
        (cb.GPUCB(box, reward=cb.GP.default(box)), "finite set"),
        (world(), r"needs the contexts \['load1', 'load2'\]; the log has \['u', 'v'\]"),
        (foreign, "makes none of the log's choices, 'a', 'b', 'c', 'd'; it chooses"),
    ):
        with pytest.raises(ValueError, match=words):
            cb.evaluate(log, candidate)


# -- what logs lack --------------------------------------------------------------------


def test_rounds_without_probabilities_are_left_out_and_counted():
    log = log_of(300)
    shares = log.distribution.copy()
    shares[200:] = np.nan
    found = cb.evaluate(log_of(300, distribution=shares), "a")
    part = cb.evaluate(log[:200], "a")
    assert found.frame().equals(part.frame())
    assert (found.rounds, found.left_out) == (200, 100)
    assert "100 more had none" in str(found)
    shares[:] = np.nan
    for call in (cb.evaluate, lambda log, c: cb.gate(log, {"c": c})):
        with pytest.raises(ValueError, match=r"explore_share=0\.05"):
            call(log_of(300, distribution=shares), "a")


def test_a_log_of_the_probabilities_played_alone():
    log = log_of(2_000)
    played = np.arange(len(log)), log.action
    shares = np.full_like(log.distribution, np.nan)
    shares[played] = log.distribution[played]
    pi = matrix(log, 2.0)
    found = cb.evaluate(log_of(2_000, distribution=shares), pi)
    w = pi[played] / log.propensity
    z = log.outcomes["ms"].to_numpy() / 24
    assert found["ms"].estimate == pytest.approx(cb.evaluate(log, pi)["ms"].estimate)
    expected = 24 * lowest([(w * z, 0.0)], 0.025)
    assert found["ms"].lower == pytest.approx(expected, abs=1e-7)
    expected = 24 * (1 - lowest([(w * (1 - z), 0.0)], 0.025))
    assert found["ms"].upper == pytest.approx(expected, abs=1e-7)
    assert found.worth == pytest.approx(2_000 / (w**2).mean())
    assert math.isnan(found.unsupported)


def test_outcomes_that_were_not_told_count_at_their_worst():
    log = log_of(500)
    outcomes = log.outcomes.copy()
    outcomes.loc[::10, "ms"] = np.nan
    found = cb.evaluate(log_of(500, outcomes=outcomes), rule(1.0))["ms"]
    assert (found.told, found.out) == (450, 50)
    assert "whatever the 50 rounds not told were" in str(found)
    for value in (0.0, 24.0):
        filled = cb.evaluate(log_of(500, outcomes=outcomes.fillna(value)), rule(1.0))
        middle = filled["ms"].estimate
        assert found.lower < middle < found.upper
    whole = cb.evaluate(log, rule(1.0))["ms"]
    assert found.upper - found.lower > whole.upper - whole.lower


def test_choices_that_were_never_possible_are_said():
    log = log_of(800)
    shares = log.distribution.copy()
    shares[:, 3] = 0.0
    shares /= shares.sum(1, keepdims=True)
    keep = log.action != 3
    log = log_of(800, distribution=np.where(keep[:, None], shares, np.nan))
    found = cb.evaluate(log, [0.25, 0.25, 0.25, 0.25])
    assert found.unsupported == pytest.approx(0.25) and not found.weights_odd
    assert "25 % of its choices were never possible" in str(found)
    right, _ = truth(log.contexts.to_numpy())
    assert found["right"].lower < right.mean() - 0.03
    assert found["right"].upper > right.mean() + 0.03


def test_an_outcome_without_a_range_has_no_bounds():
    log = log_of(200, ranges={"right": (0, 1)})
    found = cb.evaluate(log, "a")
    assert found["ms"].lower == -math.inf and found["ms"].verdict == "open"
    assert "no bounds without ranges={'ms': (low, high)}" in str(found)
    said = cb.evaluate(log, "a", ranges={"ms": (0, 24)})
    assert said["ms"].upper < 24
    assert said["ms"].estimate == pytest.approx(found["ms"].estimate, rel=0.1)
    with pytest.raises(ValueError, match=r"ranges\['ms'\] is \(0, 2\), and ms was"):
        cb.evaluate(log, "a", ranges={"ms": (0, 2)})


def test_wrong_probabilities_are_noticed():
    log = log_of(4_000)
    wrong = np.full_like(log.distribution, 0.25)
    with pytest.warns(UserWarning, match="the mean weight is .* far from 1"):
        found = cb.evaluate(log_of(4_000, distribution=wrong), rule(5.0))
    assert found.weights_odd and "nothing here can be relied on" in str(found)


def test_a_value_that_changes_is_said():
    log = log_of(2_000)
    outcomes = log.outcomes.copy()
    outcomes.loc[1_000:, "ms"] += 3 * (outcomes.loc[1_000:, "ms"] < 20)
    found = cb.evaluate(log_of(2_000, outcomes=outcomes), rule(1.0))
    assert found["ms"].changed and not found["right"].changed
    assert "it has changed" in str(found)
    assert found.frame()["second_half"][1] == found["ms"].halves[1]


def test_units_shift_and_scale_with_their_ranges():
    log = log_of(300)
    other = log.outcomes.copy()
    other["ms"] = 1_000 * other["ms"] - 50
    log2 = log_of(300, outcomes=other, ranges={"ms": (-50, 23_950), "right": (0, 1)})
    one, two = (cb.evaluate(each, rule(1.0))["ms"] for each in (log, log2))
    for word in ("estimate", "lower", "upper"):
        expected = 1_000 * getattr(one, word) - 50
        assert getattr(two, word) == pytest.approx(expected, abs=1e-4)


# -- the gate --------------------------------------------------------------------------


def test_the_gates_evidence_is_that_of_the_formulas():
    log, factor = log_of(300), 1.1
    pi, ctrl, p = matrix(log, 2.0), matrix(log, 0.5), log.distribution
    z, q = predictions(log, "ms")
    limits = {"ms": "<= 9", "right": ">= 1.1 x control"}
    found = cb.gate(log, {"new": pi, "same": ctrl}, limits, control=ctrl)
    first, second = found["new"].limits
    act, caps, base = log.action, caps_of(pi, p), caps_of(ctrl, p)
    up = [(phi(z, q, pi, p, act, c), c) for c in caps]
    down = [(phi(1 - z, 1 - q, pi, p, act, c), c) for c in caps]
    assert first.kept == pytest.approx(log_mean(down, (24 - 9) / 24))
    assert first.broken == pytest.approx(log_mean(up, 9 / 24))
    z, q = predictions(log, "right")
    pairs = [*zip(base, caps, strict=True)]
    low = [
        factor * phi(z, q, ctrl, p, act, b) + phi(1 - z, 1 - q, pi, p, act, c)
        for b, c in pairs
    ]
    high = [
        factor * phi(1 - z, 1 - q, ctrl, p, act, b) + phi(z, q, pi, p, act, c)
        for b, c in pairs
    ]
    cap = [factor * b + c for b, c in pairs]
    assert second.broken == pytest.approx(log_mean([*zip(low, cap, strict=True)], 1.0))
    assert second.kept == pytest.approx(
        log_mean([*zip(high, cap, strict=True)], factor)
    )
    assert first.needed == second.needed == pytest.approx(math.log(2 / 0.05))
    assert found["new"].reward[1:] == pytest.approx(
        (cb.evaluate(log, pi)["right"].lower, cb.evaluate(log, pi)["right"].upper)
    )


def test_verdicts_and_the_rounds_still_needed():
    log = log_of(3_000)
    candidates = {"soft": rule(0.5), "d": "d", "sharp": rule(5.0)}
    _, ms = truth(log.contexts.to_numpy())
    means = {
        "soft": (matrix(log, 0.5) * ms).sum(1).mean(),
        "d": ms[:, 3].mean(),
        "sharp": (matrix(log, 5.0) * ms).sum(1).mean(),
    }
    assert means["sharp"] < 7.5 < means["soft"] < means["d"] + 1
    limits = {"ms": "<= 7.6", "reward": ">= 0.5"}
    found = cb.gate(log, candidates, limits)
    again = cb.gate(log, candidates, {"ms": "<= 7.6", "right": ">= 0.5"})
    assert found.frame().equals(again.frame())
    for each in found:
        kept = [one.kept >= one.needed for one in each.limits]
        assert (each.verdict == "ship") == all(kept)
        for one in each.limits:
            expected = 0.0
            if one.kept < one.needed:
                expected = (
                    3_000 * (one.needed / one.kept - 1) if one.kept > 0 else math.inf
                )
            assert one.rounds_needed == expected
        assert each.rounds_needed == max(one.rounds_needed for one in each.limits)
    strict = cb.gate(log, candidates, {"ms": "<= 5"})
    assert {each.verdict for each in strict} == {"reject"} and strict.shipped == ()
    easy = cb.gate(log, candidates, {"ms": "<= 20"})
    assert easy.shipped == ("soft", "d", "sharp")
    text = str(cb.gate(log, candidates, {"ms": "<= 8"}))
    assert "more rounds are needed" in text or "in sight" in text
    assert "<td>soft</td>" in found._repr_html_() and len(found.frame()) == 6


def test_the_control_is_the_rule_that_wrote_the_log_unless_said():
    log, limits = log_of(200), {"ms": "<= 1.5 x control"}
    candidates = {"b": "b"}
    own = cb.gate(log, candidates, limits).frame()
    said = cb.gate(log, candidates, limits, control=log.distribution).frame()
    np.testing.assert_allclose(own[["kept", "broken"]], said[["kept", "broken"]])
    stated = cb.gate(log_of(200, limits={"ms": "<= 8"}), candidates).frame()
    assert stated["limit"].tolist() == ["<= 8"]
    per_cent = cb.gate(log, candidates, {"right": ">= 60%"}).frame()
    number = cb.gate(log, candidates, {"right": ">= 0.6"}).frame()
    assert per_cent["kept"].equals(number["kept"])


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"mss": "<= 2"}, "did you mean 'ms'"),
        ({"ms": 20}, "must be a text"),
        ({"ms": "< 2"}, r"limits\['ms'\] must be"),
        ({"ms": "<= 2 control"}, "'<= NUMBER x control'"),
        ({"ms": "<= 30"}, "the limit decides nothing"),
        ({}, "limits must be a dict"),
        ({"right": ">= 0.5 x control"}, "are of outcomes that are at least 0"),
    ],
)
def test_wrong_limits_are_refused(limits, words):
    log = log_of(60, ranges={"right": (-1, 1), "ms": (0, 24)})
    with pytest.raises(ValueError, match=words):
        cb.gate(log, {"a": "a"}, limits)


def test_other_wrong_arguments():
    log = log_of(60)
    for call, words in (
        (lambda: cb.gate(log, {}), "candidates must be a dict"),
        (lambda: cb.gate(log, ["a"]), "candidates must be a dict"),
        (lambda: cb.gate(log_of(60, ranges={}), {"a": "a"}), r"ranges=\{'ms'"),
        (lambda: cb.gate(log, {"a": "a"}, alpha=5), "alpha must lie between"),
        (lambda: cb.gate(log, {"a": "q"}), "a must be a policy"),
        (
            lambda: cb.gate(log, {"a": "a"}, {"ms": "<= control"}, control="q"),
            "control must be a policy",
        ),
        (lambda: cb.evaluate(log.outcomes, "a"), r"log must be a cb\.Log"),
        (lambda: cb.evaluate(log, "a", alpha=0), "alpha must lie between"),
        (lambda: cb.evaluate(log, "a", {"m": (0, 1)}), "ranges must be of"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(KeyError, match="there are right, ms"):
        cb.evaluate(log, "a")["cost"]


# -- how often they err ----------------------------------------------------------------

RUNS, ALPHA = 150, 0.1
# a share of 1 in 10 gives more in fewer than 1 of 10 000 tries
MOST_FAILURES = 30


def test_bounds_fail_in_at_most_a_share_alpha_of_logs():
    """Thin exploration, 2 %: the largest weights come up once in 200 rounds."""
    x = np.random.default_rng(9).normal(size=(20_000, 2))
    right, ms = truth(x)
    pi = softmax(3 * x @ SCALE)
    expected = (pi * right).sum(1).mean(), (pi * ms).sum(1).mean()
    missed = np.zeros(2)
    for seed in range(RUNS):
        log = log_of(150, seed=seed, share=0.02)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = cb.evaluate(log, matrix(log, 3.0), alpha=ALPHA)
        for j, value in enumerate(found):
            missed[j] += not value.lower <= expected[j] <= value.upper
    assert missed.max() <= MOST_FAILURES


def test_a_candidate_at_its_very_limit_ships_in_at_most_a_share_alpha():
    x = np.random.default_rng(9).normal(size=(200_000, 2))
    limit = float((softmax(2 * x @ SCALE) * truth(x)[1]).sum(1).mean())
    shipped = 0
    for seed in range(RUNS):
        log = log_of(150, seed=seed, share=0.1)
        limits = {"ms": f"<= {limit}"}
        found = cb.gate(log, {"new": matrix(log, 2.0)}, limits, alpha=ALPHA)
        shipped += found["new"].verdict == "ship"
    assert shipped <= MOST_FAILURES


def test_evidence_is_at_most_one_on_average():
    """An e-value: its mean over logs is at most 1 where the mean is at the value."""
    rng, total, runs = np.random.default_rng(1), 0.0, 4_000
    p, pi = np.tile([0.9, 0.1], (30, 1)), np.tile([0.2, 0.8], (30, 1))
    q = np.tile([0.3, 0.6], (30, 1))
    mean = 0.2 * 0.4 + 0.8 * 0.5
    for _ in range(runs):
        action = (rng.random(30) < 0.1).astype(int)
        y = (rng.random(30) < np.where(action == 1, 0.5, 0.4)).astype(float)
        weights = off_policy.Weights(pi, p, action)
        tries = off_policy.pseudo_outcomes(y, q, weights)
        total += math.exp(off_policy.log_evidence(tries, mean))
    # the evidence is at least 0: by Markov's inequality on the mean of so many
    assert total / runs < 1.2
