"""A posterior kept by a Nystrom dictionary: at a cost that does not grow with time."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.randomness import Streams
from cbandit.actions import Finite, ProductGrid
from cbandit.actions.partition import Block, partition
from cbandit.beliefs.gp import GP
from cbandit.posterior.beliefs import Part
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.history import History
from cbandit.posterior.look import Best, Look, scan

__all__ = ["Sketched"]

BLOCK = 1 << 12
TINY = 1e-13  # eigenvalues of the dictionary below this share of the largest are noise


@dataclass
class _Sketch:
    """``half(x) = right' k_S(x)`` has the squared norm ``z' A^{-1} z``.

    Args:
        points: the dictionary, ``(T, q, d)``, padded.
        left: ``(T, q, q)``, ``z(x) = left' k_S(x)``; zero rows where padded.
        right: ``left A^{-1/2}``.
        weights: ``(T, 1, q)``, the mean is ``weights k_S(x)``.
        gain: ``(T,)``, ``1/2 log det A``.
    """

    points: Tensor
    left: Tensor
    right: Tensor
    weights: Tensor
    gain: Tensor


class Sketched:
    """The belief about one function, by what a dictionary of tried actions knows of it.

    Takes the place of :class:`~cbandit.posterior.beliefs.Surrogates` in a policy.
    With the dictionary ``S`` and features ``z(x) = K_SS^{-1/2} k_S(x)`` (rows ``Z`` for
    all past rounds, noise ``lam``) ``A = I + Z' Z / lam``,
    ``mean = z' A^{-1} Z' y / lam`` and ``var = k(x, x) - z' z + z' A^{-1} z``.
    """

    functions = 1

    def __init__(
        self,
        gp: GP,
        actions: Finite | ProductGrid,
        batch_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        oversampling: float,
    ) -> None:
        self.actions, self.dtype, self.oversampling = actions, dtype, oversampling
        self.covariance = Covariance.of(gp.kernel, actions).to(device)
        self._least = self.covariance.least_noise(actions)
        noise = checks.per_trial("noise", gp.noise, batch_shape).to(device)
        self.noise = noise.maximum(self._least)
        self.mean = checks.per_trial("mean", gp.mean, batch_shape).to(device)
        self.history = History(self.covariance, len(self.noise), 1, device)
        self.chosen = torch.zeros(len(self.noise), 0, dtype=torch.bool, device=device)
        self._sketch: _Sketch | None = None
        self._past = self._current()

    def absorb(
        self, keys: Sequence[Any], x: Tensor, parts: Sequence[Part], t: int = 0
    ) -> Sketched:
        """Add what was seen; the dictionary stays."""
        for _, values, wanted, own in parts:
            slots, _ = self.history.place(keys, x, wanted)
            if not self.history.used:
                continue
            there = devices.put(wanted, x.device)
            noise = self.noise if own is None else own.maximum(self._least)
            precision = there / noise
            self.history.add(slots, precision, values - self.mean.unsqueeze(-1))
            self.history.count(slots, wanted, 1)
            self._sketch = None
        return self

    def observe(
        self, rows: Sequence[tuple[Sequence[Any], Tensor, list[Part]]]
    ) -> Sketched:
        """Add many rows."""
        for keys, x, parts in rows:
            self.absorb(keys, x, parts)
        return self

    def resampled(self, streams: Streams) -> Sketched:
        """Return the belief on a new dictionary, drawn by last round's variances."""
        counts = list(map(len, self.history.keys()))
        if not max(counts):
            return self
        tried = self.history.points[:, : self.history.used]
        variance = self._look(tried, self._past)[1]
        share = torch.special.ndtr(streams.ragged_normal(counts, 1)[..., 0])
        share = devices.put(share.reshape(len(counts), -1), variance.device)
        precision = self.history.precision[:, : self.history.used]
        pull = (self.oversampling * variance / self.noise.unsqueeze(-1)).clamp(0, 1)
        # a coin for each time it was played
        times = precision * self.noise.unsqueeze(-1)
        new = copy.copy(self)
        new.chosen = (share < 1 - (1 - pull) ** times) & (precision > 0)
        new._sketch = None
        new._past = new._current()
        return new

    def _current(self) -> _Sketch:
        if self._sketch is None:
            self._sketch = self._sketched()
        return self._sketch

    def _sketched(self) -> _Sketch:
        history, used = self.history, self.history.used
        chosen = torch.nn.functional.pad(self.chosen, (0, used - self.chosen.shape[-1]))
        size = int(chosen.sum(-1).max()) if used else 0
        order = chosen.to(torch.int8).argsort(stable=True, dim=-1, descending=True)
        order = order[:, :size]
        real = chosen.gather(-1, order).double()
        rows = history.gram.gather(1, order.unsqueeze(-1).expand(-1, -1, used))
        rows = rows * real.unsqueeze(-1)  # T x q x U
        inner = rows.gather(-1, order.unsqueeze(1).expand(-1, size, -1))
        inner = inner * real.unsqueeze(1)
        value, vector = torch.linalg.eigh(inner)
        kept = value > TINY * value.amax(-1, keepdim=True) if size else value > 0
        root = torch.where(kept, value, torch.inf).rsqrt()
        left = vector * root.unsqueeze(-2) * real.unsqueeze(-1)
        z = left.mT @ rows  # T x q x U
        system = (z * history.precision[:, :used].unsqueeze(1)) @ z.mT
        system.diagonal(dim1=-2, dim2=-1).add_(1)
        factor = devices.cholesky(system)
        right = torch.linalg.solve_triangular(factor, left.mT, upper=False).mT
        target = history.weighted[:, :, :used] @ rows.mT @ right  # T x 1 x q
        at = order.unsqueeze(-1).expand(-1, -1, history.points.shape[-1])
        return _Sketch(
            history.points.gather(1, at),
            left,
            right,
            target @ right.mT,
            factor.diagonal(dim1=-2, dim2=-1).log().sum(-1),
        )

    def _look(self, x: Tensor, sketch: _Sketch) -> tuple[Tensor, Tensor]:
        """Means ``(T, 1, n)`` and variances ``(T, n)`` at ``x``."""
        trials = len(self.noise)
        prior = self.covariance.variance(x).expand(trials, -1)
        mean = self.mean[:, None, None].expand(-1, 1, x.shape[-2])
        if not sketch.points.shape[-2]:
            return mean, prior
        k = self.covariance.cross(sketch.points, x.double())
        left, right = sketch.left.mT @ k, sketch.right.mT @ k
        var = prior - left.square().sum(-2) + right.square().sum(-2)
        return mean + sketch.weights @ k, var.clamp_min(0)

    def anywhere(self, x: Tensor, ahead: Any = ()) -> tuple[Tensor, Tensor]:
        """Means and standard deviations at any points, ``(T, 1, n)``."""
        mean, var = self._look(x, self._current())
        return mean, var.sqrt().unsqueeze(1)

    def sweep(self, streams: Any = None, ahead: Any = ()) -> Iterator[Block]:
        """All actions, block by block."""
        for start, stop in partition(self.actions, BLOCK):
            mean, std = self.anywhere(self.actions.block(start, stop))
            yield Block(start, stop, mean.to(self.dtype), std.to(self.dtype))

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of all actions, ``(T, 1, N)`` each."""
        blocks = list(self.sweep())
        mean = torch.cat([block.mean for block in blocks], -1)
        return mean, torch.cat([block.std for block in blocks], -1)

    def gains(self) -> Tensor:
        """The sketch's information gain, ``(T, 1)``."""
        return self._current().gain.unsqueeze(-1)

    def noises(self) -> Tensor:
        """Likelihood variances, ``(T, 1)``."""
        return self.noise.unsqueeze(-1)

    def refit(self, due_only: bool = False) -> Sketched:
        """Return the same: nothing is learned but the function."""
        return self

    def choose(
        self, look: Look, streams: Streams | None = None, ahead: Any = ()
    ) -> Best:
        """Return the best action under ``look``."""
        blocks = ((b.start, b.mean, b.std) for b in self.sweep())
        return scan(blocks, look)

    def lighten(self, limit: int) -> None:
        """There are no arrays over the set."""

    def engines(self) -> list[str]:
        """What keeps the belief."""
        return ["sketch"]

    def describe(self) -> str:
        """What is at work."""
        return f"reward: Nystrom dictionary of {self.chosen.sum(-1).tolist()} actions"
