"""Prior means in the units of an engine: the one place where they are computed.

Engines condition on outcomes less their prior means. A mean is its *level*, one number
a trial and function, and what it is above that level at each point. The level is added
to an engine's means when they are read, so that narrow arrays do not lose digits to it.
What varies is part of an engine's means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from gpytorch.means import Mean
from torch import Tensor

from cbandit._core import checks
from cbandit._core.values import copy_with
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.beliefs.mean_function import MeanFunction
from cbandit.posterior.links import Link


@dataclass(frozen=True, eq=False)
class PriorMean:
    """The prior means of ``f`` functions in ``T`` trials.

    Args:
        level: the means at the ``origin``, ``(T, f)``; everywhere, where they are
            constant. Latent for a function with a link.
        functions: the means that vary, each as the user gave it; ``None``: constant.
        signs: -1 for functions that a policy has turned.
        origin: a point of the set, ``(1 or T, 1, d)``.
        link: the link of a binary or counted function; ``None``: there is none.
        variance: the latent prior variance, ``(T, 1)``, at which such a function has
            the mean that the user stated.
        center: the values that count as 0 in a unit of their own, ``(T, f)``; ``None``:
            the unit is the user's.
        size: the size of that unit, ``(T, f)``.
    """

    level: Tensor
    functions: tuple[MeanFunction | None, ...]
    signs: tuple[float, ...]
    origin: Tensor
    link: Link | None = None
    variance: Tensor | None = None
    center: Tensor | None = None
    size: Tensor | None = None

    @classmethod
    def of(
        cls,
        beliefs: Sequence[GP],
        actions: Actions,
        batch_shape: tuple[int, ...],
        device: torch.device,
        variance: Tensor,
    ) -> Self:
        """Return the means of beliefs that share an engine.

        ``variance``, ``()`` or ``(T,)``, is the largest prior variance over the set.
        """
        trials, origin = math.prod(batch_shape), _first_point(actions).double()
        link = beliefs[0].outcome and Link(beliefs[0].outcome, beliefs[0].sense)
        columns, functions = [], []
        for gp in beliefs:
            columns.append(gp.sense * checks.per_trial("mean", gp.mean, batch_shape))
            function = gp.mean_function
            if function is not None:
                function = function.in_trials(trials, origin).to(device)
            functions.append(function)
        level, signs = torch.stack(columns, -1).to(device), [gp.sense for gp in beliefs]
        variance = variance.expand(trials).unsqueeze(-1).to(device)
        out = cls(level, tuple(functions), tuple(signs), origin, link or None, variance)
        if out.link is not None:  # 0: the user stated none
            latent = out.link.center(level, variance)
            out = copy_with(out, level=torch.where(level == 0, 0.0, latent))
        scales = [gp.scale for gp in beliefs if gp.scale]
        if scales:  # all have the same, but for their signs
            (zero, unit), *_ = scales
            center = zero * level.new_tensor(signs).expand_as(level)
            size = torch.full_like(level, unit)
            level = (level - center) / size
            out = copy_with(out, level=level, center=center, size=size)
        return out.levelled()

    def levelled(self) -> Self:
        """Return the means with the level of each function at the origin."""
        return copy_with(self, level=self.at(self.origin)[..., 0])

    @property
    def varies(self) -> bool:
        """Whether any mean depends on the point."""
        return any(function is not None for function in self.functions)

    @property
    def learns(self) -> bool:
        """Whether any of them has parameters to fit."""
        return any(
            function is not None and function.learns for function in self.functions
        )

    @property
    def modules(self) -> list[Mean]:
        """The gpytorch modules that have the parameters."""
        return [mean for each in self.functions if each for mean in each.means]

    def at(self, x: Tensor) -> Tensor:
        """Return the means at points ``(n, d)`` or ``(T, n, d)``, ``(T, f, n)``."""
        level, rows = self.level.unsqueeze(-1), []
        if not self.varies:
            return level.expand(*level.shape[:2], x.shape[-2])
        shape = len(level), x.shape[-2]
        for j, (function, sign) in enumerate(
            zip(self.functions, self.signs, strict=True)
        ):
            if function is None:
                rows.append(level[:, j].expand(shape))
                continue
            value = sign * function(x).expand(shape)
            if self.link is not None and self.variance is not None:
                value = self.link.center(value, self.variance)
            if self.center is not None and self.size is not None:
                some = slice(j, j + 1)
                value = (value - self.center[:, some]) / self.size[:, some]
            rows.append(value)
        return torch.stack(rows, 1)

    def above(self, x: Tensor) -> Tensor:
        """Return by how much the means at points exceed their level, ``(T, f, n)``."""
        return self.at(x) - self.level.unsqueeze(-1)

    def told(self, x: Tensor) -> Tensor:
        """Return the same in the user's unit, latent for a function with a link."""
        means = self.at(x)
        if self.center is None or self.size is None:
            return means
        return self.center.unsqueeze(-1) + self.size.unsqueeze(-1) * means

    def narrowed(self, places: Sequence[int]) -> Self:
        """Return the means of the functions at ``places``."""
        level, center, size = (
            None if part is None else torch.stack([part[:, j] for j in places], -1)
            for part in (self.level, self.center, self.size)
        )
        return copy_with(
            self,
            level=level,
            functions=tuple(self.functions[j] for j in places),
            signs=tuple(self.signs[j] for j in places),
            center=center,
            size=size,
        )

    def raised(self, by: Tensor) -> Self:
        """Return constant means that are larger by ``(T, f)``."""
        return copy_with(self, level=self.level + by)

    def apart(self) -> Self:
        """Return a copy of a mean with parameters, of which each trial has its own."""
        trials = len(self.level)
        return self._mapped(lambda function: function.apart(trials))

    def trial(self, i: int) -> Self:
        """Return the means of one trial, with the same parameters."""
        out = self._mapped(lambda function: function.trial(i))
        return out._each(lambda part: part[i : i + 1] if len(part) > 1 else part)

    def to(self, device: torch.device) -> Self:
        """Return the same means on a device."""
        out = self._mapped(lambda function: function.to(device))
        return out._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the means with other tensors."""
        names = "level", "origin", "variance", "center", "size"
        parts = {name: getattr(self, name) for name in names}
        return copy_with(
            self, **{k: None if v is None else change(v) for k, v in parts.items()}
        )

    def _mapped(self, change: Callable[[MeanFunction], MeanFunction]) -> Self:
        """Return the means with other functions."""
        functions = (each and change(each) for each in self.functions)
        return copy_with(self, functions=tuple(functions))


def _first_point(actions: Actions) -> Tensor:
    """Return a point of a set, ``(1 or T, 1, d)``, with coordinates that are finite."""
    if actions.continuous:
        point = actions.extent()[..., :1, :].nan_to_num(posinf=0.0, neginf=0.0)
    else:
        point = actions.block(0, 1)
    return point.reshape(-1, 1, actions.dim)
