"""Prior paths over a set, drawn in lots of rounds that share frequencies.

A path takes nearly all its time for cosines and sines, ``FEATURES`` of them for each
action. The paths of ``ROUNDS`` rounds share frequencies and are computed together as
one matrix product. Each path has its own weights, and so the same law as if its
frequencies were its own. Given the frequencies, paths of one lot are independent; they
share the frequencies' error against the kernel's spectral density, about 1/30 of the
prior variance with 1 024 features.

Cosines and sines are computed in float32, eight times as fast. Values are then off by
about 1e-6 of the prior deviation, far less than because features are finitely many.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core.randomness import Streams
from cbandit.posterior.covariance import Prior
from cbandit.posterior.draws.features import Plane, Waves, plane, waves

ROUNDS = 32
ROOM = 1 << 28  # most bytes of paths over the set
TOGETHER, CUDA_TOGETHER = 1 << 20, 1 << 26  # cosines computed at a time


class SetPath(NamedTuple):
    """A prior path ``(T, F, n)`` over the stored stretch of a set.

    Args:
        prior: the set, its stretch that is stored here, and the covariance.
        waves: the curved part of the path, if any.
        plane: its linear and constant part, if any.
        values: the curved part over the whole stretch; ``None``: not stored.
    """

    prior: Prior
    waves: Waves | None
    plane: Plane | None
    values: Tensor | None

    def at(self, x: Tensor) -> Tensor:
        """Return the path at points ``(T, n, d)``, or ``(n, d)``."""
        inputs = self.prior.covariance.inputs(x)
        parts = [part(inputs) for part in (self.waves, self.plane) if part is not None]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def __call__(self, start: int, stop: int) -> Tensor:
        """Return the path at the actions ``start .. stop - 1``."""
        if self.values is None:
            return self.at(self.prior.actions.block(start, stop))
        first, _ = self.prior.ends
        values = self.values[..., start - first : stop - first]
        if self.plane is None:
            return values
        block = self.prior.actions.block(start, stop)
        return values + self.plane(self.prior.covariance.inputs(block))


class Lots:
    """A source of prior paths over a set, one a round, computed a lot at a time.

    Args:
        prior: the set, its stretch that is stored here, and the covariance.
    """

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._lot: tuple[Any, ...] = ()  # identifies the lot of the stored waves
        self._waves: Waves | None = None
        self._values: Tensor | None = None
        self._begin = 0  # the first round of the stored values

    def __getstate__(self) -> dict[str, Any]:
        # all else is recomputed from the streams
        return {"_prior": self._prior}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Lots.__init__(self, state["_prior"])

    def draw(self, streams: Streams, functions: int, name: str) -> SetPath:
        """Draw a path for each function; every ``name`` has its own lots."""
        prior = self._prior
        flat = plane(prior.covariance, streams, functions)
        lot, place = divmod(streams.turn(f"paths {name}"), ROUNDS)
        source = streams.seed_number, streams.purpose, streams.trials, name, functions
        if self._lot != (*source, lot):
            others = streams.apart(f"paths {name} {lot}")
            drawn = waves(prior.covariance, others, ROUNDS * functions, self._middle())
            self._waves = None if drawn is None else drawn.to(torch.float32)
            self._lot, self._values = (*source, lot), None
        if self._waves is None:
            return SetPath(prior, None, flat, None)
        own = self._waves.of(slice(place * functions, (place + 1) * functions))
        first, last = prior.ends
        width = min(ROUNDS, ROOM // (4 * prior.trials * functions * (last - first)))
        if width == 0:
            return SetPath(prior, own, flat, None)
        begin = place - place % width
        if self._values is None or self._begin != begin:
            # always the same rounds together, so that a loaded policy gets the same
            # bits
            rounds = slice(begin * functions, (begin + width) * functions)
            self._values, self._begin = self._over_set(self._waves.of(rounds)), begin
        rows = slice((place - begin) * functions, (place - begin + 1) * functions)
        return SetPath(prior, own, flat, self._values[:, rows])

    def _middle(self) -> Tensor:
        """Return the middle of the set in the kernel's inputs, ``(1 or T, 1, d)``.

        Phases are taken relative to it, so that they are small.
        """
        ends = self._prior.covariance.inputs(self._prior.actions.extent())
        middle = ends.mean(-2, keepdim=True)
        return middle if middle.dim() == 3 else middle.unsqueeze(0)

    def _over_set(self, paths: Waves) -> Tensor:
        """Return paths ``(T, k, n)`` over the stored stretch."""
        prior, ((first, last), used) = self._prior, (self._prior.ends, paths.cosines)
        out = used.new_empty(len(used), used.shape[-1], last - first)
        together = CUDA_TOGETHER if out.is_cuda else TOGETHER
        step = max(64, together // used[..., 0].numel())
        for start in range(first, last, step):
            stop = min(start + step, last)
            inputs = prior.covariance.inputs(prior.actions.block(start, stop))
            out[..., start - first : stop - first] = paths(inputs)
        return out
