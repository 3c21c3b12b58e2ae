"""Prices over a window of rows, against HiGHS, hand values and the plans themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from inside import resolve, resolve_row
from scipy.optimize import linprog
from scipy.sparse import block_diag, csr_array

from cbandit_kernels import window_price, window_price_ref

KINDS = ("normal", "integers", "duplicates", "forbidden", "scales", "one row")


def highs(f, c, target):
    """Duals and value by HiGHS; ``None``: infeasible.

    ``f`` is (n, K), ``c`` (m, n, K), ``target`` (m,).
    """
    n, size = f.shape
    allowed = ~np.isneginf(f)
    out = linprog(
        -np.where(allowed, f, 0.0).ravel() / n,
        A_ub=c.reshape(len(c), -1) / n,
        b_ub=target,
        A_eq=csr_array(block_diag([np.ones((1, size))] * n)),
        b_eq=np.ones(n),
        bounds=np.stack([np.zeros(n * size), allowed.ravel().astype(float)], -1),
        method="highs",
        options={
            "primal_feasibility_tolerance": 1e-10,
            "dual_feasibility_tolerance": 1e-10,
        },
    )
    assert out.status in (0, 2)
    return None if out.status == 2 else (-out.ineqlin.marginals, -out.fun)


def dual(f, c, target, price):
    """The dual function, whose least value is the programme's."""
    score = f - np.tensordot(price, c, 1)
    return score.max(-1).mean() + price @ target


def window(rng, kind, m):
    n, size = (
        (1 if kind == "one row" else int(rng.integers(2, 40))),
        2 + rng.integers(6),
    )
    f, c = rng.normal(size=(n, size)), rng.normal(size=(m, n, size))
    if kind == "integers":  # ties everywhere
        f = rng.integers(0, 3, f.shape).astype(float)
        c = rng.integers(-2, 3, c.shape).astype(float)
    elif kind == "duplicates":
        copies = rng.integers(0, n, n)
        f, c = f[copies], c[:, copies]
    elif kind == "forbidden":
        never = rng.random(f.shape) < 0.4
        never[:, 0] = False
        f = np.where(never, -np.inf, f)
    elif kind == "scales":
        f = f * 10.0 ** rng.integers(-6, 6)
        c = c * 10.0 ** rng.integers(-5, 5, m)[:, None, None]
    cheapest = np.where(np.isneginf(f), np.inf, c).min(-1).mean(-1)
    spread = np.abs(c).max((1, 2))
    target = cheapest + rng.uniform(-0.05 if m == 1 else 0.2, 0.6, m) * spread
    return f, c, target


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_price_is_the_dual_solution_of_the_window(m):
    rng, infeasible, bound = np.random.default_rng(m), 0, 0
    for i in range(120):
        f, c, target = window(rng, KINDS[i % len(KINDS)], m)
        tensors = [torch.from_numpy(v).unsqueeze(0) for v in (f, c, target)]
        unit = torch.from_numpy(np.abs(c).max((1, 2))).unsqueeze(0)
        price = resolve(*tensors, unit)
        answer = highs(f, c, target)
        assert bool(price.shares.infeasible) == (answer is None)
        if answer is None:
            infeasible += 1
            continue
        phi, (_, value) = price.price[0].numpy(), answer
        assert (phi >= 0).all()
        bound += bool((phi > 0).any())
        # a dual solution, whichever where there are several: strong duality
        scale = np.abs(f[~np.isneginf(f)]).max()
        assert abs(dual(f, c, target, phi) - value) <= 1e-9 * scale
        shares = price.shares.probability[0].numpy()
        assert (shares >= 0).all() and abs(shares.sum() - 1) <= 1e-12
        # what the last row plays is best at the price
        last = f[-1] - phi @ c[:, -1]
        played = price.shares.index[0].numpy()[shares > 0]
        size = scale + phi @ np.abs(c[:, -1]).max(-1)
        assert (last[played] >= last.max() - 1e-10 * size).all()
    assert bound > 50 and infeasible < 60
    assert infeasible > 0 or m > 1


@pytest.mark.parametrize("m", [1, 2])
def test_a_unique_dual_solution_is_that_of_highs(m):
    rng = np.random.default_rng(5)
    for _ in range(40):
        f, c = rng.random((30, 4)), rng.random((m, 30, 4))
        target = np.full(m, 0.2 + 0.15 * m + 0.1 * rng.random())
        tensors = [torch.from_numpy(v).unsqueeze(0) for v in (f, c, target)]
        price = resolve(*tensors, torch.ones(1, m, dtype=torch.float64))
        np.testing.assert_allclose(price.price[0], highs(f, c, target)[0], atol=1e-9)


