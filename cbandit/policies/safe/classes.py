"""Confidence sets in finite classes of functions, and the programmes over them.

The paper fits a cost among all functions, and keeps the functions near the fit that
have the value ``c0`` at the safe arm. Here the fit is sought among functions with that
value. The truth is one of them, so the paper's bound on its distance from the fit
holds, and the set is never empty. There is a linear programme for each triple of
functions; they are solved on the host.

In shapes, ``T`` counts trials, ``m`` costs, ``F = 1 + m`` functions, ``K`` arms, and
``G`` the members of a class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.peaks import CLOSE, best_place
from cbandit.actions import Actions
from cbandit.beliefs.classes import FiniteClass
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.policies.safe.action import SafeAction, require_numbers
from cbandit.recommend import Recommendation
from cbandit.search.simplex.lp import solve_policy


class ConfidenceSets:
    """The confidence sets of the reward and of every cost.

    All tensors are on the host. Observations are the ``count`` and the average,
    ``mean``, of every arm, ``(T, F, K)`` each.

    Args:
        beliefs: the classes of functions, the reward's first. Of a cost's class, only
            functions with the cost's value ``c0`` at the safe arm are used.
        safe: the safe arm, and ``R`` of the noise.
        arms: the number of arms.
    """

    def __init__(
        self, beliefs: Sequence[FiniteClass], safe: SafeAction, arms: int
    ) -> None:
        self._beliefs = beliefs
        self._square = devices.host(safe.subgaussian)[0].square()  # R^2, T x (1 + m)
        self._agree = []  # the functions with value c0 at the safe arm, T x G each
        for j, belief in enumerate(beliefs):
            values = belief.values
            if values.shape[-1] != arms:
                raise CBanditError(
                    f"values must have one column for each of {arms} arms; got "
                    f"{tuple(values.shape)}"
                )
            agree = torch.ones(len(safe.x), len(values), dtype=torch.bool)
            if j > 0 and safe.cost is not None:
                at, cost = devices.host(require_numbers(safe.index), safe.cost)
                gap = (values[:, at].mT - cost[:, j - 1, None]).abs()
                agree = gap <= 1e-9 * (1 + values.abs().max())
                if not bool(agree.any(-1).all()):
                    raise CBanditError(
                        f"costs[{j - 1}] must hold a function whose value at the safe "
                        f"arm is safe.cost = {cost[:, j - 1].tolist()}; got none"
                    )
            self._agree.append(agree)

    def fit(self, count: Tensor, mean: Tensor) -> Tensor:
        """Return the functions nearest to the observations, ``(T, F, K)``."""
        fits = []
        for j, (belief, agree) in enumerate(
            zip(self._beliefs, self._agree, strict=True)
        ):
            error = _squared_distances(belief.values - mean[:, j, None], count[:, j])
            place = error.masked_fill(~agree, torch.inf).argmin(-1)
            fits.append(belief.values[place])
        return torch.stack(fits, 1)

    def members(
        self, t: int, delta: float, count: Tensor, mean: Tensor
    ) -> list[Tensor]:
        """Return which functions are in each confidence set, ``(T, G)`` bool each.

        The share of runs in which a set ever lacks the truth is at most ``delta``.
        """
        fit, sets = self.fit(count, mean), []
        for j, (belief, agree) in enumerate(
            zip(self._beliefs, self._agree, strict=True)
        ):
            squared = _squared_distances(belief.values - fit[:, j, None], count[:, j])
            sets.append(agree & (squared <= self._radius(j, t, delta)))
        return sets

    def _radius(self, j: int, t: int, delta: float) -> Tensor:
        """Return the radius of function ``j``'s set in round ``t``, ``(T, 1)``."""
        belief, square = self._beliefs[j], self._square[:, j, None]
        radius = belief.radius
        if radius is None:
            # the paper's 24 is 12 for each of two functions, a reward and one cost
            size = len(belief.values) * len(self._beliefs)
            log = math.log(12 * size * math.log(2 * max(t, 1)) / delta)
            return 512 * log * square
        value = radius(t) if callable(radius) else radius
        value = checks.number("radius", value, minimum=0)
        return torch.full_like(square, value)

    def functions_of(self, inside: list[Tensor], trial: int) -> list[Tensor]:
        """Return the functions in each confidence set of one trial, ``(G, K)`` each."""
        pairs = zip(self._beliefs, inside, strict=True)
        return [belief.values[members[trial]] for belief, members in pairs]

    def extremes(self, inside: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return each arm's least and greatest values over the confidence sets.

        Both are ``(T, F, K)``; ``inside`` is what :meth:`members` returns.
        """
        pairs = [
            (belief.values, members.unsqueeze(-1))
            for belief, members in zip(self._beliefs, inside, strict=True)
        ]
        low = [torch.where(members, v, torch.inf).amin(1) for v, members in pairs]
        high = [torch.where(members, v, -torch.inf).amax(1) for v, members in pairs]
        return torch.stack(low, 1), torch.stack(high, 1)


def _squared_distances(difference: Tensor, count: Tensor) -> Tensor:
    """Return squared distances summed over all pulls, ``(T, G)``.

    Args:
        difference: the differences at each arm, ``(T, G, K)``.
        count: the pulls of each arm, ``(T, K)``.
    """
    return (count.unsqueeze(1) * difference.square()).sum(-1)


def optimistic_rewards(theta: Tensor, mu: list[Tensor], alpha: Tensor) -> Tensor:
    """Return ``theta + alpha_j (mu'_j - mu''_j)`` for all ``n`` triples, ``(n, K)``.

    Args:
        theta: the functions in the reward's confidence set, ``(G, K)``.
        mu: the functions in every cost's confidence set, ``(G, K)`` each.
        alpha: the factor of every cost's bonus, ``(m,)``.
    """
    gaps = [
        a * (h.unsqueeze(1) - h).flatten(0, 1) for a, h in zip(alpha, mu, strict=True)
    ]
    bonus: Tensor = torch.cat(gaps).unique(dim=0)
    return (theta.unsqueeze(1) + bonus).flatten(0, 1)


def best_distribution(u_r: Tensor, mu: list[Tensor], tau: Tensor) -> Distribution:
    """Return the distribution with the greatest value under any of ``n`` objectives.

    Args:
        u_r: the value of every arm under each objective, ``(n, K)``.
        mu: the functions of every cost, ``(G, K)`` each; all must keep the limit.
        tau: the limit of every cost, ``(m,)``.
    """
    limits = [limit.expand(len(h)) for limit, h in zip(tau, mu, strict=True)]
    u_c = torch.cat(mu).expand(len(u_r), -1, -1)
    pi = solve_policy(u_r, u_c, torch.cat(limits))
    value = pi.value.masked_fill(pi.infeasible, -torch.inf)
    close = CLOSE * (u_r.amax() - u_r.amin())  # the range, for want of a deviation
    best = int(best_place(value.unsqueeze(0), close))
    return Distribution(pi.distribution.index[best], pi.distribution.probability[best])


def stack_distributions(
    answers: list[Distribution], device: torch.device
) -> Distribution:
    """Stack one distribution for each trial, padded with zeros, on ``device``."""
    k = max(answer.index.shape[-1] for answer in answers)

    def padded(value: Tensor) -> Tensor:
        return torch.nn.functional.pad(value, (0, k - value.shape[-1]))

    return Distribution(
        devices.put(torch.stack([padded(answer.index) for answer in answers]), device),
        devices.put(
            torch.stack([padded(answer.probability) for answer in answers]), device
        ),
    )


def as_recommendation(
    pi: Distribution, fit: Tensor, limits: Tensor, confidence: float, actions: Actions
) -> Recommendation:
    """Return distributions over the arms as a feasible recommendation.

    Args:
        pi: the distribution of each trial.
        fit: the fitted functions, ``(T, F, K)``.
        limits: the thresholds, ``(T, m)``.
        confidence: the probability that the expected costs keep the thresholds.
        actions: the set of arms.
    """
    fitted = fit.gather(-1, pi.index.unsqueeze(1).expand(-1, fit.shape[1], -1))
    value = (fitted * pi.probability.unsqueeze(1)).sum(-1)  # T x F
    return Recommendation(
        index=pi.index,
        x=actions.points(pi.index),
        value=value[:, 0],
        probability=torch.full_like(value[:, 0], confidence),
        margin=limits - value[:, 1:],
        feasible=torch.ones_like(value[:, 0], dtype=torch.bool),
        confidence=confidence,
        distribution=pi,
    )
