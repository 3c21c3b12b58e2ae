"""The history of a policy, and why it chose what it did."""

from __future__ import annotations

import logging
import time

import gpytorch
import pandas as pd
import pytest
import torch
from inside import FailureBelief, concern_of, failures_of

import cbandit as cb

SPACE = cb.Space(threads=cb.Int(1, 8), codec=cb.Category("lz4", "zstd"))


def rbf():
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    return cb.GP(kernel, noise=0.01)


X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
SET, GP = cb.Finite(X), rbf()


def named(**own):
    gp = cb.GP.default(SPACE)
    return cb.CKB(
        SPACE,
        reward=gp,
        costs={"latency": gp, "up": gp},
        thresholds={"latency": 3.0, "up": ">= 0.5"},
        minimise=True,
        explore=cb.UCB(2.0),
        step=1.0,
        cap=5.0,
        **own,
    )


def ckb(actions=SET, explore=None, **own):
    explore = explore or cb.UCB(2.0)
    both = {"reward": GP, "costs": GP, "thresholds": 0.2, "step": 0.5, "cap": 5.0}
    return cb.CKB(actions, explore=explore, **both, **own)


def tell(policy, choice, **more):
    value = choice.x.sum(-1)
    policy.tell(choice, reward=1 + value.sin(), cost=value**2, **more)


# ---------------------------------------------------------------------- history


def test_what_became_of_every_round_is_there(tmp_path):
    began = time.time()
    policy = named()
    first, second, third, fourth = (policy.ask() for _ in range(4))
    policy.tell(second, reward=2.0, cost=[4.0, 0.9])
    policy.tell(third, failed=True)
    policy.cancel(fourth)
    fifth = policy.ask()
    policy.tell(fifth, cost={"up": 0.7})
    policy.save(tmp_path / "a.ckpt")
    loaded = cb.load(tmp_path / "a.ckpt")
    loaded.tell(first.id, reward=1.0, cost=[1.0, 1.0])
    sixth = loaded.ask()
    for each, count, what in ((policy, 5, "open"), (loaded, 6, "told")):
        frame = each.history()
        assert list(frame.columns) == [
            *("id", "round", "threads", "codec", "state", "asked", "told"),
            *("reward", "latency", "up", "multiplier_latency", "multiplier_up"),
            *("score", "propensity"),
        ]
        assert frame["round"].tolist() == list(range(1, count + 1))
        states = [what, "told", "failed", "cancelled", "open", "open"]
        assert frame["state"].tolist() == states[:count]
        rows = frame.to_dict("records")
        assert rows[1]["reward"] == 2.0
        assert (rows[1]["latency"], rows[1]["up"]) == (4.0, 0.9)
        assert rows[4]["up"] == 0.7
        assert frame[["reward", "latency"]].iloc[[2, 3, 4]].isna().all(axis=None)
        for row, choice in zip(
            rows, (first, second, third, fourth, fifth), strict=False
        ):
            assert row["id"] == choice.id
            assert {k: row[k] for k in ("threads", "codec")} == choice.params
        assert began <= frame["asked"].iloc[0].timestamp() <= time.time()
        assert frame["told"].iloc[2] is not None
        assert (frame["told"] >= frame["asked"])[[1, 4]].all()
    assert loaded.history()["id"].iloc[5] == sixth.id
    assert loaded.history()["reward"].iloc[0] == 1.0


