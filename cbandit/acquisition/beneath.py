"""Evaluate a model beneath the transforms of ``torch.func``.

GPyTorch's functions do not take part in ``torch.func.grad`` and ``vmap``. So a model is
evaluated with plain tensors, and its gradients are those of ``torch.autograd``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from botorch.models.model import Model
from torch import Tensor
from torch.autograd import Function

from cbandit._core import checks
from cbandit.errors import CBanditError

Moments = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""``(X (*b, q, d), noise or None) -> (mean, spread)``, with ``*b`` leading both."""


def evaluated(
    model: Model, call: Moments, X: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return ``call(X, noise)``, which evaluates ``model``; in ``torch.func`` too.

    There, on a model with parts of GPyTorch, gradients reach ``X`` and ``noise``, not
    the model's hyperparameters, and there are no second ones.
    """
    plain = checks.readable() or torch.compiler.is_compiling()
    if plain or not any(isinstance(part, gpytorch.Module) for part in model.modules()):
        return call(X, noise)
    mean, spread = _apply(_Values, X, noise, call)
    return mean, spread


class _Values(Function):
    """The moments, with their gradients."""

    @staticmethod
    def forward(X: Tensor, noise: Tensor | None, call: Moments) -> tuple[Tensor, ...]:
        return call(X, noise)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        X, noise, ctx.call = inputs
        ctx.save_for_backward(X, noise)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        X, noise = ctx.saved_tensors
        return (*_apply(_Slopes, X, noise, *slopes, ctx.call), None)

    @staticmethod
    def vmap(info: Any, dims: Any, X: Tensor, noise: Any, call: Moments) -> Any:
        if dims[1] is None:  # points may lead with further axes
            return _apply(_Values, X.movedim(dims[0], 0), noise, call), (0, 0)
        return _one_by_one(_Values, info, dims, X, noise, call)


class _Slopes(Function):
    """The gradients of the moments at ``X`` and the noise, times ``slopes``."""

    @staticmethod
    def forward(
        X: Tensor, noise: Tensor | None, first: Tensor, second: Tensor, call: Moments
    ) -> tuple[Tensor, Tensor | None]:
        x = X.detach().requires_grad_()
        lam = None if noise is None else noise.detach().requires_grad_()
        inputs = [x] if lam is None else [x, lam]
        with torch.enable_grad():
            values = call(x, lam)
        found = torch.autograd.grad(
            values, inputs, (first, second), allow_unused=True, materialize_grads=True
        )
        return found[0], None if lam is None else found[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        raise CBanditError(
            "a model has no second derivatives inside torch.func; take them by "
            "torch.autograd.grad(..., create_graph=True)"
        )

    @staticmethod
    def vmap(info: Any, dims: Any, *values: Any) -> Any:
        return _one_by_one(_Slopes, info, dims, *values)


def _apply(function: type[Function], *values: Any) -> Any:
    return function.apply(*values)


def _one_by_one(function: type[Function], info: Any, dims: Any, *values: Any) -> Any:
    """Return what a function gives for each member of a batch, stacked."""
    pairs = list(zip(values, dims, strict=True))
    rows = [
        _apply(function, *[v if at is None else v.select(at, i) for v, at in pairs])
        for i in range(info.batch_size)
    ]
    columns = [
        None if c[0] is None else torch.stack(c) for c in zip(*rows, strict=True)
    ]
    return tuple(columns), tuple(None if c is None else 0 for c in columns)
