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

from cbandit._core import checks, devices
from cbandit.actions import Finite
from cbandit.beliefs.classes import FiniteClass
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.policies.decision import Decision
from cbandit.policies.given import listed
from cbandit.policies.safe.action import Safe
from cbandit.policies.safe.arms import ArmPolicy
from cbandit.policies.safe.stagewise import drawn, share
from cbandit.recommend import Recommendation
from cbandit.search.simplex.lp import solve_policy

__all__ = ["OPNLB"]


class OPNLB(ArmPolicy):
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
        safe: Safe | None = None,
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
        # classes are small, and what is done with them is looked at: on the host
        self._values = [b.values for b in self._classes]
        self._agree = [self._agreeing(j) for j in range(1 + self.m)]

    def _agreeing(self, j: int) -> Tensor:
        """Functions of class ``j`` that agree with what is known, ``(T, G)``."""
        values, at = self._values[j], self._safe.index
        assert at is not None
        if j == 0:
            return torch.ones(self._size, len(values), dtype=torch.bool)
        at, cost = devices.host(at, self._safe.cost)
        gap = (values[:, at].mT - cost[:, j - 1, None]).abs()
        agree = gap <= 1e-9 * (1 + values.abs().max())
        if not bool(agree.any(-1).all()):
            raise CBanditError(
                f"costs[{j - 1}] must hold a function whose value at the safe arm is "
                f"safe.cost = {self._safe.cost[:, j - 1].tolist()}; got none"
            )
        return agree

    def _radius(self, j: int, t: int, delta: float) -> float:
        given = self._classes[j].radius
        if given is None:
            size = len(self._values[j])
            # gamma(t, delta / 2)
            return 512 * math.log(24 * size * math.log(2 * max(t, 1)) * 2 / delta)
        return checks.number(
            "radius", given(t) if callable(given) else given, minimum=0
        )

    def _fit(self, j: int, seen: list[Tensor]) -> Tensor:
        """The function of class ``j`` nearest to what was observed, ``(T, K)``.

        ``seen`` are counts and averages, ``(T, F, K)``.
        """
        count, mean = (v[:, j] for v in seen)
        values, agree = self._values[j], self._agree[j]
        error = (count.unsqueeze(1) * (values - mean.unsqueeze(1)).square()).sum(-1)
        return values[error.masked_fill(~agree, torch.inf).argmin(-1)]

    def _confident(self, t: int, delta: float, seen: list[Tensor]) -> list[Tensor]:
        """Which functions of each class are in the confidence set, ``(T, G)``."""
        inside = []
        for j, values in enumerate(self._values):
            fit, count = self._fit(j, seen).unsqueeze(1), seen[0][:, j].unsqueeze(1)
            away = (count * (values - fit).square()).sum(-1)
            inside.append(self._agree[j] & (away <= self._radius(j, t, delta)))
        return inside

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        infeasible = self._safe_round(t, asked, mask)
        tau = self._limits(t)
        alpha = self._safe.ratio(tau) / 2  # (r_max - r0) / (tau_j - c0_j)
        if self._scales.reward is not None:
            alpha = self._scales.reward.unsqueeze(-1).expand_as(alpha)
        known = self._tally.count, self._tally.mean, tau, alpha
        *seen, tau, alpha = devices.host(*known)
        inside, allowed = self._confident(t, self.delta, seen), None
        if mask is not None:
            allowed = mask.cpu()
        found = []
        for i in range(self._size):
            theta, mu = self._inside(i, inside)
            bonus = torch.cat(
                [
                    a * (h.unsqueeze(1) - h).flatten(0, 1)
                    for a, h in zip(alpha[i], mu, strict=True)
                ]
            ).unique(dim=0)
            u_r = (theta.unsqueeze(1) + bonus).flatten(0, 1)  # programmes x K
            if allowed is not None:
                u_r = u_r.masked_fill(~allowed[i % len(allowed)], -torch.inf)
            found.append(_best(u_r, mu, tau[i]))
        pi = _stacked(found, self.device)
        return drawn(pi, self._safe, self._streams, infeasible)

    def _inside(self, i: int, inside: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One trial's functions: of the reward ``(R, K)``, and of every cost."""
        each = [v[c[i]] for v, c in zip(self._values, inside, strict=True)]
        return each[0], each[1:]

    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """What to deploy: the distribution of greatest fitted reward believed feasible.

        That is, feasible under all that confidence sets of level ``confidence`` leave;
        a radius that was given stands for any level.
        """
        confidence = share("confidence", confidence)
        self._catch_up()
        t = max(self.t, 1)
        limits = self._limits(t)
        known = self._tally.count, self._tally.mean, limits
        *seen, tau = devices.host(*known)
        inside = self._confident(t, 1 - confidence, seen)
        fit = torch.stack([self._fit(j, seen) for j in range(1 + self.m)], 1)
        pi = _stacked(
            [
                _best(fit[i, :1], self._inside(i, inside)[1], tau[i])
                for i in range(self._size)
            ],
            self.device,
        )
        fit = devices.put(fit, self.device)  # T x F x K
        held = fit.gather(-1, pi.index.unsqueeze(1).expand(-1, 1 + self.m, -1))
        mean = (held * pi.probability.unsqueeze(1)).sum(-1)
        found = Recommendation(
            index=pi.index,
            x=self.actions.points(pi.index),
            value=mean[:, 0],
            probability=torch.full_like(mean[:, 0], confidence),
            margin=limits - mean[:, 1:],
            feasible=torch.ones_like(mean[:, 0], dtype=torch.bool),
            confidence=confidence,
            distribution=pi,
        )
        return found.of(self._outside)

    def _believed(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Middle and half width of what the confidence sets leave."""
        low, high = [], []
        seen = devices.host(self._tally.count, self._tally.mean)
        inside = self._confident(max(self.t, 1), self.delta, seen)
        for values, held in zip(self._values, inside, strict=True):
            among = held.unsqueeze(-1)
            low.append(torch.where(among, values, torch.inf).amin(1))
            high.append(torch.where(among, values, -torch.inf).amax(1))
        ends = torch.stack(low, 1), torch.stack(high, 1)
        bottom, top = (devices.put(v, self.device) for v in ends)
        yield 0, (bottom + top) / 2, (top - bottom) / 2


def _best(u_r: Tensor, mu: list[Tensor], tau: Tensor) -> Distribution:
    """One trial: a programme for each row of ``u_r`` ``(n, K)``; the best one's answer.

    Every function in ``mu`` keeps its cost's limit in ``tau`` ``(m,)``.
    """
    limits = [limit.expand(len(h)) for limit, h in zip(tau, mu, strict=True)]
    u_c = torch.cat(mu).expand(len(u_r), -1, -1)
    pi = solve_policy(u_r, u_c, torch.cat(limits))
    best = int(pi.value.masked_fill(pi.infeasible, -torch.inf).argmax())
    return Distribution(pi.distribution.index[best], pi.distribution.probability[best])


def _stacked(found: list[Distribution], device: torch.device) -> Distribution:
    """One distribution a trial, as one."""
    k = max(one.index.shape[-1] for one in found)

    def padded(value: Tensor) -> Tensor:
        return torch.nn.functional.pad(value, (0, k - value.shape[-1]))

    return Distribution(
        devices.put(torch.stack([padded(one.index) for one in found]), device),
        devices.put(torch.stack([padded(one.probability) for one in found]), device),
    )
