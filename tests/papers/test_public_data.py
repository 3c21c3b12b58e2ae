"""``cbandit data``: public copies become what the experiments read, or say why not."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
import torch
from inside import data
from scipy.io import savemat
from terminal import call, complaint

import cbandit as cb
from cbandit.problems import zhou_finance, zhou_light


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CBANDIT_DATA", str(tmp_path / "data"))
    return tmp_path


def sensors(path, train=(601, 41), test=(192, 41)):
    """A file laid out like the public copy of the sensors, with numbers of our own."""
    draw = np.random.default_rng(0)
    parts = {
        name: {"sensordata": draw.integers(70, 1400, shape).astype(float)}
        for name, shape in (("train", train), ("test", test))
    }
    savemat(path, {"data": {**parts, "coords": draw.random((41, 2))}})
    return {name: part["sensordata"] for name, part in parts.items()}


def prices(path, days=823, stocks=29, end="\n"):
    table = np.random.default_rng(1).random((days, stocks)) * 300
    lines = ["Date," + ",".join(f"S{k}" for k in range(stocks))]
    lines += [
        f"2016-01-{k}," + ",".join(map(repr, row.tolist()))
        for k, row in enumerate(table)
    ]
    path.write_bytes((end.join(lines) + end).encode())
    return table


def test_sensors_are_read_by_their_experiment(home, capsys):
    wanted = sensors(home / "iw_data_all.mat")
    code, out, _ = call(capsys, "data", home / "iw_data_all.mat", "--changed")
    assert code == 0
    for name in ("light_train.csv", "light_test.csv"):
        assert str(home / "data" / name) in out
    train, test = data.light()
    assert torch.equal(train, torch.from_numpy(wanted["train"]))
    assert torch.equal(test, torch.from_numpy(wanted["test"]))
    assert zhou_light(trials=1).actions.size == 41


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_stocks_are_read_by_their_experiment(home, capsys, end):
    wanted = prices(home / "fin.csv", end=end)
    code, out, _ = call(capsys, "data", home / "fin.csv", "--changed")
    assert (code, out.split()[-1]) == (
        0,
        str(home / "data" / "stocks_dow29_adjclose.csv"),
    )
    assert torch.equal(data.stocks(), torch.from_numpy(wanted))
    assert zhou_finance(trials=1).actions.size == 29


def test_other_numbers_are_refused_unless_they_are_wanted(home, capsys):
    sensors(home / "iw_data_all.mat")
    said = complaint(capsys, "data", home / "iw_data_all.mat")
    assert "light_train.csv, but other numbers" in said
    assert "--changed" in said
    assert not (home / "data").exists()


def test_the_digest_is_of_the_numbers():
    table = np.array([[1.0, 2.5], [-3.0, 1e-9]])
    packed = struct.pack("<4d", 1.0, 2.5, -3.0, 1e-9)
    assert data.digest(table) == hashlib.sha256(packed).hexdigest()
    assert data.digest(table.astype(">f8").T.copy().T) == data.digest(table)


def test_the_papers_own_numbers_pass(tmp_path, capsys, monkeypatch):
    try:
        train, test = data.light()
        prices = data.stocks()
    except cb.MissingDataError as error:
        pytest.skip(str(error))
    home = tmp_path
    monkeypatch.setenv("CBANDIT_DATA", str(home / "data"))
    parts = {
        "train": {"sensordata": train.numpy()},
        "test": {"sensordata": test.numpy()},
    }
    savemat(home / "copy.mat", {"data": parts})
    lines = [",".join(map(repr, row)) for row in prices.tolist()]
    text = "Date" + ",S" * 29 + "\n" + "".join(f"day,{each}\n" for each in lines)
    (home / "copy.csv").write_text(text)
    code, _, said = call(capsys, "data", home / "copy.mat", home / "copy.csv")
    assert (code, said) == (0, "")
    assert torch.equal(data.light()[1], test)
    assert torch.equal(data.stocks(), prices)


def test_a_wrong_shape_is_named(home, capsys):
    sensors(home / "a.mat", test=(191, 41))
    said = complaint(capsys, "data", home / "a.mat", "--changed")
    assert "light_test.csv has 192 x 41 numbers; found 191 x 41" in said
    assert not (home / "data").exists()
    prices(home / "b.csv", days=800)
    said = complaint(capsys, "data", home / "b.csv", "--changed")
    assert "823 x 29 numbers; found 800 x 29" in said
    prices(home / "c.csv", stocks=20)
    assert "c.csv is not stocks_dow29" in complaint(capsys, "data", home / "c.csv")


def test_unknown_files_are_told_of_those_that_are_understood(home, capsys):
    (home / "notes.txt").write_text("hello")
    (home / "other.csv").write_text("a,b\n1,2\n")
    (home / "broken.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    savemat(home / "other.mat", {"x": np.eye(3)})
    for name in ("notes.txt", "other.csv", "broken.mat", "other.mat", "missing.mat"):
        said = complaint(capsys, "data", home / name)
        for word in (name, "iw_data_all.mat", "fin.csv", "sayakrc/"):
            assert word in said, name
    assert not (home / "data").exists()


def test_missing_numbers_are_refused(home, capsys):
    prices(home / "fin.csv")
    text = (home / "fin.csv").read_text().splitlines()
    text[5] = "2016-01-4" + ",nan" * 29
    (home / "fin.csv").write_text("\n".join(text) + "\n")
    said = complaint(capsys, "data", home / "fin.csv", "--changed")
    assert "missing or infinite" in said


def test_the_users_folder_is_the_default(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CBANDIT_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data.folders()[-1] == tmp_path / "cbandit"
    prices(tmp_path / "fin.csv")
    call(capsys, "data", tmp_path / "fin.csv", "--changed")
    assert (tmp_path / "cbandit" / "stocks_dow29_adjclose.csv").is_file()
