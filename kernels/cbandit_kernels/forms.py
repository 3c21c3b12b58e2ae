"""Covariance functions in closed form, as plain torch.

Coordinates are *scaled*: divided by the lengthscale (``linear``: times the root of the
variance), so that a kernel depends only on scaled coordinates and an amplitude.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["FAR", "KINDS", "kernel_columns", "kernel_columns_ref", "kernel_matrix_ref"]

KINDS = ("rbf", "matern12", "matern32", "matern52", "linear")
# scaled points with larger squares are so far out that distances would cancel
FAR = {torch.float32: 100.0, torch.float64: 500.0}
_MATERN_ROOT = {
    "matern12": 1.0,
    "matern32": math.sqrt(3.0),
    "matern52": math.sqrt(5.0),
}


def _from_squared(squared: Tensor, kind: str) -> Tensor:
    """Return kernel values from squared scaled distances, which are overwritten."""
    if kind == "rbf":
        return squared.mul_(-0.5).exp_()
    r = squared.sqrt_().mul_(_MATERN_ROOT[kind])
    decay = torch.exp(-r)
    if kind == "matern12":
        return decay
    if kind == "matern32":
        return decay.mul_(r.add_(1))
    return decay.mul_((r * (1.0 / 3.0)).add_(1).mul_(r).add_(1))


def _differentiable(squared: Tensor, kind: str) -> Tensor:
    """Return :func:`_from_squared` with gradients that are finite at equal points."""
    if kind == "rbf":
        return torch.exp(-0.5 * squared)
    r = squared.clamp_min(1e-30).sqrt() * _MATERN_ROOT[kind]
    if kind == "matern12":
        return torch.exp(-r)
    if kind == "matern32":
        return torch.exp(-r) * (1 + r)
    return torch.exp(-r) * (1 + r + r.square() / 3)


def kernel_matrix_ref(x: Tensor, y: Tensor, kind: str) -> Tensor:
    """Return ``k(x, y) (*b, n, u)`` for scaled ``x (*b, n, d)`` and ``y (*b, u, d)``.

    Distances come from differences of coordinates, which are exact at equal points, as
    the Matern-1/2 kernel needs.
    """
    if kind == "linear":
        return x @ y.mT
    if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):
        gaps = x.unsqueeze(-2) - y.unsqueeze(-3)
        return _differentiable(gaps.square().sum(-1), kind)
    if 1 in (x.shape[-2], y.shape[-2]):
        gaps = (x - y).square_()
        # a product with ones sums in one read of memory
        squared = gaps @ gaps.new_ones(x.shape[-1], 1)
        shape = *gaps.shape[:-2], x.shape[-2], y.shape[-2]
        return _from_squared(squared.view(shape), kind)
    shape = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    squared = x.new_zeros(*shape, x.shape[-2], y.shape[-2])
    for j in range(x.shape[-1]):
        gap = x[..., :, None, j] - y[..., None, :, j]
        squared.addcmul_(gap, gap)
    return _from_squared(squared, kind)


def _far(x: Tensor, y: Tensor) -> bool:
    """Return whether points are so far out that squares would cancel noticeably."""
    known = [v for v in (x, y) if v.numel()]
    out = max((float(v.square().sum(-1).max()) for v in known), default=0.0)
    return out > FAR[x.dtype]


def _by_product(x: Tensor, y: Tensor, kind: str) -> Tensor:
    """Return ``k(y, x) (*b, u, n)`` of a smooth kernel by one matrix product.

    Squares cancel for points far from the origin, see :func:`_far`.

    Two more columns hold the squares, so that the product is the squared distance, or
    for the RBF the exponent, without another pass over ``u x n`` numbers.
    """
    times = -0.5 if kind == "rbf" else 1.0
    x2, y2 = (x * x).sum(-1, keepdim=True), (y * y).sum(-1, keepdim=True)
    left = torch.cat([y * (-2 * times), y2 * times, torch.full_like(y2, times)], -1)
    right = torch.cat([x, torch.ones_like(x2), x2], -1)
    product = left @ right.mT
    if kind == "rbf":
        return product.exp_()
    return _from_squared(product.clamp_min_(0), kind)


def kernel_columns_ref(
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    kinds: tuple[str, ...],
    far: bool | None = None,
) -> Tensor:
    """Return ``weights^T k(y, x) (*b, k, n)``: combinations of kernel rows.

    Args:
        x: the actions, one scaled copy per factor, ``(f, *b, n, d)``.
        y: the distinct tried actions, scaled like ``x``, ``(f, *b, u, d)``.
        weights: ``(*b, u, k)``.
        kinds: one kernel per factor; the kernel is their product.
        far: whether distances must come from differences of coordinates; ``None``:
            find out, which waits for a device.

    Kernel values are computed, used and dropped. They take ``u x n`` numbers of memory,
    so pass blocks of actions that fit the cache.
    """
    values: Tensor | None = None
    for factor, kind in enumerate(kinds):
        xs, ys = x[factor], y[factor]
        apart = kind != "linear" and (_far(xs, ys) if far is None else far)
        if kind == "matern12" or apart:
            part = kernel_matrix_ref(ys, xs, kind)
        elif kind == "linear":
            part = ys @ xs.mT
        else:
            part = _by_product(xs, ys, kind)
        values = part if values is None else values.mul_(part)
    if values is None:
        raise ValueError("kinds must name at least one kernel; got none")
    return weights.mT @ values


def kernel_columns(
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    kinds: tuple[str, ...],
    far: bool | None = None,
) -> Tensor:
    """Do as :func:`kernel_columns_ref`, by the fastest code for the device of ``x``."""
    return kernel_columns_ref(x, y, weights, kinds, far)
