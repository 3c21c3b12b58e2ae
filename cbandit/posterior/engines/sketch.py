"""The *sketch* engine: the posterior by a dictionary of the actions tried.

With every observation the dictionary ``S`` is drawn anew: each observation so far, of
an action ``x_s``, enters it independently with the chance ``min(1, q var(x_s) / lam)``,
with ``var`` by the last dictionary. With the features ``z(x) = K_SS^{-1/2} k_S(x)`` and
the rows ``Z`` of all observations, ``A = I + Z' Z / lam`` and

    mean(x) = z(x)' A^{-1} Z' y / lam,
    var(x) = k(x, x) - z(x)' z(x) + z(x)' A^{-1} z(x),

the exact one up to a factor. A look costs ``O(N |S|^2)`` for ``N`` actions, whatever
``t``; ``|S|`` stays near ``q`` times the effective dimension.

D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L. Rosasco, Gaussian process
optimization with adaptive sketching: scalable and no regret, 2019. There ``var`` is in
units of ``lam``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit._core.randomness import Streams
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Prior
from cbandit.posterior.draws.features import Pathwise
from cbandit.posterior.engines.protocol import Engine, Path, Plan
from cbandit.posterior.history import Between, History
from cbandit.posterior.log import Update
from cbandit.posterior.pending import Coming, explained

BLOCK = 1 << 12  # actions that are computed together
TINY = 1e-13  # share of the largest eigenvalue; smaller ones are noise


@dataclass(frozen=True)
class Sketch:
    """The posterior by a dictionary of actions.

    ``half(x) = right' k_S(x)`` has the squared norm ``z' A^{-1} z``.

    Args:
        points: the actions of the dictionary, ``(T, q, d)``, padded.
        left: ``(T, q, q)``, ``z(x) = left' k_S(x)``; rows of padding are zero.
        right: ``left A^{-1/2}``.
        weights: ``(T, F, q)``; ``weights k_S(x)`` is the mean.
        gain: ``1/2 log det A``, ``(T,)``.
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
            precision: the summed precisions of their observations, ``(T, n)``.
            weighted: the sums of precision times outcome, ``(T, F, n)``.
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
        target = weighted @ k_s.mT @ right  # T x F x q
        at = order.unsqueeze(-1).expand(-1, -1, points.shape[-1])
        return cls(
            points.gather(1, at),
            left,
            right,
            target @ right.mT,
            factor.diagonal(dim1=-2, dim2=-1).log().sum(-1),
        )

    def at(self, k: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``(T, F, n)`` less the prior mean, and variances ``(T, n)``.

        Args:
            k: ``k_S(x)``, ``(T, q, n)``.
            prior: ``k(x, x)``, ``(T, n)``.
        """
        z, half = self.left.mT @ k, self.right.mT @ k
        var = prior - z.square().sum(-2) + half.square().sum(-2)
        return self.weights @ k, var.clamp_min(0)


class Sketched(Engine):
    """An engine that looks through a dictionary; sums by action are kept in full."""

    solves = False
    step = BLOCK

    def __init__(self, prior: Prior, functions: int, plan: Plan) -> None:
        if plan.dictionary is None or prior.actions.continuous:
            raise CBanditError("engine='sketch' needs a set of a policy: not a Box")
        self._dictionary = plan.dictionary
        super().__init__(prior, functions, plan)

    def clear(self, functions: int) -> None:
        """Forget everything; from now on there are ``functions`` functions."""
        super().clear(functions)
        trials, device = self.prior.trials, self.prior.device
        self._draws = 0  # of dictionaries
        #: which actions tried are in the dictionary, ``(T, U)`` bool
        self.chosen = torch.zeros(trials, 0, dtype=torch.bool, device=device)
        self._sketch: Sketch | None = None

    def describe(self) -> str:
        """Return the engine's name, the reason for it, and the dictionary's size."""
        sizes = self.chosen.sum(-1).tolist()
        return f"sketch ({self.plan.why}: a Nystrom dictionary of {sizes} actions)"

    # -- changes ---------------------------------------------------------------------

    def add(self, update: Update) -> None:
        """Condition on one more observation, and draw the dictionary anew."""
        before = self.sketch()
        super().add(update)
        self._draw_dictionary(self._at(self._tried(), before)[1])

    def add_all(self, updates: Sequence[Update]) -> None:
        """Condition on many observations; draw the dictionary by exact variances."""
        super().add_all(updates)
        self._draws = max(self._draws, len(updates) - 1)
        self._draw_dictionary(self.history.at(self._tried())[1])

    def remove(self, update: Update) -> None:
        """Remove an observation; an action without any leaves the dictionary."""
        super().remove(update)
        self._sketch = None

    def aim(self, before: Update, after: Update) -> None:
        """Change the targets of an observation; all else must be equal."""
        super().aim(before, after)
        self._sketch = None

    def aim_all(self, updates: Sequence[Update]) -> None:
        """Change the targets of all observations; all else must be equal."""
        super().aim_all(updates)
        self._sketch = None

    def _tried(self) -> Tensor:
        """Return the actions tried, ``(T, U, d)``."""
        return self.history.points[:, : self.history.used]

    def _draw_dictionary(self, var: Tensor) -> None:
        """Draw the dictionary, given the variances ``(T, U)`` of the actions tried."""
        of, history = self._dictionary, self.history
        self._sketch, self._draws = None, self._draws + 1
        counts = list(map(len, history.keys()))
        if not max(counts):
            return
        streams = Streams(of.seed, of.trials, f"dictionary {self._draws}")
        share = torch.special.ndtr(streams.ragged_normal(counts, 1)[..., 0])
        share = devices.put(share.reshape(len(counts), -1), var.device)
        noise = of.noise.unsqueeze(-1)
        chance = (of.oversampling * var / noise).clamp(0, 1)
        precision = history.precision[:, : history.used]
        # one coin for each time that the action was played
        kept = share < 1 - (1 - chance) ** (precision * noise)
        self.chosen = kept & (precision > 0)

    def sketch(self) -> Sketch:
        """Return the sketch of all observations by the present dictionary."""
        if self._sketch is None:
            history, used = self.history, self.history.used
            precision = history.precision[:, :used]
            short = used - self.chosen.shape[-1]
            padded = torch.nn.functional.pad(self.chosen, (0, short))
            self.chosen = chosen = padded & (precision > 0)
            weighted = history.weighted[..., :used]
            self._sketch = Sketch.of(
                history.points[:, :used], history.gram, precision, weighted, chosen
            )
        return self._sketch

    # -- looking ---------------------------------------------------------------------

    def at(self, x: Tensor, ahead: Coming | None = None) -> tuple[Tensor, Tensor]:
        """Return means less their level ``(T, F, n)`` and variances ``(T, n)``.

        The points ``x`` are ``(n, d)`` or ``(T, n, d)``. The choices ``ahead`` reduce
        the variance as if their outcomes had come.
        """
        x = x.double()
        mean, var = self._at(x, self.sketch())
        mean = self.raised(mean, x)
        if ahead is None:
            return mean, var
        places = ahead.places()
        inner, cross = self._between(places, places), self._between(places, x)
        return mean, var - explained(inner, cross, ahead.precision).square().sum(-2)

    def _between(self, x: Tensor, y: Tensor) -> Tensor:
        """Return covariances ``(T, n, o)`` of points by the sketch."""
        covariance, sketch = self.prior.covariance, self.sketch()
        kx, ky = (covariance.cross(sketch.points, at) for at in (x, y))
        nystrom = (sketch.left.mT @ kx).mT @ (sketch.left.mT @ ky)
        known = (sketch.right.mT @ kx).mT @ (sketch.right.mT @ ky)
        return covariance.cross(x, y) - nystrom + known

    def _at(self, x: Tensor, sketch: Sketch) -> tuple[Tensor, Tensor]:
        covariance, trials = self.prior.covariance, self.prior.trials
        prior = covariance.variance(x).expand(trials, -1)
        if not sketch.points.shape[-2]:
            return prior.new_zeros(trials, self.functions, x.shape[-2]), prior
        return sketch.at(covariance.cross(sketch.points, x), prior)

    def between(self, x: Tensor) -> Tensor:
        """Return posterior covariances ``(T, n, n)`` of points, ``(*trials, n, d)``."""
        return self._between(x, x)

    def covariances(self, to: Tensor) -> Between:
        """Return a function from numbers to posterior covariances with ``to``."""
        there = self.points_of(to).double()

        def of(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            here = self.points_of(at).double()
            between = self._between(here, there)
            return between, self.at(here)[1], self.at(there)[1]

        return of

    def path(self, streams: Streams) -> Path:
        """Draw from the posterior less its mean, as a function of points.

        A prior draw less what the dictionary says of it is independent of the
        dictionary's weights, whose posterior is drawn.
        """
        covariance, trials = self.prior.covariance, self.prior.trials
        empty = History(covariance, trials, self.functions, self.prior.device)
        prior = Pathwise.drawn(empty, streams, self.functions)
        sketch = self.sketch()
        taken = prior(sketch.points) @ sketch.left  # T x F x q
        counts = self.chosen.sum(-1).tolist()
        drawn = streams.ragged_normal(counts, self.functions)
        shape = trials, max(counts), self.functions
        weights = devices.put(drawn, taken.device).reshape(shape).mT

        def path(x: Tensor) -> Tensor:
            k = covariance.cross(sketch.points, x.double())
            z, half = sketch.left.mT @ k, sketch.right.mT @ k
            return prior(x) - taken @ z + weights @ half

        return path

    def drawn(self, x: Tensor, streams: Streams, functions: int) -> Tensor:
        """Return a joint draw less its mean, ``(T, f, n)``, at points ``(T, n, d)``."""
        return self.path(streams)(x.double())[:, :functions]

    def dimension(self) -> tuple[Tensor, Tensor]:
        """Return the sums of posterior and of prior ``var / lam`` over observations."""
        tried, used = self._tried(), self.history.used
        precision = self.history.precision[:, :used]
        variance = self.at(tried)[1]
        prior = self.prior.covariance.variance(tried).expand_as(variance)
        return (precision * variance).sum(-1), (precision * prior).sum(-1)

    def gain(self) -> Tensor:
        """Return the sketch's information gain, ``(T,)``."""
        return self.sketch().gain
