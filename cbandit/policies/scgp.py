"""SCGP-UCB: the constraint is seen in full each round, before choosing.

Each round, with queue ``Q`` (one a cost, 0 at first):

1. ``f_t = clip(mean + beta_t std, -B, B)``; observe ``g_t(.)`` on all actions,
   ``E g_t = g``;
2. ``x_t = argmax f_t(x) - (1 / V_t) sum_j Q_j g_tj(x)``; observe the reward;
3. ``Q_j = [Q_j + g_tj(x_t) + eps_t]_+``.

Schedule 1: ``eps_t = 1 / sqrt(t)``, ``V_t = delta sqrt(t) / (8 B)``. Schedule 2:
``eps_t = delta / (2 sqrt(t))``, ``V_t = delta^2 sqrt(t) / (16 B)``.

X. Zhou and B. Ji, On kernelized multi-armed bandits with constraints, the longer form
with full-information constraints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit import multipliers, scores
from cbandit._core import checks, devices
from cbandit.actions import Box
from cbandit.beliefs.gp import GP
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.gp import GPPolicy
from cbandit.policies.policy import COST_COUNT, Decision, Told

__all__ = ["SCGPUCB"]


class SCGPUCB(GPPolicy):
    """A virtual queue on constraints that are observed in full.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: how many costs, ``m``.
        explore: :class:`~cbandit.UCB` in the paper.
        schedule: 1 or 2, of ``eps_t`` and ``V_t``.
        slater: ``delta``, a number or ``(*trials,)``.
        clip: ``B``, or ``(B, G)``; the schedules need it.
        common: see below. Thresholds are subtracted from what
            ``ask(observed_costs=...)`` is given.

    Example:
        >>> import cbandit as cb
        >>> class Open(cb.problems.Table):  # shows its costs before every round
        ...     def round(self, t, generator):
        ...         return cb.Round(observed_costs=[[-1.0, 0.2, 1.0]])
        >>> world = Open([1.0, 2.0, 3.0], [[-1.0, 0.2, 1.0]], noise=0.01)
        >>> policy = cb.SCGPUCB(
        ...     world.actions, reward=cb.GP.default(world.actions), costs=1,
        ...     explore=cb.UCB(2.0), slater=1.0, clip=5.0,
        ... )
        >>> run = cb.simulate(policy, world, 50)
    """

    name = "SCGP-UCB"
    learns_costs, sees_costs = False, True
    splits = True

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: int,
        explore: Explore,
        schedule: int = 1,
        slater: Any = None,
        clip: Any = None,
        **common: Any,
    ) -> None:
        costs = checks.whole("costs", costs, 1, COST_COUNT)
        if checks.whole("schedule", schedule, 1, "1 or 2") > 2:
            raise CBanditError(f"schedule must be 1 or 2; got {schedule!r}")
        if slater is None or clip is None:
            missing = "slater=" if slater is None else "clip=B"
            raise CBanditError(
                f"V_t rests on slater (delta) and clip (B): give {missing}"
            )
        super().__init__(actions, reward, None, explore, clip=clip, m=costs, **common)
        self.schedule = schedule
        delta = self._per_trial("slater", checks.positive("slater", slater))
        self._delta = delta.unsqueeze(-1)
        self._multiplier = torch.zeros(
            self._size, self.m, dtype=torch.float64, device=self.device
        )
        self._observed: Tensor | None = None

    def ask(
        self, *, among: Any = None, actions: Any = None, observed_costs: Any = None
    ) -> Choice:
        """Start the next round and choose.

        Args:
            among: a mask ``(N,)`` or ``(*trials, N)``, or action numbers ``(k,)`` or
                ``(*trials, k)``: only these may be chosen this round.
            actions: a set for this round alone, solved afresh; the choice's index
                refers to it.
            observed_costs: ``g_t`` on every action, ``(*trials, m, N)``; on a Box a
                callable, ``x (*trials, n, d) -> (*trials, m, n)``.
        """
        if observed_costs is None:
            raise CBanditError(
                "SCGP-UCB sees the costs before it chooses: give "
                "ask(observed_costs=g_t) of shape (*trials, m, N); to simulate, a "
                "problem whose round(t, generator) returns "
                "cb.Round(observed_costs=g_t)"
            )
        return super().ask(among=among, actions=actions, observed_costs=observed_costs)

    def tell(
        self,
        choice: Choice,
        reward: Any = None,
        cost: Any = None,
        noise: Any = None,
        where: Any = None,
    ) -> None:
        """Say what came of a choice; its cost is known already and may come or not.

        Args:
            choice: what ``ask`` returned.
            reward: ``(*trials,)``.
            cost: ``(*trials, m)``; teaches nothing.
            noise: this observation's variance, ``(*trials,)``, instead of the belief's.
            where: ``(*trials,)`` bool, the trials in which this has come.
        """
        if reward is None and cost is not None and self._finished(choice):
            return
        super().tell(choice, reward, cost, noise, where)

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        g = self._seen_in_full(observed_costs, asked, self._limits(t).unsqueeze(-1))
        assert self._clip_at is not None
        root, b = math.sqrt(t), self._clip_at[:, :1]
        if self.schedule == 1:
            slack, v = torch.full_like(b, 1 / root), self._delta * root / (8 * b)
        else:
            slack, v = self._delta / (2 * root), self._delta**2 * root / (16 * b)
        weight = self._multiplier / v

        best = self._maximise(t, asked, mask, scores.PrimalDual(weight), beside=g)
        self._multiplier = multipliers.queued(self._multiplier, best.g.double(), slack)
        return Decision(best.index, x=best.x, keys=best.keys)

    def _seen_in_full(
        self, observed: Any, asked: Any, limits: Tensor
    ) -> Tensor | Callable[[Tensor], Tensor]:
        """``g_t`` less thresholds: ``(T, m, N)``, or on a Box a function of points."""
        name, size = "observed_costs", asked.size
        if isinstance(asked, Box):
            if not callable(observed):
                raise CBanditError(
                    f"{name} must be a callable on a Box, x (*trials, n, d) -> "
                    f"(*trials, m, n); got {type(observed).__name__}"
                )
            batch = self.batch_shape

            def at(x: Tensor) -> Tensor:
                values: Tensor = observed(x if batch else x[0])
                return values.reshape(self._size, self.m, x.shape[1]) - limits

            return at
        # looked at where it is given, mostly on the host
        given = checks.finite(name, checks.tensor(name, observed))
        g = devices.put(given, self.device)
        shape, batch = tuple(g.shape), self.batch_shape
        if self.m == 1 and shape == (*batch, size):
            g = g.reshape(self._size, 1, size)
        elif shape in ((*batch, self.m, size), (self.m, size)):
            g = g.expand(self._size, self.m, size)
        else:
            raise CBanditError(
                f"{name} must have shape (*trials, m, N) = {(*batch, self.m, size)}; "
                f"got {shape}"
            )
        return g - limits

    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        # the costs are known already: only rewards teach
        super()._absorb(choice, rewards, [])
