"""Policies amid a run, in pairs: whether what one went through has changed it."""

from __future__ import annotations

import numpy as np
import torch
from gpytorch import kernels as gpk

import cbandit as cb

F64 = torch.float64


def belief(**more) -> cb.GP:
    kernel = gpk.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=F64)
    return cb.GP(kernel, **({"noise": 1e-2} | more))


def line(n: int = 20) -> torch.Tensor:
    return torch.linspace(0, 1, n, dtype=F64).unsqueeze(-1)


def policy_of(trials=None, explore=None, m=2, **more):
    settings = {"step": 0.2, "cap": 3.0, "reward": belief(), "costs": [belief()] * m}
    return cb.CKB(
        cb.Finite(line()),
        trials=trials,
        explore=explore or cb.Rand(1.0),
        **(settings | more),
    )


def prepared(trials=None, **more):
    """A policy amid a run, with one choice outstanding and one half told."""
    policy = policy_of(trials, **more)
    rng = np.random.default_rng(1)
    lead = () if trials is None else (trials,)
    for _ in range(6):
        choice = policy.ask()
        policy.tell(
            choice,
            reward=rng.standard_normal(lead),
            cost=rng.standard_normal((*lead, 2)),
        )
    half = policy.ask()
    policy.tell(half, reward=np.zeros(lead))
    return policy, half, policy.ask()


def same_future(policy, twin) -> bool:
    """Whether both go on alike: choices, multipliers, beliefs, draws."""
    assert policy.t == twin.t
    assert [c.t for c in policy.outstanding] == [c.t for c in twin.outstanding]
    for _ in range(3):
        a, b = policy.ask(), twin.ask()
        lead = policy.batch_shape
        for each, choice in ((policy, a), (twin, b)):
            each.tell(choice, reward=np.full(lead, 0.3), cost=np.full((*lead, 2), 0.1))
        if not torch.equal(a.index, b.index):
            return False
    found, other = policy.posterior(), twin.posterior()
    return torch.equal(policy.multiplier, twin.multiplier) and all(
        torch.equal(x, y)
        for x, y in [
            (found.reward.mean, other.reward.mean),
            (found.reward.std, other.reward.std),
            (found.costs.mean, other.costs.mean),
            (found.costs.std, other.costs.std),
        ]
    )


NAN, INF = float("nan"), float("inf")
