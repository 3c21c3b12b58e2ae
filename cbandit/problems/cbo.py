"""The full-information paper's example: serve arrivals with little energy.

Zhou and Ji, *Provably efficient Bayesian optimization with unknown constraints*, the
longer form of the CKB paper. Its constraints are seen in full before each choice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core.arguments import stated
from cbandit._core.randomness import Streams, Trials
from cbandit.choice import Choice
from cbandit.problems.gridded import Gridded, Phase, poisson
from cbandit.problems.protocol import Round, uniforms

ARRIVALS, SCALE = 8.0, 8.0
NOISE = 0.01


def _service(x: Tensor) -> Tensor:
    """Return the service ``h_1(x_1) + h_2(x_2)``, which is concave."""
    return torch.log1p(3 * x[..., 0]) / 1.5 + 0.9 * (x[..., 1] + 0.01).sqrt() - 0.09


def _energy(x: Tensor) -> Tensor:
    return 0.5 * x[..., 0] ** 2 + 0.3 * x[..., 1] ** 1.5 + 0.2 * x[..., 0] * x[..., 1]


class Allocation(Gridded):
    """GPUs for two nodes, allocated each round after its arrivals are seen."""

    def __init__(self, trials: Trials = None, seed: int = 0) -> None:
        self.settings = stated(self, locals())
        mean = ARRIVALS / SCALE
        phase = Phase(
            1,
            lambda x: -_energy(x),
            lambda x: (mean - _service(x)).unsqueeze(-1),
        )
        axes = [torch.linspace(0, 1, 21, dtype=torch.float64)] * 2
        super().__init__(
            [phase], axes, noise=NOISE, trials=trials, seed=seed, purpose="cbo"
        )
        self._law = poisson(ARRIVALS)
        self._served = _service(self.actions.block(0, self.actions.size))
        self._arrived = torch.zeros(self._batch, dtype=torch.float64)

    def round(self, t: int, generator: Streams) -> Round:
        """Show this round's constraint on every action, ``(*trials, 1, N)``."""
        draws = uniforms(generator, self._batch)
        self._arrived = torch.searchsorted(self._law, draws.contiguous()) / SCALE
        costs = self._arrived.unsqueeze(-1) - self._served
        return Round(observed_costs=costs.unsqueeze(-2))

    def observe(self, choice: Choice, generator: Streams) -> tuple[Tensor, Tensor]:
        """Return the noisy reward, and the action's constraint as it was shown."""
        reward, _ = self.look(choice.x, choice.t, generator)
        cost = self._arrived - _service(choice.x.cpu().double())
        return reward, cost.unsqueeze(-1)


def cbo_gpu_allocation(trials: Trials = None, seed: int = 0) -> Allocation:
    """``cbo-gpu-allocation``: allocate GPUs to serve arrivals with little energy.

    The constraint is ``g_t(x) = omega_t - h_1(x_1) - h_2(x_2)``. ``omega_t`` are this
    round's arrivals, seen before the choice. ``h_i`` are the known
    service curves of two nodes, concave in their shares of GPUs. The reward is minus
    the energy, which is unknown and observed with noise.

    The paper gives no numbers. Ours: shares in [0, 1] in steps of 0.05; arrivals
    Poisson with mean 8, in units of 8; ``h_1 = log(1 + 3 x) / 1.5``,
    ``h_2 = 0.9 sqrt(x + 0.01) - 0.09``; energy
    ``0.5 x1^2 + 0.3 x2^1.5 + 0.2 x1 x2``; noise of variance 0.01; 2000 rounds, 50
    trials.

    Args:
        trials: how many, or a ``range`` of their numbers; ``None``: no trials axis.
        seed: the seed of each trial's first action, which policies need not use.
    """
    return Allocation(trials, seed)
