"""Guo, Zhu and Liu's experiments: RPOL in a classical, a delayed, a changing world.

See :mod:`cbandit.problems.guo` for the paper and the problems.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpytorch.kernels import RBFKernel

from cbandit.baselines.ckb_restart import CKBRestart
from cbandit.baselines.config import CONFIG
from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.experiments.experiment import (
    Experiment,
    Factory,
    Figures,
    Parameter,
    Task,
)
from cbandit.explore import UCB
from cbandit.policies.ckb import CKB
from cbandit.policies.rpol import RPOL
from cbandit.problems import Gridded, guo_classical, guo_delayed, guo_nonstationary
from cbandit.simulation.parts import Policy

# ours: B = max|f|, G = max|g| and Slater's constant of the first phase, which CKB needs
BOUNDS, SLATER = (7.0, 1.95), 0.05


def _policy(
    problem: Gridded, task: Task, kind: Callable[..., Policy], **options: object
) -> Policy:
    """Build a policy with the beliefs and widths that all policies share."""
    parameters = task.settings.parameters
    lam = 1 + 2 / task.settings.horizon
    if parameters["lam"] != "theory":
        lam = float(parameters["lam"])
    kernel = RBFKernel().double()
    kernel.lengthscale = 1.0
    gp, width = GP(kernel, noise=lam), UCB(parameters["beta"])
    shared = {"reward": gp, "costs": gp, "explore": width, "pending": "ignore"}
    return kind(problem.actions, **shared | options, **task.common)


def _censored(problem: Gridded, task: Task) -> Policy:
    parameters = task.settings.parameters
    late = Delayed(parameters["window"], weight=parameters["weight"])
    return _policy(problem, task, RPOL, feedback=late)


def _windowed(problem: Gridded, task: Task) -> Policy:
    last = Sliding(task.settings.parameters["window"])
    return _policy(problem, task, RPOL, feedback=last)


def _ckb(
    problem: Gridded, task: Task, kind: Callable[..., Policy] = CKB, **options: object
) -> Policy:
    """Build CKB with its theorem's step and cap, or with those that were given."""
    options |= {"clip": BOUNDS}
    given = {name: task.settings.parameters[name] for name in ("step", "cap")}
    if set(given.values()) == {"theory"}:
        options |= {"slater": SLATER, "horizon": task.settings.horizon}
    elif "theory" in given.values():
        raise CBanditError(f"step and cap must be given together; got {given}")
    else:
        options |= {name: float(value) for name, value in given.items()}
    return _policy(problem, task, kind, **options)


def _rpol_restart(problem: Gridded, task: Task) -> Policy:
    restart = task.settings.parameters["restart"]
    return _policy(problem, task, RPOL, restart=restart, forget=True)


def _ckb_restart(problem: Gridded, task: Task) -> Policy:
    restart = task.settings.parameters["restart"]
    return _ckb(problem, task, CKBRestart, restart=restart)


# ours: what stands for the paper's remark 2, where nothing of the drift is known
_adaptive = partial(_policy, kind=RPOL, restart="adaptive", forget=True)
_rpol, _config = partial(_policy, kind=RPOL), partial(_policy, kind=CONFIG)
PLAIN: dict[str, Factory] = {"RPOL-UCB": _rpol, "CKB-UCB": _ckb, "CONFIG": _config}
# ours except lam: width, windows, rounds between restarts. A restart every 100 rounds
# would fall exactly on the changes, as if the baseline knew them
SHARED = {
    "beta": Parameter(1.0, (), "exploration width of every policy", 0),
    "lam": Parameter("theory", (), "the beliefs' noise: 1 + 2/T, or a number", 1e-12),
    # the theorem's, with the constants above and delta = 0.05, are 12.8 and 560
    "step": Parameter("theory", (), "CKB's step: its theorem's, or a number", 1e-12),
    "cap": Parameter("theory", (), "CKB's cap: its theorem's, or a number", 1e-12),
}
LATE = {
    **SHARED,
    "window": Parameter(30, (), "rounds to wait for feedback", 1),
    # above about 0.05 the search, and its violations, cost more than it gains
    "weight": Parameter(0.03, (), "factor of outstanding rounds' deviations", 0),
}
# ours: the library's default with late feedback
_counted = partial(_policy, kind=RPOL, pending="hallucinate")
DRIFTING = {
    **SHARED,
    # a window's posterior stays wide, so a wide band is costly for RPOL-SWUCB
    "beta": Parameter(0.3, (), "exploration width of every policy", 0),
    "window": Parameter(100, (), "rounds that RPOL-SWUCB remembers", 1),
    "restart": Parameter(120, (), "rounds between restarts", 1),
}

EXPERIMENTS = (
    Experiment(
        name="guo-classical",
        about="a small feasible set (RPOL, Figure 1)",
        horizon=500,
        trials=50,
        problem=guo_classical,
        policies=PLAIN,
        parameters=SHARED,
        figures=Figures(averaged=("regret", "hard_violation")),
    ),
    Experiment(
        name="guo-delayed",
        about="reward and cost come about 15 rounds late (RPOL, Figure 2)",
        horizon=500,
        trials=50,
        problem=guo_delayed,
        policies={
            "RPOL-CensoredUCB": _censored,
            **PLAIN,
            "RPOL-UCB-Hallucinate": _counted,
        },
        parameters=LATE,
        figures=Figures(averaged=("regret", "hard_violation")),
    ),
    Experiment(
        name="guo-nonstationary",
        about="the world changes after rounds 100 and 300 (RPOL, Figure 3)",
        horizon=500,
        trials=50,
        problem=guo_nonstationary,
        policies={
            "RPOL-SWUCB": _windowed,
            "CKB-UCB": _ckb,
            "CONFIG": _config,
            "CKB-RestartUCB": _ckb_restart,
            "RPOL-Restart": _rpol_restart,
            "RPOL-Adaptive": _adaptive,
        },
        parameters=DRIFTING,
        changes=(101, 301),
        figures=Figures(averaged=("reward", "hard_violation")),
    ),
)
