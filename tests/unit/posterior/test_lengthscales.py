"""Lengthscales worlds apart, as fits of several trials may find, on every engine."""

from __future__ import annotations

from contextlib import nullcontext

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch import kernels as gpk
from inside import Covariance, load_trial, one_a_trial, plain_torch, trial_of

import cbandit as cb

F64 = torch.float64
NOISE = 0.3
GRIDS = {
    "line": [torch.arange(60, dtype=F64) / 60 + 0.1],
    "plane": [torch.arange(9, dtype=F64) / 7, torch.arange(8, dtype=F64) / 11],
}
SCALES = {  # of three trials
    "even": [0.3, 0.5, 0.2],
    "uneven": [0.3, 5e-9, 1.7e-3],
    "tiny": [1e-6, 3e-8, 1e-7],
}


@pytest.mark.parametrize("loops", ["compiled", "torch"])
@pytest.mark.parametrize("engine", ["joint", "factor", "product", "stream"])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("grid", GRIDS)
def test_each_trial_is_as_if_alone(grid, scales, engine, loops):
    rng, axes, scale = np.random.default_rng(3), GRIDS[grid], SCALES[scales]
    kernel = gpytorch.kernels.RBFKernel(batch_shape=torch.Size([3])).double()
    kernel.lengthscale = torch.tensor(scale, dtype=F64).view(3, 1, 1)
    actions = cb.ProductGrid(axes)
    points = torch.cartesian_prod(*axes).reshape(actions.size, -1).numpy()
    if engine != "product":
        actions = cb.Finite(torch.tensor(points))
    index = rng.integers(0, len(points), (3, 40))
    values = rng.standard_normal((3, 40))
    with plain_torch() if loops == "torch" else nullcontext():
        policy = cb.GPUCB(
            actions,
            reward=cb.GP(kernel, noise=NOISE),
            explore=cb.UCB(2.0),
            trials=3,
            engine=engine,
        )
        policy.observe(index=index[:, :30], reward=values[:, :30])
        for k in range(30, 40):
            choice = policy.ask(among=index[:, k : k + 1])
            policy.tell(choice, reward=values[:, k])
        policy.ask()
        found = policy.posterior().reward
    for trial in range(3):
        gap = points[:, None] - points[None]
        prior = np.exp(-0.5 * (gap**2).sum(-1) / scale[trial] ** 2)
        at = index[trial]
        small = prior[np.ix_(at, at)] + NOISE * np.eye(40)
        cross = prior[:, at]
        mean = cross @ np.linalg.solve(small, values[trial])
        var = 1 - (cross * np.linalg.solve(small, cross.T).T).sum(1)
        np.testing.assert_allclose(found.mean[trial].numpy(), mean, atol=1e-9)
        np.testing.assert_allclose(found.std[trial].numpy() ** 2, var, atol=1e-9)


@pytest.mark.parametrize("scaled", [False, True])
def test_rows_of_some_trials_are_those_of_all(scaled):
    generator = torch.Generator().manual_seed(5)
    kernel = gpk.MaternKernel(nu=2.5, ard_num_dims=3)
    kernel = gpk.ScaleKernel(kernel) if scaled else kernel
    kernel = one_a_trial(kernel.double(), 5)
    for parameter in kernel.parameters():
        parameter.data += torch.rand(parameter.shape, generator=generator, dtype=F64)
    covariance = Covariance(kernel, 3)
    y = torch.rand(40, 3, generator=generator, dtype=F64)
    x, trials = y[[7, 9, 30]], torch.tensor([4, 0, 2])
    rows = covariance.rows(trials, x, y)
    for i, trial in enumerate(trials.tolist()):
        alone = trial_of(kernel, 0)
        load_trial(alone, kernel, trial)
        assert rows[i].numpy() == pytest.approx(
            alone(x[i : i + 1], y).to_dense()[0].detach().numpy(), rel=1e-9, abs=1e-12
        )
    apart = y.expand(5, -1, -1)  # a set for each trial
    assert torch.equal(covariance.rows(trials, x, apart), rows)
