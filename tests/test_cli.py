"""The command line, and what experiments write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from inside import Settings, catalogue, experiments, main, read, settings_from_toml
from matplotlib.image import imread

import cbandit as cb
from cbandit import cli, plots
from cbandit.errors import CBanditError

ROOT = Path(__file__).parents[1]
SMALL = ["--trials", "3", "--horizon", "40"]


def call(capsys, *arguments):
    """Exit code, what was printed, and what was complained about."""
    try:
        main([str(each) for each in arguments])
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


def complaint(capsys, *arguments):
    """The one line that a user's error gives."""
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert "Traceback" not in err
    return err


def test_help_is_quick_and_has_examples(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert "reproduce" in out
    for command in ("list", "reproduce", "run", "plot", "bench", "info"):
        code, out, _ = call(capsys, command, "--help")
        assert code == 0
        assert f"Example: cbandit {command}" in " ".join(out.split())


def test_help_loads_nothing_heavy():
    code = (
        "import sys, cbandit.cli; "
        "print([m for m in ('matplotlib', 'pandas', 'triton') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "[]", out.stderr


def test_version(capsys):
    from inside import versions

    code, out, err = call(capsys, "--version")
    assert (code, err) == (0, "")
    assert out.startswith("cbandit")
    assert versions()["cbandit"] in out


def test_list(capsys):
    _, out, _ = call(capsys, "list")
    for name in catalogue.EXPERIMENTS:
        assert name in out
    _, out, _ = call(capsys, "list", "zhou-synthetic")
    assert "cost=half | quarter | independent" in out
    assert "CKB-UCB" in out


def test_user_errors_are_one_line(capsys, tmp_path):
    assert "known are zhou-synthetic" in complaint(capsys, "list", "zhou")
    assert "known are zhou-synthetic" in complaint(capsys, "reproduce", "nothing")
    assert "it has: CKB-UCB" in complaint(
        capsys, "reproduce", "zhou-synthetic", "--policies", "CKB"
    )
    assert "must be one of half" in complaint(
        capsys, "reproduce", "zhou-synthetic", "--set", "cost=third"
    )
    assert "it has: cost" in complaint(
        capsys, "reproduce", "zhou-synthetic", "--set", "price=1"
    )
    assert "PARAM=VALUE" in complaint(
        capsys, "reproduce", "zhou-synthetic", "--set", "cost"
    )
    assert "dtype" in complaint(
        capsys, "reproduce", "zhou-synthetic", "--dtype", "int8"
    )
    assert "horizon" in complaint(
        capsys, "reproduce", "zhou-synthetic", "--horizon", "0"
    )
    assert "cannot be read" in complaint(capsys, "run", tmp_path / "no.toml")
    assert "holds no results" in complaint(capsys, "plot", tmp_path)


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/none", "/proc"])
def test_results_cannot_go_there(capsys, tmp_path, name):
    (tmp_path / "file").write_text("mine")
    if name.startswith("/proc") and not Path("/proc").is_dir():
        pytest.skip("no /proc here")
    few = [*SMALL, "--policies", "CKB-UCB", "--out", tmp_path / name]
    line = complaint(capsys, "reproduce", "zhou-synthetic", *few)
    assert line.count("\n") == 1
    assert str(tmp_path / name) in line
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "given",
    [
        ("zhou-synthetic", "beta=abc", ["beta", "'theory'", "'abc'"]),
        ("zhou-synthetic", "beta=-1", ["beta", "at least 0", "'-1'"]),
        ("zhou-synthetic", "beta=nan", ["beta", "'nan'"]),
        ("bench-stagewise", "beta=-3", ["beta", "at least 0", "-3"]),
        ("bench-stagewise", "points=0", ["points", "at least 2"]),
        ("bench-stagewise", "costs=0", ["costs", "at least 1"]),
        ("pacchiano-hard", "arms=2", ["arms", "at least 4"]),
        ("shi-small-feasible", "epoch=0", ["epoch", "at least 1"]),
    ],
)
def test_parameters_that_cannot_be_are_refused_at_once(capsys, tmp_path, given):
    name, pair, words = given
    out = tmp_path / "out"
    line = complaint(capsys, "reproduce", name, "--set", pair, "--out", out)
    assert all(word in line for word in words), line
    assert line.count("\n") == 1
    assert not out.exists()  # nothing was begun


@pytest.mark.parametrize("what", cli.BENCHMARKS)
def test_a_file_of_measurements_that_cannot_be_is_refused_first(
    capsys, tmp_path, monkeypatch, what
):
    def imported(name):
        raise AssertionError(f"{name} was to be measured")

    monkeypatch.setattr(cli, "import_module", imported)
    for path in (tmp_path / "none" / "out.json", tmp_path):
        line = complaint(capsys, "bench", what, "--quick", "--json", path)
        assert str(path) in line
        assert line.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_cuda_is_one_line(capsys):
    line = complaint(capsys, "reproduce", "zhou-synthetic", "--device", "cuda")
    assert line.count("\n") == 1
    assert "no CUDA device" in line
    line = complaint(capsys, "reproduce", "zhou-synthetic", "--device", "cuda:3")
    assert "'cuda:3' is not here" in line
    assert "'cpu' or 'cuda'" in complaint(
        capsys, "reproduce", "zhou-synthetic", "--device", "tpu"
    )


def test_reproduce_writes_all_it_says(capsys, tmp_path):
    out = tmp_path / "out"
    code, text, _ = call(capsys, "reproduce", "zhou-synthetic", *SMALL, "--out", out)
    assert code == 0
    assert "CKB-Rand" in text
    assert "in place of" not in text
    for name in ("account.png", "averages.png"):
        assert str(out / name) in text
    names = {each.name for each in out.iterdir()}
    assert names == {
        "account.png",
        "averages.png",
        "config.toml",
        "rounds.parquet",
        "summary.json",
    }
    summary = json.loads((out / "summary.json").read_text())
    assert summary["horizon"] == 40
    assert summary["trials"] == 3
    assert summary["versions"]["torch"] == torch.__version__.split("+")[0] or True
    for name in ("CKB-UCB", "CKB-TS", "CKB-Rand"):
        each = summary["policies"][name]
        assert each["status"] == "complete"
        assert each["seconds_per_round"] > 0
        for metric in (
            "regret",
            "stochastic_regret",
            "soft_violation",
            "hard_violation",
            "rounds_in_violation",
        ):
            assert set(each[metric]) == {"mean", "sem"}
    rounds = pd.read_parquet(out / "rounds.parquet")
    last = rounds[(rounds.policy == "CKB-TS") & (rounds.metric == "regret")].iloc[-1]
    assert last.t == 40
    ts = summary["policies"]["CKB-TS"]["regret"]
    assert last["mean"] == pytest.approx(ts["mean"], rel=1e-12)
    assert last["sem"] == pytest.approx(ts["sem"], rel=1e-12)
    assert (out / "account.png").read_bytes().startswith(b"\x89PNG")

    # the settings file is all that is needed to do it again
    again = tmp_path / "again"
    code, _, _ = call(capsys, "run", out / "config.toml", "--out", again)
    assert code == 0
    assert pd.read_parquet(again / "rounds.parquet").equals(rounds)

    (out / "account.png").unlink()
    code, text, _ = call(capsys, "plot", out)
    assert code == 0
    assert (out / "account.png").exists()
    assert "averages.png" in text

    # a folder that is complete is not run again
    before = (out / "summary.json").stat().st_mtime_ns
    code, text, _ = call(
        capsys, "reproduce", "zhou-synthetic", *SMALL, "--out", out, "--resume"
    )
    assert code == 0
    assert "CKB-Rand" in text
    assert (out / "summary.json").stat().st_mtime_ns == before
    assert "other settings: " in complaint(
        capsys, "reproduce", "zhou-synthetic", "--trials", 4, "--out", out, "--resume"
    )
    # those of the same settings are computed again, and it is said
    for extra in ([], ["--resume"]):
        _, text, _ = call(
            capsys, "reproduce", "zhou-synthetic", *SMALL, "--out", out, *extra
        )
        assert ("in place of earlier results" in text) == (not extra)
    # figures of somebody's own are none of these
    (out / "mine.png").write_bytes(b"")
    for extra in ([], ["--resume"]):
        _, text, _ = call(
            capsys, "reproduce", "zhou-synthetic", *SMALL, "--out", out, *extra
        )
        assert f"figures: {out / 'account.png'}, {out / 'averages.png'}" in text
        assert "mine" not in text
    before = (out / "summary.json").stat().st_mtime_ns
    # nor overwritten by another
    line = complaint(capsys, "reproduce", "zhou-synthetic", "--trials", 4, "--out", out)
    assert "results of other settings" in line
    assert (out / "summary.json").stat().st_mtime_ns == before


def test_a_run_is_named_after_its_experiment(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings.of("zhou-synthetic", trials=1, horizon=9, policies=["CKB-UCB"])
    Path("config.toml").write_text(settings.toml())
    code, text, _ = call(capsys, "run", "config.toml")
    assert code == 0
    assert "results/zhou-synthetic/account.png" in text
    assert [each.name for each in Path("results").iterdir()] == ["zhou-synthetic"]


def test_folders_that_somebody_has_been_at(capsys, tmp_path):
    config, out = tmp_path / "größe 1.toml", tmp_path / "out put ü"
    settings = Settings.of("zhou-synthetic", trials=1, horizon=5, policies=["CKB-UCB"])
    config.write_text(settings.toml(), "utf-8-sig")  # as some editors write it
    again = ["run", config, "--out", out, "--resume"]
    assert call(capsys, *again)[0] == 0
    whole = (out / "summary.json").read_text()
    for broken in ("junk", "[]", '{"policies": 3}', '{"policies": {"CKB-UCB": {}}}'):
        (out / "summary.json").write_text(broken)
        line = complaint(capsys, *again)
        assert "summary.json" in line
        assert "without that file --resume computes it all again" in line
    (out / "summary.json").write_text(whole)
    (out / "rounds.parquet").write_text("junk")
    for words in (again, ["plot", out]):
        line = complaint(capsys, *words)
        assert "rounds.parquet is not one of ours, or broken" in line
        assert "--resume computes it all again" in line
    (out / "rounds.parquet").unlink()
    assert call(capsys, *again)[0] == 0
    assert len(pd.read_parquet(out / "rounds.parquet")) > 0


def test_settings_that_are_odd(capsys, tmp_path):
    path = tmp_path / "odd.toml"
    for text, words in [
        ("colour = 1", "unknown settings: colour; known are experiment, parameters"),
        ("device = 3", "device must be 'cpu' or 'cuda'; got 3"),
        ("device = ''", "device must be 'cpu' or 'cuda'; got ''"),
        ("policies = [['CKB-UCB']]", "has no policy ['CKB-UCB']"),
    ]:
        path.write_text(f'experiment = "zhou-synthetic"\n{text}\n')
        line = complaint(capsys, "run", path, "--out", tmp_path / "out")
        assert words in line
    few = ["--trials", 1, "--policies", "CKB-UCB", "--out", tmp_path / "out"]
    path.write_text('experiment = "zhou-synthetic"')
    line = complaint(capsys, "run", path, *few, "--horizon", 10**26)
    assert "GB for their account, more than there is" in line


def test_stage_costs_are_printed_and_drawn(capsys, tmp_path):
    folders = []
    for tau in ("0.8", "0.2"):
        folders.append(tmp_path / tau)
        few = ["--set", f"tau={tau}", "--horizon", 30, "--trials", 1]
        code, text, _ = call(
            capsys, "reproduce", "pacchiano-opb-four", *few, "--out", folders[-1]
        )
        assert code == 0
        assert "policy regret" in text
        assert "in every round of 100.0000% of the runs" in text
        assert "+-" not in text
        assert "nan" not in text
        assert "-0.00" not in text
        assert (folders[-1] / "evolution.png").exists()
    summary = json.loads((folders[0] / "summary.json").read_text())
    assert summary["policies"]["OPB"]["stage_runs_kept"]["mean"] == 1.0
    for extra in ([], ["--panels", "tau"]):
        figure = tmp_path / f"both{len(extra)}.png"
        code, _, _ = call(capsys, "plot", *folders, "--figure", figure, *extra)
        assert code == 0
        assert figure.read_bytes().startswith(b"\x89PNG")
    assert "panels must be a parameter" in complaint(
        capsys, "plot", *folders, "--figure", figure, "--panels", "d"
    )
    for name, word in (
        ("none/both.png", "none/both.png cannot be written"),
        ("both.bmpx", "known kind"),
        ("0.8", "known kind"),
        ("folder", "is a folder"),
    ):
        (tmp_path / "folder").mkdir(exist_ok=True)
        line = complaint(capsys, "plot", *folders, "--figure", tmp_path / name)
        assert word in line
        assert line.count("\n") == 1


def test_settings_without_stage_costs_are_drawn_together_too(capsys, tmp_path):
    folders = [tmp_path / cost for cost in ("half", "quarter")]
    few = ["--horizon", 20, "--trials", 2, "--policies", "CKB-UCB"]
    for folder in folders:
        chosen = ["--set", f"cost={folder.name}", "--out", folder]
        assert call(capsys, "reproduce", "zhou-synthetic", *few, *chosen)[0] == 0
    for k, extra in enumerate([folders, [*folders, "--panels", "cost"], folders[:1]]):
        figure = tmp_path / f"{k}.png"
        assert call(capsys, "plot", *extra, "--figure", figure)[0] == 0
        assert figure.read_bytes().startswith(b"\x89PNG")
    sizes = [imread(tmp_path / f"{k}.png").shape for k in range(3)]
    assert sizes[0][1] > sizes[1][1]  # three metrics beside each other, or two panels
    assert sizes[0][0] > sizes[2][0]  # two rows, or one


def command(*arguments):
    """The command line in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "cbandit", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("mean", "sem", "words"),
    [
        (65.914, 138.21, "65.91 +- 138.2"),
        (0.5, 99.7, "0.5 +- 99.7"),
        (1.23456e6, 9.87e5, "1.235e+06 +- 9.87e+05"),
        (3.0, 0.0123, "3 +- 0.012"),
    ],
)
def test_numbers_read_well(mean, sem, words):
    assert cli._number(mean, sem, 10) == words


def test_workers_is_a_number_or_ray(capsys):
    for wrong in ("0", "two", "-1", "1.5"):
        line = complaint(capsys, "reproduce", "zhou-synthetic", f"--workers={wrong}")
        assert "a number above 0, or ray" in line


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("workers", ["2", "ray"])
def test_workers_share_the_trials_and_change_nothing(capsys, tmp_path, workers):
    few = ["reproduce", "zhou-synthetic", *SMALL, "--policies", "CKB-UCB", "--out"]
    assert call(capsys, *few, tmp_path / "1")[0] == 0
    for attempt in range(3):  # Ray gives itself 30 seconds to start, however busy
        out = tmp_path / f"many-{attempt}"
        shared = command(*few, out, "--workers", workers)
        _, said = shared.communicate(timeout=600)
        if "timed out during startup" not in said:
            break
    assert shared.returncode == 0, said
    one, many = (pd.read_parquet(w / "rounds.parquet") for w in (tmp_path / "1", out))
    pd.testing.assert_frame_equal(one, many, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_ctrl_c_reaches_the_workers(tmp_path):
    few = ["reproduce", "zhou-synthetic", "--trials", 2, "--policies", "CKB-UCB"]
    few += ["--horizon", 10**6, "--out", tmp_path / "out", "--workers", 2]
    shared = command(*few)
    checkpoints = tmp_path / "out" / "checkpoints"
    begun = time.monotonic()
    while not checkpoints.exists() and time.monotonic() < begun + 300:
        time.sleep(0.1)
    time.sleep(2)  # both are at work, or about to be
    shared.send_signal(signal.SIGINT)
    _, said = shared.communicate(timeout=300)
    assert shared.returncode == 130, said
    assert "--resume" in said
    assert "Traceback" not in said
    for path in checkpoints.iterdir():
        assert read(path)["state"].tape.rounds > 0


def test_ctrl_c_leaves_a_folder_to_go_on_with(capsys, tmp_path):
    out = tmp_path / "out"
    few = ["reproduce", "zhou-synthetic", "--trials", "2", "--policies", "CKB-UCB"]
    few += ["--horizon", "700", "--out", str(out)]
    script = (
        "import os, signal, sys, cbandit.simulation.loop\n"
        "s = sys.modules['cbandit.simulation.loop']\n"
        "turn = s._Tape.turn\n"
        "def interrupted(self, *given):\n"
        "    turn(self, *given)\n"
        "    if self.rounds == 123:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "s._Tape.turn = interrupted\n"
        "from cbandit.cli import main\n"
        f"main({few!r})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
        timeout=120,
    )
    assert ended.returncode == 130, ended.stderr
    assert "--resume" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (out / "checkpoints" / "CKB-UCB.ckpt").exists()
    assert "unfinished" in complaint(capsys, *few)
    code, _, _ = call(capsys, *few, "--resume")
    assert code == 0
    whole = tmp_path / "whole"
    few[few.index(str(out))] = str(whole)
    assert call(capsys, *few)[0] == 0
    one, two = (pd.read_parquet(each / "rounds.parquet") for each in (out, whole))
    assert one.equals(two)


def test_a_policy_that_fails_does_not_take_the_others_along(
    capsys, tmp_path, monkeypatch
):
    def broken(problem, task):
        raise CBanditError("no such luck")

    known = catalogue.find("zhou-synthetic")
    policies = {"Broken": broken, "CKB-Rand": known.policies["CKB-Rand"]}
    changed = replace(known, policies=policies)
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {"zhou-synthetic": changed})
    out = tmp_path / "out"
    line = complaint(capsys, "reproduce", "zhou-synthetic", *SMALL, "--out", out)
    assert "Broken failed: no such luck" in line
    summary = json.loads((out / "summary.json").read_text())
    assert summary["policies"]["Broken"] == {"status": "failed: no such luck"}
    assert summary["policies"]["CKB-Rand"]["status"] == "complete"


def test_missing_data_is_one_line(capsys, tmp_path, monkeypatch):
    from cbandit.problems import data

    monkeypatch.setattr(data, "folders", lambda: [tmp_path])
    line = complaint(capsys, "reproduce", "zhou-light", "--out", tmp_path / "out")
    assert "light_train.csv" in line
    assert "601 x 41" in line
    assert line.count("light_train.csv") == 1  # of all five policies
    assert all(name in line for name in catalogue.find("zhou-light").policies)
    assert line.count("\n") == 1


class TestSettings:
    def test_round_trip(self, tmp_path):
        settings = Settings.of(
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
        with pytest.raises(CBanditError, match=message):
            settings_from_toml(path)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (["--policies", ","], "policies must be a list of at least one name"),
            (["--set", "cost=half", "--set", "cost=quarter"], "--set cost is there"),
        ],
    )
    def test_options_that_say_nothing_or_too_much(self, given, said, capsys, tmp_path):
        with pytest.raises(SystemExit) as stop:
            cli.main(["reproduce", "zhou-synthetic", "--out", str(tmp_path), *given])
        assert stop.value.code == 2
        assert said in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_folders_that_hold_half_of_something(self, tmp_path, capsys):
        small = ["--trials", "1", "--horizon", "3", "--policies", "CKB-UCB"]
        given = ["reproduce", "zhou-synthetic", *small, "--out", str(tmp_path)]
        with pytest.raises(SystemExit) as stop:
            cli.main(given)
        assert stop.value.code == 0
        for text, said in (("{", "cannot be read"), ("[]", "is not the summary of an")):
            (tmp_path / "summary.json").write_text(text)
            with pytest.raises(SystemExit) as stop:
                cli.main([*given, "--resume"])
            assert stop.value.code == 2
            assert said in capsys.readouterr().err
            assert (tmp_path / "summary.json").read_text() == text
        (tmp_path / "config.toml").unlink()
        with pytest.raises(SystemExit):
            cli.main(given)
        assert "no config.toml that tells their" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            cli.main(["plot", str(tmp_path), "--panels", "cost"])
        assert "--panels goes with --figure" in capsys.readouterr().err

    def test_the_files_beside_the_benchmarks_are_the_papers(self):
        for name, known in catalogue.EXPERIMENTS.items():
            settings = settings_from_toml(ROOT / "benchmarks" / f"{name}.toml")
            assert settings == Settings.of(name)
            assert settings.horizon == known.horizon


class TestFigures:
    def curve(self, seed=0):
        from inside import Curve

        t = torch.arange(1, 51)
        return Curve(t, t.double().sqrt(), t.double() * 0.01, t.double() * 0.001)

    def test_one_panel_a_metric(self):
        each = {name: self.curve() for name in plots.LABELS}
        figure = plots.overview({"A": each, "B": each}, title="Both")
        titles = [panel.get_title("left") for panel in figure.axes]
        assert titles == [
            "Regret",
            "Soft violation",
            "Hard violation",
            "Rounds in violation",
        ]
        averages = plots.overview({"A": each}, ["regret"], average=True)
        line = averages.axes[0].get_lines()[0].get_ydata()
        assert line[-1] == pytest.approx(50**0.5 / 50)

    @pytest.mark.parametrize("dpi", [60, 100, 160])
    def test_titles_stay_within_the_figure(self, dpi):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        each = {name: self.curve() for name in plots.LABELS}
        title = "an experiment (rate = 0.5, epoch = 20): mean and standard error of 9"
        for metrics in (["regret"], ["regret", "reward"]):
            figure = plots.overview({"A": each, "B": each}, metrics, title=title)
            figure.set_dpi(dpi)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            (words,) = [text for text in figure.texts if text.get_text() == title]
            frame = words.get_window_extent(canvas.get_renderer())
            assert 0 < frame.x0 < frame.x1 <= figure.bbox.x1
            top = max(panel.get_tightbbox().y1 for panel in figure.axes)
            assert top <= frame.y0 < frame.y1 <= figure.bbox.y1

    @pytest.mark.parametrize("metrics", [["regret"], None])
    def test_legends_stay_within_the_figure(self, metrics):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        each = {name: self.curve() for name in plots.LABELS}
        for count, name in ((3, "CKB-RestartUCB"), (7, "UCB"), (1, "A" * 30)):
            names = [f"{name} {k}" for k in range(count)]
            figure = plots.overview(dict.fromkeys(names, each), metrics)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            frame = figure.legends[0].get_window_extent(canvas.get_renderer())
            assert 0 <= frame.x0 < frame.x1 <= figure.bbox.x1
            assert frame.y0 >= 0

    def test_a_notebook_shows_them(self):
        from IPython.core.formatters import DisplayFormatter

        each = {name: self.curve() for name in plots.LABELS}
        figure = plots.overview({"A": each}, ["regret"])
        data, _ = DisplayFormatter().format(figure)
        assert data["image/png"].startswith(b"\x89PNG")

    def test_one_run_is_enough(self):
        world = cb.problems.Table([0.0, 1.0], [[-1.0, -0.5]])
        gp = cb.GP.default(world.actions)
        policy = cb.RPOL(world.actions, reward=gp, costs=gp, explore=cb.UCB(1.0))
        run = cb.simulate(policy, world, 5)
        assert len(plots.overview(run).axes) == 4
        with pytest.raises(CBanditError, match=r"set policy\.name before the run"):
            plots.overview([run, run])

    def test_bad_arguments(self):
        each = {name: self.curve() for name in plots.LABELS}
        with pytest.raises(CBanditError, match="metrics"):
            plots.overview({"A": each}, ["regrets"])
        with pytest.raises(CBanditError, match="spread"):
            plots.overview({"A": each}, spread="iqr")
        with pytest.raises(CBanditError, match="nothing to plot"):
            plots.overview({})

    def test_the_library_does_not_import_plotting(self):
        code = "import sys, cbandit as cb; cb.simulate, cb.Run, cb.plots; "
        code += "print('matplotlib' in sys.modules, 'pandas' in sys.modules)"
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True
        )
        assert out.stdout.split() == ["False", "False"], out.stderr


def test_a_crash_between_policies_keeps_the_finished_ones(tmp_path, monkeypatch):
    settings = Settings.of("zhou-synthetic", trials=2, horizon=20)
    played = []
    play = experiments._play

    def once(task, folder, progress):
        if task.policy == "CKB-TS" and "CKB-TS" not in played:
            played.append("CKB-TS")
            raise RuntimeError("power cut")
        played.append(task.policy)
        return play(task, folder, progress)

    monkeypatch.setattr(experiments, "_play", once)
    with pytest.raises(RuntimeError):
        experiments.carry_out(settings, tmp_path / "out")
    begun = time.time()
    assert (tmp_path / "out" / "runs" / "CKB-UCB" / "run.pt").stat().st_mtime < begun
    summary = experiments.carry_out(settings, tmp_path / "out", resume=True)
    assert {e["status"] for e in summary["policies"].values()} == {"complete"}
    assert signal.getsignal(signal.SIGINT) is not None
