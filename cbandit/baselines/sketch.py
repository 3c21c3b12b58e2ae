"""A posterior kept by a Nystrom dictionary: at a cost that does not grow with time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.randomness import Streams
from cbandit.actions import Finite, ProductGrid
from cbandit.baselines.nystrom import Sketch, sketched
from cbandit.beliefs.gp import GP
from cbandit.posterior.ahead import Ahead
from cbandit.posterior.block import Block
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.history import BLANK, History
from cbandit.posterior.log import Log, Observation
from cbandit.posterior.look import Best, Look, Scan
from cbandit.posterior.parts import Part
from cbandit.posterior.value import Value

__all__ = ["Sketched"]

BLOCK = 1 << 12


class Sketched(Value):
    """The belief about one function, by what a dictionary of tried actions knows of it.

    Beliefs as :class:`~cbandit.posterior.protocol.AnyBeliefs` has them; the formulas
    are in :mod:`cbandit.baselines.nystrom`.

    Args:
        gp: the specification; its kernel and noise are fixed.
        actions: the set.
        batch_shape: ``()`` or ``(trials,)``.
        dtype: of what is handed out over the set.
        device: where tensors live.
    """

    actions: Finite | ProductGrid
    dtype: torch.dtype
    functions: int
    covariance: Covariance
    noise: Tensor
    mean: Tensor
    within: Tensor
    log: Log
    chosen: Tensor
    _least: Tensor
    _past: Sketch
    _history: History
    _sketch: Sketch | None

    def __init__(
        self,
        gp: GP,
        actions: Finite | ProductGrid,
        batch_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        covariance = Covariance.of(gp.copy().kernel, actions).to(device)
        least = covariance.least_noise(actions)
        noise = checks.per_trial("noise", gp.noise, batch_shape).to(device)
        trials = len(noise)
        super().__init__(
            actions=actions,
            dtype=dtype,
            functions=1,
            covariance=covariance,
            noise=noise.maximum(least),
            mean=checks.per_trial("mean", gp.mean, batch_shape).to(device),
            within=covariance.tolerance(actions, dtype).expand(trials),
            log=Log(),
            chosen=torch.zeros(trials, 0, dtype=torch.bool, device=device),
            _least=least,
            _history=History(covariance, trials, 1, device),
            _sketch=None,
        )
        vars(self)["_past"] = self._current()

    @property
    def history(self) -> History:
        """The observations merged by action, in line with the log."""
        history = self._history
        if history.stands_for == self.log.number:
            return history
        if not (len(self.log) == 0 and history.stands_for == BLANK):
            fresh = History(self.covariance, len(self.noise), 1, self.noise.device)
            vars(history).update(vars(fresh))
        history.stands_for = None
        for row in self.log:
            self._enter(history, row)
        history.stands_for = self.log.number
        return history

    def _enter(self, history: History, row: Observation) -> None:
        slots, _ = history.place(row.keys, row.x, row.wanted)
        if not history.used:
            return
        own = row.noise
        noise = self.noise if own is None else own.maximum(self._least)
        precision = devices.put(row.wanted, row.x.device) / noise
        history.add(slots, precision, row.values - self.mean.unsqueeze(-1))
        history.count(slots, row.wanted, 1)

    def absorb(
        self, keys: Sequence[Hashable], x: Tensor, parts: Sequence[Part], t: int = 0
    ) -> Self:
        """Add what was seen; the dictionary stays."""
        beliefs = self
        for _, values, wanted, noise in parts:
            row = Observation(keys, x, values, wanted, noise, t)
            history = beliefs.history
            beliefs = beliefs._with(log=beliefs.log.append(row), _sketch=None)
            history.stands_for = None
            beliefs._enter(history, row)
            history.stands_for = beliefs.log.number
        return beliefs

    def observe(
        self, rows: Sequence[tuple[Sequence[Hashable], Tensor, list[Part]]]
    ) -> Self:
        """Add many rows."""
        beliefs = self
        for keys, x, parts in rows:
            beliefs = beliefs.absorb(keys, x, parts)
        return beliefs

    def variances(self) -> Tensor:
        """Return those of the actions tried, by the last dictionary, ``(T, n)``."""
        history = self.history
        if not history.used:
            return self.noise.new_zeros(len(self.noise), 0)
        return self._at(history.points[:, : history.used], self._past)[1]

    def resampled(self, chance: Tensor, streams: Streams) -> Self:
        """Return the beliefs with a dictionary drawn anew from the actions tried.

        Args:
            chance: that of each round that played an action to bring it in, ``(T, n)``.
            streams: where the draws come from.
        """
        history = self.history
        counts = list(map(len, history.keys()))
        if not max(counts):
            return self
        share = torch.special.ndtr(streams.ragged_normal(counts, 1)[..., 0])
        share = devices.put(share.reshape(len(counts), -1), chance.device)
        precision = history.precision[:, : history.used]
        # a coin for each time it was played
        times = precision * self.noise.unsqueeze(-1)
        chosen = (share < 1 - (1 - chance) ** times) & (precision > 0)
        other = self._with(chosen=chosen, _sketch=None)
        return other._with(_past=other._current())

    def _current(self) -> Sketch:
        if self._sketch is None:
            vars(self)["_sketch"] = self._sketched()
        sketch: Sketch = vars(self)["_sketch"]
        return sketch

    def _sketched(self) -> Sketch:
        history = self.history
        used = history.used
        chosen = torch.nn.functional.pad(self.chosen, (0, used - self.chosen.shape[-1]))
        precision, weighted = history.precision[:, :used], history.weighted[:, :, :used]
        return sketched(history.points, history.gram, precision, weighted, chosen)

    def _at(self, x: Tensor, sketch: Sketch) -> tuple[Tensor, Tensor]:
        """Means ``(T, 1, n)`` and variances ``(T, n)`` at ``x``."""
        trials = len(self.noise)
        prior = self.covariance.variance(x).expand(trials, -1)
        mean = self.mean[:, None, None].expand(-1, 1, x.shape[-2])
        if not sketch.points.shape[-2]:
            return mean, prior
        known, var = sketch.at(self.covariance.cross(sketch.points, x.double()), prior)
        return mean + known, var

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Means and standard deviations at any points, ``(T, 1, n)``."""
        mean, var = self._at(x, self._current())
        return mean, var.sqrt().unsqueeze(1)

    def choose(
        self, look: Look, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Best:
        """The best action under ``look``."""
        scan = Scan(look)
        for block in self.blocks():
            scan.add(block.start, block.mean, block.std)
        return scan.best()

    def has_data(self) -> Tensor:
        """Which trials have an observation, ``(T, 1)`` bool, on the host."""
        return self.log.has_data(len(self.noise), 1)

    @property
    def by_default(self) -> bool:
        """A sketch is of a kernel that the user states."""
        return False

    def tolerance(self, costs: bool = False) -> Tensor:
        """Scores that differ by less are as good, ``(T,)``; there are no costs."""
        return self.within

    def units(self) -> None:
        """Nothing is rescaled."""

    def blocks(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Iterator[Block]:
        """All actions, block by block."""
        for start, stop in self.actions.stretches(BLOCK):
            mean, std = self.anywhere(self.actions.block(start, stop))
            yield Block(start, stop, mean.to(self.dtype), std.to(self.dtype))

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of all actions, ``(T, 1, N)`` each."""
        blocks = list(self.blocks())
        mean = torch.cat([block.mean for block in blocks], -1)
        return mean, torch.cat([block.std for block in blocks], -1)

    def gains(self) -> Tensor:
        """The sketch's information gain, ``(T, 1)``."""
        return self._current().gain.unsqueeze(-1)

    def dimension(self) -> tuple[Tensor, Tensor]:
        """The sums over past rounds of ``var / lam`` and of the prior's, ``(T, 1)``."""
        history = self.history
        used = history.used
        if not used:
            return (nothing := torch.zeros_like(self.noise).unsqueeze(-1)), nothing
        tried, precision = history.points[:, :used], history.precision[:, :used]
        variance = self._at(tried, self._current())[1]
        prior = self.covariance.variance(tried).expand_as(variance)
        return (
            (precision * variance).sum(-1, keepdim=True),
            (precision * prior).sum(-1, keepdim=True),
        )

    def noises(self) -> Tensor:
        """Likelihood variances, ``(T, 1)``."""
        return self.noise.unsqueeze(-1)

    def refit(self, due_only: bool = False) -> Self:
        """Nothing is learned but the function."""
        return self

    def lighten(self, limit: int) -> None:
        """There are no arrays over the set."""

    def engines(self) -> list[str]:
        """The name of what keeps the belief."""
        return ["sketch"]

    def describe(self) -> str:
        """Which actions are kept."""
        return f"reward: Nystrom dictionary of {self.chosen.sum(-1).tolist()} actions"