@pytest.mark.parametrize("trials", [None, 3])
def test_a_long_history_agrees_with_the_run(trials):
    # several blocks are joined, with late and out-of-order feedback among them
    policy = ckb(trials=trials)

    class Late(cb.problems.Table):
        def round(self, t, generator):
            return cb.Round(delays=(t % 3, 2 * (t % 2)))

    values = X[:, 0].tolist()
    world = Late(values, [values], 0.01, actions=SET, thresholds=0.2)
    run = cb.simulate(policy, world, 700, progress=False)
    frame, size = policy.history(), trials or 1
    assert len(frame) == 700 * size
    by_round = run.rewards.reshape(size, 700).T.reshape(-1)
    told = frame["state"] == "told"
    assert told.sum() >= 697 * size
    assert (frame["reward"][told] == by_round.numpy()[told]).all()
    costs = run.costs.reshape(size, 700).T.reshape(-1).numpy()
    assert (frame["cost1"][told] == costs[told]).all()
    assert (frame["action"] == run.index.reshape(size, 700).T.reshape(-1).numpy()).all()
    multipliers = run.multipliers.reshape(size, 700).T.reshape(-1).numpy()
    assert (frame["multiplier1"] == multipliers).all()
    if trials:
        assert frame["trial"].tolist() == [0, 1, 2] * 700
    # the record is a few columns, not a list of rounds
    assert len(policy._history._columns) <= 4
    assert len(policy._history._waiting) < 256


@pytest.mark.parametrize("part", ["reward", "cost"])
def test_trials_have_states_of_their_own(part):
    policy = ckb(trials=3)
    choice = policy.ask()
    tell(policy, choice, where=[True, False, False])
    policy.tell(choice, failed=True, where=[False, True, False])
    assert policy.history()["state"].tolist() == ["told", "failed", "open"]
    policy.tell(choice, **{part: [0.5, 0.5, 0.5]}, where=[False, False, True])
    assert policy.history()["state"].tolist() == ["told", "failed", "open"]
    policy.cancel(choice)
    assert policy.history()["state"].tolist() == ["told", "failed", "cancelled"]
    policy.ask()
    assert policy.history()["state"].tolist()[:3] == ["told", "failed", "cancelled"]


