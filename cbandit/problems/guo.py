"""The experiments of the RPOL paper: classical, delayed, changing.

Guo, Zhu and Liu, *Rectified pessimistic-optimistic learning for stochastic
continuum-armed bandit with constraints*, 2023, section 7. On ``[0, 6]^2``,
``f = -sin x1 - x2`` and ``g = sin x1 sin x2 + 0.95``; Gaussian noise of variance 0.05
on both.

The paper leaves the rest open. Ours: a grid of 61 x 61 points (step 0.1), on which 64
of 3721 actions are feasible and the optimum is -0.30; 50 trials of 500 rounds; policies
with the squared-exponential kernel of lengthscale 1 and a constant ``beta``, see
:mod:`cbandit.experiments.papers.guo`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core.randomness import Trials
from cbandit.problems.gridded import Gridded, Phase

NOISE = 0.05


def waves(
    first: int = 1,
    shift: float = 0.0,
    cost_shift: tuple[float, float] = (0.0, 0.0),
    level: float = 0.95,
) -> Phase:
    """Return ``f = -sin(x1 + shift) - x2``, ``g = sin(x1 + a) sin(x2 + b) + level``."""
    a, b = cost_shift

    def reward(x: Tensor) -> Tensor:
        return -torch.sin(x[..., 0] + shift) - x[..., 1]

    def costs(x: Tensor) -> Tensor:
        product = torch.sin(x[..., 0] + a) * torch.sin(x[..., 1] + b)
        return (product + level).unsqueeze(-1)

    return Phase(first, reward, costs)


def square(points: int = 61, side: float = 6.0) -> list[Tensor]:
    """Return the axes of a grid of ``points x points`` on ``[0, side]^2``."""
    return [torch.linspace(0, side, points, dtype=torch.float64)] * 2


def _world(
    phases: list[Phase], trials: Trials, seed: int, delay: float | None = None
) -> Gridded:
    return Gridded(
        phases,
        square(),
        noise=NOISE,
        cost_noise=NOISE,
        delay=delay,
        trials=trials,
        seed=seed,
    )


def guo_classical(trials: Trials = None, seed: int = 0) -> Gridded:
    """``guo-classical``: the world does not change, and feedback comes at once.

    Args:
        trials: how many, or a ``range`` of their numbers; ``None``: no trials axis.
        seed: the seed of each trial's first action, which policies need not use.

    Example:
        >>> import cbandit as cb
        >>> cb.problems.guo_classical(trials=50).actions.size
        3721
    """
    return _world([waves()], trials, seed)


def guo_delayed(trials: Trials = None, seed: int = 0) -> Gridded:
    """``guo-delayed``: ``guo-classical`` with Poisson(15) delays of reward and cost.

    Args:
        trials: how many, or a ``range`` of their numbers; ``None``: no trials axis.
        seed: the seed of each trial's first action, which policies need not use.
    """
    return _world([waves()], trials, seed, delay=15.0)


def guo_nonstationary(trials: Trials = None, seed: int = 0) -> Gridded:
    """``guo-nonstationary``: the functions change after rounds 100 and 300.

    Rounds 101-300: ``f = -sin(x1 - 5) - x2``, ``g = sin x1 sin(x2 + 5) + 0.5``; from
    301: ``f = -sin(x1 + 4) - x2``, ``g = sin(x1 + 5) sin x2 + 0.95``. ``run.regret``
    is dynamic: it compares each round with that round's own optimum.

    Args:
        trials: how many, or a ``range`` of their numbers; ``None``: no trials axis.
        seed: the seed of each trial's first action, which policies need not use.
    """
    phases = [
        waves(),
        waves(101, -5.0, (0.0, 5.0), 0.5),
        waves(301, 4.0, (5.0, 0.0), 0.95),
    ]
    return _world(phases, trials, seed)
