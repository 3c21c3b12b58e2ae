"""Two processes that share an action set do as one does, or say which was lost."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from itertools import pairwise

import pandas as pd
import pytest
import ranks
import torch
from inside import grid_split, partition, shares
from places import COMMON, ROOT

import cbandit as cb

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
    "OMP_NUM_THREADS": "1",
}
CASES = ("grid", "grid-ts", "line", "finite", "finite-ts", "small")


def start(folder, size, *cases):
    command = [sys.executable, str(COMMON / "ranks.py"), str(folder)]
    return [
        subprocess.Popen(
            [*command, str(rank), str(size), *cases],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


class TestShares:
    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    @pytest.mark.parametrize("sizes", [(1000,), (3, 400), (40, 30), (7, 5, 11)])
    @pytest.mark.parametrize("block", [16, 100, 1 << 17])
    def test_cover_the_set_once_in_stretches_that_engines_can_sweep(
        self, count, sizes, block
    ):
        grid = cb.ProductGrid([torch.arange(float(n)) for n in sizes])
        row = math.prod(sizes[grid_split(grid) :])
        parts = shares(grid, block, count)
        assert len(parts) == count
        found = [each for part in parts for each in partition(grid, block, *part)]
        assert found[0][0] == 0
        assert found[-1][1] == grid.size
        assert all(a[1] == b[0] for a, b in pairwise(found))
        for start, stop in found:
            whole = start % row == 0 and stop % row == 0
            assert start < stop
            assert whole or start // row == (stop - 1) // row
        lengths = [last - first for first, last in parts]
        assert max(lengths) <= 2 * grid.size / count

    def test_blocks_are_those_of_one_process(self):
        grid = cb.ProductGrid([torch.arange(1000.0)] * 2)
        whole = list(partition(grid, 1 << 17))
        for count in (2, 3, 8):
            split = [
                each
                for part in shares(grid, 1 << 17, count)
                for each in partition(grid, 1 << 17, *part)
            ]
            assert split == whole

    def test_fewer_actions_than_ranks(self):
        with pytest.raises(cb.CBanditError, match="as many as the 4 ranks"):
            shares(cb.Finite(torch.rand(3, 1)), 100, 4)


def test_shard_needs_a_process_group():
    with pytest.raises(cb.CBanditError, match="torchrun"), cb.distributed.shard():
        pass


def test_alone_nothing_is_exchanged():
    alone = cb.distributed.current()
    assert (alone.rank, alone.size) == (0, 1)
    assert alone.first(lambda: 3) == 3
    assert alone.either(True, False) == (True, False)


@pytest.mark.slow
@pytest.mark.dist
def test_two_ranks_do_as_one_process(tmp_path):
    started = start(tmp_path, 2, *CASES)
    alone = tmp_path / "alone"
    alone.mkdir()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = {case: ranks.story(case, alone) for case in CASES}
    finally:
        torch.set_num_threads(before)
    for each in started:
        _, said = each.communicate(timeout=600)
        assert each.returncode == 0, said
    for case, one in expected.items():
        two = [torch.load(tmp_path / f"{case}.{rank}") for rank in range(2)]
        assert len(set(one["chosen"])) > 20
        for each in two:
            for name in ("chosen", "best", "next"):
                assert each[name] == one[name], (case, name)
            for name in ("mean", "std", "margin", "multiplier"):
                torch.testing.assert_close(each[name], one[name], rtol=0, atol=1e-10)
        kept = torch.tensor([each["kept"] for each in two])
        if case == "small":  # kept whole by both
            assert kept.tolist() == [one["kept"]] * 2
        else:
            assert kept.sum(0).tolist() == one["kept"]
            assert kept.max() <= 0.6 * max(one["kept"])
        # what two have saved one can go on with
        later = cb.load(tmp_path / f"{case}.policy")
        assert ranks.play(later, 5) == one["next"]


@pytest.mark.slow
@pytest.mark.dist
def test_a_killed_rank_is_named(tmp_path):
    started = start(tmp_path, 3, "killed")
    said = [each.communicate(timeout=300)[1] for each in started]
    assert [each.returncode for each in started] == [1, -9, 1]
    for text in (said[0], said[2]):
        last = text.strip().splitlines()[-1]
        assert "LostRankError: rank 1 of 3 does not answer" in last


@pytest.mark.slow
@pytest.mark.dist
def test_torchrun_reproduces(tmp_path):
    given = ["-m", "cbandit", "reproduce", "guo-classical", "--policies"]
    given += ["RPOL-UCB,CONFIG", "--trials", "2", "--horizon", "30", "--out"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    printed = []
    for name, head in (("one", [sys.executable]), ("two", launch)):
        ended = subprocess.run(
            [*head, *given, str(tmp_path / name)],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stderr
        printed.append(ended.stdout)
    for text in printed:
        assert text.count("figures:") == 1
        assert text.count("CONFIG") == printed[0].count("CONFIG")
    one, two = (
        pd.read_parquet(tmp_path / w / "rounds.parquet") for w in ("one", "two")
    )
    pd.testing.assert_frame_equal(one, two, rtol=1e-9, atol=1e-9)
