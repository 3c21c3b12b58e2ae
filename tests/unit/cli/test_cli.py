"""The command line: what it prints, and that errors are one line."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from inside import EXPERIMENTS, number, settings_of_experiment
from matplotlib.image import imread
from terminal import SMALL, call, complaint, printed


def test_help_is_quick_and_has_examples(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert "reproduce" in out
    names = "list", "init", "data", "reproduce", "run", "compare", "plot", "info"
    for command in names:
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


@pytest.mark.parametrize("switch", ["0", "1"])
def test_info_says_how_rounds_are_computed(switch):
    code = "import cbandit.cli as cli; cli.main(['info'])"
    out = printed(code, CBANDIT_NATIVE=switch)
    (line,) = [line for line in out.splitlines() if line.startswith("rounds on the")]
    if switch == "0":
        assert line == "rounds on the CPU: plain torch, because CBANDIT_NATIVE=0 is set"
    elif find_spec("numba"):
        assert line == "rounds on the CPU: compiled loops (numba)"
    else:
        assert "pip install 'cbandit[native]'" in line


def test_list(capsys):
    _, out, _ = call(capsys, "list")
    for name in EXPERIMENTS:
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


@pytest.mark.parametrize(
    "given", [["--set", "d=3", "tau=0.2"], ["--set", "d=3", "--set", "tau=0.2"]]
)
def test_set_takes_several_parameters(given, capsys, tmp_path):
    few = ["--trials", 1, "--horizon", 2, "--out", tmp_path / "out"]
    assert call(capsys, "reproduce", "pacchiano-cyclic", *given, *few)[0] == 0
    kept = tomllib.loads((tmp_path / "out" / "config.toml").read_text())
    assert (kept["parameters"]["d"], kept["parameters"]["tau"]) == (3, 0.2)
    assert kept["trials"] == 1


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


def test_a_run_is_named_after_its_experiment(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = settings_of_experiment(
        "zhou-synthetic", trials=1, horizon=9, policies=["CKB-UCB"]
    )
    Path("config.toml").write_text(settings.toml())
    code, text, _ = call(capsys, "run", "config.toml")
    assert code == 0
    assert "cbandit plot results/zhou-synthetic draws them" in text
    assert [each.name for each in Path("results").iterdir()] == ["zhou-synthetic"]


def test_settings_that_are_odd(capsys, tmp_path):
    path = tmp_path / "odd.toml"
    for text, words in [
        ("colour = 1", "unknown settings: colour; known are experiment, parameters"),
        ("device = 99", "device 'cuda:99' is not here: torch"),
        ("device = -3", "device must be 'cpu' or 'cuda'; got 'cuda:-3'"),
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
            capsys,
            *("reproduce", "pacchiano-opb-four", *few, "--out", folders[-1]),
            figures=tau == "0.8",
        )
        assert code == 0
        assert "policy regret" in text
        assert "in every round of 100.0000% of the runs" in text
        assert "+-" not in text
        assert "nan" not in text
        assert "-0.00" not in text
    assert (folders[0] / "evolution.png").exists()
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
    assert sizes[0][1] == sizes[1][1]  # both are as wide as two columns of a paper
    assert sizes[0][0] > sizes[2][0]  # two rows, or one


@pytest.mark.parametrize(
    ("mean", "sem", "words"),
    [
        (65.914, 138.21, "65.91 +- 138.2"),
        (0.5, 99.7, "0.5 +- 99.7"),
        (1.23456e6, 9.87e5, "1.235e+06 +- 9.87e+05"),
        (3.0, 0.0123, "3 +- 0.012"),
        (-26003.1, 160.9, "-26003 +- 160.9"),
        (123456.0, 12.0, "123456 +- 12"),
        (12345.678, 0.012, "12345.678 +- 0.012"),
        (1e5, 0.0, "100000 +- 0"),
        (0.0, 0.3, "0 +- 0.3"),
    ],
)
def test_numbers_read_well(mean, sem, words):
    assert number(mean, sem, 10) == words


def test_workers_is_a_number_or_ray(capsys):
    for wrong in ("0", "two", "-1", "1.5"):
        line = complaint(capsys, "reproduce", "zhou-synthetic", f"--workers={wrong}")
        assert "a number above 0, or ray" in line


def test_missing_data_is_one_line(capsys, tmp_path, monkeypatch):
    from inside import data

    monkeypatch.setattr(data, "folders", lambda: [tmp_path])
    line = complaint(capsys, "reproduce", "zhou-light", "--out", tmp_path / "out")
    assert "light_train.csv" in line
    assert "601 x 41" in line
    assert line.count("light_train.csv") == 1  # of all five policies
    assert all(name in line for name in EXPERIMENTS["zhou-light"].policies)
    assert line.count("\n") == 1
