"""Worlds and policies with a safe action, for several test files."""

from __future__ import annotations

import gpytorch
import numpy as np
import scipy.optimize
import torch

import cbandit as cb


def unit(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g, dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def noise(*shape, seed=0, scale=0.1):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=g, dtype=torch.float64)


def play(policy, theta, mu, rounds, seed=0, scale=0.1):
    """Rounds of a linear world; the choices."""
    z = noise(rounds, *policy.batch_shape, 1 + policy.m, seed=seed, scale=scale)
    out = []
    for t in range(rounds):
        choice = policy.ask()
        out.append(choice)
        reward, cost = choice.x @ theta, choice.x @ mu.mT
        policy.tell(choice, reward=reward + z[t][..., 0], cost=cost + z[t][..., 1:])
    return out


def programme(u_r, u_c, tau):
    found = scipy.optimize.linprog(
        -u_r, A_ub=u_c, b_ub=tau, A_eq=np.ones((1, len(u_r))), b_eq=[1.0]
    )
    return -found.fun


def rbf(lengthscale=0.3):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel


def linear_policy(kind, trials, seed=3, **more):
    lin = cb.Linear(0.1, length=1.0)
    star = cb.Star(torch.zeros(3), unit(5, 3, seed=1))
    points = torch.cat([torch.zeros(1, 3).double(), 0.3 * unit(5, 3, seed=1)])
    actions = cb.Finite(points) if kind is cb.OPLB else star
    return kind(
        actions,
        reward=lin,
        costs=[lin, lin],
        safe=cb.Safe(x=[0.0, 0.0, 0.0]),
        thresholds=0.3,
        trials=trials,
        seed=seed,
        **more,
    )


def count_policy(trials, seed=3, **more):
    given = {"range": (-2.0, 2.0)}
    return cb.OPB(
        cb.Finite(torch.arange(4.0).double().unsqueeze(-1)),
        reward=cb.Counts(0.1, **given),
        costs=[cb.Counts(0.1, **given)] * 2,
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=0.3,
        horizon=50,
        trials=trials,
        seed=seed,
        **more,
    )


def rounds_of(policy, trials, count=12):
    """Feedback that depends on the trial's number, not on the batch it runs in."""
    xs = []
    for t in range(count):
        choice = policy.ask()
        xs.append(choice.x)
        k = torch.tensor([float(i) for i in trials]).double()
        z = 0.1 * torch.sin(7 * k + t)
        reward = choice.x.sum(-1) * 0.3 + z
        cost = torch.stack([choice.x[..., 0] * 0.2 + z, z], -1)
        if not policy.batch_shape:
            reward, cost = reward.reshape(()), cost.reshape(2)
        policy.tell(choice, reward=reward.clamp(-2, 2), cost=cost.clamp(-2, 2))
    return torch.stack(xs, -2)
