"""BKB: GP-UCB on a dictionary of past actions, resampled every round.

Each round:

1. each past round ``s`` enters the dictionary ``S`` independently with probability
``min(1, q var(x_s) / lam)``, with ``var`` from the last dictionary;
2. features ``z(x) = K_SS^{-1/2} k_S(x)``, and with the rows ``Z`` of all past actions
   ``A = I + Z' Z / lam``: ``mean(x) = z(x)' A^{-1} Z' y / lam`` and
   ``var(x) = k(x, x) - z(x)' z(x) + z(x)' A^{-1} z(x)``, the exact one up to a factor;
3. ``x_t = argmax mean + beta std``;
4. observe the reward.

A round costs ``O(N |S|^2)`` for ``N`` actions, whatever ``t``; ``|S|`` stays near
``q`` times the effective dimension.

With costs, 3 and 4 are CKB's (:mod:`cbandit.policies.ckb`), with a dictionary for each
function: X. Zhou and B. Ji, On kernelized multi-armed bandits with constraints, 2022,
name BKB in section 5.1 as the way to scale.

D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L. Rosasco, Gaussian process
optimization with adaptive sketching: scalable and no regret, 2019. There ``var`` is in
units of ``lam``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, Unpack

import torch
from numpy.typing import ArrayLike
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
from cbandit.policies.abilities import BY_SCORE
from cbandit.policies.checks import believed_costs
from cbandit.policies.dual import Dual, GivenConstants, Scheduled
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import CostBeliefs, GPKeywords
from cbandit.policies.projected import Projected
from cbandit.policies.queue import Queue
from cbandit.policies.saving import locked
from cbandit.policies.turn import Turn
from cbandit.posterior.covariance import Covariance, Prior
from cbandit.posterior.engines.protocol import Engine, Plan
from cbandit.posterior.history import History
from cbandit.posterior.log import Log, Observation, Part, Step, Update
from cbandit.posterior.look import Best, Block, scan
from cbandit.posterior.pending import Ahead
from cbandit_kernels import Look

BLOCK = 1 << 12
TINY = 1e-13  # share of the largest eigenvalue; smaller ones are noise


@dataclass(frozen=True)
class Sketch:
    """The posterior by a dictionary of actions.

    ``half(x) = right' k_S(x)`` has the squared norm ``z' A^{-1} z``.

    Args:
        points: the actions of the dictionary, ``(T, q, d)``, padded.
        left: ``(T, q, q)``, ``z(x) = left' k_S(x)``; rows of padding are zero.
        right: ``left A^{-1/2}``.
        weights: ``(T, 1, q)``; ``weights k_S(x)`` is the mean.
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
    """The belief about one function, as a sketch over a dictionary of actions.

    Args:
        actions: the set.
        dtype: the dtype of arrays over the set.
        covariance: the prior covariance.
        noise: the likelihood's variance, ``(T,)``.
        least: the least variance of an observation.
        mean: the prior mean, ``(T,)``.
        within: scores that differ by less count as equal, ``(T,)``.
        log: the observations.
        engine: the observations by action; reading them brings them up to date.
        chosen: which of the tried actions are in the dictionary, ``(T, n)``.
        past: the sketch from which the dictionary was drawn; ``None``: there was none.
    """

    actions: Finite | ProductGrid
    dtype: torch.dtype
    covariance: Covariance
    noise: Tensor
    least: Tensor
    mean: Tensor
    within: Tensor
    log: Log
    engine: Engine
    chosen: Tensor
    past: Sketch | None = None

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
        over = Prior(actions, covariance, batch_shape, dtype, device)
        engine = Engine(over, 1, Plan("sketch", "asked for"))
        chosen = torch.zeros(len(noise), 0, dtype=torch.bool, device=device)
        prior = covariance, noise.maximum(least), least, mean, within
        return cls(actions, dtype, *prior, Log(), engine, chosen)

    @property
    def history(self) -> History:
        """The observations merged by action."""
        self.engine.catch_up(self.log, 1, self._update, False)
        return self.engine.history

    def _update(self, row: Observation) -> Update:
        """Return a row of the log as an engine takes it."""
        noise = self.noise if row.noise is None else row.noise.maximum(self.least)
        precision = devices.put(row.wanted, row.x.device) / noise
        values = row.values - self.mean.unsqueeze(-1)
        return Update(row.keys, row.x, values, precision, row.wanted)

    def absorb(self, row: Observation) -> Self:
        """Return the belief with one more observation and the same dictionary."""
        step = Step("add", (self._update(row),))
        return replace(self, log=self.log.enter(row, step))

    def variances(self) -> Tensor:
        """Return the variances ``(T, n)`` at the tried actions, by the last sketch."""
        history = self.history
        if not history.used:
            return self.noise.new_zeros(len(self.noise), 0)
        return self._at(history.points[:, : history.used], self.past)[1]

    def resampled(self, chance: Tensor, streams: Streams) -> Self:
        """Return the belief with a new dictionary, drawn from the actions tried.

        Args:
            chance: for each action, the chance that one of its rounds adds it,
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
        # one coin for each time that the action was played
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

    def at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations at points ``x``, both ``(T, 1, n)``."""
        mean, var = self._at(x, self.sketch)
        return mean, var.sqrt().unsqueeze(1)

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


