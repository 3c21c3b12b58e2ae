"""Forged settings of a results folder: nothing they name is imported or called."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from inside import (
    Task,
    file_digest,
    forge,
    jobs_in,
    main,
    reproduced,
    seal_config,
    seal_summary,
    settings_of_experiment,
    simulate,
    write_config,
)
from pyarrow import parquet
from terminal import call, complaint

PROBLEM = 'botorch = "ConstrainedGramacy"\npoints = 4'
CKB = 'type = "CKB"'
BOTORCH = 'type = "BoTorchPolicy"'
# whatever of a planted module is touched leaves the mark
EVIL = """
from pathlib import Path
Path(MARK).touch()
def f(*given, **named):
    Path(MARK).touch()
"""
MINE = """
import os
from os import environ, system
from pathlib import Path
from numpy import save
import cbandit as cb

HERE = Path(__file__)

def problem(points=4):
    from botorch.test_functions.synthetic import ConstrainedGramacy
    return cb.problems.from_botorch(ConstrainedGramacy(), points)
"""
COMMAND = 'command = "touch MARK"'

PROBLEMS = {  # each with the name that the error shows
    f"{key} {words}": (f"{key} = {words}\n{more}", shown)
    for key, words, more, shown in [
        ("botorch", '"synthetic.torch.os.system"', COMMAND, "torch.os.system"),
        ("botorch", '"base.torch.os.system"', COMMAND, "torch.os.system"),
        ("botorch", '"torch.hub.load"', 'repo_or_dir = "evil"', "torch.hub.load"),
        ("botorch", '"synthetic.math.evil"', "", "synthetic.math.evil"),
        ("botorch", '"evil:f"', "", "evil:f"),
        ("botorch", '"os:system"', COMMAND, "os:system"),
        ("botorch", '"evil"', "", "evil"),
        ("botorch", '"__loader__"', "", "__loader__"),
        ("object", '"evil:f"', "", "evil:f"),
        ("object", '"evil:a-b"', "", "evil:a-b"),
        ("object", '"my-evil:f"', "", "my-evil:f"),
        ("object", '"my-evil:a-b"', "", "my-evil:a-b"),
        ("object", '"package.evil:f"', "", "package.evil:f"),
        ("object", '"evil:"', "", "evil:"),
        ("object", '"evil::f"', "", "evil::f"),
        ("object", '"evil:f:f"', "", "evil:f:f"),
        ("object", '":evil"', "", ":evil"),
        ("object", '" evil:f"', "", " evil:f"),
        ("object", '".evil:f"', "", ".evil:f"),
        ("object", '"./evil:f"', "", "./evil:f"),
        ("object", '"evil\\n:f"', "", "evil"),
        ("object", '"evil;touch MARK:f"', "", "evil;touch"),
        ("object", '"evil:__class__"', "", "evil:__class__"),
        ("object", '"os:system"', COMMAND, "os:system"),
        (
            "object",
            '"builtins:exec"',
            "source = \"open('MARK', 'w')\"",
            "builtins:exec",
        ),
        ("object", '"subprocess:call"', 'args = [["touch", "MARK"]]', "subprocess"),
        ("object", '"cbandit._core.names:importlib.import_module"', "", "importlib"),
    ]
}
POLICIES = {
    f"{name}, {more}": (f"{kind}\n{more}", shown)
    for name, kind, more, shown in [
        ("type", "", 'type = "evil:f"', "evil:f"),
        ("type", "", 'type = "evil:a-b"', "evil:a-b"),
        ("type", "", 'type = "my-evil:f"', "my-evil:f"),
        ("type", "", 'type = "os:system"\n' + COMMAND, "os:system"),
        ("argument", CKB, 'explore = { type = "evil:f" }', "evil:f"),
        ("argument", CKB, 'explore = { type = "os:system", COMMAND }', "os:system"),
        (
            "inner",
            CKB,
            'explore = { type = "UCB", beta = { type = "my-evil:f" } }',
            "my",
        ),
        ("list", CKB, 'clip = [[{ type = "evil:f" }, 2.0]]', "evil:f"),
        ("kernel", CKB, 'belief = { kernel = "evil:f" }', "evil:f"),
        ("kernel", CKB, 'belief = { kernel = "evil:a-b" }', "evil:a-b"),
        ("kernel", CKB, 'reward = { kernel = "my-evil:f" }', "my-evil:f"),
        ("belief", CKB, 'costs = { type = "evil:a-b" }', "evil:a-b"),
        ("acquisition", BOTORCH, 'acquisition = "evil:f"', "evil:f"),
        (
            "acquisition",
            BOTORCH,
            'acquisition = "analytic.torch.os.system"',
            "os.system",
        ),
        ("acquisition", BOTORCH, 'acquisition = { type = "my-evil:f" }', "my-evil:f"),
        (
            "acquisition",
            BOTORCH,
            'acquisition = { type = "qKnowledgeGradient", x = { type = "evil:f" } }',
            "evil:f",
        ),
    ]
}
# of a trusted module, what it has imported itself
THROUGH = {
    f"through {words}": (f'object = "{words}"\n{COMMAND}', words)
    for words in (
        "mine:os.system",
        "mine:system",
        "mine:cb.problems.Table",
        "mine:problem.__globals__",
        "mine:problem.__class__",
        "mine:HERE.write_text",
        "mine:HERE",
        "mine:save",
        "mine:environ.clear",
        "mine_too:f",
    )
}
ATTACKS = {
    **{
        name: ("[problem]", entry, CKB, shown)
        for name, (entry, shown) in PROBLEMS.items()
    },
    **{name: ("[policies.P]", PROBLEM, *pair) for name, pair in POLICIES.items()},
}


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A working directory with evil modules in it, and the mark that they leave."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    mark, before = tmp_path / "mark", set(sys.modules)
    places = ["", "theirs", "package"]
    for place in places:
        folder = tmp_path / place
        folder.mkdir(exist_ok=True)
        for name in ("evil", "my-evil", "mine_too", "a"):
            (folder / f"{name}.py").write_text(EVIL.replace("MARK", repr(str(mark))))
    Path("package/__init__.py").write_text(EVIL.replace("MARK", repr(str(mark))))
    Path("mine.py").write_text(MINE)
    yield mark
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("evil", "my-evil", "mine", "package", "mine_too"):
            del sys.modules[name]


def forged(mark, problem, policy, name="config.toml"):
    """A results folder whose sealed settings name what they should not."""
    folder = Path("theirs")
    text = f"horizon = 3\ntrials = 1\n[problem]\n{problem}\n[policies.P]\n{policy}\n"
    text = text.replace("COMMAND", COMMAND).replace("MARK", str(mark))
    seal_config(text, folder / name)
    return folder


def refused(capsys, mark, *command):
    """The one line with which a command is refused, after nothing has run."""
    line = complaint(capsys, *command)
    assert line.startswith("Error: ")
    assert line.count("\n") == 1
    assert not mark.exists(), "it ran"
    assert not {"evil", "my-evil", "package", "mine_too"} & sys.modules.keys()
    return line


def test_the_plants_work(planted):
    """Where they are trusted they do what they should."""
    for command in (["-c", "import evil"], ["-c", "__import__('my-evil').f()"]):
        subprocess.run([sys.executable, *command], check=True)
        assert planted.exists()
        planted.unlink()
    os.system(f"touch {planted}")
    assert planted.exists()
    assert len(ATTACKS) + len(THROUGH) >= 28


@pytest.mark.parametrize("name", ATTACKS)
def test_a_folder_runs_nothing_that_is_not_trusted(name, planted, capsys):
    entry, problem, policy, shown = ATTACKS[name]
    folder = forged(planted, problem, policy)
    forged(planted, problem, policy, "copy.toml")
    for command in (
        ["run", folder / "config.toml", "--out", "out"],
        ["run", folder / "config.toml", "--out", folder, "--resume"],
        ["run", folder / "copy.toml", "--out", "out"],
        ["run", folder / "config.toml", "--out", "out", "--trust", "mine"],
    ):
        line = refused(capsys, planted, *command)
        assert entry in line
        assert shown in line
        assert "--trust" in line
    for command in ("plot", "compare"):
        refused(capsys, planted, command, folder)
    assert not Path("out").exists()


@pytest.mark.parametrize("name", THROUGH)
def test_trust_ends_with_the_module(name, planted, capsys):
    problem, words = THROUGH[name]
    folder = forged(planted, problem, 'type = "Random"')
    command = ["run", folder / "config.toml", "--out", "out", "--trust", "mine"]
    line = refused(capsys, planted, *command)
    assert "[problem] object: " in line
    assert words in line


def test_a_trusted_study_runs(planted, capsys):
    folder = forged(planted, 'object = "mine:problem"\npoints = 5', 'type = "Random"')
    command = ["run", folder / "config.toml", "--out", "out"]
    assert "--trust mine" in refused(capsys, planted, *command)
    assert call(capsys, *command, "--trust", "mine")[::2] == (0, "")
    assert Path("out/summary.json").exists()
    assert not planted.exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            "".join(f"a{k} = {list(range(9))}\n" for k in range(12)),
            "lists of 282429536481 combinations in all",
        ),
        (f"[x{'.y' * 15_000}]\n", "keys of at most 100 parts"),
        ("# " + "." * (1 << 20), "at most 1048576 bytes"),
    ],
)
def test_a_small_file_does_not_stand_for_a_large_one(more, words, planted, capsys):
    folder = forged(planted, PROBLEM, f"{CKB}\n{more}")
    assert words in refused(capsys, planted, "run", folder / "config.toml")


# the time of the compression is among the first bytes; 0x81 is no letter
@pytest.mark.parametrize("mtime", [0, 0x81818181])
def test_a_table_does_not_inflate(planted, capsys, mtime):
    text = b"x,y\n" + b"1,2\n" * 100_000
    Path("theirs/data.csv.gz").write_bytes(gzip.compress(text, 9, mtime=mtime))
    table = 'table = "data.csv.gz"\nmaximise = "y"\n[problem.limits]\nx = "<= 1"'
    folder = forged(planted, table, CKB)
    line = refused(capsys, planted, "run", folder / "config.toml")
    assert "data.csv.gz cannot be read as CSV" in line
    assert "unpacked first" in line


@pytest.mark.parametrize("name", ["", "..", "../up", "/up", "a/b", "a\\\\b"])
def test_a_study_names_no_other_folder(name, planted, capsys):
    folder = forged(planted, PROBLEM, CKB)
    text = (folder / "config.toml").read_text().rpartition("# digest")[0]
    seal_config(f'name = "{name}"\n{text}', folder / "config.toml")
    line = refused(capsys, planted, "run", folder / "config.toml")
    assert "name must be a text that can name a folder" in line


def test_no_module_can_be_meant_by_odd_words(planted, capsys):
    settings = settings_of_experiment(
        "cbo-gpu-allocation", trials=1, horizon=2, policies=["SCGP-UCB"]
    )
    Path("out").mkdir()
    write_config(settings, Path("out"))
    for odd in ("", ".", ".evil", "evil:f"):
        with pytest.raises(SystemExit) as ended:
            main(["run", "out/config.toml", "--out", "out", "--resume", "--trust", odd])
        assert ended.value.code == 2
        assert f"trust: {odd}: " in capsys.readouterr().err
        assert not planted.exists()


ROWS = 2 * 10**7  # that a few bytes stand for


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished folder of an experiment."""
    out = tmp_path_factory.mktemp("finished") / "out"
    few = {"trials": 2, "horizon": 5, "policies": ["SCGP-UCB"]}
    reproduced(out, "cbo-gpu-allocation", **few)
    return out