def test_the_shares_of_all_rows_spend_the_target():
    """Each row in turn is the last one: its shares together are a solution."""
    rng = np.random.default_rng(0)
    f, c = rng.random((25, 4)), rng.random((1, 25, 4))
    for target in np.linspace(0.25, 0.45, 9):
        spent = 0.0
        for i in range(25):
            order = np.roll(np.arange(25), -1 - i)  # row i comes last
            price = resolve(
                torch.from_numpy(f[order]).unsqueeze(0),
                torch.from_numpy(c[:, order]).unsqueeze(0),
                torch.tensor([[target]], dtype=torch.float64),
                torch.ones(1, 1, dtype=torch.float64),
            )
            p, at = price.shares.probability[0].numpy(), price.shares.index[0].numpy()
            spent += (p * c[0, i, at]).sum() / 25
        assert abs(spent - target) <= 1e-12


def test_hand_values():
    one = torch.ones(1, 1, dtype=torch.float64)
    # a cheap choice (0, 0) and a dear one (1, 1), in two rows; the second gains less
    f = torch.tensor([[[0.0, 1.0], [0.0, 0.5]]], dtype=torch.float64)
    c = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]], dtype=torch.float64)
    for target, price, share in ((0.75, 0.5, 0.5), (0.25, 1.0, 0.0), (1.0, 0.0, 1.0)):
        solved = resolve(f, c, target * one, one)
        assert solved.price.item() == price
        dear = solved.shares.probability[solved.shares.index == 1].sum()
        assert dear.item() == share
    # nothing is cheap enough: the cheapest, at a price at which all rows take it
    solved = resolve(f, c, -0.5 * one, one)
    assert bool(solved.shares.infeasible) and solved.shares.index[0, 0] == 0
    assert solved.price.item() == 1.0
    # a row alone, as in a set without contexts
    solved = resolve_row(f[:, 0], c[:, :, 0], 0.25 * one, one)
    assert solved.price.item() == 1.0
    assert solved.shares.probability.tolist() == [[0.75, 0.25]]


def test_the_least_relative_excess():
    """Two costs that cannot both be kept are missed by the same share of their unit."""
    f = torch.zeros(1, 1, 2, dtype=torch.float64)
    # choice 0 is free by the first cost and dear by the second
    c = torch.tensor([[[[0.0, 1.0]], [[100.0, 0.0]]]], dtype=torch.float64)
    target = torch.tensor([[0.25, 25.0]], dtype=torch.float64)
    unit = torch.tensor([[1.0, 100.0]], dtype=torch.float64)
    solved = resolve(f, c, target, unit)
    assert bool(solved.shares.infeasible)
    assert solved.shares.index.tolist() == [[0, 1, 0]]
    torch.testing.assert_close(
        solved.shares.probability,
        torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64),
        atol=1e-8,
        rtol=0,
    )


@pytest.mark.parametrize("m", [1, 2])
def test_trials_together_are_trials_alone(m):
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    f, c = uniform(6, 50, 3), uniform(6, m, 50, 3)
    target, unit = 0.2 + 0.4 * uniform(6, m), 1 + uniform(6, m)
    whole = resolve(f, c, target, unit)
    begun = resolve(f, c, target, unit, whole.near)
    for i in range(6):
        row = slice(i, i + 1)
        alone = resolve(f[row], c[row], target[row], unit[row])
        torch.testing.assert_close(alone.price, whole.price[row], rtol=1e-12, atol=0)
        torch.testing.assert_close(
            alone.shares.probability, whole.shares.probability[row], rtol=0, atol=1e-9
        )
    torch.testing.assert_close(begun.price, whole.price, rtol=1e-10, atol=1e-12)


def test_a_row_without_a_choice_is_an_error():
    nothing = torch.full((1, 2, 2), -torch.inf, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="f must allow a choice in every row"):
        resolve(nothing, nothing.unsqueeze(1), one, one)


@pytest.mark.parametrize("m", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_loops_find_the_price_that_numpy_finds(kind, m):
    pytest.importorskip("numba", reason="numba is not installed: numpy is used")
    rng = np.random.default_rng(8)
    for case in range(20):
        f, c, target = window(rng, kind, m)
        turned = np.roll(f, case, 0), np.roll(c, case, 1)  # another last row
        rewards, costs = np.stack([f, turned[0]]), np.stack([c, turned[1]])
        unit = np.stack([np.abs(c).max((1, 2))] * 2)
        scale = np.abs(f[~np.isneginf(f)]).max() / unit[0]
        near = scale * rng.random((2, 1 + m, m))
        begin = torch.from_numpy(near) if case % 2 else None
        limits = np.stack([target, 0.9 * target])
        rows = map(torch.from_numpy, (rewards, costs, limits, unit))
        given = *rows, begin, 1e-12, 1e-15
        ours = window_price(*given, backend="native")
        numpys = window_price_ref(*given)
        assert torch.equal(ours.arms, numpys.arms)
        assert torch.equal(ours.infeasible, numpys.infeasible)
        torch.testing.assert_close(ours.shares, numpys.shares, rtol=0, atol=1e-9)
        size = torch.from_numpy(1 / scale).expand_as(ours.price)
        one, other = ours.price * size, numpys.price * size
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        again = window_price(*given[:4], ours.near, *given[5:], backend="native")
        torch.testing.assert_close(again.price * size, one, rtol=1e-9, atol=1e-9)
