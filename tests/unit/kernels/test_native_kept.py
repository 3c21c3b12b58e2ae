"""Machine code on disk: found by the next process, made again where it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numba", reason="numba is not installed: plain torch is used")

from terminal import printed

JOINT = """
import torch
from cbandit_kernels import Change, Frame, Look, joint_round, stream_round
one = torch.ones(1, 1, 1, dtype=torch.float64)
look = Look(one[0], None, None, "primal-dual")
mean = torch.tensor([[[0.0, 2.0, 1.0]]], dtype=torch.float64)
eye = torch.eye(3, dtype=torch.float64)[None]
print(joint_round(eye, mean, look, backend="native").index.item())
"""
STREAM = """
points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
frame = Frame(0 * points[None, :1], points[None, :1] + 1)
change, var = Change(0 * one[0], one), torch.ones(1, 3, dtype=torch.float64)
given = points, frame, points[None, :1], one, ("rbf",), change, mean, var, look
print(stream_round(*given, backend="native").index.item())
"""


def kept(folder: Path) -> dict[str, int]:
    """The files of machine code, and when each was written."""
    return {file.name: file.stat().st_mtime_ns for file in folder.rglob("*.nbc")}


@pytest.mark.slow
def test_the_next_process_finds_what_was_compiled(tmp_path):
    folder = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert printed(JOINT + STREAM, **folder).split() == ["1", "1"]
    made = kept(tmp_path)
    assert {name.split("-")[0] for name in made} >= {"loops.joint", "streams.go"}
    # what is damaged is compiled again; what it calls is found, or it would be new too
    (damaged,) = tmp_path.rglob("loops.joint*.nbc")
    damaged.write_bytes(damaged.read_bytes()[:100])
    short = kept(tmp_path)
    assert printed(JOINT + STREAM, **folder).split() == ["1", "1"]
    again = kept(tmp_path)
    assert again.keys() == made.keys()
    assert [name for name in again if again[name] != short[name]] == [damaged.name]


REFUSED = """
from numba.core import caching
def refused(*given, **named): raise RuntimeError("no locator available")
caching.FunctionCache.__init__ = refused
"""


@pytest.mark.slow
def test_where_nothing_can_be_kept_it_is_compiled_again(tmp_path):
    """No folder to keep machine code in: every process compiles for itself."""
    folder = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert printed(REFUSED + JOINT, **folder) == "1"
    assert not kept(tmp_path)
