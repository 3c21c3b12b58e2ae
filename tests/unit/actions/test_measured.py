"""Tables of measurements as problems: knobs, limits, repeats, gaps."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from inside import Streams

import cbandit as cb

FRAME = pd.DataFrame(
    {
        "threads": [1, 2, 4, 4, 8, 8, 2],
        "codec": ["lz4", "zstd", "lz4", "lz4", None, "zstd", "zstd"],
        "ratio": [0.5, 0.25, 0.5, 0.5, 0.5, 0.75, 0.25],
        "note": ["a", "b", "c", "d", "e", "f", "g"],
        "speed": [1.0, 2.0, 3.0, 5.0, 9.0, 8.0, 2.5],
        "latency": [5.0, 9.0, 21.0, 19.0, 3.0, np.nan, 11.0],
        "accuracy": [0.95, 0.92, 0.91, 0.91, 0.99, 0.8, 0.92],
    },
    index=[f"r{i}" for i in range(7)],
)
LIMITS = {"latency": "<= 20", "accuracy": ">= 0.92"}
KNOBS = ["threads", "codec", "ratio"]


def table(frame=FRAME, **own):
    given = {"limits": LIMITS, "knobs": KNOBS} | own
    if not {"maximise", "minimise"} & own.keys():
        given["maximise"] = "speed"
    with pytest.warns(UserWarning, match="rows have missing cells"):
        return cb.problems.Table.from_frame(frame, **given)


def test_a_frame_becomes_configurations_with_names():
    problem = table()
    params = problem.actions.names.params(problem.actions.all)
    assert params == [
        {"threads": 1, "codec": "lz4", "ratio": 0.5},
        {"threads": 2, "codec": "zstd", "ratio": 0.25},
        {"threads": 4, "codec": "lz4", "ratio": 0.5},
    ]
    assert problem.actions.names.parameters == {
        "threads": cb.Int(1, 4),
        "codec": cb.Category("lz4", "zstd"),
        "ratio": cb.Float(0.25, 0.5),
    }
    # rows as they are stated, repeats merged
    rows = problem.evaluate(torch.tensor([1]), torch.arange(3), problem.actions.all)
    assert rows.reward.tolist() == [1.0, 2.25, 4.0]
    assert rows.costs.tolist() == [[5.0, 0.95], [10.0, 0.92], [20.0, 0.91]]
    # the third is too inaccurate, and both limits count
    assert float(problem.optimum(1)) == 2.25
    assert int(problem.best) == 1
    assert problem.repeats == 2


def test_missing_cells_are_counted_and_named():
    with pytest.warns(
        UserWarning, match=r"2 of 7 rows .* left out: r4 \(codec\), r5 \(latency\)"
    ):
        problem = cb.problems.Table.from_frame(
            FRAME, maximise="speed", limits=LIMITS, knobs=KNOBS
        )
    assert problem.dropped == ("r4", "r5")
    # a gap in a column that is not used is none
    whole = FRAME.drop(index=["r4", "r5"]).assign(note=None)
    again = cb.problems.Table.from_frame(whole, "speed", LIMITS, KNOBS)
    assert again.dropped == ()


def test_repeats_show_the_noise():
    problem = table()
    # (2, 2.5) and (3, 5): squares 0.125 and 2 about the means, two of four are free
    assert problem._std.square()[0] == pytest.approx((0.125 + 2.0) / 2)
    assert problem._std.square()[1] == pytest.approx((2.0 + 2.0) / 2)
    assert problem._std[2] == 0.0
    told = table(noise={"speed": 0.04, "latency": 1.0, "accuracy": 0.0})
    assert told._std.tolist() == pytest.approx([0.2, 1.0, 0.0])
    assert table(noise=0.25)._std.tolist() == [0.5] * 3
    single = FRAME.iloc[[0, 1, 2]]
    exact = cb.problems.Table.from_frame(single, "speed", LIMITS, KNOBS)
    assert exact._std.tolist() == [0.0] * 3


def test_repeats_may_be_drawn_again():
    problem = table(repeats="draw")
    index = torch.full((400,), 2)
    streams = torch.Generator().manual_seed(1)
    seen = set()
    for _ in range(60):
        choice = cb.Choice(1, index[0], problem.actions.points(2), index[0] < 0)
        reward, costs = problem.observe(choice, streams)
        seen.add((float(reward), *costs.tolist()))
    # what was measured, reward and costs together
    assert seen == {(3.0, 21.0, 0.91), (5.0, 19.0, 0.91)}


def test_rows_may_be_resampled_by_trial():
    problem = table(repeats="resample", trials=400, seed=3)
    plain = table()
    f, g = problem.f, problem.g
    # of speed and latency: one row, or both rows, or one of them twice
    worlds = [
        {(1.0, 5.0): 1.0},
        {(2.0, 9.0): 0.25, (2.25, 10.0): 0.5, (2.5, 11.0): 0.25},
        {(3.0, 21.0): 0.25, (4.0, 20.0): 0.5, (5.0, 19.0): 0.25},
    ]
    for j, world in enumerate(worlds):
        pairs = list(zip(f[:, j].tolist(), g[:, 0, j].tolist(), strict=True))
        assert set(pairs) == set(world)
        for pair, share in world.items():  # 6 deviations of 400 draws
            assert abs(pairs.count(pair) / 400 - share) <= 6 * 0.5 / 20
    assert (problem._std == plain._std).all()
    # the same for a trial in any batch, other ones under another seed
    assert torch.equal(table(repeats="resample", trials=range(7, 9), seed=3).f, f[7:9])
    assert not torch.equal(table(repeats="resample", trials=400, seed=4).f, f)
    assert table(repeats="resample").f.shape == plain.f.shape
    with pytest.raises(cb.CBanditError, match="trials= goes with repeats='resample'"):
        cb.problems.Table.from_frame(FRAME, "speed", LIMITS, KNOBS, trials=3)
    single = FRAME.iloc[[0, 1, 2]]
    with pytest.raises(cb.CBanditError, match="none has several here"):
        cb.problems.Table.from_frame(
            single, "speed", LIMITS, KNOBS, repeats="resample", trials=2
        )


@pytest.mark.parametrize("trials", [None, 2])
def test_policies_of_a_frame_speak_in_its_words(trials):
    problem = table(minimise="latency", limits={"accuracy": ">= 0.92"})
    gp = cb.GP.default(problem.actions)
    policy = cb.RPOL(
        problem.actions,
        reward=gp,
        costs={name: gp for name in problem.objective.names},
        thresholds=problem.thresholds,
        minimise=problem.minimise,
        explore=cb.UCB(2.0),
        trials=trials,
    )
    run = cb.simulate(policy, problem, 12, progress=False)
    assert float(problem.optimum(1)) == 5.0
    assert (run.regret[..., -1] >= 0).all()
    frame = run.frame()
    for name in ("threads", "codec", "ratio", "accuracy", "true_accuracy"):
        assert name in frame
    assert set(frame["codec"]) <= {"lz4", "zstd"}
    assert (frame["true_reward"] > 0).all()
    assert set(policy.history()["codec"]) <= {"lz4", "zstd"}
    # r0 is best: 5 ms at 0.95
    found = policy.recommend(0.6)
    best = found.params if trials is None else found.params[0]
    assert best["threads"] in (1, 2)


def test_the_turned_account_is_that_of_a_plain_table():
    problem = table(minimise="latency", limits={"accuracy": ">= 0.92", "speed": 4})
    plain = cb.problems.Table(
        [-5.0, -10.0, -20.0],
        [[-0.95, -0.92, -0.91], [1.0, 2.25, 4.0]],
        thresholds=[-0.92, 4.0],
    )
    assert float(problem.optimum(1)) == -float(plain.optimum(1))
    one, other = problem.stochastic_optimum(1), plain.stochastic_optimum(1)
    assert float(one) == pytest.approx(-float(other))
    spent = problem.optimal_costs() * torch.tensor([-1.0, 1.0])
    torch.testing.assert_close(spent, plain.optimal_costs())


def test_knobs_may_be_told():
    problem = table(
        knobs={
            "threads": cb.Int(1, 64, log=True),
            "codec": cb.Category("zstd", "lz4", "gzip"),
        }
    )
    names = problem.actions.names
    assert names.parameters["threads"] == cb.Int(1, 64, log=True)
    assert names.params(problem.actions.all)[0] == {"threads": 1, "codec": "lz4"}
    assert cb.GP.default(problem.actions).unit.logs.tolist() == [True, False]


def test_all_other_columns_are_knobs():
    frame = FRAME.drop(columns=["note"]).dropna().assign(gpu=[True, False] * 2 + [True])
    problem = cb.problems.Table.from_frame(frame, "speed", LIMITS)
    assert list(problem.actions.names.parameters) == [*KNOBS, "gpu"]
    assert problem.actions.names.params(problem.actions.all)[0]["gpu"] is True


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            {"maximise": "pace"},
            "must have one column 'pace'; it has none among threads",
        ),
        ({"limits": {"delay": "<= 3"}}, "one column 'delay'"),
        ({"limits": {"latency": "< 3"}}, r"thresholds\['latency'\] must be a number"),
        ({"limits": {}}, "limits must name at least one column"),
        ({"limits": {"speed": 3}}, "'speed' must be one of a knob, the target or a"),
        ({"knobs": ["speed"]}, "'speed' must be one of a knob"),
        ({"knobs": "threads"}, "knobs must list the names of columns"),
        ({"knobs": [["threads"]]}, "knobs must list the names of columns"),
        ({"knobs": []}, "knobs must hold at least one column"),
        ({"knobs": {"threads": 3}}, "knobs: threads must be a cb.Int"),
        ({"knobs": {"threads": cb.Int(1, 2)}}, r"must be of Int\(1, 2\); row r2 has 4"),
        ({"maximise": "note"}, "column 'note' must hold numbers; got 'a' in row r0"),
        ({"minimise": "latency"}, "takes maximise= or minimise=; got both"),
        ({"noise": {"speed": 1.0}}, "noise must name each of speed, latency, accuracy"),
        ({"noise": -1.0}, "noise must not be negative"),
        ({"repeats": "all"}, "repeats must be 'mean', 'draw' or 'resample'"),
        ({"repeats": "draw", "noise": 1.0}, "noise= goes with repeats='mean'"),
        ({"frame": {"speed": [1.0]}}, "frame must be a pandas frame; got dict"),
        (
            {"frame": FRAME.assign(speed=np.inf)},
            "'speed' must be finite; row r0 has inf",
        ),
        ({"frame": FRAME.assign(latency=None)}, "a row without missing cells"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*rows have missing cells")
def test_frames_that_say_nothing(own, words):
    given = {"frame": FRAME, "maximise": "speed", "limits": LIMITS, "knobs": KNOBS}
    with pytest.raises(cb.CBanditError, match=words):
        cb.problems.Table.from_frame(**(given | own))


def runs(rows=40):
    k = np.arange(rows)
    return pd.DataFrame(
        {
            "run": [f"run-{i}" for i in k],
            "number": k,
            "threads": k % 8 + 1,
            "speed": 1.0 * k,
            "latency": 0.5 * k,
        }
    )


def test_columns_that_number_the_rows_are_named():
    goal = {"maximise": "speed", "limits": {"latency": 15}}
    with pytest.warns(UserWarning, match="'run', 'number': another value in each") as w:
        cb.problems.Table.from_frame(runs(), **goal)
    assert "knobs=['threads']" in str(w[0].message)
    assert w[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = cb.problems.Table.from_frame(runs(), **goal, knobs=["number", "threads"])
        one = runs()[["threads", "speed", "latency"]]
        cb.problems.Table.from_frame(one, **goal)  # settings that come again
        few = runs(8).drop(columns="run")
        cb.problems.Table.from_frame(few, **goal)  # and few rows say nothing
    assert told.actions.size == 40


def test_dates_are_no_knobs():
    frame = runs().assign(day=pd.date_range("2026-01-01", periods=40))
    goal = {"maximise": "speed", "limits": {"latency": 15}}
    with pytest.raises(cb.CBanditError, match="'day' holds dates or times") as error:
        cb.problems.Table.from_frame(frame.drop(columns=["run", "number"]), **goal)
    assert "knobs= names those that count" in str(error.value)
    with pytest.raises(cb.CBanditError, match="'day' holds dates"):
        cb.problems.Table.from_frame(frame, maximise="day", limits={"latency": 15})


def test_limits_that_no_row_keeps():
    limits = {"latency": "<= -1", "speed": ">= 3"}
    frame = runs().assign(gain=1.0)[["threads", "gain", "latency", "speed"]]
    said = "none of the 8 actions keeps all limits.*latency 0, speed 8"
    with pytest.warns(UserWarning, match=said):
        cb.problems.Table.from_frame(frame, maximise="gain", limits=limits)


def test_two_limits_on_one_column_are_two_columns():
    frame = runs()[["threads", "speed", "latency"]].assign(least=lambda f: f.latency)
    limits = {"latency": "<= 10", "least": ">= 9"}
    problem = cb.problems.Table.from_frame(frame, maximise="speed", limits=limits)
    # threads = 1 + k % 8 with latencies 0.5 (k + 16) on average
    kept = [k + 1 for k in range(8) if 9 <= 0.5 * (k + 16) <= 10]
    assert problem.actions.names.params(problem.actions.points(problem.best)) == {
        "threads": kept[-1]
    }


# -- rows that failed, and outcomes of yes and no --------------------------------------

SERVICE = pd.DataFrame(
    {
        "threads": [1, 2, 4, 4, 8, 8, 16],
        "speed": [1.0, 2.0, 3.0, np.nan, np.nan, np.nan, 6.0],
        "latency": [5.0, 9.0, 12.0, np.nan, np.nan, np.nan, 30.0],
        "crashed": ["no", "no", "no", "yes", "yes", "Yes", None],
        "slow": [False, False, True, None, None, None, True],
    }
)


@pytest.mark.parametrize("failed", ["crashed", True])
@pytest.mark.parametrize("trials", [None, 3])
def test_rows_may_have_failed(failed, trials):
    """4 threads fail every other time and 8 always, which is as bad as the worst."""
    frame = SERVICE.drop(
        columns=["slow"] if failed == "crashed" else ["slow", "crashed"]
    )
    problem = cb.problems.Table.from_frame(
        frame, maximise="speed", limits={"latency": "<= 20"}, failed=failed
    )
    threads = problem.actions.points(torch.arange(5)).flatten()
    assert threads.tolist() == [1, 2, 4, 8, 16]
    assert problem.dropped == ()
    rows = problem.evaluate(torch.tensor([1]), torch.arange(5), problem.actions.all)
    assert rows.reward.tolist() == [1.0, 2.0, 3.0, 1.0, 6.0]
    assert rows.costs.flatten().tolist() == [5.0, 9.0, 12.0, 30.0, 30.0]
    assert float(problem.optimum(1)) == 3.0
    policy = cb.baselines.Random(
        problem.actions, thresholds=problem.thresholds, costs=["latency"], trials=trials
    )
    run = cb.simulate(policy, problem, 60)
    played = run.actions.reshape(-1)
    lost = run.failed.reshape(-1)
    assert not bool(lost[(played != 4) & (played != 8)].any())
    # what failed is not asked for again by a policy that does not learn from it
    assert int(lost.sum()) >= 1
    assert bool(run.rewards.reshape(-1)[lost].isnan().all())


def test_a_share_of_the_readings_fails():
    """Within five deviations of one half, of 4000 readings in 2000 trials."""
    problem = cb.problems.Table([0.0, 1.0], [[0.0, 0.0]], failed=[0.5, 0.0], noise=1.0)
    policy = cb.baselines.Random(problem.actions, costs=1, trials=2000)
    streams = Streams(0, range(2000), "noise")
    for index, share in ((0, 0.5), (1, 0.0)):
        choice = policy.ask(among=[index])
        lost = problem.observe(choice, streams)[2]
        assert float(lost.double().mean()) == pytest.approx(
            share, abs=0.056 * (share > 0)
        )


def test_yes_and_no_are_probabilities():
    frame = SERVICE.drop(columns="crashed").dropna()
    twice = pd.concat([frame, frame.assign(slow=[False, False, False, True])])
    limits = {"slow": "<= 0.3", "latency": "<= 20"}
    problem = cb.problems.Table.from_frame(twice, maximise="speed", limits=limits)
    assert problem.outcomes == (None, "binary", None)
    x = problem.actions.all
    rows = problem.evaluate(torch.tensor([1]), torch.arange(4), x)
    assert rows.costs[:, 0].tolist() == [0.0, 0.0, 0.5, 1.0]
    gp = cb.GP.default(problem.actions)
    policy = cb.CKB(
        problem.actions,
        reward=gp,
        costs={"slow": cb.GP.default(problem.actions, outcome="binary"), "latency": gp},
        thresholds=problem.thresholds,
    )
    run = cb.simulate(policy, problem, 25)
    assert set(run.costs[:, 0].tolist()) <= {0.0, 1.0}
    # drawn from the rows, they are what the rows held
    drawn = cb.problems.Table.from_frame(
        twice, maximise="speed", limits=limits, repeats="draw"
    )
    policy = cb.baselines.Random(drawn.actions, costs=limits, thresholds=limits)
    assert set(cb.simulate(policy, drawn, 9).costs[:, 0].tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("limit", ["<= 0", "<= 1", ">= 2"])
def test_a_limit_that_is_no_probability_keeps_numbers(limit):
    frame = SERVICE.drop(columns="crashed").dropna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = cb.problems.Table.from_frame(
            frame, maximise="speed", limits={"slow": limit}
        )
    assert problem.outcomes == (None, None)


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        ("speed", "must hold true and false, yes and no or 1 and 0; row 1 has 2.0"),
        ("broken", "one column 'broken'"),
        ("threads", "must hold true and false"),
        (3, "failed must be a column"),
    ],
)
def test_a_column_that_says_nothing_of_failures(failed, words):
    frame = SERVICE.drop(columns="slow")
    with pytest.raises(cb.CBanditError, match=words):
        cb.problems.Table.from_frame(
            frame, maximise="latency", limits={"crashed": "<= 0.5"}, failed=failed
        )


def test_not_all_rows_may_have_failed():
    frame = SERVICE.iloc[3:6].drop(columns="slow")
    with pytest.raises(cb.CBanditError, match="that did not fail"):
        cb.problems.Table.from_frame(
            frame, maximise="speed", limits={"latency": "<= 20"}, failed="crashed"
        )


@pytest.mark.parametrize(
    "failed", [[1.0, 1.0], [0.5, 1.5], [0.5] * 3, [float("nan"), 0.0]]
)
def test_shares_that_are_none(failed):
    with pytest.raises(cb.CBanditError, match="failed"):
        cb.problems.Table([0.0, 1.0], [[0.0, 0.0]], failed=failed)
