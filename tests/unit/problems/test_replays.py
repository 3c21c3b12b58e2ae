"""The problem that replays data with contexts, and the account it keeps."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from inside import Streams
from scipy.optimize import linprog

import cbandit as cb
from cbandit.problems import Contexts, Problem


def data(n=40, d=3, size=3, m=1, seed=0):
    """Return contexts, rewards and costs; costs depend on the choice and the row."""
    draw = np.random.default_rng(seed)
    z = draw.normal(size=(n, d))
    weight = draw.normal(size=(d, size))
    rewards = z @ weight + np.linspace(0, 1, size) + 0.3 * draw.normal(size=(n, size))
    costs = draw.uniform(0.2, 1.0, (n, m, size)) * np.linspace(0.2, 2, size)
    return z, rewards, costs


def programme(rewards, costs, limits):
    """Return the best mean reward over rows and choices, by HiGHS."""
    n, size = rewards.shape
    each = np.kron(np.eye(n), np.ones((1, size)))
    spent = costs.transpose(1, 0, 2).reshape(costs.shape[1], -1) / n
    answer = linprog(
        -rewards.ravel() / n, A_ub=spent, b_ub=limits, A_eq=each, b_eq=np.ones(n)
    )
    assert answer.status == 0
    return -answer.fun


@pytest.mark.parametrize("m", [1, 2])
def test_the_best_of_each_row_is_that_of_a_programme(m):
    z, rewards, costs = data(m=m)
    limits = np.full(m, 0.55)
    problem = Contexts(z, rewards, costs, thresholds=limits)
    best = problem.each_row
    assert best.reward == pytest.approx(programme(rewards, costs, limits), abs=1e-10)
    assert (best.costs.numpy() <= limits + 1e-10).all()
    assert torch.allclose(best.shares.sum(-1), torch.ones(40).double())
    assert bool((best.shares >= 0).all())


def test_the_best_fixed_choice_by_hand():
    z, rewards, costs = data()
    means, spent = rewards.mean(0), costs[:, 0].mean(0)
    limit = 1.0
    allowed = spent <= limit
    assert allowed.any() and not allowed.all()
    problem = Contexts(z, rewards, costs, thresholds=limit)
    assert problem.fixed.reward == pytest.approx(means[allowed].max(), abs=1e-12)
    none = Contexts(z, rewards, costs, thresholds=0.01)
    assert np.isnan(none.fixed.reward)


def test_the_best_linear_policy_is_at_the_best_price():
    # by other means: all prices of one cost, from breakpoints of the predictions, and
    # the best mixture of two of these policies or of fixed choices
    z, rewards, costs = data(n=60)
    limit = 0.5
    problem = Contexts(z, rewards, costs, thresholds=limit)
    h = np.c_[(z - z.mean(0)) / z.std(0), np.ones(len(z))]
    fit = np.linalg.solve(h.T @ h + np.eye(4), h.T)
    f, g, c = h @ (fit @ rewards), h @ (fit @ costs[:, 0]), costs[:, 0]
    breaks = {0.0}
    for i, j in itertools.combinations(range(3), 2):
        gap = g[:, i] - g[:, j]
        breaks |= set(((f[:, i] - f[:, j]) / gap)[gap != 0])
    edges = np.array(sorted(b for b in breaks if b >= 0))
    prices = np.r_[0.0, (edges[1:] + edges[:-1]) / 2, edges[-1] + 1]
    chosen = [(f - p * g).argmax(1) for p in prices]
    chosen += [np.full(60, k) for k in range(3)]
    rows = np.arange(60)
    points = [(c[rows, a].mean(), rewards[rows, a].mean()) for a in chosen]
    best = max(r for s, r in points if s <= limit)
    for (s, r), (u, q) in itertools.combinations(points, 2):
        if min(s, u) <= limit < max(s, u):
            share = (limit - s) / (u - s)
            best = max(best, r + share * (q - r))
    linear = problem.linear
    assert linear.reward <= best + 1e-9
    assert linear.reward >= best - 0.01 * abs(best)
    assert float(linear.costs) <= limit + 1e-9
    assert problem.fixed.reward <= linear.reward + 1e-9
    assert linear.reward <= problem.each_row.reward + 1e-9


def test_rows_are_shuffled_by_trial_and_again_when_they_run_out():
    z, rewards, costs = data(n=7)
    problem = Contexts(z, rewards, costs)
    assert isinstance(problem, Problem)

    def shown(streams, rounds):
        rows = [problem.round(t, streams).context["context"] for t in rounds]
        return np.stack(rows, -2)

    whole = shown(Streams(3, 2), range(1, 22))
    assert whole.shape == (2, 21, 3)
    passes = whole.reshape(2, 3, 7, 3)
    for i, j in np.ndindex(2, 3):
        assert {tuple(r) for r in passes[i, j]} == {tuple(r) for r in z}
    assert (passes[0, 0] != passes[1, 0]).any()
    assert (passes[0, 0] != passes[0, 1]).any()
    # a trial's order is its own, whatever batch it runs in; and again after others
    alone = shown(Streams(3, range(1, 2)), range(1, 22))
    assert (alone[0] == whole[1]).all()
    assert (shown(Streams(3, 2), range(9, 12)) == whole[:, 8:11]).all()


@pytest.mark.parametrize("trials", [None, 2])
def test_the_account_is_against_the_linear_policy(trials):
    z, rewards, costs = data(n=30, m=2)
    names = {"usd": "<= 0.6", "ms": "<= 0.7"}
    space = cb.Space(
        model=cb.Category("s", "m", "l"),
        day=cb.Context(1),
        prompt=cb.Context(2),
    )
    problem = Contexts(z, rewards, costs, actions=space, thresholds=names)
    gp = cb.GP.default(space)
    policy = cb.baselines.CKBRestart(
        space, reward=gp, costs=dict.fromkeys(names, gp),
        thresholds=names, restart=10, trials=trials,
    )  # fmt: skip
    run = cb.simulate(policy, problem, 30, progress=False)
    shape = () if trials is None else (trials,)
    # every row once, so that the yardsticks' sums are 30 times their means
    played = run.true_rewards.sum(-1)
    assert run.regret.shape == (*shape, 30)
    wanted = 30 * problem.linear.reward - played
    assert torch.allclose(run.regret[..., -1], wanted, atol=1e-9)
    wanted = 30 * problem.each_row.reward - played
    assert torch.allclose(run.stochastic_regret[..., -1], wanted, atol=1e-9)
    frame = run.frame()
    for _, row in frame.iloc[::7].iterrows():
        place = np.abs(z - [[row["day1"], row["prompt1"], row["prompt2"]]]).sum(1)
        i, k = int(place.argmin()), ("s", "m", "l").index(row["model"])
        assert place[i] < 1e-12
        assert row["reward"] == row["true_reward"] == rewards[i, k]
        assert row["usd"] == costs[i, 0, k]
        assert row["true_ms"] == pytest.approx(costs[i, 1, k], abs=1e-12)


def test_runs_go_on_from_a_file(tmp_path):
    z, rewards, costs = data(n=8)
    problem = Contexts(z, rewards, costs, thresholds=0.5)

    def build():
        gp = cb.GP.default(problem.actions)
        return cb.CKB(problem.actions, reward=gp, costs=gp, thresholds=0.5, seed=2)

    whole = cb.simulate(build(), problem, 13, progress=False)
    path = tmp_path / "run.ckpt"
    cb.simulate(build(), problem, 6, checkpoint=path, progress=False)
    again = Contexts(z, rewards, costs, thresholds=0.5)
    run = cb.simulate(build(), again, 13, checkpoint=path, progress=False)
    assert torch.equal(run.actions, whole.actions)
    assert torch.equal(run.regret, whole.regret)


def test_senses_turn_the_account():
    z, rewards, costs = data()
    plain = Contexts(z, rewards, costs, thresholds=0.5)
    turned = Contexts(
        z, -rewards, -costs, thresholds={"left": ">= -0.5"}, minimise=True
    )
    assert turned.linear.reward == pytest.approx(-plain.linear.reward, abs=1e-12)
    assert turned.each_row.reward == pytest.approx(-plain.each_row.reward, abs=1e-12)


def test_a_frame_of_measurements():
    rows = [
        {"load": load, "day": day, "threads": n, "codec": c, "ms": n * load, "usd": n}
        for load in (0.5, 1.5)
        for day in ("mon", "sun")
        for n in (2, 4, 6)
        for c in ("a", "b")
    ]
    rows += [rows[0] | {"ms": 3.0}]  # a repeat, whose mean counts
    frame = pd.DataFrame(rows)
    problem = Contexts.from_frame(
        frame, ["day", "load"], minimise="ms", limits={"usd": "<= 4"}
    )
    assert repr(problem) == "Contexts(n=4, K=6, m=1)"
    assert problem.actions.names.parameters == {
        "threads": cb.Float(2, 6, step=2),
        "codec": cb.Category("a", "b"),
        "day": cb.Context(cb.Category("mon", "sun")),
        "load": cb.Context(cb.Float(0.5, 1.5)),
    }
    shown = problem.round(1, Streams(0)).context
    assert shown["day"] in ("mon", "sun")
    gp = cb.GP.default(problem.actions)
    policy = cb.CKB(
        problem.actions, reward=gp, costs={"usd": gp}, minimise=True,
        thresholds={"usd": "<= 4"},
    )  # fmt: skip
    played = cb.simulate(policy, problem, 8, progress=False).frame()
    for _, row in played.iterrows():
        first = row["load"] == 0.5 and row["threads"] == 2 and row["codec"] == "a"
        repeated = first and row["day"] == "mon"
        wanted = 2.0 if repeated else row["threads"] * row["load"]
        assert row["reward"] == pytest.approx(wanted)
        assert row["usd"] == row["threads"]
    with pytest.warns(UserWarning, match="1 of 4 contexts are left out: not each"):
        part = Contexts.from_frame(
            frame[3:24], ["day", "load"], minimise="ms", limits={"usd": "<= 4"}
        )
    assert len(part.contexts) == 3
    with pytest.raises(cb.CBanditError, match=r"every choice of threads.*none of 1"):
        Contexts.from_frame(
            frame[:5], ["day", "load"], minimise="ms", limits={"usd": "<= 4"},
            knobs=["threads", "codec"],
        )  # fmt: skip
    for change, words in (
        ({"limits": None}, "limits must name at least one column"),
        ({"maximise": "usd"}, "takes maximise= or minimise=; got both"),
        ({"contexts": "day"}, "contexts must list the names of columns"),
        ({"contexts": [["day"]]}, "contexts must list the names of columns"),
        ({"contexts": []}, "contexts must be a list of one column"),
        ({"contexts": ["hour"]}, "one column 'hour'"),
    ):
        whole = {"contexts": ["day", "load"], "minimise": "ms", "limits": {"usd": 4}}
        with pytest.raises(cb.CBanditError, match=words):
            Contexts.from_frame(frame, **(whole | change))


def test_rows_of_a_frame_that_failed():
    """What always fails in a context, and what fails there half of the time."""
    rows = [
        {"load": load, "n": n, "ms": n * load, "usd": float(n), "lost": "no"}
        for load in (0.5, 1.5, 2.5)
        for n in (2, 4, 6)
    ]
    nothing = {"ms": np.nan, "usd": np.nan, "lost": "yes"}
    rows += [rows[1] | nothing]  # load 0.5, n = 4: one of two fails
    rows[5] |= nothing  # load 1.5, n = 6 always fails
    for i in (6, 7, 8):  # load 2.5: all fail
        rows[i] |= nothing
    frame = pd.DataFrame(rows)
    limits = {"usd": "<= 5"}
    for how, table in (("lost", frame), (True, frame.drop(columns="lost"))):
        with pytest.warns(UserWarning, match="1 of 3 contexts.*or all failed"):
            problem = Contexts.from_frame(
                table, ["load"], minimise="ms", limits=limits, failed=how
            )
        assert problem.contexts.flatten().tolist() == [0.5, 1.5]
        # always failing: as bad as the worst of its row
        best = problem.each_row
        assert best.shares.argmax(-1).tolist() == [0, 0]
        # of the cost, whose limit the worst of that row keeps
        assert problem.evaluate(
            torch.tensor([1, 2]), torch.tensor([2, 2]), torch.zeros(2, 2)
        ).costs.sort(0)[0].flatten().tolist() == [4.0, 6.0]
        policy = cb.GPUCB(problem.actions, reward=cb.GP.default(problem.actions))
        streams, lost = Streams(0), {}
        for t in range(1, 73):
            context = problem.round(t, streams).context
            choice = policy.ask(context=context, among=[t // 2 % 3])
            failed = problem.observe(choice, streams)[2]
            policy.cancel(choice)
            lost.setdefault((context["load"], choice.params["n"]), []).append(failed)
        often = {where: float(np.mean(flags)) for where, flags in lost.items()}
        assert often.pop((1.5, 6)) == 1.0
        assert 0.2 < often.pop((0.5, 4)) < 0.8
        assert len(often) == 4 and set(often.values()) == {0.0}
    gp = cb.GP.default(problem.actions)
    policy = cb.RPOL(
        problem.actions, reward=gp, costs={"usd": gp}, minimise=True, thresholds=limits,
        trials=2,
    )  # fmt: skip
    run = cb.simulate(policy, problem, 20, progress=False)
    assert set(run.frame()["failed"]) <= {True, False}
    with pytest.raises(cb.CBanditError, match="failed must be a column"):
        Contexts.from_frame(frame, ["load"], minimise="ms", limits=limits, failed=3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"failed": np.ones((40, 3))}, "failed must leave an action"),
        ({"failed": np.ones((4, 3))}, r"failed.*shape"),
        ({"rewards": np.zeros(4)}, r"rewards must have shape \(n, K\)"),
        ({"contexts": np.zeros((5, 2))}, r"n = 40, as rewards have; got \(5, 2\)"),
        ({"costs": np.zeros((40, 3))}, r"costs must have shape \(n, m, K\).*K = 3"),
        ({"contexts": np.full((40, 3), np.nan)}, "contexts"),
        ({"actions": cb.Finite([[0.0]])}, "a cb.Space with a cb.Context"),
        (
            {"actions": cb.Space(a=cb.Int(1, 2), z=cb.Context(3))},
            "K = 3 choices.*got 2 and 3",
        ),
    ],
)
def test_data_that_do_not_fit(change, words):
    z, rewards, costs = data()
    whole = {"contexts": z, "rewards": rewards, "costs": costs}
    with pytest.raises(cb.CBanditError, match=words):
        Contexts(**(whole | change))
