"""OPNLB: a distribution over arms each round, for functions of finite classes.

The reward is one of the functions of a class, each cost one of another. Known: a safe
arm ``x0`` with reward ``r0`` and costs ``c0 < tau``. Each round:

1. confidence sets ``C = {h : sum_s (h(X_s) - h_hat(X_s))^2 <= radius}`` around the
   least-squares fits ``h_hat``; those of costs hold ``h(x0) = c0`` besides;
2. ``V_c(pi) = max over C_c of E_pi mu``;
   ``V_r(pi) = max over C_r of E_pi theta + alpha_r max over C_c of E_pi (mu' - mu'')``,
   ``alpha_r = (r_max - r0) / (tau - c0)``;
3. ``pi = argmax V_r`` over ``{V_c <= tau}``: one linear programme for each
   ``(theta, mu', mu'')``; draw an arm from ``pi``; observe.

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, Contextual bandits with stage-wise
constraints, 2024, Algorithm 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cbandit import checks
from cbandit.actions import Finite
from cbandit.beliefs.classes import FiniteClass
from cbandit.beliefs.counts import Tally
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.lp import PolicySolution, solve_policy
from cbandit.policies.base import Decision, listed
from cbandit.policies.stagewise import Stagewise, drawn, must_hold
from cbandit.safe import Safe

__all__ = ["OPNLB"]


class OPNLB(Stagewise):
    """Optimism and pessimism over distributions, for finite classes of functions.

    Args:
        actions: the arms, a :class:`~cbandit.Finite` set.
        reward: a :class:`~cbandit.FiniteClass`.
        costs: a :class:`~cbandit.FiniteClass`, or one a cost.
        safe: the safe arm, its reward and its cost.
        delta: the share of runs in which a bound may fail.
        alpha: ``alpha_r``; the theorem's unless given.
        largest: ``r_max``, the largest possible mean reward, 1 unless given.
        common: ``thresholds``, ``horizon``, ``seed``, ``trials``, ``device``,
            ``dtype``.
    """

    name = "OPNLB"

    def __init__(
        self,
        actions: Any,
        *,
        reward: FiniteClass,
        costs: Any,
        safe: Safe,
        delta: float = 0.1,
        alpha: Any = None,
        largest: Any = None,
        **common: Any,
    ) -> None:
        if not isinstance(actions, Finite):
            raise CBanditError(f"OPNLB chooses from a Finite set; got {actions!r}")
        if isinstance(safe, Safe) and (safe.reward is None or safe.cost is None):
            raise CBanditError(
                "safe needs reward= and cost= for OPNLB: its functions are those that "
                "agree with them"
            )
        super().__init__(
            actions, FiniteClass, reward, costs, safe, delta, alpha, largest, **common
        )
        self._classes: list[FiniteClass] = [reward, *listed(costs, FiniteClass)]
        for belief in self._classes:
            if belief.values.shape[-1] != actions.size:
                raise CBanditError(
                    f"values must have one column for each of {actions.size} arms; got "
                    f"{tuple(belief.values.shape)}"
                )
        self._values = [b.values.to(self.device) for b in self._classes]
        shape = (self._size, 1 + self.m, int(actions.size))
        self._tally = Tally(shape, torch.float64, self.device)
        self._agree = [self._agreeing(j) for j in range(1 + self.m)]

    def _agreeing(self, j: int) -> Tensor:
        """Functions of class ``j`` that agree with what is known, ``(T, G)``."""
        values, at = self._values[j], self._safe.index
        assert at is not None
        if j == 0:
            return torch.ones(self._size, len(values), dtype=torch.bool).to(self.device)
        gap = (values[:, at].mT - self._safe.cost[:, j - 1, None]).abs()
        agree = gap <= 1e-9 * (1 + values.abs().max())
        if not bool(agree.any(-1).all()):
            raise CBanditError(
                f"costs[{j - 1}] must hold a function whose value at the safe arm is "
                f"safe.cost = {self._safe.cost[:, j - 1].tolist()}; got none"
            )
        return agree

    def _radius(self, j: int, t: int) -> float:
        given = self._classes[j].radius
        if given is None:
            size = len(self._values[j])
            # gamma(t, delta / 2)
            return 512 * math.log(24 * size * math.log(2 * t) * 2 / self.delta)
        return checks.number(
            "radius", given(t) if callable(given) else given, minimum=0
        )

    def _confident(self, j: int, t: int) -> Tensor:
        """Which functions of class ``j`` are in the confidence set, ``(T, G)``."""
        count, mean = self._tally.count[:, j], self._tally.mean[:, j]
        values, agree = self._values[j], self._agree[j]
        error = (count.unsqueeze(1) * (values - mean.unsqueeze(1)).square()).sum(-1)
        fit = values[error.masked_fill(~agree, torch.inf).argmin(-1)]  # T x K
        away = (count.unsqueeze(1) * (values - fit.unsqueeze(1)).square()).sum(-1)
        return agree & (away <= self._radius(j, t))

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        if asked is not self.actions:
            raise CBanditError(
                "ask(actions=...) needs functions of coordinates; classes given by "
                "tables take ask(among=...)"
            )
        tau = self._limits(t)
        infeasible = self._safe.check(tau)
        must_hold(mask, self._safe.index)
        inside = [self._confident(j, t) for j in range(1 + self.m)]
        alpha = self._safe.ratio(tau) / 2  # (r_max - r0) / (tau_j - c0_j)
        if self._scales.reward is not None:
            alpha = self._scales.reward.unsqueeze(-1).expand_as(alpha)
        found = [
            self._programme(i, inside, tau[i], alpha[i], mask)
            for i in range(self._size)
        ]
        k = max(one.index.shape[-1] for one in found)
        index = torch.stack([_padded(one.index, k) for one in found])
        probability = torch.stack([_padded(one.probability, k) for one in found])
        pi = Distribution(index, probability)
        return drawn(pi, self._safe, self._streams, infeasible)

    def _programme(
        self,
        i: int,
        inside: list[Tensor],
        tau: Tensor,
        alpha: Tensor,
        mask: Tensor | None,
    ) -> Distribution:
        """One trial: all linear programmes side by side, and the best one's answer."""
        theta = self._values[0][inside[0][i]]  # R x K
        mu = [v[c[i]] for v, c in zip(self._values[1:], inside[1:], strict=True)]
        bonus = torch.cat(
            [
                a * (h.unsqueeze(1) - h).flatten(0, 1)
                for a, h in zip(alpha, mu, strict=True)
            ]
        ).unique(dim=0)
        u_r = (theta.unsqueeze(1) + bonus).flatten(0, 1)  # programmes x K
        if mask is not None:
            u_r = u_r.masked_fill(~mask[i % len(mask)], -torch.inf)
        u_c, limits = (
            torch.cat(mu),
            torch.cat([limit.expand(len(h)) for limit, h in zip(tau, mu, strict=True)]),
        )
        pi: PolicySolution = solve_policy(u_r, u_c.expand(len(u_r), -1, -1), limits)
        value = pi.value.masked_fill(pi.infeasible, -torch.inf)
        best = int(value.argmax())
        one = pi.distribution
        return Distribution(one.index[best], one.probability[best])

    def _learn(
        self,
        functions: slice,
        x: Tensor,
        arm: Tensor | None,
        y: Tensor,
        weight: Tensor | None,
    ) -> None:
        assert arm is not None
        weight = torch.ones_like(y) if weight is None else weight
        self._tally.add(functions, arm, y, weight)

    def _believed(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Middle and half width of what the confidence sets leave."""
        low, high = [], []
        for j, values in enumerate(self._values):
            inside = self._confident(j, max(self.t, 1)).unsqueeze(-1)
            low.append(torch.where(inside, values, torch.inf).amin(1))
            high.append(torch.where(inside, values, -torch.inf).amax(1))
        bottom, top = torch.stack(low, 1), torch.stack(high, 1)
        yield 0, (bottom + top) / 2, (top - bottom) / 2


def _padded(value: Tensor, k: int) -> Tensor:
    return torch.nn.functional.pad(value, (0, k - value.shape[-1]))
