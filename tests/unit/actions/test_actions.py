"""What can be chosen: numbering, round trips, and what a bad input is told."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from hypothesis import given
from hypothesis import strategies as st
from inside import Box, Finite, ProductGrid, Star

import cbandit as cb

F64 = torch.float64


def spaced(n: int) -> torch.Tensor:
    return torch.linspace(-1, 2, n, dtype=F64)


# -- Finite ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given_points",
    [
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]],
        np.arange(6.0).reshape(3, 2),
        np.arange(6).reshape(3, 2),
        torch.arange(6, dtype=F64).view(3, 2),
    ],
    ids=["list", "numpy", "numpy-int", "tensor"],
)
def test_finite_takes_lists_arrays_and_tensors(given_points):
    actions = Finite(given_points)
    assert (actions.size, actions.dim, actions.batch_shape) == (3, 2, ())
    assert actions.points(1).tolist() == [2.0, 3.0]
    assert actions.points([[2, 0]]).shape == (1, 2, 2)
    assert actions.block(1, 3).tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert "size=3, dim=2" in repr(actions)


def test_finite_keeps_the_dtype_of_real_points_and_makes_integers_double():
    assert Finite(torch.zeros(2, 1, dtype=torch.float32)).all.dtype == torch.float32
    assert Finite(torch.zeros(2, 1, dtype=torch.long)).all.dtype == F64


def test_finite_detaches_from_the_graph():
    assert not Finite(torch.zeros(2, 1, requires_grad=True)).all.requires_grad


@given(
    n=st.integers(1, 40),
    d=st.integers(1, 4),
    seed=st.integers(0, 99),
    single=st.booleans(),
)
def test_finite_round_trip(n, d, seed, single):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(n, d, generator=generator, dtype=F64)
    actions = Finite(points.float() if single else points)
    number = torch.randint(n, (2, 3), generator=generator)
    assert torch.equal(actions.index(actions.points(number)), number)


def test_finite_with_a_set_per_trial():
    points = torch.randn(3, 5, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    actions = Finite(points)
    assert (actions.size, actions.dim, actions.batch_shape) == (5, 2, (3,))
    number = torch.tensor([4, 0, 2])
    x = actions.points(number)
    assert torch.equal(x, torch.stack([points[i, k] for i, k in enumerate([4, 0, 2])]))
    assert torch.equal(actions.index(x), number)
    many = torch.tensor([[0, 1], [2, 3], [4, 4]])
    assert actions.points(many).shape == (3, 2, 2)
    assert torch.equal(actions.index(actions.points(many)), many)
    assert actions.points(torch.zeros(3, 0, dtype=torch.long)).shape == (3, 0, 2)
    assert actions.block(1, 3).shape == (3, 2, 2)
    with pytest.raises(
        cb.CBanditError, match=r"index must lead with the 3 trials; got \(\)"
    ):
        actions.points(0)
    with pytest.raises(cb.CBanditError, match=r"x must lead with the 3 trials"):
        actions.index([0.0, 0.0])


def test_a_point_that_occurs_twice_has_its_lowest_number():
    actions = Finite([[0.5], [0.25], [0.5]])
    assert actions.index([0.5]).item() == 0


def test_finite_indexes_no_points():
    actions = Finite([[0.0, 1.0]])
    assert actions.index(torch.empty(0, 2)).shape == (0,)
    assert actions.index(torch.empty(3, 0, 2)).shape == (3, 0)
    assert actions.points(torch.empty(0, dtype=torch.long)).shape == (0, 2)


def test_arms_of_a_covariance_are_numbers():
    actions = Finite(covariance=[[2.0, 0.5], [0.5, 1.0]])
    assert (actions.size, actions.dim, actions.batch_shape) == (2, 1, ())
    assert actions.points([1, 0]).tolist() == [[1.0], [0.0]]
    assert actions.index([[1.0]]).tolist() == [1]
    single = actions.to(dtype=torch.float32)
    assert single.covariance.dtype == F64, "small solves stay double"
    assert "covariance" in repr(actions)


def test_a_covariance_per_trial_and_a_singular_one():
    assert Finite(covariance=torch.eye(3).expand(4, 3, 3)).batch_shape == (4,)
    assert Finite(covariance=torch.ones(6, 6)).size == 6
    assert Finite(covariance=torch.zeros(2, 2)).size == 2


def test_rounding_of_a_covariance_is_symmetrised():
    nearly = torch.eye(2, dtype=F64)
    nearly[0, 1] = 1e-12
    kept = Finite(covariance=nearly).covariance
    assert torch.equal(kept, kept.mT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"one of points and covariance=; got neither"),
        ({"points": [[1.0]], "covariance": [[1.0]]}, r"got both"),
        ({"points": [1.0, 2.0]}, r"points must have shape \(N, d\).*got \(2,\)"),
        ({"points": torch.zeros(0, 2)}, r"points must have shape.*got \(0, 2\)"),
        ({"points": torch.zeros(2, 0)}, r"points must have shape.*got \(2, 0\)"),
        ({"points": torch.zeros(1, 1, 1, 1)}, r"got \(1, 1, 1, 1\)"),
        ({"points": [[math.nan]]}, r"points must be finite; got nan"),
        ({"points": [[math.inf]]}, r"points must be finite; got inf"),
        ({"points": "abc"}, r"points must be a number, array or tensor.*got str"),
        ({"points": [[1j]]}, r"points must be real; got torch.complex128"),
        ({"covariance": torch.ones(2, 3)}, r"covariance must have shape.*got \(2, 3\)"),
        (
            {"covariance": [[1.0, 0.5], [0.4, 1.0]]},
            r"covariance must be symmetric.*0.1",
        ),
        (
            {"covariance": [[1.0, 2.0], [2.0, 1.0]]},
            r"covariance must be positive semi-definite; its least eigenvalue is -1",
        ),
        ({"covariance": [[math.nan]]}, r"covariance must be finite; got nan"),
    ],
)
def test_finite_says_what_is_wrong(arguments, message):
    with pytest.raises(cb.CBanditError, match=message):
        Finite(**arguments)


# -- numbers of actions ---------------------------------------------------------------

SETS = {
    "finite": Finite(torch.arange(6, dtype=F64).view(6, 1)),
    "grid": ProductGrid([range(2), range(3)]),
    "star": Star([0.0], torch.arange(1, 7, dtype=F64).view(6, 1)),
}


@pytest.mark.parametrize("actions", SETS.values(), ids=SETS.keys())
@pytest.mark.parametrize(
    ("index", "message"),
    [
        (6, r"index must lie in 0 \.\. 5; got 6 \.\. 6"),
        ([0, -1], r"index must lie in 0 \.\. 5; got -1 \.\. 0"),
        (1.0, r"index must hold whole numbers; got torch.float64"),
        ([True], r"index must hold whole numbers; got torch.bool"),
        (None, r"index must be a number, array or tensor"),
        (2**70, r"index must be a number, array or tensor.*got int"),
    ],
)
def test_a_bad_index_is_named(actions, index, message):
    with pytest.raises(cb.CBanditError, match=message):
        actions.points(index)


@pytest.mark.parametrize("actions", SETS.values(), ids=SETS.keys())
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_any_whole_dtype_may_number_actions(actions, dtype):
    assert actions.points(torch.tensor([0, 5], dtype=dtype)).shape == (2, actions.dim)
    assert actions.points(np.int64(3)).shape == (actions.dim,)


@pytest.mark.parametrize("name", ["finite", "grid"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([0.0] * 5, r"x must have shape \(\.\.\., d\) with d = [12]; got \(5,\)"),
        (0.0, r"x must have shape \(\.\.\., d\) with d = [12]; got \(\)"),
        ("bad", r"x must be a number"),
    ],
)
def test_a_bad_point_is_named(name, x, message):
    with pytest.raises(cb.CBanditError, match=message):
        SETS[name].index(x)


@pytest.mark.parametrize("name", ["finite", "grid"])
def test_points_off_the_set_are_refused(name):
    actions = SETS[name]
    for shift in (0.5, 1e-6):
        with pytest.raises(
            cb.CBanditError, match=rf"x must be a point of.*{shift:.3g}"
        ):
            actions.index(actions.points([1, 2]) + shift)
    with pytest.raises(cb.CBanditError, match="x must be finite; got nan"):
        actions.index(torch.full((actions.dim,), math.nan))
    # rounding on the way through another programme is forgiven
    assert actions.index(actions.points([3]) + 1e-12).tolist() == [3]


# -- ProductGrid ----------------------------------------------------------------------


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_grid_is_numbered_like_cartesian_prod(sizes):
    axes = [spaced(n) + j for j, n in enumerate(sizes)]
    grid = ProductGrid(axes)
    every = torch.cartesian_prod(*axes).view(-1, len(axes))
    assert (grid.size, grid.dim, grid.batch_shape) == (len(every), len(axes), ())
    assert torch.equal(grid.points(torch.arange(grid.size)), every)
    assert torch.equal(grid.block(0, grid.size), every)
    assert torch.equal(grid.block(grid.size // 2, grid.size), every[grid.size // 2 :])
    assert torch.equal(grid.index(every), torch.arange(grid.size))


def test_a_grid_of_a_thousand_million_points_is_never_made():
    grid = ProductGrid([torch.linspace(0, 1, 1000, dtype=F64)] * 3)
    number = torch.tensor([0, 1, 999, 1000, 123_456_789, 10**9 - 1])
    x = grid.points(number)
    assert grid.size == 10**9
    assert torch.equal(grid.index(x), number)
    axis = grid.axes[0]
    assert torch.equal(x[4], axis[[123, 456, 789]])
    assert torch.equal(x[3], axis[[0, 1, 0]])
    assert grid.block(10**9 - 2, 10**9).shape == (2, 3)


@given(
    number=st.lists(st.integers(0, 10**18 - 1), min_size=1, max_size=20),
    single=st.booleans(),
)
def test_round_trip_on_a_grid_of_10_to_the_18(number, single):
    dtype = torch.float32 if single else F64
    grid = ProductGrid([torch.linspace(0, 1, 1000, dtype=dtype)] * 6)
    index = torch.tensor(number)
    assert torch.equal(grid.index(grid.points(index)), index)


def test_a_grid_keeps_the_widest_real_dtype_and_makes_integers_double():
    assert ProductGrid([range(3), [0, 5]]).points(0).dtype == F64
    single = torch.zeros(1, dtype=torch.float32)
    assert ProductGrid([single, [0, 5]]).points(0).dtype == torch.float32
    assert ProductGrid([single, torch.zeros(1, dtype=F64)]).points(0).dtype == F64
    assert ProductGrid(list(np.arange(6.0).reshape(2, 3))).size == 9


def test_an_unsorted_axis_keeps_its_order():
    grid = ProductGrid([torch.tensor([3.0, 1.0, 2.0])])
    assert grid.points([0, 1, 2])[:, 0].tolist() == [3.0, 1.0, 2.0]
    assert grid.index([[1.0]]).tolist() == [1]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ([], r"axes must hold at least one axis; got none"),
        (np.zeros((5, 2)), r"axes must be a list .*cb.Finite.* got ndarray .*\(5, 2\)"),
        (RBFKernel(), r"axes must be a list of 1-d tensors.*got RBFKernel"),
        (torch.zeros(5), r"axes must be a list of 1-d tensors.*\(5,\)"),
        (3, r"axes must be a list of 1-d tensors.*got int"),
        ([[1.0], []], r"axes\[1\] must be a 1-d tensor.*got shape \(0,\)"),
        ([[[1.0]]], r"axes\[0\] must be a 1-d tensor.*got shape \(1, 1\)"),
        ([[1.0], [math.nan]], r"axes\[1\] must be finite; got nan"),
        ([["a"]], r"axes\[0\] must be a number"),
        ([range(1000)] * 7, r"fewer than 2\^63 actions.*got 1000 x 1000"),
    ],
)
def test_a_grid_says_what_is_wrong(axes, message):
    with pytest.raises(cb.CBanditError, match=message):
        ProductGrid(axes)


# -- Box ------------------------------------------------------------------------------


def test_a_box():
    box = Box([0, -1], [1, 1])
    assert (box.size, box.dim, box.batch_shape) == (math.inf, 2, ())
    assert box.bounds.tolist() == [[0.0, -1.0], [1.0, 1.0]]
    assert box.bounds.dtype == F64
    assert Box(0, 1).dim == 1
    inside = torch.tensor([[0.5, 0.0], [1.0, 1.0]], dtype=F64)
    assert torch.equal(box.inside(inside), inside)
    assert box.inside([1 + 1e-12, 0.0]).tolist() == [1.0, 0.0]
    with pytest.raises(cb.CBanditError, match=r"x must lie between.*got \[2.0, 0.0\]"):
        box.inside([[0.5, 0.0], [2.0, 0.0]])
    with pytest.raises(cb.CBanditError, match="x must be finite; got nan"):
        box.inside([math.nan, 0.0])
    with pytest.raises(cb.CBanditError, match=r"with d = 2; got \(1,\)"):
        box.inside([0.5])
    with pytest.raises(cb.CBanditError, match="continuous"):
        box.points(0)
    assert repr(box) == "Box([0.0, -1.0], [1.0, 1.0])"


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        ([0.0], [1.0, 2.0], r"same shape \(d,\), d at least 1; got \(1,\) and \(2,\)"),
        ([[0.0, 0.0]], [[1.0, 1.0]], r"d at least 1; got \(1, 2\) and \(1, 2\)"),
        ([], [], r"same shape \(d,\), d at least 1; got \(0,\)"),
        ([0, 1], [1, 1], r"coordinate 1 has lower = 1, upper = 1"),
        ([math.nan], [1], r"lower must be finite; got nan"),
        ([0], [math.inf], r"upper must be finite; got inf"),
    ],
)
def test_a_box_says_what_is_wrong(lower, upper, message):
    with pytest.raises(cb.CBanditError, match=message):
        Box(lower, upper)


# -- Star -----------------------------------------------------------------------------


def test_a_star():
    star = Star([0.0, 0.0], [[1.0, 0.0], [0.0, 2.0]])
    assert (star.size, star.dim, star.batch_shape) == (2, 2, ())
    assert star.points(1).tolist() == [0.0, 2.0]
    assert star.along([0, 1], [0.5, 0.25]).tolist() == [[0.5, 0.0], [0.0, 0.5]]
    assert star.along(1, 0).tolist() == star.center.tolist()
    assert star.along(1, 1).tolist() == star.points(1).tolist()
    assert repr(star) == "Star(size=2, dim=2)"
    for bad in (-0.1, 1.1):
        with pytest.raises(cb.CBanditError, match=rf"a must lie .* 0 and 1; got {bad}"):
            star.along(0, bad)
    with pytest.raises(cb.CBanditError, match="a must be finite; got nan"):
        star.along(0, math.nan)


def test_a_star_with_tips_per_trial():
    star = Star([1.0], [[[2.0], [3.0]], [[4.0], [5.0]]])
    assert star.batch_shape == (2,)
    assert star.along([0, 1], [0.5, 0.5]).tolist() == [[1.5], [3.0]]


@pytest.mark.parametrize(
    ("center", "tips", "message"),
    [
        (0.0, [[1.0]], r"center must have shape \(d,\); got \(\)"),
        ([0.0], [1.0], r"tips must have shape \(K, d\).*d = 1; got \(1,\)"),
        ([0.0], [[1.0, 2.0]], r"with d = 1; got \(1, 2\)"),
        ([0.0], torch.zeros(0, 1), r"got \(0, 1\)"),
        ([math.inf], [[1.0]], r"center must be finite; got inf"),
        ([0.0], [[math.nan]], r"tips must be finite; got nan"),
    ],
)
def test_a_star_says_what_is_wrong(center, tips, message):
    with pytest.raises(cb.CBanditError, match=message):
        Star(center, tips)


# -- all ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actions",
    [
        Finite([[0.0], [1.0]]),
        ProductGrid([[0.0, 1.0]]),
        Box(0, 1),
        Star([0.0], [[1.0]]),
    ],
    ids=lambda actions: type(actions).__name__,
)
def test_another_dtype_is_a_copy(actions):
    single, double = actions.to(dtype=torch.float32), actions.to(dtype=F64)
    assert type(single) is type(actions)
    for out, dtype in ((single, torch.float32), (double, F64)):
        point = out.lower if isinstance(out, Box) else out.points(0)
        assert point.dtype == dtype
        assert (out.size, out.dim) == (actions.size, actions.dim)


ALL = {
    "points": Finite([[0.0, 3.0], [1.0, -1.0], [0.5, 2.0]]),
    "own": Finite([[[0.0], [2.0]], [[5.0], [-1.0]]]),
    "table": Finite(covariance=torch.eye(4)),
    "grid": ProductGrid([[0.0, 1.0, 4.0], [2.0, -3.0]]),
    "box": Box([0.0, -1.0], [2.0, 1.0]),
    "choices": Box([0.0], [2.0], choices=[[3.0], [5.0]]),
    "star": Star([0.0, 0.0], [[1.0, 0.0], [-2.0, 3.0]]),
}


@pytest.mark.parametrize("name", ALL)
def test_every_set_says_what_it_is(name):
    actions = ALL[name]
    assert isinstance(actions, cb.Actions)
    assert actions.finite == (name in ("points", "own", "table", "grid"))
    assert bool(actions.continuous) == isinstance(actions, Box)
    assert (actions.covariance is not None) == (name == "table")


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("points", [0.0, -1.0], [1.0, 3.0]),
        ("own", [[0.0], [-1.0]], [[2.0], [5.0]]),
        ("table", [0.0], [3.0]),
        ("grid", [0.0, -3.0], [4.0, 2.0]),
        ("box", [0.0, -1.0], [2.0, 1.0]),
        ("choices", [0.0, 3.0], [2.0, 5.0]),
        ("star", [-2.0, 0.0], [1.0, 3.0]),
    ],
)
def test_extent(name, low, high):
    found = ALL[name].extent()
    assert found[..., 0, :].tolist() == low
    assert found[..., 1, :].tolist() == high


def test_actions_are_named_by_number_or_else_by_coordinates():
    grid = ALL["grid"]
    assert grid.keys(torch.tensor([[1.0, -3.0], [0.0, 2.0]], dtype=F64)) == [3, 0]
    outside = torch.tensor([[1.0, -3.0], [0.5, 2.0]], dtype=F64)
    assert grid.keys(outside) == [(1.0, -3.0), (0.5, 2.0)]
    inside = torch.tensor([[1.0, 0.5]], dtype=F64)
    assert ALL["box"].keys(inside) == [(1.0, 0.5)]
    assert ALL["own"].keys(torch.tensor([[2.0], [5.0]], dtype=F64)) == [1, 0]


def test_the_same_actions_in_every_trial():
    numbers = torch.tensor([1, 0])
    assert ALL["own"].rows(numbers).tolist() == [[[2.0], [0.0]], [[-1.0], [5.0]]]
    grid = ALL["grid"]
    assert torch.equal(grid.rows(numbers), grid.points(numbers))


@pytest.mark.parametrize("name", ["box", "star"])
def test_sets_without_numbers_say_so(name):
    if name == "box":
        with pytest.raises(cb.CBanditError, match="is continuous: its actions are"):
            ALL[name].at(torch.tensor(0))
    for ask in (
        lambda s: s.block(0, 1),
        lambda s: s.rows(torch.tensor([0])),
        lambda s: s.index([0.0, 0.0]),
    ):
        with pytest.raises(cb.CBanditError, match="is continuous: its actions are"):
            ask(ALL[name])


@pytest.mark.parametrize("target", [1, 2, 3, 5, 12, 100])
@pytest.mark.parametrize("sizes", [(7,), (3, 4), (2, 3, 2)])
def test_stretches_are_whole_rows_or_parts_of_one(sizes, target):
    grid = ProductGrid([torch.arange(float(n)) for n in sizes])
    for first, last in ((0, None), (1, grid.size - 1)):
        found = list(grid.stretches(target, first, last))
        covered = [k for start, stop in found for k in range(start, stop)]
        assert covered == list(range(first, last or grid.size))
        for start, stop in found:
            parts = {start // grid.row, (stop - 1) // grid.row}
            assert len(parts) == 1 or start % grid.row == stop % grid.row == 0
