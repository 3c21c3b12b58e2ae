"""Tables of measurements: read from frames, and played from the command line."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from terminal import call, complaint

import cbandit as cb


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
        assert "rows that miss a value and are left out: 1, at line 9" in text
        rows = pd.read_parquet("results/study/rounds.parquet")
        assert len(rows) == 5 * 2 * 4
        assert {"threads", "memory", "codec", "latency", "true_accuracy"} <= set(rows)
        code, text, _ = call(
            capsys, "compare", "results/study", "--figure", "compared.png"
        )
        assert code == 0
        assert "Random - CKB" in text
        assert Path("compared.png").exists()
        assert Path("results/study/costs.png").exists()
        means = pd.read_parquet("results/study/means.parquet")
        average = rows[rows.policy == "CKB"].groupby("trial").true_latency.mean().mean()
        told = means[(means.policy == "CKB") & (means.metric == "cost latency")]
        assert told["mean"].iloc[-1] / 4 == pytest.approx(average)
        told = means[(means.policy == "CKB") & (means.metric == "limit accuracy")]
        assert (told["mean"] / told.t).tolist() == pytest.approx([0.9] * 4)

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

    def test_a_study_with_contexts(self, capsys, data):
        shown = ["--context", "threads", "--context", "memory"]
        assert call(capsys, "init", "data.csv", *INIT, *shown)[0] == 0
        text = Path("study.toml").read_text()
        kept = tomllib.loads(text)
        assert kept["problem"]["knobs"] == ["codec"]
        assert kept["problem"]["contexts"] == ["threads", "memory"]
        assert "LogCEI" not in kept["policies"]
        text = text.replace('knobs = ["codec"]', 'knobs = ["codec"]  # alone')
        Path("study.toml").write_text(text.split("[policies.RPOL]")[0])
        few = ["--trials", 2, "--horizon", 4]
        code, _, err = call(capsys, "run", "study.toml", *few)
        assert (code, err) == (0, "")
        rows = pd.read_parquet("results/study/rounds.parquet")
        assert len(rows) == 2 * 4
        # a row for each round, with its context, and what was measured there
        for _, row in rows.iterrows():
            same = data[
                (data.threads == row.threads)
                & ((data.memory - row.memory).abs() < 1e-9)
                & (data.codec == row.codec)
            ]
            assert row.reward == pytest.approx(same.speed.mean(), abs=1e-9)
        line = complaint(
            capsys, "init", "data.csv", "--context", "day", "--out", "other.toml"
        )
        assert "there is no column day; there are threads" in line

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
            ('"speed"', '"sped"', "[problem]: frame must have one column 'sped'"),
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

    def test_init_asks_for_a_limit_that_it_cannot_guess(self, capsys, data):
        few = data[["threads", "codec", "speed"]]
        few.to_csv("few.csv", index=False)
        code, text, _ = call(capsys, "init", "few.csv", "--maximise", "speed")
        assert code == 0
        said = "study.toml: fill in [problem.limits], then: cbandit run study.toml\n"
        assert text == said
        text = Path("study.toml").read_text()
        assert "problem" in tomllib.loads(text)  # all of it is TOML
        assert '# [problem.limits]\n# COLUMN = "<= NUMBER"' in text
        line = complaint(capsys, "run", "study.toml")
        assert "study.toml: [problem] limits are missing" in line
        assert (
            "[problem.limits] with a line a column, such as latency = '<= 20'" in line
        )
        assert "not one of the knobs threads, codec" in line
        # filled in as it says
        filled = text.replace("# [problem.limits]", "[problem.limits]")
        filled = filled.replace('# COLUMN = "<= NUMBER"', 'threads = "<= 4"')
        filled = filled.replace('knobs = ["threads", "codec"]', 'knobs = ["codec"]')
        Path("study.toml").write_text(filled)
        few_rounds = ["--trials", 1, "--horizon", 2, "--policies", "Random"]
        assert call(capsys, "run", "study.toml", *few_rounds)[0] == 0

    @pytest.mark.parametrize("rows", [12, 5])
    @pytest.mark.parametrize(
        ("given", "limits"),
        [
            ([], {"latency"}),
            (["--limit", "latency <= 9"], {"latency"}),
            (["--maximise", "throughput"], set()),
            (["--maximise", "throughput", "--limit", "latency <= 9"], {"latency"}),
            (["--minimise", "latency", "--limit", "throughput >= 1"], {"throughput"}),
        ],
    )
    def test_init_of_few_rows(self, capsys, tmp_path, monkeypatch, rows, given, limits):
        monkeypatch.chdir(tmp_path)
        generator = np.random.default_rng(rows)
        few = pd.DataFrame({"threads": [1, 2, 4, 8] * 3, "mem": [0.5, 1.0, 2.0] * 4})
        few["throughput"] = generator.uniform(1, 9, 12).round(4)
        few["latency"] = generator.uniform(1, 9, 12).round(4)
        few["heat"] = generator.uniform(1, 9, 12).round(4)
        few = few[:rows]
        few.to_csv("few.csv", index=False)
        assert call(capsys, "init", "few.csv", *given)[0] == 0
        text = Path("study.toml").read_text()
        kept = tomllib.loads(text)["problem"]
        assert kept["knobs"] == ["threads", "mem"]
        goal = "latency" if "--minimise" in given else "throughput"
        assert kept.get("maximise", kept.get("minimise")) == goal
        guessed = not {"--maximise", "--minimise"} & {*given}
        assert ("# a guess, from few rows" in text) == guessed
        if not given:
            limits = limits | {"heat"}
        assert set(kept.get("limits", {})) == limits
        median = few.heat.median()
        offered = f'# heat = "<= {median:.4g}"' in text
        assert offered == bool(given)
        if not limits:  # taken out as it says
            assert "take out these marks:\n# [problem.limits]\n# latency =" in text
            text = text.replace("# [problem.limits]", "[problem.limits]")
            text = text.replace("# latency =", "latency =")
            Path("study.toml").write_text(text)
        short = ["--trials", 1, "--horizon", 2, "--policies", "Random"]
        assert call(capsys, "run", "study.toml", *short)[0] == 0

    @pytest.mark.parametrize(
        ("columns", "goal", "limits"),
        [
            ({"a": [1, 2, 3], "b": [4, 5, 4]}, "b", set()),
            ({"a": list("xyz"), "b": [4, 5, 4]}, "b", set()),
            # all are fractions
            (
                {k: [0.1, 0.6 + j, 9.5] for j, k in enumerate("abcd")},
                "c",
                {"d"},
            ),
        ],
    )
    def test_init_guesses_the_last_numbers(
        self, capsys, tmp_path, monkeypatch, columns, goal, limits
    ):
        monkeypatch.chdir(tmp_path)
        pd.DataFrame(columns).to_csv("few.csv", index=False)
        assert call(capsys, "init", "few.csv")[0] == 0
        text = Path("study.toml").read_text()
        assert f'maximise = "{goal}"  # a guess, from few rows; or minimise' in text
        kept = tomllib.loads(text)["problem"]
        assert set(kept.get("limits", {})) == limits
        assert kept["knobs"] == [k for k in columns if k not in {goal, *limits}]

    def test_init_of_texts_alone(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        pd.DataFrame({"a": list("xyz"), "b": list("uvw")}).to_csv("t.csv", index=False)
        line = complaint(capsys, "init", "t.csv")
        assert "t.csv has no column of numbers, beside others as knobs, that" in line

    def test_init_states_its_rule_and_leaves_row_numbers_out(self, capsys, data):
        data.assign(run=range(60), day=[f"2026-{k:03}" for k in range(60)]).to_csv(
            "more.csv", index=False
        )
        assert call(capsys, "init", "more.csv", *INIT)[0] == 0
        text = Path("study.toml").read_text()
        assert tomllib.loads(text)["problem"]["knobs"] == ["threads", "memory", "codec"]
        for name in ("run", "day"):
            assert f"# {name}: left out, another value in every row\n" in text
        rule = "numbers, more than 20 different ones and more than a quarter as many"
        assert rule in text
        _, shown, _ = call(capsys, "init", "--help")
        shown = " ".join(shown.split())
        assert "more than 20 different ones and more than a quarter as many as" in shown

    def test_what_a_study_says_of_its_table(self, capsys, data):
        data.assign(run=range(60)).to_csv("data.csv", index=False)
        assert call(capsys, "init", "data.csv", *INIT)[0] == 0
        text = Path("study.toml").read_text()
        text = text.replace('"codec"]', '"codec", "run"]').replace(">= 0.9", ">= 2")
        text = text.replace("knobs =", "# knobs =")
        Path("study.toml").write_text(text)
        few = ["--trials", 1, "--horizon", 2, "--policies", "Random,CKB"]
        code, text, err = call(capsys, "run", "study.toml", *few)
        assert (code, err) == (0, "")
        # each once, however often the table was read
        assert text.count("'run': another value in each of the 59 rows") == 1
        assert text.count("none of the 59 actions keeps all limits") == 1
        assert "accuracy 0" in text
        assert text.count("left out: 1, at line 9") == 1
        assert "Random: played, " in text
        assert "CKB: played, 2 of 2 policies, " in text


OWN = """
[policies.mine]
type = "{mine}:Greedy"
"""


class TestWhatItPrints:
    """Every line that a user sees of these mistakes, whole."""

    @pytest.fixture
    def ready(self, capsys, data):
        assert call(capsys, "init", "data.csv", *INIT)[0] == 0
        return data

    def changed(self, capsys, old, new):
        text = Path("study.toml").read_text()
        assert old in text
        Path("study.toml").write_text(text.replace(old, new, 1))
        return complaint(capsys, "run", "study.toml")

    @pytest.mark.parametrize(
        ("old", "new", "line"),
        [
            (
                'type = "RPOL"',
                'type = "RPLO"',
                "[policies.RPOL] type: 'RPLO' is no public name of cbandit, and not of "
                "the form module:object; did you mean RPOL?",
            ),
            (
                '"speed"',
                '"sped"',
                "[problem]: frame must have one column 'sped'; it has none among "
                "threads, memory, codec, speed, latency, accuracy; did you mean "
                "'speed'?",
            ),
            (
                'latency = "<= 6"',
                "latency = true",
                "[problem]: thresholds['latency'] must be a number, '<= NUMBER' or '>= "
                "NUMBER'; got True",
            ),
            (
                'latency = "<= 6"',
                'codec = "<= 6"',
                "[problem]: 'codec' must be one of a knob, the target or a limit; it "
                "is several",
            ),
        ],
    )
    def test_names_columns_and_types(self, capsys, ready, old, new, line):
        assert self.changed(capsys, old, new) == f"Error: study.toml: {line}\n"

    def test_texts_among_numbers(self, capsys, ready):
        frame = ready.astype({"speed": object})
        frame.loc[3, "speed"] = "fast"
        frame.to_csv("data.csv", index=False)
        assert complaint(capsys, "run", "study.toml") == (
            "Error: study.toml: [problem]: column 'speed' must hold numbers; got "
            "'fast' in line 5\n"
        )

    def test_missing_cells(self, capsys, ready):
        ready.assign(latency=np.nan).to_csv("data.csv", index=False)
        assert complaint(capsys, "run", "study.toml") == (
            "Error: study.toml: [problem]: frame must have a row without missing "
            "cells; it has none\n"
        )

    def test_a_foreign_folder(self, capsys, ready, monkeypatch):
        Path("theirs.py").write_text(
            "import cbandit as cb\n\nclass Greedy(cb.baselines.Random):\n    pass\n"
        )
        monkeypatch.syspath_prepend(".")
        with Path("study.toml").open("a") as file:
            file.write(OWN.format(mine="theirs"))
        few = ["--trials", 1, "--horizon", 2, "--policies", "mine"]
        assert call(capsys, "run", "study.toml", *few)[0] == 0
        sys.modules.pop("theirs")
        assert complaint(capsys, "run", "results/study/config.toml", "--out", "x") == (
            "Error: results/study/config.toml: [policies.mine] type: 'theirs:Greedy' "
            "names the module theirs, whose code would run: add --trust theirs if it "
            "is yours\n"
        )
        assert "theirs" not in sys.modules
        again = ["run", "results/study/config.toml", "--out", "x", "--trust", "theirs"]
        assert call(capsys, *again)[0] == 0
        sys.modules.pop("theirs")

    def test_a_folder_that_is_not_finished(self, capsys, ready):
        Path("cut/checkpoints").mkdir(parents=True)
        few = ["--trials", 1, "--horizon", 2, "--policies", "Random"]
        assert call(capsys, "run", "study.toml", *few)[0] == 0
        Path("results/study/config.toml").rename("cut/config.toml")
        assert complaint(capsys, "compare", "cut") == (
            "Error: cut holds no results: cut/summary.json is missing; its experiment "
            "is under way or was interrupted: the same command with --resume goes on "
            "with it\n"
        )
