"""What the product engine leaves out of a kernel's factors, against dense solves.

In float64 means and deviations are within 1e-8 of the prior deviation, in float32
within 1e-3.
"""

from __future__ import annotations

import re

import gpytorch
import numpy as np
import pytest
import torch
from dense import extended_std
from gpytorch import kernels as gpk
from inside import beliefs_of

import cbandit as cb

F64, F32 = torch.float64, torch.float32
NOISE = 1e-3
BOUND = {F64: 1e-8, F32: 1e-3}


def rbf(*lengthscales, batch=()):
    kernel = gpk.RBFKernel(
        ard_num_dims=len(lengthscales), batch_shape=torch.Size(batch)
    ).double()
    kernel.lengthscale = torch.tensor(lengthscales, dtype=F64)
    return kernel


def on_axis(kernel, axis, lengthscale):
    made = kernel(active_dims=(axis,)).double()
    made.lengthscale = lengthscale
    return made


def matern(axis, lengthscale):
    return on_axis(gpk.MaternKernel, axis, lengthscale)


def steep(axis, lengthscale):
    return on_axis(gpk.RBFKernel, axis, lengthscale)


def grid(*sizes):
    return cb.ProductGrid([torch.linspace(0, 1, n, dtype=F64) for n in sizes])


# the kernel, the grid, and how many of its factors are cut down
CASES = {
    "the tail alone": (rbf(0.1, 0.3), grid(7, 40), 1),
    "one front and the tail": (rbf(0.4, 0.3), grid(40, 40), 2),
    "two fronts and the tail": (rbf(3.0, 2.0, 1.5, 2.5), grid(20, 20, 20, 20), 3),
    "a tail of three axes": (rbf(2.0, 1.5, 2.0, 3.0, 1.0), grid(20, 20, 20, 4, 4), 3),
    "a front of full rank": (
        matern(0, 0.3) * steep(1, 2.0) * steep(2, 2.0) * steep(3, 1.0),
        grid(11, 20, 20, 20),
        2,
    ),
    "nothing": (
        matern(0, 0.2) * matern(1, 3.0) * matern(2, 0.7) * matern(3, 1.0),
        grid(9, 9, 9, 9),
        0,
    ),
}


def solved(kernel, tried, rewards, places, noise):
    """Means and deviations at ``places`` by a dense solve that merges nothing."""
    with gpytorch.settings.lazily_evaluate_kernels(False), torch.no_grad():
        gram, cross, prior = (
            kernel(a, b).to_dense().numpy()
            for a, b in ((tried, tried), (tried, places), (places[:1], places[:1]))
        )
    system = gram + noise * np.eye(len(tried))
    weights = np.linalg.solve(system, np.column_stack([rewards, cross]))
    mean, explained = cross.T @ weights[:, 0], (cross * weights[:, 1:]).sum(0)
    return mean, np.sqrt(prior[0, 0] - explained)


def off(policy, kernel, index, rewards, places):
    """The largest error of a policy's means and deviations at some actions."""
    actions = policy.actions
    tried, at = actions.points(torch.tensor(index)), actions.points(places)
    mean, std = solved(kernel, tried.double(), rewards, at.double(), NOISE)
    believed = policy.posterior().reward
    return max(
        np.abs(believed.mean[places].double().numpy() - mean).max(),
        np.abs(believed.std[places].double().numpy() - std).max(),
    )


@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_few_and_many_actions_tried(name, dtype, rng):
    """Below the rank rows are used as they are, above it their basis."""
    kernel, actions, cut = CASES[name]
    policy = cb.GPUCB(
        actions,
        reward=cb.GP(kernel, noise=NOISE),
        explore=cb.UCB(2.0),
        engine="product",
        dtype=dtype,
    )
    assert len(re.findall(r"\d+ of \d+", policy.engine)) == cut
    places = torch.as_tensor(rng.integers(0, int(actions.size), 200))
    index, rewards = [], []
    for t in range(60):
        among = None if t % 4 == 0 else torch.tensor([rng.integers(int(actions.size))])
        choice = policy.ask(among=among)
        index.append(int(choice.index))
        rewards.append(float(torch.sin(5 * choice.x).sum() + 0.03 * rng.normal()))
        policy.tell(choice, reward=rewards[-1])
        if t == 8:
            assert off(policy, kernel, index, rewards, places) < BOUND[dtype]
    everywhere = torch.cat([places, torch.tensor(index)])
    assert off(policy, kernel, index, rewards, everywhere) < BOUND[dtype]
    beliefs_of(policy).groups[0].engine.refresh()
    assert off(policy, kernel, index, rewards, everywhere) < BOUND[dtype]


def test_trials_whose_factors_have_different_ranks(rng):
    """The basis has the largest rank: to the other trial it is exact too."""
    scales, actions = (0.9, 0.25), grid(40, 40)
    kernel = rbf(*[1.0, 1.0], batch=[2])
    kernel.lengthscale = torch.tensor(scales, dtype=F64).view(2, 1, 1).expand(2, 1, 2)
    policy = cb.GPUCB(
        actions,
        reward=cb.GP(kernel, noise=NOISE),
        explore=cb.UCB(2.0),
        engine="product",
        trials=2,
    )
    assert "rank" in policy.engine
    index, rewards = [], []
    for _ in range(50):
        choice = policy.ask(among=torch.as_tensor(rng.integers(0, 1600, 1)))
        index.append(choice.index.tolist())
        rewards.append(rng.normal(size=2))
        policy.tell(choice, reward=rewards[-1])
    believed, places = policy.posterior().reward, torch.arange(0, 1600, 7)
    for i, scale in enumerate(scales):
        tried = actions.points(torch.tensor(index)[:, i])
        mean, std = solved(
            rbf(scale, scale),
            tried,
            np.array(rewards)[:, i],
            actions.points(places),
            NOISE,
        )
        assert np.abs(believed.mean[i, places].numpy() - mean).max() < 1e-8
        assert np.abs(believed.std[i, places].numpy() - std).max() < 1e-8


@pytest.mark.parametrize("noise", [1e-6, 1e-12])
def test_deviations_under_tiny_noise_in_extended_precision(noise, rng):
    """What a refresh does not solve for again is exact enough as it was computed."""
    actions, scale = grid(40, 40), 0.4
    policy = cb.GPUCB(
        actions,
        reward=cb.GP(rbf(scale, scale), noise=noise),
        explore=cb.UCB(2.0),
        engine="product",
    )
    assert "rank" in policy.engine
    index = rng.choice(1600, 40, replace=False).tolist()
    policy.observe(index=torch.tensor(index), reward=rng.normal(size=40))
    places = [*range(3, 1600, 60), *index[:10]]
    at = actions.points(torch.tensor(places)).numpy()
    tried = actions.points(torch.tensor(index)).numpy()
    wanted = extended_std(at, tried, [noise] * 40, scale)
    assert (wanted < 0.3).mean() > 0.9  # they have fallen
    assert np.abs(policy.posterior().reward.std[places].numpy() - wanted).max() < 1e-8
    beliefs_of(policy).groups[0].engine.refresh()
    assert np.abs(policy.posterior().reward.std[places].numpy() - wanted).max() < 1e-8