OTHERS = {
    "box": lambda: ckb(cb.Box([0.0], [1.0])),
    "LCLUCB": lambda: cb.LCLUCB(
        cb.Star([0.0], [[1.0]]),
        reward=cb.Linear(0.1),
        costs=cb.Linear(0.1),
        safe=cb.Safe(x=[0.0]),
        thresholds=0.5,
    ),
    "GPUCB": lambda: cb.GPUCB(SET, reward=GP, explore=cb.UCB(1.0)),
    "CONFIG": lambda: cb.baselines.CONFIG(
        SET, reward=GP, costs=GP, explore=cb.UCB(1.0), thresholds=0.2
    ),
    "late": lambda: ckb(feedback=cb.Delayed(2)),
    "SCGPUCB": lambda: cb.SCGPUCB(
        SET, reward=GP, costs=1, explore=cb.UCB(2.0), slater=0.5, clip=1.0
    ),
    "StageOpt": lambda: cb.baselines.StageOpt(
        SET, reward=GP, costs=GP, explore=cb.UCB(1.0), safe=0, rounds=2, thresholds=0.2
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_policy_has_a_history_and_explains(name):
    policy = OTHERS[name]()
    for _ in range(3):
        shown = {"observed_costs": X.T - 0.5} if policy.sees_costs else {}
        choice = policy.ask(**shown)
        why = policy.explain(choice)
        assert why.t == choice.t
        assert torch.equal(why.x, choice.x.double())
        assert str(why).startswith(f"round {choice.t}: ")
        value = choice.x.sum()
        told = {"reward": value} | ({"cost": value} if policy.m else {})
        policy.tell(choice, **told)
    frame = policy.history()
    assert frame["state"].tolist() == ["told"] * 3
    assert ("action" in frame) == (name != "box")


# ------------------------------------------------------- and back, by observe()


def mixed(trials=None, on=SPACE):
    """One cost of each kind, one with a lower limit, a reward to minimise."""
    gp, many = rbf(), {"binary": "fails", "count": "restarts"}
    kinds = {
        name: cb.GP(rbf().kernel, outcome=kind, mean=mean)
        for (kind, name), mean in zip(many.items(), (0.1, 2.0), strict=True)
    }
    return cb.RPOL(
        on,
        reward=gp,
        costs={**kinds, "up": gp},
        thresholds={"fails": "<= 10%", "restarts": 3.0, "up": ">= 0.5"},
        minimise=True,
        explore=cb.UCB(1.0),
        trials=trials,
    )


def filled(policy):
    """Tries, exposures, parts, a failure, a cancelled choice and an open one."""
    shape = policy.batch_shape
    for i in range(5):
        cost = {
            "fails": (torch.full(shape, 1), torch.full(shape, 400)),
            "restarts": (torch.full(shape, i), torch.full(shape, 0.5)),
            "up": torch.full(shape, 0.4 + i / 10),
        }
        policy.tell(policy.ask(), reward=torch.full(shape, 0.1 * i), cost=cost)
    policy.tell(policy.ask(), failed=True)
    part = policy.ask()
    if shape:
        policy.tell(part, reward=[0.3, 0.4], where=[True, False])
        policy.tell(part, failed=True, where=[False, True])
    policy.tell(policy.ask(), cost={"up": torch.full(shape, 0.9)})
    policy.cancel(policy.ask())
    return policy


def same_beliefs(one, other, atol=1e-9):
    p, q = one.posterior(), other.posterior()
    for part in ("mean", "std"):
        for which in ("reward", "costs"):
            told = (getattr(getattr(each, which), part) for each in (p, q))
            torch.testing.assert_close(*told, atol=atol, rtol=0)


@pytest.mark.parametrize("csv", [False, True])
@pytest.mark.parametrize("trials", [None, 2])
def test_observe_takes_a_history_back(trials, csv, tmp_path):
    old, new = filled(mixed(trials)), mixed(trials)
    frame = old.history()
    assert frame["fails"].iloc[0] == 1 / 400
    assert frame["tries_fails"].iloc[0] == 400
    assert frame["exposure_restarts"].iloc[0] == 0.5
    assert not {"noise_up", "tries_up", "limit_up"} & set(frame.columns)
    if csv:
        frame.to_csv(tmp_path / "a.csv")
        frame = pd.read_csv(tmp_path / "a.csv")
    new.observe(frame)
    same_beliefs(old, new, 1e-6)  # stand-ins of outcomes are swept to 1e-8
    failing = [
        concern_of(each, FailureBelief).beliefs.posterior()[0] for each in (old, new)
    ]
    assert torch.equal(*(mean.argmax(-1) for mean in failing))
    # the first choice of the new policy is by what the old one knew
    assert len(new.history()) == 0
    new.ask()


@pytest.mark.parametrize("kind", ["box", "context", "set"])
def test_a_history_with_noise_on_every_set(kind):
    shown, gp = {}, rbf()
    on = {"box": cb.Box([0.0], [1.0]), "set": SET}.get(kind)
    if on is None:
        on = cb.Space(a=cb.Category("s", "m", "l"), z=cb.Context(2))
        shown = {"context": {"z": [0.4, -0.2]}}

    def make():
        return cb.RPOL(on, reward=gp, costs=gp, thresholds=0.5, failures=False)

    old, new = make(), make()
    for i in range(4):
        choice = old.ask(**shown)
        old.tell(choice, reward=0.1 * i, noise=0.5 if i % 2 else None)
        old.tell(choice, cost=0.2 * i, noise=0.01 * (1 + i))
    old.tell(old.ask(**shown), failed=True)
    frame = old.history()
    assert frame["noise_reward"].isna().tolist() == [True, False, True, False, True]
    assert frame["noise_cost1"].tolist()[:4] == [0.01, 0.02, 0.03, 0.04]
    new.observe(frame)
    places = torch.stack([each.x for each in [old.ask(**shown)]])
    here, there = old.posterior(x=places), new.posterior(x=places)
    torch.testing.assert_close(here.reward.mean, there.reward.mean, atol=1e-9, rtol=0)
    torch.testing.assert_close(here.costs.std, there.costs.std, atol=1e-9, rtol=0)
    assert not failures_of(new).empty
    # the same by keywords, with the noise by name
    again = make()
    told = frame.iloc[:4]
    x = torch.stack(
        [old._history.table(old._ledger.all(9))["x"][i, 0] for i in range(4)]
    )
    noise = {"reward": told["noise_reward"].fillna(0.01), "cost1": told["noise_cost1"]}
    again.observe(x=x, reward=told["reward"], cost=told["cost1"], noise=noise)
    other = again.posterior(x=places)
    torch.testing.assert_close(other.reward.mean, there.reward.mean, atol=1e-9, rtol=0)
    torch.testing.assert_close(other.costs.std, there.costs.std, atol=1e-9, rtol=0)


def test_a_history_is_saved_with_tries_and_limits(tmp_path):
    old = filled(mixed())
    old.limit("up", ">= 0.6")
    for _ in range(300):  # several blocks, where most have neither tries nor noise
        choice = old.ask()
        old.tell(choice, reward=0.0, cost={"fails": False, "restarts": 1, "up": 0.7})
    old.save(tmp_path / "a.ckpt")
    frame, loaded = old.history(), cb.load(tmp_path / "a.ckpt").history()
    assert frame.drop(columns="id").equals(loaded.drop(columns="id"))
    assert frame["tries_fails"].iloc[0] == 400
    assert frame["tries_fails"].iloc[-1] == 1
    assert frame["limit_up"].iloc[[0, -1]].tolist() == [0.5, 0.6]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda f: f.drop(columns="up"), "no column 'up'"),
        (lambda f: f.drop(columns="codec"), "no column 'codec'"),
        (lambda f: f.drop(columns="state"), "column 'state'"),
        (lambda f: f.to_dict("records"), "pandas frame"),
        (lambda f: f.assign(trial=range(len(f))), "this policy has none"),
        (lambda f: f.assign(fails=0.5001), "fails must be"),
    ],
)
def test_a_history_that_does_not_fit(wrong, words):
    policy, frame = mixed(), filled(mixed()).history()
    frame = frame.assign(tries_fails=1.0) if "fails" in words else frame
    with pytest.raises(cb.CBanditError, match=words):
        policy.observe(wrong(frame))
    with pytest.raises(cb.CBanditError, match="not both"):
        policy.observe(frame, index=[1])
    assert not policy._beliefs.has_data().any()