def resealed(folder, **changes):
    """Seal a folder's summary anew, with the digests of its tables as they are."""
    path = folder / "summary.json"
    summary = {**json.loads(path.read_bytes()), **changes}
    summary.pop("digest")
    if "tables" not in changes:
        names = list(summary["tables"])
        summary["tables"] = {name: file_digest(folder / name) for name in names}
    seal_summary(summary, path)


def bomb(name):
    """A table of many rows in a few kilobytes."""
    numbers = pa.array([0.0])
    if name == "runs of one value":
        column = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(ROWS, dtype="int8")), numbers
        )
        return pa.table({"t": column}), {}
    return pa.table({"t": np.zeros(ROWS // 10)}), {
        "compression": "zstd",
        "use_dictionary": False,
    }


@pytest.mark.parametrize("name", ["runs of one value", "another codec"])
@pytest.mark.parametrize("table", ["rounds.parquet", "means.parquet"])
def test_a_table_of_results_does_not_inflate(finished, tmp_path, name, table, capsys):
    folder = tmp_path / "theirs"
    shutil.copytree(finished, folder)
    content, options = bomb(name)
    parquet.write_table(content, folder / table, row_group_size=ROWS, **options)
    assert (folder / table).stat().st_size < 10**5
    resealed(folder)
    command = "compare" if table == "rounds.parquet" else "plot"
    line = complaint(capsys, command, folder)
    assert f"{table} is not one of ours: it would take far more memory" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"tables": {"../../secret": "0"}},
        {"tables": {"/dev/zero": "0"}},
        {"tables": 5},
        {"tables": None},
        {"policies": [1]},
    ],
    ids=str,
)
def test_a_summary_names_its_own_tables(finished, tmp_path, changes, capsys):
    folder = tmp_path / "theirs"
    shutil.copytree(finished, folder)
    resealed(folder, **changes)
    for command in ("compare", "plot"):
        line = complaint(capsys, command, folder)
        assert "summary.json is not the summary of an experiment" in line
        assert line.count("\n") == 1


