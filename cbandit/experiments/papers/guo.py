"""Guo, Qi and Liu's experiments: RPOL in a classical, a delayed, a changing world.

See :mod:`cbandit.problems.guo` for the paper and the problems.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gpytorch.kernels import RBFKernel

from cbandit.baselines.ckb_restart import CKBRestart
from cbandit.baselines.config import CONFIG
from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.beliefs.gp import GP
from cbandit.experiments.task import Experiment, Factory, Figures, Task, problem_of
from cbandit.explore import UCB
from cbandit.policies.ckb import CKB
from cbandit.policies.rpol import RPOL
from cbandit.problems import guo_classical, guo_delayed, guo_nonstationary
from cbandit.simulation.parts import Policy

__all__ = ["EXPERIMENTS"]

# ours: the same width for every policy. In the changing world it is smaller: the
# posterior of a window never grows narrow, and RPOL pays for that
BETA, CHANGING_BETA = 1.0, 0.6
# ours: B = max|f|, G = max|g| and Slater's constant of the first phase, which CKB needs
BOUNDS, SLATER = (7.0, 1.95), 0.05
# ours: windows, and rounds between restarts
DELAY_WINDOW, WINDOW = 30, 100


def _shared(problem: Any, task: Task, beta: float) -> dict[str, Any]:
    kernel = RBFKernel().double()
    kernel.lengthscale = 1.0
    gp = GP(kernel, noise=problem.noise)
    own = {"reward": gp, "costs": gp, "explore": UCB(beta), "pending": "ignore"}
    return {**own, **task.common}


def _theorem(task: Task) -> dict[str, Any]:
    """The constants from which CKB's theorem sets its steps."""
    return {"clip": BOUNDS, "slater": SLATER, "horizon": task.settings.horizon}


def _rpol(problem: Any, task: Task, beta: float = BETA, feedback: Any = None) -> Policy:
    return RPOL(problem.actions, feedback=feedback, **_shared(problem, task, beta))


def _config(problem: Any, task: Task, beta: float = BETA) -> Policy:
    return CONFIG(problem.actions, **_shared(problem, task, beta))


def _ckb(problem: Any, task: Task, beta: float = BETA) -> Policy:
    return CKB(problem.actions, **_theorem(task), **_shared(problem, task, beta))


def _ckb_restart(problem: Any, task: Task, beta: float = BETA) -> Policy:
    given = {**_theorem(task), **_shared(problem, task, beta)}
    return CKBRestart(problem.actions, restart=WINDOW, **given)


PLAIN: dict[str, Factory] = {"RPOL-UCB": _rpol, "CKB-UCB": _ckb, "CONFIG": _config}
DELAYED: dict[str, Factory] = {
    "RPOL-CensoredUCB": partial(_rpol, feedback=Delayed(DELAY_WINDOW)),
    **PLAIN,
}
CHANGING: dict[str, Factory] = {
    "RPOL-SWUCB": partial(_rpol, beta=CHANGING_BETA, feedback=Sliding(WINDOW)),
    "CKB-UCB": partial(_ckb, beta=CHANGING_BETA),
    "CONFIG": partial(_config, beta=CHANGING_BETA),
    "CKB-RestartUCB": partial(_ckb_restart, beta=CHANGING_BETA),
}

EXPERIMENTS = (
    Experiment(
        name="guo-classical",
        about="a strict feasible set (RPOL, Figure 1)",
        horizon=500,
        trials=50,
        problem=problem_of(guo_classical),
        policies=PLAIN,
        figures=Figures(averaged=("regret", "hard_violation")),
    ),
    Experiment(
        name="guo-delayed",
        about="reward and cost come about 15 rounds late (RPOL, Figure 2)",
        horizon=500,
        trials=50,
        problem=problem_of(guo_delayed),
        policies=DELAYED,
        figures=Figures(averaged=("regret", "hard_violation")),
    ),
    Experiment(
        name="guo-nonstationary",
        about="the world changes after rounds 100 and 300 (RPOL, Figure 3)",
        horizon=500,
        trials=50,
        problem=problem_of(guo_nonstationary),
        policies=CHANGING,
        changes=(101, 301),
        figures=Figures(averaged=("reward", "hard_violation")),
    ),
)
