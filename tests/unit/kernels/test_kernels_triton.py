"""Triton kernels, in its interpreter or on a GPU, against their plain references."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from inside import plain_torch
from launches import DEVICE, Case, differences, launch, parts, small_blocks

import cbandit_kernels as ck

# cuBLAS refuses deterministic algorithms without it
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
pytestmark = pytest.mark.filterwarnings("ignore:.*deterministic")
pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def poisoned():
    """What is allocated and never written is NaN, or the greatest integer."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3, device=DEVICE).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


def check_finish(case):
    seen = case.finish(small_blocks(launch.finish))
    assert differences(case, seen, case.finish(ck.finish_round_ref)) == []


def check_stream(case):
    seen = case.stream(small_blocks(launch.stream))
    assert differences(case, seen, case.stream(ck.stream_round_ref)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
class TestAgainstReferences:
    @pytest.mark.parametrize("far", [False, True])
    @pytest.mark.parametrize("kind", ck.KINDS)
    def test_every_kernel(self, kind, far, dtype):
        check_stream(Case(kinds=(kind,), dtype=dtype, far=far, dim=3, columns=2))

    @pytest.mark.parametrize("kind", [k for k in ck.KINDS if k != "linear"])
    def test_far_apart_and_together(self, kind, dtype):
        case = Case(kinds=(kind,), dtype=dtype, far=True, n=70)
        case.frame = case.frame._replace(scale=case.frame.scale * 1e4)
        case.points[1::2] = case.tried[0, 1].to(dtype)
        check_stream(case)

    def test_as_far_as_squares_are_taken(self, dtype):
        # |x|^2 of 100, or 500, in the corners
        reach, limit = (100, 1e-4) if dtype == torch.float32 else (500, 1e-12)
        case = Case(dtype=dtype, n=200, columns=2)
        scale = torch.full_like(case.frame.scale, (2 * reach) ** 0.5)
        case.frame = ck.Frame(torch.full_like(scale, 0.5), scale)
        corners = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
        case.points[:4] = torch.tensor(corners, dtype=dtype)
        case.tried[0, :4] = 0.01 + 0.98 * case.points[:4].double()
        case.mean = torch.zeros_like(case.mean)
        case.change.shift[:] = torch.eye(2, dtype=torch.float64)
        columns, _, _ = case.stream(small_blocks(launch.stream))
        gaps = case.points.double() - case.tried[0].unsqueeze(1)
        values = torch.exp(-reach * gaps.square().sum(-1))
        wanted = case.weights[0].mT @ values
        assert wanted.abs().amax() > 0.5
        assert (columns[0].double() - wanted).abs().amax() < limit

    def test_products_of_factors(self, dtype):
        check_stream(Case(kinds=("rbf", "linear", "matern52"), dtype=dtype))

    @pytest.mark.parametrize("score", ck.SCORES)
    def test_every_score(self, score, dtype):
        case = Case(n=40, trials=2, functions=3, score=score, dtype=dtype)
        check_finish(case)
        check_finish(replace(case, clipped=False, masked=True))
        check_finish(replace(case, drawn=True))

    @pytest.mark.parametrize("n", [1, 31, 32, 33, 64])
    def test_odd_sizes(self, n, dtype):
        check_finish(Case(n=n, dtype=dtype))
        check_stream(Case(n=n, used=1, dim=1, dtype=dtype))

    def test_trials_of_their_own(self, dtype):
        check_stream(Case(trials=3, own_points=True, masked=True, dtype=dtype))
        check_stream(Case(trials=3, functions=4, drawn=True, dtype=dtype))

    def test_a_look_without_a_change(self, dtype):
        case = Case(columns=0, n=40, dtype=dtype)
        mean, var, _ = case.finish(small_blocks(launch.finish))
        check_finish(case)
        assert torch.equal(mean, case.mean)
        assert torch.equal(var, case.var)

    def test_one_function_and_several_changes(self, dtype):
        check_finish(Case(functions=1, columns=5, dtype=dtype))
        check_stream(Case(functions=1, columns=3, used=9, dtype=dtype))

    def test_sixteen_coordinates(self, dtype):
        check_stream(Case(dim=16, used=3, n=20, dtype=dtype))

    def test_blocks_of_its_own_choosing(self, dtype):
        case = Case(n=700, dtype=dtype, dim=4)
        seen = case.stream(launch.stream)
        assert differences(case, seen, case.stream(ck.stream_round_ref)) == []
        seen = case.finish(launch.finish)
        assert differences(case, seen, case.finish(ck.finish_round_ref)) == []


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes(seed):
    generator = torch.Generator().manual_seed(100 + seed)

    def pick(low, high):
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    case = Case(
        n=pick(1, 70),
        trials=pick(1, 3),
        functions=pick(2, 4),
        dim=pick(1, 5),
        used=pick(1, 9),
        columns=pick(1, 3),
        kinds=(ck.KINDS[pick(0, 4)],),
        dtype=(torch.float32, torch.float64)[pick(0, 1)],
        score=ck.SCORES[pick(0, 3)],
        masked=bool(pick(0, 1)),
        drawn=bool(pick(0, 1)),
        far=bool(pick(0, 1)),
        own_points=bool(pick(0, 1)),
        seed=seed,
    )
    check_stream(case)
    check_finish(case)


class TestTies:
    def _level(self, n):
        case = Case(n=n, columns=0, functions=2)
        case.mean = torch.zeros_like(case.mean)
        case.var = torch.ones_like(case.var)
        return case

    def _chosen(self, case):
        """The choices of the kernel and of the reference."""
        plays = small_blocks(launch.finish), ck.finish_round_ref
        return [case.finish(play)[2].index.tolist() for play in plays]

    def test_the_lowest_of_all_is_taken(self):
        assert self._chosen(self._level(70)) == [[0], [0]]

    @pytest.mark.parametrize("equal", [(5, 9), (20, 69), (31, 32)])
    def test_the_lower_of_two_is_taken(self, equal):
        case = self._level(70)
        case.look = replace(case.look, bound=None)
        case.mean[0, 0, list(equal)] = 4.0
        assert self._chosen(case) == [[min(equal)]] * 2

    @pytest.mark.parametrize("drawn", [False, True])
    def test_the_lowest_that_comes_close_is_taken(self, drawn):
        case = self._level(70)
        case.draw = torch.zeros_like(case.mean) if drawn else None
        # each is close to the next; the first two blocks' greatest to the greatest
        case.mean[0, 0, [3, 7, 20, 40, 69]] = torch.tensor(
            [4.0, 4.2, 4.9, 4.8, 5.5], dtype=case.dtype, device=DEVICE
        )
        for tolerance, wanted in ((1.0, 20), (0.65, 20), (0.5, 69), (1.4, 7), (2, 3)):
            close = torch.full((1,), tolerance, dtype=torch.float64, device=DEVICE)
            case.look = replace(case.look, bound=None, tolerance=close)
            assert self._chosen(case) == [[wanted]] * 2
            _, _, found = case.finish(small_blocks(launch.finish))
            _, _, known = case.finish(ck.finish_round_ref)
            assert torch.allclose(found.estimate, known.estimate)

    def test_where_nothing_is_allowed(self):
        case = Case(masked=True, n=40)
        case.look.mask[:] = False
        for play in (small_blocks(launch.finish), ck.finish_round_ref):
            value, index, _ = parts(case.finish(play)[2])
            assert value.tolist() == [-torch.inf]
            assert index.tolist() == [0]


class TestWhatIsNotANumber:
    @pytest.mark.parametrize("where", ["mean", "var"])
    def test_it_is_seen(self, where):
        case = Case(n=40)
        getattr(case, where)[..., 33] = torch.nan
        for play in (small_blocks(launch.finish), ck.finish_round_ref):
            value, index, _ = parts(case.finish(play)[2])
            assert value.tolist() == [torch.inf]
            assert index.tolist() == [33]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("kind", ck.KINDS)
    def test_a_coordinate_is_seen(self, kind, dtype):
        case = Case(n=40, kinds=(kind,), dtype=dtype)
        case.points[33, 1] = torch.nan
        for play in (small_blocks(launch.stream), ck.stream_round_ref):
            value, index, _ = parts(case.stream(play)[2])
            assert value.tolist() == [torch.inf]
            assert index.tolist() == [33]


class TestPlaces:
    def test_numbers_beyond_32_bits(self):
        start = 5 * 2**31 + 7
        case = Case(n=50, start=start)
        seen = case.finish(small_blocks(launch.finish))
        assert int(seen[2].index.min()) >= start
        assert differences(case, seen, case.finish(ck.finish_round_ref)) == []
        seen = case.stream(small_blocks(launch.stream))
        assert differences(case, seen, case.stream(ck.stream_round_ref)) == []

    def test_the_mask_is_read_at_the_stretch(self):
        check_finish(Case(n=50, masked=True, start=33, trials=2))

    @pytest.mark.slow
    @pytest.mark.xdist_group("compiled for a GPU")
    @pytest.mark.parametrize("name", ["finish_kernel", "stream_kernel"])
    def test_offsets_are_64_bits_wide(self, compiled, name):
        spread = re.findall(r"tt.addptr .*, tensor<\d+xi(\d+)>", compiled[name])
        assert len(spread) >= 4
        assert set(spread) == {"64"}

    @pytest.mark.slow
    @pytest.mark.xdist_group("compiled for a GPU")
    def test_nothing_narrow_is_multiplied_by_a_stride(self, compiled):
        code = compiled["finish_kernel"].splitlines()
        assert not [line for line in code if "arith.muli" in line and ": i32" in line]


def test_loops_within_loops_have_names_of_their_own():
    """Triton 3.4 carries an outer loop's variable through the inner one."""
    loops = 0
    for file in Path(launch.__file__).parent.glob("*.py"):
        for outer in ast.walk(ast.parse(file.read_text())):
            if not isinstance(outer, ast.For):
                continue
            for inner in ast.walk(outer):
                if isinstance(inner, ast.For) and inner is not outer:
                    loops += 1
                    same = ast.dump(inner.target) == ast.dump(outer.target)
                    assert not same, f"{file.name}:{inner.lineno}"
    assert loops > 3


COMPILE = """
import json
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cbandit_kernels import KINDS
from cbandit_kernels._triton import ceiling, rounds
import torch

numbers = {"points", "frames", "rows", "mean", "var", "draw", "table", "peak",
           "reach", "estimate", "columns", "out"}
KINDS_OF = {"index": "*i64", "blocks": "*i64", "mask": "*u8"}
settings = {"K": 1, "F": 2, "SCORE": 0, "CLIPPED": True, "DRAWN": True, "MASKED": True,
            "BLOCK": 128, "D": 3, "FACTORS": 1, "KIND": (2,), "FAR": False, "STEP": 4}


def made(kernel, number, **own):
    signature, constants, known = {}, {}, {}
    for i, each in enumerate(kernel.arg_names):
        if each not in settings and each not in ("used", "start"):
            known[i,] = [["tt.divisibility", 16]]
        if each in settings:
            signature[each], constants[each] = "constexpr", {**settings, **own}[each]
        elif each in numbers:
            signature[each] = "*" + number
        else:
            signature[each] = KINDS_OF.get(each, "i32")
    source = ASTSource(kernel, signature, constants, known)
    return compile(source, target=GPUTarget("cuda", 90, 32)).asm


out = {"ttir": {}, "sass": {}}
for name in ("finish_kernel", "stream_kernel", "choose_kernel"):
    out["ttir"][name] = made(getattr(rounds, name), "fp32")["ttir"]
finish = made(rounds.finish_kernel, "fp32", BLOCK=1024, DRAWN=False, MASKED=False)
out["sass"]["finish"] = finish["sass"]
for number, dtype in (("fp32", torch.float32), ("fp64", torch.float64)):
    own = {"D": 4, "BLOCK": rounds.stream_block(4, 1, 1, dtype)}
    out["sass"]["ceiling " + number] = made(ceiling.pairs_kernel, number, **own)["sass"]
    for i, kind in enumerate(KINDS):
        own |= {"KIND": (i,), "DRAWN": False, "MASKED": False}
        asm = made(rounds.stream_kernel, number, **own)
        out["sass"][kind + " " + number] = asm["sass"]
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def compiled_all():
    """Kernels compiled for sm_90, which takes no GPU."""
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def compiled(compiled_all):
    """Intermediate code."""
    return compiled_all["ttir"]


def instructions(code):
    """Their names, without what they are predicated on."""
    lines = [line.split("\t") for line in code if "\t" in line]
    return [re.sub(r"^@\S+ ", "", line[1]).split()[0].rstrip(";") for line in lines]


def main_loop(code):
    """What a loop's one turn issues; the longest loop's."""
    lines, best = code.splitlines(), []
    starts = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    for i, line in enumerate(lines):
        target = re.search(r"BRA (LBB\d+);", line)
        if target and starts[target[1]] < i:
            best = max(best, instructions(lines[starts[target[1]] : i + 1]), key=len)
    return best


def a_pair(names, number):
    """Instructions of each sort for a pair of actions, but for a turn's own."""
    dtype = {"fp32": torch.float32, "fp64": torch.float64}[number]
    pairs = 4 * launch.stream_block(4, 1, 1, dtype) // 128
    sorts = {"all": len(names), "BRA": names.count("BRA") - 1}
    for sort in ("MUFU", "FFMA", "DFMA", "DADD", "DMUL", "DSETP", "LDG"):
        sorts[sort] = sum(name.split(".")[0] == sort for name in names)
    return {sort: count / pairs for sort, count in sorts.items()}


OLD = tuple(map(int, version("triton").split(".")[:2])) < (3, 7)
counted = pytest.mark.skipif(OLD, reason="an older Triton's code is a little longer")


@pytest.mark.slow
@pytest.mark.xdist_group("compiled for a GPU")
class TestMachineCode:
    """What bounds the passes on a GPU, as far as compiled code tells."""

    def test_nothing_is_spilled(self, compiled_all):
        for name, code in compiled_all["sass"].items():
            names = instructions(code.splitlines())
            assert len(names) > 100, name
            local = [each for each in names if each.startswith(("LDL", "STL"))]
            assert not local, name

    def test_what_is_read_is_asked_for_before_anything_waits(self, compiled_all):
        names = instructions(compiled_all["sass"]["finish"].splitlines())
        reads = [i for i, name in enumerate(names) if name == "LDG.E.128"]
        writes = [i for i, name in enumerate(names) if name == "STG.E.128"]
        # 8 actions a thread: columns, a variance and two means
        assert len(reads) == 8
        assert len(writes) == 6
        assert reads[-1] < writes[0]

    @counted
    def test_a_pair_in_float32(self, compiled_all):
        code = compiled_all["sass"]
        rbf = a_pair(main_loop(code["rbf fp32"]), "fp32")
        assert (rbf["MUFU"], rbf["FFMA"]) == (1, 5)
        assert rbf["all"] < 7
        for kind in ("matern12", "matern32", "matern52"):
            pair = a_pair(main_loop(code[f"{kind} fp32"]), "fp32")
            assert pair["MUFU"] == 2, kind
            # the units of exp2 and roots take 8 clocks each
            assert pair["all"] < 16, kind

    def test_a_pair_in_float64(self, compiled_all):
        code, wide = compiled_all["sass"], ("DFMA", "DADD", "DMUL", "DSETP")
        for kind in ("rbf", "matern12", "matern32", "matern52"):
            pair = a_pair(main_loop(code[f"{kind} fp64"]), "fp64")
            assert pair["BRA"] == 0, kind
            clocks = 2 * sum(pair[sort] for sort in wide)
            assert pair["all"] < clocks <= (38 if kind == "rbf" else 60), kind

    @counted
    @pytest.mark.parametrize("number", ["fp32", "fp64"])
    def test_the_ceiling_is_the_same_less_its_loads(self, compiled_all, number):
        code = compiled_all["sass"]
        top = a_pair(main_loop(code[f"ceiling {number}"]), number)
        rbf = a_pair(main_loop(code[f"rbf {number}"]), number)
        for sort in ("MUFU", "FFMA", "DFMA", "DADD", "DSETP"):
            assert top[sort] == rbf[sort], sort
        assert top["LDG"] == 0
        assert 0.9 < top["all"] / rbf["all"] < 1.1


class TestPlantedFaults:
    def test_a_skipped_last_block_is_seen(self, monkeypatch):
        case = Case(n=70)
        honest = case.finish(small_blocks(launch.finish))
        assert differences(case, honest, case.finish(ck.finish_round_ref)) == []
        whole = launch.blocks_of
        monkeypatch.setattr(launch, "blocks_of", lambda n, b: whole(n, b) - 1)
        for play, ref in (
            (case.finish(small_blocks(launch.finish)), ck.finish_round_ref),
            (case.stream(small_blocks(launch.stream)), ck.stream_round_ref),
        ):
            known = case.finish(ref) if ref is ck.finish_round_ref else case.stream(ref)
            assert differences(case, play, known) != []

    def test_an_unwritten_output_is_seen(self):
        case = Case(n=70)
        mean, var, found = case.finish(small_blocks(launch.finish))
        found.value[0] = torch.empty((), device=DEVICE)
        wanted = case.finish(ck.finish_round_ref)
        assert differences(case, (mean, var, found), wanted) != []


class TestDispatch:
    def test_a_forced_backend_runs_the_kernel(self):
        case = Case(n=50)

        def forced(*args):
            return ck.finish_round(*args, backend="triton")

        seen = case.finish(forced)
        assert differences(case, seen, case.finish(ck.finish_round_ref)) == []
        assert seen[2].value.shape == (1,)

        def forced_stream(*args):
            return ck.stream_round(*args, backend="triton")

        seen = case.stream(forced_stream)
        assert differences(case, seen, case.stream(ck.stream_round_ref)) == []

    def test_a_forced_backend_raises_rather_than_falls_back(self):
        case = Case(dim=17)
        with pytest.raises(ValueError, match="at most 16 coordinates; got 17"):
            case.stream(lambda *args: ck.stream_round(*args, backend="triton"))

    @pytest.mark.skipif(DEVICE.type == "cuda", reason="the plain form is the CPU's")
    def test_the_cpu_takes_the_plain_form_where_numba_is_not(self):
        case = Case(n=50)
        with plain_torch():
            both = case.stream(ck.stream_round), case.stream(ck.stream_round_ref)
        for ours, other in zip(both[0][:2], both[1][:2], strict=True):
            assert torch.equal(ours, other)

    def test_importing_the_package_leaves_triton_alone(self):
        code = "import sys, cbandit_kernels; print('triton' in sys.modules)"
        path = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert done.stdout.strip() == "False", done.stderr
