"""BKB: GP-UCB on a dictionary of past actions, resampled every round.

Each round:

1. each past round ``s`` enters the dictionary ``S`` with probability
   ``min(1, q var(x_s) / lam)``, independently, ``var`` that of the last dictionary;
2. features ``z(x) = K_SS^{-1/2} k_S(x)``, and with the rows ``Z`` of all past actions
   ``A = I + Z' Z / lam``: ``mean(x) = z(x)' A^{-1} Z' y / lam`` and
   ``var(x) = k(x, x) - z(x)' z(x) + z(x)' A^{-1} z(x)``, the exact one up to a factor;
3. ``x_t = argmax mean + beta std``;
4. observe the reward.

A round costs ``O(N |S|^2)`` for ``N`` actions, whatever ``t``; ``|S|`` stays near
``q`` times the effective dimension.

D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L. Rosasco, Gaussian process
optimization with adaptive sketching: scalable and no regret, 2019. There ``var`` is in
units of ``lam``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor

from cbandit import scores
from cbandit._core import checks, devices
from cbandit._core.arguments import stated
from cbandit._core.randomness import Streams
from cbandit.actions import Actions, Finite, ProductGrid
from cbandit.beliefs.gp import GP
from cbandit.confidence import sketched_width
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.base import locked
from cbandit.policies.choices import Asked
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import GPKeywords
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.look import Best, Block, scan
from cbandit.posterior.observations import (
    BLANK,
    Ahead,
    History,
    Log,
    Observation,
    Part,
    Update,
)
from cbandit_kernels import Look

BLOCK = 1 << 12
TINY = 1e-13  # share of the largest eigenvalue below which others are noise


@dataclass(frozen=True)
class Sketch:
    """The posterior as a dictionary of actions knows it.

    ``half(x) = right' k_S(x)`` has the squared norm ``z' A^{-1} z``.

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

    @classmethod
    def of(
        cls,
        points: Tensor,
        gram: Tensor,
        precision: Tensor,
        weighted: Tensor,
        chosen: Tensor,
    ) -> Sketch:
        """Return the sketch whose dictionary is the ``chosen (T, n)`` actions tried.

        Args:
            points: the actions tried, ``(T, n, d)``.
            gram: their prior covariances, ``(T, n, n)``.
            precision: how often each was tried, over ``lam``, ``(T, n)``.
            weighted: the sums of their outcomes ``y / lam``, ``(T, 1, n)``.
            chosen: the dictionary, bool.
        """
        tried = chosen.shape[-1]
        size = int(chosen.sum(-1).max()) if tried else 0
        order = chosen.to(torch.int8).argsort(stable=True, dim=-1, descending=True)
        order = order[:, :size]
        real = chosen.gather(-1, order).double()
        k_s = gram.gather(1, order.unsqueeze(-1).expand(-1, -1, tried))
        k_s = k_s * real.unsqueeze(-1)  # T x q x n
        k_ss = k_s.gather(-1, order.unsqueeze(1).expand(-1, size, -1))
        k_ss = k_ss * real.unsqueeze(1)
        value, vector = torch.linalg.eigh(k_ss)
        sound = value > TINY * value.amax(-1, keepdim=True) if size else value > 0
        root = torch.where(sound, value, torch.inf).rsqrt()
        left = vector * root.unsqueeze(-2) * real.unsqueeze(-1)
        z = left.mT @ k_s  # T x q x n
        a = (z * precision.unsqueeze(1)) @ z.mT
        a.diagonal(dim1=-2, dim2=-1).add_(1)
        factor = devices.cholesky(a)
        right = torch.linalg.solve_triangular(factor, left.mT, upper=False).mT
        target = weighted @ k_s.mT @ right  # T x 1 x q
        at = order.unsqueeze(-1).expand(-1, -1, points.shape[-1])
        return cls(
            points.gather(1, at),
            left,
            right,
            target @ right.mT,
            factor.diagonal(dim1=-2, dim2=-1).log().sum(-1),
        )

    def at(self, k: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``(T, 1, n)`` less the prior mean, and variances ``(T, n)``.

        Args:
            k: ``k_S(x)``, ``(T, q, n)``.
            prior: ``k(x, x)``, ``(T, n)``.
        """
        z, half = self.left.mT @ k, self.right.mT @ k
        var = prior - z.square().sum(-2) + half.square().sum(-2)
        return self.weights @ k, var.clamp_min(0)


@dataclass(frozen=True, eq=False)
class Sketched:
    """The belief about one function, kept as a sketch over a dictionary of actions.

    It has the methods of :class:`~cbandit.posterior.beliefs.Beliefs` that BKB needs.

    Args:
        actions: the set.
        dtype: of the arrays over the set.
        covariance: the prior's.
        noise: the likelihood's variance, ``(T,)``.
        least: the least variance of an observation.
        mean: the prior's, ``(T,)``.
        within: scores that differ by less are as good, ``(T,)``.
        log: what was observed.
        merged: the observations by action; reading them brings them up to date.
        chosen: the dictionary among the actions tried, ``(T, n)``.
        past: the last dictionary's sketch, when it was drawn; ``None``: there is none.
    """

    actions: Finite | ProductGrid
    dtype: torch.dtype
    covariance: Covariance
    noise: Tensor
    least: Tensor
    mean: Tensor
    within: Tensor
    log: Log
    merged: History
    chosen: Tensor
    past: Sketch | None = None
    functions: ClassVar[int] = 1
    by_default: ClassVar[bool] = False  # a sketch is of a kernel that the user states

    @classmethod
    def start(
        cls,
        gp: GP,
        actions: Finite | ProductGrid,
        batch_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Self:
        """Return the belief before data; the kernel and noise of ``gp`` are fixed."""
        covariance = Covariance.of(gp.copy().kernel, actions).to(device)
        least = covariance.least_noise(actions)
        noise = checks.per_trial("noise", gp.noise, batch_shape).to(device)
        mean = checks.per_trial("mean", gp.mean, batch_shape).to(device)
        within = covariance.tolerance(actions, dtype).expand(len(noise))
        merged = History(covariance, len(noise), 1, device)
        chosen = torch.zeros(len(noise), 0, dtype=torch.bool, device=device)
        prior = covariance, noise.maximum(least), least, mean, within
        return cls(actions, dtype, *prior, Log(), merged, chosen)

    @property
    def history(self) -> History:
        """The observations merged by action, brought in line with the log."""
        history = self.merged
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
        noise = self.noise if row.noise is None else row.noise.maximum(self.least)
        precision = devices.put(row.wanted, row.x.device) / noise
        values = row.values - self.mean.unsqueeze(-1)
        history.enter(slots, Update(row.keys, row.x, values, precision, row.wanted))

    def absorb(
        self, keys: Sequence[Hashable], x: Tensor, parts: Sequence[Part], t: int = 0
    ) -> Self:
        """Return the belief with more observations and the same dictionary."""
        beliefs = self
        for part in parts:
            row = Observation(keys, x, part.values, part.wanted, part.noise, t)
            history = beliefs.history
            beliefs = replace(beliefs, log=beliefs.log.enter(row))
            history.stands_for = None
            beliefs._enter(history, row)
            history.stands_for = beliefs.log.number
        return beliefs

    def observe(
        self, rows: Sequence[tuple[Sequence[Hashable], Tensor, list[Part]]]
    ) -> Self:
        """Return the belief with many rows of observations."""
        beliefs = self
        for keys, x, parts in rows:
            beliefs = beliefs.absorb(keys, x, parts)
        return beliefs

    def variances(self) -> Tensor:
        """Return the variances at the actions tried, ``(T, n)``, by the last sketch."""
        history = self.history
        if not history.used:
            return self.noise.new_zeros(len(self.noise), 0)
        return self._at(history.points[:, : history.used], self.past)[1]

    def resampled(self, chance: Tensor, streams: Streams) -> Self:
        """Return the belief with a new dictionary, drawn from the actions tried.

        Args:
            chance: for each action, the chance that one round of it brings it in,
                ``(T, n)``.
            streams: where the draws come from.
        """
        history = self.history
        counts = list(map(len, history.keys()))
        if not max(counts):
            return self
        share = torch.special.ndtr(streams.ragged_normal(counts, 1)[..., 0])
        share = devices.put(share.reshape(len(counts), -1), chance.device)
        precision = history.precision[:, : history.used]
        # one coin for each time the action was played
        times = precision * self.noise.unsqueeze(-1)
        chosen = (share < 1 - (1 - chance) ** times) & (precision > 0)
        drawn = replace(self, chosen=chosen)
        beliefs = replace(drawn, past=drawn.sketch)
        vars(beliefs)["sketch"] = beliefs.past  # it need not be computed again
        return beliefs

    @cached_property
    def sketch(self) -> Sketch:
        """The sketch of all observations over the present dictionary."""
        history = self.history
        used = history.used
        chosen = torch.nn.functional.pad(self.chosen, (0, used - self.chosen.shape[-1]))
        precision, weighted = history.precision[:, :used], history.weighted[:, :, :used]
        return Sketch.of(history.points, history.gram, precision, weighted, chosen)

    def _at(self, x: Tensor, sketch: Sketch | None) -> tuple[Tensor, Tensor]:
        """Return means ``(T, 1, n)`` and variances ``(T, n)`` at ``x``."""
        trials = len(self.noise)
        prior = self.covariance.variance(x).expand(trials, -1)
        mean = self.mean[:, None, None].expand(-1, 1, x.shape[-2])
        if sketch is None or not sketch.points.shape[-2]:
            return mean, prior
        known, var = sketch.at(self.covariance.cross(sketch.points, x.double()), prior)
        return mean + known, var

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations at any points, ``(T, 1, n)``."""
        mean, var = self._at(x, self.sketch)
        return mean, var.sqrt().unsqueeze(1)

    def choose(
        self, look: Look, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Best:
        """Return the best action under ``look``."""
        return scan(((b.start, b.mean, b.std) for b in self.blocks()), look)

    def has_data(self) -> Tensor:
        """Return the trials that have an observation, ``(T, 1)`` bool, on the host."""
        return self.log.has_data(len(self.noise), 1)

    def tolerance(self, costs: bool = False) -> Tensor:
        """Return the difference below which scores count as equal, ``(T,)``."""
        return self.within

    def units(self) -> None:
        """Return ``None``: nothing is rescaled."""

    def blocks(
        self, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Iterator[Block]:
        """Yield means and deviations of all actions, block by block."""
        for start, stop in self.actions.stretches(BLOCK):
            mean, std = self.anywhere(self.actions.block(start, stop))
            yield Block(start, stop, mean.to(self.dtype), std.to(self.dtype))

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of all actions, ``(T, 1, N)`` each."""
        blocks = list(self.blocks())
        mean = torch.cat([block.mean for block in blocks], -1)
        return mean, torch.cat([block.std for block in blocks], -1)

    def gains(self) -> Tensor:
        """Return the sketch's information gain, ``(T, 1)``."""
        return self.sketch.gain.unsqueeze(-1)

    def dimension(self) -> tuple[Tensor, Tensor]:
        """Return sums of ``var / lam`` over rounds, posterior and prior, ``(T, 1)``."""
        history = self.history
        used = history.used
        if not used:
            return (nothing := torch.zeros_like(self.noise).unsqueeze(-1)), nothing
        tried, precision = history.points[:, :used], history.precision[:, :used]
        variance = self._at(tried, self.sketch)[1]
        prior = self.covariance.variance(tried).expand_as(variance)
        return (
            (precision * variance).sum(-1, keepdim=True),
            (precision * prior).sum(-1, keepdim=True),
        )

    def noises(self) -> Tensor:
        """Return the likelihood's variances, ``(T, 1)``."""
        return self.noise.unsqueeze(-1)

    def refit(self, due_only: bool = False) -> Self:
        """Return the belief unchanged: it has no hyperparameters to fit."""
        return self

    def lighten(self, limit: int) -> None:
        """Do nothing: there are no arrays over the set to drop."""

    def engines(self) -> list[str]:
        """Return the name of the engine."""
        return ["sketch"]

    def describe(self) -> str:
        """Return in words how large the dictionary is."""
        return f"reward: Nystrom dictionary of {self.chosen.sum(-1).tolist()} actions"


class BKB(GPPolicy):
    """GP-UCB at a cost a round that does not grow with time.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward; its kernel and noise are fixed.
        explore: :class:`~cbandit.UCB`, ``cb.UCB(2.0)`` unless given. An RKHS width
            (``any-lam``, the default form, or ``tight``) becomes the paper's own,
            :func:`cbandit.confidence.sketched_width`: with the theory's
            ``oversampling`` a guarantee (its ``delta`` is for the noise, and as much
            again for the dictionary), with less a heuristic.
        oversampling: ``q``, how much more is kept than the dictionary needs at the
            least; the theory's is ``72 ln(4 T / delta)``, a few do in practice.
        common: see below.
    """

    takes_outcomes = False
    name = "BKB"
    contextual = False
    grows = False
    takes_no = dict.fromkeys(
        ("Delayed", "Sliding", "hallucinate"), "a sketch is of all that was told"
    )
    continuous = splits = False
    explores = (UCB,)
    usual = UCB(2.0)

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        explore: UCB | None = None,
        oversampling: float = 5.0,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        if isinstance(reward, GP) and (
            reward.learn_noise or reward.learn_mean or reward.standardize
        ):
            raise CBanditError(
                "reward must be a cb.GP with a kernel and noise of its own, not "
                f"learned and not standardised; got {reward!r}"
            )
        self._oversampling = checks.number("oversampling", oversampling)
        if self._oversampling <= 0:
            raise CBanditError(
                f"oversampling must be above 0; got {self._oversampling}"
            )
        super().__init__(actions, reward=reward, costs=None, explore=explore, **common)

    def _fresh_beliefs(self, beliefs: list[GP]) -> Sketched:
        return Sketched.start(
            beliefs[0].copy(), self.actions, self.batch_shape, self.dtype, self.device
        )

    def _opened(self, state: GPState, asked: Asked) -> GPState:
        """Keep each past round with probability ``min(1, q var(x_s) / lam)``."""
        beliefs = state.beliefs
        share = self._oversampling * beliefs.variances() / beliefs.noises()
        beliefs = beliefs.resampled(share.clamp(0, 1), asked.streams)
        return state._replace(beliefs=beliefs)

    def _coefficient(self, state: GPState, asked: Asked) -> Tensor:
        """Return the factor of the deviation: the paper's width for RKHS widths."""
        parts = [part for part, _ in self._widths.rkhs_parts()]
        if not parts or not parts[0].rkhs.needs_noise:
            return super()._coefficient(state, asked)
        part = parts[0]
        dimension, mass = state.beliefs.dimension()
        width = sketched_width(
            part.norm,
            part.subgaussian,
            dimension,
            mass,
            state.beliefs.noises(),
            part.rkhs.delta,
        )
        return self.explore.coefficient(width, asked.streams)

    def score(self, t: int, multiplier: Tensor) -> scores.Reward:
        """Return the reward's estimate."""
        return scores.Reward()

    @property
    @locked
    def model(self) -> Any:
        """Raise an error: a sketch has no BoTorch model."""
        raise CBanditError("BKB keeps a sketch, not a model; see policy.posterior()")

    def _engines(self) -> list[str]:
        return ["engine=dictionary"]
