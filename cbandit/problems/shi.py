"""The experiments of the epoch-penalty paper: a small feasible set, data rates.

Shi and Eryilmaz, *A Bayesian approach for stochastic continuum-armed bandit with
long-term constraints*, 2022. Each comes with a noiseless constraint (its Algorithm 2)
or a noisy one (Algorithm 3).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.randomness import Trials
from cbandit.problems.gridded import Gridded, Phase
from cbandit.problems.guo import square, waves

NOISE = 0.01


def _noisy(constraint: str) -> bool:
    checks.one_of("constraint", constraint, "noiseless", "noisy")
    return constraint == "noisy"


def shi_small_feasible(
    constraint: str = "noiseless",
    trials: Trials = None,
    seed: int = 0,
    points: int = 61,
) -> Gridded:
    """``shi-small-feasible``: 1.7 % of a square is feasible.

    On ``[0, 6]^2``, ``f = -sin x1 - x2`` with noise of variance 0.01 and
    ``g = sin x1 sin x2 + 0.95``, noiseless or with variance 0.01.

    Ours: a grid of 61 x 61 points, whose optimum is -0.30 (-0.25 on the square); each
    trial's start is a uniformly random grid point, given to the policies as one
    observation from before the first round.

    Args:
        constraint: ``"noiseless"`` or ``"noisy"``.
        trials: how many, or a ``range`` of their numbers; ``None``: no trials axis.
        seed: the seed of the starts.
        points: how many on each axis of the grid.

    Example:
        >>> import cbandit as cb
        >>> round(float(cb.problems.shi_small_feasible().optimum(1)), 4)
        -0.3001
    """
    return Gridded(
        [waves()],
        square(checks.whole("points", points, 2, "a whole number above 1")),
        noise=NOISE,
        cost_noise=NOISE if _noisy(constraint) else 0.0,
        trials=trials,
        seed=seed,
        purpose="shi-small-feasible",
    )


# by coordinate: (a, b), steepness and centre, of the sigmoids; a of the logarithms
_SIGMOIDS = {0: (4.0, 1.0), 2: (5.0, 0.8)}
_LOGARITHMS = {1: 3.0, 3: 6.0}
_WEIGHTS = (0.2, 0.4, 0.8, 1.2)
_BUDGET = 2.0


def _utility(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[..., 0])
    for i, (a, b) in _SIGMOIDS.items():
        low, high = (1 / (1 + math.exp(-a * (end - b))) for end in (0.0, 2.0))
        total = total + (torch.sigmoid(a * (x[..., i] - b)) - low) / (high - low)
    for i, a in _LOGARITHMS.items():
        total = total + torch.log1p(a * x[..., i]) / math.log1p(2 * a)
    return total


def _budget(x: Tensor) -> Tensor:
    weights = torch.tensor(_WEIGHTS, dtype=x.dtype, device=x.device)
    return (x @ weights - _BUDGET).unsqueeze(-1)


def shi_data_rate(
    constraint: str = "noiseless", trials: Trials = None, seed: int = 0
) -> Gridded:
    """``shi-data-rate``: the utility of four users' rates, under one budget.

    On ``[0, 2]^4``, ``f = sum U_i(x_i)``, for users 1 and 3
    ``U_i = c_i (1 / (1 + exp(-a_i (x_i - b_i))) + d_i)``, for users 2 and 4
    ``U_i = c_i (log(a_i x_i + b_i) + d_i)``, and
    ``g = 0.2 x1 + 0.4 x2 + 0.8 x3 + 1.2 x4 - 2``. Noise of variance 0.01 on each
    utility, 0.04 on ``f``; ``g`` noiseless, or with noise uniform on [-0.2, 0.2].

    The constants of Lee, Mazumdar and Shroff (2005) could not be found. Ours:
    ``a = 4, b = 1`` (user 1) and ``a = 5, b = 0.8`` (user 3); ``a = 3`` and ``a = 6``
    with ``b = 1`` (users 2 and 4); ``c_i, d_i`` such that every utility runs from 0 at
    rate 0 to 1 at rate 2. The budget binds: unconstrained, all rates would be 2. A grid
    of 11^4 points (step 0.2); starts as in :func:`shi_small_feasible`.

    Args:
        constraint: ``"noiseless"`` or ``"noisy"``.
        trials: how many, or a ``range`` of their numbers; ``None``: no trials axis.
        seed: the seed of the starts.
    """
    return Gridded(
        [Phase(1, _utility, _budget)],
        [torch.linspace(0, 2, 11, dtype=torch.float64)] * 4,
        noise=4 * NOISE,
        half_width=0.2 if _noisy(constraint) else 0.0,
        trials=trials,
        seed=seed,
        purpose="shi-data-rate",
    )


PROPOSITION_KAPPA, PROPOSITION_A = 1.0, 0.5


def shi_proposition_1(
    constraint: str = "noiseless", trials: Trials = None, seed: int = 0
) -> Gridded:
    """``shi-proposition-1``: a problem on which one fixed multiplier fails.

    ``g(x) = x`` and ``f = kappa Lambda(x) - (x - a)^2`` with ``a > 0``: a policy that
    maximises ``f - kappa Lambda(g)`` with that fixed ``kappa`` plays ``x = a``, which
    violates the constraint in every round. The optimum is ``-a^2``, at ``x = 0``.

    Ours: ``[-1, 1]`` in steps of 0.02, ``kappa = 1``, ``a = 0.5``; ``Lambda`` is
    Algorithm 2's penalty ``exp([x]_+) - 1`` or, with a noisy constraint, Algorithm 3's
    ``x``. Noise of variance 0.01.

    Args:
        constraint: ``"noiseless"`` or ``"noisy"``.
        trials: how many, or a ``range`` of their numbers; ``None``: no trials axis.
        seed: the seed of the starts.
    """
    noisy = _noisy(constraint)

    def reward(x: Tensor) -> Tensor:
        z = x[..., 0]
        penalty = z if noisy else torch.expm1(z.clamp_min(0))
        return PROPOSITION_KAPPA * penalty - (z - PROPOSITION_A).square()

    return Gridded(
        [Phase(1, reward, lambda x: x)],
        [torch.linspace(-1, 1, 101, dtype=torch.float64)],
        noise=NOISE,
        cost_noise=NOISE if noisy else 0.0,
        trials=trials,
        seed=seed,
        purpose="shi-proposition-1",
    )
