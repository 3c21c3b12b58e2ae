"""Means and deviations of several groups at points, for a search on a box."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cbandit.posterior.draws.features import Pathwise, Waves
from cbandit.posterior.group import Group
from cbandit_kernels import kernel_matrix_ref


class Stacked:
    """Means and standard deviations of ``G`` groups, for many calls without updates.

    A search on a box asks for a few points hundreds of times a round, with no new
    observation. What does not depend on the points is prepared once, and functions with
    kernels of the same kind are computed together.

    Args:
        groups: the groups, which must pass :meth:`fits`.
        ordered: joins values of each group, ``(T, f, n)``, in the order of functions.
    """

    @staticmethod
    def fits(groups: Sequence[Group]) -> bool:
        """Return whether these groups can be computed together.

        Each kernel must be one closed form, of the same kind and with as many slots,
        and its coordinates may only be scaled and shifted.
        """
        if not all(group.held.by_slots and group.held.solves for group in groups):
            return False
        of = [group.prior.covariance for group in groups]
        kinds = {c.kinds if c.forms and not c.bent else () for c in of}
        used = {group.engine.history.system().root.shape for group in groups}
        functions = {len(group.functions) for group in groups}
        alike = len(kinds) == len(used) == len(functions) == 1
        return alike and len(kinds.pop()) == 1 and used.pop()[-1] > 0

    def __init__(
        self, groups: Sequence[Group], ordered: Callable[[Sequence[Tensor]], Tensor]
    ) -> None:
        self._join = ordered
        self._engines = [group.engine for group in groups]
        self._kind = groups[0].prior.covariance.kinds[0]
        rates, origins, places, halves, amplitudes = [], [], [], [], []
        weights, shifts = [], []
        trials = groups[0].prior.trials
        for group in groups:
            covariance, history = group.prior.covariance, group.engine.history
            system = history.system()
            zero = system.root.new_zeros(1, covariance.dim)
            ends = [covariance.scaled(at)[0] for at in (zero, zero + 1)]
            origins.append(ends[0].expand(trials, 1, -1))
            rates.append((ends[1] - ends[0]).expand(trials, 1, -1))
            points = covariance.scaled(history.places(system))[0]
            places.append(points.expand(trials, -1, -1))
            eye = torch.diag_embed(system.root)
            halves.append(
                torch.linalg.solve_triangular(system.factor, eye, upper=False)
            )
            weight, shift = group.scale.weights(system.alpha)
            weights.append(weight)
            shifts.append(shift)
            ones = torch.ones(trials, 1, 1, dtype=torch.float64, device=zero.device)
            amplitudes.append(covariance.times(ones).squeeze(-1))
        self._rates, self._origins = torch.stack(rates), torch.stack(origins)
        self._places, self._halves = torch.stack(places), torch.stack(halves)
        self._amplitude = torch.stack(amplitudes).unsqueeze(-1)  # G x T x 1 x 1
        self._weights = torch.stack(weights) * self._amplitude
        self._halves = self._halves * self._amplitude
        self._shift = torch.stack(shifts).unsqueeze(-1)  # G x T x f x 1

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and deviations ``(T, F, n)`` at ``x (T, n, d)``, in units."""
        z, cross = self._cross(x)
        mean = self._means(cross, x)
        half = self._halves @ cross
        prior = self._amplitude.squeeze(-1)
        if self._kind == "linear":
            prior = prior * z.square().sum(-1)
        var = prior - half.square().sum(-2)
        # the floor keeps gradients finite where the variance is 0
        std = var.clamp_min(1e-300).sqrt().unsqueeze(-2).expand_as(mean)
        return self._ordered(mean), self._ordered(std)

    def drawn(
        self, paths: Sequence[Pathwise]
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return a function of points that gives means and draws less the means.

        ``paths`` are the groups' paths, which must consist of waves.
        """
        weights = torch.stack([path.weights.mT for path in paths]) * self._amplitude
        parts = []
        for path in paths:
            zero = weights.new_zeros(1, path.covariance.dim)
            low, high = (path.covariance.inputs(at) for at in (zero, zero + 1))
            if path.waves is not None:
                parts.append(path.waves.along(low, high - low))
        waves = Waves(*map(torch.stack, zip(*parts, strict=True)))

        def at(x: Tensor) -> tuple[Tensor, Tensor]:
            _, cross = self._cross(x)
            mean = self._means(cross, x)
            draw = waves(x) - weights @ cross
            return self._ordered(mean), self._ordered(draw)

        return at

    def _means(self, cross: Tensor, x: Tensor) -> Tensor:
        """Return the groups' means ``(G, T, f, n)`` at points ``(T, n, d)``."""
        means: Tensor = self._weights @ cross + self._shift
        if all(engine.prior.mean is None for engine in self._engines):
            return means
        pairs = zip(self._engines, means, strict=True)
        return torch.stack([engine.raised(mean, x) for engine, mean in pairs])

    def _cross(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled points, and their prior covariances with the tried actions."""
        z = self._origins + self._rates * x.double()
        return z, kernel_matrix_ref(z, self._places, self._kind).mT

    def _ordered(self, values: Tensor) -> Tensor:
        return self._join(values.unbind(0))