@dataclass(frozen=True, eq=False)
class Sketches:
    """The beliefs about reward and costs, each a separate sketch.

    It has the methods of :class:`~cbandit.posterior.beliefs.Beliefs` that policies on
    sketches need.

    Args:
        each: one belief a function, the reward's first.
    """

    each: tuple[Sketched, ...]
    by_default: ClassVar[bool] = False  # a sketch needs a kernel from the user
    fades: ClassVar[bool] = False
    dated: ClassVar[bool] = False

    @property
    def functions(self) -> int:
        """How many functions there are."""
        return len(self.each)

    @property
    def actions(self) -> Finite | ProductGrid:
        """The set."""
        return self.each[0].actions

    @property
    def dtype(self) -> torch.dtype:
        """The data type of arrays over the set."""
        return self.each[0].dtype

    def _columns(self, values: Iterable[Tensor]) -> Tensor:
        """Stack values ``(T,)`` of each function as columns, ``(T, F)``."""
        return torch.stack(list(values), -1)

    def absorb(
        self, keys: Sequence[Hashable], x: Tensor, parts: Sequence[Part], t: int = 0
    ) -> Self:
        """Return the beliefs with more observations and the same dictionaries."""
        each = list(self.each)
        for part in parts:
            for f in part.functions:
                values = part.columns([f])
                row = Observation(keys, x, values, part.wanted, part.noise, t)
                each[f] = each[f].absorb(row)
        return replace(self, each=tuple(each))

    def observe(
        self, rows: Sequence[tuple[Sequence[Hashable], Tensor, list[Part]]]
    ) -> Self:
        """Return the beliefs with many rows of observations."""
        beliefs = self
        for keys, x, parts in rows:
            beliefs = beliefs.absorb(keys, x, parts)
        return beliefs

    def resampled(self, oversampling: float, streams: Streams) -> Self:
        """Return the beliefs with new dictionaries.

        A past round enters with the probability ``min(1, oversampling var / lam)``.
        """
        each = []
        for sketched in self.each:
            share = oversampling * sketched.variances() / sketched.noise.unsqueeze(-1)
            each.append(sketched.resampled(share.clamp(0, 1), streams))
        return replace(self, each=tuple(each))

    def anywhere(self, x: Tensor, ahead: Sequence[Ahead] = ()) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations at points ``x``, both ``(T, F, n)``."""
        means, stds = zip(*(sketched.at(x) for sketched in self.each), strict=True)
        return torch.cat(means, 1), torch.cat(stds, 1)

    def choose(
        self, look: Look, streams: Streams | None = None, ahead: Sequence[Ahead] = ()
    ) -> Best:
        """Return the best action under ``look``."""
        return scan(((b.start, b.mean, b.std) for b in self.blocks()), look)

    def has_data(self) -> Tensor:
        """Return which functions have an observation, ``(T, F)`` bool, on the host."""
        told = [sketched.log.has_data(len(sketched.noise), 1) for sketched in self.each]
        return torch.cat(told, -1)

    def tolerance(self, costs: bool = False) -> Tensor:
        """Return the difference below which scores count as equal, ``(T,)``."""
        of = self.each[1:] if costs and self.functions > 1 else self.each[:1]
        return self._columns(sketched.within for sketched in of).amax(-1)

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
        """Return means and standard deviations of all actions, ``(T, F, N)`` each."""
        blocks = list(self.blocks())
        mean = torch.cat([block.mean for block in blocks], -1)
        return mean, torch.cat([block.std for block in blocks], -1)

    def gains(self) -> Tensor:
        """Return the sketches' information gains, ``(T, F)``."""
        return self._columns(sketched.sketch.gain for sketched in self.each)

    def dimension(self) -> tuple[Tensor, Tensor]:
        """Return sums of ``var / lam`` over rounds, posterior and prior, ``(T, F)``."""
        sums = [sketched.dimension() for sketched in self.each]
        posterior, prior = zip(*sums, strict=True)
        return torch.cat(posterior, -1), torch.cat(prior, -1)

    def noises(self) -> Tensor:
        """Return the likelihoods' variances, ``(T, F)``."""
        return self._columns(sketched.noise for sketched in self.each)

    def refit(self, due_only: bool = False) -> Self:
        """Return the beliefs unchanged: they have no hyperparameters to fit."""
        return self

    def lighten(self, limit: int) -> None:
        """Do nothing: there are no arrays over the set to drop."""

    def engines(self) -> list[str]:
        """Return the name of the engine."""
        return ["sketch"]

    def describe(self) -> str:
        """Return the sizes of the dictionaries, in words."""
        names = ["reward", *(f"cost {f}" for f in range(1, self.functions))]
        sizes = [sketched.chosen.sum(-1).tolist() for sketched in self.each]
        words = [
            f"{name}: Nystrom dictionary of {size} actions"
            for name, size in zip(names, sizes, strict=True)
        ]
        return "; ".join(words)


