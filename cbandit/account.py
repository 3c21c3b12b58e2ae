"""The account: what a run cost and what it earned.

Pure functions on tensors. A reward or an optimum has shape ``(*trials, T)``, costs have
shape ``(*trials, T, m)`` and are relative to their thresholds, so that feasible means
``<= 0``. An optimum that never changes may be given as ``(*trials, 1)``. Everything
returned is cumulative, ``(*trials, T)``: entry ``t - 1`` is the value after round
``t``.

Unless a name says otherwise the functions are meant for the noiseless reward and costs.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
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
    """``t f(x*) - sum f(x_s)`` against the best feasible action.

    Args:
        optimum: ``f(x*)``, ``(*trials, T)`` or ``(*trials, 1)``.
        reward: ``f(x_t)``, ``(*trials, T)``.
    """
    return _shortfall(optimum, reward)


def stochastic_regret(value: Tensor, reward: Tensor) -> Tensor:
    """Regret against the best distribution over actions that is feasible on average.

    Args:
        value: the optimum of ``max E f  s.t.  E g_j <= 0``, as ``optimum`` above.
        reward: ``f(x_t)``, ``(*trials, T)``.
    """
    return _shortfall(value, reward)


def dynamic_regret(optima: Tensor, reward: Tensor) -> Tensor:
    """``sum f_s(x*_s) - f_s(x_s)``: every round against its own best feasible action.

    Args:
        optima: ``f_t(x*_t)``, ``(*trials, T)``.
        reward: ``f_t(x_t)``, ``(*trials, T)``.
    """
    return _shortfall(optima, reward)


def policy_regret(value: Tensor, expected_reward: Tensor) -> Tensor:
    """``sum E_{pi*_s} f - E_{pi_s} f``: distribution against distribution.

    Args:
        value: each round's optimum of the linear programme, ``(*trials, T)``.
        expected_reward: ``E_{pi_t} f``, ``(*trials, T)``.
    """
    return _shortfall(value, expected_reward)


def soft_violation(costs: Tensor) -> Tensor:
    """``|| [ sum_s g(x_s) ]_+ ||_2`` over the costs; rounds may compensate each other.

    Args:
        costs: ``g(x_t)``, ``(*trials, T, m)``.
    """
    # not vector_norm: for one cost that would square and root for nothing
    total = costs.cumsum(-2).clamp_min(0.0)
    if total.shape[-1] == 1:
        return total.squeeze(-1)
    return total.square().sum(-1).sqrt()


def hard_violation(costs: Tensor) -> Tensor:
    """``sum_s sum_j [g_j(x_s)]_+``: nothing compensates.

    Args:
        costs: ``g(x_t)``, ``(*trials, T, m)``.
    """
    return costs.clamp_min(0.0).sum(-1).cumsum(-1)


def rounds_in_violation(costs: Tensor) -> Tensor:
    """The number of rounds in which any cost was above its threshold, int64.

    Args:
        costs: ``g(x_t)``, ``(*trials, T, m)``.
    """
    return (costs > 0).any(-1).cumsum(-1)


def realised_regret(optimum: Tensor, observed: Tensor) -> Tensor:
    """``sum f^s(x*) - f^s(x_s)`` on the noisy functions.

    Args:
        optimum: ``f^t(x*)``, what the best action would have paid in round ``t``; its
            mean ``f(x*)`` where that is not known.
        observed: the rewards that came, ``(*trials, T)``.
    """
    return _shortfall(optimum, observed)


def realised_violation(observed: Tensor) -> Tensor:
    """``|| [ sum_s c_s ]_+ ||_2`` on the costs as observed.

    Args:
        observed: ``(*trials, T, m)``, relative to the thresholds.
    """
    return soft_violation(observed)


def expected(probability: Tensor, value: Tensor) -> Tensor:
    """``E_pi h`` for a distribution over a few actions.

    Args:
        probability: ``(*trials, k)``.
        value: ``h`` at those actions, ``(*trials, k)`` or ``(*trials, k, m)``.
    """
    if value.dim() > probability.dim():
        return (probability.unsqueeze(-1) * value).sum(-2)
    return (probability * value).sum(-1)


def stage_cost(probability: Tensor, costs: Tensor) -> Tensor:
    """``E_{pi_t} g_j`` of one round, ``(*trials, m)``.

    Args:
        probability: ``(*trials, k)``.
        costs: ``g`` at the actions of the distribution, ``(*trials, k, m)``.
    """
    return expected(probability, costs)


ROUNDING = 1e-12  # a cost above its threshold by less is at its threshold


def stage_kept(stage_costs: Tensor) -> Tensor:
    """Whether every stage cost of a round is at most its threshold, ``(*trials, T)``.

    Args:
        stage_costs: ``E_{pi_t} g``, ``(*trials, T, m)``.
    """
    return (stage_costs <= ROUNDING).all(-1)


def time_average(total: Tensor) -> Tensor:
    """A cumulative ``(*trials, T)`` divided by the number of rounds so far."""
    rounds = torch.arange(1, total.shape[-1] + 1, device=total.device)
    return total / rounds
