"""A prior mean that depends on the action: a user's function, or a gpytorch Mean."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from gpytorch.means import Mean
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Actions, spread_points
from cbandit.errors import CBanditError

CHECKED = 8  # points of a set at which a mean is tried before it is used


class MeanFunction:
    """A prior mean as a function of points in the user's numbers, in the user's unit.

    Args:
        function: takes points ``(n, d)``, float64, and returns ``(n,)``. The parameters
            of a gpytorch Mean are hyperparameters; a batched one has one row a trial.
    """

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        if isinstance(function, torch.nn.Module):
            function = copy.deepcopy(function).double().requires_grad_(False)
        #: one for all trials, or one a trial
        self._each: tuple[Callable[[Tensor], Any], ...] = (function,)

    def __call__(self, x: Tensor) -> Tensor:
        """Return values ``(*b, n)`` at points ``(*b, n, d)``; ``b`` may be ``T``.

        The result is ``(T, n)`` if trials have their own parameters.
        """
        if len(self._each) == 1:
            return _values(self._each[0], x)
        x = x.expand(len(self._each), *x.shape[-2:])
        pairs = zip(self._each, x, strict=True)
        return torch.stack([_values(function, points) for function, points in pairs])

    @property
    def means(self) -> Iterator[Mean]:
        """The gpytorch modules, whose parameters may be fitted."""
        return (each for each in self._each if isinstance(each, Mean))

    @property
    def learns(self) -> bool:
        """Whether it has parameters to fit."""
        return any(list(mean.parameters()) for mean in self.means)

    def suit(self, name: str, actions: Actions, trials: int) -> None:
        """Raise, naming the belief, if it does not return a mean of each action."""
        points = spread_points(actions, CHECKED).double()
        try:
            self.in_trials(trials, points)(points)
        except CBanditError as error:
            raise CBanditError(f"{name}: {error}") from None

    def in_trials(self, trials: int, points: Tensor) -> Self:
        """Return it with a batched module taken apart, one for each trial.

        ``points`` are any points ``(*trials, n, d)`` of the set.
        """
        first = self._each[0]
        if len(self._each) > 1 or not isinstance(first, Mean):
            return self
        some = points.reshape(-1, points.shape[-1])[:2].to(_device_of(first))
        if tuple(first(some).shape) != (trials, len(some)):
            return self
        return self._of(_trial_of(first, i) for i in range(trials))

    def apart(self, trials: int) -> Self:
        """Return a copy in which each trial has parameters of its own to fit."""
        each = self._each * trials if len(self._each) == 1 else self._each
        return self._of(map(copy.deepcopy, each))

    def trial(self, i: int) -> Self:
        """Return the function of one trial, with the same parameters."""
        return self._of([self._each[i if len(self._each) > 1 else 0]])

    def to(self, device: torch.device) -> Self:
        """Return the same function with its parameters on a device."""
        return self._of(
            copy.deepcopy(each).to(device)
            if isinstance(each, torch.nn.Module)
            else each
            for each in self._each
        )

    def _of(self, each: Any) -> Self:
        out = copy.copy(self)
        out._each = tuple(each)
        return out

    def __repr__(self) -> str:
        return checks.kind(self._each[0])


def _values(function: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    """Return a function's values ``(*b, n)`` at points ``(*b, n, d)``, checked."""
    rows = x.reshape(-1, x.shape[-1]).double()
    values = torch.as_tensor(function(rows), dtype=torch.float64, device=x.device)
    if tuple(values.shape) != (len(rows),):
        raise CBanditError(
            "mean must return a value for each point, of shape (n,) = "
            f"{(len(rows),)}; got {tuple(values.shape)}"
        )
    # on a device this would wait for it; there a score shows what is not finite
    if not (x.is_cuda or values.requires_grad or bool(values.isfinite().all())):
        raise CBanditError(
            "mean must be finite at every action; got "
            f"{values[~values.isfinite()][0].item():g}"
        )
    return values.reshape(x.shape[:-1])


def _trial_of(mean: Mean, trial: int) -> Mean:
    """Return a copy of a batched module with the parameters of one trial."""
    out = copy.deepcopy(mean)
    for parameter in out.parameters():
        parameter.data = parameter.data[trial].clone()
    return out


def _device_of(module: torch.nn.Module) -> torch.device:
    values = [*module.parameters(), *module.buffers()]
    return values[0].device if values else torch.device("cpu")