# ----------------------------------------------------------------------- explain


@pytest.mark.parametrize("trials", [None, 2])
def test_an_explanation_says_what_the_round_was_decided_by(trials):
    policy = ckb(trials=trials)
    for _ in range(3):
        tell(policy, policy.ask())
    seen, phi = policy.posterior(), policy.multiplier.clone()
    choice = policy.ask()
    why = policy.explain(choice)
    at = choice.index.reshape(-1, 1)
    mean, std = (
        torch.cat([v.reward.reshape(-1, 1, 20), v.costs.reshape(-1, 1, 20)], 1)
        for v in (
            type(seen)(seen.reward.mean, seen.costs.mean),
            type(seen)(seen.reward.std, seen.costs.std),
        )
    )
    wide = at.unsqueeze(1).expand(-1, 2, 1)
    here, spread = (v.gather(-1, wide)[..., 0] for v in (mean, std))
    torch.testing.assert_close(why.mean.reshape(-1, 2), here, atol=1e-9, rtol=0)
    torch.testing.assert_close(why.std.reshape(-1, 2), spread, atol=1e-7, rtol=0)
    assert torch.equal(why.multiplier, phi)
    # scores by hand: upper bound of the reward, lower bounds of costs less the limit
    f = mean[:, 0] + 2 * std[:, 0]
    g = mean[:, 1] - 2 * std[:, 1] - 0.2
    score = f - phi.reshape(-1, 1) * g
    top = score.max(-1).values
    torch.testing.assert_close(why.score.reshape(-1), top, atol=1e-9, rtol=0)
    assumed = torch.cat([f.gather(-1, at), g.gather(-1, at)], -1)
    torch.testing.assert_close(why.estimate.reshape(-1, 2), assumed, atol=1e-9, rtol=0)