class BKB(GPPolicy):
    """GP-UCB, or with costs CKB, with a cost per round that does not grow with time.

    The library's other engines are faster if their kernel rows fit in memory. Over 20
    000 actions of 2 coordinates CKB took 5 ms of a processor in round 900; BKB took 24
    ms in round 100 and 55 ms in round 300, with some 60 actions in each dictionary.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward; its kernel and noise are fixed.
        costs: the belief about the cost, or a list of them, with fixed kernel and
            noise; ``None``: there are no costs.
        explore: :class:`~cbandit.UCB`, ``cb.UCB(2.0)`` unless given. An RKHS width
            (``any-lam``, the default form, or ``tight``) becomes the paper's own,
            :func:`cbandit.confidence.sketched_width`. With the theory's
            ``oversampling`` this is a guarantee (``delta`` for the noise, and another
            ``delta`` for the dictionaries, shared by the functions); with less it is a
            heuristic.
        oversampling: ``q``, how many times more is kept than the dictionary needs at
            least; ``72 ln(4 T / delta)`` by the theory, but a few suffice in practice.
        step: as for :class:`~cbandit.CKB`; this and the next ones are for costs only.
        cap: as for :class:`~cbandit.CKB`.
        slack: as for :class:`~cbandit.CKB`.
        slater: as for :class:`~cbandit.CKB`.
        dual: as for :class:`~cbandit.CKB`, ``"projected"`` or ``"queue"``.
        dual_beta: as for :class:`~cbandit.CKB`.
        common: see below.

    Example:
        >>> import cbandit as cb
        >>> world = cb.problems.zhou_synthetic()
        >>> gp = cb.GP(world.known.kernel, noise=world.known.noise)
        >>> policy = cb.baselines.BKB(
        ...     world.actions, reward=gp, costs=gp, clip=(1.0, 1.0), slater=0.5,
        ...     horizon=1000,
        ... )
        >>> run = cb.simulate(policy, world, 20)
    """

    name = "BKB"
    abilities = replace(
        BY_SCORE,
        boxes=False,
        categories=False,
        contexts=False,
        failures=False,
        moves=True,
        outcomes=False,
        shards=False,
        told_costs=False,  # only estimates move the multipliers
        explores=(UCB,),
        explore=UCB(2.0),
        refuses=dict.fromkeys(
            ("Delayed", "Sliding", "hallucinate"), "a sketch is of all that was told"
        ),
    )

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs | None = None,
        explore: UCB | None = None,
        oversampling: float = 5.0,
        step: Scheduled | None = None,
        cap: ArrayLike | None = None,
        slack: Scheduled | None = None,
        slater: ArrayLike | None = None,
        dual: str | None = None,
        dual_beta: ArrayLike | None = None,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        self._oversampling = checks.number("oversampling", oversampling)
        if self._oversampling <= 0:
            raise CBanditError(
                f"oversampling must be above 0; got {self._oversampling}"
            )
        super().__init__(
            actions,
            reward=reward,
            costs=None if costs is None else believed_costs(costs),
            explore=explore,
            start=None if costs is None else 0.0,
            **common,
        )
        self._dual: Dual | None = None
        if self.m:
            self.name = "CKB-BKB"
            dual = "projected" if dual is None else dual
            checks.one_of("dual", dual, "projected", "queue")
            rule = Queue if dual == "queue" else Projected
            self._dual = rule.of(
                GivenConstants(
                    step,
                    cap,
                    0.0 if slack is None else slack,
                    slater,
                    dual_beta,
                    self._cost_parameter,
                    self._bound,
                    None,
                    self.horizon,
                )
            )
        else:
            own = {"step": step, "cap": cap, "slack": slack, "slater": slater}
            own |= {"dual": dual, "dual_beta": dual_beta}
            given = [name for name, value in own.items() if value is not None]
            if given:
                raise CBanditError(f"{', '.join(given)}: only with costs=")

    def score(self, t: int, phi: Tensor) -> scores.Reward | scores.PrimalDual:
        """Return ``f - sum_j phi_j g_j``, or the reward's estimate without costs."""
        if self._dual is None:
            return scores.Reward()
        return self._dual.score(t, phi, 1)

    def _dual_estimate(
        self, beliefs: Any, look: Look, best: Best, turn: Turn
    ) -> Tensor:
        """Return the estimates ``(T, 1 + m)`` that move the multiplier."""
        if self._dual is None:
            return best.estimate
        return self._dual.dual_estimate(beliefs, look, best, turn)

    def move(
        self, t: int, phi: Tensor, estimate: Tensor, arrived: Sequence[Tensor]
    ) -> Tensor:
        """Move the multiplier by the estimated costs of the action played."""
        if self._dual is None:
            return phi
        return self._dual.move(t, phi, estimate[:, 1:], 1)

    def _empty_beliefs(self, beliefs: list[GP]) -> Sketches:
        where = self.actions, self.batch_shape, self.dtype, self.device
        for f, gp in enumerate(beliefs):
            if gp.learn_noise or gp.learn_mean or gp.standardize:
                raise CBanditError(
                    f"{'costs' if f else 'reward'} must be a cb.GP with a kernel and "
                    f"noise of its own, not learned and not standardised; got {gp!r}"
                )
        return Sketches(tuple(Sketched.start(gp.copy(), *where) for gp in beliefs))

    def _open_round(self, state: GPState, turn: Turn) -> GPState:
        """Keep each past round with probability ``min(1, q var(x_s) / lam)``."""
        state = super()._open_round(state, turn)
        if not turn.by_rule:
            return state
        beliefs = state.beliefs.resampled(self._oversampling, turn.streams)
        return state._replace(beliefs=beliefs)

    def _coefficient(self, state: GPState, turn: Turn) -> Tensor:
        """Return the deviations' factors ``(T, F)``; RKHS widths become the paper's."""
        parts = [(p, at) for p, at in self._widths.rkhs_parts() if p.rkhs.needs_noise]
        if not parts:
            return super()._coefficient(state, turn)
        beliefs = state.beliefs
        (dimension, mass), noises = beliefs.dimension(), beliefs.noises()
        bound_count = self._count_bounds(state)
        width = self._timing.width(
            turn.t, self._widths, bound_count, beliefs, state.held
        ).clone()
        for part, at in parts:
            width[:, at] = sketched_width(
                part.norm,
                part.subgaussian,
                dimension[:, at],
                mass[:, at],
                noises[:, at],
                part.rkhs.delta / beliefs.functions,
            )
        return self.explore.coefficient(width, turn.streams)

    @property
    @locked
    def model(self) -> Any:
        """Raise an error: a sketch has no BoTorch model."""
        raise CBanditError("BKB keeps a sketch, not a model; see policy.posterior()")

    def _engine_texts(self) -> list[str]:
        return ["engine=dictionary"]
