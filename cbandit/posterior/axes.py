"""A kernel over a product grid as one factor per axis, where it has them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import gpytorch
import torch
from gpytorch import kernels as gpk
from torch import Tensor

from cbandit.actions import ProductGrid
from cbandit.posterior.covariance import Covariance, active_of, form_of, leaves_of
from cbandit_kernels import kernel_matrix_ref

__all__ = ["AxisKernel", "axes_of"]

AxisKernel = Callable[[Tensor, Tensor], Tensor]
"""``(a (*b, n), b (*b, u)) -> (*b, n, u)``: one axis' factor of a product kernel."""


def axes_of(covariance: Covariance, actions: ProductGrid) -> list[AxisKernel] | None:
    """One factor per axis whose product is the kernel, or ``None``."""
    amplitude, leaves = leaves_of(covariance.kernel, list(range(covariance.dim)))
    factors: list[list[AxisKernel]] = [[] for _ in range(covariance.dim)]
    for leaf, dims in leaves:
        active = active_of(leaf, dims)
        if len(active) > 1 and not _product_over_axes(leaf):
            return None
        # a leaf on one axis is its own factor; one on several is divided by its
        # value where all coordinates agree, which is then an amplitude
        unit = len(active) > 1
        if unit:
            zero = covariance.inputs(torch.zeros(1, len(dims), dtype=torch.float64))
            zero = torch.zeros_like(zero).to(covariance.device)
            with torch.no_grad():
                amplitude = amplitude * leaf(zero, diag=True).squeeze(-1)
        for axis in active:
            factors[axis].append(
                _axis_factor(covariance, leaf, dims.index(axis), len(dims), axis, unit)
            )
    kernels = [_product(parts) for parts in factors]
    first = kernels[0]

    def scaled_first(a: Tensor, b: Tensor) -> Tensor:
        values = first(a, b)
        if isinstance(amplitude, Tensor):
            return values * amplitude.to(values)[..., None, None]
        return values * amplitude

    kernels[0] = scaled_first
    return kernels if _agrees(covariance, kernels, actions) else None


def _axis_factor(
    covariance: Covariance,
    leaf: gpk.Kernel,
    place: int,
    count: int,
    axis: int,
    unit: bool,
) -> AxisKernel:
    form = None if not unit else form_of(leaf, list(range(count)), count)
    exact = form if form is not None and form.kind == "rbf" else None
    if not unit:
        exact = form_of(leaf, list(range(count)), count)

    def factor(a: Tensor, b: Tensor) -> Tensor:
        a, b = _axis_inputs(covariance, a, axis), _axis_inputs(covariance, b, axis)
        if exact is not None:
            scale = exact.scale[..., place, None].to(a.device)
            return kernel_matrix_ref(
                (a * scale).unsqueeze(-1), (b * scale).unsqueeze(-1), exact.kind
            )
        x, y = a.new_zeros(*a.shape, count), b.new_zeros(*b.shape, count)
        x[..., place], y[..., place] = a, b
        with torch.no_grad(), gpytorch.settings.lazily_evaluate_kernels(False):
            values: Tensor = leaf(x, y).to_dense()
            if unit:
                values = values / leaf(x[..., :1, :] * 0, diag=True).unsqueeze(-1)
        return values

    return factor


def _axis_inputs(covariance: Covariance, a: Tensor, axis: int) -> Tensor:
    a = a.double()
    return a if covariance.unit is None else covariance.unit.axis(a, axis)


def _agrees(
    covariance: Covariance, kernels: list[AxisKernel], actions: ProductGrid
) -> bool:
    """Whether the factors' product is the kernel, tried on a few actions."""
    count = min(actions.size, 7)
    picks = torch.arange(count) * (actions.size // count) + actions.size % count
    x = actions.points(picks.to(actions.axes[0].device))
    product = torch.ones((), dtype=torch.float64, device=x.device)
    for j, kernel in enumerate(kernels):
        product = product * kernel(x[:, j], x[:, j])
    whole = covariance.cross(x, x)
    return bool((product - whole).abs().max() <= 1e-7 * whole.abs().max())


def _product_over_axes(leaf: gpk.Kernel) -> bool:
    if isinstance(leaf, gpk.RBFKernel | gpk.PeriodicKernel):
        return True
    if isinstance(leaf, gpk.ProductStructureKernel):
        return bool(leaf.base_kernel.is_stationary)
    return type(leaf).__name__ == "CategoricalKernel"


def _product(parts: list[AxisKernel]) -> AxisKernel:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return functools.reduce(torch.mul, [part(a, b) for part in parts or [_ones]])

    return kernel


def _ones(a: Tensor, b: Tensor) -> Tensor:
    """The factor of an axis that the kernel does not look at."""
    shape = *torch.broadcast_shapes(a.shape[:-1], b.shape[:-1]), a.shape[-1]
    return torch.ones(*shape, b.shape[-1], dtype=torch.float64, device=a.device)
