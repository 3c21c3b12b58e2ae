"""Tables of measurements: read from frames, and played from the command line."""

from __future__ import annotations

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
