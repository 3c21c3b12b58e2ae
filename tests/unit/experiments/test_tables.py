"""Tables of measurements: read from frames, and played from the command line."""

from __future__ import annotations

import csv
import itertools
import sys
import tomllib
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from inside import doubts, draw_panels
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
            "study.toml: check it, then: cbandit run study.toml; "
            "cbandit compare results/study\n",
        )
        kept = tomllib.loads(Path("study.toml").read_text())
        assert kept["problem"]["knobs"] == ["threads", "memory", "codec"]
        assert kept["problem"]["limits"] == {"latency": "<= 6", "accuracy": ">= 0.9"}
        assert len(kept["policies"]) == 5
        few = ["--trials", 2, "--horizon", 4]
        code, text, err = call(capsys, "run", "study.toml", *few, figures=True)
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

    def test_rows_that_failed(self, capsys, data):
        crashed = ["no", "yes"] * (len(data) // 2) + ["no"] * (len(data) % 2)
        table = data.assign(crashed=crashed)
        table.loc[table.crashed == "yes", ["latency", "accuracy"]] = None
        table.to_csv("data.csv", index=False)
        failed = ["--failed", "crashed"]
        assert call(capsys, "init", "data.csv", *INIT, *failed)[0] == 0
        problem = tomllib.loads(Path("study.toml").read_text())["problem"]
        assert problem["failed"] == "crashed"
        assert problem["knobs"] == ["threads", "memory", "codec"]
        few = ["--trials", 2, "--horizon", 4]
        assert call(capsys, "run", "study.toml", *few)[0] == 0
        rows = pd.read_parquet("results/study/rounds.parquet")
        assert rows.failed.any()
        # with contexts a choice fails in each as often as its rows there
        other = ["--context", "threads", "--context", "memory", "--out", "c.toml"]
        assert call(capsys, "init", "data.csv", *INIT, *failed, *other)[0] == 0
        problem = tomllib.loads(Path("c.toml").read_text())["problem"]
        assert (problem["failed"], problem["knobs"]) == ("crashed", ["codec"])
        wrong = ["init", "data.csv", *INIT, "--failed", "codec", "--out", "b.toml"]
        assert "'codec' must hold true and false" in complaint(capsys, *wrong)

    def test_a_limit_on_yes_and_no(self, capsys, data):
        slow = [False, False, True] * (len(data) // 3) + [False] * (len(data) % 3)
        data.assign(slow=slow).to_csv("data.csv", index=False)
        limit = ["--limit", "slow <= 0.4"]
        assert call(capsys, "init", "data.csv", *INIT, *limit)[0] == 0
        text = Path("study.toml").read_text()
        assert tomllib.loads(text)["problem"]["limits"]["slow"] == "<= 0.4"
        few = ["--trials", 2, "--horizon", 4]
        assert call(capsys, "run", "study.toml", *few)[0] == 0
        rows = pd.read_parquet("results/study/rounds.parquet")
        assert set(rows.slow.dropna()) <= {0.0, 1.0}
        late = np.random.default_rng(0).random(len(data)) < 0.3
        data.assign(slow=late).to_csv("data.csv", index=False)
        for options in ([], INIT):
            named = ["init", "data.csv", *options, "--out", f"{len(options)}.toml"]
            code, said, _ = call(capsys, *named)
            assert code == 0
            since = ", since the outcomes are named" if options else ""
            assert f"slow: taken as a knob{since}; if it was measured, take" in said

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
            (["--limit", "latency <= x"], "x is not a number such as 0.5"),
            (["--limit", "latency <= nan"], "latency <= nan: thresholds['latency']"),
            (["--limit", "latency >= -inf"], "it must be finite"),
            (["--limit", "latency <= 1_000"], "must be a number, '<= NUMBER'"),
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
            ('"speed"', "3", "[problem] maximise must be the name of a column; got 3"),
            (
                "maximise",
                "trials = 3\nmaximise",
                "trials stands at the top of the file",
            ),
            ("maximise", 'contexts=[["a"]]\nmaximise', "contexts must list the names"),
            ('"speed"', "[" * 2000 + "]" * 2000, "nested too deep to be read"),
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

    @pytest.mark.parametrize(
        "text",
        [
            'x\n[policies.P]\ntype = "evil:f"\n#',
            "x\r[problem]",
            "x\x7f",
            "x\u2028y",
            'x"y\\',
        ],
    )
    def test_a_table_writes_no_lines_of_its_own(self, capsys, data, text):
        """Neither names nor cells, however they break lines, are more than comments."""
        odd = [text, "b"] * 30
        odd = data.rename(columns={"memory": text}).assign(codec=odd)
        odd.to_csv("data.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
        assert call(capsys, "init", "data.csv", *INIT)[0] == 0
        study = tomllib.loads(Path("study.toml").read_bytes().decode())
        assert list(study["policies"]) == ["CKB", "RPOL", "CONFIG", "Random", "LogCEI"]
        assert study["problem"]["knobs"] == ["threads", text, "codec"]
        few = ["--trials", 1, "--horizon", 2, "--policies", "Random"]
        assert call(capsys, "run", "study.toml", "--out", "out", *few)[0] == 0
        assert call(capsys, "plot", "out")[0] == 0

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("a,b\n" + "x" * 200_000 + ",1\n", "field larger than field limit"),
            ("a, a,b\n1,2,3\n", "has several columns 'a'"),
            ("a,b\n1,2\n1,2,3,4\n", "Expected 2 fields in line 3, saw 4"),
            (",".join(map(str, range(999))) + "\n1\n", "has 999 columns"),
        ],
    )
    def test_odd_tables_are_refused_in_one_line(self, capsys, data, text, words):
        Path("data.csv").write_text(text)
        line = complaint(capsys, "init", "data.csv")
        assert words in line
        assert line.count("\n") == 1

    def test_init_asks_for_a_limit_that_it_cannot_guess(self, capsys, data):
        few = data[["threads", "codec", "speed"]]
        few.to_csv("few.csv", index=False)
        code, text, _ = call(capsys, "init", "few.csv", "--maximise", "speed")
        assert code == 0
        said = "study.toml: fill in [problem.limits], then: cbandit run study.toml; "
        assert text == said + "cbandit compare results/study\n"
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
        # who names goal and limits calls the rest knobs
        settled = "--limit" in given and len(given) == 4
        assert kept["knobs"] == ["threads", "mem", *["heat"] * settled]
        goal = "latency" if "--minimise" in given else "throughput"
        assert kept.get("maximise", kept.get("minimise")) == goal
        guessed = not {"--maximise", "--minimise"} & {*given}
        assert ("# a guess, from few rows" in text) == guessed
        if not given:
            limits = limits | {"heat"}
        assert set(kept.get("limits", {})) == limits
        median = few.heat.median()
        offered = f'# heat = "<= {median:.4g}"' in text
        assert offered == (bool(given) and not settled)
        assert (
            "heat: taken as a knob, since the outcomes are named" in text
        ) == settled
        if not limits:  # taken out as it says
            assert "# away from these lines:\n# [problem.limits]\n# lat" in text
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

    def test_names_of_few_rows_are_doubted(self, capsys, data):
        few = data[:12].assign(sample=[f"s{k * k}" for k in range(12)])
        few.to_csv("few.csv", index=False)
        _, said, _ = call(capsys, "init", "few.csv", *INIT)
        words = "sample: taken as a knob with another text in every row; if it only "
        assert words in said
        assert f"# {words}" in Path("study.toml").read_text()

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


@pytest.fixture
def messy(tmp_path, monkeypatch):
    """72 rows with every trap: which columns are knobs, and the measurements."""
    monkeypatch.chdir(tmp_path)
    rng, rows = np.random.default_rng(0), []
    grid = itertools.product([1, 2, 4, 8], [0.5, 1.0, 2.0], ["lz4", "zstd", "no"])
    for k, (threads, memory, codec) in enumerate([*grid] * 2):
        latency = 5 + 8 / threads + 2 / memory + rng.normal(0, 0.3)
        size = 100 + 40 * memory + 10 * threads + rng.normal(0, 3)
        speed = 3 * threads + len(codec) + rng.normal(0, 0.5)
        row = {
            "run_id": f"r{rng.integers(40):04x}" if k % 9 == 0 else f"r{k:04x}",
            "started": f"2026-03-{1 + k % 28:02d} 10:{k % 60:02d}",
            "stamp": 1_770_000_000 + 60 * (k // 2),
            "host": "node-1",
            "row": k,
            "Run Nr.": 100 + 3 * k,
            "commit": f"{rng.integers(1 << 32):08x}",
            "note": f"try {k} of {codec}",
            "threads": threads,
            "memory": f"{memory:g} GB",
            "memory_mb": int(1024 * memory),
            "codec": codec,
            "level": {"lz4": "fast", "zstd": "good", "no": "none at all"}[codec],
            "slots": threads * memory,
            "quota": round(50 + 6 * threads + 3.7 * memory),
            "timeout": f"{0.1 * threads:.1f} ms" if k % 2 else f"{100 * threads} us",
            "throughput": f"{speed:.3f}",
            "latency": f"{latency:.2f} ms",
            "size": f"{size:.1f}",
            "size_text": f"{size:.0f} MB",
            "latency_s": f"{latency / 1000:.5f}",
            "empty": "",
        }
        rows.append({name: str(cell).replace(".", ",") for name, cell in row.items()})
    rows[5]["latency"] = "-"
    pd.DataFrame(rows).to_csv("messy.csv", sep=";", index=False)
    return pd.DataFrame(rows)


@pytest.mark.parametrize("odd", ["inf", "-inf", "1e200", "1e308"])
def test_numbers_too_large_to_square_end_no_comparison_of_columns(odd):
    frame = pd.DataFrame({"a": range(12), "b": [3, 1] * 6, "c": [2.5] * 11 + [odd]})
    frame = frame.assign(c=frame["c"].astype(float), y=frame["a"] % 5)
    assert "follows" not in doubts(frame, ["y"]).get("c", "")


class TestMessy:
    NAMED = ("--maximise", "throughput", "--limit", "latency <= 11")
    LIMITS = ("--limit", "size <= 500")
    LEFT: ClassVar = {
        "run_id": "names the rows",
        "started": "dates or times",
        "stamp": "dates or times",
        "host": "the same in every row",
        "empty": "without a value",
        "row": "another value in every row",
        "Run Nr.": "another value in every row",
        "commit": "another value in every row",
        "note": "comments",
        "memory_mb": "follows from memory",
        "level": "follows from codec",
        "slots": "follows from threads * memory",
        "quota": "follows from threads and memory",
        "timeout": "follows from threads",
        "size_text": "a copy of size",
        "latency_s": "a copy of latency",
    }

    def test_no_trap_becomes_a_knob_and_each_is_named(self, capsys, messy):
        code, said, err = call(capsys, "init", "messy.csv", *self.NAMED, *self.LIMITS)
        assert (code, err) == (0, "")
        text = Path("study.toml").read_text()
        problem = tomllib.loads(text)["problem"]
        assert problem["knobs"] == ["threads", "memory", "codec"]
        for name, why in self.LEFT.items():
            line = f"{name}: left out, {why}"
            assert f"{line}\n" in said
            assert f"# {line}\n" in text
        for line in (
            "columns are separated by ';'",
            "memory: numbers in GB, the unit is taken off, commas are decimal",
            "timeout: numbers in us, the unit is taken off (us, ms are mixed)",
            "latency: numbers in ms, the unit is taken off, commas are decimal",
            "1 cells without a number are missing values",
            "every row meets the limit size <= 500",
        ):
            assert line in said
            assert line in text

    def test_no_trap_is_guessed_to_be_a_measurement(self, capsys, messy):
        code, said, err = call(capsys, "init", "messy.csv")
        assert (code, err) == (0, "")
        problem = tomllib.loads(Path("study.toml").read_text())["problem"]
        outcomes = {problem["maximise"], *problem["limits"]}
        assert outcomes <= {"throughput", "latency", "size"}
        assert "stamp: left out, dates or times\n" in said

    def test_three_commands_give_a_right_comparison(self, capsys, messy):
        assert call(capsys, "init", "messy.csv", *self.NAMED, *self.LIMITS)[0] == 0
        few = ["--trials", 6, "--horizon", 10, "--policies", "Random"]
        code, said, err = call(capsys, "run", "study.toml", *few)
        assert (code, err) == (0, "")
        assert "latency: numbers in ms" in said
        rows = pd.read_parquet("results/study/rounds.parquet")
        numbers = messy.latency.str.extract(r"([\d,]+) ms")[0].str.replace(",", ".")
        true = messy.assign(latency=numbers.astype(float)).dropna()
        true["speed"] = true.throughput.str.replace(",", ".").astype(float)
        true["memory"] = true.memory.str[:-3].str.replace(",", ".").astype(float)
        true["threads"] = true.threads.astype(int)
        mean = true.groupby(["threads", "memory", "codec"])[["latency", "speed"]].mean()
        for _, row in rows.iterrows():
            latency, speed = mean.loc[row.threads, row.memory, row.codec]
            assert row.true_latency == pytest.approx(latency)
            assert row.true_reward == pytest.approx(speed)
        best = mean[mean.latency <= 11].speed.max()
        last = rows[rows.t == 10].set_index("trial").regret
        by_hand = 10 * best - rows.groupby("trial").true_reward.sum()
        assert last.to_numpy() == pytest.approx(by_hand.to_numpy())
        # costs of several units are drawn together as multiples of their limits
        panels = draw_panels([Path("results/study")] * 2).axes
        assert panels[0].get_title("left") == "Regret in throughput"
        assert [panel.get_ylabel() for panel in panels[1:3]] == [
            "limits;\nless is better"
        ] * 2
        last = rows[rows.t == 10].hard_violation_relative.mean()
        assert panels[2].get_lines()[0].get_ydata()[-1] == pytest.approx(last)

    def test_named_outcomes_make_the_others_knobs(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        rng = np.random.default_rng(0)
        frame = pd.DataFrame(rng.uniform(size=(60, 3)), columns=["gain", "rate", "t"])
        frame["speed"] = frame.gain - frame.rate**2
        frame["price"] = 0.05 * frame.t  # a plain function of a knob, and no copy
        frame.to_csv("data.csv", index=False)
        named = ["--maximise", "speed", "--limit", "price <= 0.03"]
        code, said, _ = call(capsys, "init", "data.csv", *named)
        assert code == 0
        problem = tomllib.loads(Path("study.toml").read_text())["problem"]
        assert problem["knobs"] == ["gain", "rate", "t"]
        assert "gain: taken as a knob, since the outcomes are named; if it was" in said

    def test_a_limit_that_no_row_meets_is_said(self, capsys, messy):
        own = ["--maximise", "throughput", "--limit", "latency <= 1"]
        _, said, _ = call(capsys, "init", "messy.csv", *own)
        assert "no row meets the limit latency <= 1: its values are 6." in said
        Path("study.toml").unlink()
        own = ["--maximise", "throughput", "--limit", "latency <= 7"]
        _, said, _ = call(capsys, "init", "messy.csv", *own, "--limit", "size <= 130")
        assert "no row meets all limits together" in said

    def test_thousands_are_no_decimals(self, tmp_path):
        from inside import read_table

        path = tmp_path / "t.csv"
        path.write_text('a,b,c,d\n"1,200",1x,2 kB,2x\n"12,000",2y,3 MB,4x\n')
        frame, remarks = read_table(path)
        assert frame.a.tolist() == [1200, 12000]
        assert frame.b.tolist() == ["1x", "2y"]  # no units that can be mixed
        assert frame.c.tolist() == [2, 3000]
        assert frame.d.tolist() == [2, 4]
        assert remarks[0] == "a: commas are for thousands"
        path.write_bytes("größe\t m\n1\t2\n".encode("cp1252"))
        frame, remarks = read_table(path)
        assert list(frame) == ["größe", "m"]
        assert remarks == ("columns are separated by tabs",)

    def test_units_with_signs_and_texts_among_numbers(self, tmp_path):
        from inside import read_table

        path = tmp_path / "t.csv"
        rows = [f"{k};{k},5 °C;{k} €/h;{k} GB;{k * k}" for k in range(1, 20)]
        path.write_text("\n".join(["k;heat;price;mem;ms", *rows, "20;;;4;OOM"]))
        frame, remarks = read_table(path)
        assert frame.heat.dropna().tolist() == [k + 0.5 for k in range(1, 20)]
        assert frame.price.dropna().tolist() == list(range(1, 20))
        assert remarks[1:] == (
            "heat: numbers in °C, the unit is taken off, commas are decimal",
            "price: numbers in €/h, the unit is taken off",
            "ms: taken as texts, as 1 of 20 cells are no numbers: 'OOM' in line 21",
        )

    @pytest.mark.parametrize("separator", [",", ";"])
    def test_separators_at_the_ends_of_rows_move_no_cell(self, tmp_path, separator):
        from inside import read_table

        path = tmp_path / "t.csv"
        lines = ["a,b,c", "0,2,3,", "1,5,6,", "2,8,9,"]
        path.write_text("\n".join(lines).replace(",", separator))
        frame = read_table(path).frame
        assert frame.columns.tolist() == ["a", "b", "c"]
        assert frame.to_numpy().tolist() == [[0, 2, 3], [1, 5, 6], [2, 8, 9]]
        path.write_text("a,b\n1,2,3\n")
        with pytest.raises(cb.CBanditError, match=r"names 2 columns .* 3 cells: give"):
            read_table(path)

    def test_copies_of_rows_are_left_out_and_named(self, tmp_path):
        from inside import read_table

        path = tmp_path / "t.csv"
        rows = [f"{k},{k % 3},{k / 8}" for k in range(9)]
        path.write_text("\n".join(["no,knob,speed", *rows, rows[3], rows[7]]))
        frame, remarks = read_table(path)
        assert len(frame) == 9
        assert remarks == (
            "rows that are copies of others in every column and are left out: 2, "
            "at line 11, 12",
        )
        # nothing tells these apart: they are measurements that came out equal
        path.write_text("knob,ok\n1,yes\n1,no\n2,yes\n2,no\n1,yes\n")
        frame, remarks = read_table(path)
        assert (len(frame), remarks) == (5, ())

    @pytest.mark.parametrize("options", [(), (*NAMED, *LIMITS)])
    @pytest.mark.parametrize(
        ("broke", "how"), [("failed", "; --failed failed lets"), ("Status", "\n")]
    )
    def test_what_tells_failures_is_no_knob(self, capsys, messy, options, broke, how):
        """Nor is a column that is empty where all outcomes are."""
        yes, no = ("yes", "no") if broke == "failed" else ("kaputt", "gut")
        lost = messy.index % 11 == 4
        table = messy.assign(**{broke: np.where(lost, yes, no)})
        table["price"] = [f"{0.1 + 0.3 * k**0.5:.5f}" for k in range(len(table))]
        measured = ["throughput", "latency", "size", "size_text", "latency_s", "price"]
        table.loc[lost, measured] = None
        table.to_csv("messy.csv", sep=";", index=False)
        code, said, _ = call(capsys, "init", "messy.csv", *options)
        assert code == 0
        problem = tomllib.loads(Path("study.toml").read_text())["problem"]
        assert problem["knobs"] == ["threads", "memory", "codec"]
        assert f"{broke}: left out, says which rows failed{how}" in said
        wanted = "price: left out, looks measured" if options else "price: guesses, the"
        assert wanted in said

    def test_guesses_and_knobs_that_rows_lack_are_said(self, capsys, messy):
        messy.loc[3, "codec"] = None
        messy.to_csv("messy.csv", sep=";", index=False)
        _, said, _ = call(capsys, "init", "messy.csv")
        assert "maximise throughput: a guess; say it by --maximise or" in said
        assert "limits of latency, size: guesses, their medians" in said
        assert "codec: a knob that 1 rows lack: these are left out" in said

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--maximise", "troughput"], "did you mean throughput?"),
            (
                ["--maximise", "codec"],
                "codec holds texts, such as 'lz4' in line 2: it cannot be a mea",
            ),
            (["--limit", "latency = 3"], "--limit takes 'COLUMN <= NUMBER' or >="),
            (["--limit", "latency <= 3 ms"], "--limit takes 'COLUMN <= NUMBER' or >="),
            (
                ["--maximise", "latency", "--limit", "latency <= 3"],
                "give the table a copy of it with another name",
            ),
            (
                ["--limit", "latency <= 3", "--limit", "latency >= 1"],
                "latency has two limits: give the table a copy of it with another name",
            ),
            (["--maximise", "size", "--minimise", "latency"], "give one of them"),
            (["--context", "day"], "there is no column day; there are run_id"),
            (["a,b\n"], "has a head and no rows"),
            (["a,a\n1,2\n"], "has several columns 'a': rename them"),
            (["a\n1\n2\n"], "fields are to be separated by commas, semicolons"),
            ([""], "cannot be read as CSV: it is empty, and needs a line of names"),
            (["a,b\n1,2\n"], "has one row: there is nothing to choose from"),
            (
                ["--maximise", "latency", "--context", "latency"],
                "latency is given by --context or --failed: it cannot be maximised",
            ),
            (
                ["a,b\n1,2\n1,2\n"],
                "no column left that could be a knob; a: the same in every",
            ),
        ],
    )
    def test_mistakes_are_one_line_that_says_what_to_do(
        self, capsys, messy, options, words
    ):
        if not options[0].startswith("--"):
            Path("messy.csv").write_text(options[0])
            options = ["--maximise", "b"] if "b" in options[0] else []
        line = complaint(capsys, "init", "messy.csv", *options)
        assert words in line
        assert line.count("\n") == 1
        assert not Path("study.toml").exists()

    def test_files_that_are_no_table_or_no_study(self, capsys, messy):
        line = complaint(capsys, "init", "none.csv")
        assert line == "Error: none.csv cannot be read: No such file or directory\n"
        Path("messy.csv").write_text("a,b\n1,2\n1,2,3\n")
        line = complaint(capsys, "init", "messy.csv")
        assert line.count("\n") == 1
        assert "unpacked" not in line
        assert line.endswith("Expected 2 fields in line 3, saw 3\n")
        line = complaint(capsys, "run", "messy.csv")
        assert line.endswith(": cbandit init messy.csv writes a study of a table\n")


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
