"""Tables of measurements: read from frames, and played from the command line."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from terminal import call, complaint

import cbandit as cb

LIMITS = {"latency": "<= 5", "accuracy": ">= 0.5"}


def frame():
    """Eight rows: one misses a value, two repeat a configuration."""
    return pd.DataFrame(
        {
            "threads": [1, 2, 4, 1, 2, 4, 4, 2],
            "codec": ["b", "b", "b", "a", "a", "a", "a", "a"],
            "speed": [1.0, 2.0, 9.0, 1.5, 2.5, 4.0, 5.0, 3.5],
            "latency": [1.0, 2.0, 9.0, 1.0, np.nan, 4.0, 6.0, 2.0],
            "accuracy": [0.9, 0.8, 0.9, 0.2, 0.7, 0.6, 0.8, 0.7],
        },
        index=pd.RangeIndex(2, 10, name="line"),
    )


def read(*given, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return cb.problems.Table.from_frame(*given, **named)


def params(problem):
    return problem.actions.names.params(problem.actions.points(torch.arange(6)))


class TestFromFrame:
    def test_rows_by_hand(self):
        with pytest.warns(UserWarning, match="rows") as said:
            problem = cb.problems.Table.from_frame(frame(), "speed", LIMITS)
        words = [str(each.message) for each in said]
        assert words == list(problem.remarks)
        assert words[0].startswith("1 of 8 rows miss a value and are left out: line 6")
        assert words[1].startswith("1 rows repeat a configuration")
        # all of 3 threads times 2 codecs is there: a grid
        assert isinstance(problem.actions, cb.ProductGrid)
        found = {
            (each["threads"], each["codec"]): (float(f), *g)
            for each, f, g in zip(
                params(problem), problem.f, problem.g.mT.tolist(), strict=True
            )
        }
        assert found[4, "a"] == pytest.approx((4.5, 5.0, 0.7))
        assert found[2, "a"] == (3.5, 2.0, 0.7)
        assert found[1, "a"] == (1.5, 1.0, 0.2)
        # (4, b) is too slow, (1, a) not accurate enough: (4, a) at its limit is best
        best = params(problem)[int(problem.best)]
        assert best == {"threads": 4, "codec": "a"}
        assert float(problem.optimum(1)) == 4.5

    def test_noise_is_pooled_from_repeats_told_or_drawn(self):
        # the one repeat: 4 and 5, 4 and 6, 0.6 and 0.8; one degree of freedom
        problem = read(frame(), "speed", LIMITS)
        assert problem._std.square().tolist() == pytest.approx([0.5, 2.0, 0.02])
        problem = read(frame(), "speed", LIMITS, noise=0.25)
        assert problem._std.tolist() == [0.5, 0.5, 0.5]
        own = {"speed": 4.0, "latency": 1.0, "accuracy": 0.01}
        problem = read(frame(), "speed", LIMITS, noise=own)
        assert problem._std.tolist() == pytest.approx([2.0, 1.0, 0.1])
        problem = read(frame(), "speed", LIMITS, noise="drawn")
        policy = cb.baselines.Random(
            problem.actions,
            costs=["latency", "accuracy"],
            thresholds=problem.thresholds,
        )
        run = cb.simulate(policy, problem, 200, progress=False)
        seen = run.frame().groupby(["threads", "codec"]).reward.agg(set).to_dict()
        assert seen[4, "a"] == {4.0, 5.0}
        assert seen[2, "b"] == {2.0}
        # rows are drawn whole: what was fast was late
        rows = run.frame()
        rows = rows[(rows.threads == 4) & (rows.codec == "a")]
        assert set(zip(rows.reward, rows.latency, strict=True)) == {(4, 4), (5, 6)}

    def test_to_be_small_and_not_all_combinations(self):
        rows = frame()[[True, True, True, True, False, False, False, True]]
        knobs = ["threads", "codec"]
        limits = {"speed": ">= 2"}
        problem = read(rows, minimise="latency", limits=limits, knobs=knobs)
        assert isinstance(problem.actions, cb.Finite)
        assert problem.minimise
        assert float(problem.optimum(1)) == 2.0
        gp = cb.GP.default(problem.actions)
        policy = cb.RPOL(
            problem.actions,
            reward=gp,
            costs={"speed": gp},
            thresholds=problem.thresholds,
            minimise=True,
            explore=cb.UCB(1.0),
        )
        run = cb.simulate(policy, problem, 12, progress=False)
        by_hand = (run.true_rewards - 2.0).cumsum(-1)
        torch.testing.assert_close(run.regret, by_hand)
        slow = run.frame().true_speed < 2
        assert int(run.rounds_in_violation[-1]) == int(slow.sum())

    def test_stochastic_optimum_is_the_programmes(self):
        knobs = ["threads", "codec"]
        limits = {"speed": ">= 3"}
        problem = read(frame(), minimise="latency", limits=limits, knobs=knobs)
        # by scipy: probabilities of least mean latency with mean speed at least 3
        from scipy.optimize import linprog

        f, g = problem.f.numpy(), problem.g[0].numpy()
        found = linprog(f, [-g], [-3.0], np.ones((1, len(f))), [1.0])
        value = float(problem.stochastic_optimum(1))
        assert value == pytest.approx(found.fun, abs=1e-9)

    def test_columns(self):
        rows = frame().assign(fixed=3, ratio=np.linspace(0, 1, 8), flag=True)
        problem = read(rows, "speed", LIMITS, knobs=["threads", "ratio", "fixed"])
        assert list(problem.actions.names.parameters) == ["threads", "ratio"]
        assert "never change are no knobs: fixed" in " ".join(problem.remarks)
        flags = frame().assign(flag=[True, False] * 4)
        problem = read(flags, "speed", LIMITS, knobs=["flag", "threads"])
        assert set(problem.actions.names.parameters["flag"].options) == {True, False}

    @pytest.mark.parametrize(
        ("named", "words"),
        [
            ({}, "needs maximise= or minimise="),
            ({"maximise": "speed", "minimise": "latency"}, "needs maximise= or"),
            ({"maximise": "sped"}, "no column 'sped'; it has"),
            ({"maximise": "codec"}, "'codec' must be a column of numbers; line 2 has"),
            ({"maximise": "speed", "limits": {}}, "limits must name at least one"),
            ({"maximise": "speed", "limits": {"latency": "< 5"}}, "'<= NUMBER' or"),
            ({"maximise": "speed", "limits": {"speed": "<= 5"}}, "must be different"),
            ({"maximise": "speed", "knobs": ["speed"]}, "cannot be a knob too"),
            ({"maximise": "speed", "knobs": []}, "at least one column; got none"),
            ({"maximise": "speed", "knobs": "codec"}, "knobs must be a list"),
            ({"maximise": "speed", "noise": "x"}, "noise must be a variance"),
            ({"maximise": "speed", "noise": -1.0}, "noise must"),
            ({"maximise": "speed", "noise": {"speed": 1.0}}, "noise must be"),
        ],
    )
    def test_what_cannot_be(self, named, words):
        named = {"limits": LIMITS, **named}
        with pytest.raises(cb.CBanditError, match=words):
            read(frame(), **named)

    def test_only_missing_rows(self):
        rows = frame().assign(latency=np.nan)
        with pytest.raises(cb.CBanditError, match="at least one row without missing"):
            read(rows, "speed", LIMITS)


def test_refits_of_kernels_over_numbers_and_categories_in_trials():
    """Each trial's hyperparameters are fitted as if it ran alone."""
    space = cb.Space(n=cb.Int(1, 5), codec=cb.Category("a", "b", "c"))
    points = cb.Finite(space.points(torch.arange(0, 15, 2)))
    points.names = space.names

    def played(trials):
        policy = cb.GPUCB(
            points, reward=cb.GP.default(points), explore=cb.UCB(1.0), trials=trials
        )
        for t in range(24):
            choice = policy.ask()
            x = choice.x
            policy.tell(choice, reward=x[:, 0].sqrt() + x[:, 1] * (t % 3))
        return policy.posterior().reward.mean

    both, last = played(range(3)), played(range(2, 3))
    torch.testing.assert_close(both[2:], last, rtol=1e-6, atol=1e-6)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A table of 60 measurements in a working directory."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(1)
    rows = [(t, m, c) for t in (1, 2, 4, 8) for m in (0.5, 1.0, 2.0) for c in "xyz"]
    rows = (rows * 2)[:60]
    made = pd.DataFrame(rows, columns=["threads", "memory", "codec"])
    noise = generator.normal(0, 0.1, (60, 3))
    made["speed"] = made.threads**0.5 * made.memory + noise[:, 0]
    made["latency"] = 1 + made.threads / made.memory + noise[:, 1]
    made["accuracy"] = 1 - 0.02 * made.threads + 0.01 * noise[:, 2]
    made.loc[7, "latency"] = np.nan
    made.to_csv("data.csv", index=False)
    return made


