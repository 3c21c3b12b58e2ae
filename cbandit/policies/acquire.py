"""Acquisitions: scores from means and deviations, beside a round's estimates.

A policy that defines ``acquire`` scores actions so. ``T`` counts the trials, ``m`` the
costs, ``F`` the functions that have a belief, and ``n`` actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit._core.printing import brief
from cbandit.errors import CBanditError
from cbandit.policies.checks import floating_shape, unchanged
from cbandit.posterior.links import normal_share
from cbandit.posterior.look import Best, Block, Running, estimated
from cbandit.posterior.units import Units, normal, told
from cbandit_kernels import Look

RELATIVE_TOLERANCE = 1e-10  # scores closer to the greatest, by its size, equal it


@dataclass(frozen=True)
class Estimates:
    """The belief about some of the actions, in one round.

    ``T`` counts the trials and is 1 without a trials axis; ``F`` counts the functions
    that have a belief, the reward first. On a Box all tensors are differentiable in the
    points.

    Args:
        mean: posterior means ``(T, F, n)`` in the user's units, probabilities and rates
            where outcomes are binary or counted. The reward is maximised (it is
            negated with ``minimise=True``), costs are to be small, and thresholds are
            not subtracted.
        std: posterior standard deviations, ``(T, F, n)``, in the user's units.
        f: the reward's estimate that scores use, ``(T, n)``: with exploration, clipped,
            in the policy's unit.
        g: the costs' estimates that scores use, ``(T, m, n)``, less the thresholds.
        unit: the size in the user's units of one unit of ``f`` and ``g``, ``(T, F)``; 1
            unless outcomes are standardised.
        incumbent: the greatest mean reward of the actions tried whose mean costs keep
            the limits, ``(T,)``, in the user's units; minus infinity where there is
            none. Outstanding choices are among them with ``pending="hallucinate"``.
        latent: with binary or counted functions, the units and the latent means and
            deviations from which the above were computed; else ``None``.
    """

    mean: Tensor
    std: Tensor
    f: Tensor
    g: Tensor
    unit: Tensor
    incumbent: Tensor
    latent: tuple[Units, Tensor, Tensor] | None = None

    __repr__ = brief

    def chance(self, limits: Tensor) -> Tensor:
        """Return the probability ``(T, n)`` that all costs keep ``limits (T, m)``.

        The costs are taken as independent, given the belief.
        """
        mean, std = self.mean, self.std
        if self.latent is not None:
            mean, std, limits = normal(*self.latent, limits)
        room = (limits.unsqueeze(-1) - mean[:, 1:]) / std[:, 1:]
        return normal_share(room).prod(-2)


class RelativeSearch(Running):
    """A search for the greatest score, with a tolerance relative to its size."""

    def reach(self, top: Tensor) -> Tensor:
        """Return the least scores that count as equal to the greatest, ``top (T,)``."""
        return torch.where(top.isfinite(), top - RELATIVE_TOLERANCE * top.abs(), top)


@dataclass(frozen=True)
class AcquisitionScore:
    """A round's acquisition as a score of rows: estimates, means and deviations.

    The rows are ``(T, 1 + m + 2 F, n)``: the estimates ``f`` and ``g``, the means, the
    deviations.

    Args:
        name: the rule's name in errors.
        rule: the user's function from estimates to scores ``(T, n)``.
        costs: how many rows of ``g`` there are.
        units: the units of the functions; ``None``: the user's.
        incumbent: see :class:`Estimates`.
    """

    name: str
    rule: Callable[[Estimates], Tensor]
    costs: int
    units: Units | None
    incumbent: Tensor

    def rows(self, estimate: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Join estimates, means and deviations into the rows of this class."""
        std = std.expand_as(mean)
        wide = (part.to(self.incumbent.dtype) for part in (estimate, mean, std))
        return torch.cat(list(wide), 1)

    def __call__(self, f: Tensor, below: Tensor) -> Tensor:
        """Return the scores ``(T, n)``, given row ``f`` and all rows below that row."""
        functions = (below.shape[1] - self.costs) // 2
        g, mean, std = below.split([self.costs, functions, functions], 1)
        latent = None
        if self.units is not None and self.units.binds:
            latent = self.units, mean, std
        mean, std = told(self.units, mean, std)
        unit = mean.new_ones(mean.shape[:2])
        if self.units is not None:
            unit = self.units.size.to(mean)
        estimates = Estimates(mean, std, f, g, unit, self.incumbent, latent)
        parts = [v for v in vars(estimates).values() if isinstance(v, Tensor)]
        with unchanged(self.name, *parts):
            values = self.rule(estimates)
        if floating_shape(values) != tuple(f.shape):
            raise CBanditError(
                f"{self.name} must return a value for each action, of shape (T, n) = "
                f"{tuple(f.shape)}; got {floating_shape(values)}"
            )
        return values.to(f)

    def search(self, blocks: Iterable[Block], look: Look) -> Running:
        """Return a search that has scored the rows of all blocks of a set."""
        running = RelativeSearch(self, look.mask)
        for block in blocks:
            estimate = estimated(look, block.mean, block.spread)
            if look.beside is not None:
                costs = look.beside[..., block.start : block.stop]
                estimate = torch.cat([estimate, costs.to(estimate)], 1)
            running.add(block.start, self.rows(estimate, block.mean, block.std))
        return running

    def trimmed(self, best: Best) -> Best:
        """Drop means and deviations from the best action's estimate; return it."""
        best.estimate = best.estimate[:, : 1 + self.costs].clone()
        return best
