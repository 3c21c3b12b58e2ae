"""Compiled kernel values, and rounds that make them, against references and mpmath."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="numba is not installed: plain torch is used")

from inside import native_power
from looks import draws, looked, same

from cbandit_kernels import Change, Frame, Look, stream_round, stream_round_ref

F64, F32 = torch.float64, torch.float32

KINDS = [
    (("rbf",), False),
    (("rbf",), True),
    (("matern12",), False),
    (("matern32",), False),
    (("matern52",), False),
    (("linear",), False),
    (("rbf", "linear", "matern52"), False),
]


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize(("kinds", "far"), KINDS, ids=str)
def test_a_round_over_points(kinds, far, dtype):
    for trials, used, k, n in (1, 1, 1, 1), (2, 37, 2, 1_003), (3, 11, 2, 700):
        # in more than three coordinates the RBF is another loop, where none is far
        dim = 5 if far or ("rbf" in kinds and trials == 3) else 3
        normal = draws(dim + used)
        own = len(kinds) == 1 and trials > 1  # every trial has points of its own
        points = normal(*((trials,) if own else ()), n, dim, dtype=dtype)
        tried = normal(trials, used, dim)
        if far and dtype == F64:  # where squares would cancel
            points, tried = points + 1e4, tried + 1e4
        if not own:
            tried[:, 0] = points[0].double()  # at no distance at all
        # of every trial its own where there are three
        shape = len(kinds), trials if trials > 2 else 1, dim
        center = normal(*shape, dtype=dtype) * 0.1
        frame = Frame(center, 0.7 + 0.1 * normal(*shape, dtype=dtype), far)
        weights = normal(trials, used, k)
        change = Change(normal(trials, k).abs() * 1e-4, normal(trials, 2, k) * 0.1)
        look = looked(normal, trials, 2, "primal-dual", True)
        mean = normal(trials, 2, n, dtype=dtype)
        var = normal(trials, n, dtype=dtype).abs() + 0.5
        mine, mine_var = mean.clone(), var.clone()
        given = points, frame, tried, weights, kinds, change
        wanted = stream_round_ref(*given, mean, var, look)
        found = stream_round(*given, mine, mine_var, look, backend="native")
        near = 1e-11 if dtype == F64 else 5e-3
        assert torch.allclose(mine, mean, atol=near)
        assert torch.allclose(mine_var, var, atol=near)
        same(found, wanted, near)


def test_one_kernel_value_against_mpmath():
    """A single tried point with weight 1: the column is the kernel itself."""
    mpmath = pytest.importorskip("mpmath")
    # on the first of three axes, for which loops are compiled above
    points = torch.zeros(5, 3, dtype=F64)
    points[:, 0] = torch.tensor([0.0, 0.3, 1.7, -2.5, 25.0])
    one = torch.ones(1, 1, 1, dtype=F64)
    nothing = Change(torch.zeros(1, 1, dtype=F64), one)
    look = Look(torch.zeros(1, 1).double(), None, None, "primal-dual")
    frame = Frame(torch.zeros(1, 1, 3, dtype=F64), torch.ones(1, 1, 3, dtype=F64))
    exact = {
        "rbf": lambda r: mpmath.exp(-r * r / 2),
        "matern12": lambda r: mpmath.exp(-r),
        "matern32": lambda r: (
            (1 + mpmath.sqrt(3) * r) * mpmath.exp(-mpmath.sqrt(3) * r)
        ),
        "matern52": lambda r: (
            (1 + mpmath.sqrt(5) * r + 5 * r * r / 3) * mpmath.exp(-mpmath.sqrt(5) * r)
        ),
    }
    for kind, formula in exact.items():
        mean, var = torch.zeros(1, 1, 5, dtype=F64), torch.ones(1, 5, dtype=F64)
        tried = torch.zeros(1, 1, 3, dtype=F64)
        given = points, frame, tried, one, (kind,), nothing, mean, var, look
        stream_round(*given, backend="native")
        for value, x in zip(mean.flatten().tolist(), points[:, 0], strict=True):
            wanted = float(formula(mpmath.mpf(abs(float(x)))))
            # the exponent itself is rounded, as exp's argument is anywhere
            allowed = 4e-15 * (1 + abs(math.log(wanted)) / 8)
            assert value == pytest.approx(wanted, rel=allowed, abs=1e-300)


def test_powers_of_two():
    generator = np.random.default_rng(0)
    exponents = np.concatenate(
        [-generator.uniform(0, 900, 20_000), generator.uniform(-1, 1, 20_000), [0.0]]
    )
    found = np.array([native_power(True)(e) for e in exponents])
    assert np.max(np.abs(found / np.exp2(exponents) - 1)) < 4e-15
    few = exponents[exponents > -100].astype(np.float32)
    found = np.array([native_power(False)(e) for e in few], dtype=np.float64)
    assert np.max(np.abs(found / np.exp2(few.astype(np.float64)) - 1)) < 2e-7
    assert native_power(True)(-5000.0) < 1e-300  # and no bits run over
    assert math.isnan(native_power(True)(math.nan))
    assert math.isnan(native_power(False)(np.float32(np.nan)))
