"""The full-information paper's experiment: SCGP-UCB allocates GPUs.

See :mod:`cbandit.problems.cbo` for the paper and the problem.
"""

from __future__ import annotations

from functools import partial

from gpytorch.kernels import RBFKernel

from cbandit.beliefs.gp import GP
from cbandit.experiments.experiment import Experiment, Task
from cbandit.explore import UCB
from cbandit.policies.scgp import SCGPUCB
from cbandit.problems import Allocation, cbo_gpu_allocation
from cbandit.simulation.parts import Policy

BOUND, SLATER = 1.0, 0.7  # ours: B = max|f|; delta = 0.7 of the largest slack 0.74


def _scgp(problem: Allocation, task: Task, schedule: int) -> Policy:
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.5
    return SCGPUCB(
        problem.actions,
        reward=GP(kernel, noise=problem.noise),
        costs=problem.m,
        explore=UCB(1.0),
        schedule=schedule,
        slater=SLATER,
        clip=BOUND,
        **task.common,
    )


EXPERIMENTS = (
    Experiment(
        name="cbo-gpu-allocation",
        about="random arrivals seen before GPUs are allocated (SCGP-UCB)",
        horizon=2000,
        trials=50,
        problem=cbo_gpu_allocation,
        policies={
            "SCGP-UCB": partial(_scgp, schedule=1),
            "SCGP-UCB-2": partial(_scgp, schedule=2),
        },
    ),
)
