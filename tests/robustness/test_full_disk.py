"""A full disk, a quota, a read-only folder: one line, and what was there stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from inside import files
from places import COMMON, ROOT
from terminal import call
from worlds import grown

import cbandit as cb

pytest.importorskip("resource", reason="quotas and locks here are Unix's")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 256 kB; skipped where this user may not mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    tool = shutil.which("mount")
    asked = [tool or "mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if tool is None or subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("mounting a small disk takes rights that this user has not")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_a_line_and_the_old_checkpoint_stays(small_disk):
    path = small_disk / "state.ckpt"
    policy = grown(10)
    policy.save(path)
    before = path.read_bytes()
    with open(small_disk / "filler", "wb") as file:
        file.write(bytes(os.statvfs(small_disk).f_bavail * 4096 - 8192))
    with pytest.raises(cb.CBanditError) as full:
        policy.save(path)
    assert str(full.value).startswith(f"{path} cannot be written: No space left")
    assert str(full.value).endswith("; the one that is there was kept")
    assert path.read_bytes() == before
    assert {each.name for each in small_disk.iterdir()} == {"state.ckpt", "filler"}
    assert cb.load(path).t == 10
    (small_disk / "filler").unlink()
    policy.save(path)


def test_an_experiment_on_a_full_disk_says_so_and_goes_on_later(capsys, small_disk):
    few = ["reproduce", "zhou-synthetic", "--policies", "CKB-UCB", "--trials", 1]
    few += ["--horizon", 200, "--out", small_disk / "out"]
    with open(small_disk / "filler", "wb") as file:
        file.write(bytes(200 * 1024))
    code, _, said = call(capsys, *few)
    assert code == 2
    assert "cannot be written: No space left" in said
    assert said.count("\n") == 1
    assert not list(small_disk.rglob("*.part"))
    (small_disk / "filler").unlink()
    # the figures alone take more than the disk has: the tables before them are whole
    code, _, said = call(capsys, *few, "--resume")
    assert not list(small_disk.rglob("*.part"))
    if code:
        assert "cannot be written: No space left" in said


def limited(size, script):
    """Run code that may write no file above a size; what it says."""
    before = "import resource, sys\n"
    before += f"sys.path.insert(0, {str(COMMON)!r})\n"
    before += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
    done = subprocess.run(
        [sys.executable, "-c", before + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_file_above_the_quota_is_a_line(tmp_path):
    path = tmp_path / "state.ckpt"
    grown(3).save(path)
    before = path.read_bytes()
    said = limited(
        4096,
        f"""
        import cbandit as cb
        from worlds import grown
        try:
            grown(3).save({str(path)!r}, overwrite=True)
        except cb.CBanditError as error:
            print(error)
        """,
    )
    assert said.startswith(f"{path} cannot be written: File too large")
    assert "\n" not in said
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["state.ckpt"]


def test_a_figure_above_the_quota_is_a_line(tmp_path):
    path = tmp_path / "a.png"
    said = limited(
        4096,
        f"""
        import cbandit as cb, matplotlib.figure
        figure = matplotlib.figure.Figure()
        figure.add_subplot().set_title("a title that is long enough " * 3)
        try:
            cb.plots.save(figure, {str(path)!r})
        except cb.CBanditError as error:
            print(error)
        """,
    )
    assert said.startswith(f"{path} cannot be written: File too large")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_a_table_above_the_quota_is_a_line(tmp_path, kind):
    path = tmp_path / "a.parquet"
    said = limited(
        4096,
        f"""
        import cbandit as cb, numpy, pandas, pyarrow, pyarrow.parquet
        from inside import files
        frame = pandas.DataFrame({{"a": numpy.arange(20000) * 1.1}})
        try:
            with files.atomic({str(path)!r}) as file:
                if {kind!r} == "pandas":
                    frame.to_parquet(file)
                else:
                    pyarrow.parquet.write_table(pyarrow.table(frame), file)
        except cb.CBanditError as error:
            print(error)
        """,
    )
    assert said.startswith(f"{path} cannot be written: File too large")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept(tmp_path):
    path = tmp_path / "state.ckpt"
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(COMMON)!r})
from inside import files
with files.atomic({str(path)!r}) as file:
    file.write(b"half")
    file.flush()
    print("half", flush=True)
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.readline()
"""

    def writer(how):
        started = subprocess.Popen(
            [sys.executable, "-c", script, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
        )
        assert started.stdout.readline() == "half\n"
        return started

    writer("die").communicate()
    assert len(list(tmp_path.glob(".*.part"))) == 1
    alive = writer("live")
    other = tmp_path / ".other.ckpt.00000000.part"
    other.touch()
    with files.atomic(path) as file:
        file.write(b"whole")
    parts = list(tmp_path.glob(".*.part"))
    assert other in parts
    assert len(parts) == 2  # of other files, and of a process that is at it, none goes
    assert path.read_bytes() == b"whole"
    alive.communicate("go on\n")
    assert alive.returncode == 0
    assert path.read_bytes() == b"half"
    assert list(tmp_path.glob(".*.part")) == [other]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_folder_is_a_line(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(cb.CBanditError, match="cannot be written: Permission denied"):
        grown(1).save(tmp_path / "state.ckpt")


def test_an_error_of_another_kind_stays_what_it_is(tmp_path):
    with pytest.raises(FileNotFoundError), files.atomic(tmp_path / "a") as _:
        Path(tmp_path / "missing").read_bytes()
    assert list(tmp_path.iterdir()) == []
