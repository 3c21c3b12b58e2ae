"""The CPU's compiled loops against the plain-torch references beside them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

pytest.importorskip("numba", reason="numba is not installed: plain torch is used")

from looks import NEAR, draws, looked, same
from terminal import printed

from cbandit_kernels import (
    SCORES,
    Change,
    Factors,
    Late,
    Look,
    finish_round,
    finish_round_ref,
    joint_round,
    joint_round_ref,
    product_round,
    product_round_ref,
    stored_round,
    stored_round_ref,
)

F64, F32 = torch.float64, torch.float32
BACKENDS = ["native", "torch"]


def poisoned(trials: int, functions: int, n: int, dtype: torch.dtype):
    """Room for arrays of a stretch inside of larger ones that are all NaN."""
    mean = torch.full((trials, functions, n + 9), torch.nan, dtype=dtype)
    var = torch.full((trials, n + 9), torch.nan, dtype=dtype)
    return mean, var


SHAPES = [  # trials, functions, columns, actions
    (1, 2, 1, 1),
    (1, 1, 1, 37),
    (1, 2, 0, 513),
    (1, 2, 1, 140_001),
    (3, 4, 3, 1_000),
    (2, 3, 2, 70_000),
]


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_round_whose_columns_are_known(shape, dtype):
    trials, functions, k, n = shape
    for number, score in enumerate([*SCORES, "reward"]):
        if functions == 1 and score in ("feasible", "least"):
            continue
        normal = draws(number)
        columns = normal(trials, k, n, dtype=dtype)
        change = Change(normal(trials, k).abs() * 1e-2, normal(trials, functions, k))
        mask = normal(trials, n + 4) > 0 if number % 2 else None
        if mask is not None:
            mask[:, 4] = True
        look = looked(normal, trials, functions, score, number % 3 == 0, mask)
        if score == "reward":
            look = replace(look, score="rectified", weight=None)
        draw = normal(trials, functions, n, dtype=dtype) if number == 1 else None
        start = 4 if mask is not None else 0
        mean, var = poisoned(trials, functions, n, dtype)
        mean[..., 5 : 5 + n] = normal(trials, functions, n, dtype=dtype)
        var[:, 5 : 5 + n] = normal(trials, n, dtype=dtype).abs() + 0.1
        mine, mine_var = mean.clone(), var.clone()
        wanted = finish_round_ref(
            columns, change, mean[..., 5 : 5 + n], var[:, 5 : 5 + n], look, start, draw
        )
        found = finish_round(
            columns,
            change,
            mine[..., 5 : 5 + n],
            mine_var[:, 5 : 5 + n],
            look,
            start,
            draw,
            backend="native",
        )
        near = NEAR[dtype]
        # what lies around the stretch stays as it was
        assert torch.allclose(mine, mean, atol=near, equal_nan=True)
        assert torch.allclose(mine_var, var, atol=near, equal_nan=True)
        same(found, wanted, near)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize(
    ("trials", "k", "rows", "rank", "tails"),
    [
        (1, 1, 1, 1, 1),
        (2, 0, 5, 3, 600),
        (1, 1, 151, 22, 1_000),
        (2, 3, 7, 5, 1_100),
        (2, 2, 6, 5, 700),
        (1, 2, 40, 9, 513),
    ],
)
def test_a_round_over_a_grid(trials, k, rows, rank, tails, dtype):
    normal = draws(rank)
    shared = 1 if k > 2 else trials
    columns = Factors(
        normal(trials, k, rows, rank, dtype=dtype),
        normal(shared, rank, tails, dtype=dtype),
    )
    n = rows * tails
    change = Change(normal(trials, k).abs() * 1e-3, normal(trials, 2, k))
    look = looked(normal, trials, 2, "rectified")
    start = normal(trials, 2, n, dtype=dtype), normal(trials, n, dtype=dtype).abs()
    # a joint draw as factors, of another inner dimension, and as values
    path = Factors(
        normal(trials, 2, rows, rank + 2, dtype=dtype),
        normal(shared, rank + 2, tails, dtype=dtype),
    )
    near = 20 * NEAR[dtype]
    for draw in (None, path, path.values()):
        mean, var = (value.clone() for value in start)
        mine, mine_var = mean.clone(), var.clone()
        wanted = product_round_ref(columns, change, mean, var, look, 0, draw)
        found = product_round(
            columns, change, mine, mine_var, look, 0, draw, backend="native"
        )
        assert torch.allclose(mine, mean, atol=near)
        assert torch.allclose(mine_var, var, atol=near)
        same(found, wanted, near)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize(
    ("trials", "k", "used", "each", "n"),
    [
        (1, 1, 1, 32, 1),
        (2, 0, 3, 2, 513),
        (1, 1, 70, 32, 40_001),
        (1, 2, 8, 4, 2_049),
        (3, 3, 7, 3, 1_100),
    ],
)
def test_a_round_over_kept_rows(trials, k, used, each, n, dtype):
    normal = draws(used)
    around = [  # a stretch of rows that are NaN elsewhere, and the rows not yet written
        torch.full((trials, each, n + 9), torch.nan, dtype=dtype)
        for _ in range(0, used, each)
    ]
    for u in range(used):
        around[u // each][:, u % each, 4 : 4 + n] = normal(trials, n, dtype=dtype)
    rows = [chunk[..., 4 : 4 + n] for chunk in around]
    weights = normal(trials, used, k)
    change = Change(normal(trials, k).abs() * 1e-3, normal(trials, 2, k))
    look = looked(normal, trials, 2, "rectified")
    start = normal(trials, 2, n, dtype=dtype), normal(trials, n, dtype=dtype).abs()
    near = 20 * NEAR[dtype]
    for draw in (None, normal(trials, 2, n, dtype=dtype)):
        mean, var = (value.clone() for value in start)
        mine, mine_var = mean.clone(), var.clone()
        wanted = stored_round_ref(rows, weights, change, mean, var, look, 0, draw)
        found = stored_round(
            rows, weights, change, mine, mine_var, look, 0, draw, backend="native"
        )
        assert torch.allclose(mine, mean, atol=near)
        assert torch.allclose(mine_var, var, atol=near)
        same(found, wanted, near)


@pytest.mark.parametrize(("trials", "n"), [(1, 1), (1, 100), (4, 7), (50, 60)])
def test_a_round_over_a_small_set(trials, n):
    for number, score in enumerate(SCORES):
        for told in (True, False):
            normal = draws(number)
            root = normal(trials, n, n)
            cov = root @ root.mT / n + torch.eye(n, dtype=F64)
            mean = normal(trials, 3, n)
            slots = [i % n for i in range(trials)]
            seen = (slots, normal(trials).abs(), normal(trials, 3)) if told else None
            mask = normal(1, n) > 0 if n > 20 else None
            look = looked(normal, trials, 3, score, number % 2 == 0, mask)
            draw = normal(trials, 3, n) if number == 2 else None
            mine, mine_cov = mean.clone(), cov.clone()
            wanted = joint_round_ref(cov, mean, look, seen, draw)
            found = joint_round(mine_cov, mine, look, seen, draw, backend="native")
            assert torch.allclose(mine, mean, atol=1e-12)
            assert torch.allclose(mine_cov, cov, atol=1e-12)
            same(found, wanted, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("trials", "n"), [(1, 1), (1, 37), (5, 20)])
def test_changes_of_a_covariance_may_wait(trials, n, backend):
    normal = draws(1)
    root = normal(trials, n, n)
    cov = root @ root.mT / n + torch.eye(n, dtype=F64)
    mean, given = normal(trials, 2, n), Late.room(cov, 3)
    lacks, mine, wanted = cov.clone(), mean.clone(), mean.clone()
    waiting = 0
    for number in range(11):
        slots = [(3 * number + i) % n for i in range(trials)]
        precision = normal(trials).abs()
        precision[0] *= number % 4 > 0  # nothing was seen in this trial
        told = (slots, precision, normal(trials, 2)) if number % 5 else None
        look = looked(normal, trials, 2, "rectified")
        late = given._replace(waiting=waiting)
        found = joint_round(lacks, mine, look, told, None, late, backend=backend)
        same(found, joint_round_ref(cov, wanted, look, told), 1e-12)
        waiting = (waiting + (told is not None)) % 3
        assert torch.allclose(mine, wanted, atol=1e-12)
        whole = lacks.clone()
        given._replace(waiting=waiting).apply(whole)
        assert torch.allclose(whole, cov, atol=1e-12)
        if waiting:
            assert torch.allclose(given.var, cov.diagonal(dim1=-2, dim2=-1), atol=1e-12)
            some = bool(given.weights[:, :waiting].any())
            assert not (some and torch.equal(lacks, cov))


@pytest.mark.parametrize(("trials", "n"), [(43, 160), (3, 600)])
def test_many_sets_are_shared_among_threads(trials, n):
    normal = draws(0)
    root = normal(trials, n, n)
    cov, mean = root @ root.mT / n, normal(trials, 2, n)
    seen = [i % n for i in range(trials)], normal(trials).abs(), normal(trials, 2)
    look = looked(normal, trials, 2, "rectified")
    mine, mine_cov, before = mean.clone(), cov.clone(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = joint_round(mine_cov, mine, look, seen, backend="native")
    finally:
        torch.set_num_threads(before)
    same(found, joint_round_ref(cov, mean, look, seen), 1e-12)
    assert torch.allclose(mine_cov, cov, atol=1e-12)


def plain(n: int) -> tuple[torch.Tensor, Change, torch.Tensor, torch.Tensor]:
    nothing = Change(torch.zeros(1, 0, dtype=F64), torch.zeros(1, 2, 0, dtype=F64))
    none = torch.zeros(1, 0, n, dtype=F64)
    return none, nothing, torch.zeros(1, 2, n, dtype=F64), torch.zeros(1, n, dtype=F64)


def asked(score: str = "primal-dual", mask: torch.Tensor | None = None) -> Look:
    one = torch.ones(1, 2, dtype=F64)
    return Look(one, None, None, score, one[:, :1], mask)


def test_ties_go_to_the_lowest_number():
    columns, change, mean, var = plain(100_000)
    for first in (0, 1, 511, 512, 65_535, 65_536, 70_000):
        mean[0, 0] = 0.0
        mean[0, 0, [first, 70_001, 99_999]] = 1.0
        found = finish_round(columns, change, mean, var, asked(), backend="native")
        assert found.index.item() == first


def test_ties_on_a_grid_go_to_the_lowest_number():
    """Four rows at a time are looked at block by block: not in the order of numbers."""
    tails = 1_100
    left, right = torch.zeros(1, 1, 9, 4).double(), torch.zeros(1, 4, tails).double()
    change = Change(torch.zeros(1, 1).double(), torch.zeros(1, 2, 1).double())
    var = torch.zeros(1, 9 * tails, dtype=F64)
    ties = (600, tails), (1_099, 3 * tails), (4 * tails + 520, 5 * tails)
    for first, later in ties:
        mean = torch.zeros(1, 2, 9 * tails, dtype=F64)
        mean[0, 0, [first, later, 9 * tails - 1]] = 1.0
        given = Factors(left, right), change, mean, var, asked()
        assert product_round(*given, backend="native").index.item() == first


def test_what_is_not_a_number_wins_and_what_is_masked_does_not():
    columns, change, mean, var = plain(5_000)
    mean[0, 0, 3_000] = torch.nan
    mean[0, 0, 10] = 9.0
    go = finish_round
    found = go(columns, change, mean, var, asked(), backend="native")
    assert found.index.item() == 3_000
    assert found.value.item() == math.inf
    mask = torch.ones(1, 5_000, dtype=torch.bool)
    mask[0, [10, 3_000]] = False
    found = go(columns, change, mean, var, asked(mask=mask), backend="native")
    assert found.index.item() == 0
    mask[:] = False
    found = go(columns, change, mean, var, asked(mask=mask), backend="native")
    assert found.value.item() == -math.inf
    mean[0, 0] = -math.inf
    found = go(columns, change, mean, var, asked(), backend="native")
    assert found.value.item() == -math.inf
    mean.zero_()[0, 1] = 1.0
    found = go(columns, change, mean, var, asked("feasible"), backend="native")
    assert found.value.item() == -math.inf


def test_where_nothing_is_allowed_the_first_is_named():
    mask = torch.zeros(1, 140_050, dtype=torch.bool)
    columns, change, mean, var = plain(140_000)
    given = change, mean, var, asked(mask=mask), 50
    left, right = torch.zeros(1, 0, 200, 4).double(), torch.zeros(1, 4, 700).double()
    for found in (
        finish_round(columns, *given, backend="native"),
        finish_round_ref(columns, *given),
        product_round(Factors(left, right), *given, backend="native"),
    ):
        assert (found.index.item(), found.value.item()) == (50, -math.inf)


def passes(score, mean, var, backend, bound=None):
    """What both passes over a set find, of means ``(F, n)`` and variances ``(n,)``."""
    functions, n = mean.shape
    # the last two of all scores have no weights
    weight = torch.tensor([[10.0, 100.0]], dtype=F64) if score in SCORES[:2] else None
    look = Look(torch.ones(1, functions, dtype=F64), None, bound, score, weight)
    none = torch.zeros(1, 0, n, dtype=F64)
    nothing = Change(none[..., 0], torch.zeros(1, functions, 0, dtype=F64))
    held = mean[None].clone(), var[None].clone()
    yield finish_round(none, nothing, *held, look, backend=backend)
    cov = torch.diag(var)[None].clone()
    yield joint_round(cov, mean[None].clone(), look, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("mean", "kept", "values"),
    [
        ([5.0, 5.0, 0.5], [1.0, 2.0, 0.5], [-69.0, -69.0, -math.inf, -2.0]),
        ([-5.0, -5.0, -5.0], [-1.0, -2.0, -3.0], [319.0, -1.0, -1.0, 2.0]),
        ([0.25, -0.5, 5.0], [0.25, -0.5, 3.0], [-294.75, -299.75, -math.inf, -3.0]),
        ([0.25, 0.0, -1.0], [0.25, 0.0, -1.0], [100.25, 0.25, 0.25, 0.0]),
    ],
)
def test_bounds_and_limits_by_hand(mean, kept, values, backend):
    """One action alone: among many, a clip of one that does not win would not show."""
    bound = torch.tensor([[1.0, 2.0, 3.0]], dtype=F64)
    column = torch.tensor(mean, dtype=F64)[:, None]
    for var in torch.tensor([[0.0], [-1e-9]], dtype=F64):  # below 0 by rounding
        for score, value in zip(SCORES, values, strict=True):
            for found in passes(score, column, var, backend, bound):
                assert found.value.item() == value
                assert found.estimate.flatten().tolist() == kept


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_deviation_or_a_cost_that_is_not_a_number(backend):
    for score in SCORES:
        mean, var = torch.ones(3, 40, dtype=F64), torch.ones(40, dtype=F64)
        var[33] = torch.nan
        for found in passes(score, mean, var, backend):
            assert (found.index.item(), found.value.item()) == (33, math.inf)
            assert found.estimate.isnan().all()
        var[33], mean[2, 34] = 1.0, torch.nan
        if score == "feasible":  # it is not above its limit
            mean[1], var[34] = -1.0, 0.0
            wanted = 34, 1.0
        else:
            wanted = 34, math.inf
        for found in passes(score, mean, var, backend):
            assert (found.index.item(), found.value.item()) == wanted


def test_a_planted_fault_is_caught(monkeypatch):
    """These comparisons can fail: a thousandth more taken off the variance shows."""
    right = finish_round

    def wrong(columns, change, *rest, **named):
        change = change._replace(spread=change.spread * 1.001)
        return right(columns, change, *rest, **named)

    monkeypatch.setitem(globals(), "finish_round", wrong)

    with pytest.raises(AssertionError):
        test_a_round_whose_columns_are_known(SHAPES[3], F64)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_draws_and_masks_of_any_layout(dtype):
    normal = draws(0)
    mask = (normal(40, 1) > 0).mT.expand(2, 40)
    look = looked(normal, 2, 3, "rectified", True, mask)
    columns = normal(2, 40, 1, dtype=dtype).mT
    change = Change(normal(2, 1).abs() * 1e-2, normal(2, 3, 1))
    mean, var = normal(2, 3, 40, dtype=dtype), normal(2, 40, dtype=dtype).abs() + 1
    for draw in (normal(2, 40, 3).mT, normal(2, 3, 80, dtype=dtype)[..., ::2]):
        mine, mine_var = mean.clone(), var.clone()
        given = columns, change
        wanted = finish_round_ref(*given, mean, var, look, 0, draw.to(dtype))
        found = finish_round(*given, mine, mine_var, look, 0, draw, backend="native")
        same(found, wanted, NEAR[dtype])
    cov = torch.eye(40, dtype=dtype).expand(2, -1, -1).clone()
    wanted = joint_round_ref(cov, mean, look, None, draw)
    found = joint_round(cov, mean, look, None, draw, backend="native")
    same(found, wanted, NEAR[dtype])


EMPTY = """
import torch
from cbandit_kernels import *
zeros = lambda *shape: torch.zeros(*shape, dtype=torch.float64)
change, look = Change(zeros(1, 1), zeros(1, 2, 1)), Look(
    zeros(1, 2), None, None, "primal-dual"
)
frame = Frame(zeros(1, 1, 2), zeros(1, 1, 2) + 1)
for n in (3, 0):  # compiled loops read what is not there, once they are compiled
    rest = change, zeros(1, 2, n), zeros(1, n), look
    for go in (
        lambda: finish_round(zeros(1, 1, n), *rest, backend="native"),
        lambda: stored_round([zeros(1, 4, n)], zeros(1, 4, 1), *rest, backend="native"),
        lambda: product_round(
            Factors(zeros(1, 1, 1, 4), zeros(1, 4, n)), *rest, backend="native"
        ),
        lambda: stream_round(
            zeros(n, 2), frame, zeros(1, 1, 4, 2), zeros(1, 4, 1), ("rbf",), *rest,
            backend="native",
        ),
        lambda: joint_round(zeros(1, n, n), rest[1], look, backend="native"),
    ):
        try:
            print(go().index.item())
        except ValueError as error:
            print(error)
"""


def test_no_actions_are_refused():
    lines = printed(EMPTY).splitlines()
    assert lines == 5 * ["0"] + 5 * [
        "mean and var must hold at least one action; got none"
    ]


def test_means_that_do_not_lie_side_by_side_are_refused():
    columns, change, mean, var = plain(5)
    apart = torch.zeros(1, 5, 2, dtype=F64).mT
    with pytest.raises(ValueError, match="last stride of 1"):
        finish_round(columns, change, apart, var, asked(), backend="native")
    with pytest.raises(ValueError, match="one dtype"):
        finish_round(columns, change, mean, var.float(), asked(), backend="native")
    with pytest.raises(ValueError, match="must be contiguous"):
        joint_round(torch.eye(5)[None].double(), apart, asked(), backend="native")