@pytest.mark.parametrize("explore", [cb.UCB(1.0), cb.TS(1.0), cb.Rand(1.0)])
@pytest.mark.parametrize("actions", [SET, cb.Box([0.0], [1.0])], ids=["set", "box"])
def test_explaining_changes_nothing(explore, actions):
    asked, plain = ckb(actions, explore), ckb(actions, explore)
    for _ in range(4):
        one, other = asked.ask(), plain.ask()
        assert torch.equal(one.x, other.x)
        asked.explain(one.id)
        tell(asked, one)
        tell(plain, other)


def test_an_explanation_is_whole_until_something_is_absorbed(tmp_path):
    policy = ckb()
    old = policy.ask()
    tell(policy, old)
    new = policy.ask()
    tell(policy, new)
    assert policy.explain(new).mean is not None  # told, not yet absorbed
    before = policy.explain(old)
    assert before.mean is None
    assert before.estimate is not None
    assert before.score is not None
    policy.posterior()
    after = policy.explain(new)
    assert after.mean is None
    assert torch.equal(after.score, policy.explain(new.id).score)
    policy.save(tmp_path / "a.ckpt")
    assert cb.load(tmp_path / "a.ckpt").explain(old.id).score == before.score


def test_the_estimate_explained_is_the_one_that_was_scored():
    """Not the pessimistic one that the multiplier moves by."""
    gp = rbf()
    policy = cb.CKB(
        SET, reward=gp, costs=gp, explore=cb.UCB(2.0), step=0.5, cap=5.0, dual_beta=-1
    )
    for t in range(6):
        choice = policy.ask()
        found = policy.explain(choice)
        f, g = found.estimate.tolist()
        score = f - found.multiplier.item() * g
        assert found.score.item() == pytest.approx(score, abs=1e-9)
        policy.tell(choice, reward=0.1 * t, cost=0.2 * t)
    assert policy.multiplier.item() > 0


def test_explanations_speak_in_names():
    policy = named()
    policy.tell(policy.ask(), reward=2.0, cost=[4.0, 0.9])
    choice = policy.ask()
    why = policy.explain(choice)
    assert why.params == choice.params
    text = str(why)
    for word in ("threads=", "codec=", "reward: believed", "latency: believed"):
        assert word in text
    assert "up: believed" in text
    seen = policy.posterior(params=[why.params])
    assert why.mean[0] == pytest.approx(float(seen.reward.mean[0]), abs=1e-9)
    assert why.mean[1:].tolist() == pytest.approx(seen.costs.mean[:, 0].tolist())


def test_unknown_choices_are_not_explained():
    policy, other = ckb(), ckb()
    for wrong in (other.ask(), "nobody-3", "", f"{policy.ask().id}0"):
        with pytest.raises(cb.ChoiceError, match="no choice of this policy"):
            policy.explain(wrong)


# --------------------------------------------------------------------------- log


def test_the_logger_is_quiet_until_asked(capsys, caplog):
    policy = ckb()
    policy.tell(policy.ask(), failed=True)
    assert capsys.readouterr() == ("", "")
    with caplog.at_level(logging.DEBUG, logger="cbandit"):
        choice = policy.ask()
        policy.cancel(choice)
        policy.tell(policy.ask(), failed=True)
    said = [(record.name, record.levelname) for record in caplog.records]
    assert set(said) == {("cbandit", "DEBUG"), ("cbandit", "INFO")}
    text = caplog.text
    assert f"{choice.id} is cancelled" in text
    assert "has failed" in text
    assert "round 2" in text


def test_costs_named_like_other_columns_have_columns_of_their_own():
    space = cb.Space(n=cb.Int(1, 5))
    belief = cb.GP.default(space)
    costs = dict.fromkeys(("reward", "state", "heat"), belief)
    policy = cb.RPOL(space, reward=belief, costs=costs, thresholds=1.0)
    told = {"reward": 0.5, "state": 0.2, "heat": 0.3}
    policy.tell(policy.ask(), reward=7.0, cost=told)
    row = policy.history().iloc[0]
    assert (row["reward"], row["state"], row["heat"]) == (7.0, "told", 0.3)
    assert (row["cost.reward"], row["cost.state"]) == (0.5, 0.2)
