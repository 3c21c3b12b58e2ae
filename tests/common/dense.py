"""Posteriors by dense solves on 30 points, and how policies are driven beside them."""

from __future__ import annotations

import gpytorch
import mpmath
import numpy as np
import torch

import cbandit as cb

N, BETA, LAM = 30, 2.0, 0.01


# uneven, for on an even grid mirror images tie and rounding decides
X = torch.tensor(np.sort(np.random.default_rng(7).uniform(size=N))).unsqueeze(-1)


def rbf(lengthscale=0.2):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel


GP = cb.GP(rbf(), noise=LAM)


K = rbf()(X, X).to_dense().detach().numpy()


D = np.abs(X.numpy() - X.numpy().T)


def functions(trials, m, seed=0, shift=0.5):
    """Reward and costs ``(trials, 1 + m, N)`` from the prior, safe at action 12."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(K + 1e-9 * np.eye(N))
    out = rng.standard_normal((trials, 1 + m, N)) @ root.T
    out[:, 1:] -= out[:, 1:, 12:13] + shift
    return out


def noise(trials, m, rounds, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rounds, trials, 1 + m)) * np.sqrt(LAM)


class Dense:
    """A posterior by dense solves: means ``(F, N)``, covariance ``(N, N)``."""

    def __init__(self, k=K):
        self.k, self.at, self.y = k, [], []

    def tell(self, i, y):
        self.at.append(i)
        self.y.append(y)

    def look(self):
        if not self.at:
            return np.zeros((1, len(self.k))), self.k
        cross = self.k[self.at]
        solved = np.linalg.solve(
            self.k[np.ix_(self.at, self.at)] + LAM * np.eye(len(self.at)), cross
        )
        return np.array(self.y).T @ solved, self.k - cross.T @ solved

    def bounds(self, beta=BETA):
        mean, cov = self.look()
        std = np.sqrt(np.diag(cov).clip(0))
        return mean, std * beta, cov


def drive(policy, truth, noises):
    """Play; ``(rounds, trials)`` actions, the choices."""
    f, out, choices = torch.tensor(truth), [], []
    m = truth.shape[1] - 1
    for eps in torch.tensor(noises):
        choice = policy.ask()
        at = choice.index.reshape(-1, 1, 1).expand(-1, 1 + m, 1)
        y = f.gather(-1, at)[..., 0] + eps
        if not policy.batch_shape:
            y = y[0]
        cost = None if policy.m == 0 else y[..., 1:]
        policy.tell(choice, reward=y[..., 0], cost=cost)
        out.append(choice.index.reshape(-1).tolist())
        choices.append(choice)
    return np.array(out), choices


def follow(model, played, truth, noises):
    """Each action played has the greatest score, to rounding; then the next round.

    Actions that mirror each other tie: which one it is, rounding decides.
    """
    for t, (i, eps) in enumerate(zip(played, noises, strict=True)):
        score = model.ask()
        assert score[i] >= score.max() - 1e-9, (t, i, int(score.argmax()))
        model.tell(i, truth[:, i] + eps)


def extended_std(places, tried, noise, lengthscale):
    """Deviations of an RBF posterior at ``places``, in 40 digits.

    ``noise`` is the variance at each of the distinct ``tried``, repeats merged.
    """
    with mpmath.workdps(40):
        rows, others = (
            [list(map(mpmath.mpf, row)) for row in np.asarray(each, float).tolist()]
            for each in (tried, places)
        )
        rate = -1 / (2 * mpmath.mpf(lengthscale) ** 2)

        def k(x, y):
            gaps = [a - b for a, b in zip(x, y, strict=True)]
            return mpmath.exp(rate * mpmath.fdot(gaps, gaps))

        def solved(x):
            half = []
            for row, known in zip(rows, factor, strict=False):
                left = k(x, row) - mpmath.fdot(known[:-1], half)
                half.append(left / known[-1])
            return half

        factor = []
        for row, own in zip(rows, noise, strict=True):
            half = solved(row)
            factor.append([*half, mpmath.sqrt(1 + own - mpmath.fdot(half, half))])
        halves = map(solved, others)
        return np.array([float(mpmath.sqrt(1 - mpmath.fdot(h, h))) for h in halves])
