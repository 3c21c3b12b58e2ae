"""Ridge estimates and their ellipsoids against dense solves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from inside import Ridge
from stagewise import noise, unit

import cbandit as cb


def test_ridge_is_least_squares_and_its_ellipsoid():
    x, y = unit(2, 40, 4), noise(2, 40, 3, seed=1)
    ridge = torch.tensor([[1.0, 2.0, 0.5]] * 2).double()
    state = Ridge.start(ridge, 4)
    for i in range(40):
        state = state.added(x[:, i], y[:, i])
    at = unit(1, 7, 4, seed=2)
    mean, norm = state.at(at)
    for trial in range(2):
        for f in range(3):
            sigma = ridge[trial, f] * torch.eye(4) + x[trial].mT @ x[trial]
            w = torch.linalg.solve(sigma, x[trial].mT @ y[trial, :, f])
            torch.testing.assert_close(mean[trial, f], at[0] @ w)
            length = (at[0] @ torch.linalg.inv(sigma) * at[0]).sum(-1).sqrt()
            torch.testing.assert_close(norm[trial, f], length)


def test_ridge_across_a_known_direction_is_the_pseudo_inverse():
    x, y, e0 = unit(1, 30, 4), noise(30, seed=1), unit(4, seed=5)
    one, slope = torch.ones(1, 1).double(), torch.tensor([[0.3]]).double()
    state = Ridge.start(one, 4, e0.view(1, 1, 4), slope)
    for i in range(30):
        state = state.added(x[:, i], y[i].view(1, 1))
    across = torch.eye(4).double() - e0.outer(e0)
    xp = x[0] @ across
    sigma = across + xp.mT @ xp
    pinv = torch.linalg.pinv(sigma, rtol=1e-10)
    mu = pinv @ (xp.mT @ (y - 0.3 * x[0] @ e0))
    at = unit(1, 7, 4, seed=2)
    mean, norm = state.at(at)
    torch.testing.assert_close(mean[0, 0], 0.3 * at[0] @ e0 + at[0] @ mu)
    ap = at[0] @ across
    torch.testing.assert_close(norm[0, 0], (ap @ pinv * ap).sum(-1).sqrt())


@pytest.mark.slow
def test_estimates_equal_a_fresh_solve_after_many_rounds():
    # 10^5 rounds; the error grows like the square root: 10^6 stay below 1e-8 too
    rounds, d = 100_000, 10
    x, y = unit(rounds, 1, d) * 0.3, noise(rounds, 1, 1, scale=1.0)
    one = torch.ones(1, 1).double()
    state = Ridge.start(one, d)
    for i in range(rounds):
        state = state.added(x[i], y[i])
    flat = x[:, 0]
    fresh = torch.linalg.solve(
        torch.eye(d).double() + flat.mT @ flat, flat.mT @ y[:, 0, 0]
    )
    assert (state.solved[0][0, 0] - fresh).abs().max() < 1e-9


def test_a_ridge_that_rounding_would_eat():
    def policy(ridge, length=None):
        belief = cb.Linear(subgaussian=0.1, ridge=ridge, norm=1.0, length=length)
        return cb.LCLUCB(
            cb.Finite([[0.0, 0.0], [2.0, 0.0]]),
            reward=belief,
            costs=belief,
            safe=cb.Safe(index=0),
            thresholds=0.5,
            delta=0.1,
            horizon=100,
        )

    with pytest.raises(cb.CBanditError, match=r"ridge must be at least 1e-10 .* 1e-12"):
        policy(1e-12)
    kept = policy(1e-9)
    with pytest.raises(cb.CBanditError, match="the longest action has length 40"):
        kept.ask(actions=[[0.0, 0.0], [0.0, 40.0]])
    assert kept.t == 0
    assert not kept.outstanding


def test_the_least_ridge_there_may_be(rng):
    """Across all that was seen a unit vector has length ``1 / sqrt(ridge)``."""
    basis = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    ridge = torch.full((1, 1), 1e-10, dtype=torch.float64)
    linear = Ridge.start(ridge, 6)
    seen = rng.standard_normal((3000, 4)) @ basis[:4]
    seen /= np.linalg.norm(seen, axis=-1, keepdims=True)
    for x in torch.tensor(seen):
        y = x.sum().reshape(1, 1)
        linear = linear.added(x.unsqueeze(0), y)
    mean, norm = linear.at(torch.tensor(basis).unsqueeze(0))
    assert norm[0, 0, 4:].numpy() == pytest.approx(1e5, rel=1e-2)
    truth = np.append(basis[:4].sum(-1), [0.0, 0.0])
    assert mean[0, 0].numpy() == pytest.approx(truth, abs=1e-2)


def test_how_much_longer_an_ellipsoid_is_than_the_first():
    d, ridge = 3, torch.tensor([[1.0, 0.1, 2.0]]).double()
    x, y = unit(20, 1, d), noise(20, 1, 3, seed=1)
    state = Ridge.start(ridge, d)
    for i in range(20):
        state = state.added(x[i], y[i, :, :1], None, slice(0, 1))
        if i < 8:
            state = state.added(x[i], y[i, :, 1:], None, slice(1, None))
    _, norm = state.at(unit(1, 20_000, d, seed=2))
    longest = (norm[:, 1:] / norm[:, :1]).amax(-1)
    assert (longest > 1.05).all()
    assert (state.stretch >= longest).all()
    torch.testing.assert_close(state.stretch, longest, rtol=1e-3, atol=0)
    together = Ridge.start(torch.ones(1, 2).double(), d).added(x[0], y[0, :, :2])
    assert (together.stretch == 1).all()
