"""BKB: GP-UCB on a dictionary of past actions, drawn anew every round.

Each round:

1. draw the dictionary and compute ``mean`` and ``std`` by it, see
   :mod:`cbandit.posterior.engines.sketch`;
2. ``x_t = argmax mean + beta std``;
3. observe the reward.

With costs, 2 and 3 are CKB's (:mod:`cbandit.policies.ckb`); functions of equal kernel
and noise share a dictionary: X. Zhou and B. Ji, On kernelized multi-armed bandits with
constraints, 2022, name BKB in section 5.1 as the way to scale.

D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L. Rosasco, Gaussian process
optimization with adaptive sketching: scalable and no regret, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.actions import Actions
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
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.engines.sketch import Sketched
from cbandit.posterior.look import Best
from cbandit_kernels import Look


class BKB(GPPolicy):
    """GP-UCB, or with costs CKB, with a cost per round that does not grow with time.

    The library's other engines are faster where their kernel rows fit in memory.

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

    def _empty_beliefs(self, beliefs: list[GP]) -> Beliefs:
        for f, gp in enumerate(beliefs):
            if gp.learn_noise or gp.learn_mean or gp.standardize:
                raise CBanditError(
                    f"{'costs' if f else 'reward'} must be a cb.GP with a kernel and "
                    f"noise of its own, not learned and not standardised; got {gp!r}"
                )
        self._engine = "sketch"
        fresh: Beliefs = super()._empty_beliefs(beliefs)
        return fresh

    def _coefficient(self, state: GPState, turn: Turn) -> Tensor:
        """Return the deviations' factors ``(T, F)``; RKHS widths become the paper's."""
        parts = [(p, at) for p, at in self._widths.rkhs_parts() if p.rkhs.needs_noise]
        if not parts:
            return super()._coefficient(state, turn)
        beliefs = state.beliefs
        dimension, mass = dimensions(beliefs)
        noises = beliefs.noises()
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


def dimensions(beliefs: Beliefs) -> tuple[Tensor, Tensor]:
    """Return sums of ``var / lam`` over rounds, posterior and prior, ``(T, F)``."""
    engines = [cast("Sketched", group.engine) for group in beliefs.groups]
    sums = [engine.dimension() for engine in engines]
    order = {f: i for i, group in enumerate(beliefs.groups) for f in group.functions}
    columns = [sums[order[f]] for f in range(beliefs.functions)]
    posterior, prior = zip(*columns, strict=True)
    return torch.stack(posterior, -1), torch.stack(prior, -1)
