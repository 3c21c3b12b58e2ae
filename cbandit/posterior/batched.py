"""Kernels whose hyperparameters differ from trial to trial.

gpytorch's own ``expand_batch`` and indexing lose count of kernels within products, and
take ``active_dims`` for a hyperparameter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from gpytorch import kernels as gpk
from torch import Tensor

__all__ = ["one_a_trial", "trial_of"]


def one_a_trial(kernel: gpk.Kernel, trials: int) -> gpk.Kernel:
    """Return a kernel without a batch with hyperparameters of its own a trial."""

    def repeated(value: Tensor) -> Tensor:
        return value.expand(trials, *value.shape).clone()

    return _changed(kernel, repeated, (trials,))


def trial_of(kernel: gpk.Kernel, trial: int) -> gpk.Kernel:
    """Return the kernel of one trial, which shares nothing with the others'."""

    def chosen(value: Tensor) -> Tensor:
        return value[trial].clone()

    return _changed(kernel, chosen, ()) if kernel.batch_shape else copy.deepcopy(kernel)


def _changed(
    kernel: gpk.Kernel, change: Callable[[Tensor], Tensor], batch: tuple[int, ...]
) -> gpk.Kernel:
    """Return a copy with every hyperparameter changed."""
    out = copy.deepcopy(kernel)
    for part in out.modules():
        if isinstance(part, gpk.Kernel):
            for value in _own(part):
                value.data = change(value.data)
            part.batch_shape = torch.Size(batch)
    return out


def _own(part: gpk.Kernel) -> Iterator[Tensor]:
    """The hyperparameters of a kernel itself."""
    yield from part.parameters(recurse=False)
    for name, value in part.named_buffers(recurse=False):
        if name != "active_dims":
            yield value
