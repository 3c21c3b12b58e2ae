"""The account: regrets and violations of a run.

All are pure functions on tensors. A reward or an optimum has shape ``(*trials, T)``; an
optimum that never changes may be ``(*trials, 1)``. Costs have shape ``(*trials, T, m)``
and thresholds are subtracted, so that feasible means ``<= 0``. Results are cumulative,
``(*trials, T)``: entry ``t - 1`` is the value after round ``t``.

Rewards and costs are noiseless, except where a name says ``realised``.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "best_feasible",
    "dynamic_regret",
    "expected",
    "hard_violation",
    "policy_regret",
    "realised_regret",
    "realised_violation",
    "regret",
    "rounds_in_violation",
    "soft_violation",
    "stage_cost",
    "stage_kept",
    "stochastic_regret",
    "time_average",
]


def _shortfall(best: Tensor, reward: Tensor) -> Tensor:
    return (best - reward).cumsum(-1)


def regret(optimum: Tensor, reward: Tensor) -> Tensor:
    """Return ``t f(x*) - sum f(x_s)``, against the best feasible action.

    Args:
        optimum: ``f(x*)``, ``(*trials, T)`` or ``(*trials, 1)``.
        reward: ``f(x_t)``, ``(*trials, T)``.
    """
    return _shortfall(optimum, reward)


def stochastic_regret(value: Tensor, reward: Tensor) -> Tensor:
    """Return the regret against the best distribution that is feasible on average.

    Args:
        value: the optimum of ``max E f  s.t.  E g_j <= 0``, shaped as in ``regret``.
        reward: ``f(x_t)``, ``(*trials, T)``.
    """
    return _shortfall(value, reward)


def dynamic_regret(optima: Tensor, reward: Tensor) -> Tensor:
    """Return ``sum f_s(x*_s) - f_s(x_s)``, each round against its own best action.

    Args:
        optima: ``f_t(x*_t)`` of the best feasible actions, ``(*trials, T)``.
        reward: ``f_t(x_t)``, ``(*trials, T)``.
    """
    return _shortfall(optima, reward)


def policy_regret(value: Tensor, expected_reward: Tensor) -> Tensor:
    """Return ``sum E_{pi*_s} f - E_{pi_s} f``: expected regret of distributions.

    Args:
        value: each round's optimum of the linear programme, ``(*trials, T)``.
        expected_reward: ``E_{pi_t} f``, ``(*trials, T)``.
    """
    return _shortfall(value, expected_reward)


def soft_violation(costs: Tensor) -> Tensor:
    """Return ``|| [ sum_s g(x_s) ]_+ ||_2`` over costs; good rounds offset bad ones.

    Args:
        costs: ``g(x_t)``, ``(*trials, T, m)``.
    """
    # with one cost, spare vector_norm's square and root
    total = costs.cumsum(-2).clamp_min(0.0)
    if total.shape[-1] == 1:
        return total.squeeze(-1)
    return total.square().sum(-1).sqrt()


def hard_violation(costs: Tensor) -> Tensor:
    """Return ``sum_s sum_j [g_j(x_s)]_+``; good rounds do not offset bad ones.

    Args:
        costs: ``g(x_t)``, ``(*trials, T, m)``.
    """
    return costs.clamp_min(0.0).sum(-1).cumsum(-1)


def rounds_in_violation(costs: Tensor) -> Tensor:
    """Count the rounds in which any cost was above its threshold, int64.

    Args:
        costs: ``g(x_t)``, ``(*trials, T, m)``.
    """
    return (costs > 0).any(-1).cumsum(-1)


def best_feasible(reward: Tensor, costs: Tensor) -> Tensor:
    """Return the largest ``f(x_s)`` so far among rounds that kept all thresholds.

    It is NaN until there is such a round.

    Args:
        reward: ``f(x_t)``, ``(*trials, T)``.
        costs: ``g(x_t)``, ``(*trials, T, m)``.
    """
    feasible = torch.where((costs > 0).any(-1), -torch.inf, reward)
    best = feasible.cummax(-1).values
    return torch.where(best == -torch.inf, torch.nan, best)


def realised_regret(optimum: Tensor, observed: Tensor) -> Tensor:
    """Return ``sum f^s(x*) - f^s(x_s)`` of the noisy functions.

    Args:
        optimum: ``f^t(x*)``, the best action's noisy reward in round ``t``, or its mean
            ``f(x*)`` if that is not known.
        observed: the rewards as observed, ``(*trials, T)``.
    """
    return _shortfall(optimum, observed)


def realised_violation(observed: Tensor) -> Tensor:
    """Return ``|| [ sum_s c_s ]_+ ||_2`` of the costs as observed.

    Args:
        observed: ``(*trials, T, m)``, relative to the thresholds.
    """
    return soft_violation(observed)


def expected(probability: Tensor, value: Tensor) -> Tensor:
    """Return ``E_pi h`` for a distribution over a few actions.

    Args:
        probability: the actions' probabilities, ``(*trials, k)``.
        value: ``h`` at those actions, ``(*trials, k)`` or ``(*trials, k, m)``.
    """
    if value.dim() > probability.dim():
        return (probability.unsqueeze(-1) * value).sum(-2)
    return (probability * value).sum(-1)


def stage_cost(probability: Tensor, costs: Tensor) -> Tensor:
    """Return ``E_{pi_t} g_j`` of one round, ``(*trials, m)``.

    Args:
        probability: the actions' probabilities, ``(*trials, k)``.
        costs: ``g`` at the actions of the distribution, ``(*trials, k, m)``.
    """
    return expected(probability, costs)


ROUNDING = 1e-12  # a cost that exceeds its threshold by less still keeps it


def stage_kept(stage_costs: Tensor) -> Tensor:
    """Return whether all stage costs of a round keep their thresholds.

    Args:
        stage_costs: ``E_{pi_t} g``, ``(*trials, T, m)``.

    Returns:
        ``(*trials, T)`` bool.
    """
    return (stage_costs <= ROUNDING).all(-1)


def time_average(total: Tensor) -> Tensor:
    """Return a cumulative ``(*trials, T)`` divided by the number of rounds so far."""
    rounds = torch.arange(1, total.shape[-1] + 1, device=total.device)
    return total / rounds