def test_a_checkpoint_names_no_other_acquisition_function(planted, capsys):
    """Its policy comes back with the class that the study named, or not at all."""
    text = "horizon = 4\ntrials = 1\n[problem]\nbotorch = 'ConstrainedGramacy'\n"
    text += "points = 4\n[policies.P]\ntype = 'BoTorchPolicy'\n"
    text += "acquisition = { type = 'qUpperConfidenceBound', beta = 2.0 }\n"
    Path("study.toml").write_text(text)
    (job,) = jobs_in("study.toml")
    task = Task(job.experiment, job.settings, "P", range(1))
    problem = task.problem()
    folder = Path("theirs")
    write_config(job.settings, folder)
    (folder / "checkpoints").mkdir()
    path = folder / "checkpoints" / "P.ckpt"
    simulate(task.make(problem), problem, 2, path, progress=False)
    body = path.read_bytes().partition(b"\n")[2]
    name = b"botorch.acquisition.monte_carlo:qUpperConfidenceBound"
    assert name in body
    again = ["run", folder / "config.toml", "--out", folder, "--resume"]
    for other in (b"evil:f", b"os:system", b"my-evil:f"):
        forge(path, "simulation", body.replace(name, other))
        line = complaint(capsys, *again)
        assert f"it holds {other.decode()}, which cbandit does not know" in line
        assert not planted.exists()
    forge(path, "simulation", body)
    assert call(capsys, *again)[0] == 0
