"""Kernels that are inner products of finitely many features.

A belief with such a kernel is Bayesian linear regression: data enter a matrix whose
size depends on the number of features, not on the number of observations.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from gpytorch import kernels as gpk
from torch import Tensor

from cbandit.actions import Actions, Box, Finite, ProductGrid, Unit, reach
from cbandit.errors import CBanditError

SPARE = 64  # values of a category that may still be added, with random features
UNIFORM = 1 / math.sqrt(12)  # the deviation of a uniform draw from the unit interval


class Frame(NamedTuple):
    """The centres and spreads by which numbers are standardised, ``(*b, k)`` each."""

    center: Tensor
    size: Tensor


class Waves(NamedTuple):
    """Random features of a kernel: cosines and sines of ``m`` random projections.

    Args:
        frequencies: ``(k, m)``, for the standardised numbers.
        signs: for each category column ``(options + SPARE, m)``, factors whose average
            product is that column's kernel.
    """

    frequencies: Tensor
    signs: list[Tensor]


class FeatureKernel(gpk.Kernel):  # type: ignore[misc]
    """The kernel ``<h(x), h(y)> / ridge``, and 0 between different categories.

    ``h`` are the standardised numbers and a constant. With ``waves`` they are random
    features, and categories enter these instead of separating points.

    Args:
        actions: the set. Its numbers are standardised by their mean and spread over it.
            Numbers without bounds are standardised by observed values, or with
            ``waves`` from -1 to 1, as by :meth:`cbandit.GP.default`.
        scale: the square root of the inner product's factor, ``()`` or ``(*trials,)``.
        waves: random features; ``None``: the numbers themselves and the constant.
        constant: the value of the constant.
    """

    has_lengthscale = False

    def __init__(
        self,
        actions: Actions,
        scale: Tensor,
        waves: Waves | None = None,
        constant: float = 1.0,
    ) -> None:
        super().__init__(batch_shape=scale.shape)
        logs, categories = columns_of(actions)
        self.dim, self.constant = actions.dim, constant
        self.categories = categories
        self.numbers = [j for j in range(actions.dim) if j not in categories]
        self.options = options_of(actions, categories)
        self.logs = [j in logs for j in self.numbers]
        loose: list[bool] = []
        if isinstance(actions, Box) and waves is None:
            loose = actions.loose.tolist()
        #: places among the numbers that are standardised by observed values
        self.open = [i for i, j in enumerate(self.numbers) if loose and loose[j]]
        frame = _frame(actions, self.numbers, self.logs)
        self.waves = 0 if waves is None else waves.frequencies.shape[-1]
        if waves is not None:
            unit = Unit.around(actions)
            frame = Frame(unit.low[self.numbers], unit.span[self.numbers])
            self.register_buffer("frequencies", waves.frequencies)
            for j, signs in enumerate(waves.signs):
                self.register_buffer(f"signs_{j}", signs)
        center, size = (part.clone() for part in frame)
        center[self.open], size[self.open] = 0.0, 1.0
        self.register_buffer("scale", scale.double())
        self.register_buffer("bent", torch.tensor(self.logs, dtype=torch.bool))
        self.register_buffer("center", center)
        self.register_buffer("spread", size)

    def over(self, actions: Actions) -> FeatureKernel:
        """Return the kernel over a set in which a category has gained a value."""
        grown = copy.deepcopy(self)
        grown.options = options_of(actions, self.categories)
        for j, count in enumerate(grown.options):
            if self.waves and count > len(getattr(self, f"signs_{j}")):
                raise CBanditError(
                    f"a cb.GP.linear of random features takes {SPARE} more values of a "
                    "category than it was made with: begin a new policy with all"
                )
        return grown

    def suit(self, name: str, actions: Actions) -> None:
        """Raise, naming the argument, unless the kernel fits a set's coordinates."""
        _, categories = columns_of(actions)
        counts = options_of(actions, categories)
        if actions.dim == self.dim and categories == self.categories:
            if all(n <= m for n, m in zip(counts, self.options, strict=True)):
                return
        raise CBanditError(
            f"{name}: cb.GP.linear was given a set of {self.dim} coordinates, with "
            f"categories of {self.options} options, and these actions have "
            f"{actions.dim} coordinates, with {counts} options: "
            "give it the policy's own set"
        )

    @property
    def blocks(self) -> int:
        """How many blocks of weights there are: one a combination of categories."""
        return 1 if self.waves else math.prod(self.options)

    def block(self, x: Tensor) -> Tensor | None:
        """Return the block of each point ``(..., d)``; ``None``: there is one."""
        if self.blocks == 1:
            return None
        number: Tensor | None = None
        for j, count in zip(self.categories, self.options, strict=True):
            position = x[..., j].detach().round().long().clamp(0, count - 1)
            number = position if number is None else number * count + position
        return number

    def features(self, x: Tensor, frame: Frame | None = None) -> Tensor:
        """Return the features ``(*b, n, D)`` of points ``(*b, n, d)``, scaled.

        Args:
            x: the points.
            frame: the frame of the numbers without bounds, ``(*b, k)``.
        """
        z = self._standardised(x, frame)
        if not self.waves:
            h = torch.cat([z, z.new_full((*z.shape[:-1], 1), self.constant)], -1)
            return self._scaled(h)
        phase = z @ self.frequencies
        signs = torch.full_like(phase[..., :1], 1.0 / math.sqrt(self.waves))
        for j, column in enumerate(self.categories):
            table: Tensor = getattr(self, f"signs_{j}")
            position = x[..., column].detach().round().long()
            signs = signs * table[position.clamp(0, len(table) - 1)]
        return self._scaled(torch.cat([phase.cos() * signs, phase.sin() * signs], -1))

    def _scaled(self, h: Tensor) -> Tensor:
        """Return features ``(*b, n, D)`` times the scale of each trial."""
        scaled: Tensor = h * self.scale.unsqueeze(-1).unsqueeze(-1)
        return scaled

    def _standardised(self, x: Tensor, frame: Frame | None) -> Tensor:
        """Return the numbers less their centres, over their spreads, ``(*b, n, k)``."""
        z = x if len(self.numbers) == self.dim else _taken(x, self.numbers)
        if any(self.logs):
            flags: Tensor = self.bent
            # numbers that need no logarithm may have none, nor a gradient
            positive = z.where(flags, 1.0).clamp_min(torch.finfo(z.dtype).tiny)
            z = torch.where(flags, positive.log(), z)
        center, size = self.center, self.spread
        if frame is not None:
            center, size = self._with(frame)
            center, size = center.unsqueeze(-2), size.unsqueeze(-2)
        standardised: Tensor = (z - center) / size
        return standardised

    def _with(self, frame: Frame) -> Frame:
        """Return the frame of all numbers, given that of the numbers without bounds."""
        if len(self.open) == len(self.numbers):
            return frame
        shape = *frame.center.shape[:-1], -1
        center = self.center.expand(shape).clone()
        size = self.spread.expand(shape).clone()
        center[..., self.open], size[..., self.open] = frame
        return Frame(center, size)

    def raw(self, x: Tensor) -> Tensor:
        """Return the numbers that have no bounds, ``(..., k)``."""
        return _taken(x, [self.numbers[j] for j in self.open])

    def change(self, old: Frame, new: Frame) -> Tensor:
        """Return ``C (*b, D, D)``; ``C`` times features in the old frame is the new."""
        old, new = self._with(old), self._with(new)
        factors = old.size / new.size
        ones = torch.ones_like(factors[..., :1])
        matrix = torch.diag_embed(torch.cat([factors, ones], -1))
        matrix[..., :-1, -1] = (old.center - new.center) / (new.size * self.constant)
        return matrix

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object
    ) -> Tensor:
        """Return the kernel at ``x1 (*b, n, d)`` and ``x2 (*b, u, d)``."""
        one, other = self.features(x1.double()), self.features(x2.double())
        first, second = self.block(x1), self.block(x2)
        if diag:
            values = (one * other).sum(-1)
            same = None if first is None or second is None else first == second
        else:
            values = one @ other.mT
            same = None
            if first is not None and second is not None:
                same = first.unsqueeze(-1) == second.unsqueeze(-2)
        return values if same is None else values * same


