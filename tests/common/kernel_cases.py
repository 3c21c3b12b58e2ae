"""Kernels in GPyTorch and in numpy, and an exact posterior that merges nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from gpytorch import kernels as gpk


def _distance(x: np.ndarray, y: np.ndarray, scale: np.ndarray) -> np.ndarray:
    gap = (x[:, None, :] - y[None, :, :]) / scale
    return np.sqrt((gap * gap).sum(-1))


def _rbf(x: np.ndarray, y: np.ndarray, scale: object = 0.3) -> np.ndarray:
    return np.exp(-0.5 * _distance(x, y, np.asarray(scale)) ** 2)


def _matern(x: np.ndarray, y: np.ndarray, nu: float, scale: object = 0.3) -> np.ndarray:
    r = np.sqrt(2 * nu) * _distance(x, y, np.asarray(scale))
    polynomial = {0.5: 1.0, 1.5: 1 + r, 2.5: 1 + r + r * r / 3}[nu]
    return polynomial * np.exp(-r)


def _periodic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    gap = x[:, None, :] - y[None, :, :]
    return np.exp(-2 * (np.sin(np.pi * gap / 0.7) ** 2 / 0.5).sum(-1))


def _product_matern(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.ones((len(x), len(y)))
    for j in range(x.shape[1]):
        nu, scale = (2.5, 0.4) if j % 2 == 0 else (1.5, 0.3)
        out = out * _matern(x[:, j : j + 1], y[:, j : j + 1], nu, scale)
    return out


@dataclass(frozen=True)
class Case:
    """A gpytorch kernel over ``d`` coordinates, and the same in numpy."""

    make: Callable[[int], gpk.Kernel]
    values: Callable[[np.ndarray, np.ndarray], np.ndarray]
    closed: bool = True  # has a closed form (the stream engine)
    factors: bool = False  # factors over axes (the product engine)


def _with_scale(kernel: gpk.Kernel, value: object = 0.3) -> gpk.Kernel:
    kernel = kernel.double()
    kernel.lengthscale = torch.as_tensor(value, dtype=torch.float64)
    return kernel


def _make_periodic(dim: int) -> gpk.Kernel:
    kernel = gpk.PeriodicKernel(ard_num_dims=dim).double()
    kernel.lengthscale = torch.tensor(0.5, dtype=torch.float64)
    kernel.period_length = torch.tensor(0.7, dtype=torch.float64)
    return kernel


def _make_scaled(dim: int) -> gpk.Kernel:
    kernel = gpk.ScaleKernel(_with_scale(gpk.MaternKernel(nu=2.5))).double()
    kernel.outputscale = torch.tensor(2.5, dtype=torch.float64)
    return kernel


def _make_linear(dim: int) -> gpk.Kernel:
    kernel = gpk.LinearKernel().double()
    # a Python number would be rounded to float32 on its way, in a double kernel too
    kernel.variance = torch.tensor(0.8, dtype=torch.float64)
    return kernel


def _make_product(dim: int) -> gpk.Kernel:
    parts = []
    for j in range(dim):
        nu, scale = (2.5, 0.4) if j % 2 == 0 else (1.5, 0.3)
        parts.append(_with_scale(gpk.MaternKernel(nu=nu, active_dims=[j]), scale))
    return gpk.ProductKernel(*parts).double()


def _make_ard(dim: int) -> gpk.Kernel:
    scale = torch.linspace(0.3, 0.6, dim, dtype=torch.float64)
    kernel = gpk.ScaleKernel(
        _with_scale(gpk.RBFKernel(ard_num_dims=dim), scale)
    ).double()
    kernel.outputscale = torch.tensor(0.5, dtype=torch.float64)
    return kernel


CASES = {
    "rbf": Case(
        lambda dim: _with_scale(gpk.RBFKernel()), lambda x, y: _rbf(x, y), factors=True
    ),
    "matern12": Case(
        lambda dim: _with_scale(gpk.MaternKernel(nu=0.5)),
        lambda x, y: _matern(x, y, 0.5),
    ),
    "matern32": Case(
        lambda dim: _with_scale(gpk.MaternKernel(nu=1.5)),
        lambda x, y: _matern(x, y, 1.5),
    ),
    "matern52": Case(
        lambda dim: _with_scale(gpk.MaternKernel(nu=2.5)),
        lambda x, y: _matern(x, y, 2.5),
    ),
    "product-matern": Case(_make_product, _product_matern, factors=True),
    "scaled": Case(_make_scaled, lambda x, y: 2.5 * _matern(x, y, 2.5)),
    "scaled-ard": Case(
        _make_ard,
        lambda x, y: 0.5 * _rbf(x, y, np.linspace(0.3, 0.6, x.shape[1])),
        factors=True,
    ),
    "linear": Case(_make_linear, lambda x, y: 0.8 * x @ y.T),
    "periodic": Case(_make_periodic, _periodic, closed=False, factors=True),
}


class Dense:
    """Exact posterior of one function from all its observations, none of them merged.

    Args:
        kernel: ``(x (n, d), y (u, d)) -> (n, u)``, or a prior covariance ``(N, N)``,
            whose points are the arms' numbers ``(n, 1)``.
        noise: variance of one observation.
        mean: prior mean.
    """

    def __init__(
        self,
        kernel: Callable[[np.ndarray, np.ndarray], np.ndarray] | np.ndarray,
        noise: float = 1e-2,
        mean: float = 0.0,
        standardize: bool = False,
    ) -> None:
        if isinstance(kernel, np.ndarray):
            table = kernel

            def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
                i, j = x[:, 0].round().astype(int), y[:, 0].round().astype(int)
                return table[np.ix_(i, j)]

        self.kernel, self.noise, self.mean = kernel, noise, mean
        self.standardize = standardize
        self.x: list[np.ndarray] = []
        self.y: list[float] = []
        self.own: list[float | None] = []

    def add(self, x: object, y: float, noise: float | None = None) -> None:
        self.x.append(np.asarray(x, dtype=float).reshape(-1))
        self.y.append(float(y))
        self.own.append(noise)

    def forget(self) -> None:
        for rows in (self.x, self.y, self.own):
            rows.pop(0)

    def units(self) -> tuple[float, float]:
        if not self.standardize or not self.y:
            return (0.0, 1.0) if self.standardize else (self.mean, 1.0)
        spread = np.std(self.y, ddof=1) if len(self.y) > 1 else 0.0
        return float(np.mean(self.y)), float(spread) if spread > 0 else 1.0

    def variances(self) -> np.ndarray:
        scale = self.units()[1]
        return np.array(
            [self.noise if own is None else own / scale**2 for own in self.own]
        )

    def posterior(self, at: object) -> tuple[np.ndarray, np.ndarray]:
        mean, covariance = self.joint(at)
        return mean, np.sqrt(np.maximum(np.diagonal(covariance), 0))

    def joint(self, at: object) -> tuple[np.ndarray, np.ndarray]:
        at = np.asarray(at, dtype=float)
        shift, scale = self.units()
        prior = self.kernel(at, at)
        if not self.y:
            return np.full(len(at), shift), prior * scale**2
        x, y = np.stack(self.x), (np.array(self.y) - shift) / scale
        gram = self.kernel(x, x) + np.diag(self.variances())
        cross = self.kernel(x, at)
        weights = np.linalg.solve(gram, np.column_stack([cross, y]))
        mean = cross.T @ weights[:, -1]
        covariance = prior - cross.T @ weights[:, :-1]
        return mean * scale + shift, covariance * scale**2

    def gain(self) -> float:
        if not self.y:
            return 0.0
        x, root = np.stack(self.x), 1 / np.sqrt(self.variances())
        gram = np.eye(len(x)) + self.kernel(x, x) * root[:, None] * root
        return 0.5 * float(np.linalg.slogdet(gram)[1])

    def log_likelihood(self) -> float:
        shift, scale = self.units()
        x, y = np.stack(self.x), (np.array(self.y) - shift) / scale
        gram = self.kernel(x, x) + np.diag(self.variances())
        quadratic = y @ np.linalg.solve(gram, y)
        return -0.5 * float(
            quadratic + np.linalg.slogdet(gram)[1] + len(y) * np.log(2 * np.pi)
        )
