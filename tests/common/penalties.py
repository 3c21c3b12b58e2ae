"""Dense references, one trial at a time, for policies with penalties."""

from __future__ import annotations

import math
from functools import lru_cache

import gpytorch
import numpy as np
import torch

import cbandit as cb

N, LAM, BETA = 40, 0.1, 1.5
GRID = np.linspace(0, 1, N)
KERNEL = np.exp(-0.5 * ((GRID[:, None] - GRID) / 0.15) ** 2)


def actions():
    return cb.Finite(torch.tensor(GRID).unsqueeze(-1))


def belief(**given):
    kernel = gpytorch.kernels.RBFKernel().double()
    # a Python number would pass through float32 in gpytorch
    kernel.lengthscale = torch.tensor(0.15, dtype=torch.float64)
    return cb.GP(kernel, noise=LAM, **given)


def posterior(index, y, lam=LAM):
    """Mean, standard deviation on the grid, and the information gain."""
    index = tuple(int(k) for k in index)
    if not index:
        return np.zeros(N), np.sqrt(np.diag(KERNEL)), 0.0
    weights, std, gain = _solved(index, lam)
    return weights.T @ np.asarray(y), std, gain


@lru_cache(maxsize=8)  # a round asks for the means of several functions there
def _solved(index, lam):
    gram = KERNEL[np.ix_(index, index)] + lam * np.eye(len(index))
    cross = KERNEL[list(index)]
    weights = np.linalg.solve(gram, cross)
    var = np.diag(KERNEL) - np.einsum("ij,ij->j", cross, weights)
    gain = 0.5 * np.linalg.slogdet(gram / lam)[1]
    return weights, np.sqrt(np.maximum(var, 0)), gain


class World:
    """Functions and noise of ``trials`` trials, all drawn beforehand."""

    def __init__(self, trials, m, rounds, seed=0):
        rng = np.random.default_rng(seed)
        root = np.linalg.cholesky(KERNEL + 1e-9 * np.eye(N))
        self.f = rng.standard_normal((trials, N)) @ root.T
        self.g = rng.standard_normal((trials, m, N)) @ root.T - 0.3
        self.rewards = self.f[:, None] + 0.3 * rng.standard_normal((trials, rounds, N))
        self.costs = self.g[:, None] + 0.3 * rng.standard_normal((trials, rounds, m, N))
        self.rng, self.trials, self.m, self.rounds = rng, trials, m, rounds

    def reward(self, t, index):
        """Of round ``t``, from 1: ``(trials,)``."""
        return torch.tensor([self.rewards[i, t - 1, k] for i, k in enumerate(index)])

    def cost(self, t, index):
        return torch.tensor(
            np.stack([self.costs[i, t - 1, :, k] for i, k in enumerate(index)])
        )

    def true_cost(self, index):
        return torch.tensor(np.stack([self.g[i, :, k] for i, k in enumerate(index)]))


class Scores:
    """Notes the greatest score of every round of a policy."""

    def __init__(self):
        self.values = []

    def watch(self, policy):
        formed = policy.score

        def score(t, multiplier):
            real = formed(t, multiplier)

            def noting(f, g):
                values = real(f, g)
                self.values.append(values.amax(-1).numpy())
                return values

            return noting

        policy.score = score


def close(a, b, what=""):
    np.testing.assert_allclose(
        np.asarray(a), np.asarray(b), rtol=1e-8, atol=1e-8, err_msg=str(what)
    )


def check_choice(score, best, index, what=""):
    """The policy's action is the best one, and its score the same."""
    close(best, score.max(), what)
    close(score[index], score.max(), what)


def theory(norm, r, gain, delta, chances, form="any-lam"):
    """The RKHS width, ``chances`` being the ``c`` of its logarithm."""
    log = math.log(chances / delta)
    if form == "any-lam":
        return norm + r / math.sqrt(LAM) * math.sqrt(2 * gain + 2 * log)
    if form == "tight":
        return math.sqrt(norm**2 + r**2 / LAM * (2 * gain + 2 * log))
    return norm + r * math.sqrt(2 * (gain + 1 + log))