def _taken(x: Tensor, columns: Sequence[int]) -> Tensor:
    """Return some coordinates, ``(..., k)``, as a view if they are contiguous."""
    if columns and columns[-1] - columns[0] == len(columns) - 1:  # they ascend
        return x[..., columns[0] : columns[-1] + 1]
    return x[..., columns]


def columns_of(actions: Actions) -> tuple[list[int], list[int]]:
    """Return the coordinates that enter by their logarithm, and the categories."""
    if actions.names is None:
        return [], []
    flags = actions.names.flags()
    logs, whole = (
        [] if flag is None else flag.nonzero().flatten().tolist() for flag in flags
    )
    return logs, whole


def options_of(actions: Actions, categories: Sequence[int]) -> list[int]:
    """Return how many options each of the categories has."""
    top = reach(actions)[1]
    return [round(float(top[j])) + 1 for j in categories]


def _frame(actions: Actions, numbers: list[int], logs: list[bool]) -> Frame:
    """Return mean and spread of each number over a set; spread 1 if it does not vary.

    On a box they are those of a uniform draw. Numbers without bounds have none.
    """

    def of(values: Tensor, log: bool) -> tuple[Tensor, Tensor]:
        values = values.double().log() if log else values.double()
        return values.mean(), values.std(correction=0)

    pairs = []
    ends = reach(actions)
    if isinstance(actions, Finite):
        points = actions.block(0, int(actions.size)).reshape(-1, actions.dim)
        pairs = [of(points[:, j], log) for j, log in zip(numbers, logs, strict=True)]
    elif isinstance(actions, ProductGrid):
        pairs = [of(actions.axes[j], log) for j, log in zip(numbers, logs, strict=True)]
    else:
        for j, log in zip(numbers, logs, strict=True):
            low, high = ends[0, j], ends[1, j]
            if log:
                low, high = low.log(), high.log()
            pairs.append(((low + high) / 2, UNIFORM * (high - low)))
    if not pairs:
        return Frame(ends.new_zeros(0), ends.new_zeros(0))
    center, size = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    return Frame(center, torch.where(size > 0, size, 1.0))