INIT = ["--maximise", "speed", "--limit", "latency <= 6", "--limit", "accuracy >= 0.9"]


class TestCommands:
    def test_three_commands(self, capsys, data):
        code, text, _ = call(capsys, "init", "data.csv", *INIT)
        assert (code, text) == (
            0,
            "study.toml: check it, then: cbandit run study.toml\n",
        )
        kept = tomllib.loads(Path("study.toml").read_text())
        assert kept["problem"]["knobs"] == ["threads", "memory", "codec"]
        assert kept["problem"]["limits"] == {"latency": "<= 6", "accuracy": ">= 0.9"}
        assert len(kept["policies"]) == 5
        few = ["--trials", 2, "--horizon", 4]
        code, text, err = call(capsys, "run", "study.toml", *few)
        assert (code, err) == (0, "")
        assert "1 of 60 rows miss a value and are left out: line 9" in text
        rows = pd.read_parquet("results/study/rounds.parquet")
        assert len(rows) == 5 * 2 * 4
        assert {"threads", "memory", "codec", "latency", "true_accuracy"} <= set(rows)
        code, text, _ = call(
            capsys, "compare", "results/study", "--figure", "compared.png"
        )
        assert code == 0
        assert "Random - CKB" in text
        assert Path("compared.png").exists()

        # the table is looked up beside its file too, and must be the same
        Path("below").mkdir()
        Path("data.csv").rename("below/data.csv")
        again = ["run", "results/study/config.toml", "--out", "again"]
        assert "data.csv is not in" in complaint(capsys, *again)
        Path("below/data.csv").rename("data.csv")
        assert call(capsys, *again)[0] == 0
        assert pd.read_parquet("again/rounds.parquet").equals(rows)
        data.assign(speed=1.0).to_csv("data.csv", index=False)
        line = complaint(capsys, *again)
        assert "sha256" in line
        assert "is not the table that this file was written for" in line

    def test_what_init_guesses(self, capsys, data):
        assert call(capsys, "init", "data.csv", "--out", "s.toml")[0] == 0
        kept = tomllib.loads(Path("s.toml").read_text())["problem"]
        assert kept["maximise"] == "speed"
        assert set(kept["limits"]) == {"latency", "accuracy"}
        assert "# a guess: its median" in Path("s.toml").read_text()
        line = complaint(capsys, "init", "data.csv", "--out", "s.toml")
        assert "s.toml is there already" in line

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (["--maximise", "sped"], "there is no column sped; there are threads"),
            (["--maximise", "codec"], "codec holds texts"),
            (["--limit", "latency < 3"], "--limit takes 'COLUMN <= NUMBER' or >="),
            (["--limit", "latency <= x"], "x is not a number"),
            (["--maximise", "speed", "--minimise", "latency"], "give one of them"),
        ],
    )
    def test_what_init_refuses(self, capsys, data, given, words):
        line = complaint(capsys, "init", "data.csv", *given)
        assert words in line
        assert not Path("study.toml").exists()

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ('"speed"', '"sped"', "[problem]: frame has no column 'sped'"),
            ('"<= 6"', '"< 6"', "[problem]: thresholds['latency'] must be a number"),
            ('"data.csv"', '"no.csv"', "[problem] table: no.csv is not in"),
            ("maximise", "maximize", "[problem] maximize: a table takes no such key"),
        ],
    )
    def test_errors_point_at_the_problem(self, capsys, data, old, new, words):
        assert call(capsys, "init", "data.csv", *INIT)[0] == 0
        text = Path("study.toml").read_text()
        assert old in text
        Path("study.toml").write_text(text.replace(old, new))
        line = complaint(capsys, "run", "study.toml")
        assert words in line, line
        assert "study.toml" in line
        assert not Path("results").exists()
