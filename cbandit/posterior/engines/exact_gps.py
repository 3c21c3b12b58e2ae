"""Ask GPyTorch: an ``ExactGP`` for each function, at each look at the set.

Nothing is kept between looks, and each point is solved for anew, so it is slow: other
engines are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.posterior.engines.protocol import Engine
from cbandit.posterior.look import Block
from cbandit.posterior.pending import Coming

POINTS = 20  # of a t-batch, solved together
ROOM = 1 << 24  # numbers of the covariances that are built together
PADDING = 1e20  # variance of a place without data, as a multiple of the prior variance


class FunctionGP(gpytorch.models.ExactGP):  # type: ignore[misc]
    """A GPyTorch model of one function, its mean taken off, in all trials.

    Args:
        x: the places of its data, ``(T, U, d)``.
        y: the means of what was told there, ``(T, U)``.
        noise: the variances of these means, ``(T, U)``.
        kernel: of the prior.
    """

    def __init__(self, x: Tensor, y: Tensor, noise: Tensor, kernel: Kernel) -> None:
        super().__init__(x, y, FixedNoiseGaussianLikelihood(noise))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior at points ``(*b, n, d)``."""
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class ExactGPs(Engine):
    """An engine that asks GPyTorch models for the whole set at each look."""

    def blocks(
        self,
        stretches: Iterable[tuple[int, int]],
        streams: Streams | None = None,
        ahead: Coming | None = None,
    ) -> Iterator[Block]:
        """Yield the set block by block, see :meth:`Engine.blocks`."""
        path = None if streams is None else self.path(streams)
        with _exact():
            models = [self._model(f) for f in range(self.functions)]
            wider = models[0] if ahead is None else self._model(0, ahead)
        for start, stop in stretches:
            x = self.prior.actions.block(start, stop).double()
            means, var = zip(*(self._ask(model, x) for model in models), strict=True)
            if wider is not models[0]:
                var = (self._ask(wider, x)[1],)
            std = var[0].clamp_min(0).sqrt().unsqueeze(1)
            draw = None if path is None else path(x)
            yield Block(start, stop, self.raised(torch.stack(means, 1), x), std, draw)

    def _model(self, function: int, ahead: Coming | None = None) -> FunctionGP | None:
        """Return the model of a function; ``None`` if nothing was told.

        With ``ahead`` its data have outstanding choices too, for variances alone.
        """
        history, covariance = self.history, self.prior.covariance
        used = history.used
        x, precision = history.points[:, :used], history.precision[:, :used]
        sums = history.weighted[:, function, :used]
        if ahead is not None:
            x = torch.cat([x, ahead.places()], 1)
            precision = torch.cat([precision, ahead.precision], 1)
            sums = torch.nn.functional.pad(sums, (0, ahead.precision.shape[1]))
        known = precision > 0
        if not bool(known.any()):
            return None
        largest = PADDING * covariance.variance(x).amax()
        noise = torch.where(known, 1 / precision, largest)
        y = torch.where(known, sums / precision, 0.0)
        x = x if covariance.unit is None else covariance.unit.of(x)
        model: FunctionGP = FunctionGP(x, y, noise, covariance.kernel).eval()
        return model

    def _ask(self, model: FunctionGP | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances ``(T, n)`` at points ``(n, d)``, or ``(T, n, d)``.

        The points are asked for in t-batches.
        """
        trials, n, covariance = self.prior.trials, x.shape[-2], self.prior.covariance
        if model is None:
            var = covariance.variance(x).expand(trials, n)
            return torch.zeros_like(var), var
        x = x if covariance.unit is None else covariance.unit.of(x)
        rest = x[..., -1:, :].expand(*x.shape[:-2], -n % POINTS, -1)
        x = torch.cat([x, rest], -2).unflatten(-2, (-1, POINTS))
        x = x.expand(trials, *x.shape[-3:]).transpose(0, 1)  # batches x T x POINTS x d
        size = trials * (model.train_targets.shape[-1] + POINTS) ** 2
        with _exact():
            found = [model(part) for part in x.split(max(1, ROOM // size))]
            mean = torch.cat([each.mean for each in found])
            var = torch.cat([_diagonal(each) for each in found])
        # batches x T x POINTS, with points that fill the last batch
        mean, var = (each.transpose(0, 1).flatten(1) for each in (mean, var))
        return mean[:, :n], var[:, :n]


def _diagonal(posterior: MultivariateNormal) -> Tensor:
    """Return variances ``(*b, n)`` as they are; GPyTorch's own are at least 1e-10."""
    variances: Tensor = posterior.covariance_matrix.diagonal(dim1=-2, dim2=-1)
    return variances


def _exact() -> ExitStack:
    """Return a context in which GPyTorch solves by Cholesky and keeps small noises."""
    stack = ExitStack()
    for each in (
        torch.no_grad(),
        gpytorch.settings.fast_computations(False, False, False),
        gpytorch.settings.min_fixed_noise(1e-300, 1e-300, 1e-300),
    ):
        stack.enter_context(each)
    return stack
