"""Thompson sampling: CKB's score on one path drawn from the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from botorch.models.deterministic import DeterministicModel, MatheronPathModel
from botorch.models.model import Model
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit.acquisition.beneath import evaluated
from cbandit.acquisition.models import Outputs, one_each, parts
from cbandit.acquisition.scores import Weighted
from cbandit.errors import CBanditError
from cbandit.explore import estimates

POINTS = 2048  # a path is evaluated at this many points at a time


class PathwisePrimalDual(Weighted):
    """CKB-TS's score: the Lagrangian of one Thompson path, as a function of ``x``.

    A path is a draw of ``GP(mean, beta^2 covariance)``, by random Fourier features (an
    approximate prior) and an exact update on the data. It is the same differentiable
    function at every call, decided by ``seed`` alone. Each point of a batch has its own
    path, drawn when it is first needed. Pending points count as the batch's first
    points.

    Args:
        model: the reward first, then ``m`` costs; models that
            ``botorch.sampling.pathwise`` knows.
        beta, multiplier, cost_beta, thresholds, clip: as for :class:`PrimalDual`.
        seed: an int, or a ``torch.Generator`` to draw one from. Give a new one each
            round: paths of the same seed share their prior draw.
        smooth, outputs, X_pending, units: as for :class:`PrimalDual`.
    """

    seed: Tensor

    def __init__(
        self,
        model: Model,
        beta: ArrayLike,
        multiplier: ArrayLike,
        cost_beta: ArrayLike | None = None,
        thresholds: ArrayLike = 0.0,
        clip: ArrayLike | None = None,
        *,
        seed: int | torch.Generator,
        smooth: Any = None,
        outputs: Outputs | None = None,
        X_pending: Tensor | None = None,
        units: ArrayLike | None = None,
    ) -> None:
        super().__init__(
            model,
            beta,
            multiplier,
            cost_beta,
            thresholds,
            clip,
            smooth=smooth,
            outputs=outputs,
            X_pending=X_pending,
            units=units,
        )
        if isinstance(seed, torch.Generator):
            device = seed.device
            seed = int(torch.randint(2**32, (), generator=seed, device=device))
        self.register_buffer("seed", torch.tensor(_folded(checks.seed(seed))))
        self.paths = torch.nn.ModuleList()
        if checks.readable():
            self._path(0)

    def estimates(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the paths at ``X``: reward ``(*b, q)`` and costs ``(*b, m, q)``."""
        X = self._points("X", X)
        plain = checks.readable() and not self.width.requires_grad
        if plain and bool(self.width.eq(1).all()):
            return self._finished(self._paths(X))
        mean, spread = evaluated(self.model, self._moments, X, None)
        return self._finished(estimates(mean, spread, self.width))

    def _moments(self, X: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the means, and the paths less the means, ``(*b, 1 + m, q)``."""
        posterior: Any = self.model.posterior(X)
        mean = self._arranged(posterior.mean.mT)
        return mean, self._paths(X) - mean

    def _paths(self, X: Tensor) -> Tensor:
        """Return the paths of all functions at ``X``, ``(*b, 1 + m, q)``."""
        p = 0 if self.X_pending is None else self.X_pending.shape[-2]
        drawn = [self._path(p + i)(x) for i, x in enumerate(X.split(1, -2))]
        return self._arranged(one_each(torch.cat(drawn, -2), X).mT)

    def _path(self, number: int) -> torch.nn.Module:
        while len(self.paths) <= number:
            # an odd step, so that no two paths get the same seed
            seed = int(self.seed) + len(self.paths) * 0x9E3779B1
            self.paths.append(_Path(self.model, seed))
        return self.paths[number]

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        *rest: object,
        **named: object,
    ) -> None:
        start = prefix + "paths."
        numbers = [
            key[len(start) :].split(".")[0] for key in state_dict if start in key
        ]
        for number in {int(n) for n in numbers if n.isdigit()}:
            self._path(number)
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)


def _folded(seed: int) -> int:
    """Return a seed of 32 bits, which is all that torch's generators keep."""
    if seed < 2**32:
        return seed
    digest = hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=4).digest()
    return int.from_bytes(digest, "little")


class _Path(torch.nn.Module):
    """One path of every part of a model, ``(*b, q, d) -> (*b, q, outputs)``."""

    def __init__(self, model: Model, seed: int) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList()
        for number, part in enumerate(parts(model)):
            # a large step, since users may add 1 to the seed each round
            self.parts.append(_drawn(part, (seed + number * 0x85EBCA6B) % 2**32))

    def forward(self, X: Tensor) -> Tensor:
        values = [_followed(part, X) for part in self.parts]
        most = max(value.dim() for value in values)
        # the members of an ensemble are an axis before the points
        values = [v if v.dim() == most else v.unsqueeze(-3) for v in values]
        batch = torch.broadcast_shapes(*[v.shape[:-2] for v in values])
        return torch.cat([v.expand(*batch, *v.shape[-2:]) for v in values], -1)


def _followed(path: torch.nn.Module, X: Tensor) -> Tensor:
    """Evaluate a path at ``X (*b, q, d)``, in blocks that bound the memory."""
    many = X.shape[:-1].numel() > POINTS
    if many and isinstance(path, MatheronPathModel) and not path.batch_shape:
        blocks = [path(x) for x in X.flatten(0, -2).split(POINTS)]
        return torch.cat(blocks).reshape(*X.shape[:-1], -1)
    values: Tensor = path(X)
    return values


def _drawn(part: Model, seed: int) -> DeterministicModel:
    """Draw a path of one model; a deterministic one is its own path."""
    if isinstance(part, DeterministicModel):
        return part
    try:
        with torch.no_grad():
            return MatheronPathModel(part, seed=seed)
    except (AttributeError, NotImplementedError) as error:
        raise CBanditError(
            "model must be one that botorch.sampling.pathwise can draw paths of; got "
            f"{type(part).__name__} ({error})"
        ) from None
