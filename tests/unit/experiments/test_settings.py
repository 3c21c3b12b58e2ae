"""Settings files: a round trip, and what they refuse."""

from __future__ import annotations

import tomllib

import pytest
from inside import EXPERIMENTS, main, settings_from_toml, settings_of_experiment
from places import ROOT

import cbandit as cb


class TestSettings:
    def test_round_trip(self, tmp_path):
        settings = settings_of_experiment(
            "zhou-synthetic", parameters={"cost": "quarter"}, trials=7, seed=5
        )
        path = tmp_path / "config.toml"
        path.write_text(settings.toml())
        assert settings_from_toml(path) == settings
        assert settings_from_toml(path, trials=2).trials == 2
        assert tomllib.loads(settings.toml())["parameters"]["cost"] == "quarter"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "must name its experiment"),
            ("experiment = 3", "must name its experiment"),
            ("experiment = ", "is not TOML"),
            (
                "experiment = 'zhou-synthetic'\ntrails = 3",
                "unknown settings: trails; known are experiment, .*horizon, trials",
            ),
            ("experiment = 'zhou-synthetic'\ntrials = 0", "trials must be"),
            ("experiment = 'zhou-synthetic'\nseed = 1.5", "seed must be"),
            ("experiment = 'zhou-synthetic'\nparameters = 3", r"\[parameters\]; got 3"),
            (
                "experiment = 'zhou-synthetic'\npolicies = []",
                r"at least one name.*\[\]",
            ),
            ("experiment = 'zhou-synthetic'\npolicies = 'A'", "a list of .*got 'A'"),
            ("experiment = 'pacchiano-cyclic'\n[parameters]\nd = 5.9", "whole number"),
            ("experiment = 'pacchiano-cyclic'\n[parameters]\nd = true", "whole number"),
            ("experiment = 'pacchiano-cyclic'\n[parameters]\nd = inf", "whole number"),
        ],
    )
    def test_bad_files(self, tmp_path, text, message):
        path = tmp_path / "config.toml"
        path.write_text(text)
        with pytest.raises(cb.CBanditError, match=message):
            settings_from_toml(path)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (["--policies", ","], "policies must be a list of at least one name"),
            (["--set", "cost=half", "--set", "cost=quarter"], "--set cost is there"),
            (["--set", "cost=half", "cost=quarter"], "--set cost is there"),
            (["cost=half"], "cost=half is unexpected; parameters follow --set"),
        ],
    )
    def test_options_that_say_nothing_or_too_much(self, given, said, capsys, tmp_path):
        with pytest.raises(SystemExit) as stop:
            main(["reproduce", "zhou-synthetic", "--out", str(tmp_path), *given])
        assert stop.value.code == 2
        assert said in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_folders_that_hold_half_of_something(self, tmp_path, capsys):
        small = ["--trials", "1", "--horizon", "3", "--policies", "CKB-UCB"]
        given = ["reproduce", "zhou-synthetic", *small, "--out", str(tmp_path)]
        with pytest.raises(SystemExit) as stop:
            main(given)
        assert stop.value.code == 0
        for text in ("{", "[]"):
            (tmp_path / "summary.json").write_text(text)
            with pytest.raises(SystemExit) as stop:
                main([*given, "--resume"])
            assert stop.value.code == 2
            assert "is not the summary of an" in capsys.readouterr().err
            assert (tmp_path / "summary.json").read_text() == text
        (tmp_path / "config.toml").unlink()
        with pytest.raises(SystemExit):
            main(given)
        assert "no config.toml that tells their" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main(["plot", str(tmp_path), "--panels", "cost"])
        assert "--panels goes with --figure" in capsys.readouterr().err

    def test_the_files_beside_the_benchmarks_are_the_papers(self):
        for name, known in EXPERIMENTS.items():
            path = ROOT / "benchmarks" / "papers" / f"{name}.toml"
            settings = settings_from_toml(path)
            assert settings == settings_of_experiment(name)
            assert settings.horizon == known.horizon
